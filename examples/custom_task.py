"""A task of one's own in one class, and its training: a ball that is pushed up against gravity to hover.

python examples/custom_task.py
"""

from __future__ import annotations

import numpy as np
import torch
from gymnasium import spaces

from genesis_vec import GenesisVectorEnv, Task
from genesis_vec.training.config import PPOConfig
from genesis_vec.training.evaluate import evaluate
from genesis_vec.training.ppo import PPO


class Hover(Task):
    """Keep a ball of 1 kg at a height of one metre with a vertical force."""

    max_episode_steps = 100
    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
    target_height_m = 1.0

    def build(self, scene):
        import genesis as gs

        scene.add_entity(gs.morphs.Plane())
        self.ball = scene.add_entity(gs.morphs.Sphere(radius=0.1, pos=(0.0, 0.0, 0.5)))

    def setup(self):
        self.ball.set_mass(1.0)

    def act(self, actions):
        force = torch.zeros(self.num_envs, 6, device=self.device)
        force[:, 2:3] = 20.0 * actions  # newtons; hovering takes 9.81
        self.ball.control_dofs_force(force)

    def observe(self):
        return torch.stack([self.ball.get_pos()[:, 2] - self.target_height_m, self.ball.get_vel()[:, 2]], dim=1)

    def reward(self):
        return {"near": torch.exp(-4.0 * (self.ball.get_pos()[:, 2] - self.target_height_m).abs())}


def main(iterations: int = 60) -> None:
    env = GenesisVectorEnv(Hover(), num_envs=64, device="auto")
    learner = PPO(env, PPOConfig(schedule="fixed", learning_rate=3e-3, gamma=0.95), seed=1)
    print("untrained:", evaluate(env, learner.policy.act, episodes=64, seed=99))
    for _ in range(iterations):
        learner.iterate()
    print("trained:  ", evaluate(env, learner.policy.act, episodes=64, seed=99))
    env.close()


if __name__ == "__main__":
    main()
