"""What env.step costs over the bare engine loop, on the same scene, in one run.

Blocks of environment steps and blocks of bare steps (control, scene.step, get_qpos) take turns, so that both meet the
same states and the same disturbances of the machine. The environment's part includes everything it does: observation,
reward terms, termination, time limits with their resets, episode statistics, fault detection. The figure is the
ratio of env-steps/s, environment to bare, of each pair of blocks; its median is reported with the quartiles.

    python benchmarks/step_overhead.py [--device cpu] [--out benchmarks/results/step_overhead.json]
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from pathlib import Path

import gymnasium
import torch
import tyro
from common import RANDOM_ACTIONS, ROBOTS, bare_step, position_targets, random_actions

from genesis_vec.benchmark.record import Metric, Physics, median_and_quartiles, write_record


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of the benchmark."""

    device: str = "cpu"
    """Device of the simulation."""
    num_envs: tuple[int, ...] = (64, 256, 1024)
    """Numbers of environments."""
    block_steps: int = 25
    """Steps in one block."""
    pairs: int = 40
    """Pairs of blocks; a quarter of it, at least 10, from 1024 environments on."""
    dt: float = 0.02
    """Seconds per step."""
    substeps: int = 2
    """Solver substeps per step."""
    self_collision: bool = True
    """Whether the robot's links collide with each other."""
    torch_threads: int = 1
    """Threads of torch on the CPU, as in training runs."""
    out: Path = Path("benchmarks/results/step_overhead.json")
    """Where the result goes."""


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def measure(robot: str, num_envs: int, settings: Settings) -> tuple[dict[str, object], list[Metric]]:
    env = gymnasium.make_vec(
        "GenesisRigid-v0",
        num_envs=num_envs,
        morph=ROBOTS[robot],
        device=settings.device,
        dt=settings.dt,
        substeps=settings.substeps,
        self_collision=settings.self_collision,
    )
    task, device = env.unwrapped.task, env.unwrapped.device  # type: ignore[attr-defined]
    env.reset(seed=0)
    size = env.single_action_space.shape[0]  # type: ignore[index]
    actions = [action.to(device) for action in random_actions(settings.block_steps, num_envs, size)]
    targets = position_targets(task, actions)

    def environment() -> None:
        for action in actions:
            env.step(action)

    def bare() -> None:
        for target in targets:
            bare_step(task, target)

    def seconds(block) -> float:
        synchronize(device)
        start = time.perf_counter()
        block()
        synchronize(device)
        return time.perf_counter() - start

    for _ in range(4):  # warm-up: past one time limit, with its resets
        environment()
    bare()
    pairs = settings.pairs if num_envs < 1024 else max(10, settings.pairs // 4)
    timings = [(seconds(environment), seconds(bare)) for _ in range(pairs)]
    env.close()
    ratios = [bare_s / environment_s for environment_s, bare_s in timings]
    ratio, quartiles = median_and_quartiles(ratios, 4)
    steps = num_envs * settings.block_steps
    name = f"{robot}, {num_envs} envs"
    metrics = [
        Metric(f"{name}: environment / bare loop", "ratio", "higher", ratios),
        Metric(f"{name}: env-steps/s", "rate", "higher", [steps / environment_s for environment_s, _ in timings]),
    ]
    return {
        "robot": robot,
        "num_envs": num_envs,
        "pairs": pairs,
        "ratio_median": ratio,
        "ratio_quartiles": quartiles,
        "env_steps_per_s_median": round(steps / statistics.median(t for t, _ in timings), 1),
        "bare_steps_per_s_median": round(steps / statistics.median(t for _, t in timings), 1),
    }, metrics


def main() -> None:
    settings = tyro.cli(Settings)
    torch.set_num_threads(settings.torch_threads)
    results: list[dict[str, object]] = []
    metrics: list[Metric] = []
    for robot in ROBOTS:
        for num_envs in settings.num_envs:
            result, of_size = measure(robot, num_envs, settings)
            results.append(result)
            metrics += of_size
            print(
                f"{robot:<6} {num_envs:>6} envs: {result['ratio_median']} of the bare loop "
                f"(quartiles {result['ratio_quartiles']}), {result['env_steps_per_s_median']:,} env-steps/s"
            )
    write_record(
        settings.out,
        "step_overhead",
        settings,
        results,
        device=settings.device,
        physics=Physics(
            robot=list(ROBOTS.values()), dt=settings.dt, substeps=settings.substeps,
            self_collision=settings.self_collision, actions=RANDOM_ACTIONS,
        ),
        metrics=metrics,
    )  # fmt: skip


if __name__ == "__main__":
    main()
