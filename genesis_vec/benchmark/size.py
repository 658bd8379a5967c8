"""``genesis-vec size``: how many environments this machine should run for an id, measured."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import shlex
import signal
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from genesis_vec.benchmark.point import Measurement, Point, Subject, measure_in_process
from genesis_vec.benchmark.record import check_writable, hardware, plain, write_json
from genesis_vec.benchmark.sizing import BudgetSpent, Machine, Recommendation, Sweep, recommend
from genesis_vec.devices import resolve_device, usable_cores
from genesis_vec.errors import BenchmarkError
from genesis_vec.training.config import TrainConfig
from genesis_vec.training.log import versions
from genesis_vec.training.presets import preset

SCHEMA = 1
_FILES = ("sizing.json", "sizing.png")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SizeConfig:
    """Settings of a sweep."""

    env_id: Annotated[str, tyro.conf.Positional]
    """Id of the environment; "module:Id-v0" imports the module first."""
    budget: float = 300.0
    """Seconds that the sweep may take in all."""
    device: str = "auto"
    """Where to simulate: auto, cpu, cuda."""
    env: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """An argument of the environment, NAME=VALUE, as often as needed."""
    seconds: float = 1.0
    """Seconds for each of the three rates of a configuration, roughly."""
    memory_gib: float | None = None
    """Memory that may be used; what is available by default."""
    out: Path | None = None
    """Folder of sizing.json and sizing.png; runs/size-ID-DATE-TIME by default."""

    def __post_init__(self) -> None:
        for name in ("budget", "seconds"):
            value = getattr(self, name)
            if not 0 < value < math.inf:
                raise ValueError(f"{name}={value!r} must be a number of seconds above 0")
        if self.memory_gib is not None and not self.memory_gib > 0:
            raise ValueError(f"memory_gib={self.memory_gib!r} must be above 0")
        if self.device not in ("auto", "cpu", "cuda"):
            raise ValueError(f"device={self.device!r}: use 'auto', 'cpu' or 'cuda'")


def size(config: SizeConfig, console: Console | None = None) -> Recommendation | None:
    """Measures configurations until the budget is spent or nothing better is to be expected, and recommends one.

    Each is measured in a process of its own. Whatever ends the sweep, an interrupt too, what was measured is reported.

    Args:
        config: The settings.
        console: Where to report.

    Returns:
        The recommendation, None where no configuration could be measured.

    Raises:
        ValueError: For settings out of range.
        BenchmarkError: If what is asked for is a mistake at any size.
        DeviceNotFoundError: If there is no such device.
        OSError: If the result cannot be written where it should go.
        KeyboardInterrupt: After an interrupt, when the report is written.
    """
    console = console or Console(highlight=False, soft_wrap=True)
    deadline = time.monotonic() + config.budget
    subject = subject_of(config)
    machine = _machine(subject.device, config.memory_gib)
    folder = config.out or _new_folder(config.env_id)
    check_writable(folder / _FILES[0])
    longest = 0.0
    measured: list[Measurement] = []

    with _Display(config, console) as display:

        def measure(point: Point) -> Measurement:
            nonlocal longest
            left = deadline - time.monotonic()
            # The next one is likely to take as long as the longest so far: better none than one cut off.
            if left < longest or left <= 0:
                raise BudgetSpent
            display.begins(point)
            start = time.monotonic()
            result = measure_in_process(subject, point, left)
            longest = max(longest, time.monotonic() - start)
            # Before it is shown: an interrupt may come at any moment.
            measured.append(result)
            display.ends(result)
            # Twice, and in the same words: an environment may have bounds of its own.
            if len(measured) == 2 and result.is_mistake and result.failure == measured[0].failure:
                with contextlib.suppress(OSError):
                    folder.rmdir()  # nothing is in it yet, unless it was there before
                raise BenchmarkError(f"{config.env_id} does not run at any size: {result.failure}")
            return result

        interrupted = False
        try:
            Sweep(measure, machine).run()
        except KeyboardInterrupt:
            interrupted = True
    chosen = recommend(measured, machine)
    with _uninterrupted():
        _report(console, config, machine, measured, chosen)
        _write(folder, config, subject, machine, measured, chosen)
        for name in _FILES:
            console.print(f"{name:<13}{folder / name}")
        if chosen is not None:
            console.print(command(config, chosen.best))
    if interrupted:
        raise KeyboardInterrupt
    return chosen


def subject_of(config: SizeConfig) -> Subject:
    """What is measured: the environment, and the learner by its preset."""
    device = resolve_device(config.device).type if config.device != "auto" else _kind_of_device()
    env_kwargs = TrainConfig(env_id=config.env_id, env=config.env, device=device).env_kwargs()
    return Subject(
        env_id=config.env_id,
        env={name: value for name, value in env_kwargs.items() if name != "device"},
        ppo=dataclasses.asdict(preset(config.env_id).ppo),
        device=device,
        seconds=config.seconds,
    )


def command(config: SizeConfig, measurement: Measurement) -> str:
    """The line that trains with a configuration."""
    point = measurement.point
    words = ["genesis-vec", "train", config.env_id, "--num-envs", str(point.num_envs)]
    if point.workers:
        words += ["--devices", f"cpu:{point.workers}"]
        if point.envs_per_scene != 128:
            words += ["--env", f"envs_per_scene={point.envs_per_scene}"]
    elif config.device != "auto":
        words += ["--device", config.device]
    for item in config.env:
        words += ["--env", item]
    return shlex.join(words)


def _kind_of_device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def _machine(device: str, memory_gib: float | None) -> Machine:
    memory = None if memory_gib is None else int(memory_gib * 1024**3)
    if device == "cuda":
        import torch

        return Machine(cores=0, memory_bytes=memory or torch.cuda.mem_get_info(0)[0])
    return Machine(cores=usable_cores(), memory_bytes=memory or _available_memory())


def _available_memory() -> int:
    """Bytes that the system can give without swapping."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/meminfo has no MemAvailable: give --memory-gib")


def _new_folder(env_id: str) -> Path:
    return Path("runs") / f"size-{env_id.rpartition(':')[2]}-{time.strftime('%Y%m%d-%H%M%S')}"


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """A second interrupt must not lose the report that the first asked for."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


# ----------------------------------------------------------------------------------------------------------- reports


class _Display:
    """The sweep's progress: a bar over the budget on a terminal, else a line for each configuration."""

    def __init__(self, config: SizeConfig, console: Console) -> None:
        self._console = console
        self._progress = Progress(
            TextColumn("sizing"), BarColumn(), TimeElapsedColumn(), TextColumn(f"of {config.budget:.0f} s at most"),
            TextColumn("{task.fields[point]}"), console=console, disable=not console.is_terminal,
        )  # fmt: skip
        self._task = self._progress.add_task("", total=config.budget, point="")
        self._start = time.monotonic()

    def __enter__(self) -> _Display:
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    def begins(self, point: Point) -> None:
        self._progress.update(self._task, point=in_words(point))

    def ends(self, result: Measurement) -> None:
        self._progress.update(self._task, completed=time.monotonic() - self._start)
        outcome = result.failure or f"{result.training_rate:,.0f} env-steps/s of training"
        self._console.print(f"{in_words(result.point)}: {outcome}")


def in_words(point: Point) -> str:
    """A configuration for people to read."""
    words = f"{point.num_envs} environments"
    if point.workers:
        words += f" in scenes of {point.envs_per_scene} by {point.workers} worker{'s' if point.workers > 1 else ''}"
    return words


def _gib(count: float) -> float:
    return count / 1024**3


def _report(
    console: Console,
    config: SizeConfig,
    machine: Machine,
    measurements: list[Measurement],
    chosen: Recommendation | None,
) -> None:
    names = ("num_envs", "workers", "scene", "step", "with policy", "training", "memory", "start")
    table = Table(*names, title="env-steps/s")
    for m in sorted(measurements, key=lambda m: dataclasses.astuple(m.point)):
        place = [str(m.point.num_envs), str(m.point.workers or "-"), str(m.point.envs_per_scene or "-")]
        if m.failure is not None:
            table.add_row(*place, "failed")
            continue
        mark = "" if chosen is None else " best" if m is chosen.best else " knee" if m is chosen.knee else ""
        rates = [f"{rate:,.0f}" for rate in (m.step_rate, m.inference_rate, m.training_rate)]
        table.add_row(
            *place, *rates[:2], rates[2] + mark, f"{(m.memory_bytes or 0) / 1024**3:.2f} GiB", f"{m.start_s} s"
        )
    console.print(table)
    failures = {m.failure for m in measurements if m.failure is not None}
    for failure in sorted(failures):
        console.print(f"failed      {failure}", markup=False)
    if chosen is None:
        console.print(f"no configuration could be measured in {config.budget:.0f} s: give a larger --budget")
        return
    if len(measurements) - sum(m.failure is not None for m in measurements) == 1:
        console.print("only one configuration could be measured, so nothing is compared: give a larger --budget")
    if chosen.memory is not None:
        missed = chosen.prediction_error
        console.print(
            f"memory      {_gib(chosen.memory.fixed_bytes):.2f} GiB and {chosen.memory.per_env_bytes / 1024:.0f} KiB "
            f"for each environment; {chosen.largest:,} fit into {_gib(machine.memory_bytes):.1f} GiB with "
            f"{machine.headroom:.0%} to spare"
            + ("" if missed is None else f" (the largest measured was foretold by the smaller ones to {missed:+.1%})")
        )
    if chosen.knee is not chosen.best:
        console.print(f"knee        {in_words(chosen.knee.point)}: within 5 % of the best")
    console.print(
        f"best        {in_words(chosen.best.point)}: {chosen.best.training_rate:,.0f} env-steps/s of training"
    )
    console.print(
        "An iteration learns from num_envs times rollout_steps samples: more environments make the batch larger, and "
        "updates fewer for the same number of steps. Where learning is slow, take the knee."
    )


def _write(
    folder: Path,
    config: SizeConfig,
    subject: Subject,
    machine: Machine,
    measurements: list[Measurement],
    chosen: Recommendation | None,
) -> None:
    record: Mapping[str, Any] = {
        "schema": SCHEMA,
        "settings": plain(config),
        "subject": dataclasses.asdict(subject),
        "machine": dataclasses.asdict(machine),
        "versions": versions(subject.device),
        "hardware": hardware(),
        "measurements": [dataclasses.asdict(m) for m in measurements],
        "recommendation": None if chosen is None else dataclasses.asdict(chosen),
    }
    write_json(folder / _FILES[0], record)
    _draw(folder / _FILES[1], config, machine, measurements, chosen)


def _draw(
    path: Path, config: SizeConfig, machine: Machine, measurements: list[Measurement], chosen: Recommendation | None
) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.0, 3.4), layout="constrained")
    FigureCanvasAgg(figure)
    rates, memory = figure.subplots(1, 2)
    kinds: dict[tuple[int, int | None], list[Measurement]] = {}
    for m in measurements:
        if m.failure is None:
            kinds.setdefault((m.point.workers, m.point.envs_per_scene), []).append(m)
    for (workers, scene), of_kind in kinds.items():
        of_kind.sort(key=lambda m: m.point.num_envs)
        label = f"{workers} workers, scenes of {scene}" if workers else "one scene"
        counts = [m.point.num_envs for m in of_kind]
        (line,) = rates.plot(counts, [m.training_rate or 0 for m in of_kind], "o-", label=label)
        rates.plot(counts, [m.step_rate or 0 for m in of_kind], ".:", color=line.get_color())
        memory.plot(counts, [_gib(m.memory_bytes or 0) for m in of_kind], "o-", color=line.get_color())
    if chosen is not None:
        rates.axvline(chosen.best.point.num_envs, color="black", linewidth=0.8)
        rates.axvline(chosen.knee.point.num_envs, color="grey", linewidth=0.8, linestyle="--")
    memory.axhline(_gib(machine.memory_bytes), color="red", linewidth=0.8)
    rates.set(
        title=f"{config.env_id}: training (dotted: stepping)", xlabel="num_envs", ylabel="env-steps/s", xscale="log"
    )
    memory.set(title="memory (red: what there is)", xlabel="num_envs", ylabel="GiB", xscale="log")
    for axes in (rates, memory):
        axes.grid(alpha=0.3)
    if kinds:
        rates.legend(fontsize=7)
    figure.savefig(path, dpi=90)
