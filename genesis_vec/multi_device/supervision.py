"""The caller's side of its workers: starting them, waiting with a limit, telling how one ended, stopping them."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pickle
import select
import signal
import socket
import time
from collections.abc import Iterable, Sequence
from multiprocessing.connection import Connection
from typing import Any

from genesis_vec.errors import WorkerError, WorkerTimeoutError
from genesis_vec.multi_device.messages import receive_message, send_message
from genesis_vec.multi_device.transport import (
    KIND,
    MESSAGE,
    REQUEST,
    STEP,
    TAKEN,
    Block,
    make_signal,
    send_signal,
    wait_for_word,
)
from genesis_vec.multi_device.worker import WorkerPlan
from genesis_vec.processes import exit_in_words, signal_group, start_process, stop_processes

_CLOSE_GRACE_S = 5.0


@dataclasses.dataclass(frozen=True)
class Failure:
    """How a worker failed.

    Attributes:
        worker: The worker.
        what: What happened, in words.
        exit_code: Its exit code, None if it was still running.
        error: The exception it raised, None if none came over.
        details: Its traceback, as far as there is one.
        timed_out: Whether it did not answer in time.
    """

    worker: Worker
    what: str
    exit_code: int | None = None
    error: BaseException | None = None
    details: str = ""
    timed_out: bool = False

    @property
    def is_exception(self) -> bool:
        """Whether the worker raised an exception, and serves on."""
        return self.exit_code is None and not self.timed_out

    def to_error(self, doing: str) -> WorkerError:
        """The exception that tells of it."""
        message = f"{self.worker} {self.what} while {doing}"
        if self.timed_out:
            name = "start_timeout" if doing == "starting" else "timeout"
            message += f"; a larger {name}=, or None for no limit, lets it take longer"
        if self.details:
            message += f"; its traceback:\n\n{self.details.rstrip()}"
        error_class = WorkerTimeoutError if self.timed_out else WorkerError
        error = error_class(message, self.worker.plan.index, self.exit_code)
        error.__cause__ = self.error
        return error


class Worker:
    """One worker process, as its starter sees it.

    Args:
        plan: What it is to do.
        memory_fd: The shared block's file.

    Attributes:
        plan: As given.
        connection: Where messages go and come.
        go_fd: Event counter that starts a step.
        done_fd: Event counter that says that a step is done.
        process_fd: A descriptor that becomes readable when the process has ended.
        number: The number of the newest request.
    """

    def __init__(self, plan: WorkerPlan, memory_fd: int) -> None:
        self.plan = plan
        ours, theirs = socket.socketpair()
        self.connection = Connection(ours.detach())
        self.go_fd, self.done_fd = make_signal(), make_signal()
        self._trace_fd = os.memfd_create("genesis_vec_trace")
        descriptors = (theirs.fileno(), self.go_fd, self.done_fd, memory_fd, self._trace_fd)
        variables = dict(plan.device.variables)
        if plan.device.index is None:
            # Libraries that read it at their import would otherwise start a thread per core in every worker.
            variables["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS", str(plan.torch_threads))
        self.process = start_process(
            "genesis_vec.multi_device.worker:main",
            [str(descriptor) for descriptor in descriptors],
            variables=variables,
            pass_fds=descriptors,
        )
        theirs.close()
        self.process_fd = os.pidfd_open(self.process.pid)
        self.number = 0
        with contextlib.suppress(OSError):  # if it is dead already, the first wait for it will say so
            send_message(self.connection, plan)

    def __str__(self) -> str:
        rows = self.plan.rows
        return f"worker {self.plan.index} ({self.plan.device.name}, environments {rows.start} to {rows.stop - 1})"

    def send(self, block: Block, *message: Any) -> None:
        """Sends a message to a worker that serves."""
        # Called before it is sent: one that does not fit into the connection at once waits for the worker to read it.
        self._request(block, MESSAGE)
        with contextlib.suppress(OSError):
            send_message(self.connection, *message)

    def start_step(self, block: Block) -> None:
        """Has a worker that serves take a step."""
        self._request(block, STEP)

    def _request(self, block: Block, kind: int) -> None:
        index = self.plan.index
        self.number = block.word(index, REQUEST) + 1
        block.set_word(index, KIND, kind)
        block.set_word(index, REQUEST, self.number)
        send_signal(self.go_fd)

    def receive(self) -> tuple[Any, ...] | Failure:
        """The message that is there, or what it tells of a failure."""
        try:
            message = receive_message(self.connection)
        except (EOFError, OSError):
            return self.end()
        return self._exception(message) if message[0] == "error" else message

    def _exception(self, message: tuple[Any, ...]) -> Failure:
        _, pickled, text = message
        error = None if pickled is None else pickle.loads(pickled)
        return Failure(self, "raised an exception", error=error, details=text)

    def end(self) -> Failure:
        """How a worker that is about to end, or has, ended; with the error it sent last, if any."""
        with contextlib.suppress(EOFError, OSError):
            while self.connection.poll():
                message = receive_message(self.connection)
                if message[0] == "error":
                    return self._exception(message)
        stop_processes([self.process], grace_s=2.0)
        code = self.process.returncode
        return Failure(self, f"ended with {exit_in_words(code)}", exit_code=code, details=self._trace())

    def hang(self, timeout: float | None) -> Failure:
        """That a worker has not answered, and where in its code it is."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process.pid, signal.SIGUSR1)
        deadline = time.monotonic() + 1.0
        while not self._trace() and time.monotonic() < deadline:
            time.sleep(0.01)
        return Failure(self, f"did not answer within {timeout} s", details=self._trace(), timed_out=True)

    def _trace(self) -> str:
        return os.pread(self._trace_fd, 1 << 16, 0).decode(errors="replace")

    def kill(self) -> None:
        """Ends the process at once, and frees what belongs to it."""
        if self.process.poll() is None:
            signal_group(self.process, signal.SIGKILL)
        self.process.wait()
        self.free()

    def free(self) -> None:
        """Closes the descriptors; twice is fine."""
        if self.process_fd < 0:
            return
        self.connection.close()
        for descriptor in (self.go_fd, self.done_fd, self.process_fd, self._trace_fd):
            os.close(descriptor)
        self.process_fd = -1


class Deadline:
    """A number of seconds from now on, None for ever.

    Attributes:
        seconds: As given.
    """

    def __init__(self, seconds: float | None) -> None:
        self.seconds = seconds
        self._end = None if seconds is None else time.monotonic() + seconds

    def left(self) -> float | None:
        """Seconds left, at least 0; None for ever."""
        return None if self._end is None else max(0.0, self._end - time.monotonic())


def wait_for(
    workers: Iterable[Worker], deadline: Deadline, *, everyone: bool = True
) -> tuple[list[Worker], list[Failure]]:
    """Waits until there is a message from each worker, or the worker has ended, or time is up.

    Args:
        workers: The workers to wait for.
        deadline: When time is up.
        everyone: With False, whether one of the workers is enough.

    Returns:
        The workers whose message is there to be received, and how others failed.
    """
    waiting = set(workers)
    ready: list[Worker] = []
    failures: list[Failure] = []
    while waiting:
        connections = {worker.connection.fileno(): worker for worker in waiting}
        processes = {worker.process_fd: worker for worker in waiting}
        events = _poll([*connections, *processes], deadline)
        for event in events:
            if event in connections:
                ready.append(connections[event])
        for event in events:
            # One that answered before it ended has answered.
            if event in processes and processes[event] not in ready:
                failures.append(processes[event].end())
        waiting -= {*ready, *(failure.worker for failure in failures)}
        if not events and deadline.left() == 0.0:
            failures.extend(worker.hang(deadline.seconds) for worker in waiting)
            break
        if not everyone and (ready or failures):
            break
    return ready, failures


def wait_for_step(workers: Iterable[Worker], block: Block, deadline: Deadline) -> list[Failure]:
    """Waits until each worker has taken the step it was told to, has ended, or time is up.

    It changes nothing, so that after an interrupt (KeyboardInterrupt) it can be called again.

    Args:
        workers: The workers.
        block: The shared block.
        deadline: When time is up.

    Returns:
        How workers failed; those that raised an exception have taken their step.
    """
    failures = []
    for worker in workers:

        def has_taken(worker: Worker = worker) -> bool:
            return block.word(worker.plan.index, TAKEN) == worker.number

        def sleep(worker: Worker = worker) -> bool:
            events = _poll([worker.done_fd, worker.process_fd], deadline)
            return bool(events) and worker.process_fd not in events

        if not wait_for_word(has_taken, worker.done_fd, sleep):
            ended = worker.process.poll() is not None
            failures.append(worker.end() if ended else worker.hang(deadline.seconds))
    return failures


def _poll(descriptors: Iterable[int], deadline: Deadline) -> list[int]:
    """The descriptors that can be read, as soon as one can; none if time is up."""
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    left = deadline.left()
    return [descriptor for descriptor, _ in poll.poll(None if left is None else left * 1000.0)]


def stop_workers(workers: Sequence[Worker], owner_pid: int, block: Block | None = None) -> None:
    """Stops workers: asks those that serve to close, waits a few seconds, and kills what is left.

    Args:
        workers: The workers.
        owner_pid: The process that started them; in a forked copy of it this does nothing.
        block: The shared block, if they serve; None kills them at once.
    """
    if os.getpid() != owner_pid:
        return
    try:
        if block is not None:
            for worker in workers:
                if worker.process_fd >= 0:
                    worker.send(block, "close")
            stop_processes([worker.process for worker in workers], _CLOSE_GRACE_S)
    finally:
        for worker in workers:
            worker.kill()
