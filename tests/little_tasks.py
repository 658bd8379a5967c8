"""Tasks made for tests: one whose outputs are counters, and ones that break on command. All are cart-poles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from genesis_vec.tasks.cart_pole import CartPoleTask


class CountingTask(CartPoleTask):
    """Observation row i is [env index, episode number, step within the episode]; reward is the step number.

    What `tests.fakes.CounterEnv` is without an engine, so that each can be held against the other.

    Args:
        terminate_at: Step at which an episode terminates, for all or one per env; None for never.
        dict_obs: Whether the observation is ``{"counter": ..., "noise": (N, 2)}``, the noise drawn at each reset.
        count_episodes: Whether the episodes are counted; with False that column is 0, and a seed repeats a run.
    """

    max_episode_steps = None
    ADJUSTABLE = ("terminate_at", "count_episodes")  # what may be set on a task that is in use already

    def __init__(
        self,
        terminate_at: int | Sequence[int | None] | None = None,
        dict_obs: bool = False,
        count_episodes: bool = True,
    ) -> None:
        super().__init__()
        self.terminate_at = terminate_at
        self.dict_obs = dict_obs
        self.count_episodes = count_episodes
        counter = spaces.Box(-np.inf, np.inf, (3,), np.float32)
        noise = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.observation_space = spaces.Dict({"counter": counter, "noise": noise}) if dict_obs else counter

    def setup(self) -> None:
        super().setup()
        self.steps = torch.zeros(self.num_envs, dtype=torch.int64, device=self.device)
        self.episode = torch.full_like(self.steps, -1)
        self.noise = torch.zeros(self.num_envs, 2, device=self.device)

    def reset(self, mask: torch.Tensor, draws: Any) -> None:
        super().reset(mask, draws)
        self.episode = self.episode + mask if self.count_episodes else torch.zeros_like(self.episode)
        self.steps = self.steps.masked_fill(mask, 0)
        self.noise = torch.where(mask[:, None], draws.uniform(2, low=-1.0, high=1.0), self.noise)

    def act(self, actions: torch.Tensor) -> None:
        super().act(actions)
        self.steps = self.steps + 1

    def observe(self) -> Any:
        indices = torch.arange(self.num_envs, device=self.device)
        counter = torch.stack([indices, self.episode, self.steps], dim=1).to(torch.float32)
        return {"counter": counter, "noise": self.noise.clone()} if self.dict_obs else counter

    def reward(self) -> torch.Tensor:
        return self.steps.to(torch.float32)

    def terminated(self) -> torch.Tensor:
        ends = self.terminate_at
        ends = [ends] * self.num_envs if ends is None or isinstance(ends, int) else ends
        return self.steps == torch.tensor([end or 0 for end in ends], device=self.device)


def start_counting(env: Any, **reset_args: Any) -> Any:
    """Resets an environment with a CountingTask so that its episodes count from 0."""
    # Construction has started episodes already, to try the task out.
    env.task.episode = torch.full_like(env.task.episode, -1)
    return env.reset(**reset_args)


class BreakableTask(CartPoleTask):
    """A cart-pole of which one environment's numbers can be broken at one step.

    Attributes:
        breakage: (kind, environment index, step, counted from 0 since `steps_taken` was set to 0), or None. Kinds:
            "force" and "velocity" and "position" give the engine NaN, "huge_force" 1e30; "observation" and "reward"
            and "metric" break only what the task returns.
        terminates: Whether the cart-pole's own terminations count.
    """

    ADJUSTABLE = ("terminates", "breakage", "steps_taken")

    def __init__(self, decimation: int = 1, terminates: bool = True) -> None:
        super().__init__()
        self.decimation = decimation
        self.terminates = terminates
        self.breakage: tuple[str, int, int] | None = None
        self.steps_taken = 0

    def _row_if(self, *kinds: str) -> int | None:
        if self.breakage is None:
            return None
        kind, row, step = self.breakage
        return row if kind in kinds and step == self.steps_taken - 1 else None

    def act(self, actions: torch.Tensor) -> None:
        super().act(actions)
        self.steps_taken += 1
        if (row := self._row_if("force", "huge_force", "velocity", "position")) is None:
            return
        kind, mask = self.breakage[0], torch.arange(self.num_envs) == row
        broken = torch.full((self.num_envs, 2), 1e30 if kind == "huge_force" else torch.nan)
        # Without skip_forward a setter itself would compute the new poses of other environments, and round otherwise.
        if kind == "velocity":
            self.robot.set_dofs_velocity(broken, envs_idx=mask, skip_forward=True)
        elif kind == "position":
            self.robot.set_qpos(broken, envs_idx=mask, skip_forward=True)
        else:
            self.robot.control_dofs_force(torch.where(mask[:, None], broken, self._force))

    def _break(self, kind: str, value: torch.Tensor) -> torch.Tensor:
        if (row := self._row_if(kind)) is not None:
            value[row] = torch.inf
            self.breakage = None  # once: the first observation of the next episode is asked for in the same step
        return value

    def observe(self) -> torch.Tensor:
        return self._break("observation", super().observe())

    def reward(self) -> dict[str, torch.Tensor]:
        return {
            "alive": self._break("reward", super().reward()),
            "centred": -self._qpos[:, 0].abs(),
        }

    def metrics(self) -> dict[str, torch.Tensor]:
        return {"position": self._break("metric", self._qpos[:, :1].clone())}

    def terminated(self) -> torch.Tensor:
        terminated = super().terminated()
        return terminated if self.terminates else torch.zeros_like(terminated)
