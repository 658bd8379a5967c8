"""The process's one Genesis runtime: start it, share it, refuse conflicting settings.

This is the only module that imports and initialises Genesis. It keeps the engine's import and start from changing
things behind the user's back: ``sys.excepthook`` and the global random generators stay as they were.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

from genesis_vec.errors import EngineConflictError
from genesis_vec.graphics import import_without_graphics, is_rendering_error

if TYPE_CHECKING:
    import torch


@dataclasses.dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """Settings of the process-wide engine.

    Attributes:
        precision: Bits of the engine's floating-point numbers.
        performance_mode: Compile the kernels for each scene's exact sizes: slower to build, faster to step.
        logging_level: The engine's own log, to standard output. Takes effect only where this process has not started
            the engine yet.
    """

    precision: Literal["32", "64"] = "32"
    performance_mode: bool = False
    logging_level: Literal["debug", "info", "warning", "error", "critical"] = "error"


def import_genesis() -> ModuleType:
    """Imports Genesis, without letting it replace ``sys.excepthook``, and also where graphics libraries are missing."""
    excepthook = sys.excepthook
    try:
        with quick_source_lookup():
            import genesis
    except (ImportError, AttributeError) as error:
        if not is_rendering_error(error):
            raise
        with quick_source_lookup():
            genesis = import_without_graphics()
    finally:
        # Genesis installs a hook that prints tracebacks to standard output, for the whole process.
        sys.excepthook = excepthook
    return genesis


@contextlib.contextmanager
def quick_source_lookup() -> Iterator[None]:
    """Saves two thirds of the time that Genesis' imports take (8 to 11 s against 3 on two CPU cores).

    Its compiler looks up the source of each of 1,500 kernels as they are defined, and for each the standard library
    walks over all modules there are, only to learn how to read a source that is not a file. Parts of Genesis are
    imported as late as when it is started and when a scene is made.
    """
    getmodule = inspect.getmodule
    inspect.getmodule = lambda object, _filename=None: sys.modules.get(getattr(object, "__module__", None) or "")
    try:
        yield
    finally:
        inspect.getmodule = getmodule


def start_engine(device: torch.device, options: EngineOptions) -> ModuleType:
    """Starts Genesis in this process, or shares it if it already runs with the same settings.

    Args:
        device: ``cpu`` or ``cuda:0``, as :func:`genesis_vec.devices.resolve_device` gives it.
        options: The settings wanted.

    Returns:
        The ``genesis`` module, started.

    Raises:
        EngineConflictError: If the engine already runs on another device, or with another precision or mode; it can
            be started only once a process.
    """
    gs = import_genesis()
    if not gs._initialized:
        # No seed: gs.init(seed=...) would reseed Python's, NumPy's and torch's global generators.
        with quick_source_lookup():
            gs.init(
                backend=_backend(gs, device),
                precision=options.precision,
                performance_mode=options.performance_mode,
                logging_level=options.logging_level,
            )
    running = {
        "device": gs.device.type,
        "precision": "64" if gs.np_float.__name__ == "float64" else "32",
        "performance_mode": not gs.use_ndarray,
    }
    wanted = {
        "device": device.type,
        "precision": options.precision,
        "performance_mode": options.performance_mode,
    }
    if not gs.use_zerocopy:
        raise EngineConflictError("the engine's arrays must be readable in place: unset GS_ENABLE_ZEROCOPY")
    conflicts = [
        f"{key}={wanted[key]!r} (it runs with {running[key]!r})" for key in wanted if wanted[key] != running[key]
    ]
    if conflicts:
        raise EngineConflictError(
            f"Genesis already runs in this process and was asked for {', '.join(conflicts)}. It can be started only "
            "once a process: use the same settings for every environment here, or another process."
        )
    return gs


def live_view(field: Any) -> torch.Tensor:
    """The engine's own memory as a tensor, without a copy: it changes as the engine steps.

    The engine's getters copy what they give, which is most of what a small batch's step costs outside the engine.

    Args:
        field: An array of the engine, such as ``scene.rigid_solver.qpos``.

    Returns:
        Tensor (num_envs, ...), not contiguous. Never hand it out; what is computed from it is a tensor of its own.
    """
    from genesis.utils.misc import qd_to_torch

    return qd_to_torch(field, transpose=True, copy=False)


def of_model(values: torch.Tensor) -> torch.Tensor:
    """What the model has for its joints, (joints,), whether or not the engine keeps a row for each environment.

    Args:
        values: What a getter of joints' properties gave while nothing was randomised yet: (joints,), or
            (num_envs, joints) where joints are randomised.
    """
    return values[0] if values.dim() > 1 else values


def kernel_cache_folder() -> Path:
    """The folder of compiled kernels; the engine must be started.

    The engine writes to it when its process ends well. Asking it to earlier (``dump_cache_data_to_disk``) makes a later
    launch of some kernels crash the process.
    """
    from quadrants.lang import impl

    return Path(impl.get_runtime().prog.config().offline_cache_file_path)


def _backend(gs: ModuleType, device: torch.device) -> object:
    import torch

    if device.type == "cpu":
        return gs.cpu
    return gs.amdgpu if torch.version.hip else gs.cuda
