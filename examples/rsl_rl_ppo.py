"""rsl_rl's PPO on GenesisCartPole-v0: pip install 'genesis-vec[rsl-rl]', then python examples/rsl_rl_ppo.py."""

from __future__ import annotations

import dataclasses
import statistics
from pathlib import Path
from typing import Any

import gymnasium
import torch
import tyro
from rsl_rl.runners import OnPolicyRunner

from genesis_vec.adapters.rsl_rl import RslRlVecEnv


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Everything there is to set."""

    iterations: int = 80
    num_envs: int = 128
    rollout_steps: int = 32
    epochs: int = 5
    minibatches: int = 4
    learning_rate: float = 1e-3
    seed: int = 1
    device: str = "cpu"
    run_dir: Path = Path("runs/rsl_rl_ppo")


def runner_config(settings: Settings) -> dict[str, Any]:
    """The settings of rsl_rl's runner."""
    network = {"class_name": "MLPModel", "hidden_dims": [64, 64], "activation": "elu", "obs_normalization": True}
    noise = {"class_name": "GaussianDistribution", "init_std": 0.6, "std_type": "log"}
    return {
        "num_steps_per_env": settings.rollout_steps,
        "save_interval": settings.iterations,
        "obs_groups": {"actor": ["policy"], "critic": ["policy"]},
        "check_for_nan": False,  # the environment sees to it, without waiting for a GPU
        "actor": {**network, "distribution_cfg": noise},
        "critic": network,
        "algorithm": {
            "class_name": "PPO",
            "num_learning_epochs": settings.epochs,
            "num_mini_batches": settings.minibatches,
            "learning_rate": settings.learning_rate,
            "schedule": "fixed",
            "entropy_coef": 0.0,
            "use_clipped_value_loss": False,  # it would let values near 100 move by 0.2 in an iteration
        },
    }


def main(settings: Settings) -> float:
    """Trains, and returns the mean length of the last 100 episodes."""
    torch.set_num_threads(1)
    torch.manual_seed(settings.seed)
    env = gymnasium.make_vec("GenesisCartPole-v0", num_envs=settings.num_envs, device=settings.device)
    adapter = RslRlVecEnv(env, seed=settings.seed)
    log_dir = str(settings.run_dir)
    runner = OnPolicyRunner(adapter, runner_config(settings), log_dir, device=settings.device)
    # Episodes that all began together would all reach their time limit in the same step.
    runner.learn(settings.iterations, init_at_random_ep_len=True)
    env.close()
    return statistics.mean(runner.logger.lenbuffer)


if __name__ == "__main__":
    print(f"mean episode length {main(tyro.cli(Settings)):.1f}")
