"""What a run asks of a library's trainer, and what the trainers share."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Protocol

import torch
from gymnasium.vector import AutoresetMode, VectorEnv

from genesis_vec.training.config import PPOConfig, TrainConfig
from genesis_vec.training.distributed import World
from genesis_vec.wrappers import ClipReward, NormalizeObservation, NormalizeReward

_CLIP_REWARD = 10.0


class Trainer(Protocol):
    """One library's PPO on one environment.

    Attributes:
        autoreset_mode: The mode that its adapter needs.
        on_several_ranks: Whether it can be one of several ranks.
    """

    autoreset_mode: ClassVar[AutoresetMode]
    on_several_ranks: ClassVar[bool]

    def __init__(self, env: VectorEnv, config: TrainConfig, run_dir: Path, world: World) -> None: ...

    def train(self) -> None:
        """Trains for ``config.iterations`` iterations; the environment may raise to end it before."""
        ...

    def save(self, folder: Path) -> Path:
        """Writes the model, as the library does, into a folder that is there; its file."""
        ...

    def act(self, observations: torch.Tensor) -> torch.Tensor:
        """Actions without noise for the environment's observations: (num_envs, …), for any number of them."""
        ...


class Normalized:
    """An environment for libraries that do not normalise by themselves, with the package's wrappers around it.

    Args:
        env: The environment.
        ppo: Its settings say whether observations and rewards are normalised.
        observations: Whether the library leaves observations to this.

    Attributes:
        env: The environment with its wrappers.
    """

    def __init__(self, env: VectorEnv, ppo: PPOConfig, observations: bool = True) -> None:
        self._normalizer: NormalizeObservation | None = None
        if observations and ppo.normalize_observations:
            env = self._normalizer = NormalizeObservation(env)
        if ppo.normalize_rewards:
            # While returns hardly differ the first rewards would be divided by next to nothing.
            env = ClipReward(NormalizeReward(env, ppo.gamma), -_CLIP_REWARD, _CLIP_REWARD)
        self.env = env

    def observations(self, observations: torch.Tensor) -> torch.Tensor:
        """Observations as the policy has learnt to see them."""
        return observations if self._normalizer is None else self._normalizer.observations(observations)

    def save(self, folder: Path) -> None:
        """Writes the observations' statistics, without which the policy is worth nothing, into a folder."""
        if self._normalizer is not None:
            torch.save(self._normalizer.state_dict(), folder / "observation_statistics.pt")
