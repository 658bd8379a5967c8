"""Checkpoint files: written whole or not at all, and read without running anything in them."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import torch

from genesis_vec.errors import CheckpointError

FORMAT = 1


def save_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Writes a checkpoint so that a reader finds the old one or the new one, whatever happens meanwhile.

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


def load_checkpoint(path: Path, device: str | torch.device = "cpu") -> dict[str, Any]:
    """Reads a checkpoint.

    Args:
        path: The file, or a run's folder, whose newest checkpoint is then taken.
        device: Where its tensors go.

    Raises:
        CheckpointError: If there is none, or it is damaged or of another format.
    """
    if path.is_dir():
        path = newest_checkpoint(path)
    if not path.is_file():
        raise CheckpointError(f"there is no checkpoint {path}")
    try:
        state = torch.load(path, map_location=device, weights_only=True)
    except (RuntimeError, pickle.UnpicklingError, EOFError, KeyError) as error:
        raise CheckpointError(f"{path} is not a readable checkpoint: {error}") from error
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise CheckpointError(f"{path} is not a checkpoint of format {FORMAT}")
    return state


def newest_checkpoint(run_dir: Path) -> Path:
    """Where a run's newest checkpoint is."""
    return run_dir / "checkpoints" / "last.pt"


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
