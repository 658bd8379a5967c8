"""Helpers for batches: observations that are a tensor or a dict of tensors, masks of rows, tensors fit to be kept."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch

Observation = torch.Tensor | dict[str, torch.Tensor]


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


def rows_like(mask: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """A mask (num_envs,) with the axes it needs to broadcast against a value (num_envs, …)."""
    return mask.reshape(-1, *[1] * (value.dim() - 1))


def select_rows(mask: torch.Tensor, chosen: Any, other: Any) -> Any:
    """New tensors with the rows of ``chosen`` where the mask (num_envs,) is set, and those of ``other`` elsewhere."""
    return map_observation(lambda a, b: torch.where(rows_like(mask, a), a, b), chosen, other)


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
