"""rl_games' PPO on GenesisCartPole-v0: pip install 'genesis-vec[rl-games]', then python examples/rl_games_ppo.py."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import tyro
from rl_games.common.algo_observer import IsaacAlgoObserver
from rl_games.torch_runner import Runner

from genesis_vec.adapters.rl_games import register


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Training of a cart-pole."""

    num_envs: int = 128
    """Number of environments."""
    iterations: int = 80
    """Iterations, each of 32 steps of each environment and an update."""
    seed: int = 1
    """Seed of environments, networks and exploration."""
    device: str = "cpu"
    """Where everything runs: cpu, cuda:0."""
    run_dir: Path = Path("runs/rl_games_ppo")
    """Where checkpoints and TensorBoard's files go."""


def params(settings: Settings) -> dict[str, Any]:
    """The settings of rl_games, which has defaults for few of them."""
    sigma = {"fixed_sigma": True, "sigma_activation": "None", "sigma_init": {"name": "const_initializer", "val": -0.5}}
    continuous = {"mu_activation": "None", "mu_init": {"name": "default"}, **sigma}
    mlp = {"units": [64, 64], "activation": "elu", "initializer": {"name": "default"}}
    config = {
        "name": "cart-pole",
        "env_name": "cart-pole",
        "env_config": {"device": settings.device},
        "device": settings.device,
        "num_actors": settings.num_envs,
        "max_epochs": settings.iterations,
        "save_best_after": settings.iterations,
        "train_dir": str(settings.run_dir),
        "print_stats": False,
        "torch_compile": False,  # needs a C++ compiler on the CPU, and a minute
        "horizon_length": 32,
        "minibatch_size": 8 * settings.num_envs,
        "mini_epochs": 5,
        "learning_rate": 1e-3,
        "lr_schedule": None,
        "gamma": 0.99,
        "tau": 0.95,
        "e_clip": 0.2,
        "clip_value": False,
        "critic_coef": 1.0,
        "entropy_coef": 0.0,
        "bounds_loss_coef": 0.0,
        "truncate_grads": True,
        "grad_norm": 1.0,
        "normalize_advantage": True,
        "normalize_input": True,
        "normalize_value": True,
        "reward_shaper": {"scale_value": 1.0},
    }
    network = {"name": "actor_critic", "separate": True, "space": {"continuous": continuous}, "mlp": mlp}
    names = {"algo": {"name": "a2c_continuous"}, "model": {"name": "continuous_a2c_logstd"}}
    # Otherwise rl_games gives torch as many threads as there are cores, and at most 4.
    return {"seed": settings.seed, "torch_threads": 1, **names, "network": network, "config": config}


def main(settings: Settings) -> float:
    """Trains, and returns the mean length of the last 100 episodes."""
    register("cart-pole", "GenesisCartPole-v0")
    observer = IsaacAlgoObserver()
    runner = Runner(observer)
    runner.load({"params": params(settings)})
    runner.run({"train": True, "play": False})
    mean_length = float(observer.algo.game_lengths.get_mean())
    observer.algo.vec_env.close()
    print(f"mean episode length {mean_length:.1f}")
    return mean_length


if __name__ == "__main__":
    main(tyro.cli(Settings))
