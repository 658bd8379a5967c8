"""A task of one's own on a robot of one's own, built step by step in docs/tutorial.md."""

from pathlib import Path

import genesis as gs
import numpy as np
import torch
from gymnasium import spaces

from genesis_vec import Task, register_task


class PlanarReach(Task):
    """Bring the tip of a two-link arm to a point of its plane."""

    max_episode_steps = 100
    observation_space = spaces.Box(-np.inf, np.inf, (6,), np.float32)  # joint angles and velocities, tip to goal
    action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)  # torques, 2 N·m for 1
    camera = {"res": (320, 240), "pos": (0.0, -1.8, 2.2), "lookat": (0.0, 0.0, 0.0), "fov": 45}

    def build(self, scene):
        self.robot = scene.add_entity(gs.morphs.MJCF(file=str(Path(__file__).with_name("arm.xml"))))

    def setup(self):
        self.goal = torch.zeros(self.num_envs, 2, device=self.device)

    def reset(self, mask, draws):
        angles = draws.uniform(4, low=-1.5, high=1.5)
        self.goal = torch.where(mask[:, None], self.tip(angles[:, :2]), self.goal)
        self.robot.set_qpos(angles[:, 2:], envs_idx=mask)

    def act(self, actions):
        self.robot.control_dofs_force(2.0 * actions)

    def observe(self):
        angles = self.robot.get_qpos()
        return torch.cat([angles, self.robot.get_dofs_velocity(), self.goal - self.tip(angles)], dim=1)

    def reward(self):
        return {"near": torch.exp(-5.0 * self.distance())}

    def metrics(self):
        return {"success": self.distance() < 0.05}  # metres

    def tip(self, angles):
        directions = angles.cumsum(dim=1)  # of the two links, 0.5 m each
        return 0.5 * torch.stack([directions.cos().sum(1), directions.sin().sum(1)], dim=1)

    def distance(self):
        return (self.goal - self.tip(self.robot.get_qpos())).norm(dim=1)


register_task("PlanarReach-v0", PlanarReach)
