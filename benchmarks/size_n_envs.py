"""How good is what ``genesis-vec size`` recommends? Against the best of a whole grid of configurations.

Runs the command with its budget, then measures every configuration of a grid, each in a process of its own as the
command does. The best of many noisy figures looks better than it is, so the recommendation and the grid's best are then
measured again, in turns; the ratio of their training rates is the result.

    python benchmarks/size_n_envs.py [GenesisRigid-v0] [--budget 300] [--out benchmarks/results/sizing.json]

The grid takes some ten seconds for each of its configurations.
"""

from __future__ import annotations

import dataclasses
import itertools
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import tyro
from common import in_turn

from genesis_vec.benchmark.point import Measurement, Point, measure_in_process
from genesis_vec.benchmark.record import Metric, Physics, spread, write_record
from genesis_vec.benchmark.size import SizeConfig, size, subject_of
from genesis_vec.devices import usable_cores

AIM = 0.9


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of the benchmark."""

    env_id: Annotated[str, tyro.conf.Positional] = "GenesisRigid-v0"
    """Id of the environment."""
    budget: float = 300.0
    """Seconds that the command may take."""
    num_envs: tuple[int, ...] = (128, 256, 512, 1024, 2048, 4096)
    """The grid's numbers of environments."""
    envs_per_scene: tuple[int, ...] = (32, 64, 128, 256, 512)
    """The grid's sizes of a scene."""
    rounds: int = 5
    """Rounds of the comparison."""
    timeout_s: float = 180.0
    """Seconds that a configuration may take."""
    out: Path = Path("benchmarks/results/sizing.json")
    """Where the result goes."""


def grid(settings: Settings) -> list[Point]:
    """One scene in the process itself, and every number of workers with every size of scene that it needs."""
    workers = range(1, usable_cores() + 1)
    points = [Point(num_envs=num_envs) for num_envs in settings.num_envs]
    points += [
        Point(num_envs=num_envs, workers=count, envs_per_scene=scene)
        for num_envs, count, scene in itertools.product(settings.num_envs, workers, settings.envs_per_scene)
        if scene <= num_envs // count
    ]
    return points


def main() -> None:
    settings = tyro.cli(Settings)
    config = SizeConfig(env_id=settings.env_id, budget=settings.budget, device="cpu")
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        chosen = size(dataclasses.replace(config, out=Path(folder)))
    seconds = time.monotonic() - start
    if chosen is None:
        raise SystemExit("nothing could be measured")
    subject = subject_of(config)

    def measure(point: Point) -> Measurement:
        result = measure_in_process(subject, point, settings.timeout_s)
        print(f"{point}: {result.failure or f'{result.training_rate:,.0f}'}", flush=True)
        return result

    measured = [measure(point) for point in grid(settings)]
    best = max((m for m in measured if m.failure is None), key=lambda m: m.training_rate or 0.0)
    contenders = {"recommended": chosen.best.point, "grid": best.point}
    rounds: list[dict[str, float]] = []
    for index in range(settings.rounds):
        results = {name: measure(contenders[name]) for name in in_turn(list(contenders), index)}
        if all(result.failure is None for result in results.values()):
            rounds.append({name: result.training_rate or 0.0 for name, result in results.items()})
    ratios = [row["recommended"] / row["grid"] for row in rounds]
    verdict = "met" if spread(ratios, 3)["median"] >= AIM else "NOT MET"
    print(f"the command took {seconds:.0f} s of {settings.budget:.0f} s")
    print(f"recommended / grid's best: {spread(ratios, 3)}, aim {AIM}: {verdict}")
    results: dict[str, Any] = {
        "command_seconds": round(seconds, 1),
        "recommendation": dataclasses.asdict(chosen),
        "grid_best": dataclasses.asdict(best),
        "recommended_over_grid_best": spread(ratios, 3),
        "grid": [dataclasses.asdict(m) for m in measured],
    }
    write_record(
        settings.out, "size_n_envs", settings, results, device="cpu", aims={"recommended / grid's best": AIM},
        physics=Physics(
            robot="xml/franka_emika_panda/panda.xml", dt=0.02, substeps=2, self_collision=True,
            actions="uniform random, then of the policy being trained",
        ),
        metrics=[Metric("recommended / grid's best", "ratio", "higher", ratios)],
    )  # fmt: skip


if __name__ == "__main__":
    main()
