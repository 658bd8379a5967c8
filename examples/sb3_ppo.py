"""stable-baselines3's PPO on GenesisCartPole-v0, with rollouts on the device.

Needs ``pip install 'genesis-vec[sb3]'``. On several ranks, each with its share of the environments:

    torchrun --standalone --nproc_per_node=2 examples/sb3_ppo.py
"""

from __future__ import annotations

import dataclasses

import gymnasium
import torch
import tyro

from genesis_vec import Job
from genesis_vec.adapters.sb3 import SB3VecEnv, TorchPPO
from genesis_vec.training.distributed import World
from genesis_vec.wrappers import NormalizeObservation


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Everything there is to set."""

    iterations: int = 80
    num_envs: int = 128  # of all ranks together
    rollout_steps: int = 32
    epochs: int = 5
    minibatches: int = 4
    learning_rate: float = 1e-3
    seed: int = 1


def main(settings: Settings) -> float:
    """Trains, and returns the mean length of the last 100 episodes."""
    torch.set_num_threads(1)
    job = Job.from_environment()
    with World(job) as world:
        count = settings.num_envs // world.size
        env = gymnasium.make_vec("GenesisCartPole-v0", num_envs=count, first_env_index=world.rank * count)
        rollout = settings.rollout_steps * count
        model = TorchPPO(
            "MlpPolicy",
            SB3VecEnv(NormalizeObservation(env)),
            world=world,
            n_steps=settings.rollout_steps,
            batch_size=rollout // settings.minibatches,
            n_epochs=settings.epochs,
            learning_rate=settings.learning_rate,
            policy_kwargs={"net_arch": [64, 64], "log_std_init": -0.5},
            seed=settings.seed,
            verbose=1,
        )
        model.learn(settings.iterations * rollout * world.size, log_interval=10)
        lengths = [episode["l"] for episode in model.ep_info_buffer]
        env.close()
    return sum(lengths) / len(lengths)


if __name__ == "__main__":
    print(f"mean episode length {main(tyro.cli(Settings)):.1f}")
