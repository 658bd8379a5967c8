"""What a benchmark leaves behind: figures with their spread, and all that they depend on."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import statistics
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from genesis_vec.training.log import package_version, versions

SCHEMA = 1
"""Version of the layout of records; a reader refuses those of another one."""

Kind = Literal["ratio", "count", "rate"]


@dataclasses.dataclass(frozen=True)
class Metric:
    """A figure that two runs can be compared by.

    Attributes:
        name: What it is, such as "go2/256/env over bare".
        kind: "ratio": of two contenders that took turns. "count": of operations or bytes, the same in every run.
            "rate": per second, which says as much of the machine's mood as of the code.
        better: Which way is better.
        values: One for each round.
    """

    name: str
    kind: Kind
    better: Literal["higher", "lower"]
    values: Sequence[float]

    def as_record(self) -> dict[str, Any]:
        """The entry in a record, without the name."""
        figures = spread(self.values, 4) if len(self.values) > 1 else {"median": self.values[0]}
        return {"kind": self.kind, "better": self.better, **figures, "rounds": len(self.values)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Physics:
    """What engine figures depend on, some of it tenfold: no figure goes without.

    Attributes:
        robot: The robot's file, or several.
        dt: Seconds in one engine step.
        substeps: Solver substeps in one engine step.
        self_collision: Whether the robot's links collide with each other.
        actions: What is done to the robot.
        precision: Bits of the engine's numbers.
    """

    robot: str | Sequence[str]
    dt: float
    substeps: int
    self_collision: bool
    actions: str
    precision: str = "32"


def median_and_quartiles(values: Iterable[float], digits: int) -> tuple[float, list[float]]:
    """The median, and the lower and the upper quartile."""
    lower, median, upper = statistics.quantiles(values, n=4)
    return round(median, digits), [round(lower, digits), round(upper, digits)]


def spread(values: Iterable[float], digits: int) -> dict[str, Any]:
    """The same, as a part of a record."""
    median, quartiles = median_and_quartiles(values, digits)
    return {"median": median, "quartiles": quartiles}


def write_record(
    out: Path,
    benchmark: str,
    settings: Any,
    results: Any,
    *,
    device: str,
    physics: Physics | None,
    metrics: Sequence[Metric],
    packages: Sequence[str] = (),
    **more: Any,
) -> None:
    """Writes a result with all that it depends on: settings, versions, hardware.

    Args:
        out: The file.
        benchmark: Name of the benchmark.
        settings: A dataclass.
        results: What was measured.
        device: The device measured on.
        physics: What is simulated, None where nothing is.
        metrics: Those of the figures that runs are compared by.
        packages: Packages whose versions matter beside those that always do; those not installed are given as None.
        **more: Further entries, put after the settings.
    """
    write_json(
        out,
        {
            "schema": SCHEMA,
            "benchmark": benchmark,
            "settings": plain(settings),
            "physics": None if physics is None else dataclasses.asdict(physics),
            **more,
            "versions": {**versions(device), **{name: package_version(name) for name in packages}},
            "hardware": hardware(),
            "results": results,
            "metrics": {metric.name: metric.as_record() for metric in metrics},
        },
    )


def write_json(path: Path, record: Mapping[str, Any]) -> None:
    """Writes a file that is there whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_text(json.dumps(record, indent=2) + "\n")
    temporary.replace(path)


def check_writable(path: Path) -> None:
    """Makes a file's folder, and makes sure that it can be written: before anything is measured, not after it.

    Raises:
        OSError: If it cannot.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=path.parent):
        pass


def read_record(path: Path, part: str) -> dict[str, Any]:
    """A record of this layout.

    Args:
        path: The file.
        part: An entry that it must have: "metrics" of one benchmark's record, "benchmarks" of a suite's.

    Raises:
        ValueError: If the file holds something else.
    """
    try:
        record = json.loads(path.read_text())
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not JSON ({error}): give a file that genesis-vec bench wrote") from None
    schema = record.get("schema") if isinstance(record, dict) else None
    if schema != SCHEMA:
        raise ValueError(f"{path} has schema {schema!r}, not {SCHEMA}: write it anew with this version's benchmarks")
    if part not in record:
        raise ValueError(f"{path} has no {part!r}: give a file that genesis-vec bench wrote")
    return record


def plain(settings: Any) -> dict[str, Any]:
    """A dataclass as what JSON gives back, paths left out: where a result goes does not change it."""
    values = {name: value for name, value in dataclasses.asdict(settings).items() if not isinstance(value, Path)}
    return json.loads(json.dumps(values, default=str))


def hardware() -> dict[str, Any]:
    """The machine, as far as it moves a figure."""
    found: dict[str, Any] = {
        "processor": _first_value("/proc/cpuinfo", "model name") or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1024**3, 1),
    }
    import torch

    if torch.cuda.is_available():
        found["gpus"] = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return found


def _first_value(path: str, name: str) -> str | None:
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), None)
