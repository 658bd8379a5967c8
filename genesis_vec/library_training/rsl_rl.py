"""rsl_rl's PPO, by its runner."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import torch
from gymnasium.vector import AutoresetMode, VectorEnv

from genesis_vec.adapters.rsl_rl import RslRlVecEnv
from genesis_vec.extras import library
from genesis_vec.library_training.trainer import Normalized
from genesis_vec.training.config import TrainConfig
from genesis_vec.training.distributed import World

with library("rsl_rl", "rsl-rl", "tensordict"):
    from rsl_rl.runners import OnPolicyRunner
from tensordict import TensorDict


class Trainer:
    """See :class:`genesis_vec.library_training.trainer.Trainer`."""

    autoreset_mode: ClassVar[AutoresetMode] = AutoresetMode.SAME_STEP
    on_several_ranks: ClassVar[bool] = False

    def __init__(self, env: VectorEnv, config: TrainConfig, run_dir: Path, world: World) -> None:
        torch.manual_seed(config.seed)
        self._iterations = config.iterations
        # It normalises observations itself.
        adapter = RslRlVecEnv(Normalized(env, config.ppo, observations=False).env, config.seed)
        # No log_dir: progress.csv has what its own log would.
        self._runner = OnPolicyRunner(adapter, _settings(config), log_dir=None, device=str(adapter.device))
        self._policy: Any = self._runner.alg.get_policy()

    def train(self) -> None:
        """Trains for the run's iterations."""
        self._runner.learn(self._iterations)

    def save(self, folder: Path) -> Path:
        """Writes rsl_rl.pt, observation statistics included."""
        self._runner.save(str(folder / "rsl_rl.pt"))
        return folder / "rsl_rl.pt"

    @torch.no_grad()
    def act(self, observations: torch.Tensor) -> torch.Tensor:
        """Actions without noise."""
        self._runner.alg.eval_mode()
        return self._policy(TensorDict({"policy": observations}, batch_size=[len(observations)]))


def _settings(config: TrainConfig) -> dict[str, Any]:
    ppo = config.ppo
    network = {
        "class_name": "MLPModel",
        "hidden_dims": list(ppo.hidden_sizes),
        "activation": "elu",
        "obs_normalization": ppo.normalize_observations,
    }
    noise = {"class_name": "GaussianDistribution", "init_std": ppo.initial_std, "std_type": "log"}
    return {
        "num_steps_per_env": ppo.rollout_steps,
        "save_interval": config.iterations,
        "obs_groups": {"actor": ["policy"], "critic": ["policy"]},
        "check_for_nan": False,  # the environment sees to it, without waiting for the device in each step
        "actor": {**network, "distribution_cfg": noise},
        "critic": network,
        "algorithm": {
            "class_name": "PPO",
            "num_learning_epochs": ppo.epochs,
            "num_mini_batches": ppo.minibatches,
            "clip_param": ppo.clip,
            "gamma": ppo.gamma,
            "lam": ppo.gae_lambda,
            # Its value loss is the mean square itself, ours half of it.
            "value_loss_coef": 0.5 * ppo.value_coefficient,
            "entropy_coef": ppo.entropy_coefficient,
            "learning_rate": ppo.learning_rate,
            "max_grad_norm": ppo.max_grad_norm,
            "use_clipped_value_loss": ppo.clip_value,
            "schedule": ppo.schedule,
            "desired_kl": ppo.desired_kl,
        },
    }
