"""An environment without an engine, for tests of what ranks do with one another: ``tests.training.toy:Toy-v0``."""

from __future__ import annotations

import os
import time
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from genesis_vec.streams import EnvStreams

LIMIT = 5


class ToyEnv(VectorEnv[Any, Any, Any]):
    """The action should be near the target, which is drawn for each episode of five steps.

    Args:
        num_envs: Number of environments.
        device: Of no matter: the CPU.
        first_env_index: Global index of the first.
        sleep: Seconds that a step takes.
        failing_rank: The rank on which something fails.
        failure: What: "build" or "step".
    """

    def __init__(
        self,
        num_envs: int,
        device: str = "cpu",
        first_env_index: int = 0,
        sleep: float = 0.0,
        failing_rank: int = -1,
        failure: str = "build",
    ) -> None:
        self.num_envs = num_envs
        self.device = torch.device("cpu")
        self.max_episode_steps = LIMIT
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
        self.single_observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.single_action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._sleep = sleep
        self._failure = failure if int(os.environ.get("RANK", "0")) == failing_rank else None
        if self._failure == "build":
            raise RuntimeError("the toy cannot be built")
        self._streams = EnvStreams(num_envs, self.device, first_env_index)
        self._everyone = torch.ones(num_envs, dtype=torch.bool)
        self._steps = 0
        self._returns = torch.zeros(num_envs)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[torch.Tensor, dict]:
        self._streams.seed(seed or 0)
        self._begin()
        return self._target.clone(), {}

    def _begin(self) -> None:
        self._streams.begin_episode(self._everyone)
        self._target = self._streams.select(None).uniform(2, low=-1.0, high=1.0)
        self._steps = 0
        self._returns = torch.zeros(self.num_envs)

    def step(self, actions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, dict]:
        time.sleep(self._sleep)
        if self._failure == "step":
            raise RuntimeError("the toy cannot be stepped")
        reward = -(actions - self._target).square().sum(dim=1)
        self._returns = self._returns + reward
        self._steps += 1
        ended = self._everyone & (self._steps >= LIMIT)
        episode = {"r": self._returns * ended, "l": self._steps * ended, "t": torch.zeros(self.num_envs)}
        info = {"episode": episode, "_episode": ended, "final_obs": self._target.clone(), "final_info": {}}
        info["_final_obs"] = ended
        if self._steps >= LIMIT:
            self._begin()
        return self._target.clone(), reward, torch.zeros_like(ended), ended, info

    def state_dict(self) -> dict[str, Any]:
        return {
            "streams": self._streams.state_dict(), "target": self._target, "steps": self._steps,
            "returns": self._returns,
        }  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._streams.load_state_dict(state["streams"])
        self._target, self._steps, self._returns = state["target"], state["steps"], state["returns"]


gymnasium.register("Toy-v0", vector_entry_point="tests.training.toy:ToyEnv")
