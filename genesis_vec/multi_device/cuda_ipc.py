"""Buffers in a GPU's memory that two processes share; nearly all of the transport's calls to CUDA are here."""

from __future__ import annotations

import contextlib
import os
import pickle
import warnings
from pathlib import Path as FilePath
from typing import Any

import torch
from torch.multiprocessing.reductions import rebuild_cuda_tensor, reduce_tensor

from genesis_vec.devices import ProcessDevice
from genesis_vec.multi_device.transport import Layout

# Where the arguments of rebuild_cuda_tensor hold the device's number, and the name of a file in /dev/shm that counts
# references.
_DEVICE, _COUNTER = 6, 11


class CudaBuffers:
    """A worker's buffers on its device, as the worker holds them.

    Two events, each recorded by one side and waited for by the other's stream, keep a step in order without either
    host waiting for a device.

    Args:
        layout: What they hold.
        num_rows: The worker's number of rows.
        device: Its device.

    Attributes:
        actions: (rows, *action shape), which the worker reads.
        leaves: Tensors (rows, *shape) by path, which the worker writes.
    """

    def __init__(self, layout: Layout, num_rows: int, device: torch.device) -> None:
        # One allocation, hence one handle to open.
        self._memory = torch.zeros(layout.size(num_rows), dtype=torch.uint8, device=device)
        self.leaves = layout.views(self._memory, num_rows)
        self.actions = self.leaves.pop(())
        self._written = torch.cuda.Event(interprocess=True)
        self._consumed = torch.cuda.Event(interprocess=True)
        self._written.record()
        self._consumed.record()

    def before_reading(self) -> None:
        """Orders what follows behind the caller's actions, and behind its reading of the step before."""
        torch.cuda.current_stream().wait_event(self._consumed)

    def after_writing(self) -> None:
        """Lets the caller's stream go on when everything so far is done."""
        self._written.record()

    def export(self) -> dict[str, Any] | str:
        """What another process needs to open these buffers, or why they cannot be shared."""
        settings = ",".join(os.environ.get(name, "") for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"))
        if "expandable_segments:true" in settings.replace(" ", "").lower():
            return "the allocator's expandable_segments cannot be opened by another process"
        try:
            return {
                "memory": pickle.dumps(reduce_tensor(self._memory)[1]),
                "written": self._written.ipc_handle(),
                "consumed": self._consumed.ipc_handle(),
            }
        except RuntimeError as error:
            return str(error)


class OpenedBuffers:
    """A worker's buffers as the caller's process sees them; see :class:`CudaBuffers`.

    Args:
        exported: What the worker exported.
        layout: What they hold.
        num_rows: The worker's number of rows.
        device: The worker's device, as this process numbers it.

    Raises:
        RuntimeError: If this process cannot open them.
    """

    def __init__(self, exported: dict[str, Any], layout: Layout, num_rows: int, device: ProcessDevice) -> None:
        arguments = list(pickle.loads(exported["memory"]))
        # The worker sees one device and calls it 0.
        assert device.index is not None
        arguments[_DEVICE] = device.index
        self._counter = arguments[_COUNTER]
        self.device = torch.device("cuda", device.index)
        self.leaves = layout.views(rebuild_cuda_tensor(*arguments), num_rows)
        self.actions = self.leaves.pop(())
        self._written = torch.cuda.Event.from_ipc_handle(self.device, exported["written"])
        self._consumed = torch.cuda.Event.from_ipc_handle(self.device, exported["consumed"])

    def put_actions(self, actions: torch.Tensor) -> None:
        """Copies the worker's actions to its device."""
        self.actions.copy_(actions, non_blocking=True)
        self.after_reading()

    def before_reading(self) -> None:
        """Orders what follows behind the worker's writing."""
        torch.cuda.current_stream(self.device).wait_event(self._written)

    def after_reading(self) -> None:
        """Lets the worker's stream write again when everything so far is done."""
        self._consumed.record(torch.cuda.current_stream(self.device))

    def forget(self) -> None:
        """Removes what a worker that was killed could not remove itself."""
        with contextlib.suppress(OSError):
            FilePath("/dev/shm", bytes(self._counter).decode().lstrip("/")).unlink()


def open_buffers(
    exported: dict[str, Any] | str, layout: Layout, num_rows: int, device: ProcessDevice
) -> OpenedBuffers | None:
    """A worker's buffers, or None, with a warning that says why, if they cannot be shared."""
    reason = exported
    if isinstance(exported, dict):
        try:
            return OpenedBuffers(exported, layout, num_rows, device)
        except RuntimeError as error:
            reason = str(error)
    warnings.warn(f"results of {device.name} go through host memory, which is slower: {reason}", stacklevel=2)
    return None


def pin_memory(memory: torch.Tensor) -> None:
    """Locks host memory, so that copies between it and a GPU need not wait for the host."""
    cudart: Any = torch.cuda.cudart()
    cudart.cudaHostRegister(memory.data_ptr(), memory.numel(), 0)
