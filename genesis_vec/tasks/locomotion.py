"""GenesisAnt-v0 and GenesisHumanoid-v0: run forward, with the rewards of Gymnasium's Ant-v5 and Humanoid-v5."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from gymnasium import spaces

from genesis_vec.engine import live_view, of_model
from genesis_vec.task import Task

if TYPE_CHECKING:
    from genesis_vec.streams import Draws

# The floating base comes first in the generalised positions (position, quaternion) and in the velocities.
_BASE_QS, _BASE_DOFS = 7, 6
_HEIGHT, _QUATERNION = 2, slice(3, 7)


class LocomotionTask(Task):
    """Run along x for as long as the torso stays at a healthy height: what the two tasks here have in common.

    A subclass gives the model, the pose to start in and, in :meth:`_forward_position`, the place whose speed is paid.

    Args:
        forward_weight: Reward for each metre per second of forward velocity.
        healthy_reward: Reward of each step that ends at a healthy height.
        control_cost_weight: Cost of the sum of the squared actions.
        healthy_range: Lowest and highest healthy height of the torso, in metres; (-inf, inf) never terminates.
        reset_noise: Size of the noise in initial positions and velocities, 0 or more.

    Raises:
        ValueError: For an argument out of its range.
    """

    max_episode_steps = 1000

    _MODEL: ClassVar[str]
    _START_HEIGHT: ClassVar[float]
    _START_ANGLES: ClassVar[tuple[float, ...] | None] = None
    # An episode of 50 s stays on it at up to 20 m/s. Contrary to what the engine documents, its planes end, and a robot
    # falls over the edge.
    _GROUND_SIZE = (2000.0, 2000.0)

    def __init__(
        self,
        *,
        forward_weight: float,
        healthy_reward: float,
        control_cost_weight: float,
        healthy_range: tuple[float, float],
        reset_noise: float,
    ) -> None:
        for name, value in (
            ("forward_weight", forward_weight),
            ("healthy_reward", healthy_reward),
            ("control_cost_weight", control_cost_weight),
        ):
            if not math.isfinite(value):
                raise ValueError(f"{name}={value!r}: give a finite number")
        if not 0 <= reset_noise < math.inf:
            raise ValueError(f"reset_noise={reset_noise!r}: give a finite number of 0 or more")
        if len(healthy_range) != 2 or not healthy_range[0] < healthy_range[1]:
            raise ValueError(f"healthy_range={healthy_range!r}: give two heights in metres, the lower one first")
        # The weights are arguments here, so each instance has its own.
        weights = {"forward": forward_weight, "healthy": healthy_reward, "control": -control_cost_weight}
        self.reward_weights = weights  # type: ignore[misc]
        self.healthy_range = (float(healthy_range[0]), float(healthy_range[1]))
        self.reset_noise = reset_noise

    # ---------------------------------------------------------------------------------------------------- the robot

    def build(self, scene: Any) -> None:
        """Adds the robot and the ground."""
        from genesis.options.morphs import MJCF, Plane

        # The models' own grounds end after 20 to 40 metres. An armature that they leave out stays out.
        self.robot = scene.add_entity(MJCF(file=self._MODEL, exclude_ground_plane=True, default_armature=None))
        scene.add_entity(Plane(plane_size=self._GROUND_SIZE))

    def setup(self) -> None:
        """Looks up the motors' gears and the views of the state, and allocates what a step carries over."""
        robot, solver = self.robot, self.scene.rigid_solver
        self._qpos = live_view(solver.qpos)[:, robot.q_start : robot.q_end]
        self._velocity = live_view(solver.dyn_state.dofs.vel)[:, robot.dof_start : robot.dof_end]
        self._pose = self._qpos[:, 2:]
        self._height = self._qpos[:, _HEIGHT]
        self._position = self._forward_position()
        self._motors = range(_BASE_DOFS, robot.n_dofs)
        self.gears = of_model(robot.get_dofs_act_gain(self._motors)).float()
        self._per_second = 1.0 / (self.dt * self.decimation)
        start = robot.get_qpos()[0].float().clone()
        start[_HEIGHT] = self._START_HEIGHT
        if self._START_ANGLES is not None:
            start[_BASE_QS:] = torch.tensor(self._START_ANGLES, device=self.device)
        self.start_qpos = start
        self._position_before = torch.zeros_like(self._position)
        self._effort = torch.zeros(self.num_envs, device=self.device)

        size = robot.n_qs - 2 + robot.n_dofs
        self.observation_space = spaces.Box(-np.inf, np.inf, (size,), np.float32)
        self.action_space = spaces.Box(-1.0, 1.0, (len(self._motors),), np.float32)

    def _forward_position(self) -> torch.Tensor:
        """A view, (num_envs,), of the x whose rate is the forward velocity, in metres: the torso's."""
        return self._qpos[:, 0]

    # --------------------------------------------------------------------------------------------------- an episode

    def reset(self, mask: torch.Tensor, draws: Draws) -> None:
        """Draws positions and velocities about the start."""
        noise = self.reset_noise
        qpos = self.start_qpos + draws.uniform(self.robot.n_qs, low=-noise, high=noise)
        qpos[:, _QUATERNION] = torch.nn.functional.normalize(qpos[:, _QUATERNION], dim=1)
        self.robot.set_dofs_velocity(self._draw_velocity(draws), envs_idx=mask, skip_forward=True)
        # Last, as this is what computes poses and velocities of the links, of the masked rows alone. Left to the next
        # step, they would be computed for every row, and the centre of mass before that step would be an old one.
        self.robot.set_qpos(qpos, envs_idx=mask, zero_velocity=False)

    def _draw_velocity(self, draws: Draws) -> torch.Tensor:
        return draws.uniform(self.robot.n_dofs, low=-self.reset_noise, high=self.reset_noise)

    def act(self, actions: torch.Tensor) -> None:
        """Applies torques."""
        self._position_before = self._position.clone()
        self._effort = actions.square().sum(dim=1)
        self.robot.control_dofs_force(actions * self.gears, self._motors)

    def observe(self) -> torch.Tensor:
        """Positions without x and y, then velocities."""
        return torch.cat([self._pose, self._velocity], dim=1)

    def metrics(self) -> dict[str, torch.Tensor]:
        """The forward velocity, which :meth:`reward` pays for."""
        self._forward_velocity = (self._position - self._position_before) * self._per_second
        return {"forward_velocity": self._forward_velocity}

    def reward(self) -> dict[str, torch.Tensor]:
        """The three terms: velocity, whether the height is healthy, and effort."""
        self._healthy = self._height == self._height.clamp(*self.healthy_range)
        return {"forward": self._forward_velocity, "healthy": self._healthy, "control": self._effort}

    def terminated(self) -> torch.Tensor:
        """Whether the torso has left the healthy heights."""
        return ~self._healthy


class AntTask(LocomotionTask):
    """Make a four-legged ant run in the direction of x.

    The model is the engine's ``xml/ant.xml``, an ant of 0.9 kg with two motors in each leg. Reward, termination and
    initial noise are those of Gymnasium's Ant-v5 (J. Schulman et al., "High-dimensional continuous control using
    generalized advantage estimation", 2015).

    - Observation, float32 (27,): height of the torso (m), its orientation (unit quaternion w, x, y, z), the eight joint
      angles (rad); then the torso's velocity (m/s, world frame), its angular velocity (rad/s, its own frame), the
      joints' velocities (rad/s). Joints in the order hip 1, ankle 1, … hip 4, ankle 4.
    - Action, float32 (8,) in [-1, 1]: torques in units of the motors' gear, 150 N·m, joints in the same order.
    - Reward, the sum of: "forward", ``forward_weight`` times the torso's velocity along x (m/s), its displacement in
      the step over the step's duration; "healthy", ``healthy_reward`` if the height is healthy; "control",
      -``control_cost_weight`` times the sum of the squared actions.
    - Terminated: the torso's height is outside ``healthy_range``.
    - Initial state: torso at 0.75 m, legs bent by 1 rad, at rest; plus noise uniform in ±``reset_noise`` on every
      position (the quaternion is then normalised), and normal with that standard deviation on every velocity.
    - Time: 0.05 s a step, in 5 solver substeps of 0.01 s. Time limit 1000 steps.
    - Metrics in ``info``: "forward_velocity" (m/s).

    Differences from Ant-v5: no contact forces in the observation and no contact cost (as with
    ``include_cfrc_ext_in_observation=False`` and ``contact_cost_weight=0``); only the feet touch the ground, since the
    engine's model gives nothing else a collision shape, so that an ant on its back sinks until it is terminated; legs
    start bent, where Ant-v5's start straight, outside the ankles' limits; actions go by the joints' order; a
    semi-implicit integrator in place of Runge-Kutta.

    Args:
        forward_weight: Reward for each metre per second of forward velocity.
        healthy_reward: Reward of each step that ends at a healthy height.
        control_cost_weight: Cost of the sum of the squared actions.
        healthy_range: Lowest and highest healthy height of the torso, in metres; (-inf, inf) never terminates.
        reset_noise: Size of the noise in initial positions and velocities, 0 or more.

    Attributes:
        robot: The Genesis entity.
        gears: float32 (8,), torques of a full action, in newton metres.
        start_qpos: float32 (15,), the generalised positions to which the initial noise is added.

    Raises:
        ValueError: For an argument out of its range.
    """

    dt = 0.05
    substeps = 5
    camera: ClassVar[dict[str, Any]] = {"res": (320, 240), "pos": (1.5, -4.5, 2.0), "lookat": (1.0, 0, 0.4), "fov": 45}

    _MODEL = "xml/ant.xml"
    _START_HEIGHT = 0.75
    _START_ANGLES = (0.0, 1.0, 0.0, -1.0, 0.0, -1.0, 0.0, 1.0)

    def __init__(
        self,
        *,
        forward_weight: float = 1.0,
        healthy_reward: float = 1.0,
        control_cost_weight: float = 0.5,
        healthy_range: tuple[float, float] = (0.2, 1.0),
        reset_noise: float = 0.1,
    ) -> None:
        super().__init__(
            forward_weight=forward_weight,
            healthy_reward=healthy_reward,
            control_cost_weight=control_cost_weight,
            healthy_range=healthy_range,
            reset_noise=reset_noise,
        )

    def _draw_velocity(self, draws: Draws) -> torch.Tensor:
        return self.reset_noise * draws.normal(self.robot.n_dofs)


class HumanoidTask(LocomotionTask):
    """Make a humanoid run in the direction of x without falling.

    The model is the engine's ``xml/humanoid.xml``, a humanoid of 41 kg with 21 motors. Reward, termination and initial
    noise are those of Gymnasium's Humanoid-v5 (Y. Tassa, T. Erez and E. Todorov, "Synthesis and stabilization of
    complex behaviors through online trajectory optimization", 2012).

    - Observation, float32 (53,): height of the torso (m), its orientation (unit quaternion w, x, y, z), the 21 joint
      angles (rad); then the torso's velocity (m/s, world frame), its angular velocity (rad/s, its own frame), the
      joints' velocities (rad/s). Joints in the order abdomen z, y, x; right hip x, z, y, knee, ankle y, x; the same on
      the left; right shoulder 1, 2, elbow; the same on the left.
    - Action, float32 (21,) in [-1, 1]: torques in units of the motors' gears, 20 to 120 N·m, joints in the same order.
    - Reward, the sum of: "forward", ``forward_weight`` times the velocity of the whole body's centre of mass along x
      (m/s), its displacement in the step over the step's duration; "healthy", ``healthy_reward`` if the height is
      healthy; "control", -``control_cost_weight`` times the sum of the squared actions.
    - Terminated: the torso's height is outside ``healthy_range``.
    - Initial state: upright with the torso at 1.3 m, so that even with the noise no foot is in the ground, at rest;
      plus noise uniform in ±``reset_noise`` on every position (the quaternion is then normalised) and velocity.
    - Time: 0.015 s a step, in 3 solver substeps of 0.005 s. Time limit 1000 steps.
    - Metrics in ``info``: "forward_velocity" (m/s).

    Differences from Humanoid-v5: another model, with ankles of two joints each and feet of two capsules, so 21 motors
    in place of 17, which starts at 1.3 m in place of 1.4 m; actions up to 1, where Humanoid-v5's go up to 0.4, which
    makes the control cost of full torques greater; no inertias, link velocities, actuator and contact forces in the
    observation and no contact cost (as with each ``include_…_in_observation=False`` and ``contact_cost_weight=0``);
    3 substeps of 0.005 s with a semi-implicit integrator in place of 5 of 0.003 s with Runge-Kutta. The engine does not
    simulate the model's tendons, which limit how far a straight leg can be raised.

    Args:
        forward_weight: Reward for each metre per second of forward velocity.
        healthy_reward: Reward of each step that ends at a healthy height.
        control_cost_weight: Cost of the sum of the squared actions.
        healthy_range: Lowest and highest healthy height of the torso, in metres; (-inf, inf) never terminates.
        reset_noise: Size of the noise in initial positions and velocities, 0 or more.

    Attributes:
        robot: The Genesis entity.
        gears: float32 (21,), torques of a full action, in newton metres.
        start_qpos: float32 (28,), the generalised positions to which the initial noise is added.

    Raises:
        ValueError: For an argument out of its range.
    """

    dt = 0.015
    substeps = 3
    camera: ClassVar[dict[str, Any]] = {"res": (320, 240), "pos": (1.5, -4.5, 1.6), "lookat": (1.0, 0, 1.0), "fov": 45}

    _MODEL = "xml/humanoid.xml"
    _START_HEIGHT = 1.3

    def __init__(
        self,
        *,
        forward_weight: float = 1.25,
        healthy_reward: float = 5.0,
        control_cost_weight: float = 0.1,
        healthy_range: tuple[float, float] = (1.0, 2.0),
        reset_noise: float = 0.01,
    ) -> None:
        super().__init__(
            forward_weight=forward_weight,
            healthy_reward=healthy_reward,
            control_cost_weight=control_cost_weight,
            healthy_range=healthy_range,
            reset_noise=reset_noise,
        )

    def _forward_position(self) -> torch.Tensor:
        # One of the engine's figures for each link: the centre of mass of all that hangs together with it.
        return live_view(self.scene.rigid_solver.dyn_state.links.root_COM)[:, self.robot.link_start, 0]
