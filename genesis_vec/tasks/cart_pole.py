"""GenesisCartPole-v0: the classic, small and quick to compile."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from gymnasium import spaces

from genesis_vec.engine import live_view
from genesis_vec.task import Task

if TYPE_CHECKING:
    from genesis_vec.streams import Draws


class CartPoleTask(Task):
    """Keep a pole upright on a cart by pushing the cart along its rail.

    Dimensions, masses, limits and initial states are those of A. Barto, R. Sutton and C. Anderson, "Neuronlike
    adaptive elements that can solve difficult learning control problems" (1983), as in Gymnasium's CartPole-v1, with
    a continuous force.

    - Observation, float32 (4,): cart position (m), pole angle (rad), cart velocity (m/s), pole angular velocity
      (rad/s).
    - Action, float32 (1,) in [-1, 1]: force on the cart, in units of ``max_force``.
    - Reward: 1 per step.
    - Terminated: the cart is more than 2.4 m from the centre, or the pole more than 12 degrees from upright.
    - Initial state: each of the four values uniform in [-0.05, 0.05].

    Args:
        max_force: Force of a full action, in newtons.
    """

    dt = 0.02
    max_episode_steps = 500
    camera: ClassVar[dict[str, Any]] = {"res": (320, 240), "pos": (0, -4, 1.5), "lookat": (0, 0, 1.3), "fov": 45}

    _MAX_POSITION = 2.4
    _MAX_ANGLE = 12 * math.pi / 180

    def __init__(self, max_force: float = 10.0) -> None:
        if not max_force > 0:
            raise ValueError(f"max_force must be positive, got {max_force!r}")
        self.max_force = max_force
        self.observation_space = spaces.Box(-np.inf, np.inf, (4,), np.float32)
        self.action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def scene_options(self) -> dict[str, Any]:
        """Nothing can touch anything here, so the engine need not look for contacts."""
        from genesis.options import RigidOptions

        rigid_options = RigidOptions(enable_collision=False, enable_joint_limit=False, disable_constraint=True)
        return {**super().scene_options(), "rigid_options": rigid_options}

    def build(self, scene: Any) -> None:
        """Adds the cart with its pole."""
        from genesis.options.morphs import MJCF

        # By default the engine adds 0.1 kg m² of rotor inertia to each joint, three times what the pole has itself.
        file = Path(__file__).parent / "assets" / "cart_pole.xml"
        self.robot = scene.add_entity(MJCF(file=str(file), default_armature=None))

    def setup(self) -> None:
        """Allocates the forces, of which only the cart's is ever set, and the bounds."""
        self._bounds = torch.tensor([self._MAX_POSITION, self._MAX_ANGLE], device=self.device)
        self._qpos = live_view(self.scene.rigid_solver.qpos)
        self._velocity = live_view(self.scene.rigid_solver.dyn_state.dofs.vel)
        self._force = torch.zeros(self.num_envs, 2, device=self.device)

    def reset(self, mask: torch.Tensor, draws: Draws) -> None:
        """Draws positions and velocities."""
        state = draws.uniform(4, low=-0.05, high=0.05)
        # Neither the observation nor the reward needs link poses before the next step, which computes them itself.
        self.robot.set_qpos(state[:, :2], envs_idx=mask, zero_velocity=False, skip_forward=True)
        self.robot.set_dofs_velocity(state[:, 2:], envs_idx=mask, skip_forward=True)

    def act(self, actions: torch.Tensor) -> None:
        """Pushes the cart."""
        self._force[:, :1] = actions * self.max_force
        self.robot.control_dofs_force(self._force)

    def observe(self) -> torch.Tensor:
        """Positions and velocities."""
        return torch.cat([self._qpos, self._velocity], dim=1)

    def reward(self) -> torch.Tensor:
        """One for each step."""
        return torch.ones(self.num_envs, device=self.device)

    def terminated(self) -> torch.Tensor:
        """Whether the cart or the pole is out of bounds."""
        return (self._qpos.abs() > self._bounds).any(dim=1)
