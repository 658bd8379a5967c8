"""Which configurations to measure, and which of those measured to recommend. Knows of no processes or files."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Sequence

from genesis_vec.benchmark.point import Measurement, Point

# Gains below this are not told from noise: a direction that brings less is given up.
_NOISE = 0.03
_KNEE = 0.05
# Enough environments for each core to tell sizes of a scene apart.
_ENVS_PER_CORE = 512


class BudgetSpent(Exception):
    """There is no time for another measurement."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Machine:
    """What bounds the configurations.

    Attributes:
        cores: Usable cores; 0 where a GPU simulates.
        memory_bytes: Memory that may be used, of the GPU where one simulates.
        headroom: Share of it that is to stay free.
    """

    cores: int
    memory_bytes: int
    headroom: float = 0.1


@dataclasses.dataclass(frozen=True)
class MemoryModel:
    """Memory as a straight line over the number of environments.

    Attributes:
        fixed_bytes: Its value at none.
        per_env_bytes: Its slope.
    """

    fixed_bytes: float
    per_env_bytes: float

    def at(self, num_envs: int) -> float:
        """Bytes for a number of environments."""
        return self.fixed_bytes + self.per_env_bytes * num_envs

    def largest(self, machine: Machine) -> int:
        """The most environments that leave the headroom free."""
        room = machine.memory_bytes * (1.0 - machine.headroom) - self.fixed_bytes
        return max(0, int(room / self.per_env_bytes))


@dataclasses.dataclass(frozen=True)
class Recommendation:
    """What the measurements come to.

    Attributes:
        best: The most env-steps/s of training.
        knee: The fewest environments within 5 % of it.
        memory: The straight line through the memory of the best's kind, None where fewer than two sizes are known.
        largest: The most environments that fit by it.
        prediction_error: By what share such a line through all but the largest missed the largest; None where there
            are fewer than three sizes.
    """

    best: Measurement
    knee: Measurement
    memory: MemoryModel | None
    largest: int | None
    prediction_error: float | None


class Sweep:
    """Finds a good configuration: doubles the number of environments while that pays, then refines around the best.

    On the CPU the size of a scene comes first, with 512 environments for each core: what it brings hardly depends on
    their number, and a few environments start sooner than many. The number of workers comes last, since all cores are
    rarely too many.

    Args:
        measure: Measures a configuration. Raises :class:`BudgetSpent` when there is no time left.
        machine: What bounds the configurations.
        start: The first number of environments on a GPU.

    Attributes:
        measurements: All measurements, failures too, in their order.
    """

    def __init__(self, measure: Callable[[Point], Measurement], machine: Machine, start: int = 128) -> None:
        self._measure = measure
        self._machine = machine
        self._start = start
        self.measurements: list[Measurement] = []

    def run(self) -> None:
        """Measures until nothing better is to be expected, or the budget is spent."""
        cores = self._machine.cores
        try:
            first = self._first(
                Point(num_envs=_ENVS_PER_CORE * cores, workers=cores, envs_per_scene=128)
                if cores
                else Point(num_envs=self._start)
            )
            if first is None:
                return
            if cores:
                # In one direction only, as long as that is better.
                for sizes in ([256, 512], [64, 32]):
                    for size in sizes:
                        if not self._improves_with("envs_per_scene", size):
                            break
                    if self._best_size() != 128:
                        break
            self._change_number(2.0)
            self._change_number(0.5)
            if cores:
                for workers in sorted({cores - 1, cores // 2, 1} - {0, cores}, reverse=True):
                    self._improves_with("workers", workers)
            self._refine()
        except BudgetSpent:
            pass

    def _first(self, point: Point) -> Measurement | None:
        """The first configuration that runs: with half as many environments where so many do not."""
        while point.num_envs >= 2:
            result = self._try(point)
            if result.failure is None:
                return result
            point = dataclasses.replace(point, num_envs=point.num_envs // 2)
        return None

    def _change_number(self, factor: float) -> None:
        """Goes on from the best by a factor, as long as that helps, or for fewer environments is no worse."""
        best = self._best()
        assert best is not None
        num_envs = round(best.point.num_envs * factor)
        disappointments = 0
        # A second one, since one may be noise, or a step in the number of scenes.
        while disappointments < 2 and num_envs >= 2:
            before = self._best_rate()
            point = dataclasses.replace(best.point, num_envs=num_envs)
            memory = memory_model(self.measurements, point)
            if memory is not None and num_envs > memory.largest(self._machine):
                return
            result = self._try(point)
            if result.failure is not None:
                return
            helps = _rate(result) > before * ((1.0 + _NOISE) if factor > 1 else (1.0 - _KNEE))
            if factor < 1 and not helps:
                return
            disappointments = 0 if helps else disappointments + 1
            num_envs = round(num_envs * factor)

    def _improves_with(self, name: str, value: int) -> bool:
        """Whether another value of a field is better than the best configuration."""
        best = self._best()
        assert best is not None
        result = self._try(dataclasses.replace(best.point, **{name: value}))
        return self._best() is result

    def _best_size(self) -> int | None:
        best = self._best()
        return None if best is None else best.point.envs_per_scene

    def _refine(self) -> None:
        """Numbers of environments halfway to the neighbours of the best and of the knee."""
        for _ in range(2):
            chosen = recommend(self.measurements, self._machine)
            if chosen is None:
                return
            for measurement in (chosen.best, chosen.knee):
                for factor in (0.75, 1.5):
                    num_envs = max(2, round(measurement.point.num_envs * factor))
                    self._try(dataclasses.replace(measurement.point, num_envs=num_envs))

    def _try(self, point: Point) -> Measurement:
        for known in self.measurements:
            if known.point == point:
                return known
        result = self._measure(point)
        self.measurements.append(result)
        return result

    def _best(self) -> Measurement | None:
        return max(filter(_succeeded, self.measurements), key=_rate, default=None)

    def _best_rate(self) -> float:
        best = self._best()
        return 0.0 if best is None else _rate(best)


def recommend(measurements: Sequence[Measurement], machine: Machine) -> Recommendation | None:
    """The best configuration and the knee among what was measured; None where all failed."""
    fits = [
        m
        for m in filter(_succeeded, measurements)
        if (m.memory_bytes or 0) <= machine.memory_bytes * (1.0 - machine.headroom)
    ]
    if not fits:
        return None
    best = max(fits, key=_rate)
    good = [m for m in fits if _rate(m) >= (1.0 - _KNEE) * _rate(best)]
    knee = min(good, key=lambda m: (m.point.num_envs, -_rate(m)))
    memory = memory_model(measurements, best.point)
    largest = None if memory is None else memory.largest(machine)
    return Recommendation(best, knee, memory, largest, _prediction_error(measurements, best.point))


def _prediction_error(measurements: Sequence[Measurement], point: Point) -> float | None:
    alike = [
        m
        for m in filter(_succeeded, measurements)
        if dataclasses.replace(m.point, num_envs=point.num_envs) == point and m.memory_bytes
    ]
    if len(alike) < 3:
        return None
    *smaller, largest = sorted(alike, key=lambda m: m.point.num_envs)
    memory = memory_model(smaller, point)
    if memory is None or largest.memory_bytes is None:
        return None
    return memory.at(largest.point.num_envs) / largest.memory_bytes - 1.0


def memory_model(measurements: Sequence[Measurement], point: Point) -> MemoryModel | None:
    """The line of least squares through the memory of configurations that differ from one in the number only."""
    known = [
        (m.point.num_envs, m.memory_bytes)
        for m in measurements
        if m.memory_bytes is not None and dataclasses.replace(m.point, num_envs=point.num_envs) == point
    ]
    if len({num_envs for num_envs, _ in known}) < 2:
        return None
    line = statistics.linear_regression(*zip(*known, strict=True))
    # A slope that drowns in noise would predict room without end.
    return MemoryModel(line.intercept, line.slope) if line.slope > 0 else None


def _succeeded(measurement: Measurement) -> bool:
    return measurement.failure is None


def _rate(measurement: Measurement) -> float:
    return measurement.training_rate or 0.0
