"""Go2Velocity against the engine's own example trained with rsl_rl, at its settings, one after the other.

The example is not part of the engine's package: give the folder examples/locomotion of its repository. Both run 512
environments, 24 steps an iteration, the same network and hyperparameters, from the first reset on; building the scene
is timed apart. The mean return is that of the last 100 episodes that ended, as rsl_rl has it. Three times are compared
with the example's: that of as many iterations, that until the mean return first is the example's at its end, and that
of the whole process, with imports, building and compiling (kernels that can be cached are).

    python benchmarks/go2_example.py --example …/examples/locomotion [--rounds 1]
"""

from __future__ import annotations

import collections
import csv
import dataclasses
import math
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import tyro

from genesis_vec.benchmark.record import Metric, Physics, write_record

# rsl_rl's, where they differ from the id's preset.
SAME = ["--ppo.clip-value", "--ppo.no-normalize-observations", "--ppo.no-normalize-rewards"]
OURS = {
    "its hyperparameters": SAME,
    "its hyperparameters, mixed precision": [*SAME, "--mixed-precision"],
    "its hyperparameters, mixed precision, performance mode": [
        *SAME, "--mixed-precision", "--env", "performance_mode=true",
    ],
    "preset, mixed precision": ["--mixed-precision"],
}  # fmt: skip
# The example has no option for another device than a GPU.
RUN_EXAMPLE = """
import sys, time, genesis as gs
sys.path.insert(0, sys.argv.pop(1))
init, backend = gs.init, gs.cpu if sys.argv.pop(1) == "cpu" else gs.gpu
gs.init = lambda **options: init(**{**options, "backend": backend})
import torch; torch.set_num_threads(int(sys.argv.pop(1)))
import go2_train
from rsl_rl.runners import OnPolicyRunner
learn = OnPolicyRunner.learn
def timed(*args, **kwargs):
    start = time.perf_counter()
    learn(*args, **kwargs)
    print("LEARNING_SECONDS", time.perf_counter() - start, flush=True)
OnPolicyRunner.learn = timed
go2_train.main()
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of the comparison."""

    example: Path
    """Folder of go2_train.py and go2_env.py."""
    num_envs: int = 512
    iterations: int = 60
    rounds: int = 1
    """How often each is run, in turns."""
    seed: int = 1
    device: str = "cpu"
    devices: str | None = "cpu:2"
    """Workers of ours; the example has one scene in one process."""
    example_threads: int = 2
    """Threads of torch for the example, which has the other core for nothing else."""
    out: Path = Path("benchmarks/results/go2_example.json")
    """Where the result goes."""


def run(command: list[str], folder: str) -> tuple[str, float]:
    start = time.perf_counter()
    done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise SystemExit(f"{command[:4]} failed:\n{done.stdout[-3000:]}")
    return done.stdout, time.perf_counter() - start


def run_example(settings: Settings, seed: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        output, wall_s = run(
            [
                sys.executable, "-c", RUN_EXAMPLE, str(settings.example.resolve()), settings.device,
                str(settings.example_threads), "-B", str(settings.num_envs), "--max_iterations",
                str(settings.iterations), "--seed", str(seed),
            ],
            folder,
        )  # fmt: skip
    returns = re.findall(r"Mean reward:\s*(-?[\d.]+)", output)
    seconds = re.search(r"LEARNING_SECONDS ([\d.]+)", output)
    assert returns and seconds, output[-3000:]
    return {"mean_return": float(returns[-1]), "learning_s": round(float(seconds[1]), 1), "wall_s": round(wall_s, 1)}


def run_ours(settings: Settings, seed: int, options: list[str], aim: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        devices = ["--devices", settings.devices] if settings.devices else ["--device", settings.device]
        _, wall_s = run(
            [
                sys.executable, "-m", "genesis_vec.train", "GenesisGo2Velocity-v0", "--num-envs",
                str(settings.num_envs), "--iterations", str(settings.iterations), "--seed", str(seed), "--run-dir",
                "run", "--no-evaluate", *devices, *options,
            ],
            folder,
        )  # fmt: skip
        rows = list(csv.DictReader((Path(folder) / "run" / "progress.csv").read_text().splitlines()))
    last: collections.deque[float] = collections.deque(maxlen=100)
    means: list[float] = []
    for row in rows:
        if float(row["episodes"]) > 0:
            last.extend([float(row["mean_return"])] * int(float(row["episodes"])))
        means.append(sum(last) / len(last) if last else -math.inf)
    reached = (float(row["seconds"]) for row, mean in zip(rows, means, strict=True) if mean >= aim)
    return {
        "mean_return": round(means[-1], 2),
        "learning_s": round(float(rows[-1]["seconds"]), 1),
        "seconds_to_example_return": next(reached, None),
        "wall_s": round(wall_s, 1),
    }


def main(settings: Settings) -> None:
    rounds = []
    for index in range(settings.rounds):
        seed = settings.seed + index
        example = run_example(settings, seed)
        aim = example["mean_return"]
        result = {"example": example}
        for name, options in OURS.items():
            result[name] = run_ours(settings, seed, options, aim)
        rounds.append(result)
        for name, figures in result.items():
            print(f"{name:<56}{figures}", flush=True)
    metrics = []
    for name in OURS:
        for figure, whole, what in (
            ("learning_s", "learning_s", "time"),
            ("seconds_to_example_return", "learning_s", "time to the example's mean return"),
            ("wall_s", "wall_s", "time of the whole process"),
        ):
            # A run that does not get there has taken endlessly long.
            times = [(row[name][figure] or math.inf) / row["example"][whole] for row in rounds]
            metrics.append(Metric(f"{name}: {what} over the example's", "ratio", "lower", times))
            print(f"{name}: {what} {statistics.median(times):.2f} of the example's")
    write_record(
        settings.out, "go2_example", settings, rounds, device=settings.device,
        physics=Physics(robot="go2", dt=0.02, substeps=2, self_collision=False, actions="a policy's joint targets"),
        metrics=metrics, packages=["rsl-rl-lib"],
    )  # fmt: skip


if __name__ == "__main__":
    main(tyro.cli(Settings))
