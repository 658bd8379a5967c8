"""Helpers for batches: observations that are a tensor or a dict of tensors, masks of rows, tensors fit to be kept."""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

Observation = torch.Tensor | dict[str, torch.Tensor]


def split_evenly(first: int, count: int, parts: int) -> list[tuple[int, int]]:
    """Deals ``count`` rows from ``first`` on out to ``parts``, in order, none with two more than another.

    Returns:
        Each part as (first row, number of rows).
    """
    bounds = [first + count * part // parts for part in range(parts + 1)]
    return [(low, high - low) for low, high in itertools.pairwise(bounds)]


def check_rows(name: str, given: Any, allowed: Sequence[int], of: str) -> list[int]:
    """A user's choice of some rows, as a list.

    Args:
        name: The argument's, for the error.
        given: Integers in whatever holds them: a list, a tuple, an array, a tensor.
        allowed: Rows that there are to choose from.
        of: Those in words.

    Raises:
        ValueError: For none, the same row twice, one that is not allowed, or what is no integers.
    """
    try:
        rows = [operator.index(row) for row in given]
    except TypeError:
        rows = []
    if not rows or len(set(rows)) < len(rows) or not set(rows) <= set(allowed):
        raise ValueError(f"{name}={given!r}: give different indices {of}")
    return rows


def map_observation(function: Callable[..., Any], first: Any, *others: Any) -> Any:
    """Applies a function to a leaf (tensor, Box, …), or key by key to a mapping of leaves (dict, ``spaces.Dict``).

    Args:
        function: Called with one leaf of each of the following arguments.
        first: A leaf or a mapping of leaves.
        *others: More of the same structure.

    Returns:
        The function's result, or a new dict of them.
    """
    if isinstance(first, Mapping):
        return {key: function(leaf, *(other[key] for other in others)) for key, leaf in first.items()}
    return function(first, *others)


def leaves(observation: Observation) -> list[torch.Tensor]:
    """The tensors of an observation."""
    return list(observation.values()) if isinstance(observation, dict) else [observation]


def to_host(value: Any) -> Any:
    """Nested dicts, lists and tuples with their tensors on the CPU; those that are there already stay the same."""
    if isinstance(value, torch.Tensor):
        return value.cpu()
    if isinstance(value, dict):
        return {key: to_host(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(map(to_host, value))
    return value


def rows_like(mask: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """A mask (num_envs,) with the axes it needs to broadcast against a value (num_envs, …)."""
    return mask.reshape(-1, *[1] * (value.dim() - 1))


def select_rows(mask: torch.Tensor, chosen: Any, other: Any) -> Any:
    """New tensors with the rows of ``chosen`` where the mask (num_envs,) is set, and those of ``other`` elsewhere."""
    return map_observation(lambda a, b: torch.where(rows_like(mask, a), a, b), chosen, other)


def as_actions(
    actions: Any, shape: tuple[int, ...], device: torch.device, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """Actions as a learner may give them, as a tensor of the environment's; not copied where they are one already.

    Args:
        actions: A torch tensor on any device, or what NumPy makes an array of.
        shape: (num_envs, *action shape).
        device: Where the tensor is to be.
        dtype: What it is to hold.

    Raises:
        ValueError: If they are no numbers, or of another shape.
    """
    try:
        tensor = torch.as_tensor(actions if isinstance(actions, torch.Tensor) else np.array(actions))
    except TypeError as error:
        raise ValueError(f"actions must be numbers of the shape {shape}, got {actions!r}") from error
    if tuple(tensor.shape) != shape:
        raise ValueError(f"actions have shape {tuple(tensor.shape)}, expected {shape}")
    if tensor.dtype != dtype or tensor.device != device:
        if tensor.dtype == torch.float64 and dtype == torch.float32:
            # Far out of range is not infinite: it would become so, and count as a fault, in float32.
            tensor = tensor.clamp(*_FLOAT32_RANGE)
        # Without waiting only towards a GPU: in the other direction the copy might be read before it is done.
        tensor = tensor.to(device, dtype, non_blocking=device.type != "cpu")
    return tensor


def reset_mask(options: Any, num_envs: int, device: torch.device) -> torch.Tensor | None:
    """The mask in a reset's options, as a bool tensor (num_envs,); None if there is none.

    Raises:
        ValueError: If the options are no dict, or the mask is not bool or of another shape.
    """
    if options is not None and not isinstance(options, dict):
        raise ValueError(f"options must be a dict, such as {{'reset_mask': mask}}, or None; got {options!r}")
    mask = None if options is None else options.get("reset_mask")
    if mask is None:
        return None
    try:
        tensor = torch.as_tensor(mask, device=device)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"reset_mask must be bool ({num_envs},), got {mask!r}") from error
    if tensor.dtype != torch.bool or tuple(tensor.shape) != (num_envs,):
        raise ValueError(
            f"reset_mask must be bool ({num_envs},), got {tensor.dtype} {tuple(tensor.shape)}; for indices, set "
            "mask[indices] = True in a mask of zeros"
        )
    return tensor


def as_episode_steps(steps: Any, num_envs: int) -> torch.Tensor:
    """Numbers of steps as a new tensor, int64 (num_envs,).

    Raises:
        ValueError: If they are no integers of 0 or more, or of another shape.
    """
    tensor = torch.as_tensor(steps)
    if tensor.is_floating_point() or tensor.dtype == torch.bool or tuple(tensor.shape) != (num_envs,):
        raise ValueError(f"steps must be integers ({num_envs},), got {tensor.dtype} {tuple(tensor.shape)}")
    if bool((tensor < 0).any()):
        raise ValueError(f"steps must be 0 or more, got {int(tensor.min())}")
    return tensor.to(torch.int64, copy=True)


_FLOAT32_RANGE = (torch.finfo(torch.float32).min, torch.finfo(torch.float32).max)


def ordinary_tensors(method: Callable[..., Any]) -> Callable[..., Any]:
    """Makes a method create tensors that can be written to later, also under a learner's ``torch.inference_mode``."""

    @functools.wraps(method)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if torch.is_inference_mode_enabled():
            with torch.inference_mode(False):
                return wrapped(*args, **kwargs)
        with torch.no_grad():
            return method(*args, **kwargs)

    return wrapped
