"""The example of one's own task: short, right, what the tutorial shows, and trainable by the command it names."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import gymnasium
import pytest

import genesis_vec

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"


@pytest.fixture
def in_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))


def test_it_keeps_the_whole_contract(in_examples):
    env = gymnasium.make_vec("custom_task:PlanarReach-v0", num_envs=4, device="cpu", max_episode_steps=10)
    report = genesis_vec.check_vector_env(env, close=True)
    assert not report.not_checked


def test_it_is_short_and_the_tutorial_shows_it_as_it_is():
    source = (EXAMPLES / "custom_task.py").read_text()
    assert len(source.splitlines()) < 60
    code = {line.strip() for line in source.splitlines()}
    tutorial = (ROOT / "docs" / "tutorial.md").read_text()
    shown = [
        line.split("  #")[0].strip()
        for block in re.findall(r"```python\n(.*?)```", tutorial, re.DOTALL)[:-1]
        for line in block.splitlines()
        if line.strip()
    ]
    left_out = {line for line in code if line and not line.startswith(('"""', "#"))} - set(shown)
    assert [line for line in left_out if line.split("  #")[0].strip() not in shown] == []
    assert [line for line in shown if not any(own.startswith(line) for own in code)] == []


def test_the_command_of_the_tutorial_trains_it_from_its_own_folder(tmp_path):
    command = Path(sys.executable).with_name("genesis-vec")
    done = subprocess.run(
        [
            str(command), "train", "custom_task:PlanarReach-v0", "--iterations", "2", "--num-envs", "8", "--device",
            "cpu", "--run-dir", str(tmp_path / "run"),
        ],
        cwd=EXAMPLES, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "success once" in done.stdout
