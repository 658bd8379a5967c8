"""Everything that only a GPU can tell, in one command of at most eight minutes: one JSON and the pictures.

    python benchmarks/gpu_check.py [--out gpu_check]

Parts, each a process of its own that has its share of the time and may fail without ending the others:

- tests: `pytest tests/gpu`: device residence of every tensor, no waiting of the host, two workers on one GPU, results
  against the CPU's, a short training run.
- step_overhead: the environment's share of a bare engine loop, from 1,024 to 32,768 environments.
- sizing: `genesis-vec size GenesisRigid-v0`.

A part that ran out of time or failed is in the JSON as such, with its last words. `--device cpu` tries the command
itself on a machine without a GPU, with small numbers; its record says so.

On a machine without a network, bring the packages along: benchmarks/make_gpu_extras.sh fetches those beyond what
Genesis needs.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import torch
import tyro

from genesis_vec.benchmark.record import SCHEMA, hardware, plain, write_json
from genesis_vec.processes import exit_in_words, stop_processes
from genesis_vec.training.log import versions

ROOT = Path(__file__).parents[1]
LAST_WORDS = 2000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of the check."""

    device: Literal["cuda", "cpu"] = "cuda"
    """Where to run; cpu tries the command only."""
    budget_s: float = 470.0
    """Seconds that all parts may take together."""
    only: tuple[str, ...] = ()
    """Parts to run, all by default."""
    out: Path = Path("gpu_check")
    """Folder of the result."""


@dataclasses.dataclass(frozen=True)
class Part:
    """A part of the check.

    Attributes:
        command: What runs.
        share: Its share of the time that is left when it begins.
        result: Reads what it left behind.
    """

    command: list[str]
    share: float
    result: Callable[[], Any]


def parts_of(settings: Settings, budgets: dict[str, float]) -> dict[str, Part]:
    """The parts, in their order."""
    out, python, device = settings.out.resolve(), sys.executable, settings.device
    small = device == "cpu"
    cli = [python, "-c", "from genesis_vec.cli import main; main()"]
    sizes = ["16", "64"] if small else ["1024", "4096", "16384", "32768"]
    sizing_s = budgets.get("sizing", 100.0)
    return {
        "tests": Part(
            [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/gpu", f"--junitxml={out}/tests.xml"],
            0.5,
            lambda: _tests(out / "tests.xml"),
        ),
        "step_overhead": Part(
            [python, "benchmarks/step_overhead.py", "--device", device, "--num-envs", *sizes, "--pairs", "12",
             "--out", f"{out}/step_overhead.json"],
            0.5,
            lambda: json.loads((out / "step_overhead.json").read_text())["results"],
        ),
        "sizing": Part(
            [*cli, "size", "GenesisRigid-v0", "--device", device, "--budget", f"{sizing_s:.0f}",
             "--out", f"{out}/sizing"],
            1.0,
            lambda: json.loads((out / "sizing" / "sizing.json").read_text()),
        ),
    }  # fmt: skip


def _tests(path: Path) -> dict[str, Any]:
    cases = list(ElementTree.parse(path).iter("testcase"))
    failed = {
        f"{case.get('classname')}.{case.get('name')}": (found.get("message") or "")[:LAST_WORDS]
        for case in cases
        for found in (*case.findall("failure"), *case.findall("error"))
    }
    skipped = sum(case.find("skipped") is not None for case in cases)
    return {"passed": len(cases) - skipped - len(failed), "skipped": skipped, "failed": failed}


def run_part(part: Part, timeout_s: float, log: Path) -> dict[str, Any]:
    """How a part ended, and its result."""
    start = time.monotonic()
    with log.open("wb") as file:
        # A group of its own, so that what it has started ends with it.
        process = subprocess.Popen(
            part.command, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT, process_group=0,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])},
        )  # fmt: skip
        try:
            process.wait(timeout_s)
            outcome = "ok" if process.returncode == 0 else exit_in_words(process.returncode)
        except subprocess.TimeoutExpired:
            outcome = f"took longer than {timeout_s:.0f} s"
        finally:
            stop_processes([process], grace_s=0.0)
    ended: dict[str, Any] = {"outcome": outcome, "seconds": round(time.monotonic() - start, 1)}
    if outcome != "ok":
        ended["last_words"] = log.read_text(errors="replace")[-LAST_WORDS:]
    try:
        ended["result"] = part.result()
    except (OSError, ValueError, LookupError, ElementTree.ParseError) as error:
        ended["result"] = None
        ended["no_result"] = f"{type(error).__name__}: {error}"
    return ended


def draw_overhead(results: list[dict[str, Any]], path: Path) -> None:
    """The environment's share of the bare loop, over the number of environments."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.0, 3.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for robot in dict.fromkeys(result["robot"] for result in results):
        of_robot = [result for result in results if result["robot"] == robot]
        lower, upper = zip(*(result["ratio_quartiles"] for result in of_robot), strict=True)
        counts = [result["num_envs"] for result in of_robot]
        axes.plot(counts, [result["ratio_median"] for result in of_robot], "o-", label=robot)
        axes.fill_between(counts, lower, upper, alpha=0.2)
    axes.set(xscale="log", xlabel="num_envs", ylabel="share of the bare loop's env-steps/s")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=90)


def main() -> int:
    settings = tyro.cli(Settings)
    if settings.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("this process sees no GPU (genesis-vec doctor says why); --device cpu tries the command only")
    settings.out.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + settings.budget_s
    ended: dict[str, Any] = {}
    budgets: dict[str, float] = {}
    names = [name for name in parts_of(settings, budgets) if not settings.only or name in settings.only]
    if not names:
        raise SystemExit(f"only={settings.only}: use some of {list(parts_of(settings, budgets))}")
    try:
        for name in names:
            left = deadline - time.monotonic()
            # What the part after it starts and writes at its end is not in its own budget.
            budgets["sizing"] = max(10.0, left - 25.0)
            part = parts_of(settings, budgets)[name]
            if left < 15.0:
                ended[name] = {"outcome": "not run: no time was left"}
            else:
                last = name == names[-1]
                ended[name] = run_part(part, left if last else left * part.share, settings.out / f"{name}.log")
            print(f"{name:<15}{ended[name]['outcome']}", flush=True)
    finally:
        record = {
            "schema": SCHEMA,
            "benchmark": "gpu_check",
            "settings": plain(settings),
            "versions": versions(settings.device),
            "hardware": hardware(),
            "parts": ended,
        }
        write_json(settings.out / "gpu_check.json", record)
    overhead = ended.get("step_overhead", {}).get("result")
    if overhead:
        draw_overhead(overhead, settings.out / "step_overhead.png")
    print(f"record         {settings.out / 'gpu_check.json'}")
    return 0 if all(part["outcome"] == "ok" for part in ended.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
