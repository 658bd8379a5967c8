"""The Genesis World physics engine as a device-resident Gymnasium vector environment, with a trainer.

Importing this package registers its ids with Gymnasium and imports neither torch nor Genesis; names that need them
are resolved on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from genesis_vec import errors
from genesis_vec.registry import register_shipped, register_task

if TYPE_CHECKING:
    from genesis_vec.checks import VectorEnvContractError, check_vector_env
    from genesis_vec.engine import EngineOptions
    from genesis_vec.launched import LaunchContext, launch_context
    from genesis_vec.launcher import LaunchResult, launch
    from genesis_vec.multi_device.client import MultiDeviceVectorEnv
    from genesis_vec.randomization import Randomization
    from genesis_vec.streams import EnvStreams
    from genesis_vec.task import Task
    from genesis_vec.training.job import Job
    from genesis_vec.vector_env import GenesisVectorEnv

__version__ = "0.1.0"

__all__ = [
    "EngineOptions",
    "EnvStreams",
    "GenesisVectorEnv",
    "Job",
    "LaunchContext",
    "LaunchResult",
    "MultiDeviceVectorEnv",
    "Randomization",
    "Task",
    "VectorEnvContractError",
    "check_vector_env",
    "errors",
    "launch",
    "launch_context",
    "register_task",
]

_LAZY = {
    "EngineOptions": "engine",
    "EnvStreams": "streams",
    "GenesisVectorEnv": "vector_env",
    "MultiDeviceVectorEnv": "multi_device.client",
    "Job": "training.job",
    "LaunchContext": "launched",
    "LaunchResult": "launcher",
    "Randomization": "randomization",
    "Task": "task",
    "VectorEnvContractError": "checks",
    "check_vector_env": "checks",
    "launch": "launcher",
    "launch_context": "launched",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_LAZY])


register_shipped()
