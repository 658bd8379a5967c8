"""The shared block and the signals, without any environment."""

from __future__ import annotations

import os
import threading

import pytest
import torch

from genesis_vec.devices import ProcessDevice
from genesis_vec.multi_device.receiver import Receiver
from genesis_vec.multi_device.transport import (
    Block,
    Layout,
    Leaf,
    SharedMemory,
    describe,
    flatten,
    make_signal,
    send_signal,
    unflatten,
    wait_for_word,
)
from genesis_vec.multi_device.worker import WorkerPlan

LAYOUT = Layout(
    5,
    2,
    Leaf((), torch.float32, (2,)),
    (
        Leaf(("obs", "a"), torch.float32, (3,)),
        Leaf(("obs", "nothing"), torch.float32, (0,)),
        Leaf(("reward",), torch.float64, ()),
        Leaf(("done",), torch.bool, ()),
        Leaf(("picture",), torch.uint8, (2, 2, 3)),
        Leaf(("count",), torch.int64, ()),
    ),
)


def make_block() -> tuple[SharedMemory, Block]:
    memory = SharedMemory()
    memory.resize(LAYOUT)
    return memory, Block(memory.fd, LAYOUT)


def plans() -> list[WorkerPlan]:
    cpu = ProcessDevice("cpu", None, {})
    return [WorkerPlan(i, cpu, rows, b"", 1, False) for i, rows in enumerate([[(0, 2)], [(2, 3)]])]


def test_what_is_flattened_is_put_together_again():
    nested = {"obs": torch.zeros(2), "info": {"episode": {"r": torch.ones(2)}, "_episode": torch.ones(2)}}
    pairs = flatten(nested)
    assert [path for path, _ in pairs] == [("obs",), ("info", "episode", "r"), ("info", "_episode")]
    again = unflatten(*zip(*pairs, strict=True))
    assert again["info"]["episode"]["r"] is nested["info"]["episode"]["r"]
    assert list(again) == list(nested)


def test_what_is_no_tensor_is_refused_by_name():
    with pytest.raises(TypeError, match="info / note is str"):
        flatten({"info": {"note": "hello"}})
    with pytest.raises(ValueError, match=r"info / x has shape \(3,\); its first axis must be 2"):
        describe([(("info", "x"), torch.zeros(3))], 2)


def test_every_leaf_has_its_own_memory_which_every_process_sees():
    memory, block = make_block()
    other = Block(memory.fd, LAYOUT)
    for number, leaf in enumerate([block.actions, *block.leaves.values()]):
        leaf.fill_(number % 2 if leaf.dtype == torch.bool else number + 1)
    for number, leaf in enumerate([other.actions, *other.leaves.values()]):
        expected = bool(number % 2) if leaf.dtype == torch.bool else number + 1
        assert bool((leaf == expected).all())
    block.set_word(1, 2, 77)
    assert (other.word(1, 2), other.word(0, 2)) == (77, 0)
    assert bool((other.actions == 1).all())


def test_the_block_has_no_name_that_could_be_left_behind():
    before = set(os.listdir("/dev/shm"))
    memory, block = make_block()
    assert set(os.listdir("/dev/shm")) == before
    descriptor = memory.fd
    del memory
    with pytest.raises(OSError):
        os.fstat(descriptor)
    block.leaves[("count",)].fill_(3)  # what is mapped stays


def test_a_batch_is_a_copy_in_memory_of_its_own():
    memory, block = make_block()
    receiver = Receiver(memory.fd, LAYOUT, plans(), torch.device("cpu"))
    block.leaves[("reward",)].fill_(1.0)
    first = receiver.take(LAYOUT.leaves)
    block.leaves[("reward",)].fill_(2.0)
    second = receiver.take(LAYOUT.leaves)
    assert first["reward"].tolist() == [1.0] * 5
    assert second["reward"].tolist() == [2.0] * 5
    assert first["obs"]["nothing"].shape == (5, 0)
    storages = {leaf.untyped_storage().data_ptr() for leaf in (first["reward"], second["reward"], first["done"])}
    assert len(storages) == 3


class SeparateBuffers:
    """Stands in for a GPU's buffers of one worker: memory of its own, and a record of the order of calls."""

    def __init__(self, num_rows: int) -> None:
        self.leaves = LAYOUT.views(torch.zeros(LAYOUT.size(num_rows), dtype=torch.uint8), num_rows)
        self.actions = self.leaves.pop(())
        self.calls: list[str] = []

    def put_actions(self, actions: torch.Tensor) -> None:
        self.actions.copy_(actions)
        self.calls.append("put")

    def before_reading(self) -> None:
        self.calls.append("before")

    def after_reading(self) -> None:
        self.calls.append("after")

    def forget(self) -> None:
        self.calls.append("forget")


def test_batches_are_gathered_from_workers_with_memory_of_their_own():
    memory, block = make_block()
    receiver = Receiver(memory.fd, LAYOUT, plans(), torch.device("cpu"))
    buffers = SeparateBuffers(3)
    receiver._opened[1] = buffers
    receiver.put_actions(torch.arange(10.0).reshape(5, 2))
    assert buffers.actions.tolist() == [[4.0, 5.0], [6.0, 7.0], [8.0, 9.0]]
    assert block.actions[:2].tolist() == [[0.0, 1.0], [2.0, 3.0]]
    block.leaves[("count",)].fill_(1)
    buffers.leaves[("count",)].fill_(2)
    assert receiver.take(LAYOUT.leaves)["count"].tolist() == [1, 1, 2, 2, 2]
    assert receiver.rows(0, ("count",)).tolist() == [1, 1]
    assert buffers.calls == ["put", "before", "after"]
    receiver.forget(1)
    assert buffers.calls[-1] == "forget"
    assert receiver.take(LAYOUT.leaves)["count"].tolist() == [1] * 5


def test_waiting_sleeps_until_the_word_is_there():
    _, block = make_block()
    signal = make_signal()

    def tell() -> None:
        block.set_word(0, 0, 1)
        send_signal(signal)

    sleeps = []

    def sleep() -> bool:
        if not sleeps:
            send_signal(signal)  # one that means nothing
        else:
            tell()
        sleeps.append(1)
        return True

    assert wait_for_word(lambda: block.word(0, 0) == 1, signal, sleep)
    assert len(sleeps) == 2
    # All signals are taken, so that the next wait does not wake for them.
    with pytest.raises(BlockingIOError):
        os.eventfd_read(signal)
    assert not wait_for_word(lambda: False, signal, lambda: False)
    thread = threading.Timer(0.05, tell)
    block.set_word(0, 0, 0)
    thread.start()
    assert wait_for_word(lambda: block.word(0, 0) == 1, signal, lambda: thread.join() is None)
    os.close(signal)
