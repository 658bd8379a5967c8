"""skrl's PPO on GenesisCartPole-v0: pip install 'genesis-vec[skrl]', then python examples/skrl_ppo.py."""

from __future__ import annotations

import collections
import dataclasses
import logging
from pathlib import Path
from typing import Any

import gymnasium
import torch
import tyro
from gymnasium.vector import VectorEnv, VectorWrapper
from skrl.agents.torch.ppo import PPO, PPO_CFG
from skrl.memories.torch import RandomMemory
from skrl.resources.preprocessors.torch import RunningStandardScaler
from skrl.trainers.torch import SequentialTrainer
from skrl.utils import set_seed
from skrl.utils.model_instantiators.torch import deterministic_model, gaussian_model

from genesis_vec.adapters.skrl import SkrlWrapper, with_final_observations


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Training of a cart-pole."""

    num_envs: int = 128
    """Number of environments."""
    steps: int = 2560
    """Steps of each environment."""
    seed: int = 1
    """Seed of environments, networks and exploration."""
    device: str = "cpu"
    """Where everything runs: cpu, cuda:0."""
    run_dir: Path = Path("runs/skrl_ppo")
    """Where checkpoints and TensorBoard's files go."""


class EpisodeLengths(VectorWrapper):
    """Keeps the lengths of the episodes that ended in the last 500 steps, on the device until they are asked for."""

    def __init__(self, env: VectorEnv) -> None:
        super().__init__(env)
        self.recent: collections.deque[torch.Tensor] = collections.deque(maxlen=500)

    def step(self, actions: torch.Tensor) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        *results, info = self.env.step(actions)
        self.recent.append(torch.stack([info["episode"]["l"].sum(), info["_episode"].sum()]))
        return (*results, info)

    def mean(self) -> float:
        total, count = torch.stack(list(self.recent)).sum(dim=0).tolist()
        return total / max(1, count)


def main(settings: Settings) -> float:
    """Trains, and returns the mean length of the last episodes."""
    torch.set_num_threads(1)
    logging.getLogger("skrl").setLevel(logging.WARNING)
    set_seed(settings.seed)
    lengths = EpisodeLengths(gymnasium.make_vec("GenesisCartPole-v0", settings.num_envs, device=settings.device))
    env = SkrlWrapper(lengths, seed=settings.seed)
    spaces = {"observation_space": env.observation_space, "action_space": env.action_space, "device": env.device}
    layers = [{"name": "net", "input": "OBSERVATIONS", "layers": [64, 64], "activations": "elu"}]
    policy = gaussian_model(network=layers, output="ACTIONS", initial_log_std=-0.5, **spaces)
    value = deterministic_model(network=layers, output="ONE", **spaces)
    cfg = PPO_CFG(rollouts=32, learning_epochs=5, mini_batches=4, learning_rate=1e-3, value_loss_scale=1.0)
    cfg.observation_preprocessor = cfg.value_preprocessor = RunningStandardScaler
    cfg.observation_preprocessor_kwargs = {"size": env.observation_space, "device": env.device}
    cfg.value_preprocessor_kwargs = {"size": 1, "device": env.device}
    cfg.experiment.directory = str(settings.run_dir)
    memory = RandomMemory(memory_size=cfg.rollouts, num_envs=env.num_envs, device=env.device)
    agent = with_final_observations(PPO)(models={"policy": policy, "value": value}, memory=memory, cfg=cfg, **spaces)
    trainer_cfg = {"timesteps": settings.steps, "headless": True, "disable_progressbar": True}
    SequentialTrainer(env=env, agents=agent, cfg=trainer_cfg).train()
    env.close()
    mean_length = lengths.mean()
    print(f"mean episode length {mean_length:.1f}")
    return mean_length


if __name__ == "__main__":
    main(tyro.cli(Settings))
