"""Makes the environment that an id stands for: what ``gymnasium.make_vec`` calls."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

from genesis_vec.errors import TaskError
from genesis_vec.task import Task
from genesis_vec.vector_env import GenesisVectorEnv


def make_registered(task: str | type[Task], num_envs: int, **kwargs: Any) -> GenesisVectorEnv:
    """Makes a task and the vector environment that runs it.

    Args:
        task: The task class, or where it is: "module:Class".
        num_envs: Number of environments.
        **kwargs: Arguments of :class:`~genesis_vec.GenesisVectorEnv` and of the task, told apart by name.

    Raises:
        TaskError: If there is no such task.
        TypeError: For a name that neither of the two takes; the message lists those that they do.
    """
    if "devices" in kwargs:
        raise TypeError("devices= (one environment over several devices) is not available yet: use device=")
    task_class = _load(task) if isinstance(task, str) else task
    if not (isinstance(task_class, type) and issubclass(task_class, Task)):
        raise TaskError(f"task={task!r} is not a subclass of genesis_vec.Task")
    env_names = _argument_names(GenesisVectorEnv) - {"task", "num_envs"}
    task_names = _argument_names(task_class)
    unknown = sorted(set(kwargs) - env_names - task_names)
    if unknown:
        raise TypeError(
            f"unknown arguments {unknown}; {task_class.__name__} takes {sorted(task_names)} and the environment "
            f"{sorted(env_names)}"
        )
    env_kwargs = {name: value for name, value in kwargs.items() if name in env_names}
    task_kwargs = {name: value for name, value in kwargs.items() if name not in env_names}
    return GenesisVectorEnv(task_class(**task_kwargs), num_envs, **env_kwargs)


def _load(entry_point: str) -> Any:
    module, _, name = entry_point.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise TaskError(f"there is no task {entry_point!r}: {error}") from error


def _argument_names(callable_: Any) -> set[str]:
    return set(inspect.signature(callable_).parameters)
