"""Wrappers without a state: fixed maps of observations, rewards and actions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from gymnasium import Space, spaces
from gymnasium.spaces.utils import flatten_space
from gymnasium.vector import VectorActionWrapper, VectorEnv, VectorRewardWrapper
from gymnasium.vector.utils import batch_space

from genesis_vec.wrappers.base import TorchObservationWrapper, TorchVectorWrapper


class TransformObservation(TorchObservationWrapper):
    """Applies a function to every batch of observations and of final observations.

    Args:
        env: The environment to wrap.
        func: Maps a batch (num_envs, ...), a tensor or a dict of tensors, to another such, row by row. It must not
            write into its argument, and is called twice per step in SAME_STEP.
        single_observation_space: Space of one row of the result; None if ``func`` keeps the space.
        observation_space: Space of the whole result; None to derive it. Keyword-only as Gymnasium's order differs.

    Raises:
        ValueError: If ``observation_space`` is not the batch of ``single_observation_space``.
    """

    def __init__(
        self,
        env: VectorEnv,
        func: Callable[[Any], Any],
        *,
        single_observation_space: Space | None = None,
        observation_space: Space | None = None,
    ) -> None:
        super().__init__(env)
        self.func = func
        if single_observation_space is not None:
            self._set_observation_space(single_observation_space)
        if observation_space is not None and observation_space != self.observation_space:
            raise ValueError(
                f"got observation_space={observation_space}, which is not the batch {self.observation_space} of "
                f"{self.single_observation_space}; pass single_observation_space alone to have it derived."
            )

    def observations(self, observations: Any) -> Any:
        """The result of ``func``."""
        return self.func(observations)


class FlattenObservation(TorchObservationWrapper):
    """Turns observations of any shape, or dicts of them in the order of the space's keys, into float32 (num_envs, d).

    Raises:
        TypeError: If the observation space is neither a Box nor a Dict of Boxes.
    """

    def __init__(self, env: VectorEnv) -> None:
        super().__init__(env)
        self._inner_space = self._require_boxes()
        flat: Any = flatten_space(self._inner_space)
        low, high = flat.low.astype(np.float32), flat.high.astype(np.float32)
        self._set_observation_space(spaces.Box(low, high, dtype=np.float32))

    def observations(self, observations: Any) -> torch.Tensor:
        """The flat batch."""
        space = self._inner_space
        leaves = [observations[key] for key in space] if isinstance(space, spaces.Dict) else [observations]
        return torch.cat([leaf.reshape(self.num_envs, -1).to(torch.float32) for leaf in leaves], dim=1)


class ChannelsFirst(TorchObservationWrapper):
    """Turns pictures (num_envs, height, width, channels) into (num_envs, channels, height, width), which networks take.

    Raises:
        TypeError: If observations are no pictures.
    """

    def __init__(self, env: VectorEnv) -> None:
        super().__init__(env)
        space = env.single_observation_space
        if not isinstance(space, spaces.Box) or len(space.shape) != 3:
            raise TypeError(f"ChannelsFirst takes observations in a Box (height, width, channels), got {space}")
        low, high = (np.moveaxis(bound, -1, 0) for bound in (space.low, space.high))
        self._set_observation_space(spaces.Box(low, high, dtype=space.dtype.type))

    def observations(self, observations: torch.Tensor) -> torch.Tensor:
        """The pictures, contiguous and new."""
        return observations.permute(0, 3, 1, 2).clone(memory_format=torch.contiguous_format)


class ClipReward(TorchVectorWrapper, VectorRewardWrapper[Any, Any, torch.Tensor]):
    """Clips rewards to [min_reward, max_reward]; None for no bound on that side.

    Raises:
        ValueError: If there is no bound, or the lower is above the upper.
    """

    def __init__(self, env: VectorEnv, min_reward: float | None = None, max_reward: float | None = None) -> None:
        super().__init__(env)
        bounds = [bound for bound in (min_reward, max_reward) if bound is not None]
        if not bounds or not bounds[0] <= bounds[-1]:
            raise ValueError(
                f"got min_reward={min_reward} and max_reward={max_reward}; give at least one of them, and a min_reward "
                "that is not above max_reward."
            )
        self._bounds = (min_reward, max_reward)

    def rewards(self, rewards: torch.Tensor) -> torch.Tensor:
        """The clipped rewards (num_envs,), a new tensor; NaN stays NaN."""
        return rewards.clamp(*self._bounds)


class _BoxActionWrapper(TorchVectorWrapper, VectorActionWrapper[Any, Any, Any, torch.Tensor]):
    """A map of actions, tensors on any device or NumPy arrays, to tensors on the environment's device."""

    def __init__(self, env: VectorEnv) -> None:
        super().__init__(env)
        space = env.single_action_space
        if not isinstance(space, spaces.Box) or not np.issubdtype(space.dtype, np.floating):
            raise TypeError(f"{type(self).__name__} takes actions in a Box of floats, got {space}; leave it out.")
        self._inner_space = space
        self._low, self._high = self._bounds(space)

    def _bounds(self, box: spaces.Box) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.tensor(box.low, device=self.device), torch.tensor(box.high, device=self.device)

    def _set_action_space(self, low: np.ndarray | float, high: np.ndarray | float) -> spaces.Box:
        inner = self._inner_space
        space = spaces.Box(low, high, inner.shape, inner.dtype.type)
        self.single_action_space = space
        self.action_space = batch_space(space, self.num_envs)
        return space

    def _to_tensor(self, actions: Any) -> torch.Tensor:
        return torch.as_tensor(actions, dtype=self._low.dtype, device=self.device)


class ClipAction(_BoxActionWrapper):
    """Clips actions to the environment's bounds, and shows an action space without bounds.

    Infinite values become the bound; NaN passes through, for the environment to deal with.

    Raises:
        TypeError: If the action space is not a Box of floats.
    """

    def __init__(self, env: VectorEnv) -> None:
        super().__init__(env)
        self._set_action_space(-np.inf, np.inf)

    def actions(self, actions: Any) -> torch.Tensor:
        """The clipped actions (num_envs, *shape), a new tensor on ``device``."""
        return torch.clamp(self._to_tensor(actions), self._low, self._high)


class RescaleAction(_BoxActionWrapper):
    """Maps actions in [min_action, max_action] to the environment's bounds by an affine function.

    What lies outside is continued in a straight line, for the environment or a ``ClipAction`` below to clip.

    Args:
        env: The environment to wrap; its actions are in a Box of floats with finite bounds.
        min_action: The action that becomes the lower bound, a number or an array of the shape of one action.
        max_action: The same for the upper bound.

    Raises:
        TypeError: If the action space is not a Box of floats.
        ValueError: If the environment's bounds are not finite, or ``min_action`` and ``max_action`` are not finite, not
            of a fitting shape, or not one below the other.
    """

    def __init__(self, env: VectorEnv, min_action: float | np.ndarray, max_action: float | np.ndarray) -> None:
        super().__init__(env)
        inner = self._inner_space
        if not inner.is_bounded():
            raise ValueError(f"RescaleAction needs finite action bounds, got {inner}; give the environment some.")
        for name, value in (("min_action", min_action), ("max_action", max_action)):
            if np.shape(value) not in ((), inner.shape) or not np.isfinite(value).all():
                raise ValueError(f"{name} must be finite, and a number or of shape {inner.shape}; got {value}.")
        low, high = (np.full(inner.shape, value, inner.dtype) for value in (min_action, max_action))
        if not (low < high).all():
            raise ValueError(f"min_action must be below max_action; got {min_action} and {max_action}.")
        self._min_action, self._max_action = self._bounds(self._set_action_space(low, high))

    def actions(self, actions: Any) -> torch.Tensor:
        """The rescaled actions (num_envs, *shape), a new tensor on ``device``."""
        weight = (self._to_tensor(actions) - self._min_action) / (self._max_action - self._min_action)
        # lerp meets both bounds exactly, gain * actions + offset may not.
        return torch.lerp(self._low, self._high, weight)
