"""From a user's arguments to a task and the settings of the environment that runs it."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

from genesis_vec.errors import TaskError
from genesis_vec.task import Task
from genesis_vec.vector_env import GenesisVectorEnv


def load_task_class(task: str | type[Task]) -> type[Task]:
    """The task class, or the one of that "module:Class".

    Raises:
        TaskError: If there is no such task.
    """
    task_class = _load(task) if isinstance(task, str) else task
    if not (isinstance(task_class, type) and issubclass(task_class, Task)):
        raise TaskError(f"task={task!r} is not a subclass of genesis_vec.Task")
    return task_class


def make_task(task_class: type[Task], kwargs: dict[str, Any]) -> tuple[Task, dict[str, Any]]:
    """Makes a task of those arguments that are its own.

    Args:
        task_class: The task's class.
        kwargs: Arguments of the task and of :class:`~genesis_vec.GenesisVectorEnv`, told apart by name.

    Returns:
        The task and the environment's arguments.

    Raises:
        TypeError: For a name that neither of the two takes; the message lists those that they do; for a
            task that takes a name of the environment's.
    """
    env_names = _argument_names(GenesisVectorEnv) - {"task", "num_envs"}
    task_names = _argument_names(task_class)
    if shadowed := sorted(env_names & task_names):
        raise TypeError(f"{task_class.__name__}: {shadowed} are the environment's own arguments; name the task's else")
    unknown = sorted(set(kwargs) - env_names - task_names)
    if unknown:
        raise TypeError(
            f"unknown arguments {unknown}; {task_class.__name__} takes {sorted(task_names)} and the environment "
            f"{sorted(env_names)}, with devices= also envs_per_scene, egl_device_ids, timeout, start_timeout, "
            "on_worker_failure and max_restarts"
        )
    env_kwargs = {name: value for name, value in kwargs.items() if name in env_names}
    task_kwargs = {name: value for name, value in kwargs.items() if name not in env_names}
    return task_class(**task_kwargs), env_kwargs


def _load(entry_point: str) -> Any:
    module, _, name = entry_point.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise TaskError(
            f"there is no task {entry_point!r}: {error}. Give a registered id, such as 'GenesisRigid-v0' "
            "(genesis-vec list shows them), or 'module:Class'."
        ) from error


def _argument_names(callable_: Any) -> set[str]:
    return set(inspect.signature(callable_).parameters)
