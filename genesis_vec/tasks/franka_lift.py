"""GenesisFrankaLift-v0: a Franka Panda grasps a cube on the ground and lifts it to a goal in the air."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from gymnasium import spaces

from genesis_vec.engine import live_view
from genesis_vec.task import Task
from genesis_vec.tasks.franka import (
    GRIP_OFFSET,
    NUM_ARM_JOINTS,
    OPEN,
    Panda,
    add_panda,
    check_argument,
    check_box,
)
from genesis_vec.tasks.rotations import about_axis, pointing_matrix, rotated

if TYPE_CHECKING:
    from genesis_vec.streams import Draws

CUBE_SIZE = 0.04
"""Length of the cube's edges, in metres; the gripper opens to 0.08 m. Of water's density, it weighs 64 g."""


class FrankaLiftTask(Task):
    """Grasp a cube from above, lift it, and hold it at a goal.

    The policy moves the gripper in space: what its actions ask of the joints is computed from the arm's Jacobian by
    damped least squares (C. Wampler, "Manipulator inverse kinematic solutions based on vector formulations and damped
    least-squares methods", 1986), and the hand is kept pointing down. Positions are in metres in world axes, the
    robot's base at the origin and x ahead of it; the grip is the point between the finger pads; quaternions are
    (w, x, y, z).

    - Observation, float32 (46,): joint and finger positions (9; rad, m), their velocities (9; rad/s, m/s), grip
      position (3), hand orientation (4), cube position minus grip position (3), cube orientation (4), cube velocity
      (3; m/s) and angular velocity (3; rad/s), goal minus cube position (3), the last action (5).
    - Action, float32 (5,) in [-1, 1]: velocity of the grip along x, y and z, in units of ``max_speed``; turn of the
      hand about the vertical, in units of 2 rad/s; opening of the gripper, -1 closed and 1 open.
    - Reward: "approach", 1 - tanh(distance from grip to cube / 0.1 m), weight 1; "grasp", weight 1, how near the grip
      is to the cube's centre, exp(-(distance / 0.02 m)²), times how far the gripper has closed on the cube; "lift",
      the cube's height above the ground as a share of the goal's, in [0, 1], weight 4; "goal", that share times
      1 - tanh(distance from cube to goal / 0.1 m), weight 8; "action_rate", the sum of squares of the change of the
      action, weight -0.02.
    - Terminated: the cube's centre is more than 0.35 m from (0.5, 0) along x or y, or has fallen below the ground.
    - The arm starts within 0.05 rad of its rest pose. The cube lies in the square of half-width ``spread`` around
      (0.5, 0), turned by up to 45 degrees. Goals are uniform in the box from ``goal_low`` to ``goal_high``.
    - Metrics in ``info``: "success" bool, whether the cube's centre is within 3 cm of the goal.

    Args:
        max_speed: See above; in (0, 1], m/s.
        spread: See above; in [0, 0.15], metres.
        goal_low: Lower corner of the box of goals, at least 0.1 m above the ground.
        goal_high: Upper corner.

    Attributes:
        robot: The Genesis entity of the robot.
        cube: The Genesis entity of the cube.
        goal: float32 (num_envs, 3), metres.

    Raises:
        ValueError: For an argument out of its range.
    """

    dt = 0.02
    # With two, one cube in sixty slips from the grip.
    substeps = 3
    max_episode_steps = 150
    reward_weights: ClassVar[dict[str, float]] = {
        "approach": 1.0,
        "grasp": 1.0,
        "lift": 4.0,
        "goal": 8.0,
        "action_rate": -0.02,
    }
    camera: ClassVar[dict[str, Any]] = {"res": (320, 240), "pos": (1.5, -1.2, 0.8), "lookat": (0.4, 0, 0.2), "fov": 40}

    _MAX_TURN_SPEED = 2.0
    # Seconds by which targets are ahead: the gains, and targets that are renewed every 0.02 s, make a joint follow one
    # that is x away with a velocity of 9.1 x / s.
    _LEAD = 0.11
    _TILT_GAIN = 0.5
    _DAMPING = 0.05
    _CENTRE = (0.5, 0.0)
    _HALF_WORKSPACE = 0.35
    _RESET_NOISE = 0.05
    _APPROACH_DISTANCE = 0.1
    _GRASP_DISTANCE = 0.02
    _GOAL_DISTANCE = 0.1
    _SUCCESS_DISTANCE = 0.03

    def __init__(
        self,
        *,
        max_speed: float = 0.5,
        spread: float = 0.1,
        goal_low: Sequence[float] = (0.4, -0.15, 0.15),
        goal_high: Sequence[float] = (0.6, 0.15, 0.35),
    ) -> None:
        check_argument("max_speed", max_speed, 0 < max_speed <= 1, "a number in (0, 1], in m/s")
        check_argument("spread", spread, 0 <= spread <= 0.15, "a number from 0 to 0.15, in metres")
        check_box("goal", goal_low, goal_high)
        check_argument("goal_low", goal_low, goal_low[2] >= 0.1, "z of at least 0.1: the cube is to be lifted")
        self.max_speed = max_speed
        self.spread = spread
        self.goal_low = tuple(goal_low)
        self.goal_high = tuple(goal_high)
        self.observation_space = spaces.Box(-np.inf, np.inf, (46,), np.float32)
        self.action_space = spaces.Box(-1.0, 1.0, (5,), np.float32)

    def scene_options(self) -> dict[str, Any]:
        """The cube and the fingers' pads are boxes, for which the engine has a quicker search for contacts."""
        from genesis.options import RigidOptions

        return {**super().scene_options(), "rigid_options": RigidOptions(box_box_detection=True)}

    def build(self, scene: Any) -> None:
        """Adds the robot, the ground and the cube."""
        from genesis.options.morphs import Box, Plane
        from genesis.options.surfaces import Default

        self.robot = add_panda(scene)
        scene.add_entity(Plane())
        self.cube = scene.add_entity(
            Box(size=(CUBE_SIZE,) * 3, pos=(*self._CENTRE, CUBE_SIZE / 2)), surface=Default(color=(0.8, 0.2, 0.1))
        )

    def setup(self) -> None:
        """Sets the gains, and allocates goals and actions."""
        solver, cube, device = self.scene.rigid_solver, self.cube, self.device
        self._panda = Panda(self.scene, self.robot, device)
        self._hand = self.robot.get_link("hand")
        cube_pose = live_view(solver.qpos)[:, cube.q_start : cube.q_end]
        self._cube_position, self._cube_quaternion = cube_pose[:, :3], cube_pose[:, 3:]
        self._cube_height = cube_pose[:, 2]
        self._cube_velocity = live_view(solver.dyn_state.dofs.vel)[:, cube.dof_start : cube.dof_end]
        self._grip_offset = torch.tensor([0.0, 0.0, GRIP_OFFSET], device=device)
        # From the hand to the grip, and the rotation about x and y that makes this point down: (-y, x) of the same.
        to_grip = pointing_matrix((0.0, 0.0, GRIP_OFFSET), device)
        gain = self._TILT_GAIN / GRIP_OFFSET
        self._pointing = torch.cat([to_grip, -gain * to_grip[:, 1:2], gain * to_grip[:, :1]], dim=1)
        self._correction = torch.zeros(self.num_envs, 2, device=device)
        speeds = [*[self.max_speed] * 3, self._MAX_TURN_SPEED]
        self._action_scale = torch.tensor(speeds, device=device) * self._LEAD
        self._damping = self._DAMPING**2 * torch.eye(6, device=device)
        self._centre = torch.tensor(self._CENTRE, device=device)
        self._goal_low = torch.tensor(self.goal_low, device=device)
        self._goal_high = torch.tensor(self.goal_high, device=device)
        self._on_ground = torch.full((self.num_envs, 1), CUBE_SIZE / 2, device=device)
        self.goal = torch.zeros(self.num_envs, 3, device=device)
        self._actions = torch.zeros(self.num_envs, 5, device=device)
        self._action_change = torch.zeros_like(self._actions)

    def reset(self, mask: torch.Tensor, draws: Draws) -> None:
        """Draws the goal, and where the cube lies and the arm starts."""
        rows = mask[:, None]
        goal = draws.uniform(3, low=self._goal_low, high=self._goal_high)
        place = self._centre + draws.uniform(2, low=-self.spread, high=self.spread)
        yaw = draws.uniform(1, low=-math.pi / 4, high=math.pi / 4)[:, 0]
        noise = draws.uniform(NUM_ARM_JOINTS, low=-self._RESET_NOISE, high=self._RESET_NOISE)
        self.goal = torch.where(rows, goal, self.goal)
        self._actions = self._actions.masked_fill(rows, 0.0)
        pose = torch.cat([place, self._on_ground, about_axis(yaw, 0, 0, 1)], dim=1)
        # The arm's start computes the poses of everything.
        self.cube.set_qpos(pose, envs_idx=mask, skip_forward=True)
        self._panda.start(mask, noise)

    def act(self, actions: torch.Tensor) -> None:
        """Sets the joints' targets so that the grip moves as asked and the hand goes on pointing down."""
        scaled = actions[:, :4] * self._action_scale
        twist = torch.cat([scaled[:, :3], self._correction, scaled[:, 3:]], dim=1)
        jacobian = self.robot.get_jacobian(self._hand, self._grip_offset)[:, :, :NUM_ARM_JOINTS]
        # Jᵀ (J Jᵀ + λ² I)⁻¹ twist; solve_ex, which unlike solve does not wait for the device to tell of errors.
        transposed = jacobian.transpose(1, 2)
        solution = torch.linalg.solve_ex(torch.baddbmm(self._damping, jacobian, transposed), twist[:, :, None])
        change = torch.bmm(transposed, solution.result)[:, :, 0]
        self._panda.drive(change, (actions[:, 4:] + 1) * (OPEN / 2))
        self._action_change = actions - self._actions
        self._actions = actions

    def observe(self) -> torch.Tensor:
        """The robot, the cube as seen from the grip, the goal as seen from the cube, and the last action."""
        panda = self._panda
        pointing = rotated(panda.hand_quaternion, self._pointing)
        grip = panda.hand_position + pointing[:, :3]
        self._correction = pointing[:, 3:]
        self._to_cube = self._cube_position - grip
        self._to_goal = self.goal - self._cube_position
        return torch.cat(
            [
                panda.positions,
                panda.velocities,
                grip,
                panda.hand_quaternion,
                self._to_cube,
                self._cube_quaternion,
                self._cube_velocity,
                self._to_goal,
                self._actions,
            ],
            dim=1,
        )

    def metrics(self) -> dict[str, torch.Tensor]:
        """Whether the cube is at the goal; its distance is kept for :meth:`reward`."""
        self._goal_distance = torch.linalg.vector_norm(self._to_goal, dim=1)
        return {"success": self._goal_distance < self._SUCCESS_DISTANCE}

    def reward(self) -> dict[str, torch.Tensor]:
        """The five terms."""
        distance = torch.linalg.vector_norm(self._to_cube, dim=1)
        # From 0 for an open gripper to 1 for one as wide as the cube, and back to 0 for a closed one.
        width = self._panda.positions[:, NUM_ARM_JOINTS:].sum(dim=1)
        closed = (1 - (width - CUBE_SIZE).abs() / CUBE_SIZE).clamp(min=0.0)
        height = self._cube_height - CUBE_SIZE / 2
        lifted = (height / (self.goal[:, 2] - CUBE_SIZE / 2)).clamp(0.0, 1.0)
        return {
            "approach": 1 - (distance / self._APPROACH_DISTANCE).tanh(),
            "grasp": closed * (distance / self._GRASP_DISTANCE).square().neg().exp(),
            "lift": lifted,
            "goal": lifted * (1 - (self._goal_distance / self._GOAL_DISTANCE).tanh()),
            "action_rate": self._action_change.square().sum(dim=1),
        }

    def terminated(self) -> torch.Tensor:
        """Whether the cube is out of reach."""
        away = (self._cube_position[:, :2] - self._centre).abs().amax(dim=1)
        return (away > self._HALF_WORKSPACE) | (self._cube_height < 0)
