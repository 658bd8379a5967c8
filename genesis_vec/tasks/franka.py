"""The Franka Panda with its gripper, as the tasks share it: constants, and how it is added, posed and driven."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from genesis_vec.engine import live_view, of_model

MODEL = "xml/franka_emika_panda/panda.xml"
"""Among the engine's assets."""

NUM_ARM_JOINTS = 7
NUM_DOFS = 9
"""The arm's joints, then the two fingers, each of which slides from 0 (closed) to 0.04 m."""

OPEN = 0.04
"""Position of a finger of the open gripper, in metres."""

REST_POSITIONS = (0.0, -0.25, 0.0, -2.35, 0.0, 2.1, math.pi / 4, OPEN, OPEN)
"""The hand in front of the base, pointing straight down, far from every joint's limits; radians and metres."""

POINTING_DOWN = (0.0, 1.0, 0.0, 0.0)
"""Orientation (w, x, y, z) of the hand at rest."""

GRIP_OFFSET = 0.103
"""Distance from the hand's origin to the middle between the finger pads, along the hand's z axis, in metres."""

# Proportional and derivative gains and largest forces. The arm's are those of the model's actuators; their quotients
# are 10 / s, so that a joint follows a target that stays x away with a velocity of 10 x / s. The fingers' own
# actuator is weak (100 N/m): it would hold a cube with 2 N.
_STIFFNESS = (4500.0, 4500.0, 3500.0, 3500.0, 2000.0, 2000.0, 2000.0, 1000.0, 1000.0)
_DAMPING = (450.0, 450.0, 350.0, 350.0, 200.0, 200.0, 200.0, 50.0, 50.0)
_MAX_FORCE = (87.0, 87.0, 87.0, 87.0, 12.0, 12.0, 12.0, 20.0, 20.0)


def add_panda(scene: Any) -> Any:
    """Adds the robot at the scene's origin.

    Its own weight is compensated, as the real robot's controller does it. It must be the scene's first entity.

    Returns:
        The entity.
    """
    from genesis.engine.materials import Rigid
    from genesis.options import morphs

    return scene.add_entity(morphs.MJCF(file=MODEL), material=Rigid(gravity_compensation=1.0))


class Panda:
    """The robot in a built scene: its state as views of the engine's memory, and its joints' targets.

    Args:
        scene: The scene, built.
        entity: What :func:`add_panda` gave.
        device: Where the scene is.

    Attributes:
        positions: (num_envs, 9), radians and metres: a view.
        velocities: (num_envs, 9): a view.
        hand_position: (num_envs, 3), metres: a view.
        hand_quaternion: (num_envs, 4): a view.
        rest_positions: (9,).
    """

    def __init__(self, scene: Any, entity: Any, device: torch.device) -> None:
        solver = scene.rigid_solver
        hand = entity.get_link("hand").idx
        self.entity = entity
        self.positions = live_view(solver.qpos)[:, :NUM_DOFS]
        self.velocities = live_view(solver.dyn_state.dofs.vel)[:, :NUM_DOFS]
        self.hand_position = live_view(solver.dyn_state.links.pos)[:, hand]
        self.hand_quaternion = live_view(solver.dyn_state.links.quat)[:, hand]
        self.rest_positions = torch.tensor(REST_POSITIONS, device=device)
        self._arm_positions = self.positions[:, :NUM_ARM_JOINTS]
        self._lower, self._upper = (of_model(limit)[:NUM_ARM_JOINTS].float() for limit in entity.get_dofs_limit())
        num_envs = len(self.positions)
        # What does not move its fingers keeps them open.
        self._targets = self.rest_positions.repeat(num_envs, 1)
        force = torch.tensor(_MAX_FORCE, device=device)
        entity.set_dofs_kp(torch.tensor(_STIFFNESS, device=device))
        entity.set_dofs_kv(torch.tensor(_DAMPING, device=device))
        entity.set_dofs_force_range(-force, force)
        entity.set_qpos(self.rest_positions.expand(num_envs, -1))

    def start(self, mask: torch.Tensor, noise: torch.Tensor) -> None:
        """Puts the masked environments' arms near the rest pose, and computes the poses of all that is in the scene.

        Args:
            mask: bool (num_envs,).
            noise: (num_envs, 7), what is added to the rest positions, in radians.
        """
        positions = self.rest_positions.repeat(len(noise), 1)
        positions[:, :NUM_ARM_JOINTS] += noise
        self.entity.set_qpos(positions, envs_idx=mask)

    def drive(self, change: torch.Tensor, fingers: torch.Tensor | None = None) -> None:
        """Sets the joints' targets.

        Args:
            change: (num_envs, 7), from the arm's present positions to its targets, in radians.
            fingers: (num_envs, 1), both fingers' target, in metres; None leaves it as it is.
        """
        # From present positions, not from the last targets: an arm that is blocked does not build up force.
        self._targets[:, :NUM_ARM_JOINTS] = (self._arm_positions + change).clamp(self._lower, self._upper)
        if fingers is not None:
            self._targets[:, NUM_ARM_JOINTS:] = fingers
        self.entity.control_dofs_position(self._targets)


def check_argument(name: str, value: object, fits: bool, accepted: str) -> None:
    """Refuses an argument.

    Raises:
        ValueError: If it does not fit.
    """
    if not fits:
        raise ValueError(f"{name}={value!r}: use {accepted}")


def check_box(name: str, low: Sequence[float], high: Sequence[float]) -> None:
    """Refuses corners that are not those of a box above the ground.

    Raises:
        ValueError: If they are not.
    """
    for corner, value in (("low", low), ("high", high)):
        fits = len(value) == 3 and all(math.isfinite(number) for number in value)
        check_argument(f"{name}_{corner}", value, fits, "three finite numbers (x, y, z), in metres")
    fits = low[2] > 0 and all(below <= above for below, above in zip(low, high, strict=True))
    check_argument(f"{name}_low", low, fits, f"x, y and z of at most those of {name}_high={high!r}, and z above 0")
