"""What the hot paths ask of torch: operations, allocations, bytes; no seconds, so no noise.

- step: a step of an environment in which nothing ends, and one in which the time of every environment is up, without
  the engine's own step.
- two workers: the learner's side of such a step with two worker processes.
- iteration: a rollout of eight steps and an update of one minibatch by the package's own learner, on an environment
  that costs nothing.
- rollout: a step of a rollout of TorchPPO on such an environment, policy included.

CI compares these with the committed ones: genesis-vec bench --only counts --compare benchmarks/results/bench.json

    python benchmarks/counts.py [--out benchmarks/results/counts.json]
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import torch
import tyro
from common import ROBOTS, FreeEnv, use_one_thread

from genesis_vec.adapters.sb3 import SB3VecEnv, TorchPPO
from genesis_vec.benchmark.counting import CountOperations, Counts
from genesis_vec.benchmark.record import Metric, write_record
from genesis_vec.training.config import PPOConfig
from genesis_vec.training.ppo import PPO

FIGURES = ("operations", "allocations", "allocated_bytes", "copied_bytes")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of the benchmark."""

    num_envs: int = 64
    """Number of environments."""
    rollout_steps: int = 8
    """Steps of a rollout."""
    out: Path = Path("benchmarks/results/counts.json")
    """Where the result goes."""


def counted(call: Callable[[], Any], times: int = 1) -> dict[str, float]:
    """What a call asks for, per one of the ``times`` things that it does."""
    with CountOperations() as counting:
        call()
    counts: Counts = counting.counts
    return {name: getattr(counts, name) / times for name in FIGURES}


def of_steps(settings: Settings) -> dict[str, dict[str, float]]:
    """Steps of environments in this process."""
    found = {}
    limit = 4
    for id, kwargs in {"GenesisCartPole-v0": {}, "GenesisRigid-v0": {"morph": ROBOTS["panda"]}}.items():
        env: Any = gymnasium.make_vec(
            id, num_envs=settings.num_envs, device="cpu", max_episode_steps=limit, **kwargs
        ).unwrapped
        env.reset(seed=0)
        actions = torch.zeros(env.action_space.shape)
        env.step(actions)  # what is made in a first step only
        engine_step, env.scene.step = env.scene.step, lambda **kwargs: None
        found[f"step, {id}, quiet"] = counted(lambda env=env, actions=actions: env.step(actions))
        env.step(actions)
        found[f"step, {id}, every time limit"] = counted(lambda env=env, actions=actions: env.step(actions))
        env.scene.step = engine_step
        env.close()
    return found


def of_two_workers(settings: Settings) -> dict[str, dict[str, float]]:
    """The learner's side of two worker processes."""
    env = gymnasium.make_vec("GenesisCartPole-v0", num_envs=settings.num_envs, devices="cpu:2")
    env.reset(seed=0)
    actions = torch.zeros(env.action_space.shape)  # type: ignore[arg-type]
    env.step(actions)
    found = counted(lambda: env.step(actions))
    env.close()
    return {"two workers, quiet": found}


def of_learners(settings: Settings) -> dict[str, dict[str, float]]:
    """Learners on an environment that costs nothing."""

    def env() -> FreeEnv:
        return FreeEnv(settings.num_envs, observation_size=48, action_size=12, ended_every=16)

    config = PPOConfig(rollout_steps=settings.rollout_steps, epochs=1, minibatches=1, hidden_sizes=(64, 64))
    learner = PPO(env(), config, seed=0)
    learner.iterate()  # what is made in a first iteration only
    found = {"iteration, own": counted(learner.iterate)}
    adapter = SB3VecEnv(env())
    model = TorchPPO("MlpPolicy", adapter, n_steps=settings.rollout_steps, device="cpu")
    _, callback = model._setup_learn(1 << 30)

    def rollout() -> None:
        model.collect_rollouts(adapter, callback, model.rollout_buffer, settings.rollout_steps)

    rollout()
    found["rollout, TorchPPO"] = counted(rollout, settings.rollout_steps)
    return found


def main() -> None:
    settings = tyro.cli(Settings)
    use_one_thread()
    results = {**of_learners(settings), **of_two_workers(settings), **of_steps(settings)}
    for what, figures in results.items():
        print(f"{what:<46}" + "  ".join(f"{name} {value:,.1f}" for name, value in figures.items()))
    write_record(
        settings.out,
        "counts",
        settings,
        results,
        device="cpu",
        packages=("stable-baselines3",),
        physics=None,
        metrics=[
            Metric(f"{what}: {name}", "count", "lower", [value])
            for what, figures in results.items()
            for name, value in figures.items()
        ],
    )


if __name__ == "__main__":
    main()
