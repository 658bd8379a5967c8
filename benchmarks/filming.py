"""What filming some of many Go2 costs the others: steps that are filmed, and steps of a recorder that is idle.

Three environments of the same settings take turns in blocks of steps: one that cannot be drawn, one with a
recorder that is idle, one with a recorder that films. The latter's time is given without and with the wait for
the file to be written, which in training goes on beside the next steps.

    python benchmarks/filming.py [--num-envs 512] [--devices cpu:2]
"""

from __future__ import annotations

import dataclasses
import tempfile
import time
from pathlib import Path

import gymnasium
import torch
import tyro

import genesis_vec  # noqa: F401 - registers the ids
from genesis_vec.benchmark.record import Metric, Physics, spread, write_record
from genesis_vec.wrappers import RecordVideo


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of the benchmark."""

    num_envs: int = 512
    devices: str = "cpu:2"
    envs: tuple[int, ...] = (0, 3)
    """Environments that are filmed."""
    rounds: int = 10
    block_steps: int = 48
    """Steps of a block."""
    action_std: float = 0.6
    """Standard deviation of the random actions, an untrained policy's."""
    out: Path = Path("benchmarks/results/filming.json")
    """Where the result goes."""


def main(settings: Settings) -> None:
    drawn = {"render_mode": "rgb_array", "render_envs": list(settings.envs)}
    common = {"num_envs": settings.num_envs, "devices": settings.devices}
    seconds: dict[str, list[float]] = {"plain": [], "idle": [], "filming": [], "filming and writing": []}
    with tempfile.TemporaryDirectory() as folder:
        plain = gymnasium.make_vec("GenesisGo2Velocity-v0", **common)
        idle, filming = (
            RecordVideo(
                gymnasium.make_vec("GenesisGo2Velocity-v0", **common, **drawn), folder, settings.envs, length=10**9
            )
            for _ in range(2)
        )
        contenders = {"plain": plain, "idle": idle, "filming": filming}
        shape = plain.action_space.shape
        assert shape is not None
        generator = torch.Generator().manual_seed(0)
        for env in contenders.values():
            env.reset(seed=0)
        for index in range(-1, settings.rounds):  # the first to warm up
            actions = settings.action_std * torch.randn(settings.block_steps, *shape, generator=generator)
            for name, env in contenders.items():
                if env is filming:
                    filming.start(f"round-{index}")
                start = time.perf_counter()
                for action in actions:
                    env.step(action)
                stepped = time.perf_counter()
                if env is filming:
                    filming.stop()
                    filming.wait()
                if index >= 0:
                    seconds[name].append(stepped - start)
                    if env is filming:
                        seconds["filming and writing"].append(time.perf_counter() - start)
        for env in contenders.values():
            env.close()
    metrics = []
    for name in ("idle", "filming", "filming and writing"):
        ratios = [mine / its for mine, its in zip(seconds[name], seconds["plain"], strict=True)]
        metrics.append(Metric(f"{name} over plain", "ratio", "lower", ratios))
        print(f"{name:<20} {spread(ratios, 3)} of a plain step's time")
    results = {"seconds_per_block": {name: spread(values, 4) for name, values in seconds.items()}}
    write_record(
        settings.out, "filming", settings, results, device="cpu",
        physics=Physics(robot="go2", dt=0.02, substeps=2, self_collision=False, actions="normal joint targets"),
        metrics=metrics, packages=["moviepy"],
    )  # fmt: skip


if __name__ == "__main__":
    main(tyro.cli(Settings))
