"""rl_games' PPO, by its runner."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, ClassVar

import torch
from gymnasium.vector import AutoresetMode, VectorEnv

from genesis_vec.adapters.rl_games import register
from genesis_vec.extras import library
from genesis_vec.training.config import TrainConfig
from genesis_vec.training.distributed import World

with library("rl_games", "rl-games"):
    from rl_games.common.algo_observer import IsaacAlgoObserver
    from rl_games.torch_runner import Runner

_NAME = "genesis_vec"


class Trainer:
    """See :class:`genesis_vec.library_training.trainer.Trainer`."""

    autoreset_mode: ClassVar[AutoresetMode] = AutoresetMode.SAME_STEP
    on_several_ranks: ClassVar[bool] = False

    def __init__(self, env: VectorEnv, config: TrainConfig, run_dir: Path, world: World) -> None:
        register(_NAME, lambda num_actors, **env_config: env)
        self._observer = IsaacAlgoObserver()
        self._runner = Runner(self._observer)
        self._runner.load({"params": _settings(env, config, run_dir)})

    def train(self) -> None:
        """Trains for the run's iterations."""
        self._runner.run({"train": True, "play": False})

    def save(self, folder: Path) -> Path:
        """Writes rl_games.pth, observation statistics included."""
        self._observer.algo.save(str(folder / "rl_games"))
        return folder / "rl_games.pth"

    def act(self, observations: torch.Tensor) -> torch.Tensor:
        """Actions without noise."""
        learner: Any = self._observer.algo
        return learner.preprocess_actions(learner.get_action_values({"obs": observations})["mus"])


def _settings(env: VectorEnv, config: TrainConfig, run_dir: Path) -> dict[str, Any]:
    ppo = config.ppo
    noise = {
        "fixed_sigma": True,
        "sigma_activation": "None",
        "sigma_init": {"name": "const_initializer", "val": math.log(ppo.initial_std)},
    }
    continuous = {"mu_activation": "None", "mu_init": {"name": "default"}, **noise}
    layers = {"units": list(ppo.hidden_sizes), "activation": "elu", "initializer": {"name": "default"}}
    return {
        "seed": config.seed,
        "torch_threads": config.torch_threads,
        "algo": {"name": "a2c_continuous"},
        "model": {"name": "continuous_a2c_logstd"},
        "network": {"name": "actor_critic", "separate": True, "space": {"continuous": continuous}, "mlp": layers},
        "config": {
            "name": _NAME,
            "env_name": _NAME,
            "env_config": {},
            "device": str(env.unwrapped.device),  # type: ignore[attr-defined]
            "num_actors": env.num_envs,
            "max_epochs": config.iterations,
            "save_best_after": config.iterations + 1,
            "train_dir": str(run_dir),
            "full_experiment_name": "rl_games",
            "print_stats": False,
            "torch_compile": False,
            "horizon_length": ppo.rollout_steps,
            "minibatch_size": ppo.rollout_steps * env.num_envs // ppo.minibatches,
            # It is there for memory, which this network has not, but must divide a minibatch.
            "seq_length": 1,
            "mini_epochs": ppo.epochs,
            "learning_rate": ppo.learning_rate,
            "lr_schedule": "adaptive" if ppo.schedule == "adaptive" else None,
            "kl_threshold": ppo.desired_kl,
            "gamma": ppo.gamma,
            "tau": ppo.gae_lambda,
            "e_clip": ppo.clip,
            "clip_value": ppo.clip_value,
            "critic_coef": ppo.value_coefficient,
            "entropy_coef": ppo.entropy_coefficient,
            "bounds_loss_coef": 0.0,
            "truncate_grads": True,
            "grad_norm": ppo.max_grad_norm,
            "normalize_advantage": True,
            "normalize_input": ppo.normalize_observations,
            # It scales values in place of rewards, to the same end.
            "normalize_value": ppo.normalize_rewards,
            "reward_shaper": {"scale_value": 1.0},
        },
    }
