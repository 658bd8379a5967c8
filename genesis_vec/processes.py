"""Processes of our own: started afresh, with variables of their own, never outliving this one.

Not ``multiprocessing``: its spawned child imports the user's main script before anything else, so that a script without
an ``if __name__ == "__main__"`` guard would start its workers' workers, and its environment can be set only by changing
that of this process for a while.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_BOOT = "import sys, json; sys.path[:] = json.loads(sys.argv.pop(1)); from genesis_vec.processes import _boot; _boot()"


def start_process(
    entry_point: str,
    arguments: Sequence[str] = (),
    *,
    variables: Mapping[str, str] | None = None,
    pass_fds: Sequence[int] = (),
    **popen_kwargs: Any,
) -> subprocess.Popen[Any]:
    """Starts a Python process that calls a function; it is killed by the system as soon as this process ends.

    It is a fresh interpreter with this one's ``sys.path``. It leads a process group of its own, so that Ctrl-C in the
    terminal reaches this process alone, which then decides.

    Args:
        entry_point: "module:function"; the function takes the arguments as strings.
        arguments: Its arguments.
        variables: Environment variables in addition to, or instead of, this process's; they are there from its start.
        pass_fds: File descriptors it inherits, under the same numbers.
        **popen_kwargs: Further arguments of ``subprocess.Popen``, such as ``stdout``.
    """
    lifeline = _lifeline()
    return subprocess.Popen(
        [sys.executable, "-c", _BOOT, json.dumps(sys.path), str(lifeline), entry_point, *arguments],
        env={**os.environ, **(variables or {})},
        pass_fds=(*pass_fds, lifeline),
        process_group=0,
        **popen_kwargs,
    )


def stop_processes(processes: Iterable[subprocess.Popen[Any]], grace_s: float) -> None:
    """Waits for processes that are about to end, and kills those that have not after the grace time, with their groups.

    Args:
        processes: What :func:`start_process` gave.
        grace_s: Seconds, for all of them together.
    """
    processes = list(processes)
    deadline = time.monotonic() + grace_s
    try:
        for process in processes:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                break
    finally:
        # Also where an interrupt cuts the wait short.
        for process in processes:
            if process.poll() is None:
                signal_group(process, signal.SIGKILL)
        for process in processes:
            process.wait()


def signal_group(process: subprocess.Popen[Any], signal_number: int) -> None:
    """Sends a signal to a process and to what it has started in its group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal_number)


def exit_in_words(exit_code: int) -> str:
    """An exit code as a message states it: "exit code 1", "signal SIGTERM"."""
    if exit_code == -signal.SIGKILL:
        return "signal SIGKILL (which the system sends when memory runs out)"
    if exit_code >= 0:
        return f"exit code {exit_code}"
    try:
        return f"signal {signal.Signals(-exit_code).name}"
    except ValueError:
        return f"signal {-exit_code}"


def end_in_words(exit_code: int, output: str) -> str:
    """How a process ended, with the last line that it printed."""
    last_line = output.strip().rpartition("\n")[2]
    return f"{exit_in_words(exit_code)}: {last_line or 'no word'}"


_lifelines: dict[int, tuple[int, int]] = {}


def _lifeline() -> int:
    """The end to read of a pipe whose end to write only this process has: the one closes when the other ends."""
    pid = os.getpid()  # a forked child is another process, whose own children are to end with it
    if pid not in _lifelines:
        _lifelines[pid] = os.pipe()
    return _lifelines[pid][0]


def _boot() -> None:
    lifeline, entry_point, *arguments = sys.argv[1:]
    _die_with(int(lifeline))
    module, _, name = entry_point.partition(":")
    sys.argv = [entry_point]
    getattr(importlib.import_module(module), name)(*arguments)


def _die_with(lifeline: int) -> None:
    # By a signal of the kernel's: a thread that waits for the pipe to close would have to wait for the interpreter's
    # lock first, and the engine compiles for tens of seconds without giving it away.
    # Opened again, since what follows is a property of an opened file, and all processes inherit the same one.
    end = os.open(f"/proc/self/fd/{lifeline}", os.O_RDONLY | os.O_NONBLOCK)
    os.close(lifeline)
    # It holds for the process, so also where that becomes another program by exec, which keeps only inheritable ones.
    os.set_inheritable(end, True)
    fcntl.fcntl(end, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(end, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(end, fcntl.F_SETFL, fcntl.fcntl(end, fcntl.F_GETFL) | os.O_ASYNC)
    # It may have closed before the above was in force.
    try:
        if os.read(end, 1) == b"":
            os.kill(os.getpid(), signal.SIGKILL)
    except BlockingIOError:
        pass
