"""The command line: arguments in, one call out. Each command imports what it needs when it runs."""

from __future__ import annotations

import dataclasses
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import tyro

from genesis_vec.errors import GenesisVecError


def train(arguments: Sequence[str], program: str = "genesis-vec train") -> None:
    """Train a policy with PPO."""
    from genesis_vec.training.config import TrainConfig
    from genesis_vec.training.presets import preset

    # The id decides what the other options start from, so it is read first, by the same parser.
    config = tyro.cli(TrainConfig, prog=program, args=arguments)
    config = tyro.cli(TrainConfig, prog=program, args=arguments, default=preset(config.env_id))

    from genesis_vec.training.run import train as run

    run(config)


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
    )


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


COMMANDS: dict[str, Callable[[Sequence[str]], None]] = {"train": train, "play": play, "list": list_ids}


def main(arguments: Sequence[str] | None = None) -> None:
    """The program ``genesis-vec``: ``genesis-vec COMMAND …``."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if not arguments or arguments[0] in ("-h", "--help"):
        lines = [f"  {name:<8}{command.__doc__}" for name, command in COMMANDS.items()]
        sys.stdout.write("\n".join(["usage: genesis-vec COMMAND [-h] …", "", *lines, ""]))
        raise SystemExit(0 if arguments else 2)
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
