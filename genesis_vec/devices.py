"""Names of devices, and what they stand for in this process."""

from __future__ import annotations

import logging
import os
import warnings
from typing import TYPE_CHECKING

from genesis_vec.errors import DeviceNotFoundError

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
            f"device='auto' picked the CPU: no GPU is visible ({_visibility()}). Pass device='cpu' to say that it is "
            "meant.",
            stacklevel=3,
        )
        return torch.device("cpu")
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
            f"device={str(name)!r} was asked for, and this process sees no GPU ({_visibility()}). Check the driver "
            "and that variable, or pass device='cpu'."
        )
    if device.index not in (None, 0):
        raise DeviceNotFoundError(
            f"device={str(name)!r}: the engine drives only the first GPU that a process sees. Start the process with "
            f"CUDA_VISIBLE_DEVICES={device.index} and use 'cuda:0'."
        )
    return torch.device("cuda:0")


def _visibility() -> str:
    variable = os.environ.get("CUDA_VISIBLE_DEVICES")
    return "CUDA_VISIBLE_DEVICES is not set" if variable is None else f"CUDA_VISIBLE_DEVICES={variable!r}"
