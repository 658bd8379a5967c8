"""Starting workers: side by side, but with a cold kernel cache one before the others, and progress on the terminal.

The engine compiles for a minute or more where its cache does not have the kernels, and every process would do so for
itself. So the first worker looks; if it has to compile, the others wait. The engine saves what it compiled when its
process ends, so that the first worker then ends and is started again, and all find the kernels in the cache.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Console

from genesis_vec.errors import GenesisVecError
from genesis_vec.multi_device.buffers import Kind
from genesis_vec.multi_device.messages import send_message
from genesis_vec.multi_device.receiver import Receiver
from genesis_vec.multi_device.supervision import Deadline, Failure, Worker, wait_for
from genesis_vec.multi_device.transport import Layout
from genesis_vec.multi_device.worker import WorkerPlan, WorkerReport
from genesis_vec.processes import stop_processes

# Seconds that the engine may take to write its kernels to the disk.
_SAVING_GRACE_S = 60.0


def start_workers(
    plans: Sequence[WorkerPlan], memory_fd: int, workers: list[Worker], timeout: float | None
) -> WorkerReport:
    """Starts workers and waits until they have built their scenes.

    Args:
        plans: What each is to do.
        memory_fd: The shared block's file.
        workers: Takes the workers as they are started, so that the caller can stop them whatever happens.
        timeout: Seconds for all of it, None for no limit.

    Returns:
        What the scenes are like, in which all agree.

    Raises:
        WorkerError: If one fails by dying or in an unexpected way.
        GenesisVecError, ValueError, TypeError, NotImplementedError: What making a scene raised in the worker.
    """
    deadline = Deadline(timeout)
    workers.extend(Worker(plan, memory_fd) for plan in plans)
    started: set[Worker] = set()
    imported: set[Worker] = set()
    reports: dict[Worker, WorkerReport] = {}
    go_ahead = False
    scenes, num_scenes = 0, sum(len(plan.scenes) for plan in plans)
    with _progress() as show:
        while len(reports) < len(workers):
            for worker in imported - started:
                if worker is workers[0] or go_ahead:
                    _send(worker, "build")
                    started.add(worker)
            show(_in_words(workers, imported, scenes, num_scenes, go_ahead))
            unfinished = [worker for worker in workers if worker not in reports]
            ready, failures = wait_for(unfinished, deadline, everyone=False)
            for worker in ready:
                message = worker.receive()
                if isinstance(message, Failure):
                    failures.append(message)
                    continue
                word, *content = message
                if word == "imported":
                    imported.add(worker)
                elif word == "kernels":
                    go_ahead = go_ahead or content[0]
                elif word == "scene":
                    scenes += 1
                elif word == "compiled":
                    stop_processes([worker.process], _SAVING_GRACE_S)
                    worker.free()
                    workers[workers.index(worker)] = Worker(worker.plan, memory_fd)
                    for left in (started, imported):
                        left.discard(worker)
                    scenes, go_ahead = 0, True
                elif word == "built":
                    reports[worker] = content[0]
            if failures:
                raise _startup_error(failures[0])
    report, *others = (reports[worker] for worker in workers)
    different = [other for other in others if other != report]
    if different:
        raise ValueError(f"the workers' environments differ: {report} and {different[0]}")
    return report


def attach_workers(workers: Sequence[Worker], receiver: Receiver, layout: Layout, timeout: float | None) -> None:
    """Has workers take their buffers, of the best kind that both sides can use; they serve from then on.

    Raises:
        WorkerError: If one fails.
    """
    kinds = {worker: receiver.buffer_kind(worker.plan.index) for worker in workers}
    while kinds:
        for worker, kind in kinds.items():
            _send(worker, "attach", layout, kind)
        ready, failures = wait_for(kinds, Deadline(timeout))
        refused: dict[Worker, Kind] = {}
        for worker in ready:
            answer = worker.receive()
            if isinstance(answer, Failure):
                failures.append(answer)
            elif receiver.open(worker.plan.index, answer[1]):
                _send(worker, "ready")
            else:
                refused[worker] = "host"
        if failures:
            raise failures[0].to_error("starting")
        kinds = refused


def _startup_error(failure: Failure) -> BaseException:
    """What to raise: a user's mistake in its own type, as the in-process environment raises it."""
    error = failure.error
    if isinstance(error, (GenesisVecError, ValueError, TypeError, NotImplementedError)):
        error.add_note(f"in {failure.worker}; its traceback:\n\n{failure.details}")
        return error
    return failure.to_error("starting")


def _send(worker: Worker, *message: Any) -> None:
    with contextlib.suppress(OSError):  # a worker that is dead is found out by waiting for it
        send_message(worker.connection, *message)


def _in_words(workers: Sequence[Worker], imported: set[Worker], scenes: int, num_scenes: int, go_ahead: bool) -> str:
    devices = ", ".join(dict.fromkeys(worker.plan.device.name for worker in workers))
    if len(imported) < len(workers):
        doing = "importing the engine"
    elif go_ahead:
        doing = "building scenes"
    else:
        doing = "building the first scene; its kernels are compiled once, which takes a minute or more"
    return f"{len(workers)} workers on {devices}: {scenes}/{num_scenes} scenes, {doing}"


@contextlib.contextmanager
def _progress() -> Iterator[Any]:
    """Gives a function that shows a line on the terminal, where standard error is one."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda text: None
        return
    with console.status("") as status:
        yield status.update
