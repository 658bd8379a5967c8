"""PPO of TorchRL's collector, advantage estimator and loss."""

from __future__ import annotations

import math
from pathlib import Path
from typing import ClassVar

import torch
from gymnasium.vector import AutoresetMode, VectorEnv

from genesis_vec.adapters.torchrl import TorchRLEnv
from genesis_vec.extras import library
from genesis_vec.library_training.trainer import Normalized
from genesis_vec.training.config import TrainConfig
from genesis_vec.training.distributed import World

with library("torchrl", "torchrl", "tensordict"):
    from torchrl.collectors import Collector
    from torchrl.modules import MLP, IndependentNormal, ProbabilisticActor, ValueOperator
    from torchrl.objectives import ClipPPOLoss
    from torchrl.objectives.value import GAE
from tensordict.nn import AddStateIndependentNormalScale, TensorDictModule


class Trainer:
    """See :class:`genesis_vec.library_training.trainer.Trainer`."""

    autoreset_mode: ClassVar[AutoresetMode] = AutoresetMode.DISABLED
    on_several_ranks: ClassVar[bool] = False

    def __init__(self, env: VectorEnv, config: TrainConfig, run_dir: Path, world: World) -> None:
        torch.manual_seed(config.seed)
        self._ppo = ppo = config.ppo
        self._normalized = Normalized(env, ppo)
        self._env = TorchRLEnv(self._normalized.env)
        self._env.set_seed(config.seed)
        device, inputs = self._env.device, self._env.observation_spec["observation"].shape[-1]
        actions = self._env.action_spec.shape[-1]

        def perceptron(outputs: int) -> MLP:
            return MLP(inputs, outputs, num_cells=list(ppo.hidden_sizes), activation_class=torch.nn.ELU, device=device)

        self._mean = perceptron(actions)
        noise = AddStateIndependentNormalScale(actions, scale_mapping="exp").to(device)
        torch.nn.init.constant_(noise.state_independent_scale, math.log(ppo.initial_std))
        self._actor = ProbabilisticActor(
            TensorDictModule(
                torch.nn.Sequential(self._mean, noise), in_keys=["observation"], out_keys=["loc", "scale"]
            ),
            in_keys=["loc", "scale"],
            distribution_class=IndependentNormal,
            return_log_prob=True,
        )
        critic = ValueOperator(perceptron(1))
        self._advantages = GAE(gamma=ppo.gamma, lmbda=ppo.gae_lambda, value_network=critic, average_gae=True)
        self._loss = ClipPPOLoss(
            self._actor,
            critic,
            clip_epsilon=ppo.clip,
            entropy_bonus=ppo.entropy_coefficient > 0,
            entropy_coeff=ppo.entropy_coefficient,
            # Its value loss is the mean square itself, ours half of it.
            critic_coeff=0.5 * ppo.value_coefficient,
            clip_value=ppo.clip_value,
            loss_critic_type="l2",
        )
        self._frames = ppo.rollout_steps * env.num_envs
        self._total_frames = self._frames * config.iterations

    def train(self) -> None:
        """Trains for the run's iterations."""
        ppo = self._ppo
        optimizer = torch.optim.Adam(self._loss.parameters(), lr=ppo.learning_rate)
        collector = Collector(
            self._env,
            self._actor,
            frames_per_batch=self._frames,
            total_frames=self._total_frames,
            # Of the transforms that it could add, none is for a policy without memory.
            auto_register_policy_transforms=False,
        )
        for data in collector:
            rollout = self._advantages(data).reshape(-1)
            for _ in range(ppo.epochs):
                for rows in torch.randperm(self._frames, device=self._env.device).chunk(ppo.minibatches):
                    losses = self._loss(rollout[rows])
                    optimizer.zero_grad()
                    torch.stack([value for name, value in losses.items() if name.startswith("loss_")]).sum().backward()
                    torch.nn.utils.clip_grad_norm_(self._loss.parameters(), ppo.max_grad_norm)
                    optimizer.step()

    def save(self, folder: Path) -> Path:
        """Writes torchrl.pt, the state of the loss with actor and critic, and the observations' statistics."""
        self._normalized.save(folder)
        torch.save(self._loss.state_dict(), folder / "torchrl.pt")
        return folder / "torchrl.pt"

    @torch.no_grad()
    def act(self, observations: torch.Tensor) -> torch.Tensor:
        """Actions without noise."""
        return self._mean(self._normalized.observations(observations))
