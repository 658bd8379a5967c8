"""GenesisFrankaReach-v0: a Franka Panda moves its hand to poses in front of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from gymnasium import spaces

from genesis_vec.task import Task
from genesis_vec.tasks.franka import NUM_ARM_JOINTS, POINTING_DOWN, Panda, add_panda, check_argument, check_box
from genesis_vec.tasks.rotations import about_axis, angle, apply_matrix, difference_matrix, multiply, sine_vector

if TYPE_CHECKING:
    from genesis_vec.streams import Draws


class FrankaReachTask(Task):
    """Move the hand to a goal position and orientation and hold it there.

    Poses are those of the link "hand" in world axes, the robot's base at the origin and x ahead of it; quaternions
    are (w, x, y, z). Ground and the robot's own links are solid.

    - Observation, float32 (41,): joint positions (7; rad), joint velocities (7; rad/s), hand position (3; m), hand
      orientation (4), goal position (3; m), goal orientation (4), goal position minus hand position (3; m), the
      rotation from the hand's orientation to the goal's as 2 sin(angle / 2) times its axis (3), the last action (7).
    - Action, float32 (7,) in [-1, 1]: where the arm's joint targets are from their present positions, in units of
      ``action_scale``. A full action then moves a joint with 9 ``action_scale`` rad/s. The gripper
      stays open.
    - Reward: "position", the distance to the goal in metres, weight -2; "precision", 1 - tanh(distance / 0.05 m),
      weight 1; "orientation", the angle to the goal in radians, weight -0.5; "action_rate", the sum of squares of the
      change of the action, weight -0.01.
    - Never terminated. The joints start within ``reset_noise`` of the rest pose. Goal positions are uniform in the
      box from ``goal_low`` to ``goal_high``. Goal orientations point down, tilted by up to ``goal_tilt`` towards any
      side and then turned about the vertical by up to ``goal_yaw`` to either side.
    - Metrics in ``info``: "success" bool, whether the hand is within 2 cm and 0.2 rad of the goal.

    Args:
        action_scale: See above; in (0, 0.2], of which the largest lets the joints move as fast as the real ones.
        goal_low: Lower corner of the box of goal positions, in metres.
        goal_high: Upper corner.
        goal_yaw: See above; in [0, π], radians.
        goal_tilt: See above; in [0, π / 2], radians.
        reset_noise: See above; in [0, 0.5], radians.

    Attributes:
        robot: The Genesis entity.
        goal_position: float32 (num_envs, 3).
        goal_quaternion: float32 (num_envs, 4).

    Raises:
        ValueError: For an argument out of its range.
    """

    dt = 0.02
    substeps = 2
    max_episode_steps = 150
    reward_weights: ClassVar[dict[str, float]] = {
        "position": -2.0,
        "precision": 1.0,
        "orientation": -0.5,
        "action_rate": -0.01,
    }
    camera: ClassVar[dict[str, Any]] = {"res": (320, 240), "pos": (1.6, -1.3, 1.0), "lookat": (0.3, 0, 0.4), "fov": 40}

    _SUCCESS_DISTANCE = 0.02
    _SUCCESS_ANGLE = 0.2
    _PRECISION_DISTANCE = 0.05

    def __init__(
        self,
        *,
        action_scale: float = 0.1,
        goal_low: Sequence[float] = (0.35, -0.25, 0.25),
        goal_high: Sequence[float] = (0.6, 0.25, 0.55),
        goal_yaw: float = math.pi / 3,
        goal_tilt: float = 0.3,
        reset_noise: float = 0.1,
    ) -> None:
        for name, value, fits, accepted in (
            ("action_scale", action_scale, 0 < action_scale <= 0.2, "a number in (0, 0.2]"),
            ("goal_yaw", goal_yaw, 0 <= goal_yaw <= math.pi, "a number from 0 to π"),
            ("goal_tilt", goal_tilt, 0 <= goal_tilt <= math.pi / 2, "a number from 0 to π / 2"),
            ("reset_noise", reset_noise, 0 <= reset_noise <= 0.5, "a number from 0 to 0.5"),
        ):
            check_argument(name, value, fits, accepted)
        check_box("goal", goal_low, goal_high)
        self.action_scale = action_scale
        self.goal_low = tuple(goal_low)
        self.goal_high = tuple(goal_high)
        self.goal_yaw = goal_yaw
        self.goal_tilt = goal_tilt
        self.reset_noise = reset_noise
        self.observation_space = spaces.Box(-np.inf, np.inf, (41,), np.float32)
        self.action_space = spaces.Box(-1.0, 1.0, (NUM_ARM_JOINTS,), np.float32)

    def build(self, scene: Any) -> None:
        """Adds the robot and the ground it stands on."""
        from genesis.options.morphs import Plane

        self.robot = add_panda(scene)
        scene.add_entity(Plane())

    def setup(self) -> None:
        """Sets the gains, and allocates goals and actions."""
        self._panda = Panda(self.scene, self.robot, self.device)
        self._goal_low = torch.tensor(self.goal_low, device=self.device)
        self._goal_high = torch.tensor(self.goal_high, device=self.device)
        self._down = torch.tensor(POINTING_DOWN, device=self.device).repeat(self.num_envs, 1)
        self.goal_position = torch.zeros(self.num_envs, 3, device=self.device)
        self.goal_quaternion = self._down
        self._actions = torch.zeros(self.num_envs, NUM_ARM_JOINTS, device=self.device)
        self._action_change = torch.zeros_like(self._actions)

    def reset(self, mask: torch.Tensor, draws: Draws) -> None:
        """Draws a goal and the arm's initial position."""
        rows = mask[:, None]
        position = draws.uniform(3, low=self._goal_low, high=self._goal_high)
        yaw, tilt, direction = draws.uniform(3, low=-1.0, high=1.0).unbind(dim=1)
        noise = draws.uniform(NUM_ARM_JOINTS, low=-self.reset_noise, high=self.reset_noise)
        # A tilt about the horizontal axis at an angle of `direction` to x: that turn undone, the tilt, the turn.
        turn = direction * math.pi
        orientation = multiply(about_axis(tilt * self.goal_tilt, 1, 0, 0), about_axis(-turn, 0, 0, 1))
        orientation = multiply(about_axis(turn + yaw * self.goal_yaw, 0, 0, 1), orientation)
        orientation = multiply(orientation, self._down)
        self.set_goal(
            torch.where(rows, position, self.goal_position), torch.where(rows, orientation, self.goal_quaternion)
        )
        self._actions = self._actions.masked_fill(rows, 0.0)
        self._panda.start(mask, noise)

    def set_goal(self, position: torch.Tensor, quaternion: torch.Tensor) -> None:
        """Sets the goals, until the environments' episodes end: for goals of your own.

        Args:
            position: (num_envs, 3), metres.
            quaternion: Unit quaternions (num_envs, 4), (w, x, y, z).
        """
        self.goal_position, self.goal_quaternion = position, quaternion
        self._to_goal = difference_matrix(quaternion)

    def act(self, actions: torch.Tensor) -> None:
        """Sets the joints' targets."""
        self._panda.drive(actions * self.action_scale)
        self._action_change = actions - self._actions
        self._actions = actions

    def observe(self) -> torch.Tensor:
        """Joints, the hand, the goal, the way between the two, and the last action."""
        panda = self._panda
        self._offset = self.goal_position - panda.hand_position
        self._rotation = apply_matrix(self._to_goal, panda.hand_quaternion)
        return torch.cat(
            [
                panda.positions[:, :NUM_ARM_JOINTS],
                panda.velocities[:, :NUM_ARM_JOINTS],
                panda.hand_position,
                panda.hand_quaternion,
                self.goal_position,
                self.goal_quaternion,
                self._offset,
                sine_vector(self._rotation),
                self._actions,
            ],
            dim=1,
        )

    def metrics(self) -> dict[str, torch.Tensor]:
        """Whether the goal is reached; what is left of the way is kept for :meth:`reward`."""
        self._distance = torch.linalg.vector_norm(self._offset, dim=1)
        self._angle = angle(self._rotation)
        return {"success": (self._distance < self._SUCCESS_DISTANCE) & (self._angle < self._SUCCESS_ANGLE)}

    def reward(self) -> dict[str, torch.Tensor]:
        """The four terms."""
        return {
            "position": self._distance,
            "precision": 1 - (self._distance / self._PRECISION_DISTANCE).tanh(),
            "orientation": self._angle,
            "action_rate": self._action_change.square().sum(dim=1),
        }
