"""Return, length and duration of every episode, measured where the wrapper stands."""

from __future__ import annotations

import time
from typing import Any

import torch
from gymnasium.vector import VectorEnv

from genesis_vec.wrappers.base import StepResult, TorchVectorWrapper
from genesis_vec.wrappers.episodes import EpisodeBoundaries


class RecordEpisodeStatistics(TorchVectorWrapper):
    """Reports each episode in the step that ends it.

    Every step's info has ``info[stats_key]``, a dict of tensors (num_envs,) that are zero except where the bool tensor
    ``info["_" + stats_key]`` is true:

    - ``"r"``: float32, the sum of the rewards as this wrapper sees them (added up in float64);
    - ``"l"``: int64, the number of steps;
    - ``"t"``: float32, seconds on the host's clock since the episode began; a GPU may still be at work on the step.

    It replaces what the wrapped environment has under this key, as wrappers in between may have changed the rewards;
    in SAME_STEP ``info["final_info"]``, if there is one, has it too. An episode that a reset cuts short is not
    reported; in DISABLED one that is stepped on after its end is reported once.

    Gymnasium's queues of past episodes are missing: to fill them, every step would wait for the device. Add up on the
    device, ``total += info["episode"]["r"].sum()`` and ``count += info["_episode"].sum()``, and read once per rollout.

    Args:
        env: The environment to wrap.
        stats_key: The key of the entry in ``info``.
    """

    def __init__(self, env: VectorEnv, stats_key: str = "episode") -> None:
        super().__init__(env)
        self._stats_key = stats_key
        self._boundaries = EpisodeBoundaries(self.autoreset_mode, self.num_envs, self.device)
        self._returns = torch.zeros(self.num_envs, dtype=torch.float64, device=self.device)
        self._lengths = torch.zeros(self.num_envs, dtype=torch.int64, device=self.device)
        # float64: float32 resolves the clock of a machine that has been up for a week to 1/16 s.
        self._start_times = torch.zeros(self.num_envs, dtype=torch.float64, device=self.device)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset, and start the statistics of the reset rows anew."""
        observations, info = self.env.reset(seed=seed, options=options)
        rows = self._reset_rows(options)
        self._boundaries.reset(rows)
        self._restart(totals=rows, clocks=rows, now=time.perf_counter())
        return observations, info

    def step(self, actions: Any) -> StepResult:
        """Step, and put the statistics into a copy of the info."""
        observations, rewards, terminations, truncations, info = self.env.step(actions)
        now = time.perf_counter()
        running, ended = self._boundaries.step(terminations | truncations)
        self._returns = self._returns + rewards.masked_fill(~running, 0.0)
        self._lengths = self._lengths + running
        others = ~ended
        statistics = {
            "r": self._returns.masked_fill(others, 0.0).to(torch.float32),
            "l": self._lengths.masked_fill(others, 0),
            "t": (now - self._start_times).masked_fill(others, 0.0).to(torch.float32),
        }
        entry = {self._stats_key: statistics, f"_{self._stats_key}": ended}
        info = {**info, **entry}
        if "final_info" in info:
            info["final_info"] = {**info["final_info"], **entry}
        # The clock stands where no episode runs: NEXT_STEP's new episode begins with the step after the end.
        self._restart(totals=ended, clocks=ended | ~running, now=now)
        return observations, rewards, terminations, truncations, info

    def _restart(self, *, totals: torch.Tensor, clocks: torch.Tensor, now: float) -> None:
        # masked_fill, here and elsewhere: torch.where copies a Python number to the device and waits for the copy.
        self._returns = self._returns.masked_fill(totals, 0.0)
        self._lengths = self._lengths.masked_fill(totals, 0)
        self._start_times = self._start_times.masked_fill(clocks, now)
