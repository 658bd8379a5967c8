"""Observations and rewards scaled by running statistics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import VectorEnv

from genesis_vec.batches import map_observation
from genesis_vec.wrappers.base import StepResult, TorchObservationWrapper, TorchVectorWrapper
from genesis_vec.wrappers.episodes import EpisodeBoundaries


class RunningMoments:
    """Mean and (population) variance of all rows so far: ``mean``, ``var`` (*shape) and ``count`` (), all float64.

    float64, as float32 cannot count past 2**24 rows (4096 environments, 4096 steps) and loses a small variance around a
    large mean. They start as Gymnasium's ``RunningMeanStd``: mean 0 and variance 1 with the weight of 1e-4 rows.
    """

    def __init__(self, shape: tuple[int, ...], device: torch.device) -> None:
        self.mean = torch.zeros(shape, dtype=torch.float64, device=device)
        self.var = torch.ones(shape, dtype=torch.float64, device=device)
        self.count = torch.full((), 1e-4, dtype=torch.float64, device=device)

    def update(self, values: torch.Tensor, rows: torch.Tensor | None) -> None:
        """Add the ``rows``, bool (N,) or None for all, of ``values``, (N, *shape); others may hold anything, even NaN.

        The pairwise formula of Chan, Golub and LeVeque, "Algorithms for computing the sample variance", The American
        Statistician 37(3), 1983: with d the difference of the means of A and B, and M2 = n var,
        mean = mean_A + d n_B / n and M2 = M2_A + M2_B + d^2 n_A n_B / n.
        """
        added = values.to(torch.float64)
        weights = added.new_ones(len(added)) if rows is None else rows.to(torch.float64)
        weights = weights.reshape(-1, *[1] * (added.dim() - 1))
        if rows is not None:
            added = added.masked_fill(weights == 0, 0.0)  # as 0 times NaN is NaN
        added_count = weights.sum()
        # The clamp makes 0 / 1 of 0 / 0 where there are no rows; added_count = 0 then cancels all that comes of it.
        added_mean = (weights * added).sum(dim=0) / added_count.clamp(min=1.0)
        added_m2 = (weights * (added - added_mean).square()).sum(dim=0)
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
