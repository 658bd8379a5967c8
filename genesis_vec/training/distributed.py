"""What a learner asks of the other learners. World size 1 is not another code path: its sums have one term."""

from __future__ import annotations

import dataclasses

import torch


@dataclasses.dataclass(frozen=True)
class World:
    """The learners of a run, and this one's place among them.

    Attributes:
        rank: This learner's number.
        size: Number of learners.
    """

    rank: int = 0
    size: int = 1

    def __post_init__(self) -> None:
        if (self.rank, self.size) != (0, 1):
            raise NotImplementedError(f"rank {self.rank} of {self.size}: several learners are not supported yet")

    def gather(self, value: torch.Tensor) -> torch.Tensor:
        """The tensors of all learners, stacked in the order of ranks: (size, *shape)."""
        return value[None]
