"""Environments for stable-baselines3, and its PPO with rollouts that stay on the device."""

from genesis_vec.adapters.sb3.torch_ppo import TorchPPO
from genesis_vec.adapters.sb3.vec_env import SB3VecEnv

__all__ = ["SB3VecEnv", "TorchPPO"]
