"""What scenes there are and how each is made: which rows a worker has, which of them a scene, and what builds it."""

from __future__ import annotations

import hashlib
import importlib
import inspect
from collections.abc import Callable
from typing import Any

import cloudpickle
import gymnasium
import numpy as np
from gymnasium.vector import VectorEnv

from genesis_vec.batches import split_evenly
from genesis_vec.errors import TaskError
from genesis_vec.scene_env import load_task_class, make_task
from genesis_vec.task import Task
from genesis_vec.vector_env import EnvSettings, GenesisVectorEnv

CPU_ENVS_PER_SCENE = 128
"""On the CPU a scene of this size keeps its working set in the cache: 1.6 times the speed of one of 1024."""


def split_rows(
    num_envs: int, num_workers: int, envs_per_scene: int | None, minimum: int = 2
) -> list[list[tuple[int, int]]]:
    """Deals environments out to workers and scenes, in order and as evenly as they go.

    Args:
        num_envs: Number of environments.
        num_workers: Number of workers wanted; there are fewer where each would not get ``minimum``.
        envs_per_scene: Most environments in a scene, None for one scene per worker.
        minimum: Fewest in a scene: one of a single environment does not compute the same bits as larger ones. A
            ``num_envs`` below it makes one scene all the same.

    Returns:
        For each worker its scenes, each as (first row, number of rows).
    """
    num_workers = max(1, min(num_workers, num_envs // minimum))
    workers = []
    for first, count in split_evenly(0, num_envs, num_workers):
        wanted = 1 if envs_per_scene is None else -(-count // envs_per_scene)
        workers.append(split_evenly(first, count, max(1, min(wanted, count // minimum))))
    return workers


class TaskScenes:
    """Makes scenes of a task, each with a copy of its own.

    Args:
        task: The task; it is not used itself.
        num_envs: Number of environments in all.
        first_env_index: Global index of the first of them.
        **settings: Further arguments of :class:`~genesis_vec.GenesisVectorEnv`.

    Raises:
        TaskError: If the task cannot be sent to another process.
        ValueError: For a setting out of its range.
    """

    def __init__(self, task: Task, num_envs: int, first_env_index: int = 0, **settings: Any) -> None:
        self.settings = EnvSettings.parse(task, num_envs, first_env_index=first_env_index, **settings)
        self.num_envs = self.settings.num_envs
        self.render_mode, self.render_envs = self.settings.render_mode, self.settings.render_envs
        self.engine = self.settings.engine
        try:
            self._task = cloudpickle.dumps(task)
        except Exception as error:
            raise TaskError(
                f"{type(task).__name__} cannot be sent to a worker process: {error}. Give what makes it, a class or a "
                "function without arguments that returns it, and let it open files and the like in build()."
            ) from error

    def key(self, num_envs: int) -> str:
        """A name of what the engine compiles kernels for, in a scene of so many environments."""
        size = num_envs if self.engine.performance_mode else "any"
        return hashlib.sha256(self._task + f"{self.engine} {size}".encode()).hexdigest()[:16]

    def __call__(self, num_envs: int, device: str, first_row: int) -> GenesisVectorEnv:
        """Makes the scene that begins at a row."""
        task = cloudpickle.loads(self._task)
        settings = self.settings
        drawn = [row - first_row for row in settings.render_envs if first_row <= row < first_row + num_envs]
        return GenesisVectorEnv(
            task,
            num_envs,
            device=device,
            autoreset_mode=settings.autoreset_mode,
            max_episode_steps=settings.max_episode_steps,
            render_mode=settings.render_mode if drawn else None,
            render_envs=drawn or None,
            on_fault=settings.on_fault,  # type: ignore[arg-type]
            first_env_index=settings.first_env_index + first_row,
            randomization=settings.randomization,
            observation=settings.observation,
            image_size=settings.image_size,
            performance_mode=settings.engine.performance_mode,
        )


class CallableScenes:
    """Makes scenes by a user's function of (num_envs, device, first_env_index), which returns a vector environment."""

    def __init__(self, make: Callable[..., VectorEnv], num_envs: int, first_env_index: int = 0) -> None:
        if not isinstance(first_env_index, int) or first_env_index < 0:
            raise ValueError(f"first_env_index must be an integer of at least 0, got {first_env_index!r}")
        if isinstance(num_envs, bool) or not isinstance(num_envs, (int, np.integer)) or num_envs < 1:
            raise ValueError(f"num_envs must be an integer of at least 1, got {num_envs!r}")
        self.num_envs = int(num_envs)
        self.render_mode, self.render_envs = None, list[int]()
        self.first_env_index = first_env_index
        try:
            self._make = cloudpickle.dumps(make)
        except Exception as error:
            raise TaskError(f"{make!r} cannot be sent to a worker process: {error}") from error

    def __call__(self, num_envs: int, device: str, first_row: int) -> VectorEnv:
        """Makes the scene that begins at a row."""
        make = cloudpickle.loads(self._make)
        return make(num_envs=num_envs, device=device, first_env_index=self.first_env_index + first_row)


def make_scenes(
    task: str | Task | type[Task] | Callable[..., Any], num_envs: int, first_env_index: int, kwargs: dict[str, Any]
) -> TaskScenes | CallableScenes:
    """What makes the scenes of what a user gives; see :class:`~genesis_vec.MultiDeviceVectorEnv`.

    Raises:
        TaskError: If it is none of the things that are accepted, or cannot be sent to another process.
        TypeError: For an argument that neither the task nor the environment takes.
        ValueError: For a setting out of its range.
    """
    if isinstance(task, str) and (id := _registered_id(task)) is not None:
        spec = gymnasium.spec(id)
        if "task" not in spec.kwargs:
            raise TaskError(f"{task!r} was not registered by genesis_vec.register_task; give a function that makes it")
        kwargs = {"max_episode_steps": spec.max_episode_steps, **spec.kwargs, **kwargs}
        task = kwargs.pop("task")
    if isinstance(task, (str, type)):
        made, kwargs = make_task(load_task_class(task), kwargs)
    elif callable(task):
        if "num_envs" in inspect.signature(task).parameters:
            if kwargs:
                raise TypeError(f"{sorted(kwargs)} are not arguments of an environment that a function makes")
            return CallableScenes(task, num_envs, first_env_index)
        made = task()
    else:
        made = task
    if not isinstance(made, Task):
        returned = "" if made is task else f", which returned {made!r}"
        raise TaskError(
            f"task={task!r}{returned}: give an id, a Task, its class, a function without arguments that returns one, "
            "or a function of (num_envs, device, first_env_index) that returns a vector environment"
        )
    return TaskScenes(made, num_envs, first_env_index, **kwargs)


def _registered_id(name: str) -> str | None:
    """The id in "Id-v0" or "module:Id-v0", None if it is no id that is registered."""
    module, _, id = name.rpartition(":")
    if module:
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise TaskError(f"task={name!r}: there is no module {module!r}: {error}") from error
    return id if id in gymnasium.registry else None
