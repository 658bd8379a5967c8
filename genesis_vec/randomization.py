"""Domain randomisation: what differs between environments, and from one episode to the next.

Off by default, and then there is nothing of it: no batched engine data, no operation in a step. What an environment
draws depends on its own stream alone and comes after what its task draws there, so that randomisation changes no
initial state and no goal.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from gymnasium import spaces

from genesis_vec.batches import Observation
from genesis_vec.env_state import attributes_state, restore_attributes
from genesis_vec.errors import TaskError

if TYPE_CHECKING:
    from genesis_vec.streams import Draws
    from genesis_vec.task import Task

Range = tuple[float, float]

# Actions are kept for as many steps, for each environment.
_LONGEST_DELAY = 100


@dataclasses.dataclass(frozen=True, kw_only=True)
class Randomization:
    """What is randomised. None, or a noise of 0, leaves a thing as the model has it.

    A range is (low, high), from which each environment draws uniformly where an episode starts. Ratios multiply what
    the model has.

    Attributes:
        entity: The task's attribute that holds the robot.
        friction_ratio: Of all surfaces, since the engine takes the larger friction of two that touch.
        mass_ratio: Of all its links, inertia included.
        center_of_mass: Shift of the base link's centre of mass along each axis of its frame, metres.
        stiffness_ratio: Of all joints' proportional gains.
        damping_ratio: Of all joints' derivative gains.
        armature_ratio: Of all joints' rotor inertia.
        gravity: Change of the vertical acceleration, m/s²: (-0.5, 0.5) ranges from 10.31 downward to 9.31.
        push_velocity: Speed, m/s, that a push in a horizontal direction adds to a floating base; both are drawn anew
            for each push.
        push_interval: Steps of an episode between pushes.
        observation_noise: Standard deviation of the normal noise on every number of the observation, in its own units;
            a dict's "critic" stays without.
        action_delay: By how many steps actions take effect late, (fewest, most). Before an episode's first action has
            its effect, that of the action 0, or the nearest to it within the bounds.

    Raises:
        ValueError: For a value out of its range.
    """

    entity: str = "robot"
    friction_ratio: Range | None = None
    mass_ratio: Range | None = None
    center_of_mass: Range | None = None
    stiffness_ratio: Range | None = None
    damping_ratio: Range | None = None
    armature_ratio: Range | None = None
    gravity: Range | None = None
    push_velocity: Range | None = None
    push_interval: int = 200
    observation_noise: float = 0.0
    action_delay: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name in ("entity", "push_interval", "observation_noise") or value is None:
                continue
            low, high = _check_range(field.name, value)
            if field.name.endswith("_ratio") and low <= 0:
                raise ValueError(f"{field.name}={value!r}: a ratio must be above 0")
            if field.name in ("push_velocity", "action_delay") and low < 0:
                raise ValueError(f"{field.name}={value!r}: it must not be negative")
            if field.name == "action_delay" and not (isinstance(low, int) and isinstance(high, int)):
                raise ValueError(f"action_delay={value!r}: give whole numbers of steps")
            if field.name == "action_delay" and high > _LONGEST_DELAY:
                raise ValueError(f"action_delay={value!r}: at most {_LONGEST_DELAY} steps")
            # However it was given, a list from the command line say: equal settings must compare equal.
            number = int if field.name == "action_delay" else float
            object.__setattr__(self, field.name, (number(low), number(high)))
        if type(self.push_interval) is not int or self.push_interval < 1:
            raise ValueError(f"push_interval={self.push_interval!r} must be a whole number of steps, at least 1")
        noise = self.observation_noise
        if isinstance(noise, bool) or not isinstance(noise, int | float) or not 0 <= noise < math.inf:
            raise ValueError(f"observation_noise={noise!r} must be 0 or more, and finite")

    @property
    def changes_weights(self) -> bool:
        """Whether links and joints differ between environments in what their constraints' weights follow from."""
        return any(getattr(self, name) is not None for name in _WEIGHTY)

    @property
    def changes_gains(self) -> bool:
        """Whether the joints' gains differ between environments."""
        return self.stiffness_ratio is not None or self.damping_ratio is not None

    @property
    def is_off(self) -> bool:
        """Whether nothing is randomised."""
        return dataclasses.replace(self, entity="robot", push_interval=200) == Randomization()

    def with_engine_options(self, options: dict[str, Any]) -> dict[str, Any]:
        """A scene's options with which the engine keeps for each environment what differs between them.

        Args:
            options: What the task gives for the scene.
        """
        # For weights both: the engine computes one kind's weights from the other's masses, and where it keeps one copy
        # for all, from those of whichever environment comes first.
        batched = {
            "batch_links_info": self.changes_weights,
            "batch_dofs_info": self.changes_weights or self.changes_gains,
        }
        update = {name: True for name, is_needed in batched.items() if is_needed}
        if not update:
            return options
        from genesis.options import RigidOptions

        rigid = options.get("rigid_options") or RigidOptions()
        return {**options, "rigid_options": rigid.model_copy(update=update)}


class Randomizer:
    """Draws what is randomised for a task's environments, and applies it.

    Args:
        settings: What is randomised.
        task: The task; its scene is built and set up.

    Attributes:
        drawn: The present episodes' draws by name, (num_envs, k): float32, in the units of their ranges; for
            "action_delay" int64.

    Raises:
        TaskError: If the task has no such robot, or the robot cannot be changed so.
    """

    def __init__(self, settings: Randomization, task: Task) -> None:
        self._settings, self._device = settings, task.device
        robot: Any = getattr(task, settings.entity, None)
        if robot is None or not hasattr(robot, "set_dofs_kp"):
            raise TaskError(
                f"{type(task).__name__} has no robot {settings.entity!r} to randomise: name its attribute that holds "
                "one with Randomization(entity=…)"
            )
        _check_effect(settings, robot, task)
        self._robot = robot
        self._bounds = _finite_bounds(task)
        try:
            self._appliers = {
                name: make(robot) for name, make in _APPLIERS.items() if getattr(settings, name) is not None
            }
            self.drawn: dict[str, torch.Tensor] = {
                name: torch.full(
                    (task.num_envs, 3 if name == "center_of_mass" else 1),
                    1.0 if name.endswith("_ratio") else 0.0,
                    device=task.device,
                )
                for name in self._appliers
            }
            for name, apply in self._appliers.items():
                apply(self.drawn[name], None)
        except Exception as error:
            # Such as gains of a robot whose motors have none.
            raise TaskError(f"{settings.entity!r} of {type(task).__name__} cannot be randomised so: {error}") from error
        if settings.action_delay is not None:
            self.drawn["action_delay"] = torch.zeros(task.num_envs, 1, dtype=torch.int64, device=task.device)
            low, high = (
                torch.as_tensor(bound, device=task.device) for bound in (task.action_space.low, task.action_space.high)
            )
            # What an episode begins with.
            self._neutral_action = low.clamp(min=0.0).minimum(high)
            kept = settings.action_delay[1] + 1
            # (num_envs, steps, …), the newest first.
            self._actions = self._neutral_action.expand(task.num_envs, kept, *low.shape).clone()
        if settings.push_velocity is not None:
            free = [joint for joint in robot.joints if joint.type.name == "FREE"]
            if not free:
                raise TaskError(f"push_velocity: {settings.entity!r} of {type(task).__name__} has no floating base")
            first = free[0].dofs_idx_local[0]
            self._horizontal = slice(first, first + 2)

    def start_episodes(self, rows: torch.Tensor, draws: Draws) -> None:
        """Draws anew for some environments.

        Args:
            rows: bool (num_envs,).
            draws: Their streams.
        """
        for name, apply in self._appliers.items():
            low, high = getattr(self._settings, name)
            before = self.drawn[name]
            drawn = draws.uniform(before.shape[1], low=low, high=high)
            self.drawn[name] = torch.where(rows[:, None], drawn, before)
            # For all rows: choosing some would make the host wait for the device. The others' values are the same bits.
            # But where the engine computes weights anew it also computes the rows' velocities anew, to other last bits.
            apply(self.drawn[name], rows if name in _WEIGHTY and self._device.type == "cpu" else None)
        if self._settings.action_delay is not None:
            fewest, most = self._settings.action_delay
            drawn_delay = draws.integers(fewest, most + 1, 1)
            self.drawn["action_delay"] = torch.where(rows[:, None], drawn_delay, self.drawn["action_delay"])
            fresh = rows.reshape(-1, *(1 for _ in self._actions.shape[1:]))
            self._actions = torch.where(fresh, self._neutral_action, self._actions)

    def delayed(self, actions: torch.Tensor) -> torch.Tensor:
        """The actions that take effect now, (num_envs, …), where these have just been given."""
        if self._settings.action_delay is None:
            return actions
        self._actions = torch.cat([actions[:, None], self._actions[:, :-1]], dim=1)
        delay = self.drawn["action_delay"]
        index = delay.reshape(-1, *(1 for _ in self._actions.shape[1:])).expand(-1, 1, *self._actions.shape[2:])
        return self._actions.gather(1, index)[:, 0]

    def push(self, rows: torch.Tensor, draws: Draws) -> None:
        """Pushes some environments' robots.

        Args:
            rows: bool (num_envs,).
            draws: Their streams.
        """
        assert self._settings.push_velocity is not None
        low, high = self._settings.push_velocity
        speed = draws.uniform(1, low=low, high=high)
        angle = draws.uniform(1, high=2 * math.pi)
        velocity = self._robot.get_dofs_velocity().clone()
        velocity[:, self._horizontal] += torch.cat([angle.cos(), angle.sin()], dim=1) * speed
        self._robot.set_dofs_velocity(velocity, envs_idx=rows)

    def is_push_due(self, steps: torch.Tensor) -> torch.Tensor | None:
        """Which environments are due, bool (num_envs,), where their episodes have taken so many steps; None without."""
        if self._settings.push_velocity is None:
            return None
        return (steps > 0) & (steps % self._settings.push_interval == 0)

    def noisy(self, observations: Observation, draws: Draws) -> Observation:
        """Observations with noise, drawn from those streams; new tensors, or the same ones where there is none."""
        if self._settings.observation_noise == 0.0:
            return observations

        def add(leaf: torch.Tensor, key: str | None = None) -> torch.Tensor:
            noisy = torch.add(leaf, draws.normal(*leaf.shape[1:]), alpha=self._settings.observation_noise)
            bounds = self._bounds.get(key)
            return noisy if bounds is None else noisy.clamp(*bounds)

        if isinstance(observations, dict):
            return {key: leaf if key == "critic" else add(leaf, key) for key, leaf in observations.items()}
        return add(observations)

    def state_dict(self) -> dict[str, Any]:
        """The draws and the delayed actions, copied; what the engine holds is in its own state."""
        return {name: value for name, value in attributes_state(self).items() if name in ("drawn", "_actions")}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Puts back what :meth:`state_dict` gave."""
        restore_attributes(self, state, self._device)


# Applies draws (num_envs, k) to the engine: to all rows for None, else to those of a mask, bool (num_envs,).
_Applier = Callable[[torch.Tensor, torch.Tensor | None], None]

# What the engine weighs the constraints by.
_WEIGHTY = ("mass_ratio", "center_of_mass", "armature_ratio")


def _check_effect(settings: Randomization, robot: Any, task: Task) -> None:
    """Raises TaskError for what would be drawn and change nothing."""
    name = f"{settings.entity!r} of {type(task).__name__}"
    if settings.center_of_mass is not None and robot.base_link.is_fixed:
        raise TaskError(f"center_of_mass: the base of {name} is fixed, so that its centre of mass moves nothing")
    moving = [entity for entity in robot.solver.entities if entity.n_dofs]
    if settings.gravity is not None and all(entity.material.gravity_compensation == 1 for entity in moving):
        raise TaskError(f"gravity: it is compensated in all that moves in the scene of {name}")


def _finite_bounds(task: Task) -> dict[str | None, tuple[torch.Tensor, torch.Tensor]]:
    """Low and high of an observation, or by key of each of a dict; without those that bound nothing."""
    space = task.observation_space
    leaves: dict[Any, Any] = dict(space.items()) if isinstance(space, spaces.Dict) else {None: space}
    return {
        key: (torch.as_tensor(leaf.low, device=task.device), torch.as_tensor(leaf.high, device=task.device))
        for key, leaf in leaves.items()
        if np.isfinite(leaf.low).any() or np.isfinite(leaf.high).any()
    }


def _friction(robot: Any) -> _Applier:
    # Of all surfaces, the ground too: two that touch have the larger one's friction, so that a slippery foot alone
    # would change nothing.
    solver = robot.solver
    return lambda ratio, _: solver.set_geoms_friction_ratio(ratio.expand(-1, solver.n_geoms).contiguous())


def _set_rows(setter: Callable[..., None], values: torch.Tensor, rows: torch.Tensor | None, *args: Any) -> None:
    if rows is None:
        setter(values, *args)
    elif len(indices := rows.nonzero()[:, 0]):
        setter(values[indices], *args, envs_idx=indices)


def _mass(robot: Any) -> _Applier:
    mass, inertia = robot.get_links_mass(), robot.get_links_inertia()

    def apply(ratio: torch.Tensor, rows: torch.Tensor | None) -> None:
        # Both from what the model has: scaled from the present values, rounding would pile up over the episodes.
        _set_rows(robot.set_links_mass, mass * ratio, rows)
        _set_rows(robot.set_links_inertia, inertia * ratio[..., None, None], rows)

    return apply


def _center_of_mass(robot: Any) -> _Applier:
    base = [robot.base_link_idx - robot.link_start]
    center = robot.get_links_COM(base)
    return lambda shift, rows: _set_rows(robot.set_links_COM, center + shift[:, None], rows, base)


def _stiffness(robot: Any) -> _Applier:
    stiffness = robot.get_dofs_kp()
    return lambda ratio, _: robot.set_dofs_kp(stiffness * ratio)


def _damping(robot: Any) -> _Applier:
    damping = robot.get_dofs_kv()
    return lambda ratio, _: robot.set_dofs_kv(damping * ratio)


def _armature(robot: Any) -> _Applier:
    armature = robot.get_dofs_armature()
    return lambda ratio, rows: _set_rows(robot.set_dofs_armature, armature * ratio, rows)


def _gravity(robot: Any) -> _Applier:
    solver = robot.solver
    gravity = solver.get_gravity().clone()

    def apply(change: torch.Tensor, rows: torch.Tensor | None) -> None:
        changed = gravity.clone()
        changed[..., 2:] += change
        solver.set_gravity(changed)

    return apply


_APPLIERS: dict[str, Callable[[Any], _Applier]] = {
    "friction_ratio": _friction,
    "mass_ratio": _mass,
    "center_of_mass": _center_of_mass,
    "stiffness_ratio": _stiffness,
    "damping_ratio": _damping,
    "armature_ratio": _armature,
    "gravity": _gravity,
}


def _check_range(name: str, value: Any) -> tuple[float, float]:
    """A range as given.

    Raises:
        ValueError: If it is none.
    """
    try:
        low, high = value
        if any(isinstance(bound, bool) for bound in value):
            raise TypeError
        if math.isfinite(low) and math.isfinite(high) and low <= high:
            return low, high
    except (TypeError, ValueError):
        pass
    raise ValueError(f"{name}={value!r}: give (low, high), two finite numbers in that order")
