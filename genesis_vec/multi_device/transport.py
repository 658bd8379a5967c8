"""The memory that carries a step between processes: nested results as leaves, their layout, one shared block.

The workers write their rows into the block in place, and the caller gets a copy. The block is an anonymous file: it has
no name in /dev/shm that could be left behind, and is not bound by that folder's size, 64 MB in a container.
"""

from __future__ import annotations

import dataclasses
import math
import mmap
import os
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

Path = tuple[str, ...]

_ALIGNMENT = 64  # bytes, a cache line: no two processes write to the same one


@dataclasses.dataclass(frozen=True)
class Leaf:
    """One tensor of a nested result.

    Attributes:
        path: Its keys, from the outside in.
        dtype: Its dtype.
        shape: One row's shape.
    """

    path: Path
    dtype: torch.dtype
    shape: tuple[int, ...]


def flatten(value: Mapping[str, Any], prefix: Path = ()) -> list[tuple[Path, torch.Tensor]]:
    """The tensors in nested mappings, with their paths.

    Raises:
        TypeError: For anything else than a tensor among the leaves.
    """
    pairs: list[tuple[Path, torch.Tensor]] = []
    for key, item in value.items():
        path = (*prefix, key)
        if isinstance(item, torch.Tensor):
            pairs.append((path, item))
        elif isinstance(item, Mapping):
            pairs.extend(flatten(item, path))
        else:
            raise TypeError(
                f"{' / '.join(path)} is {type(item).__name__}; what a worker's environment gives must be tensors, or "
                "dicts of them"
            )
    return pairs


def unflatten(paths: Iterable[Path], tensors: Iterable[Any]) -> dict[str, Any]:
    """Nested dicts with those tensors at those paths."""
    root: dict[str, Any] = {}
    for path, tensor in zip(paths, tensors, strict=True):
        node = root
        for key in path[:-1]:
            node = node.setdefault(key, {})
        node[path[-1]] = tensor
    return root


def describe(pairs: Sequence[tuple[Path, torch.Tensor]], num_envs: int) -> list[Leaf]:
    """The leaves of a result of so many rows.

    Raises:
        ValueError: If one has another number of rows.
    """
    for path, tensor in pairs:
        if tensor.shape[:1] != (num_envs,):
            raise ValueError(f"{' / '.join(path)} has shape {tuple(tensor.shape)}; its first axis must be {num_envs}")
    return [Leaf(path, tensor.dtype, tuple(tensor.shape[1:])) for path, tensor in pairs]


@dataclasses.dataclass(frozen=True)
class Layout:
    """What lies in memory in which order: some words for each worker, the actions, the leaves.

    Attributes:
        num_envs: Number of rows in all.
        num_workers: Number of workers.
        actions: The actions' leaf, of path ().
        leaves: Every leaf there is; "reset" and "step" results share those of the same path.
    """

    num_envs: int
    num_workers: int
    actions: Leaf
    leaves: tuple[Leaf, ...]

    def size(self, num_rows: int) -> int:
        """Bytes that so many rows take."""
        return self._places(num_rows)[1]

    def views(self, memory: torch.Tensor, num_rows: int) -> dict[Path, torch.Tensor]:
        """The actions and the leaves as tensors (num_rows, *shape) in memory, uint8 (size,); by path."""
        views = {}
        for leaf, (start, end) in zip((self.actions, *self.leaves), self._places(num_rows)[0], strict=True):
            views[leaf.path] = memory[start:end].view(leaf.dtype).view(num_rows, *leaf.shape)
        return views

    def _places(self, num_rows: int) -> tuple[list[tuple[int, int]], int]:
        places, end = [], self.num_workers * _ALIGNMENT
        for leaf in (self.actions, *self.leaves):
            size = num_rows * math.prod(leaf.shape) * leaf.dtype.itemsize
            places.append((end, end + size))
            end += -(-size // _ALIGNMENT) * _ALIGNMENT
        return places, end


class Block:
    """Shared memory laid out, for all rows, in the caller's process as in the workers'.

    Args:
        file_descriptor: The anonymous file, as large as the layout asks.
        layout: The layout.

    Attributes:
        memory: uint8 (size,), the whole of it.
        actions: (num_envs, *action shape).
        leaves: Tensors (num_envs, *shape) by path.
    """

    def __init__(self, file_descriptor: int, layout: Layout) -> None:
        mapped = mmap.mmap(file_descriptor, layout.size(layout.num_envs))
        self._words = memoryview(mapped).cast("q")
        self.memory = torch.frombuffer(mapped, dtype=torch.uint8)
        self.leaves = layout.views(self.memory, layout.num_envs)
        self.actions = self.leaves.pop(())

    def set_word(self, worker: int, place: int, value: int) -> None:
        """Sets one of a worker's words; whoever waits for its signal afterwards reads it so."""
        self._words[worker * (_ALIGNMENT // 8) + place] = value

    def word(self, worker: int, place: int) -> int:
        """One of a worker's words."""
        return self._words[worker * (_ALIGNMENT // 8) + place]


# A worker's words: the number of the newest request and its kind; the number of the step taken last and how it went.
REQUEST, KIND, TAKEN, STATUS = 0, 1, 2, 3

# What KIND says: take a step, or read a message from the connection.
STEP, MESSAGE = 0, 1

# What STATUS says: all is well, or read a message from the connection.
DONE, PROBLEM = 0, 1

# Seconds. Waking a process that sleeps costs many times what the rest of a signal does, 60 µs against 6, so either side
# first asks again and again, each time giving way to whoever else wants the core. Longer than this the wait is for
# computation, and asking would take the core from it for nothing.
_ASK_S = 500e-6


def make_signal() -> int:
    """A counter in the kernel by which one process tells another that a word has changed; its descriptor."""
    return os.eventfd(0, os.EFD_NONBLOCK)


def send_signal(descriptor: int) -> None:
    """Tells whoever waits for a signal to look again."""
    os.eventfd_write(descriptor, 1)


def wait_for_word(is_there: Callable[[], bool], descriptor: int, sleep: Callable[[], bool]) -> bool:
    """Waits for another process to change a word: asks for a short while, then sleeps.

    Args:
        is_there: Whether the word is as awaited. It may be asked once more after an interrupt: the word stays.
        descriptor: The signal that follows a change.
        sleep: Sleeps until there is a signal; False if it will not come.

    Returns:
        Whether it is there.
    """
    end = time.perf_counter() + _ASK_S
    while not is_there():
        if time.perf_counter() < end:
            os.sched_yield()
        else:
            _take_signals(descriptor)
            if not is_there() and not sleep():
                return is_there()
    # Also a barrier: what was written before the signal is seen after it.
    _take_signals(descriptor)
    return True


def _take_signals(descriptor: int) -> None:
    try:  # noqa: SIM105 - contextlib.suppress takes as long as the rest
        os.eventfd_read(descriptor)
    except BlockingIOError:
        pass


class SharedMemory:
    """An anonymous file in memory, which exists as long as some process has it open.

    Attributes:
        fd: Its descriptor, which child processes may inherit.
    """

    def __init__(self) -> None:
        self.fd = os.memfd_create("genesis_vec")
        weakref.finalize(self, os.close, self.fd)

    def resize(self, layout: Layout) -> None:
        """Makes it as large as a layout asks."""
        os.ftruncate(self.fd, layout.size(layout.num_envs))
