"""Starts torchrun as people do, and looks at what it leaves."""

from __future__ import annotations

import contextlib
import csv
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from genesis_vec.training.checkpoint import load_checkpoint

ROOT = Path(__file__).parents[2]
TOY = "tests.training.toy:Toy-v0"
SMALL = (
    "--ppo.rollout-steps", "8", "--ppo.minibatches", "2", "--ppo.epochs", "2", "--ppo.hidden-sizes", "16",
)  # fmt: skip


def toy(run_dir: Path, iterations: int, *more: str) -> list[str]:
    """Arguments of a small run of the toy."""
    return [
        "-m", "genesis_vec.train", TOY, "--num-envs", "7", "--iterations", str(iterations), "--device", "cpu",
        "--run-dir", str(run_dir), "--checkpoint-every", "2", *SMALL, *more,
    ]  # fmt: skip


@contextlib.contextmanager
def start(
    arguments: Sequence[str], ranks: int = 2, options: Sequence[str] = (), **variables: str
) -> Iterator[subprocess.Popen[str]]:
    """A torchrun job under way, with standalone rendezvous unless options say otherwise; killed in the end."""
    rendezvous = options or ["--standalone"]
    process = subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={ranks}", *rendezvous, *arguments],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1", **variables},
        # A shell that runs in the background has its children ignore interrupts.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    try:
        yield process
    finally:
        for pid in ranks_of(process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def run(arguments: Sequence[str], ranks: int = 2, timeout: float = 120.0, **variables: str) -> tuple[int, str]:
    """Exit code and output of a torchrun job."""
    with start(arguments, ranks, **variables) as process:
        output, _ = process.communicate(timeout=timeout)
        return process.returncode, output


def ranks_of(agent: int) -> list[int]:
    """Process ids of an agent's ranks, in their order."""
    listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(agent)], capture_output=True, text=True, check=False)
    return sorted(int(word) for word in listed.stdout.split())


def wait_until(condition: Callable[[], bool], timeout: float) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout} s"
        time.sleep(0.02)


def iteration_of(run_dir: Path) -> int:
    """The newest checkpoint's."""
    numbers = [int(path.stem.split("-")[1]) for path in (run_dir / "checkpoints").glob("iteration-??????.pt")]
    return max(numbers, default=0)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def same_training(one: Path, other: Path) -> bool:
    """Whether two runs learnt the same, bit by bit, and logged the same but for the times."""
    states = [load_checkpoint(run_dir) for run_dir in (one, other)]
    return _same(*({name: state[name] for name in _LEARNT} for state in states)) and curve(one) == curve(other)


def curve(run_dir: Path) -> list[dict[str, str]]:
    with (run_dir / "progress.csv").open(newline="") as file:
        return [
            {name: value for name, value in row.items() if not name.startswith(("seconds", "env_steps_per"))}
            for row in csv.DictReader(file)
        ]


_LEARNT = ("policy", "optimizer", "observation_moments", "return_moments", "iteration", "env_steps")


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(one[name], other[name]) for name in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return one == other
