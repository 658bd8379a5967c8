"""Environments for TorchRL, whose losses, collectors and transforms take one batched environment of tensordicts."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv

from genesis_vec.adapters.common import check_env
from genesis_vec.batches import map_observation, ordinary_tensors, rows_like
from genesis_vec.extras import library
from genesis_vec.task_check import torch_dtype

with library("torchrl", "torchrl", "tensordict"):
    from torchrl.data import Binary, Bounded, Composite, TensorSpec, Unbounded
    from torchrl.envs import EnvBase

# TorchRL brings it. On its own, and afterwards, so that where both are missing TorchRL is named.
from tensordict import TensorDict, TensorDictBase

# What a tensordict of TorchRL has under these keys is not an observation.
_RESERVED_KEYS = {"action", "reward", "done", "terminated", "truncated", "next", "_reset", "_step"}


class TorchRLEnv(EnvBase):
    """A vector environment, in one process or several, as TorchRL's rollouts, collectors and transforms take it.

    Its batch size is [num_envs]. Observations in a Box are under "observation", those in a Dict under their own keys,
    each (num_envs, …). "action" has the bounds of the environment's, which also clips. "reward" float32 and "done",
    "terminated" and "truncated" bool are (num_envs, 1); a row is never both terminated and truncated.

    TorchRL itself asks for the reset of the rows that are done, after it has stored the step. So "next" always holds
    what the step led to, at a time limit the final observation, whose value GAE then bootstraps with.

    The returns and lengths of episodes are what TorchRL's transforms count::

        env = TransformedEnv(TorchRLEnv(env), Compose(RewardSum(), StepCounter()))
        data = env.rollout(100, break_when_any_done=False)
        ends = data["next", "done"]
        returns, lengths = data["next", "episode_reward"][ends], data["next", "step_count"][ends]

    A Collector resets the environment when it is made, and closes it when it has all its frames: call ``set_seed``
    before, and evaluate with another environment.

    Args:
        env: An environment in DISABLED mode.

    Attributes:
        env: The environment.
        last_info: The info of its last step or reset: terms of the reward, metrics, faults.

    Raises:
        TypeError: If it is not of the package's contract, or its observations are neither a Box nor a Dict of Boxes.
        ValueError: If it is in another mode, or a part of its observations has the name of something else in TorchRL.
    """

    def __init__(self, env: VectorEnv) -> None:
        device = check_env(
            env,
            "TorchRLEnv",
            AutoresetMode.DISABLED,
            "TorchRL resets ended rows itself, and would reset them a second time or take a reset for a step",
        )
        boxes = _observation_boxes(env.single_observation_space)
        super().__init__(device=device, batch_size=torch.Size([env.num_envs]))
        self.env = env
        self.last_info: dict[str, Any] = {}
        self.is_closed = False
        self._has_dict = isinstance(env.single_observation_space, spaces.Dict)
        self._observations: Any = None  # the environment's last ones
        self._seed: int | None = None

        rows, flags = self.batch_size, torch.Size([env.num_envs, 1])
        self.observation_spec = Composite(
            {key: _spec(box, env.num_envs, device) for key, box in boxes.items()}, shape=rows, device=device
        )
        self.action_spec = _spec(env.single_action_space, env.num_envs, device)
        self.reward_spec = Unbounded(shape=flags, device=device, dtype=torch.float32)
        self.done_spec = Composite(
            {key: Binary(shape=flags, device=device, dtype=torch.bool) for key in ("done", "terminated", "truncated")},
            shape=rows,
            device=device,
        )

    @ordinary_tensors
    def _reset(self, tensordict: TensorDictBase | None = None, *, seed: int | None = None) -> TensorDictBase:
        mask = None if tensordict is None else tensordict.get("_reset", None)
        if mask is None:
            seed, self._seed = self._seed if seed is None else seed, None
            self._observations, self.last_info = self.env.reset(seed=seed)
        else:
            mask = mask.reshape(-1)
            if self._seed is not None:
                warnings.warn(
                    f"the seed {self._seed} waits for a reset of the whole batch, and this one is of some rows only: "
                    "call set_seed() before making a Collector, or its reset() afterwards",
                    stacklevel=2,
                )
            # Asking a GPU would make the host wait. TorchRL's own calls have a row in the mask, as it has looked.
            if mask.device.type != "cpu" or bool(mask.any()):
                self._observations, self.last_info = self.env.reset(seed=seed, options={"reset_mask": mask})
        return self._tensordict(self._observations)

    @ordinary_tensors
    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        held = _held_rows(tensordict)
        self._observations, reward, terminated, truncated, self.last_info = self.env.step(tensordict.get("action"))
        result = self._tensordict(self._observations)
        for key, value in (
            ("reward", reward.to(torch.float32, copy=True)),
            ("terminated", terminated.clone()),
            ("truncated", truncated.clone()),
            ("done", terminated | truncated),
        ):
            result.set(key, value.unsqueeze(-1))
        if held is not None:
            # Not every environment keeps the flags of a row that is stepped on after its end.
            for key, value in list(result.items()):
                kept = torch.zeros_like(value) if key == "reward" else tensordict.get(key)
                result.set(key, torch.where(rows_like(held, value), kept, value))
        return result

    def _set_seed(self, seed: int | None) -> None:
        self._seed = seed

    def close(self, *, raise_if_closed: bool = True) -> None:
        """Closes the environment; a second time does nothing."""
        super().close(raise_if_closed=raise_if_closed)
        self.env.close()

    def __del__(self) -> None:
        # TorchRL's would close an environment that its owner goes on with.
        pass

    def _tensordict(self, observations: Any) -> TensorDict:
        # Copies: a collector writes into the tensordict that it carries on, and an environment may into its tensors.
        copies = map_observation(torch.clone, observations)
        return TensorDict(
            copies if self._has_dict else {"observation": copies}, batch_size=self.batch_size, device=self.device
        )


def _held_rows(tensordict: TensorDictBase) -> torch.Tensor | None:
    """The rows, bool (num_envs,), that a step is to leave as they are; None for none.

    Raises:
        NotImplementedError: If one of them runs.
    """
    stepping = tensordict.get("_step", None)
    if stepping is None:
        return None
    held = ~stepping.reshape(-1)
    if bool((held & ~tensordict.get("done", torch.zeros_like(stepping)).reshape(-1)).any()):
        raise NotImplementedError('TorchRLEnv steps all running rows together: "_step" may hold ended ones only')
    return held


def _observation_boxes(space: spaces.Space[Any]) -> dict[str, spaces.Box]:
    """The boxes of one observation by their keys in a tensordict."""
    boxes = dict(space.spaces) if isinstance(space, spaces.Dict) else {"observation": space}
    if not all(isinstance(box, spaces.Box) for box in boxes.values()):
        raise TypeError(f"TorchRLEnv takes observations in a Box or in a Dict of Boxes, got {space}")
    if reserved := sorted(_RESERVED_KEYS & set(boxes)):
        raise ValueError(f"TorchRL keeps something else under {reserved}: rename these parts of the observations")
    return boxes  # type: ignore[return-value]


def _spec(box: Any, num_envs: int, device: torch.device) -> TensorSpec:
    """The spec of num_envs values in a Box; with bounds only if every one is finite."""
    shape, dtype = torch.Size([num_envs, *box.shape]), torch_dtype(box)
    if not box.is_bounded():
        return Unbounded(shape=shape, device=device, dtype=dtype)
    low, high = (torch.tensor(bound, device=device, dtype=dtype).expand(shape) for bound in (box.low, box.high))
    return Bounded(low=low, high=high, shape=shape, device=device, dtype=dtype)
