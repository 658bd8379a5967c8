"""The table of ids. Entry points are strings, so that registering imports neither torch nor Genesis."""

from __future__ import annotations

from typing import Any

import gymnasium

_CREATOR = "genesis_vec.make:make_registered"

SHIPPED: dict[str, tuple[str, int]] = {
    "GenesisRigid-v0": ("genesis_vec.tasks.rigid:RigidTask", 100),
    "GenesisCartPole-v0": ("genesis_vec.tasks.cart_pole:CartPoleTask", 500),
    "GenesisGo2Velocity-v0": ("genesis_vec.tasks.go2_velocity:Go2VelocityTask", 1000),
    "GenesisDroneHover-v0": ("genesis_vec.tasks.drone_hover:DroneHoverTask", 1500),
    "GenesisFrankaReach-v0": ("genesis_vec.tasks.franka_reach:FrankaReachTask", 150),
    "GenesisFrankaLift-v0": ("genesis_vec.tasks.franka_lift:FrankaLiftTask", 150),
    "GenesisAnt-v0": ("genesis_vec.tasks.locomotion:AntTask", 1000),
    "GenesisHumanoid-v0": ("genesis_vec.tasks.locomotion:HumanoidTask", 1000),
}
"""id -> (task's entry point, time limit in steps)."""


def register_task(id: str, task: str | type, *, max_episode_steps: int | None = None, **kwargs: Any) -> None:
    """Registers a task under an id for ``gymnasium.make_vec``.

    Args:
        id: The id, such as "MyRobot-v0".
        task: The task class, or where it is: "module:Class".
        max_episode_steps: Time limit in steps, None for the task's own.
        **kwargs: Default arguments of the task and of the environment.
    """
    gymnasium.register(
        id=id,
        vector_entry_point=_CREATOR,
        max_episode_steps=max_episode_steps,
        kwargs={"task": task, **kwargs},
    )


def register_shipped() -> None:
    """Registers the tasks that ship with the package."""
    for id, (task, max_episode_steps) in SHIPPED.items():
        register_task(id, task, max_episode_steps=max_episode_steps)
