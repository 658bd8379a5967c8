"""Compares what a task's methods give with what the Task contract asks for, once, when an environment is made."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from genesis_vec.errors import TaskError
from genesis_vec.task import Task

RESERVED_INFO_KEYS = ("episode", "fault", "final_info", "final_obs", "reward_terms")


def check_spaces(task: Task) -> None:
    """Checks the spaces a task declares.

    Raises:
        TaskError: If one is missing or of a kind that is not supported.
    """
    name = type(task).__name__
    for attribute in ("observation_space", "action_space"):
        if not isinstance(getattr(task, attribute, None), spaces.Space):
            raise TaskError(f"{name}.{attribute} is not set; assign a gymnasium space in the class or in setup()")
    observation = task.observation_space
    boxes = observation.spaces.values() if isinstance(observation, spaces.Dict) else [observation]
    if not all(isinstance(box, spaces.Box) for box in boxes):
        raise TaskError(f"{name}.observation_space must be a Box or a Dict of Box, got {observation}")
    action = task.action_space
    if not isinstance(action, spaces.Box) or not action.is_bounded() or action.dtype != np.float32:
        raise TaskError(f"{name}.action_space must be a bounded float32 Box, got {action}")


def check_outputs(task: Task) -> None:
    """Calls every method that gives tensors, and checks shapes, dtypes, devices and that they are new ones.

    Args:
        task: A task whose scene is built and whose environments have been reset and acted upon once.

    Raises:
        TaskError: Naming the method, what it gave and what is expected.
    """
    name = type(task).__name__
    space = task.observation_space
    observation, again = task.observe(), task.observe()
    if isinstance(space, spaces.Dict):
        if not isinstance(observation, dict) or set(observation) != set(space.spaces):
            given = sorted(observation) if isinstance(observation, dict) else type(observation).__name__
            raise TaskError(f"{name}.observe() must return a dict with the keys {sorted(space.spaces)}, got {given}")
        for key, box in space.spaces.items():
            _check_new(task, f"observe()[{key!r}]", observation[key], again[key], box.shape, torch_dtype(box))  # type: ignore[index]
    else:
        _check_new(task, "observe()", observation, again, space.shape, torch_dtype(space))
    metrics, again = task.metrics(), task.metrics()
    for key, value in metrics.items():
        if key in RESERVED_INFO_KEYS or key.startswith("_"):
            raise TaskError(f"{name}.metrics() may not use the name {key!r}: the environment's info has it already")
        _check_new(task, f"metrics()[{key!r}]", value, again[key], None, None)
    reward = task.reward()
    if isinstance(reward, dict):
        if not reward:
            raise TaskError(f"{name}.reward() must return a tensor or at least one named term, got an empty dict")
        for key, term in reward.items():
            _check_tensor(task, f"reward()[{key!r}]", term, (), None)
    else:
        _check_tensor(task, "reward()", reward, (), None)
    unknown = set(task.reward_weights) - set(reward if isinstance(reward, dict) else ())
    if unknown:
        raise TaskError(f"{name}.reward_weights names terms that reward() does not give: {sorted(unknown)}")
    terminated = task.terminated()
    if terminated is not None:
        _check_tensor(task, "terminated()", terminated, (), torch.bool)


def torch_dtype(space: spaces.Space[Any]) -> torch.dtype:
    """The torch dtype that a space's NumPy dtype stands for."""
    return torch.from_numpy(np.empty(0, dtype=space.dtype)).dtype


def _check_tensor(
    task: Task, method: str, value: Any, shape: tuple[int, ...] | None, dtype: torch.dtype | None
) -> None:
    where = f"{type(task).__name__}.{method}"
    if not isinstance(value, torch.Tensor):
        raise TaskError(f"{where} must return a torch.Tensor, got {type(value).__name__}")
    expected = (task.num_envs, *(value.shape[1:] if shape is None else shape))
    if tuple(value.shape) != expected:
        raise TaskError(f"{where} has shape {tuple(value.shape)}, expected {expected}")
    if value.device != task.device:
        raise TaskError(f"{where} is on {value.device}, expected {task.device}")
    # float64 passes for float32, and is converted: the engine's own tensors are so with precision="64".
    if dtype is not None and value.dtype != dtype and (dtype, value.dtype) != (torch.float32, torch.float64):
        raise TaskError(f"{where} has dtype {value.dtype}, expected {dtype}")


def _check_new(
    task: Task, method: str, value: Any, again: Any, shape: tuple[int, ...] | None, dtype: torch.dtype | None
) -> None:
    _check_tensor(task, method, value, shape, dtype)
    if value.numel() and value.untyped_storage().data_ptr() == again.untyped_storage().data_ptr():
        raise TaskError(
            f"{type(task).__name__}.{method} gives the same memory twice, so that what was handed out would change "
            "later; return a new tensor each time, such as its .clone()"
        )
