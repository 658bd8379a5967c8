"""Names of devices, what they stand for in this process, and the variables that pin another process to one of them."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import sys
import warnings
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from genesis_vec.errors import DeviceNotFoundError, DevicePinningError

if TYPE_CHECKING:
    import torch

_logger = logging.getLogger("genesis_vec")


def resolve_device(name: str | torch.device) -> torch.device:
    """The torch device that a name stands for in this process.

    Args:
        name: ``"cpu"``, ``"cuda"``, ``"cuda:0"``, a torch.device, or ``"auto"``: the first GPU where this process
            sees one, else the CPU. "auto" says what it picked: a warning for the CPU, since a job that was meant for a
            GPU would otherwise run on the CPU unnoticed, and a line in the "genesis_vec" log for a GPU.

    Returns:
        The device, with its index if it is a GPU.

    Raises:
        DeviceNotFoundError: If a GPU was asked for and there is none: never a silent fallback.
        ValueError: If the name is not one of the above.
    """
    import torch

    if str(name) == "auto":
        if torch.cuda.is_available():
            _logger.info("device='auto' picked cuda:0 (%s)", torch.cuda.get_device_name(0))
            return torch.device("cuda:0")
        warnings.warn(
            f"device='auto' picked the CPU: no GPU is visible ({_visibility(os.environ)}). Pass device='cpu' to say "
            "that it is meant.",
            stacklevel=3,
        )
        return torch.device("cpu")
    device = _named_device(name)
    if device.type == "cpu":
        return device
    if device.index not in (None, 0):
        raise DeviceNotFoundError(
            f"device={str(name)!r}: the engine drives only the first GPU that a process sees. Start the process with "
            f"CUDA_VISIBLE_DEVICES={device.index} and use 'cuda:0', or let devices=[{str(name)!r}] do it."
        )
    return torch.device("cuda:0")


def resolve_batch_device(name: str | torch.device, devices: Sequence[ProcessDevice]) -> torch.device:
    """Where the batches of several processes' devices go.

    Args:
        name: ``"auto"`` for the first of the devices, or one of this process's own: ``"cpu"``, ``"cuda"``,
            ``"cuda:1"``, a torch.device.
        devices: The devices.

    Raises:
        DeviceNotFoundError: If this process does not see it.
        ValueError: If the name is not one of the above.
    """
    import torch

    if str(name) == "auto":
        name = devices[0].name
    device = _named_device(name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise DeviceNotFoundError(f"device={str(name)!r}: this process sees {torch.cuda.device_count()} GPUs")
    return torch.device("cuda", device.index or 0) if device.type == "cuda" else device


def _named_device(name: str | torch.device) -> torch.device:
    """The CPU, or a GPU where there is any."""
    import torch

    try:
        device = torch.device(name)
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"device={name!r} is not a device; use 'auto', 'cpu', 'cuda' or 'cuda:0'") from error
    if device.type == "cpu":
        return torch.device("cpu")
    if device.type != "cuda":
        raise ValueError(f"device={str(device)!r}: only 'cpu' and 'cuda' devices are supported")
    if not torch.cuda.is_available():
        raise DeviceNotFoundError(
            f"device={str(name)!r} was asked for, and this process sees no GPU ({_visibility(os.environ)}). Check the "
            "driver and that variable, or pass device='cpu'."
        )
    return device


@dataclasses.dataclass(frozen=True)
class ProcessDevice:
    """A device for one process of its own.

    Attributes:
        name: What it is called in this process: "cpu", "cuda:1".
        index: Its index among the GPUs that this process sees, None for the CPU.
        variables: The environment variables that pin a new process to it. They must be there when that process starts.
    """

    name: str
    index: int | None
    variables: Mapping[str, str]

    @property
    def local_name(self) -> str:
        """What it is called in the process pinned to it, which sees no other."""
        return "cpu" if self.index is None else "cuda:0"


def parse_devices(
    devices: str | int | Iterable[object], environment: Mapping[str, str] | None = None
) -> list[ProcessDevice]:
    """The devices that a user's description stands for, one process each.

    GPUs are counted as in the rest of this process: within ``CUDA_VISIBLE_DEVICES``, whose entries are passed on as
    they are, whether numbers, UUIDs or MIG names, in their order.

    Args:
        devices: ``"cuda"`` (every GPU this process sees), ``"cuda:0,1"``, ``"cpu"`` (one process), ``"cpu:2"`` (two),
            ``"auto"`` (every GPU there is, else one CPU process per usable core), a GPU's index, or a sequence of such
            names of one device each; the same device may be named several times.
        environment: The variables of this process; ``os.environ`` by default.

    Returns:
        At least one device, all of one kind.

    Raises:
        ValueError: If it is none of these.
        DeviceNotFoundError: If a GPU is asked for that this process does not see.
    """
    environment = os.environ if environment is None else environment
    if devices == "auto":
        visible = visible_gpus(environment)
        if visible:
            return [_gpu(index, visible) for index in range(len(visible))]
        cores = usable_cores()
        warnings.warn(
            f"devices='auto' picked {cores} CPU processes: no GPU is visible ({_visibility(environment)}). Pass "
            f"devices='cpu:{cores}' to say that it is meant.",
            stacklevel=3,
        )
        return [_CPU] * cores
    if isinstance(devices, str):
        kind, _, detail = devices.partition(":")
        if kind == "cpu" and (not detail or detail.isdecimal()):
            count = int(detail or 1)
            if count < 1:
                raise ValueError(f"devices={devices!r} asks for {count} processes; at least 1 is needed")
            return [_CPU] * count
        if kind == "cuda":
            visible = visible_gpus(environment)
            if not detail and not visible:
                raise DeviceNotFoundError(
                    f"devices={devices!r}: this process sees no GPU ({_visibility(environment)}). Check the driver and "
                    "that variable, or use devices='cpu:N'."
                )
            indices = range(len(visible)) if not detail else _parse_indices(devices, detail)
            return [_gpu(index, visible, environment) for index in indices]
    elif isinstance(devices, int) and not isinstance(devices, bool):
        return [_gpu(devices, visible_gpus(environment), environment)]
    elif isinstance(devices, Iterable) and not isinstance(devices, Mapping):
        parsed = [device for name in devices for device in _parse_one(name, environment)]
        kinds = {device.local_name for device in parsed}
        if len(kinds) == 1:
            return parsed
        raise ValueError(f"devices={devices!r} must name at least one device, and GPUs only or the CPU only")
    raise ValueError(f"devices={devices!r} is not understood; {_ACCEPTED}")


def pin_process(device: ProcessDevice, environment: MutableMapping[str, str] | None = None) -> None:
    """Pins this process to a device, by its environment variables.

    They are read when CUDA is first asked anything, and a mere question whether it is there counts as one. So this
    must come before torch and Genesis are imported.

    Args:
        device: The device.
        environment: The variables of this process; ``os.environ`` by default.

    Raises:
        DevicePinningError: If a variable would have to change, and torch or Genesis is imported already.
    """
    environment = os.environ if environment is None else environment
    changes = {name: value for name, value in device.variables.items() if environment.get(name) != value}
    imported = [module for module in ("torch", "genesis") if module in sys.modules]
    if changes and imported:
        raise DevicePinningError(
            f"too late to pin this process to {device.name} with {changes}: {' and '.join(imported)} is imported "
            "already, and may have asked CUDA for its devices. Pin before importing, or start the process with these "
            "variables."
        )
    environment.update(changes)


def usable_cores() -> int:
    """CPU cores that this process may use: its affinity, within the limit of its container."""
    cores = len(os.sched_getaffinity(0))
    with contextlib.suppress(OSError, ValueError):
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        # "max" instead of a number: no limit, and a ValueError.
        cores = max(1, min(cores, int(quota) // int(period)))
    return cores


_ACCEPTED = "use 'auto', 'cuda', 'cuda:0,1', 'cpu:2', or a list such as ['cuda:0', 'cuda:1']"
_CPU = ProcessDevice("cpu", None, {})


def _parse_one(name: object, environment: Mapping[str, str]) -> list[ProcessDevice]:
    if not isinstance(name, (str, int)) and type(name).__name__ != "device":  # torch's, without importing it
        raise ValueError(f"devices: {name!r} in a list must name one device, such as 'cuda:0' or 'cpu'")
    named = parse_devices(name if isinstance(name, (str, int)) else str(name), environment)
    if name in ("auto", "cuda") or len(named) != 1:
        raise ValueError(f"devices: {name!r} in a list must name one device, such as 'cuda:0' or 'cpu'")
    return named


def _parse_indices(devices: str, detail: str) -> Sequence[int]:
    indices = detail.split(",")
    if not all(index.isdecimal() for index in indices):
        raise ValueError(f"devices={devices!r} is not understood; {_ACCEPTED}")
    return [int(index) for index in indices]


def _gpu(index: int, visible: Sequence[str], environment: Mapping[str, str] | None = None) -> ProcessDevice:
    if not 0 <= index < len(visible):
        raise DeviceNotFoundError(
            f"device 'cuda:{index}' was asked for, and this process sees {len(visible)} GPUs "
            f"({_visibility(os.environ if environment is None else environment)})."
        )
    variables = {"CUDA_VISIBLE_DEVICES": visible[index]}
    # The engine's compiler reads it as an integer, for Vulkan, so it has no place for a UUID.
    if visible[index].isdecimal():
        variables["QD_VISIBLE_DEVICE"] = visible[index]
    return ProcessDevice(f"cuda:{index}", index, variables)


def visible_gpus(environment: Mapping[str, str]) -> list[str]:
    """The GPUs that this process sees, as entries of CUDA_VISIBLE_DEVICES; CUDA itself is not asked."""
    listed = environment.get("CUDA_VISIBLE_DEVICES")
    if listed is None:
        return [str(index) for index in range(_count_gpus())]
    entries = []
    for entry in (part.strip() for part in listed.split(",")):
        # CUDA's own rule: the list ends at the first entry that names nothing.
        if not entry or entry.startswith("-"):
            break
        entries.append(entry)
    return entries


def _count_gpus() -> int:
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return 0
    try:
        return pynvml.nvmlDeviceGetCount()
    finally:
        pynvml.nvmlShutdown()


def _visibility(environment: Mapping[str, str]) -> str:
    variable = environment.get("CUDA_VISIBLE_DEVICES")
    return "CUDA_VISIBLE_DEVICES is not set" if variable is None else f"CUDA_VISIBLE_DEVICES={variable!r}"
