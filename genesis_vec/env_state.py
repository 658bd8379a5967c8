"""Everything that an environment's next step depends on, as plain values, and back again.

"Plain" means tensors, numbers, strings, None and dicts of them, which ``torch.load(weights_only=True)`` reads.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from genesis_vec.errors import StateMismatchError


def engine_state(scene: Any) -> dict[str, Any]:
    """What a scene's next step depends on, copied: of 8 quadrupeds some 200 arrays, 1 MB.

    The engine's ``Scene.get_state`` is not this: it leaves out what the solvers start from, so that a trajectory that
    goes on from it soon differs.
    """
    state = scene.sim.__getstate__()
    return {
        "steps": torch.as_tensor(state.steps),
        "solvers": {
            name: {key: torch.as_tensor(value) for key, value in solver.arrays.items()}
            for name, solver in state.solvers.items()
        },
    }


def restore_engine(scene: Any, state: dict[str, Any]) -> None:
    """Puts a scene into the state of another one of the same description and number of environments.

    Raises:
        StateMismatchError: If it is of a scene of another description; nothing has changed then.
    """
    from genesis import GenesisException
    from genesis.engine.states.solvers import SimulatorCheckpoint, SolverCheckpoint
    from genesis.utils.array_class import CHECKPOINT_KINDS, DataItem, check_data

    solvers = {type(solver).__name__: solver for solver in scene.sim.active_solvers}
    if set(solvers) != set(state["solvers"]):
        raise StateMismatchError(f"the state is of solvers {sorted(state['solvers'])}, the scene has {sorted(solvers)}")
    try:
        for name, solver in solvers.items():
            items = (item for item in solver.data if isinstance(item, DataItem) and item.kind in CHECKPOINT_KINDS)
            check_data(items, state["solvers"][name])
    except GenesisException as error:
        raise StateMismatchError(f"the state is of another scene: {error}") from error
    records = {name: SolverCheckpoint(arrays, {}, CHECKPOINT_KINDS) for name, arrays in state["solvers"].items()}
    scene.sim.__setstate__(SimulatorCheckpoint(state["steps"], records))


def attributes_state(owner: object) -> dict[str, Any]:
    """An object's attributes that are plain, tensors and arrays copied; the others are left out."""
    kept = ((name, _plain(value)) for name, value in vars(owner).items())
    return {name: value for name, value in kept if value is not _NOT_PLAIN}


def restore_attributes(owner: object, state: dict[str, Any], device: torch.device) -> None:
    """Puts an object's attributes back, in place of those that differ.

    One that is as it should be stays the same object, so that views of the engine's memory, which the engine has put
    back before, stay views.

    Args:
        owner: The object.
        state: What :func:`attributes_state` gave.
        device: Where tensors go that the object does not have yet; others go where those are that they replace.
    """
    for name, value in state.items():
        present = getattr(owner, name, None)
        if not hasattr(owner, name) or not _is_same(_plain(present), value):
            setattr(owner, name, _copied(value, present, device))


_NOT_PLAIN = object()


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        return torch.tensor(value)
    if isinstance(value, dict) and all(isinstance(key, (str, int)) for key in value):
        parts = {key: _plain(part) for key, part in value.items()}
    elif isinstance(value, (list, tuple)) and type(value) in (list, tuple):
        parts = type(value)(_plain(part) for part in value)
    else:
        return _NOT_PLAIN
    listed = parts.values() if isinstance(parts, dict) else parts
    return _NOT_PLAIN if any(part is _NOT_PLAIN for part in listed) else parts


def _is_same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        if one.shape != other.shape or one.dtype != other.dtype:
            return False
        # Bit by bit: a NaN is the same as itself here, and 0 is not -0.
        one, other = (part.detach().cpu().contiguous().reshape(-1).view(torch.uint8) for part in (one, other))
        return torch.equal(one, other)
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_is_same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(_is_same, one, other))
    return one == other


def _copied(value: Any, like: Any, device: torch.device) -> Any:
    """A copy of a value, of the kind and on the device of what it replaces."""
    if isinstance(value, torch.Tensor):
        if isinstance(like, np.ndarray):
            return value.numpy(force=True).copy()
        return value.to(like.device if isinstance(like, torch.Tensor) else device, copy=True)
    if isinstance(value, dict):
        parts = like if isinstance(like, dict) else {}
        return {key: _copied(part, parts.get(key), device) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        parts = like if isinstance(like, (list, tuple)) and len(like) == len(value) else [None] * len(value)
        return type(value)(_copied(part, old, device) for part, old in zip(value, parts, strict=True))
    return value
