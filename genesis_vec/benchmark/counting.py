"""What code asks of torch, as counts: the same in every run on every machine, so that growth is never noise."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

# What moves data from one place to another, and computes nothing.
_COPIES = frozenset({"copy_", "clone", "_to_copy", "cat", "stack"})


@dataclasses.dataclass
class Counts:
    """What was counted.

    Attributes:
        names: The operations' names, in their order.
        allocations: Tensors with memory of their own among the results.
        allocated_bytes: Their bytes.
        copied_bytes: Bytes that operations which only copy have written.
    """

    names: list[str] = dataclasses.field(default_factory=list)
    allocations: int = 0
    allocated_bytes: int = 0
    copied_bytes: int = 0

    @property
    def operations(self) -> int:
        """Number of torch operations."""
        return len(self.names)


class CountOperations(TorchDispatchMode):
    """Counts the torch operations of a ``with`` block, including those of a backward pass.

    Attributes:
        counts: What was counted so far.
    """

    def __init__(self) -> None:
        super().__init__()
        self.counts = Counts()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        counts, name = self.counts, func.overloadpacket.__name__
        counts.names.append(name)
        given = {_memory(tensor) for tensor in tree_leaves((args, kwargs)) if isinstance(tensor, torch.Tensor)}
        for tensor in tree_leaves(result):
            if not isinstance(tensor, torch.Tensor):
                continue
            if _memory(tensor) not in given:
                counts.allocations += 1
                counts.allocated_bytes += tensor.nbytes
            if name in _COPIES:
                counts.copied_bytes += tensor.nbytes
        return result


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
