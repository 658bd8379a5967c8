"""Checkpoint files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from genesis_vec.errors import CheckpointError
from genesis_vec.training.checkpoint import load_checkpoint, newest_checkpoint, save_checkpoint


def test_what_is_saved_comes_back_by_safe_loading(tmp_path: Path):
    path = tmp_path / "a.pt"
    save_checkpoint(path, {"policy": {"weight": torch.arange(3.0)}, "iteration": 4, "config": {"env": ["a=1"]}})
    state = load_checkpoint(path)
    assert state["policy"]["weight"].tolist() == [0.0, 1.0, 2.0]
    assert (state["iteration"], state["config"]) == (4, {"env": ["a=1"]})
    assert torch.load(path, weights_only=True)["iteration"] == 4


def test_a_run_s_folder_stands_for_its_newest_checkpoint(tmp_path: Path):
    newest_checkpoint(tmp_path).parent.mkdir()
    save_checkpoint(newest_checkpoint(tmp_path), {"iteration": 9})
    assert newest_checkpoint(tmp_path) == tmp_path / "checkpoints" / "last.pt"
    assert load_checkpoint(tmp_path)["iteration"] == 9


def test_a_write_that_fails_leaves_the_old_checkpoint_and_no_debris(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "a.pt"
    save_checkpoint(path, {"iteration": 1})

    def fail(state: Any, file: Any) -> None:
        file.write(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(torch, "save", fail)
    with pytest.raises(OSError, match="disk full"):
        save_checkpoint(path, {"iteration": 2})
    assert load_checkpoint(path)["iteration"] == 1
    assert [file.name for file in tmp_path.iterdir()] == ["a.pt"]


def test_a_missing_damaged_or_foreign_file_is_told_apart_from_a_checkpoint(tmp_path: Path):
    with pytest.raises(CheckpointError, match=r"there is no checkpoint .*nothing\.pt"):
        load_checkpoint(tmp_path / "nothing.pt")
    damaged = tmp_path / "damaged.pt"
    save_checkpoint(damaged, {"iteration": 1})
    damaged.write_bytes(damaged.read_bytes()[:200])
    with pytest.raises(CheckpointError, match="is not a readable checkpoint"):
        load_checkpoint(damaged)
    text = tmp_path / "text.pt"
    text.write_text("hello")
    with pytest.raises(CheckpointError, match="is not a readable checkpoint"):
        load_checkpoint(text)
    foreign = tmp_path / "foreign.pt"
    torch.save({"weights": torch.zeros(1)}, foreign)
    with pytest.raises(CheckpointError, match="is not a checkpoint of format 1"):
        load_checkpoint(foreign)
