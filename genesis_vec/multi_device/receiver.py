"""The caller's end of the transport: actions into the workers' buffers, and one fresh batch out of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from genesis_vec.batches import as_actions
from genesis_vec.multi_device.buffers import Kind
from genesis_vec.multi_device.transport import Block, Layout, Leaf, Path, unflatten
from genesis_vec.multi_device.worker import WorkerPlan


class Receiver:
    """Hands out actions and collects results.

    Args:
        memory_fd: The shared block's file.
        layout: Its layout.
        plans: The workers' plans, in order.
        device: Where batches go.

    Attributes:
        block: The shared block.
    """

    def __init__(self, memory_fd: int, layout: Layout, plans: Sequence[WorkerPlan], device: torch.device) -> None:
        self.block = Block(memory_fd, layout)
        self._layout = layout
        self._plans = plans
        self._device = device
        self._action_shape = (layout.num_envs, *layout.actions.shape)
        self._action_dtype = layout.actions.dtype
        self._opened: dict[int, Any] = {}  # buffers of workers on GPUs, by number, where this process could open them
        self._copied: torch.cuda.Event | None = None
        if device.type == "cuda":
            from genesis_vec.multi_device.cuda_ipc import pin_memory

            # So that copies between the block and the device need not wait for the host.
            pin_memory(self.block.memory)
            self._copied = torch.cuda.Event()

    def buffer_kind(self, index: int) -> Kind:
        """Which kind of buffers to try first with a worker."""
        on_gpus = self._plans[index].device.index is not None and self._device.type == "cuda"
        return "cuda_ipc" if on_gpus else "host"

    def open(self, index: int, exported: Any) -> bool:
        """Opens a worker's buffers, None for its part of the block; False if this process cannot."""
        self.forget(index)
        if exported is None:
            return True
        from genesis_vec.multi_device.cuda_ipc import open_buffers

        rows, device = self._plans[index].rows, self._plans[index].device
        opened = open_buffers(exported, self._layout, rows.stop - rows.start, device)
        if opened is not None:
            self._opened[index] = opened
        return opened is not None

    def forget(self, index: int) -> None:
        """Lets go of the buffers of a worker that is gone."""
        opened = self._opened.pop(index, None)
        if opened is not None:
            opened.forget()

    def rows(self, index: int, path: Path) -> torch.Tensor:
        """A worker's own tensor of a leaf (its rows, *shape), as it lies in its buffers."""
        if index in self._opened:
            return self._opened[index].leaves[path]
        return self.block.leaves[path][self._plans[index].rows]

    def put_actions(self, actions: Any) -> None:
        """Copies actions to where the workers read them.

        Raises:
            ValueError: If they have another shape, or are no numbers.
        """
        source = actions.device if isinstance(actions, torch.Tensor) else torch.device("cpu")
        tensor = as_actions(actions, self._action_shape, source, self._action_dtype)
        if self._copied is not None:
            # The batch before may still be on its way out of the block that the workers are about to write to.
            self._copied.synchronize()
        if len(self._opened) < len(self._plans):
            self.block.actions.copy_(tensor)
        for index, buffers in self._opened.items():
            buffers.put_actions(tensor[self._plans[index].rows])

    def take(self, leaves: Sequence[Leaf]) -> dict[str, Any]:
        """A fresh batch: copies of those leaves, on the batch's device, nested by their paths."""
        for buffers in self._opened.values():
            buffers.before_reading()
        tensors = [self._take(leaf) for leaf in leaves]
        for buffers in self._opened.values():
            buffers.after_reading()
        if self._copied is not None:
            self._copied.record()
        return unflatten((leaf.path for leaf in leaves), tensors)

    def _take(self, leaf: Leaf) -> torch.Tensor:
        if not self._opened:
            whole = self.block.leaves[leaf.path]
            return whole.clone() if self._device.type == "cpu" else whole.to(self._device, non_blocking=True)
        batch = torch.empty(self._layout.num_envs, *leaf.shape, dtype=leaf.dtype, device=self._device)
        for index, plan in enumerate(self._plans):
            batch[plan.rows].copy_(self.rows(index, leaf.path), non_blocking=True)
        return batch
