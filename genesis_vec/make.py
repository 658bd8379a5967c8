"""Makes the environment that an id stands for: what ``gymnasium.make_vec`` calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from genesis_vec.scene_env import load_task_class, make_task
from genesis_vec.task import Task
from genesis_vec.vector_env import GenesisVectorEnv

if TYPE_CHECKING:
    from genesis_vec.multi_device.client import MultiDeviceVectorEnv


def make_registered(
    task: str | type[Task], num_envs: int, *, devices: Any = None, **kwargs: Any
) -> GenesisVectorEnv | MultiDeviceVectorEnv:
    """Makes a task and the vector environment that runs it.

    Args:
        task: The task class, or where it is: "module:Class".
        num_envs: Number of environments.
        devices: None for one scene in this process; else the devices to spread the environments over, as in
            :class:`~genesis_vec.MultiDeviceVectorEnv`.
        **kwargs: Arguments of the environment and of the task, told apart by name.

    Raises:
        TaskError: If there is no such task.
        TypeError: For a name that neither of the two takes; the message lists those that they do.
    """
    task_class = load_task_class(task)
    if devices is not None:
        from genesis_vec.multi_device.client import MultiDeviceVectorEnv

        return MultiDeviceVectorEnv(task_class, num_envs, devices=devices, **kwargs)
    made, env_kwargs = make_task(task_class, kwargs)
    return GenesisVectorEnv(made, num_envs, **env_kwargs)
