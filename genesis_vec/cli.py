"""The command line: arguments in, one call out. Each command imports what it needs when it runs."""

from __future__ import annotations

import dataclasses
import itertools
import os
import re
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Literal

import tyro

from genesis_vec.errors import GenesisVecError


def train(arguments: Sequence[str], program: str = "genesis-vec train") -> None:
    """Train a policy with PPO."""
    from genesis_vec.training.config import TrainConfig
    from genesis_vec.training.job import Job
    from genesis_vec.training.presets import preset

    # The id decides what the other options start from, so it is read first, by the same parser.
    config = tyro.cli(TrainConfig, prog=program, args=arguments)
    config = tyro.cli(TrainConfig, prog=program, args=arguments, default=preset(config.env_id))

    # Before the import that brings torch: it is then too late to choose a GPU.
    job = Job.from_environment()
    config = config.pinned(job)

    if config.library != "genesis_vec":
        from genesis_vec.library_training.run import train_with_library as run
    else:
        from genesis_vec.training.run import train as run

    run(config, job=job)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlayArguments:
    """Run a trained policy and print its mean return, length and success."""

    checkpoint: Annotated[Path, tyro.conf.Positional]
    """A checkpoint file, or a run's folder."""
    episodes: int = 100
    """Number of episodes."""
    num_envs: int | None = None
    """Number of environments; as many as episodes, at most 128, by default."""
    seed: int = 0
    """Seed of the episodes."""
    device: str = "auto"
    """Where to run: auto, cpu, cuda."""
    video: Path | None = None
    """Film the first environment into this file (.mp4 or .gif)."""
    dataset: Path | None = None
    """Write the episodes into this new folder, as a dataset of the Minari format."""


def play(arguments: Sequence[str]) -> None:
    """Run a trained policy and print its mean return, length and success."""
    options = tyro.cli(PlayArguments, prog="genesis-vec play", args=arguments)

    from genesis_vec.training.play import play as run

    run(
        options.checkpoint,
        episodes=options.episodes,
        num_envs=options.num_envs,
        seed=options.seed,
        device=options.device,
        video=options.video,
        dataset=options.dataset,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportArguments:
    """Write a trained policy as an ONNX model."""

    checkpoint: Annotated[Path, tyro.conf.Positional]
    """A checkpoint file, or a run's folder."""
    out: Path | None = None
    """The file; policy.onnx beside the checkpoint by default."""


def export(arguments: Sequence[str]) -> None:
    """Write a trained policy as an ONNX model."""
    options = tyro.cli(ExportArguments, prog="genesis-vec export", args=arguments)

    from rich.console import Console

    from genesis_vec.training.export import export as run

    run(options.checkpoint, options.out, Console(highlight=False, soft_wrap=True))


def size(arguments: Sequence[str]) -> None:
    """Find out how many environments this machine should run."""
    from genesis_vec.benchmark.size import SizeConfig
    from genesis_vec.benchmark.size import size as run

    if run(tyro.cli(SizeConfig, prog="genesis-vec size", args=arguments)) is None:
        raise SystemExit(1)


def bench(arguments: Sequence[str]) -> None:
    """Run the benchmarks, and compare them with an older run."""
    from genesis_vec.benchmark.bench import BenchConfig
    from genesis_vec.benchmark.bench import bench as run

    if not run(tyro.cli(BenchConfig, prog="genesis-vec bench", args=arguments)):
        raise SystemExit(1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DoctorArguments:
    """Find out what works on this machine, and what would help where something does not."""

    json: bool = False
    """Print everything as JSON."""


def doctor(arguments: Sequence[str]) -> None:
    """Find out what works on this machine."""
    options = tyro.cli(DoctorArguments, prog="genesis-vec doctor", args=arguments)

    from genesis_vec.doctor import doctor as run

    if not run(options.json):
        raise SystemExit(1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LaunchArguments:
    """Run independent programs, one per device, or one per combination of a sweep's values.

    In ARGUMENTS, {index}, {count}, {seed} and {device} stand for each program's own, {NAME} for a sweep's value.
    """

    program: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="PROGRAM")]
    """A script (.py), a module as for python -m, or module:function."""
    arguments: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="ARGUMENTS")] = ()
    """Everything after the program goes to it."""
    devices: str = "auto"
    """Where to run: auto, cuda, cuda:0,1, cpu:2."""
    sweep: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """NAME=VALUE,VALUE,…; with several sweeps, every combination of their values."""
    seed: int = 0
    """What the programs' seeds follow from."""
    retries: int = 0
    """How often a program that failed is started anew."""
    timeout: float | None = None
    """Seconds a program may take."""
    on_failure: Literal["stop", "continue"] = "stop"
    """Whether a failure stops the others."""


def launch(arguments: Sequence[str]) -> None:
    """Run independent programs, one per device."""
    arguments = list(arguments)
    # The first word that is neither an option nor its value is the program. What follows is not ours to parse.
    start = 0
    while start < len(arguments) and arguments[start].startswith("-") and arguments[start] != "--":
        has_value = "=" not in arguments[start] and arguments[start] not in ("-h", "--help")
        start += 2 if has_value else 1
    if start < len(arguments) and arguments[start] != "--":
        arguments.insert(start, "--")
    options = tyro.cli(LaunchArguments, prog="genesis-vec launch", args=arguments)

    from genesis_vec.devices import parse_devices
    from genesis_vec.errors import LaunchError
    from genesis_vec.launcher import launch as run

    devices = [device.name for device in parse_devices(options.devices)]
    words = _sweep(options.arguments, options.sweep) or [options.arguments] * len(devices)
    try:
        run(
            options.program,
            devices=devices,
            args=words,
            seed=options.seed,
            retries=options.retries,
            timeout=options.timeout,
            on_failure=options.on_failure,
        )
    except LaunchError as error:
        sys.stderr.write(f"genesis-vec: {error}\n")
        exit_code = error.failures[0].exit_code
        # As a shell does: a signal is 128 and its number. A program that ends well once its time is up failed too.
        raise SystemExit(128 - exit_code if exit_code < 0 else exit_code or 1) from None


def _sweep(arguments: Sequence[str], sweeps: Sequence[str]) -> list[tuple[str, ...]]:
    """The arguments for each combination of the sweeps' values, those of the last varying fastest; [] without any."""
    names, values = [], []
    for sweep in sweeps:
        name, _, listed = sweep.partition("=")
        if not name.isidentifier() or not all(listed.split(",")):
            raise ValueError(f"--sweep {sweep}: use NAME=VALUE,VALUE,…")
        if name in names or name in ("index", "count", "seed", "device"):
            raise ValueError(f"--sweep {sweep}: {{{name}}} stands for something else already")
        if not any(f"{{{name}}}" in word for word in arguments):
            raise ValueError(f"--sweep {sweep}: no argument of the program contains {{{name}}}")
        names.append(name)
        values.append(listed.split(","))
    if not names:
        return []
    pattern = re.compile(r"\{(" + "|".join(names) + r")\}")
    return [
        tuple(pattern.sub(lambda match, chosen=chosen: chosen[match[1]], word) for word in arguments)
        for chosen in (dict(zip(names, combination, strict=True)) for combination in itertools.product(*values))
    ]


def list_ids(arguments: Sequence[str]) -> None:
    """List the registered environments."""
    tyro.cli(list_ids_table, prog="genesis-vec list", args=arguments)


def list_ids_table() -> None:
    """List the registered environments."""
    import importlib
    import inspect

    from rich.console import Console
    from rich.table import Table

    from genesis_vec.registry import SHIPPED

    table = Table("id", "time limit (steps)", "task")
    for id, (entry_point, max_episode_steps) in SHIPPED.items():
        module, _, name = entry_point.partition(":")
        task = getattr(importlib.import_module(module), name)
        table.add_row(id, str(max_episode_steps), (inspect.getdoc(task) or "").split("\n", 1)[0])
    Console().print(table)


COMMANDS: dict[str, Callable[[Sequence[str]], None]] = {
    "train": train,
    "play": play,
    "export": export,
    "size": size,
    "bench": bench,
    "doctor": doctor,
    "launch": launch,
    "list": list_ids,
}


def main(arguments: Sequence[str] | None = None) -> None:
    """The program ``genesis-vec``: ``genesis-vec COMMAND …``."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if not arguments or arguments[0] in ("-h", "--help"):
        lines = [f"  {name:<8}{command.__doc__}" for name, command in COMMANDS.items()]
        sys.stdout.write("\n".join(["usage: genesis-vec COMMAND [-h] …", "", *lines, ""]))
        raise SystemExit(0 if arguments else 2)
    # As python -m has it: "module:Id-v0" may name a module beside the user.
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    command = COMMANDS.get(arguments[0])
    if command is None:
        raise SystemExit(f"genesis-vec: there is no command {arguments[0]!r}; use one of {', '.join(COMMANDS)}")
    run_command(lambda: command(arguments[1:]))


def run_command(command: Callable[[], None]) -> None:
    """Runs a command so that a user's mistake ends in one line, and an interrupt in the usual exit code."""
    # A warning is for the person at the terminal here: its place in the code is noise.
    warnings.showwarning = lambda message, *_args, **_kwargs: sys.stderr.write(f"{message}\n")  # type: ignore[assignment]
    from gymnasium.error import Error as GymnasiumError

    try:
        command()
    except (GenesisVecError, GymnasiumError, OSError, ValueError, TypeError) as error:
        if isinstance(error, (ValueError, TypeError)) and not _is_user_mistake(error):
            raise
        raise SystemExit(f"genesis-vec: {error}") from error
    except KeyboardInterrupt:
        raise SystemExit(130) from None


def _is_user_mistake(error: BaseException) -> bool:
    """Whether a ValueError or TypeError was raised by this package's own checks, and not in the depths of a library."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    return traceback is not None and Path(traceback.tb_frame.f_code.co_filename).is_relative_to(Path(__file__).parent)
