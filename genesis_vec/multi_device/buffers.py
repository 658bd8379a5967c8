"""Where a worker reads its actions and writes its results, and how either side knows that the other is done.

On the host that is the shared block. On a GPU it is memory of the worker's device that the caller's process opens
(CUDA IPC), so that a batch moves from device to device, and neither side waits for more than the other's event.
"""

from __future__ import annotations

from typing import Any, Literal, Protocol

import torch

from genesis_vec.multi_device.transport import Block, Layout, Path


class Buffers(Protocol):
    """What a worker reads and writes, wherever it is.

    Attributes:
        actions: (rows, *action shape), which the worker reads.
        leaves: Tensors (rows, *shape) by path, which the worker writes.
    """

    actions: torch.Tensor
    leaves: dict[Path, torch.Tensor]

    def before_reading(self) -> None:
        """Makes sure that the caller's writing is done, and its reading of the step before."""

    def after_writing(self) -> None:
        """Makes sure that what was written is there when the caller, once told, reads it."""


Kind = Literal["host", "cuda_ipc"]


class HostBuffers:
    """A worker's part of the shared block."""

    def __init__(self, block: Block, rows: slice, device: torch.device) -> None:
        self.actions = block.actions[rows]
        self.leaves = {path: leaf[rows] for path, leaf in block.leaves.items()}
        self._device = device

    def before_reading(self) -> None:
        """Nothing: the caller has written when it says so."""

    def after_writing(self) -> None:
        """Waits for a GPU's copies."""
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()


def make_buffers(kind: Kind, block: Block, layout: Layout, rows: slice, device: torch.device) -> tuple[Buffers, Any]:
    """A worker's buffers, and what the caller needs to open them: None for its part of the block.

    Args:
        kind: Which are wanted.
        block: The shared block.
        layout: Its layout.
        rows: The worker's rows.
        device: Where the worker's environments have their tensors.
    """
    if kind == "host" or device.type != "cuda":
        return HostBuffers(block, rows, device), None
    from genesis_vec.multi_device.cuda_ipc import CudaBuffers

    buffers = CudaBuffers(layout, rows.stop - rows.start, device)
    return buffers, buffers.export()
