"""The learner's own speed, against rsl-rl-lib's PPO: the same shapes, network, epochs and minibatches, no simulator.

Both are driven by an environment that costs nothing, in turns, in one process:

- ours: ``genesis_vec.training.ppo.PPO.iterate``: a rollout and an update.
- rsl_rl: rsl-rl-lib's PPO as its runner drives it: ``act`` and ``process_env_step`` in each step, ``compute_returns``,
  ``update``.

Ratios are of env-steps/s within a round, medians with quartiles. How much of each learner's time is not matrix products
is measured by torch's profiler in an iteration of its own.

    python benchmarks/learner.py [--rounds 7] [--out …]      (needs the extra rsl-rl)
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import time
from pathlib import Path
from typing import Any, Protocol

import torch
import tyro
from common import FreeEnv, in_turn
from torch.profiler import ProfilerActivity, profile

from genesis_vec.benchmark.record import Metric, spread, write_record
from genesis_vec.training.config import PPOConfig
from genesis_vec.training.ppo import PPO

AIM = 1.0
_PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::matmul", "aten::linear", "mkldnn::_linear_pointwise")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of the benchmark."""

    num_envs: tuple[int, ...] = (512, 4096)
    """Numbers of environments, one after the other."""
    rounds: int = 7
    """Rounds; in each one both learners have one iteration."""
    rollout_steps: int = 24
    """Steps of a rollout."""
    epochs: int = 5
    """Passes over a rollout."""
    minibatches: int = 4
    """Minibatches in a pass."""
    hidden_sizes: tuple[int, ...] = (512, 256, 128)
    """Hidden layers of actor and critic each."""
    observation_size: int = 48
    """Length of an observation."""
    action_size: int = 12
    """Length of an action."""
    torch_threads: int = 2
    """Threads of torch."""
    out: Path = Path("benchmarks/results/learner.json")
    """Where the result goes."""


class Contender(Protocol):
    """A learner."""

    def iterate(self) -> None:
        """A rollout and an update."""
        ...


class Ours:
    """This package's."""

    def __init__(self, settings: Settings, num_envs: int) -> None:
        config = PPOConfig(
            rollout_steps=settings.rollout_steps, epochs=settings.epochs, minibatches=settings.minibatches,
            hidden_sizes=settings.hidden_sizes, clip_value=True, entropy_coefficient=0.01, normalize_rewards=False,
        )  # fmt: skip
        self.iterate = PPO(FreeEnv(num_envs, settings.observation_size, settings.action_size), config, seed=0).iterate


class RslRl:
    """rsl-rl-lib's."""

    def __init__(self, settings: Settings, num_envs: int) -> None:
        from rsl_rl.algorithms import PPO as RslPPO  # pyright: ignore[reportMissingImports]
        from rsl_rl.models import MLPModel  # pyright: ignore[reportMissingImports]
        from rsl_rl.storage import RolloutStorage  # pyright: ignore[reportMissingImports]
        from tensordict import TensorDict  # pyright: ignore[reportMissingImports]

        self._env = FreeEnv(num_envs, settings.observation_size, settings.action_size)
        self._steps = settings.rollout_steps
        self._observations = TensorDict({"policy": self._env.observations}, batch_size=[num_envs])
        groups = {"actor": ["policy"], "critic": ["policy"]}
        network = {"hidden_dims": settings.hidden_sizes, "activation": "elu", "obs_normalization": True}
        noise = {"class_name": "GaussianDistribution", "init_std": 0.6, "std_type": "log"}
        actor = MLPModel(self._observations, groups, "actor", settings.action_size, distribution_cfg=noise, **network)
        critic = MLPModel(self._observations, groups, "critic", 1, **network)
        storage = RolloutStorage(
            "rl", num_envs, settings.rollout_steps, self._observations, [settings.action_size], "cpu"
        )
        self._learner = RslPPO(
            actor, critic, storage, num_learning_epochs=settings.epochs, num_mini_batches=settings.minibatches
        )

    def iterate(self) -> None:
        env, learner = self._env, self._learner
        with torch.inference_mode():
            for _ in range(self._steps):
                _, reward, terminated, truncated, _ = env.step(learner.act(self._observations))
                extras = {"time_outs": truncated}
                learner.process_env_step(self._observations, reward, terminated | truncated, extras)
            learner.compute_returns(self._observations)
        learner.update()


CONTENDERS = {"ours": Ours, "rsl_rl": RslRl}


def share_outside_products(contender: Contender) -> float:
    """The share of an iteration's time in operators that are not matrix products."""
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        contender.iterate()
    times = {event.key: event.self_cpu_time_total for event in profiler.key_averages()}
    return 1.0 - sum(times.get(name, 0.0) for name in _PRODUCTS) / sum(times.values())


def measure(settings: Settings, num_envs: int) -> tuple[dict[str, Any], list[Metric]]:
    with contextlib.redirect_stdout(io.StringIO()):
        contenders: dict[str, Contender] = {name: make(settings, num_envs) for name, make in CONTENDERS.items()}
    for contender in contenders.values():
        contender.iterate()
    rounds = []
    for index in range(settings.rounds):
        rates = {}
        for name in in_turn(list(contenders), index):
            start = time.perf_counter()
            contenders[name].iterate()
            rates[name] = settings.rollout_steps * num_envs / (time.perf_counter() - start)
        rounds.append(rates)
    ratios = [rates["ours"] / rates["rsl_rl"] for rates in rounds]
    metrics = [
        Metric(f"{num_envs} envs: ours / rsl_rl", "ratio", "higher", ratios),
        Metric(f"{num_envs} envs: ours, env-steps/s", "rate", "higher", [rates["ours"] for rates in rounds]),
    ]
    return {
        "env_steps_per_s": {name: spread((rates[name] for rates in rounds), 0) for name in contenders},
        "ours_over_rsl_rl": spread(ratios, 3),
        "share_outside_matrix_products": {
            name: round(share_outside_products(contender), 3) for name, contender in contenders.items()
        },
    }, metrics


def main() -> None:
    settings = tyro.cli(Settings)
    torch.set_num_threads(settings.torch_threads)
    results: dict[str, Any] = {}
    metrics: list[Metric] = []
    for num_envs in settings.num_envs:
        result, of_size = measure(settings, num_envs)
        results[str(num_envs)] = result
        metrics += of_size
        ratio = result["ours_over_rsl_rl"]
        verdict = "met" if ratio["median"] >= AIM else "NOT MET"
        print(f"{num_envs} envs: ours over rsl_rl {ratio['median']} {ratio['quartiles']}, aim {AIM}: {verdict}")
        print(f"  not matrix products: {result['share_outside_matrix_products']}")
    write_record(
        settings.out, "learner", settings, results, device="cpu", physics=None, metrics=metrics,
        packages=("rsl-rl-lib", "tensordict"),
        aims={"ours / rsl_rl": AIM},
    )  # fmt: skip


if __name__ == "__main__":
    main()
