"""Checkpoint files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from genesis_vec.errors import CheckpointError
from genesis_vec.training.checkpoint import Checkpoints, load_checkpoint, newest_checkpoint, save_checkpoint
from genesis_vec.training.distributed import World


def prepared(run_dir: Path) -> Checkpoints:
    checkpoints = Checkpoints(run_dir, World(), keep=3)
    checkpoints.prepare()
    return checkpoints


def test_what_is_saved_comes_back_by_safe_loading(tmp_path: Path):
    path = tmp_path / "a.pt"
    save_checkpoint(path, {"policy": {"weight": torch.arange(3.0)}, "iteration": 4, "config": {"env": ["a=1"]}})
    state = load_checkpoint(path)
    assert state["policy"]["weight"].tolist() == [0.0, 1.0, 2.0]
    assert (state["iteration"], state["config"]) == (4, {"env": ["a=1"]})
    assert torch.load(path, weights_only=True)["iteration"] == 4


def test_a_run_s_folder_stands_for_its_newest_checkpoint_and_the_newest_few_stay(tmp_path: Path):
    assert newest_checkpoint(tmp_path) is None
    with pytest.raises(CheckpointError, match="there is no checkpoint in"):
        load_checkpoint(tmp_path)
    checkpoints = prepared(tmp_path)
    for iteration in (2, 9, 10, 100):
        checkpoints.save(iteration, {"iteration": iteration}, {"env": iteration} if iteration != 100 else None)
    assert newest_checkpoint(tmp_path) == tmp_path / "checkpoints" / "iteration-000100.pt"
    assert load_checkpoint(tmp_path)["iteration"] == 100
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == [
        "iteration-000009.pt", "iteration-000009.rank0of1.pt", "iteration-000010.pt", "iteration-000010.rank0of1.pt",
        "iteration-000100.pt",
    ]  # fmt: skip
    own = checkpoints.load_own(10)
    assert own is not None and own["env"] == 10
    assert checkpoints.load_own(100) is None


def test_what_a_killed_process_left_half_written_is_cleared_away_and_not_taken_for_a_checkpoint(tmp_path: Path):
    prepared(tmp_path).save(1, {"iteration": 1}, None)
    (tmp_path / "checkpoints" / ".iteration-000002.pt.4711.tmp").write_bytes(b"half")
    assert load_checkpoint(tmp_path)["iteration"] == 1
    prepared(tmp_path)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["iteration-000001.pt"]


def test_a_newest_checkpoint_that_is_damaged_is_told_with_what_to_do(tmp_path: Path):
    checkpoints = prepared(tmp_path)
    checkpoints.save(1, {"iteration": 1}, None)
    (tmp_path / "checkpoints" / "iteration-000001.pt").write_bytes(b"scratched")
    with pytest.raises(CheckpointError, match=r"(?s)not a readable checkpoint.* Delete it to go on"):
        checkpoints.load_shared()


def test_a_damaged_part_of_a_rank_is_told_with_both_ways_out(tmp_path: Path):
    checkpoints = prepared(tmp_path)
    checkpoints.save(1, {"iteration": 1}, {"env": 1})
    (tmp_path / "checkpoints" / "iteration-000001.rank0of1.pt").write_bytes(b"scratched")
    with pytest.raises(CheckpointError, match=r"rank0of1\.pt is not .* Delete .*000001\.pt to go on .* or delete this"):
        checkpoints.load_own(1)


def test_a_rank_s_part_is_not_taken_for_a_policy(tmp_path: Path):
    prepared(tmp_path).save(1, {"iteration": 1}, {"env": 1})
    with pytest.raises(CheckpointError, match=r"environments of rank 0: the policy is in .*iteration-000001\.pt"):
        load_checkpoint(tmp_path / "checkpoints" / "iteration-000001.rank0of1.pt")


def test_files_of_ranks_that_there_are_no_longer_are_cleared_away_too(tmp_path: Path):
    checkpoints = prepared(tmp_path)
    for iteration in range(1, 5):
        if iteration == 1:
            (tmp_path / "checkpoints" / "iteration-000001.rank1of2.pt").write_bytes(b"")
        checkpoints.save(iteration, {"iteration": iteration}, {"env": iteration})
    kept = {path.name for path in (tmp_path / "checkpoints").glob("*rank*")}
    assert kept == {"iteration-000003.rank0of1.pt", "iteration-000004.rank0of1.pt"}


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
    with pytest.raises(CheckpointError, match="is not a checkpoint of format 2"):
        load_checkpoint(foreign)
