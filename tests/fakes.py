"""Small torch vector environments with known answers, independent of Genesis and of the package's own machinery.

They implement the contract a second time, plainly and one environment after the other, so that what the package's own
code does can be compared with something that is easy to check by reading.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space


class CounterEnv(VectorEnv):
    """Observation row i is [env index, episode number, step within the episode]; reward is the step number.

    Args:
        num_envs: Number of environments.
        limit: Time limit, for all or one per env; an episode is truncated at that step.
        terminate_at: Step at which an episode terminates, for all or one per env; None for never. Termination wins
            over truncation on the same step.
        autoreset_mode: The mode to follow.
        dict_obs: Whether the observation is ``{"counter": ..., "noise": (N, 2)}``; the noise is drawn at reset and
            depends on the seed.
    """

    def __init__(
        self,
        num_envs: int = 3,
        limit: int | Sequence[int] = 3,
        terminate_at: int | Sequence[int | None] | None = None,
        autoreset_mode: AutoresetMode = AutoresetMode.SAME_STEP,
        dict_obs: bool = False,
    ) -> None:
        self.num_envs = num_envs
        self.device = torch.device("cpu")
        self.autoreset_mode = autoreset_mode
        self.metadata = {"autoreset_mode": autoreset_mode}
        self.dict_obs = dict_obs
        counter = spaces.Box(-np.inf, np.inf, (3,), np.float32)
        noise = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.single_observation_space = spaces.Dict({"counter": counter, "noise": noise}) if dict_obs else counter
        self.single_action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.limit = [limit] * num_envs if isinstance(limit, int) else list(limit)
        if terminate_at is None or isinstance(terminate_at, int):
            terminate_at = [terminate_at] * num_envs
        self.terminate_at = list(terminate_at)
        self.episode = [-1] * num_envs
        self.steps = [0] * num_envs
        self.returns = [0.0] * num_envs
        self.finished = [False] * num_envs
        self.seeds = [0] * num_envs
        self.noise = torch.zeros(num_envs, 2)
        self.received_actions: list[torch.Tensor] = []

    def _observe(self) -> Any:
        counter = torch.tensor(
            [[i, self.episode[i], self.steps[i]] for i in range(self.num_envs)], dtype=torch.float32
        ).reshape(self.num_envs, 3)
        return {"counter": counter, "noise": self.noise.clone()} if self.dict_obs else counter

    def _reset_env(self, i: int) -> None:
        self.episode[i] += 1
        self.steps[i] = 0
        self.returns[i] = 0.0
        self.finished[i] = False
        generator = torch.Generator().manual_seed(self.seeds[i] * 1000 + self.episode[i])
        self.noise[i] = torch.rand(2, generator=generator) * 2 - 1

    def reset(self, *, seed: int | list[int] | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict]:
        super().reset(seed=seed[0] if isinstance(seed, list) else seed)
        mask = (options or {}).get("reset_mask")
        rows = range(self.num_envs) if mask is None else [i for i in range(self.num_envs) if bool(mask[i])]
        for i in rows:
            if seed is not None:
                self.seeds[i] = seed[i] if isinstance(seed, list) else seed + i
                self.episode[i] = -1
            self._reset_env(i)
        return self._observe(), {}

    def step(self, actions: Any) -> tuple[Any, torch.Tensor, torch.Tensor, torch.Tensor, dict]:
        self.received_actions.append(torch.as_tensor(actions))
        n = self.num_envs
        reward = [0.0] * n
        terminated, truncated, started, ended = [False] * n, [False] * n, [False] * n, [False] * n
        for i in range(n):
            if self.finished[i] and self.autoreset_mode is AutoresetMode.NEXT_STEP:
                started[i] = True
                self._reset_env(i)
                continue
            self.steps[i] += 1
            reward[i] = float(self.steps[i])
            self.returns[i] += reward[i]
            terminated[i] = self.steps[i] == self.terminate_at[i]
            truncated[i] = not terminated[i] and self.steps[i] >= self.limit[i]
            ended[i] = terminated[i] or truncated[i]
            self.finished[i] = ended[i]
        done = torch.tensor(ended)
        info: dict[str, Any] = {
            "episode": {
                "r": torch.tensor([r if e else 0.0 for r, e in zip(self.returns, ended, strict=True)]),
                "l": torch.tensor([s if e else 0 for s, e in zip(self.steps, ended, strict=True)]),
                "t": torch.zeros(n),
            },
            "_episode": done.clone(),
        }
        obs = self._observe()
        if self.autoreset_mode is AutoresetMode.SAME_STEP:
            info["final_obs"], info["_final_obs"] = obs, done.clone()
            info["final_info"], info["_final_info"] = {"episode": info["episode"]}, done.clone()
            for i in range(n):
                if ended[i]:
                    self._reset_env(i)
            obs = self._observe()
        return obs, torch.tensor(reward), torch.tensor(terminated), torch.tensor(truncated), info
