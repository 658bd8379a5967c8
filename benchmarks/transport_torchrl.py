"""TorchRL's ParallelEnv as a contender of the transport benchmark; needs the extra "torchrl"."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase  # pyright: ignore[reportMissingImports]
from torchrl.data import Binary, Bounded, Composite, Unbounded  # pyright: ignore[reportMissingImports]
from torchrl.envs import EnvBase, ParallelEnv  # pyright: ignore[reportMissingImports]
from transport_contenders import ACTION_SIZE, OBSERVATION_SIZE, WORKERS, Batch, FreeEnv


class FreeTorchRLEnv(EnvBase):
    """:class:`FreeEnv` as a batched environment of TorchRL's."""

    def __init__(self, num_envs: int, first_env_index: int) -> None:
        super().__init__(device=torch.device("cpu"), batch_size=torch.Size([num_envs]))
        self._env = FreeEnv(num_envs, first_env_index=first_env_index)
        self.observation_spec = Composite(
            observation=Unbounded(torch.Size([num_envs, OBSERVATION_SIZE])), shape=(num_envs,)
        )
        self.action_spec = Bounded(-1.0, 1.0, torch.Size([num_envs, ACTION_SIZE]))
        self.reward_spec = Unbounded(torch.Size([num_envs, 1]))
        flag = Binary(shape=torch.Size([num_envs, 1]), dtype=torch.bool)
        self.done_spec = Composite(done=flag, terminated=flag.clone(), truncated=flag.clone(), shape=(num_envs,))
        _, _, terminated, truncated, _ = self._env.step(torch.zeros(num_envs, ACTION_SIZE))
        self._flags = {
            "terminated": terminated[:, None],
            "truncated": truncated[:, None],
            "done": (terminated | truncated)[:, None],
        }
        self._none = torch.zeros(num_envs, 1, dtype=torch.bool)

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        obs, _ = self._env.reset()
        flags = dict.fromkeys(self._flags, self._none)
        return TensorDict({"observation": obs, **flags}, batch_size=self.batch_size)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        obs, reward, _, _, _ = self._env.step(tensordict.get("action"))
        return TensorDict({"observation": obs, "reward": reward[:, None], **self._flags}, batch_size=self.batch_size)

    def _set_seed(self, seed: int | None) -> None:
        pass


class TorchRL:
    """Two batched workers; each of them has half of the rows."""

    def __init__(self, num_envs: int) -> None:
        size = num_envs // WORKERS
        self._env = ParallelEnv(
            WORKERS,
            [partial(FreeTorchRLEnv, size, index * size) for index in range(WORKERS)],
            num_threads=1,
            num_sub_threads=1,
            mp_start_method="spawn",
        )
        self._batch_size = (WORKERS, size)
        self._env.reset()
        self.close = self._env.close

    def step(self, actions: torch.Tensor) -> TensorDictBase:
        return self._env.step(
            TensorDict({"action": actions.view(*self._batch_size, ACTION_SIZE)}, batch_size=self._batch_size)
        ).get("next")

    def rows(self, result: TensorDictBase) -> Batch:
        obs, *others = (result.get(name) for name in ("observation", "reward", "terminated", "truncated"))
        return obs.flatten(0, 1), *(part.flatten() for part in others)
