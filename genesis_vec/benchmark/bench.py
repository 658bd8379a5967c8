"""``genesis-vec bench``: the benchmark suite in one command, and its comparison with an older run."""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn

import tyro
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from genesis_vec.benchmark.compare import TOLERANCE, Comparison, compare
from genesis_vec.benchmark.record import SCHEMA, check_writable, hardware, plain, read_record, write_json
from genesis_vec.errors import BenchmarkError
from genesis_vec.processes import end_in_words, start_process, stop_processes

SUITE: dict[str, list[str]] = {
    "counts": [],
    "step_overhead": ["--num-envs", "64", "256", "--pairs", "16"],
    "multi_device": ["--num-envs", "512", "--rounds", "4", "--block-steps", "50"],
    "transport": ["--sizes", "64", "4096", "--rounds", "8", "--block-steps", "50", "--idle-s", "0.1"],
    "learner": ["--num-envs", "512", "--rounds", "3"],
    "weak_scaling": ["--num-envs-per-rank", "128", "--rounds", "4"],
    "libraries": ["--num-envs", "2048", "--ended-per-step", "0.01", "--rounds", "4", "--scene-rounds", "0"],
}
"""The benchmarks, in their order, with the settings that make them short; their defaults are the thorough ones."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class BenchConfig:
    """Settings of a run of the suite."""

    only: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME …")] = ()
    """Benchmarks to run, all by default."""
    repeats: int = 3
    """How often each is run, in a process of its own each time; the benchmarks take turns."""
    full: bool = False
    """Run each as thoroughly as the committed results were, which takes about half an hour per repeat."""
    compare: Path | None = None
    """An older file of this command to compare with; a regression beyond noise makes the exit code 1."""
    out: Path | None = None
    """Where the result goes; runs/bench-DATE-TIME.json by default."""

    def __post_init__(self) -> None:
        unknown = sorted(set(self.only) - set(SUITE))
        if unknown:
            raise ValueError(f"only={unknown}: use some of {list(SUITE)}")
        if self.repeats < 1:
            raise ValueError(f"repeats={self.repeats} must be at least 1")
        if self.out is not None and self.compare is not None and self.out.resolve() == self.compare.resolve():
            raise ValueError(f"out={str(self.out)!r} is the file to compare with, which would be lost: give another")


def bench(config: BenchConfig, console: Console | None = None, scripts: Path | None = None) -> bool:
    """Runs the suite, writes its record, compares it if asked to.

    A benchmark that fails is reported and the others go on; after an interrupt what was measured is written.

    Args:
        config: The settings.
        console: Where to report.
        scripts: Folder of the benchmarks; that of the checkout by default.

    Returns:
        Whether all ran and, if compared, something could be judged and nothing became worse beyond noise.

    Raises:
        ValueError: For settings out of range, or a file to compare with that is none, or is of other settings.
        BenchmarkError: If the benchmarks are not there.
        OSError: If the result cannot be written where it should go.
        KeyboardInterrupt: After an interrupt, when the record is written, if there is anything in it.
        SystemExit: Likewise after SIGTERM.
    """
    console = console or Console(highlight=False, soft_wrap=True)
    # Before half an hour of measuring, not after it.
    older = None if config.compare is None else read_record(config.compare, "benchmarks")
    if older is not None and older["settings"].get("full") != config.full:
        raise ValueError(f"{config.compare} is of full={older['settings'].get('full')}: run with the same")
    out = config.out or Path("runs") / f"bench-{time.strftime('%Y%m%d-%H%M%S')}.json"
    check_writable(out)
    scripts = scripts or _scripts()
    names = [name for name in SUITE if not config.only or name in config.only]
    parts: dict[str, list[dict[str, Any]]] = {}
    failures: dict[str, str] = {}
    interruption: BaseException | None = None
    # What a benchmark has started is stopped on the way out, which the signal's default would not take.
    handler = signal.signal(signal.SIGTERM, _end)
    try:
        for repeat in range(config.repeats):
            for name in names:
                if name in failures:
                    continue
                start = time.monotonic()
                try:
                    parts.setdefault(name, []).append(_run(scripts / f"{name}.py", [] if config.full else SUITE[name]))
                    outcome = f"{time.monotonic() - start:.0f} s"
                except BenchmarkError as error:
                    failures[name] = outcome = str(error)
                console.print(f"{repeat + 1}/{config.repeats}  {name:<15}{escape(outcome)}")
    except (KeyboardInterrupt, SystemExit) as caught:
        interruption = caught
        if not any(parts.values()):
            raise
    finally:
        signal.signal(signal.SIGTERM, handler)
    record = {
        "schema": SCHEMA,
        "settings": plain(config),
        "hardware": hardware(),
        "benchmarks": {name: _merged(repeats) for name, repeats in parts.items() if repeats},
        "failures": failures,
        "interrupted": interruption is not None,
    }
    console.print(_figures(record))
    write_json(out, record)
    comparison = None
    if older is not None:
        comparison = compare(older, record)
        _report(console, comparison, older, record)
    console.print(f"record  {out}")
    if interruption is not None:
        raise interruption
    return not failures and (comparison is None or (bool(comparison.judged) and not comparison.regressions))


def _end(signal_number: int, _frame: Any) -> NoReturn:
    raise SystemExit(128 + signal_number)


def _scripts() -> Path:
    folder = Path(__file__).parents[2] / "benchmarks"
    if not (folder / "common.py").is_file():
        raise BenchmarkError(
            f"the benchmarks are not at {folder}: they are scripts of the repository, not of the installed package. "
            "Run this command in a clone, installed with pip install --editable"
        )
    return folder


# ------------------------------------------------------------------------------------------------------ one benchmark


def _run(script: Path, arguments: Sequence[str]) -> dict[str, Any]:
    """The record of a benchmark, run in a process of its own.

    Raises:
        BenchmarkError: If it failed.
    """
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as log:
        out = Path(folder) / "record.json"
        process = start_process(
            "genesis_vec.benchmark.bench:_become", [str(script), *arguments, "--out", str(out)], stdout=log, stderr=log
        )
        try:
            exit_code = process.wait()
        finally:
            stop_processes([process], grace_s=0.0)
        if exit_code == 0 and out.is_file():
            return read_record(out, "metrics")
        log.seek(0)
        raise BenchmarkError(end_in_words(exit_code, log.read().decode(errors="replace")))


def _become(script: str, *arguments: str) -> None:
    """Makes the process that was started for a script that of the script."""
    os.execv(sys.executable, [sys.executable, script, *arguments])


def _merged(repeats: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One entry of the repeats' records: what they share once, their metrics side by side."""
    first = repeats[0]
    shared = {name: first[name] for name in ("settings", "physics", "versions")}
    metrics = {}
    for name, entry in first["metrics"].items():
        of_repeat = [repeat["metrics"][name] for repeat in repeats if name in repeat["metrics"]]
        metrics[name] = {
            "kind": entry["kind"],
            "better": entry["better"],
            "repeats": [
                {key: one[key] for key in ("median", "quartiles", "rounds") if key in one} for one in of_repeat
            ],
        }
    return {**shared, "metrics": metrics}


# ------------------------------------------------------------------------------------------------------------ reports


def _figures(record: Mapping[str, Any]) -> Table:
    table = Table("benchmark", "metric", "median of each repeat", title="figures")
    for benchmark, entry in record["benchmarks"].items():
        for name, metric in entry["metrics"].items():
            medians = "  ".join(f"{repeat['median']:,.5g}" for repeat in metric["repeats"])
            table.add_row(benchmark, escape(name), medians)
    for benchmark, reason in record["failures"].items():
        table.add_row(benchmark, "failed", escape(reason))
    return table


def _report(console: Console, comparison: Comparison, older: Mapping[str, Any], newer: Mapping[str, Any]) -> None:
    table = Table("benchmark", "metric", "old", "new", "new / old", "noise", "verdict", title="comparison")
    for change in comparison.changes:
        table.add_row(
            change.benchmark, escape(change.metric), f"{change.old:,.5g}", f"{change.new:,.5g}", f"{change.ratio:.3f}",
            f"±{change.noise:.0%}" if change.noise < 10 else "unknown",
            "not judged" if change.kind == "rate" else change.verdict,
        )  # fmt: skip
    console.print(table)
    for name, reason in comparison.not_compared.items():
        console.print(f"not compared: {name}: {escape(reason)}")
    if older["hardware"] != newer["hardware"]:
        console.print("The older record is of another machine: its ratios need not hold here.")
    if comparison.regressions:
        console.print(f"{len(comparison.regressions)} regressions, by more than {TOLERANCE:.0%} and beyond noise")
    elif comparison.judged:
        console.print("no regression beyond noise")
    else:
        console.print(
            "nothing could be judged: ratios need two repeats or more on one side, to know how much they vary"
        )
