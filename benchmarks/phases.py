"""Where the time of a step goes, phase by phase, and what sizes of scene the CPU likes.

Each phase of ``env.step`` is timed in steps in which nothing ends and in steps in which one in a hundred environments
ends, alternating in blocks with a bare engine loop (control, scene.step, get_qpos) on the same scene. "environment" is
what the phases leave: checks of the actions, fault detection, time limits, statistics, infos. A clock is read twice
for each phase, which costs some 0.2 µs.

    python benchmarks/phases.py [--num-envs 64 256 1024] [--out benchmarks/results/phases.json]

CPU only: on a GPU the phases overlap.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium
import torch
import tyro
from common import RANDOM_ACTIONS, ROBOTS, Stopwatch, bare_step, position_targets, random_actions, use_one_thread

from genesis_vec.benchmark.record import Metric, Physics, spread, write_record

# Phase -> the methods of the task or of the scene that make it up.
PHASES = {
    "act": ("task.act",),
    "engine": ("scene.step",),
    "observe": ("task.observe",),
    "reward": ("task.metrics", "task.reward", "task.terminated"),
    "reset": ("scene.reset", "task.reset"),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of the benchmark."""

    num_envs: tuple[int, ...] = (16, 32, 64, 128, 256, 512, 1024, 2048)
    """Numbers of environments."""
    robots: tuple[str, ...] = ("panda", "go2")
    """Robots."""
    rounds: int = 8
    """Rounds; in each one there is a block of quiet steps, one of steps with ends, one of bare steps."""
    block_env_steps: int = 8192
    """Steps of a block, times the number of environments; a block has 5 steps at least and 60 at most."""
    dt: float = 0.02
    """Seconds per step."""
    substeps: int = 2
    """Solver substeps per step."""
    self_collision: bool = False
    """Whether the robot's links collide with each other."""
    out: Path = Path("benchmarks/results/phases.json")
    """Where the result goes."""


def watches_of(env: Any) -> dict[str, Stopwatch]:
    """A running clock for each phase."""
    watches = {phase: Stopwatch() for phase in PHASES}
    for phase, methods in PHASES.items():
        for owner_and_method in methods:
            owner, _, method = owner_and_method.partition(".")
            watches[phase].around(getattr(env, owner), method)
    return watches


def us_per_step(watches: dict[str, Stopwatch], env: Any, actions: Sequence[torch.Tensor]) -> dict[str, float]:
    """Microseconds per step of each phase, of the rest, and of all."""
    for watch in watches.values():
        watch.seconds = 0.0
    start = time.perf_counter()
    for action in actions:
        env.step(action)
    total = time.perf_counter() - start
    phases = {phase: watch.seconds for phase, watch in watches.items()}
    phases = {**phases, "environment": total - sum(phases.values()), "all": total}
    return {name: 1e6 * seconds / len(actions) for name, seconds in phases.items()}


def measure(robot: str, num_envs: int, settings: Settings) -> dict[str, Any]:
    env: Any = gymnasium.make_vec(
        "GenesisRigid-v0", num_envs=num_envs, device="cpu", morph=ROBOTS[robot], dt=settings.dt,
        substeps=settings.substeps, self_collision=settings.self_collision, max_episode_steps=1_000_000,
    ).unwrapped  # fmt: skip
    env.reset(seed=0)
    steps = min(60, max(5, settings.block_env_steps // num_envs))
    actions = random_actions(steps, num_envs, env.single_action_space.shape[0])
    targets = position_targets(env.task, actions)
    limit = env.max_episode_steps

    def quiet() -> dict[str, float]:
        env.set_episode_steps(torch.zeros(num_envs, dtype=torch.int64))
        return us_per_step(watches, env, actions)

    def with_ends() -> dict[str, float]:
        # The ends of one environment in a hundred per step, spread evenly over the block; the others' time is not up.
        left = torch.arange(num_envs) * 100 // num_envs + 1
        env.set_episode_steps(torch.where(left <= steps, limit - left, 0))
        return us_per_step(watches, env, actions)

    def bare() -> float:
        start = time.perf_counter()
        for target in targets:
            bare_step(env.task, target)
        return 1e6 * (time.perf_counter() - start) / steps

    bare()
    watches = watches_of(env)
    quiet()
    with_ends()
    rounds = [(quiet(), with_ends(), bare()) for _ in range(settings.rounds)]
    env.close()
    return {
        "robot": robot,
        "num_envs": num_envs,
        "bare_us": spread((row[2] for row in rounds), 1),
        "bare_env_steps_per_s": spread((1e6 * num_envs / row[2] for row in rounds), 0),
        "quiet_us": {name: spread((row[0][name] for row in rounds), 1) for name in rounds[0][0]},
        "with_ends_us": {name: spread((row[1][name] for row in rounds), 1) for name in rounds[0][1]},
        "over_bare_us": round(statistics.median(row[0]["all"] - row[2] for row in rounds), 1),
    }


def main() -> None:
    settings = tyro.cli(Settings)
    use_one_thread()
    results = []
    for robot in settings.robots:
        for num_envs in settings.num_envs:
            result = measure(robot, num_envs, settings)
            results.append(result)
            quiet = "  ".join(f"{name} {figure['median']:,.0f}" for name, figure in result["quiet_us"].items())
            print(f"{robot} {num_envs}: bare {result['bare_us']['median']:,.0f} us; {quiet}", flush=True)
    write_record(
        settings.out, "phases", settings, results, device="cpu",
        physics=Physics(
            robot=[ROBOTS[robot] for robot in settings.robots], dt=settings.dt, substeps=settings.substeps,
            self_collision=settings.self_collision, actions=RANDOM_ACTIONS,
        ),
        metrics=[
            Metric(f"{r['robot']}, {r['num_envs']} envs: env-steps/s bare", "rate", "higher",
                   [r["bare_env_steps_per_s"]["median"]])
            for r in results
        ],
    )  # fmt: skip


if __name__ == "__main__":
    main()
