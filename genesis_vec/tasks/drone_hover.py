"""GenesisDroneHover-v0: a Crazyflie quadcopter that flies to targets."""

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

HOVER_RPM = 14468.429183500699
"""Speed of each propeller, revolutions per minute, at which thrust is weight: sqrt(0.027 · 9.8 / (4 · 3.16e-10))."""
RPM_SHARE = 0.8
"""Share of it by which an action of 1 speeds a propeller up."""
START_POSITION = (0.0, 0.0, 1.0)
"""Where an episode starts, metres."""
REACHED_DISTANCE = 0.1
"""Distance from a target, metres, at which it is reached."""
MAX_OFFSET = (3.0, 3.0, 2.0)
"""Distance from the target along each axis, metres, beyond which the drone counts as lost."""
MIN_HEIGHT = 0.1
"""Height below which it counts as crashed, metres."""
TARGETS_PER_EPISODE = 32
"""Targets drawn for each episode, more than can be reached in 15 s."""

_DT = 0.01
# Of the 17 numbers of an observation, in their order.
_OBSERVATION_SCALES = [1 / 3] * 3 + [1.0] * 4 + [1 / 3] * 3 + [1 / math.pi] * 3 + [1.0] * 4


class DroneHoverTask(Task):
    """Fly to a target; where it is reached, the next one appears.

    The figures (observation, propellers, rewards, targets, limits) are those of Genesis World's own example,
    ``examples/drone/hover_env.py`` with ``hover_train.py``; see ``docs/tasks/drone_hover.md`` for what differs.

    - Observation, float32 (17,) in [-1, 1], each value clipped: target relative to the drone, in the world's frame (3;
      units of 3 m), orientation (4; unit quaternion w, x, y, z), linear velocity (3; units of 3 m/s) and angular
      velocity (3; units of π rad/s), both in the drone's own frame, and the action before the last (4).
    - Action, float32 (4,) in [-1, 1]: speed of each propeller, (1 + 0.8 · action) · 14,468 revolutions per minute; 0
      hovers.
    - Reward, each term multiplied by the step's 0.01 s: "target", how much the squared distance to the target fell in
      the step (m²), weight 10; "smooth", squared change of the action, -1e-4; "yaw", exp(-10 |yaw| / rad), 0.01;
      "angular", magnitude of the angular velocity in units of π rad/s, -2e-4; "crash", 1 where the episode ends by
      termination, -10.
    - Terminated: more than 3 m from the target along x or y or more than 2 m along z, or lower than 0.1 m.
    - Initial state: level and at rest, 1 m above the ground. A target within 0.1 m is reached, and the observation
      shows the next one at once. Targets are uniform within the ranges; 32 are drawn where an episode starts, and
      after the last the first comes again.
    - Metrics in ``info``: "success" bool, whether the drone has been within 0.1 m of a target in this episode, at the
      end of this step or earlier; "targets_reached" int64, how many it has reached.

    Args:
        target_x: Range of the targets along x, metres; within 3 m of the start and at most 2.9 m wide.
        target_y: Likewise along y.
        target_z: Likewise along z, the height: within 2 m of the start, at most 1.9 m wide, and above 0.1 m.

    Raises:
        ValueError: For an argument out of its range.
    """

    dt = _DT
    substeps = 2
    max_episode_steps = 1500
    reward_weights: ClassVar[dict[str, float]] = {
        "target": 10.0 * _DT,
        "smooth": -1e-4 * _DT,
        "yaw": 0.01 * _DT,
        "angular": -2e-4 * _DT,
        "crash": -10.0 * _DT,
    }
    camera: ClassVar[dict[str, Any]] = {"res": (320, 240), "pos": (2.2, -2.2, 1.8), "lookat": (0, 0, 0.9), "fov": 40}

    def __init__(
        self,
        target_x: Sequence[float] = (-1.0, 1.0),
        target_y: Sequence[float] = (-1.0, 1.0),
        target_z: Sequence[float] = (1.0, 1.0),
    ) -> None:
        self.target_x = _check_targets("target_x", target_x, axis=0)
        self.target_y = _check_targets("target_y", target_y, axis=1)
        self.target_z = _check_targets("target_z", target_z, axis=2)
        if not self.target_z[0] > MIN_HEIGHT:
            raise ValueError(f"target_z={target_z!r}: below {MIN_HEIGHT} m a drone has crashed; give larger heights")
        self.observation_space = spaces.Box(-1.0, 1.0, (len(_OBSERVATION_SCALES),), np.float32)
        self.action_space = spaces.Box(-1.0, 1.0, (4,), np.float32)

    def build(self, scene: Any) -> None:
        """Adds the ground and the drone."""
        from genesis.options import morphs

        scene.add_entity(morphs.Plane())
        self.robot = scene.add_entity(morphs.Drone(file="urdf/drones/cf2x.urdf", pos=START_POSITION))

    def setup(self) -> None:
        """Allocates the buffers."""
        robot, device = self.robot, self.device
        solver = self.scene.rigid_solver
        qpos = live_view(solver.qpos)[:, robot.q_start : robot.q_end]
        velocity = live_view(solver.dyn_state.dofs.vel)[:, robot.dof_start : robot.dof_end]
        self._position, self._height, self._quaternion = qpos[:, :3], qpos[:, 2], qpos[:, 3:]
        self._orientation = qpos[:, None, 3:4], qpos[:, None, 4:]
        # The engine keeps a floating base's linear velocity in the world's frame and its angular one in its own.
        self._world_velocity, self._angular_velocity = velocity[:, None, :3], velocity[:, 3:]
        self._scales = torch.tensor(_OBSERVATION_SCALES, device=device)
        self._max_offset = torch.tensor(MAX_OFFSET, device=device)
        ranges = (self.target_x, self.target_y, self.target_z)
        self._target_low, self._target_high = torch.tensor(ranges, device=device).unbind(dim=1)
        self._episode_targets = torch.zeros(self.num_envs, TARGETS_PER_EPISODE, 3, device=device)
        # How many targets are behind, and which is next: as they were in the last step, and as last observed.
        self._reached_before = torch.zeros(self.num_envs, dtype=torch.int64, device=device)
        self._targets_reached = self._reached_before
        self._target = torch.zeros(self.num_envs, 3, device=device)
        self._next_target = self._target
        self._actions = torch.zeros(self.num_envs, 4, device=device)
        self._previous_actions = self._actions

    def reset(self, mask: torch.Tensor, draws: Draws) -> None:
        """Draws the targets of the whole episode, since a task has no draws later."""
        drawn = draws.uniform(TARGETS_PER_EPISODE, 3, low=self._target_low, high=self._target_high)
        rows = mask[:, None]
        self._episode_targets = torch.where(rows[:, None], drawn, self._episode_targets)
        self._target = torch.where(rows, drawn[:, 0], self._target)
        self._reached_before = self._reached_before.masked_fill(mask, 0)
        self._actions = self._actions.masked_fill(rows, 0.0)
        self._previous_actions = self._previous_actions.masked_fill(rows, 0.0)

    def act(self, actions: torch.Tensor) -> None:
        """Sets the propellers' speeds, and makes the target last observed the one to fly to."""
        self._previous_actions, self._actions = self._actions, actions
        self._target, self._reached_before = self._next_target, self._targets_reached
        self._squared_distance_before = (self._target - self._position).square().sum(dim=1)
        self.robot.set_propellers_rpm(torch.add(actions * (RPM_SHARE * HOVER_RPM), HOVER_RPM))

    def observe(self) -> torch.Tensor:
        """The 17 numbers.

        Called twice in a step in which an episode starts, it counts a target from what :meth:`act` left, so that
        nothing is counted twice.
        """
        self._offset = self._target - self._position
        self._squared_distance = self._offset.square().sum(dim=1)
        self._targets_reached = self._reached_before + (self._squared_distance < REACHED_DISTANCE**2)
        turn = self._targets_reached.remainder(TARGETS_PER_EPISODE)
        self._next_target = self._episode_targets.gather(1, turn[:, None, None].expand(-1, 1, 3))[:, 0]
        velocity = rotate_back(self._world_velocity, *self._orientation)[:, 0]
        parts = [self._next_target - self._position, self._quaternion, velocity, self._angular_velocity]
        return (torch.cat([*parts, self._previous_actions], dim=1) * self._scales).clamp(-1.0, 1.0)

    def metrics(self) -> dict[str, torch.Tensor]:
        """Whether a target has been reached, and how many."""
        return {"success": self._targets_reached > 0, "targets_reached": self._targets_reached.clone()}

    def reward(self) -> dict[str, torch.Tensor]:
        """The five terms, without their weights; for flying to the target that was there during the step."""
        is_lost = (self._offset.abs() > self._max_offset).any(dim=1)
        self._crashed = is_lost | (self._height < MIN_HEIGHT)
        w, x, y, z = self._quaternion.unbind(dim=1)
        sine = torch.addcmul(w * z, x, y)
        cosine = 0.5 - torch.addcmul(y * y, z, z)
        return {
            "target": self._squared_distance_before - self._squared_distance,
            "smooth": (self._actions - self._previous_actions).square().sum(dim=1),
            "yaw": (torch.atan2(sine, cosine).abs() * -10.0).exp(),
            "angular": torch.linalg.vector_norm(self._angular_velocity, dim=1) * (1 / math.pi),
            "crash": self._crashed,
        }

    def terminated(self) -> torch.Tensor:
        """Whether the drone is lost or has crashed."""
        return self._crashed


def _check_targets(name: str, value: Sequence[float], axis: int) -> tuple[float, float]:
    """A range of targets that can be flown to, also from one another.

    Raises:
        ValueError: If it is none, or an episode could be over before the drone has a chance to get there.
    """
    low, high = check_range(name, value, "m")
    start, limit = START_POSITION[axis], MAX_OFFSET[axis]
    # A drone that has reached a target may be this much further away from the next one than the targets are.
    width = limit - REACHED_DISTANCE
    if not (start - limit < low and high < start + limit and high - low <= width):
        raise ValueError(
            f"{name}={value!r}: a drone more than {limit} m from its target along this axis is lost; give a range at "
            f"most {width} m wide, between {start - limit} and {start + limit}"
        )
    return low, high
