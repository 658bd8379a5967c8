"""Looking at processes from outside."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

GONE_WITHIN_S = 10.0


def is_gone(pid: int) -> bool:
    """Whether a process has ended; a zombie of a killed parent waits for init only."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def assert_all_gone(pids: Sequence[int]) -> None:
    """Waits until processes are gone, but not for long."""
    deadline = time.monotonic() + GONE_WITHIN_S
    while not all(map(is_gone, pids)):
        assert time.monotonic() < deadline, [pid for pid in pids if not is_gone(pid)]
        time.sleep(0.02)


def children_of(pid: int) -> list[int]:
    """The processes that a process has started, in the order of their numbers."""
    pids = []
    for entry in filter(str.isdecimal, os.listdir("/proc")):
        try:
            stat = Path(f"/proc/{entry}/stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(stat.rpartition(")")[2].split()[1]) == pid:
            pids.append(int(entry))
    return sorted(pids)


def wait_until(condition: Callable[[], bool], timeout_s: float) -> None:
    """Waits for something to be so."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come about in time"
        time.sleep(0.05)
