"""stable-baselines3's PPO, with rollouts on the device, on several ranks, of vectors or pixels: TorchPPO."""

from __future__ import annotations

import math
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv

from genesis_vec.adapters.sb3 import SB3VecEnv, TorchPPO
from genesis_vec.library_training.trainer import Normalized
from genesis_vec.training.config import TrainConfig
from genesis_vec.training.distributed import World
from genesis_vec.wrappers import ChannelsFirst

# Its words for a picture of other numbers than colours.
_DEPTH = {"normalize_images": False, "features_extractor_kwargs": {"normalized_image": True}}

# What its convolutions leave something of (a kernel of 8 in steps of 4, of 4 in steps of 2, of 3).
_SMALLEST_PICTURE = 36


class Trainer:
    """See :class:`genesis_vec.library_training.trainer.Trainer`."""

    autoreset_mode: ClassVar[AutoresetMode] = AutoresetMode.SAME_STEP
    on_several_ranks: ClassVar[bool] = True

    def __init__(self, env: VectorEnv, config: TrainConfig, run_dir: Path, world: World) -> None:
        ppo = config.ppo
        space = env.single_observation_space
        # The wrapper that turns pictures, None for vectors.
        self._turned = None
        if isinstance(space, spaces.Box) and len(space.shape) == 3:
            height, width, _ = space.shape
            if min(height, width) < _SMALLEST_PICTURE:
                raise ValueError(
                    f"library='sb3' learns from pictures of {_SMALLEST_PICTURE} pixels or more to a side, not "
                    f"{height} x {width}: give --env image_size=[height,width]"
                )
            env = self._turned = ChannelsFirst(env)
        # Colours from 0 to 255, which the library scales by itself.
        is_colour = self._turned is not None and space.dtype == np.uint8
        self._normalized = Normalized(env, ppo, observations=not is_colour)
        self._timesteps = config.iterations * ppo.rollout_steps * config.num_envs
        self._model = TorchPPO(
            "MlpPolicy" if self._turned is None else "CnnPolicy",
            SB3VecEnv(self._normalized.env),
            world=world,
            n_steps=ppo.rollout_steps,
            batch_size=ppo.rollout_steps * env.num_envs // ppo.minibatches,
            n_epochs=ppo.epochs,
            gamma=ppo.gamma,
            gae_lambda=ppo.gae_lambda,
            clip_range=ppo.clip,
            clip_range_vf=ppo.clip if ppo.clip_value else None,
            # Its value loss is the mean square itself, ours half of it.
            vf_coef=0.5 * ppo.value_coefficient,
            ent_coef=ppo.entropy_coefficient,
            learning_rate=ppo.learning_rate,
            max_grad_norm=ppo.max_grad_norm,
            policy_kwargs={
                "net_arch": list(ppo.hidden_sizes),
                "activation_fn": torch.nn.ELU,
                "log_std_init": math.log(ppo.initial_std),
                **({} if self._turned is None or is_colour else _DEPTH),
            },
            seed=config.seed,
        )

    def train(self) -> None:
        """Trains for the run's iterations."""
        self._model.learn(self._timesteps)

    def save(self, folder: Path) -> Path:
        """Writes sb3.zip, and the observations' statistics."""
        self._normalized.save(folder)
        self._model.save(folder / "sb3.zip")
        return folder / "sb3.zip"

    @torch.no_grad()
    def act(self, observations: torch.Tensor) -> torch.Tensor:
        """Actions without noise."""
        if self._turned is not None:
            observations = self._turned.observations(observations)
        return self._model.policy._predict(self._normalized.observations(observations), deterministic=True)
