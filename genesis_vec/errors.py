"""The package's exception types. A leaf: it imports nothing, and every other module may import it."""

from __future__ import annotations

from typing import Any


class GenesisVecError(Exception):
    """Base of every error that this package raises on purpose."""


class DeviceNotFoundError(GenesisVecError):
    """A device was asked for that this process does not see."""


class DevicePinningError(GenesisVecError):
    """A process is to be pinned to a device after it imported what reads the pinning variables."""


class EngineConflictError(GenesisVecError):
    """The process's one Genesis runtime already runs with other settings."""


class EngineBuildError(GenesisVecError):
    """The engine could not build the scene; the message names num_envs and the device."""


class TaskError(GenesisVecError):
    """A task breaks its contract; the message names the task and the method, what it gave and what is expected."""


class ModelError(TaskError):
    """A robot description is missing, broken, or has nothing to control."""


class EnvFaultError(GenesisVecError):
    """With ``on_fault="raise"``: an environment became faulty.

    Attributes:
        env_indices: The faulty environments' indices.
    """

    def __init__(self, message: str, env_indices: list[int]) -> None:
        super().__init__(message)
        self.env_indices = env_indices


class WorkerError(GenesisVecError):
    """A worker process failed, died or hung; the message names the worker, its device, its end and its traceback.

    Attributes:
        worker: The worker's number.
        exit_code: Its exit code, negative for a signal; None if it was still running.
    """

    def __init__(self, message: str, worker: int, exit_code: int | None = None) -> None:
        super().__init__(message)
        self.worker = worker
        self.exit_code = exit_code


class WorkerTimeoutError(WorkerError):
    """A worker did not answer in time."""


class LaunchError(GenesisVecError):
    """A launched program failed; the message names the first that did, its device, its end and its traceback.

    Attributes:
        failures: The failed programs' ``LaunchResult``, in the order in which they failed; at least one.
        results: The programs' ``LaunchResult`` in their order, None for each that failed or did not finish.
    """

    def __init__(self, message: str, failures: list[Any], results: list[Any]) -> None:
        super().__init__(message)
        self.failures = failures
        self.results = results


class ClosedEnvironmentError(GenesisVecError):
    """The environment was used after ``close()``."""


class RenderingUnavailableError(GenesisVecError):
    """This machine lacks what drawing needs, or what the engine needs of it; the message names the system package."""


class CheckpointError(GenesisVecError):
    """A checkpoint file is missing, damaged, or of another format."""


class ExportError(GenesisVecError):
    """An exported policy does not do what the policy does."""


class DatasetError(GenesisVecError):
    """A dataset cannot be written where it was asked for."""


class BenchmarkError(GenesisVecError):
    """A benchmark failed or is not there."""


class StateMismatchError(GenesisVecError):
    """A state is of an environment that is made differently, and cannot be restored into this one."""


class StateUnavailableError(GenesisVecError):
    """An environment cannot give its state."""


class RendezvousError(GenesisVecError):
    """The ranks of a job do not find one another, were started differently, or lose one."""


class DivergedError(GenesisVecError):
    """Training came to numbers that are not finite; the message names them and the last checkpoint before."""


class LibraryNotFoundError(GenesisVecError, ImportError):
    """An optional library is not installed; the message names the extra that brings it."""
