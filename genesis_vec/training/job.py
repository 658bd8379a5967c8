"""A rank's place in a job of several, and its device: read from the environment, before torch is imported.

CUDA reads which devices a process may see when it is first asked anything, so a rank must be pinned before that.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, MutableMapping

from genesis_vec.devices import ProcessDevice, parse_devices, pin_process
from genesis_vec.errors import DeviceNotFoundError, RendezvousError


@dataclasses.dataclass(frozen=True)
class Job:
    """Where this process stands among the processes of a job.

    Attributes:
        rank: Its number.
        size: Number of processes, the world size.
        local_rank: Its number among those of this node.
        local_size: How many this node has.
        is_launched: Whether torchrun started it; every rank of a node then inherits the same devices.
        max_restarts: How many times torchrun starts all of them anew after a failure.
        restart: How many times it has.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    is_launched: bool = False
    max_restarts: int = 0
    restart: int = 0

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Job:
        """Reads the variables that torchrun sets, or a scheduler's job script in its place.

        ``RANK``, ``WORLD_SIZE``, ``LOCAL_RANK``, ``LOCAL_WORLD_SIZE``, ``MASTER_ADDR`` and ``MASTER_PORT``. Without
        ``RANK`` and ``WORLD_SIZE``, or at world size 1, this is a job of one process.

        Raises:
            RendezvousError: If they are incomplete, or contradict one another.
        """
        environment = os.environ if environment is None else environment
        size = _number(environment, "WORLD_SIZE", 1)
        if size == 1 and "RANK" not in environment:
            return cls()
        names = ("RANK", "WORLD_SIZE") if size == 1 else ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
        missing = [name for name in names if name not in environment]
        if missing:
            raise RendezvousError(
                f"WORLD_SIZE={environment.get('WORLD_SIZE')} and RANK={environment.get('RANK')}, but "
                f"{', '.join(missing)} not set: start with torchrun, which sets them all, or unset them for a job of "
                "one process"
            )
        rank = _number(environment, "RANK")
        local_rank = _number(environment, "LOCAL_RANK", rank)
        local_size = _number(environment, "LOCAL_WORLD_SIZE", size)
        if size < 1 or rank >= size or local_size < 1 or local_size > size or local_rank >= local_size:
            raise RendezvousError(
                f"RANK={rank} of WORLD_SIZE={size}, LOCAL_RANK={local_rank} of LOCAL_WORLD_SIZE={local_size}: a rank "
                "must be below its world size"
            )
        return cls(
            rank=rank,
            size=size,
            local_rank=local_rank,
            local_size=local_size,
            is_launched="TORCHELASTIC_RUN_ID" in environment,
            max_restarts=_number(environment, "TORCHELASTIC_MAX_RESTARTS", 0),
            restart=_number(environment, "TORCHELASTIC_RESTART_COUNT", 0),
        )

    def pin(
        self, device: str, devices: str | None, environment: MutableMapping[str, str] | None = None
    ) -> tuple[str, str | None]:
        """Pins this process to its share of the node's devices, which are those it inherited.

        Args:
            device: ``"auto"``, ``"cpu"`` or ``"cuda"``, each rank with a GPU of its own then.
            devices: The node's devices for the workers of all its ranks, as for
                :func:`~genesis_vec.devices.parse_devices`; each rank gets an equal share. None for scenes in the ranks
                themselves.
            environment: The variables of this process; ``os.environ`` by default.

        Returns:
            What ``device`` and ``devices`` are in the pinned process.

        Raises:
            DeviceNotFoundError: If there are fewer GPUs than ranks, on every rank.
            DevicePinningError: If it is too late.
            ValueError: If a device is named that not every rank can have, or the devices do not go evenly.
        """
        environment = os.environ if environment is None else environment
        if self.local_size == 1:
            return device, devices
        if devices is not None:
            return self._pin_workers(device, devices, environment)
        if device == "cpu":
            return device, None
        if device not in ("auto", "cuda"):
            raise ValueError(f"device={device!r} with {self.local_size} ranks on a node: use 'auto', 'cpu' or 'cuda'")
        try:
            gpus = parse_devices("cuda", environment)
        except DeviceNotFoundError:
            if device == "auto":
                return device, None
            raise
        if len(gpus) == 1 and not self.is_launched:
            return "cuda:0", None  # a scheduler has given each rank its own
        if len(gpus) < self.local_size:
            visible = environment.get("CUDA_VISIBLE_DEVICES")
            raise DeviceNotFoundError(
                f"LOCAL_WORLD_SIZE={self.local_size} ranks on this node, and {len(gpus)} GPUs for them "
                f"(CUDA_VISIBLE_DEVICES={visible!r}): start with --nproc-per-node={len(gpus)}, or use --device cpu"
            )
        pin_process(gpus[self.local_rank], environment)
        return "cuda:0", None

    def _pin_workers(self, device: str, devices: str, environment: MutableMapping[str, str]) -> tuple[str, str]:
        listed = parse_devices(devices, environment)
        share, rest = divmod(len(listed), self.local_size)
        if share == 0 or rest:
            raise ValueError(
                f"devices={devices!r} are {len(listed)} for LOCAL_WORLD_SIZE={self.local_size} ranks on this node: "
                "give each rank the same number"
            )
        own = listed[self.local_rank * share : (self.local_rank + 1) * share]
        if own[0].index is None:
            return device, f"cpu:{share}"
        visible = list(dict.fromkeys(gpu.variables["CUDA_VISIBLE_DEVICES"] for gpu in own))
        pin_process(ProcessDevice(own[0].name, None, {"CUDA_VISIBLE_DEVICES": ",".join(visible)}), environment)
        indices = [str(visible.index(gpu.variables["CUDA_VISIBLE_DEVICES"])) for gpu in own]
        return device, f"cuda:{','.join(indices)}"


def _number(environment: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = environment.get(name)
    if text is None and default is not None:
        return default
    if text is None or not text.isdecimal():
        raise RendezvousError(f"{name}={text!r} must be a number of 0 or more")
    return int(text)
