"""What each library costs beside its policy and the simulator, and how fast it trains on a real scene.

Overhead: rollouts on an environment that costs nothing, with a quadruped's shapes. What is counted is a rollout's time
outside the environment's step and outside the pass through the networks that draws actions: adapters, storage, infos,
bootstrap of time limits, advantages, further passes of the critic. (The package's own learner draws its noise outside
that pass, from a stream for each environment.) Of stable-baselines3 there are its PPO with an adapter that makes a dict
for each environment in each step, its PPO with SB3VecEnv, and TorchPPO.

Scene: whole iterations, update included, with the trainers of ``genesis-vec train --library``, on a quadruped.

Everything takes turns in one process; ratios are within a round, medians with quartiles.

    python benchmarks/libraries.py [--rounds 7] [--out …]      (needs the extra libraries)
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import io
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import torch
import tyro
from common import ROBOTS, FreeEnv, Stopwatch, in_turn, use_one_thread
from gymnasium.vector import AutoresetMode

from genesis_vec.adapters.sb3 import SB3VecEnv, TorchPPO
from genesis_vec.benchmark.record import Metric, Physics, spread, write_record
from genesis_vec.library_training import rl_games, rsl_rl, skrl, torchrl
from genesis_vec.library_training.recorder import ProgressRecorder
from genesis_vec.training.config import PPOConfig, TrainConfig
from genesis_vec.training.distributed import World
from genesis_vec.training.ppo import PPO
from genesis_vec.training.stop import StopRequest

LIBRARIES = ("genesis_vec", "sb3", "rsl_rl", "skrl", "rl_games", "torchrl")
AIMS = {"torch_ppo / sb3": 1 / 3, "SB3VecEnv / naive adapter": 1 / 2}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of the benchmark."""

    num_envs: int = 4096
    """Number of environments of the free environment."""
    rollout_steps: int = 24
    """Steps of a rollout."""
    observation_size: int = 48
    """Length of an observation of the free environment."""
    action_size: int = 12
    """Length of an action."""
    ended_per_step: tuple[float, ...] = (0.001, 0.01)
    """Shares of the free environment's rows whose time is up in each step."""
    rounds: int = 7
    """Rounds of the overhead."""
    scene_envs: int = 1024
    """Number of environments of the real scene."""
    scene_rounds: int = 3
    """Rounds of the real scene, of 3 iterations each, of which the first is not counted; 0 leaves it out."""
    hidden_sizes: tuple[int, ...] = (64, 64)
    """Hidden layers of actor and critic each on the free environment: small, so that not they are measured."""
    scene_hidden_sizes: tuple[int, ...] = (512, 256, 128)
    """Likewise on the real scene, where they are of the size that a quadruped takes."""
    out: Path = Path("benchmarks/results/libraries.json")
    """Where the result goes."""


class NaiveSB3VecEnv(SB3VecEnv):
    """As adapters are commonly written: a dict for each environment in each step, copies of everything."""

    def step_wait(self) -> Any:
        observations, rewards, terminated, truncated, info = self.env.step(torch.as_tensor(self._actions))
        observations, rewards = observations.cpu().numpy().copy(), rewards.cpu().numpy().copy()
        dones, limits = (terminated | truncated).cpu().numpy(), (truncated & ~terminated).cpu().numpy()
        infos: list[dict[str, Any]] = []
        for row in range(self.num_envs):
            of_row: dict[str, Any] = {"TimeLimit.truncated": bool(limits[row])}
            if dones[row]:
                of_row["terminal_observation"] = info["final_obs"][row].cpu().numpy()
                of_row["episode"] = {name: value[row].item() for name, value in info["episode"].items()}
            infos.append(of_row)
        return observations, rewards, dones, infos


@dataclasses.dataclass
class Contender:
    """Something that makes rollouts.

    Attributes:
        rollout: Makes one.
        elsewhere: Time in the environment's step and in the policy.
        adapter: Time in the adapter's step, the environment's included; None where it is not looked at.
        env: Time in the environment's step.
    """

    rollout: Callable[[], Any]
    elsewhere: Stopwatch
    env: Stopwatch
    adapter: Stopwatch | None = None

    def measure(self, steps: int) -> dict[str, float]:
        """Milliseconds per step of a rollout outside environment and policy, and of those in the adapter."""
        watches = [self.elsewhere, self.env, *([self.adapter] if self.adapter else [])]
        for watch in watches:
            watch.seconds = 0.0
        start = time.perf_counter()
        self.rollout()
        total = time.perf_counter() - start
        result = {"overhead_ms": 1e3 * (total - self.elsewhere.seconds - self.env.seconds) / steps}
        if self.adapter is not None:
            result["adapter_ms"] = 1e3 * (self.adapter.seconds - self.env.seconds) / steps
        return result


def config_of(settings: Settings, library: Any = "genesis_vec", num_envs: int = 1, iterations: int = 3) -> TrainConfig:
    ppo = PPOConfig(
        rollout_steps=settings.rollout_steps, hidden_sizes=settings.hidden_sizes, schedule="fixed",
        normalize_observations=False, normalize_rewards=False,
    )  # fmt: skip
    return TrainConfig(env_id="free", library=library, num_envs=num_envs, iterations=iterations, ppo=ppo)


def contenders(settings: Settings, ended: float, folder: Path) -> dict[str, Contender]:
    """One of each, on free environments of their own."""

    def env(mode: AutoresetMode = AutoresetMode.SAME_STEP) -> tuple[FreeEnv, Stopwatch]:
        made = FreeEnv(
            settings.num_envs, settings.observation_size, settings.action_size, ended_every=round(1 / ended), mode=mode
        )
        watch = Stopwatch()
        watch.around(made, "step")
        return made, watch

    def sb3(algorithm: type, adapter_class: type) -> Contender:
        made, env_watch = env()
        adapter = adapter_class(made)
        policy = {"net_arch": list(settings.hidden_sizes)}
        model = algorithm("MlpPolicy", adapter, n_steps=settings.rollout_steps, device="cpu", policy_kwargs=policy)
        _, callback = model._setup_learn(1 << 40)
        policy_watch, adapter_watch = Stopwatch(), Stopwatch()
        policy_watch.around(model.policy, "forward")
        adapter_watch.around(adapter, "step")
        return Contender(
            lambda: model.collect_rollouts(adapter, callback, model.rollout_buffer, settings.rollout_steps),
            policy_watch, env_watch, adapter_watch if algorithm is not TorchPPO else None,
        )  # fmt: skip

    def own() -> Contender:
        made, env_watch = env()
        learner = PPO(made, config_of(settings).ppo, seed=0)
        learner._observations = made.observations
        watch = Stopwatch()
        watch.around(learner.policy, "forward")

        def rollout() -> None:
            learner._collect()
            learner._targets()

        return Contender(rollout, watch, env_watch)

    def of_rsl_rl() -> Contender:
        made, env_watch = env()
        trainer = rsl_rl.Trainer(made, config_of(settings), folder, World())
        trainer._runner.alg.update = lambda: trainer._runner.alg.storage.clear() or {}
        watch = Stopwatch()
        watch.around(trainer._runner.alg, "act")
        return Contender(lambda: trainer._runner.learn(1), watch, env_watch)

    def of_skrl() -> Contender:
        made, env_watch = env()
        trainer = skrl.Trainer(made, config_of(settings, iterations=1), folder, World())
        trainer._agent.update = lambda **kwargs: None
        watch = Stopwatch()
        watch.around(trainer._agent, "act")
        return Contender(trainer.train, watch, env_watch)

    def of_rl_games() -> Contender:
        made, env_watch = env()
        trainer = rl_games.Trainer(made, config_of(settings, num_envs=made.num_envs, iterations=1), folder, World())
        trainer.train()
        learner: Any = trainer._observer.algo
        watch = Stopwatch()
        watch.around(learner, "get_action_values")

        @torch.no_grad()
        def rollout() -> None:
            learner.play_steps()

        return Contender(rollout, watch, env_watch)

    def of_torchrl() -> Contender:
        made, env_watch = env(AutoresetMode.DISABLED)
        watch = Stopwatch()
        trainer = torchrl.Trainer(made, config_of(settings, num_envs=made.num_envs, iterations=10_000), folder, World())
        watch.around(trainer._actor, "forward")
        collector = torchrl.Collector(
            trainer._env, trainer._actor, frames_per_batch=settings.rollout_steps * made.num_envs, total_frames=-1,
            auto_register_policy_transforms=False,
        )  # fmt: skip
        batches = iter(collector)
        return Contender(lambda: trainer._advantages(next(batches)), watch, env_watch)

    from stable_baselines3 import PPO as SB3PPO

    with contextlib.redirect_stdout(io.StringIO()):
        return {
            "genesis_vec": own(),
            "sb3, naive adapter": sb3(SB3PPO, NaiveSB3VecEnv),
            "sb3, SB3VecEnv": sb3(SB3PPO, SB3VecEnv),
            "sb3, TorchPPO": sb3(TorchPPO, SB3VecEnv),
            "rsl_rl": of_rsl_rl(),
            "skrl": of_skrl(),
            "rl_games": of_rl_games(),
            "torchrl": of_torchrl(),
        }


def overhead(settings: Settings, ended: float, folder: Path) -> tuple[dict[str, Any], list[Metric]]:
    made = contenders(settings, ended, folder)
    rounds = []
    for index in range(settings.rounds + 1):
        result = {}
        for name in in_turn(list(made), index):
            with contextlib.redirect_stdout(io.StringIO()):
                result[name] = made[name].measure(settings.rollout_steps)
        rounds.append(result)
    rounds = rounds[1:]  # the first warms up

    def ratio(one: str, other: str, figure: str = "overhead_ms") -> list[float]:
        return [row[one][figure] / row[other][figure] for row in rounds]

    ratios = {
        "torch_ppo / sb3": ratio("sb3, TorchPPO", "sb3, SB3VecEnv"),
        "SB3VecEnv / naive adapter": ratio("sb3, SB3VecEnv", "sb3, naive adapter", "adapter_ms"),
        "sb3 with SB3VecEnv / with naive adapter": ratio("sb3, SB3VecEnv", "sb3, naive adapter"),
    }
    metrics = [Metric(f"{ended:g} ended: {name}", "ratio", "lower", values) for name, values in ratios.items()]
    return {
        "overhead_ms_per_step": {name: spread((row[name]["overhead_ms"] for row in rounds), 3) for name in made},
        "adapter_ms_per_step": {
            name: spread((row[name]["adapter_ms"] for row in rounds), 3)
            for name in made
            if "adapter_ms" in rounds[0][name]
        },
        **{name: spread(values, 3) for name, values in ratios.items()},
    }, metrics


class Ends:
    """In place of a run's log: when each iteration ended."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def iteration(self, *args: Any) -> None:
        self.times.append(time.perf_counter())


def scene_rate(settings: Settings, library: str, envs: dict[AutoresetMode, Any], folder: Path) -> float:
    """Env-steps/s of the last two of three iterations."""
    settings = dataclasses.replace(settings, hidden_sizes=settings.scene_hidden_sizes)
    config = config_of(settings, library, settings.scene_envs)
    ends = Ends()
    if library == "genesis_vec":
        learner = PPO(envs[AutoresetMode.SAME_STEP], config.ppo, seed=0)
        for _ in range(config.iterations):
            learner.iterate()
            ends.iteration()
    else:
        trainer_class = importlib.import_module(f"genesis_vec.library_training.{library}").Trainer
        recorder = ProgressRecorder(envs[trainer_class.autoreset_mode], config, World(), StopRequest())
        recorder.log = ends  # type: ignore[assignment]
        with contextlib.redirect_stdout(io.StringIO()):
            trainer = trainer_class(_Unclosed(recorder), config, folder / f"{library}{time.time()}", World())
            trainer.train()
        recorder.finish_iteration()
    return 2 * settings.rollout_steps * settings.scene_envs / (ends.times[2] - ends.times[0])


class _Unclosed(gymnasium.vector.VectorWrapper[Any, Any, Any, Any, Any]):
    """TorchRL's collector closes what it is given; here it is used again."""

    def close(self, **kwargs: Any) -> None:
        pass


def scene(settings: Settings, folder: Path) -> dict[str, Any]:
    envs = {
        mode: gymnasium.make_vec(
            "GenesisRigid-v0", num_envs=settings.scene_envs, device="cpu", morph=ROBOTS["go2"], autoreset_mode=mode
        )
        for mode in (AutoresetMode.SAME_STEP, AutoresetMode.DISABLED)
    }
    rounds = [
        {name: scene_rate(settings, name, envs, folder) for name in in_turn(LIBRARIES, index)}
        for index in range(settings.scene_rounds)
    ]
    for env in envs.values():
        env.close()
    return {
        "env_steps_per_s": {name: spread((row[name] for row in rounds), 0) for name in LIBRARIES},
        "over_genesis_vec": {name: spread((row[name] / row["genesis_vec"] for row in rounds), 3) for name in LIBRARIES},
    }


def main() -> None:
    settings = tyro.cli(Settings)
    use_one_thread()
    results: dict[str, Any] = {}
    metrics: list[Metric] = []
    with tempfile.TemporaryDirectory() as folder:
        for ended in settings.ended_per_step:
            result, of_share = overhead(settings, ended, Path(folder))
            results[f"ended_per_step={ended:g}"] = result
            metrics += of_share
            print(f"{ended:.1%} of {settings.num_envs} environments end in each step")
            for name, figure in result["overhead_ms_per_step"].items():
                print(f"  {name:<20}{figure['median']:8.3f} ms per step {figure['quartiles']}")
            for name, aim in AIMS.items():
                verdict = "met" if result[name]["median"] <= aim else "NOT MET"
                print(f"  {name}: {result[name]['median']}, aim at most {aim:.3f}: {verdict}")
        if settings.scene_rounds:
            results["scene"] = scene(settings, Path(folder))
            for name, figure in results["scene"]["env_steps_per_s"].items():
                print(f"  {name:<20}{figure['median']:10,.0f} env-steps/s {figure['quartiles']}")
    write_record(
        settings.out, "libraries", settings, results, device="cpu",
        packages=(
            "stable-baselines3", "rsl-rl-lib", "skrl", "rl-games", "torchrl", "tensordict",
        ),
        metrics=metrics, aims=AIMS,
        physics=Physics(
            robot=ROBOTS["go2"], dt=0.02, substeps=2, self_collision=True, actions="of the policies being trained"
        ),
    )  # fmt: skip


if __name__ == "__main__":
    main()
