"""Observations and rewards scaled by running statistics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import VectorEnv

from genesis_vec.batches import map_observation
from genesis_vec.moments import RunningMoments
from genesis_vec.wrappers.base import StepResult, TorchObservationWrapper, TorchVectorWrapper
from genesis_vec.wrappers.episodes import EpisodeBoundaries


class _Normalizer(TorchVectorWrapper):
    """A wrapper with running statistics, a ``RunningMoments`` or a dict of them."""

    def __init__(self, env: VectorEnv, epsilon: float) -> None:
        super().__init__(env)
        # `not >` also refuses NaN. A negative epsilon would turn values of small variance into NaN without a word.
        if not epsilon > 0:
            raise ValueError(f"epsilon must be above 0, got {epsilon}: it keeps the division finite; 1e-8 is usual.")
        self.epsilon = epsilon
        self.update_running_mean = True
        self._statistics: Any = None

    def _scaled(self, moments: RunningMoments, deviation: torch.Tensor) -> torch.Tensor:
        return (deviation / (moments.var + self.epsilon).sqrt()).to(torch.float32)

    def state_dict(self) -> dict[str, Any]:
        """Copies of the statistics' ``mean``, ``var`` and ``count``, in a dict per key for dict observations.

        What belongs to episodes under way is not in it, so that it fits any number of environments.
        """
        return map_observation(RunningMoments.state_dict, self._statistics)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Copy the statistics of a ``state_dict``, tensors on any device or NumPy arrays.

        Raises:
            KeyError: If a key of the observation is missing.
            ValueError: If names or shapes do not match.
        """
        map_observation(RunningMoments.load_state_dict, self._statistics, state)


class NormalizeObservation(_Normalizer, TorchObservationWrapper):
    """Shifts and scales observations to mean 0 and variance 1 over all rows so far; dicts key by key.

    y = (x - mean) / sqrt(var + epsilon), computed in float64 and returned as float32, with statistics that include x.
    Each state that is visited counts once: after a reset the rows that were reset, after a step every row, and in
    SAME_STEP also the final observations of the episodes that ended, as these are nowhere else.

    Args:
        env: The environment to wrap; its observations are in a Box or in a Dict of Boxes.
        epsilon: Added to the variance.

    Attributes:
        update_running_mean: Set to False to keep the statistics as they are, for instance when evaluating.

    Raises:
        TypeError: If the observation space is of another kind.
        ValueError: If ``epsilon`` is not positive.
    """

    def __init__(self, env: VectorEnv, epsilon: float = 1e-8) -> None:
        super().__init__(env, epsilon)
        space = self._require_boxes()
        self._statistics = map_observation(lambda box: RunningMoments(box.shape, self.device), space)
        unbounded = map_observation(lambda box: spaces.Box(-np.inf, np.inf, box.shape, np.float32), space)
        self._set_observation_space(spaces.Dict(unbounded) if isinstance(unbounded, dict) else unbounded)

    def observations(self, observations: Any) -> Any:
        """Normalise a batch with the statistics as they are, without counting it."""
        return map_observation(lambda m, x: self._scaled(m, x - m.mean), self._statistics, observations)

    def _map(self, observations: Any, info: dict[str, Any], new_rows: torch.Tensor | None) -> tuple[Any, dict]:
        if self.update_running_mean:
            self._count(observations, new_rows)
            if "final_obs" in info:
                self._count(info["final_obs"], info["_final_obs"])
        return super()._map(observations, info, new_rows)

    def _count(self, observations: Any, rows: torch.Tensor | None) -> None:
        map_observation(lambda moments, values: moments.update(values, rows), self._statistics, observations)


class NormalizeReward(_Normalizer):
    """Divides rewards by the standard deviation of the discounted return so far.

    y_t = r_t / sqrt(var(G) + epsilon) with G_t = gamma G_{t-1} + r_t, which starts anew with every episode, after a
    termination as after a truncation. The variance is over all steps of all environments, this one included.
    (Gymnasium's wrapper drops G_{t-1} in a terminating step already, and outside SAME_STEP keeps it over a truncation.)

    While returns hardly differ, on the first steps above all, the divisor is small: put a ``ClipReward`` around.

    Args:
        env: The environment to wrap.
        gamma: The discount factor of the learner.
        epsilon: Added to the variance.

    Attributes:
        update_running_mean: Set to False to keep the statistics as they are, for instance when evaluating.

    Raises:
        ValueError: If ``gamma`` is outside [0, 1] or ``epsilon`` is not positive.
    """

    def __init__(self, env: VectorEnv, gamma: float = 0.99, epsilon: float = 1e-8) -> None:
        super().__init__(env, epsilon)
        if not 0 <= gamma <= 1:
            raise ValueError(f"gamma must be in [0, 1], got {gamma}; pass the discount factor of the learner.")
        self.gamma = gamma
        self._statistics = RunningMoments((), self.device)
        self._boundaries = EpisodeBoundaries(self.autoreset_mode, self.num_envs, self.device)
        self._returns = torch.zeros(self.num_envs, dtype=torch.float64, device=self.device)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset, and start the returns of the reset rows anew; the statistics stay."""
        observations, info = self.env.reset(seed=seed, options=options)
        rows = self._reset_rows(options)
        self._boundaries.reset(rows)
        self._returns = self._returns.masked_fill(rows, 0.0)
        return observations, info

    def step(self, actions: Any) -> StepResult:
        """Step, count the returns of the running episodes, and divide the rewards, float32 (num_envs,)."""
        observations, rewards, terminations, truncations, info = self.env.step(actions)
        running, ended = self._boundaries.step(terminations | truncations)
        returns = self._returns * self.gamma + rewards
        if self.update_running_mean:
            self._statistics.update(returns, running)
        self._returns = returns.masked_fill(ended | ~running, 0.0)
        return observations, self._scaled(self._statistics, rewards), terminations, truncations, info
