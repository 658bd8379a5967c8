"""Running mean and variance of batches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch


def batch_moments(
    values: torch.Tensor, rows: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Count (), mean (*shape) and sum of squared deviations (*shape) of a batch's rows, float64.

    Args:
        values: (N, *shape).
        rows: bool (N,), the rows that count, None for all; the others may hold anything, even NaN.
    """
    added = values.to(torch.float64)
    weights = added.new_ones(len(added)) if rows is None else rows.to(torch.float64)
    weights = weights.reshape(-1, *[1] * (added.dim() - 1))
    if rows is not None:
        added = added.masked_fill(weights == 0, 0.0)  # as 0 times NaN is NaN
    count = weights.sum()
    # The clamp makes 0 / 1 of 0 / 0 where there are no rows; a count of 0 then cancels all that comes of it.
    mean = (weights * added).sum(dim=0) / count.clamp(min=1.0)
    return count, mean, (weights * (added - mean).square()).sum(dim=0)


class RunningMoments:
    """Mean and (population) variance of all rows so far: ``mean``, ``var`` (*shape) and ``count`` (), all float64.

    float64, as float32 cannot count past 2**24 rows (4096 environments, 4096 steps) and loses a small variance around a
    large mean. They start as Gymnasium's ``RunningMeanStd``: mean 0 and variance 1 with the weight of 1e-4 rows.
    """

    def __init__(self, shape: tuple[int, ...], device: torch.device) -> None:
        self.mean = torch.zeros(shape, dtype=torch.float64, device=device)
        self.var = torch.ones(shape, dtype=torch.float64, device=device)
        self.count = torch.full((), 1e-4, dtype=torch.float64, device=device)

    def update(self, values: torch.Tensor, rows: torch.Tensor | None = None) -> None:
        """Adds rows of a batch; see :func:`batch_moments`."""
        self.merge(*batch_moments(values, rows))

    def merge(self, added_count: torch.Tensor, added_mean: torch.Tensor, added_m2: torch.Tensor) -> None:
        """Adds rows of which count, mean and sum of squared deviations are known, as :func:`batch_moments` gives them.

        The pairwise formula of Chan, Golub and LeVeque, "Algorithms for computing the sample variance", The American
        Statistician 37(3), 1983: with d the difference of the means of A and B, and M2 = n var,
        mean = mean_A + d n_B / n and M2 = M2_A + M2_B + d^2 n_A n_B / n.
        """
        count = self.count + added_count
        difference = added_mean - self.mean
        m2 = self.var * self.count + added_m2 + difference.square() * (self.count * added_count / count)
        # New tensors: written in place, those of a step under torch.inference_mode would fail the first step outside.
        self.mean = self.mean + difference * (added_count / count)
        self.var = m2 / count
        self.count = count

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Copies of ``mean``, ``var`` and ``count``."""
        return {name: getattr(self, name).clone() for name in ("mean", "var", "count")}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Copy the values of a ``state_dict``, or raise a ValueError if names or shapes differ from the own."""
        own = {name: tuple(value.shape) for name, value in self.state_dict().items()}
        given = {name: tuple(np.shape(value)) for name, value in state.items()}
        if given != own:
            raise ValueError(
                f"cannot load statistics of the shapes {given} into {own}; take them from the same wrapper around an "
                "environment with the same observation space."
            )
        for name, value in state.items():
            setattr(self, name, torch.as_tensor(value, dtype=torch.float64, device=self.mean.device).clone())
