"""Sums over the episodes that end in an iteration, kept on the device until the iteration is over."""

from __future__ import annotations

from typing import Any

import torch

from genesis_vec.training.distributed import World


class EpisodeSums:
    """Adds up return, length and the task's own metrics of episodes as they end."""

    def __init__(self) -> None:
        self._sums: dict[str, torch.Tensor] = {}

    def add(self, info: dict[str, Any]) -> None:
        """Adds the episodes that ended in the step that gave this info."""
        ended = info["_episode"]
        ends = {"count": ended, "mean_return": info["episode"]["r"], "mean_length": info["episode"]["l"]}
        ends.update({name: value.masked_fill(~ended, 0) for name, value in episode_metrics(info).items()})
        for name, value in ends.items():
            total = value.sum(dtype=torch.float64)
            self._sums[name] = self._sums[name] + total if name in self._sums else total

    def take_means(self, world: World) -> dict[str, float]:
        """The means over all learners' episodes since the last time, and begins anew.

        Returns:
            "episodes", their number, and unless it is 0 "mean_return", "mean_length" and the metrics.
        """
        totals = world.gather(torch.stack(list(self._sums.values()))).sum(dim=0)
        values = dict(zip(self._sums, totals.tolist(), strict=True))
        self._sums = {}
        count = values.pop("count")
        return {"episodes": count, **({name: value / count for name, value in values.items()} if count else {})}


def episode_metrics(info: dict[str, Any]) -> dict[str, torch.Tensor]:
    """The task's own metrics at the end of episodes: those entries that are (num_envs,) tensors.

    They are looked for in ``final_info``, and where the mode has none in the info itself.
    """
    return {
        name: value
        for name, value in info.get("final_info", info).items()
        if isinstance(value, torch.Tensor) and value.dim() == 1 and not name.startswith("_")
    }
