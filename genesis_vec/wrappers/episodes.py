"""Where episodes begin and end in each autoreset mode, for the wrappers that add something up over an episode."""

from __future__ import annotations

import torch
from gymnasium.vector import AutoresetMode


class EpisodeBoundaries:
    """Tells the steps of episodes from other steps, one bool per environment."""

    def __init__(self, mode: AutoresetMode, num_envs: int, device: torch.device) -> None:
        self._mode = mode
        # Rows whose episode is over and which have not begun another one.
        self._finished = torch.zeros(num_envs, dtype=torch.bool, device=device)

    def reset(self, rows: torch.Tensor) -> None:
        """Note that the ``rows``, bool (num_envs,), begin a new episode."""
        self._finished = self._finished & ~rows

    def step(self, done: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Follow a step in which ``done``, bool (num_envs,), were terminated or truncated.

        Returns:
            Two bool tensors (num_envs,): the rows for which this was a step of an episode (not the reset step of
            NEXT_STEP, nor a step after the end in DISABLED), and those of them whose episode it ended.
        """
        running = ~self._finished
        ended = done & running
        if self._mode is AutoresetMode.NEXT_STEP:
            self._finished = ended.clone()  # the caller hands `ended` out
        elif self._mode is AutoresetMode.DISABLED:
            self._finished = self._finished | ended
        return running, ended
