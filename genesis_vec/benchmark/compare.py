"""Whether a suite's record is worse than an older one beyond noise. Knows of no processes or files."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Literal

TOLERANCE = 0.1
"""A change for the worse of less than this share is no regression."""
# With three repeats each, and some twenty metrics looked at, three would be exceeded by chance now and then.
_STANDARD_ERRORS = 4.0

Verdict = Literal["same", "better", "REGRESSION", "unclear"]


@dataclasses.dataclass(frozen=True)
class Change:
    """What became of one metric.

    Attributes:
        benchmark: The benchmark.
        metric: The metric's name.
        kind: Its kind; those of kind "rate" are never called a regression.
        old: The older median of its repeats' medians.
        new: The newer one.
        ratio: new / old.
        noise: The share by which the ratio may be off: four standard errors of it, from the repeats' spread.
        verdict: "REGRESSION": worse by more than the tolerance and by more than the noise. "unclear": worse by more
            than the tolerance, but not by more than the noise: more repeats would tell.
    """

    benchmark: str
    metric: str
    kind: str
    old: float
    new: float
    ratio: float
    noise: float
    verdict: Verdict


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Two records side by side.

    Attributes:
        changes: The metrics that both have.
        not_compared: Benchmarks left out, with the reason.
    """

    changes: list[Change]
    not_compared: dict[str, str]

    @property
    def judged(self) -> list[Change]:
        """The metrics of which it is known whether they became worse: no rates, and a spread to judge by."""
        return [change for change in self.changes if change.kind != "rate" and math.isfinite(change.noise)]

    @property
    def regressions(self) -> list[Change]:
        """The metrics that became worse beyond noise."""
        return [change for change in self.changes if change.verdict == "REGRESSION"]


def compare(old: Mapping[str, Any], new: Mapping[str, Any], tolerance: float = TOLERANCE) -> Comparison:
    """Compares what two records of a suite have in common.

    Args:
        old: The older record.
        new: The newer one.
        tolerance: See :data:`TOLERANCE`.

    Returns:
        Each metric's change, and what could not be compared.
    """
    changes, not_compared = [], {}
    for name, newer in new["benchmarks"].items():
        older = old["benchmarks"].get(name)
        if older is None:
            not_compared[name] = "not in the older record"
        elif (different := _differences(older, newer)) is not None:
            not_compared[name] = different
        else:
            changes += [
                _change(name, metric, older["metrics"][metric], entry, tolerance)
                for metric, entry in newer["metrics"].items()
                if metric in older["metrics"]
            ]
            if gone := sorted(set(older["metrics"]) - set(newer["metrics"])):
                not_compared[name] = f"no longer measured: {', '.join(gone)}"
    for name in sorted(set(old["benchmarks"]) - set(new["benchmarks"])):
        not_compared[name] = "not in the newer record"
    for name in sorted(set(old["benchmarks"]) & set(new.get("failures", {}))):
        not_compared[name] = "failed in the newer run"
    return Comparison(changes, not_compared)


def _differences(older: Mapping[str, Any], newer: Mapping[str, Any]) -> str | None:
    """What makes two results incomparable."""
    for part in ("settings", "physics"):
        before, after = older[part] or {}, newer[part] or {}
        for name in sorted({*before, *after}):
            if before.get(name) != after.get(name):
                return f"{part}: {name} was {before.get(name)!r} and is {after.get(name)!r}"
    return None


def _change(
    benchmark: str, metric: str, older: Mapping[str, Any], newer: Mapping[str, Any], tolerance: float
) -> Change:
    before, after = ([repeat["median"] for repeat in entry["repeats"]] for entry in (older, newer))
    old, new = statistics.median(before), statistics.median(after)
    kind = newer["kind"]
    # Something that was not there before cannot be put as a ratio of it.
    ratio = new / old if old else (1.0 if new == old else math.inf)
    noise = 0.0 if kind == "count" else _noise(before, after)
    worsening = ratio - 1.0 if newer["better"] == "lower" else (1.0 / ratio - 1.0 if ratio > 0 else math.inf)
    verdict: Verdict = "same"
    if kind != "rate" and worsening > tolerance:
        verdict = "REGRESSION" if worsening > noise else "unclear"
    elif worsening < -max(noise, tolerance / 2):
        verdict = "better"
    return Change(benchmark, metric, kind, old, new, ratio, noise, verdict)


def _noise(before: Sequence[float], after: Sequence[float]) -> float:
    """Four standard errors of the ratio of two medians, as a share of it; of the logarithms, which add."""
    if min(*before, *after) <= 0:
        return math.inf
    variance, degrees = 0.0, 0
    for values in (before, after):
        logarithms = [math.log(value) for value in values]
        variance += sum((value - statistics.fmean(logarithms)) ** 2 for value in logarithms)
        degrees += len(values) - 1
    if degrees == 0:
        # One repeat of each tells nothing of how much two differ.
        return math.inf
    standard_error = math.sqrt(variance / degrees * (1 / len(before) + 1 / len(after)))
    return math.expm1(_STANDARD_ERRORS * standard_error)
