"""GenesisGo2Velocity-v0: a Unitree Go2 that walks at commanded velocities."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from gymnasium import spaces

from genesis_vec.engine import live_view
from genesis_vec.task import Task
from genesis_vec.tasks.ranges import check_range
from genesis_vec.tasks.rotations import rotate_back

if TYPE_CHECKING:
    from genesis_vec.streams import Draws

# Legs: front and rear, right and left. Radians. The rear thighs lean further back, so that the body is level.
DEFAULT_POSE: dict[str, float] = {
    "FR_hip_joint": 0.0,
    "FR_thigh_joint": 0.8,
    "FR_calf_joint": -1.5,
    "FL_hip_joint": 0.0,
    "FL_thigh_joint": 0.8,
    "FL_calf_joint": -1.5,
    "RR_hip_joint": 0.0,
    "RR_thigh_joint": 1.0,
    "RR_calf_joint": -1.5,
    "RL_hip_joint": 0.0,
    "RL_thigh_joint": 1.0,
    "RL_calf_joint": -1.5,
}
"""The pose to stand in (rad), by joint, in the order of observations and actions."""
STIFFNESS = 20.0
"""Proportional gain of each joint, N·m/rad."""
DAMPING = 0.5
"""Derivative gain of each joint, N·m·s/rad."""
START_HEIGHT = 0.42
"""Height of the base where an episode starts, metres."""
TARGET_HEIGHT = 0.3
"""Height of the base that is not penalised, metres."""
ACTION_SCALE = 0.25
"""Radians that an action of 1 moves a joint's target away from the default pose."""
MAX_TILT = math.radians(10.0)
"""Roll or pitch beyond which an episode is over, radians."""
TRACKING_VARIANCE = 0.25
"""Squared error, (m/s)² or (rad/s)², at which a tracking term has fallen to 1/e."""
COMMAND_STEPS = 200
"""Steps for which a command holds: 4 s."""
COMMANDS_PER_EPISODE = 5
"""Commands drawn for each episode."""

_DT = 0.02
_NUM_JOINTS = len(DEFAULT_POSE)
# Of the 45 numbers of an observation, in their order.
_OBSERVATION_SCALES = [0.25] * 3 + [1.0] * 3 + [2.0, 2.0, 0.25] + [1.0] * 12 + [0.05] * 12 + [1.0] * 12
_JOINT_OFFSETS = slice(9, 21)


class Go2VelocityTask(Task):
    """Walk over flat ground at a commanded velocity, forward, sideways and turning.

    The figures (observation, gains, rewards, commands, limits) are those of Genesis World's own example of locomotion,
    ``examples/locomotion/go2_env.py`` with ``go2_train.py``; see ``docs/tasks/go2_velocity.md`` for what differs.

    - Observation, float32 (45,): angular velocity of the base in its own frame (3; rad/s, times 0.25), direction of
      gravity in that frame (3; a unit vector), the command (3; m/s, m/s, rad/s, times 2, 2, 0.25), joint positions
      relative to the default pose (12; rad), joint velocities (12; rad/s, times 0.05), the last action (12). Joints
      are in the order of :data:`DEFAULT_POSE`.
    - Action, float32 (12,) in [-``action_limit``, ``action_limit``]: joint targets around the default pose, in units
      of 0.25 rad, which PD controllers follow. An action takes effect one step (20 ms) after it is given, as on the
      real robot.
    - Reward, each term multiplied by the step's 0.02 s: "tracking_lin_vel", exp(-squared error of the planar velocity
      / 0.25), weight 1; "tracking_ang_vel", the same of the yaw rate, 0.2; "lin_vel_z", squared vertical velocity, -1;
      "base_height", squared distance of the base's height from 0.3 m, -50; "action_rate", squared change of the
      action, -0.005; "similar_to_default", sum of the joints' distances from the default pose, -0.1. Velocities are in
      the base's frame.
    - Terminated: roll or pitch beyond 10 degrees.
    - Initial state: the default pose, 0.42 m above the ground, at rest. Commands change every 4 s (200 steps); the five
      of an episode of 1,000 steps are drawn where it starts, uniformly within the ranges, and with a longer time limit
      they come again in the same order.

    Args:
        forward_speed: Range of the commanded forward velocity, m/s.
        sideways_speed: Range of the commanded velocity to the left, m/s.
        turn_rate: Range of the commanded yaw rate, rad/s, to the left.
        action_limit: Bound of an action's components. The default, as in the engine's example, never binds in
            practice; algorithms that scale their actions to the bounds (SAC, for instance) want some 10.
        self_collision: Whether the robot's links collide with each other.

    Raises:
        ValueError: For an argument out of its range.
    """

    dt = _DT
    substeps = 2
    max_episode_steps = 1000
    reward_weights: ClassVar[dict[str, float]] = {
        "tracking_lin_vel": 1.0 * _DT,
        "tracking_ang_vel": 0.2 * _DT,
        "lin_vel_z": -1.0 * _DT,
        "base_height": -50.0 * _DT,
        "action_rate": -0.005 * _DT,
        "similar_to_default": -0.1 * _DT,
    }
    camera: ClassVar[dict[str, Any]] = {"res": (320, 240), "pos": (2.5, -3.5, 1.6), "lookat": (1.0, 0, 0.3), "fov": 45}

    def __init__(
        self,
        forward_speed: Sequence[float] = (0.5, 0.5),
        sideways_speed: Sequence[float] = (0.0, 0.0),
        turn_rate: Sequence[float] = (0.0, 0.0),
        *,
        action_limit: float = 100.0,
        self_collision: bool = False,
    ) -> None:
        self.forward_speed = check_range("forward_speed", forward_speed, "m/s")
        self.sideways_speed = check_range("sideways_speed", sideways_speed, "m/s")
        self.turn_rate = check_range("turn_rate", turn_rate, "rad/s")
        if not 0 < action_limit < math.inf:
            raise ValueError(f"action_limit={action_limit!r}: give a finite number above 0, such as 100.0")
        if not isinstance(self_collision, bool):
            raise ValueError(f"self_collision={self_collision!r}: give True or False")
        self.action_limit = float(action_limit)
        self.self_collision = self_collision
        self.observation_space = spaces.Box(-np.inf, np.inf, (len(_OBSERVATION_SCALES),), np.float32)
        self.action_space = spaces.Box(-self.action_limit, self.action_limit, (_NUM_JOINTS,), np.float32)

    def scene_options(self) -> dict[str, Any]:
        """A looser solver, and room for few contacts, as in the engine's example."""
        from genesis.options import RigidOptions

        # A robot that does not collide with itself has few pairs in contact, for which the engine need not keep memory.
        pairs: dict[str, Any] = {} if self.self_collision else {"max_collision_pairs": 20}
        rigid_options = RigidOptions(enable_self_collision=self.self_collision, tolerance=1e-5, **pairs)
        return {**super().scene_options(), "rigid_options": rigid_options}

    def build(self, scene: Any) -> None:
        """Adds the ground and the robot."""
        from genesis.options import morphs

        self.robot = scene.add_entity(morphs.URDF(file="urdf/go2/urdf/go2.urdf", pos=(0.0, 0.0, START_HEIGHT)))
        scene.add_entity(morphs.Plane())

    def setup(self) -> None:
        """Sets gains and the pose that episodes start from; allocates the buffers."""
        robot, device = self.robot, self.device
        joints = [robot.get_joint(name) for name in DEFAULT_POSE]
        dofs = [joint.dofs_idx_local[0] for joint in joints]
        default = torch.tensor(list(DEFAULT_POSE.values()), device=device)
        robot.set_dofs_kp([STIFFNESS] * _NUM_JOINTS, dofs)
        robot.set_dofs_kv([DAMPING] * _NUM_JOINTS, dofs)

        # The engine orders the joints by its own rules. It takes targets in its order, as one range, without an index
        # tensor; positions and velocities are picked in ours.
        self._dofs = range(min(dofs), max(dofs) + 1)
        order = torch.tensor(dofs, device=device)
        self._to_engine_order = order.argsort()
        self._engine_default = default[self._to_engine_order]
        self._qs_order = torch.tensor([joint.qs_idx_local[0] for joint in joints], device=device)
        self._dofs_order = order

        qpos = robot.get_qpos().clone()
        qpos[:, self._qs_order] = default.to(qpos.dtype)
        robot.set_qpos(qpos)
        # A state that is given becomes the one that every later reset goes back to.
        self.scene.reset(self.scene.get_state())

        solver = self.scene.rigid_solver
        self._qpos = live_view(solver.qpos)[:, robot.q_start : robot.q_end]
        self._velocity = live_view(solver.dyn_state.dofs.vel)[:, robot.dof_start : robot.dof_end]
        # The engine keeps a floating base's linear velocity in the world's frame and its angular one in its own.
        self._world_velocity, self._angular_velocity = self._velocity[:, None, :3], self._velocity[:, 3:6]
        self._height, self._yaw_rate = self._qpos[:, 2], self._velocity[:, 5]
        self._orientation = self._qpos[:, None, 3:4], self._qpos[:, None, 4:7]
        self._down = torch.tensor([0.0, 0.0, -1.0], device=device).expand(self.num_envs, 1, 3)
        self._scales = torch.tensor(_OBSERVATION_SCALES, device=device)
        self._offsets = torch.zeros_like(self._scales)
        self._offsets[_JOINT_OFFSETS] = -default
        self._tilt_bounds = torch.tensor([math.sin(MAX_TILT), 0.0], device=device)
        self._tilt_slopes = torch.tensor([0.0, -math.tan(MAX_TILT)], device=device)

        ranges = (self.forward_speed, self.sideways_speed, self.turn_rate)
        self._command_low, self._command_high = torch.tensor(ranges, device=device).unbind(dim=1)
        self._episode_commands = torch.zeros(self.num_envs, COMMANDS_PER_EPISODE, 3, device=device)
        self._commands = torch.zeros(self.num_envs, 3, device=device)
        self._tracked_commands = self._commands
        self._actions = torch.zeros(self.num_envs, _NUM_JOINTS, device=device)
        self._previous_actions = self._actions
        # Steps since the scene was built, and the values of it at which episodes began.
        self._clock = 0
        self._start_steps = torch.zeros(self.num_envs, dtype=torch.int64, device=device)

    def reset(self, mask: torch.Tensor, draws: Draws) -> None:
        """Draws the commands of the whole episode, since a task has no draws later."""
        drawn = draws.uniform(COMMANDS_PER_EPISODE, 3, low=self._command_low, high=self._command_high)
        rows = mask[:, None]
        self._episode_commands = torch.where(rows[:, None], drawn, self._episode_commands)
        self._actions = self._actions.masked_fill(rows, 0.0)
        self._start_steps = self._start_steps.masked_fill(mask, self._clock)

    def act(self, actions: torch.Tensor) -> None:
        """Sets the targets that the previous action asks for, and keeps this one for the next step."""
        self._previous_actions, self._actions = self._actions, actions
        executed = self._previous_actions.index_select(1, self._to_engine_order)
        self.robot.control_dofs_position(torch.add(self._engine_default, executed, alpha=ACTION_SCALE), self._dofs)
        # The observation after this step may show the next command already; the reward is for following this one.
        self._tracked_commands = self._commands
        self._clock += 1

    def observe(self) -> torch.Tensor:
        """The 45 numbers."""
        turn = ((self._clock - self._start_steps) // COMMAND_STEPS).remainder(COMMANDS_PER_EPISODE)
        self._commands = self._episode_commands.gather(1, turn[:, None, None].expand(-1, 1, 3))[:, 0]
        in_base = rotate_back(torch.cat([self._world_velocity, self._down], dim=1), *self._orientation)
        self._base_velocity, self._gravity = in_base.unbind(dim=1)
        parts = [
            self._angular_velocity,
            self._gravity,
            self._commands,
            self._qpos.index_select(1, self._qs_order),
            self._velocity.index_select(1, self._dofs_order),
            self._actions,
        ]
        observation = torch.addcmul(self._offsets, torch.cat(parts, dim=1), self._scales)
        self._joint_offsets = observation[:, _JOINT_OFFSETS]
        return observation

    def reward(self) -> dict[str, torch.Tensor]:
        """The six terms, without their weights."""
        commands, velocity = self._tracked_commands, self._base_velocity
        planar_error = (commands[:, :2] - velocity[:, :2]).square().sum(dim=1)
        turning_error = (commands[:, 2] - self._yaw_rate).square()
        return {
            "tracking_lin_vel": (planar_error * (-1.0 / TRACKING_VARIANCE)).exp(),
            "tracking_ang_vel": (turning_error * (-1.0 / TRACKING_VARIANCE)).exp(),
            "lin_vel_z": velocity[:, 2].square(),
            "base_height": (self._height - TARGET_HEIGHT).square(),
            "action_rate": (self._previous_actions - self._actions).square().sum(dim=1),
            "similar_to_default": torch.linalg.vector_norm(self._joint_offsets, ord=1, dim=1),
        }

    def terminated(self) -> torch.Tensor:
        """Whether the robot tilts too far.

        In terms of the direction of gravity g: sin(pitch) = g_x and tan(roll) = g_y / g_z, with g_z = -1 upright. The
        second is asked as |g_y| > -tan(10°) g_z, which also holds for every robot on its back.
        """
        bounds = torch.addcmul(self._tilt_bounds, self._gravity[:, 2:], self._tilt_slopes)
        return (self._gravity[:, :2].abs() > bounds).any(dim=1)
