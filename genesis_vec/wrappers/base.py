"""What the wrappers share: the wrapped environment's device and mode, and final observations mapped like others."""

from __future__ import annotations

from typing import Any

import torch
from gymnasium import Space, spaces
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper
from gymnasium.vector.utils import batch_space

StepResult = tuple[Any, torch.Tensor, torch.Tensor, torch.Tensor, dict[str, Any]]


class TorchVectorWrapper(VectorWrapper[Any, Any, Any, Any, torch.Tensor]):
    """A wrapper around a vector environment whose tensors live on one device.

    Raises:
        TypeError: If the innermost environment has no ``device``, or ``env.metadata["autoreset_mode"]`` is not an
            ``AutoresetMode``.
    """

    def __init__(self, env: VectorEnv) -> None:
        super().__init__(env)
        name = type(self).__name__
        if not hasattr(env.unwrapped, "device"):
            raise TypeError(
                f"{name} needs an environment of torch tensors, with a `device`, and {env.unwrapped} has none; for "
                "NumPy environments use the wrappers of gymnasium.wrappers.vector."
            )
        mode = env.metadata.get("autoreset_mode")
        if not isinstance(mode, AutoresetMode):
            accepted = ", ".join(map(str, AutoresetMode))
            raise TypeError(f"{name}: set env.metadata['autoreset_mode'] to one of {accepted}; it is {mode!r}.")

    @property
    def device(self) -> torch.device:
        """Where the wrapped environment's tensors live."""
        return torch.device(self.env.unwrapped.device)  # pyright: ignore[reportAttributeAccessIssue]

    @property
    def autoreset_mode(self) -> AutoresetMode:
        """When the wrapped environment starts a new episode after one has ended."""
        return self.metadata["autoreset_mode"]

    def _reset_rows(self, options: dict[str, Any] | None) -> torch.Tensor:
        """The rows, bool (num_envs,), that a ``reset`` with these options starts anew."""
        mask = (options or {}).get("reset_mask")
        if mask is None:
            return torch.ones(self.num_envs, dtype=torch.bool, device=self.device)
        return torch.as_tensor(mask, dtype=torch.bool, device=self.device)


class TorchObservationWrapper(TorchVectorWrapper):
    """A wrapper that maps batches of observations, and ``info["final_obs"]`` in the same way.

    Gymnasium's ``VectorObservationWrapper`` leaves ``final_obs`` alone and therefore refuses SAME_STEP.
    """

    def observations(self, observations: Any) -> Any:
        """The mapped batch (num_envs, ...), a tensor or a dict of tensors; the argument stays untouched."""
        raise NotImplementedError

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset, and map the whole batch, whichever rows were reset."""
        observations, info = self.env.reset(seed=seed, options=options)
        return self._map(observations, info, self._reset_rows(options))

    def step(self, actions: Any) -> StepResult:
        """Step, and map the observations and, where there are any, the final observations."""
        observations, rewards, terminations, truncations, info = self.env.step(actions)
        observations, info = self._map(observations, info, None)
        return observations, rewards, terminations, truncations, info

    def _map(self, observations: Any, info: dict[str, Any], new_rows: torch.Tensor | None) -> tuple[Any, dict]:
        """The mapped observations and info; ``new_rows`` are those not returned before, None for all."""
        if "final_obs" in info:
            info = {**info, "final_obs": self.observations(info["final_obs"])}
        return self.observations(observations), info

    def _set_observation_space(self, single_space: Space) -> None:
        self.single_observation_space = single_space
        self.observation_space = batch_space(single_space, self.num_envs)

    def _require_boxes(self) -> Any:
        """The wrapped environment's space of one observation, if it is a Box or a Dict of Boxes; else a TypeError."""
        space = self.env.single_observation_space
        leaves = space.values() if isinstance(space, spaces.Dict) else [space]
        if not all(isinstance(leaf, spaces.Box) for leaf in leaves):
            raise TypeError(
                f"{type(self).__name__} takes observations in a Box or in a Dict of Boxes, got {space}; convert the "
                "other parts with TransformObservation first."
            )
        return space
