"""Checkpoint files: written whole or not at all, and read without running anything in them.

A run's checkpoint of iteration 50 is ``checkpoints/iteration-000050.pt``, which holds what all ranks share and is
complete on its own for whoever wants the policy. What each rank has for itself, its environments above all, is in
``iteration-000050.rank0of2.pt`` beside it, written before: where the first is, the others are.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import torch

from genesis_vec.errors import CheckpointError
from genesis_vec.training.distributed import World

FORMAT = 2
_RANK_FILES_KEPT = 2
_NAME = re.compile(r"iteration-(\d+)\.pt")
_RANK_NAME = re.compile(r"(iteration-(\d+))\.rank(\d+)of\d+\.pt")


def save_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Writes a file so that a reader finds the old one or the new one, whatever happens meanwhile.

    Args:
        path: The file; its folder must exist.
        state: Tensors and plain values, nested in dicts, lists and tuples.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            torch.save({"format": FORMAT, **state}, file)
            file.flush()
            # Without this a power cut after the rename could leave an empty file under the final name.
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    _sync_folder(path.parent)


def _where(run_dir: Path) -> str:
    """Where there is none, and whether there is something else."""
    try:
        library = json.loads((run_dir / "config.json").read_text())["library"]
    except (OSError, ValueError, LookupError, TypeError):
        library = "genesis_vec"
    where = f"in {run_dir / 'checkpoints'}"
    if library == "genesis_vec":
        return where
    return f"of this package's own {where}: the run was trained with {library}, whose model only {library} can load"


def load_checkpoint(path: Path, device: str | torch.device = "cpu") -> dict[str, Any]:
    """Reads a checkpoint.

    Args:
        path: The file, or a run's folder, whose newest checkpoint is then taken.
        device: Where its tensors go.

    Raises:
        CheckpointError: If there is none, or it is damaged or of another format.
    """
    if path.is_dir():
        newest = newest_checkpoint(path)
        if newest is None:
            raise CheckpointError(f"there is no checkpoint {_where(path)}")
        path = newest
    if not path.is_file():
        raise CheckpointError(f"there is no checkpoint {path}")
    if match := _RANK_NAME.fullmatch(path.name):
        raise CheckpointError(
            f"{path} holds the environments of rank {match[3]}: the policy is in {path.with_name(match[1] + '.pt')}"
        )
    return _read(path, device)


def _read(path: Path, device: str | torch.device = "cpu") -> dict[str, Any]:
    try:
        state = torch.load(path, map_location=device, weights_only=True)
    except Exception as error:  # a damaged file may make torch.load raise anything, at any length
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CheckpointError(f"{path} is not a readable checkpoint: {reason}") from error
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise CheckpointError(f"{path} is not a checkpoint of format {FORMAT}")
    return state


def newest_checkpoint(run_dir: Path) -> Path | None:
    """A run's newest checkpoint, None if it has none."""
    numbered = _numbered(run_dir / "checkpoints")
    return numbered[max(numbered)] if numbered else None


class Checkpoints:
    """A run's checkpoints, of all its ranks.

    Args:
        run_dir: The run's folder.
        world: The learners.
        keep: How many of the newest stay; of what the ranks have for themselves the newest two.
    """

    def __init__(self, run_dir: Path, world: World, keep: int) -> None:
        self._folder = run_dir / "checkpoints"
        self._world = world
        self._keep = keep

    def prepare(self) -> None:
        """Makes the folder ready to be written to; all ranks must call it."""
        self._folder.mkdir(parents=True, exist_ok=True)
        if self._world.rank == 0:
            # What a process left that was killed in the midst of writing.
            for leftover in self._folder.glob(".*.tmp"):
                leftover.unlink(missing_ok=True)
        self._world.barrier()

    def save(self, iteration: int, shared: dict[str, Any], own: dict[str, Any] | None) -> None:
        """Writes the checkpoint of an iteration; all ranks must call it.

        Args:
            iteration: Its number.
            shared: What all ranks share; rank 0 writes it.
            own: What this rank has for itself; None on all ranks for a checkpoint without.
        """
        path = self._folder / f"iteration-{iteration:06d}.pt"
        if own is not None:
            save_checkpoint(self._rank_file(iteration), {"iteration": iteration, **own})
        # All ranks' files are there before the one that says so; and no collective within what rank 0 does alone.
        self._world.barrier()
        if self._world.rank == 0:
            save_checkpoint(path, shared)
            numbered = _numbered(self._folder)
            for number in sorted(numbered)[: -self._keep]:
                numbered[number].unlink(missing_ok=True)
        # Its files of the checkpoint before stay until the next: rank 0 may not have written this one yet.
        rank_files = self._rank_files()
        for number in sorted(rank_files)[:-_RANK_FILES_KEPT]:
            for path in rank_files[number]:
                path.unlink(missing_ok=True)

    def load_shared(self) -> dict[str, Any] | None:
        """What all ranks share, of the newest checkpoint that one of them finds; None if there is none.

        Nodes with disks of their own have it where rank 0 was, and torchrun may number them anew.

        Raises:
            CheckpointError: If it cannot be read.
        """
        path = newest_checkpoint(self._folder.parent)
        found = self._world.gather_values(-1 if path is None else int(_NAME.fullmatch(path.name)[1]))  # type: ignore[index]
        if max(found) < 0:
            return None
        reader = found.index(max(found))
        state, error = None, None
        if self._world.rank == reader and path is not None:
            try:
                state = load_checkpoint(path)
            except CheckpointError as caught:
                error = CheckpointError(f"{caught}. Delete it to go on from the one before it")
        self._world.agree(error, "reading the checkpoint")
        return self._world.from_rank(reader, state)

    def load_own(self, iteration: int) -> dict[str, Any] | None:
        """What this rank had for itself at an iteration; None on all ranks where one of them finds nothing."""
        path = self._rank_file(iteration)
        is_missing = self._world.any(not path.is_file())
        if is_missing:
            return None
        state, error = None, None
        try:
            state = _read(path)
        except CheckpointError as caught:
            shared = path.with_name(f"iteration-{iteration:06d}.pt")
            error = CheckpointError(
                f"{caught}. Delete {shared} to go on from the checkpoint before it, or delete this file to go on from "
                "here with new episodes"
            )
        self._world.agree(error, "reading its own part of the checkpoint")
        return state

    def _rank_file(self, iteration: int) -> Path:
        return self._folder / f"iteration-{iteration:06d}.rank{self._world.rank}of{self._world.size}.pt"

    def _rank_files(self) -> dict[int, list[Path]]:
        """This rank's files by iteration, and with rank 0's those of ranks that there are no longer."""
        files: dict[int, list[Path]] = {}
        for path in self._folder.iterdir():
            match = _RANK_NAME.fullmatch(path.name)
            if match and min(int(match[3]), self._world.size) % self._world.size == self._world.rank:
                files.setdefault(int(match[2]), []).append(path)
        return files


def _numbered(folder: Path) -> dict[int, Path]:
    if not folder.is_dir():
        return {}
    return {int(match[1]): path for path in folder.iterdir() if (match := _NAME.fullmatch(path.name))}


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
