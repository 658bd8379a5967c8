"""GenesisRigid-v0: any robot from an MJCF or URDF file, moved to goals in joint space."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import torch
from gymnasium import spaces

from genesis_vec.engine import live_view, of_model
from genesis_vec.errors import ModelError
from genesis_vec.task import Task

if TYPE_CHECKING:
    from genesis_vec.streams import Draws

# What a joint without limits is taken to span on each side of its rest position, in radians or metres.
_UNLIMITED_HALF_RANGE = {"REVOLUTE": math.pi, "PRISMATIC": 1.0}
# A neutral position nearer to a limit than this share of the range gives way to the middle of the range.
_REST_MARGIN = 0.05


class RigidTask(Task):
    """Move a robot's joints to goal positions and hold them there.

    The controlled joints are the robot's revolute and prismatic ones, n of them; a floating base and ball joints
    are observed and left to physics. Around its rest position each controlled joint has a working range: to each side
    ``reach`` times half the distance between its limits, or as far as the nearer limit if that is less; a joint
    without limits has π rad or 1 m, whatever ``reach``.

    - Observation: float32, generalised positions qpos (nq; radians, metres, and a unit quaternion for a floating
      base), then the velocities of the degrees of freedom (nv; rad/s, m/s), then the goal (n; radians, metres). With
      ``state="qpos"`` the generalised positions alone.
    - Action: float32 (n,) in [-1, 1], by ``control``: "position": targets in the working range, 0 is the rest
      position; the engine's PD controllers hold the model's force ranges. "torque": forces in units of the model's
      largest. "velocity": target velocities in units of ``max_velocity``.
    - Reward: "distance", the root mean square over the joints of the distance to the goal in units of the working
      range, weight -1; "success", whether that is below 0.05, weight 0.5.
    - Never terminated. Initial positions are drawn within ``reset_noise`` working ranges of the rest positions, goals
      uniformly in the whole working range, both from the environment's stream.
    - Metrics in ``info``: "success" bool.

    Args:
        morph: The robot's file: .xml (MJCF) or .urdf, a path of your own or one among the engine's assets.
        state: What an observation holds, "full" or "qpos".
        control: "position", "torque" or "velocity".
        fixed_base: For a URDF, whether its first link is fixed to the world; an MJCF file says so itself.
        ground: Whether there is a ground plane; None means: under a robot with a floating base.
        rest_qpos: Rest position of the controlled joints, n numbers (radians, metres); None takes the model's neutral
            one where it lies well within the limits, and the middle of the range for the other joints.
        reach: See above; in (0, 1].
        reset_noise: See above; in [0, 1].
        stiffness: Proportional gain of every controlled joint (N·m/rad, N/m); None keeps the model's.
        damping: Derivative gain (N·m·s/rad, N·s/m); None keeps the model's.
        max_force: Force that an action of 1 means with control="torque" for joints whose force the model does not
            bound (N·m, N).
        max_velocity: Velocity that an action of 1 means with control="velocity" (rad/s, m/s).
        self_collision: Whether the robot's links collide with each other.
        dt: Seconds in one engine step.
        substeps: Solver substeps in one engine step.
        decimation: Engine steps in one environment step.

    Attributes:
        robot: The Genesis entity.
        goal: float32 (num_envs, n), the present goals.
        joint_names: Names of the controlled joints, in the order of actions and goals.
        controlled_dofs: Their degrees of freedom, as the robot's own indices.
        rest_positions: float32 (n,), radians or metres.
        working_range: float32 (n,), likewise.

    Raises:
        ModelError: If the file is missing or cannot be read, or nothing in it can be controlled.
        ValueError: For an argument out of its range.
    """

    max_episode_steps = 100
    reward_weights: ClassVar[dict[str, float]] = {"distance": -1.0, "success": 0.5}

    _SUCCESS_DISTANCE = 0.05

    def __init__(
        self,
        morph: str = "xml/franka_emika_panda/panda.xml",
        *,
        state: Literal["full", "qpos"] = "full",
        control: Literal["position", "torque", "velocity"] = "position",
        fixed_base: bool = False,
        ground: bool | None = None,
        rest_qpos: Sequence[float] | None = None,
        reach: float = 0.5,
        reset_noise: float = 0.1,
        stiffness: float | None = None,
        damping: float | None = None,
        max_force: float | None = None,
        max_velocity: float = 1.0,
        self_collision: bool = True,
        dt: float = 0.02,
        substeps: int = 2,
        decimation: int = 1,
    ) -> None:
        for name, value, accepted in (
            ("state", state, ("full", "qpos")),
            ("control", control, ("position", "torque", "velocity")),
        ):
            if value not in accepted:
                raise ValueError(f"{name}={value!r}: use one of {accepted}")
        for name, value, fits in (
            ("reach", reach, 0 < reach <= 1),
            ("reset_noise", reset_noise, 0 <= reset_noise <= 1),
            ("stiffness", stiffness, stiffness is None or stiffness > 0),
            ("damping", damping, damping is None or damping >= 0),
            ("max_velocity", max_velocity, max_velocity > 0),
            ("max_force", max_force, max_force is None or max_force > 0),
            ("dt", dt, dt > 0),
            ("substeps", substeps, isinstance(substeps, int) and substeps >= 1),
            ("decimation", decimation, isinstance(decimation, int) and decimation >= 1),
        ):
            if not fits:
                raise ValueError(f"{name}={value!r} is out of range; see RigidTask's documentation")
        self.morph = morph
        self.state = state
        self.control = control
        self.fixed_base = fixed_base
        self.ground = ground
        self.rest_qpos = rest_qpos
        self.reach = reach
        self.reset_noise = reset_noise
        self.stiffness = stiffness
        self.damping = damping
        self.max_force = max_force
        self.max_velocity = max_velocity
        self.self_collision = self_collision
        self.dt = dt
        self.substeps = substeps
        self.decimation = decimation

    def scene_options(self) -> dict[str, Any]:
        """Adds the choice of self-collision to the defaults."""
        from genesis.options import RigidOptions

        return {
            **super().scene_options(),
            "rigid_options": RigidOptions(enable_self_collision=self.self_collision),
        }

    # ---------------------------------------------------------------------------------------------------- the robot

    def build(self, scene: Any) -> None:
        """Adds the robot, and the ground where there is one."""
        from genesis.options import morphs

        path = _find_model(self.morph)
        try:
            if path.suffix == ".urdf":
                self.robot = scene.add_entity(morphs.URDF(file=str(path), fixed=self.fixed_base))
            else:
                self.robot = scene.add_entity(morphs.MJCF(file=str(path)))
        except Exception as error:
            raise ModelError(f"morph={self.morph!r} could not be read: {error}") from error
        joints = [joint for joint in self.robot.joints if joint.type.name in _UNLIMITED_HALF_RANGE]
        if not joints:
            raise ModelError(f"morph={self.morph!r} has no revolute or prismatic joint, so there is nothing to control")
        self._is_floating = any(joint.type.name == "FREE" for joint in self.robot.joints)
        if self._is_floating if self.ground is None else self.ground:
            scene.add_entity(morphs.Plane())
        self._joints = joints
        self.joint_names = [joint.name for joint in joints]

    def setup(self) -> None:
        """Finds the controlled joints' ranges and gains, and makes the rest pose the one that resets go back to."""
        robot, count = self.robot, len(self._joints)
        dofs = [joint.dofs_idx_local[0] for joint in self._joints]
        self.controlled_dofs = _as_range(dofs)
        self._qs = _as_range([joint.qs_idx_local[0] for joint in self._joints])
        solver = self.scene.rigid_solver
        self._qpos = live_view(solver.qpos)[:, robot.q_start : robot.q_end]
        self._velocity = live_view(solver.dyn_state.dofs.vel)[:, robot.dof_start : robot.dof_end]
        self._qs_slice = slice(self._qs.start, self._qs.stop, self._qs.step)
        self._joint_positions = self._qpos[:, self._qs_slice]
        lower, upper = (of_model(limit)[self._index(dofs)] for limit in robot.get_dofs_limit())
        unlimited = torch.tensor([_UNLIMITED_HALF_RANGE[joint.type.name] for joint in self._joints], device=self.device)
        bounded = lower.isfinite() & upper.isfinite()
        rest_qpos = robot.get_qpos()[0].clone()
        neutral = rest_qpos[self._index([joint.qs_idx_local[0] for joint in self._joints])]
        half_range = torch.where(bounded, (upper - lower) / 2, unlimited)
        if self.rest_qpos is None:
            margin = 2 * _REST_MARGIN * half_range
            well_within = (neutral >= lower + margin) & (neutral <= upper - margin)
            rest = torch.where(bounded & ~well_within, (lower + upper) / 2, neutral)
        elif len(self.rest_qpos) == count:
            rest = torch.tensor(list(self.rest_qpos), dtype=torch.float32, device=self.device)
        else:
            raise ModelError(f"rest_qpos has {len(self.rest_qpos)} numbers for {count} joints: {self.joint_names}")
        unit = torch.where(bounded, (self.reach * half_range).minimum(upper - rest).minimum(rest - lower), half_range)
        if not bool((unit > 0).all()):
            raise ModelError(
                f"rest_qpos={self.rest_qpos!r} is not within the joints' limits {lower.tolist()} … {upper.tolist()}"
            )
        self.rest_positions, self.working_range = rest.float(), unit.float()
        self._inverse_scale = 1.0 / (self.working_range * math.sqrt(count))
        self._set_gains()
        self._set_rest_pose(rest_qpos)

        size = robot.n_qs if self.state == "qpos" else robot.n_qs + robot.n_dofs + count
        self.observation_space = spaces.Box(-np.inf, np.inf, (size,), np.float32)
        self.action_space = spaces.Box(-1.0, 1.0, (count,), np.float32)
        self.goal = torch.zeros(self.num_envs, count, device=self.device)
        self._negated_goal = torch.zeros_like(self.goal)

    def _index(self, positions: list[int]) -> torch.Tensor:
        return torch.tensor(positions, dtype=torch.int64, device=self.device)

    def _set_gains(self) -> None:
        robot, dofs = self.robot, self.controlled_dofs
        if self.control == "torque":
            low, high = (of_model(bound).float() for bound in robot.get_dofs_force_range(dofs))
            if self.max_force is not None:
                high = torch.where(high.isfinite(), high, self.max_force)
                low = torch.where(low.isfinite(), low, -self.max_force)
            if not bool((high.isfinite() & low.isfinite()).all()):
                raise ModelError(f"morph={self.morph!r} does not bound every joint's force: pass max_force=")
            self._force_low, self._force_high = low, high
            return
        _, position_gain, velocity_gain = (of_model(bias) for bias in robot.get_dofs_act_bias(dofs))
        stiffness = -position_gain if self.stiffness is None else torch.full_like(position_gain, self.stiffness)
        damping = -velocity_gain if self.damping is None else torch.full_like(velocity_gain, self.damping)
        if not bool((stiffness > 0).all()) and self.control == "position":
            raise ModelError(f"morph={self.morph!r} has no position gain for some joint: pass stiffness= and damping=")
        if not bool((damping > 0).all()) and self.control == "velocity":
            raise ModelError(f"morph={self.morph!r} has no velocity gain for some joint: pass damping=")
        # Set in any case: an MJCF actuator need not be a position servo (a tendon's is not), and targets are positions.
        robot.set_dofs_kp(stiffness, dofs)
        robot.set_dofs_kv(damping, dofs)

    def _set_rest_pose(self, qpos: torch.Tensor) -> None:
        qpos[self._index(list(self._qs))] = self.rest_positions.to(qpos.dtype)
        self.robot.set_qpos(qpos.expand(self.num_envs, -1))
        if self._is_floating:
            # Stand the robot on the ground, wherever its file puts the base.
            lowest = self.robot.get_AABB()[..., 0, 2].min()
            base = next(joint for joint in self.robot.joints if joint.type.name == "FREE")
            qpos[base.qs_idx_local[2]] -= lowest
            self.robot.set_qpos(qpos.expand(self.num_envs, -1))
        # A state that is given becomes the one that every later reset goes back to.
        self.scene.reset(self.scene.get_state())

    # --------------------------------------------------------------------------------------------------- an episode

    def reset(self, mask: torch.Tensor, draws: Draws) -> None:
        """Draws a goal and an initial position."""
        rows = mask[:, None]
        count = len(self._joints)
        self.goal = torch.where(
            rows, self.rest_positions + self.working_range * draws.uniform(count, low=-1.0, high=1.0), self.goal
        )
        self._negated_goal = -self.goal * self._inverse_scale
        noise = draws.uniform(count, low=-self.reset_noise, high=self.reset_noise)
        qpos = self.robot.get_qpos()
        qpos[:, self._qs_slice] = (self.rest_positions + noise * self.working_range).to(qpos.dtype)
        self.robot.set_qpos(qpos, envs_idx=mask)

    def act(self, actions: torch.Tensor) -> None:
        """Sets targets or forces."""
        if self.control == "position":
            self.robot.control_dofs_position(
                torch.addcmul(self.rest_positions, actions, self.working_range), self.controlled_dofs
            )
        elif self.control == "velocity":
            self.robot.control_dofs_velocity(actions * self.max_velocity, self.controlled_dofs)
        else:
            forces = torch.where(actions > 0, actions * self._force_high, -actions * self._force_low)
            self.robot.control_dofs_force(forces, self.controlled_dofs)

    def observe(self) -> torch.Tensor:
        """Positions, then velocities and goal unless positions alone were asked for."""
        if self.state == "qpos":
            return self._qpos.clone()
        return torch.cat([self._qpos, self._velocity, self.goal], dim=1)

    def metrics(self) -> dict[str, torch.Tensor]:
        """Whether the goal is reached; the distance to it is kept for :meth:`reward`."""
        # (qpos - goal) / scale as one operation: the goals are kept negated and scaled. The scale holds the square
        # root of the number of joints, so that the norm is a root mean square.
        scaled = torch.addcmul(self._negated_goal, self._joint_positions, self._inverse_scale)
        self._distance = torch.linalg.vector_norm(scaled, dim=1)
        self._success = self._distance < self._SUCCESS_DISTANCE
        return {"success": self._success}

    def reward(self) -> dict[str, torch.Tensor]:
        """The two terms."""
        return {"distance": self._distance, "success": self._success}


def _find_model(morph: str) -> Path:
    """The file, from the working directory or from the engine's assets.

    Raises:
        ModelError: If it is in neither, or of another kind than .xml and .urdf.
    """
    from genesis.utils.misc import get_assets_dir

    if Path(morph).suffix not in (".xml", ".urdf"):
        raise ModelError(f"morph={morph!r}: give an .xml (MJCF) or a .urdf file")
    for candidate in (Path(morph).expanduser(), Path(get_assets_dir()) / morph):
        if candidate.is_file():
            return candidate.resolve()
    raise ModelError(f"morph={morph!r}: there is no such file, neither from here nor among the engine's assets")


def _as_range(indices: list[int]) -> range:
    """Indices as a range, which the engine serves without an index tensor.

    Raises:
        ModelError: If they are not evenly spaced: a ball joint stands between the joints.
    """
    step = indices[1] - indices[0] if len(indices) > 1 else 1
    found = range(indices[0], indices[-1] + 1, step)
    if list(found) != indices:
        raise ModelError(f"the controlled joints' indices {indices} are not evenly spaced")
    return found
