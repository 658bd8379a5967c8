"""skrl's PPO, with final observations, by its sequential trainer."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, ClassVar

import torch
from gymnasium.vector import AutoresetMode, VectorEnv

from genesis_vec.adapters.skrl import SkrlWrapper, with_final_observations
from genesis_vec.extras import library
from genesis_vec.training.config import TrainConfig
from genesis_vec.training.distributed import World

with library("skrl", "skrl"):
    from skrl.agents.torch.ppo import PPO, PPO_CFG
    from skrl.memories.torch import RandomMemory
    from skrl.resources.preprocessors.torch import RunningStandardScaler
    from skrl.resources.schedulers.torch import KLAdaptiveLR
    from skrl.trainers.torch import SequentialTrainer
    from skrl.utils.model_instantiators.torch import deterministic_model, gaussian_model


class Trainer:
    """See :class:`genesis_vec.library_training.trainer.Trainer`."""

    autoreset_mode: ClassVar[AutoresetMode] = AutoresetMode.SAME_STEP
    on_several_ranks: ClassVar[bool] = False

    def __init__(self, env: VectorEnv, config: TrainConfig, run_dir: Path, world: World) -> None:
        torch.manual_seed(config.seed)
        ppo = config.ppo
        adapter = SkrlWrapper(env, config.seed)
        spaces: dict[str, Any] = {"observation_space": adapter.observation_space, "action_space": adapter.action_space}
        layers = [{"name": "net", "input": "OBSERVATIONS", "layers": list(ppo.hidden_sizes), "activations": "elu"}]
        models: dict[str, Any] = {
            "policy": gaussian_model(
                network=layers, output="ACTIONS", initial_log_std=math.log(ppo.initial_std), device=adapter.device,
                **spaces,
            ),
            "value": deterministic_model(network=layers, output="ONE", device=adapter.device, **spaces),
        }  # fmt: skip
        settings = PPO_CFG(
            rollouts=ppo.rollout_steps,
            learning_epochs=ppo.epochs,
            mini_batches=ppo.minibatches,
            discount_factor=ppo.gamma,
            gae_lambda=ppo.gae_lambda,
            learning_rate=ppo.learning_rate,
            ratio_clip=ppo.clip,
            value_clip=ppo.clip if ppo.clip_value else 0.0,
            # Its value loss is the mean square itself, ours half of it.
            value_loss_scale=0.5 * ppo.value_coefficient,
            entropy_loss_scale=ppo.entropy_coefficient,
            grad_norm_clip=ppo.max_grad_norm,
        )
        if ppo.schedule == "adaptive":
            settings.learning_rate_scheduler = KLAdaptiveLR
            settings.learning_rate_scheduler_kwargs = {"kl_threshold": ppo.desired_kl}
        if ppo.normalize_observations:
            settings.observation_preprocessor = RunningStandardScaler
            settings.observation_preprocessor_kwargs = {"size": adapter.observation_space, "device": adapter.device}
        if ppo.normalize_rewards:
            # It scales values in place of rewards, to the same end.
            settings.value_preprocessor = RunningStandardScaler
            settings.value_preprocessor_kwargs = {"size": 1, "device": adapter.device}
        settings.experiment.directory = str(run_dir)
        settings.experiment.experiment_name = "skrl"
        settings.experiment.write_interval = settings.experiment.checkpoint_interval = 0
        memory = RandomMemory(memory_size=ppo.rollout_steps, num_envs=env.num_envs, device=adapter.device)
        self._agent = with_final_observations(PPO)(
            models=models, memory=memory, cfg=settings, device=adapter.device, **spaces
        )
        self._trainer = SequentialTrainer(
            env=adapter,
            agents=self._agent,
            cfg={
                "timesteps": config.iterations * ppo.rollout_steps,
                "headless": True,
                "disable_progressbar": True,
                "close_environment_at_exit": False,
            },
        )

    def train(self) -> None:
        """Trains for the run's iterations."""
        self._trainer.train()

    def save(self, folder: Path) -> Path:
        """Writes skrl.pt, observation statistics included."""
        self._agent.save(str(folder / "skrl.pt"))
        return folder / "skrl.pt"

    @torch.no_grad()
    def act(self, observations: torch.Tensor) -> torch.Tensor:
        """Actions without noise."""
        self._agent.enable_training_mode(False, apply_to_models=True)
        return self._agent.act(observations, None, timestep=0, timesteps=1)[1]["mean_actions"]
