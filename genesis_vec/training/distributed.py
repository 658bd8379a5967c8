"""What a learner asks of the other learners. World size 1 is not another code path: its sums have one term."""

from __future__ import annotations

import datetime
import gc
import os
import time
from types import TracebackType
from typing import Any

import torch
from torch import distributed
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel

from genesis_vec.errors import RendezvousError
from genesis_vec.training.job import Job

_SETTLING_S = 0.2


class World:
    """The learners of a run, and this one's place among them; a context that leaves the group at its end.

    Every method but :meth:`close` is a collective: all ranks must call it, in the same order.

    Args:
        job: This process's place; a job of one process by default.
        device: Where the learner's tensors are: NCCL between GPUs, gloo between CPUs.
        timeout: Seconds to wait for the others, in meeting them and in each collective.

    Attributes:
        rank: This learner's number.
        size: Number of learners.

    Raises:
        RendezvousError: If the others do not come.
    """

    def __init__(self, job: Job | None = None, device: torch.device | None = None, timeout: float = 600.0) -> None:
        job = job or Job()
        self.rank = job.rank
        self.size = job.size
        self._owns_group = False
        self._store: Any = None
        self._timeout = timeout
        if self.size == 1 or distributed.is_initialized():
            return
        on_gpu = device is not None and device.type == "cuda"
        try:
            store, _, _ = next(rendezvous("env://", self.rank, self.size, timeout=datetime.timedelta(seconds=timeout)))
            self._store = store
            distributed.init_process_group(
                # Plain values are exchanged through the CPU in either case.
                "cpu:gloo,cuda:nccl" if on_gpu else "gloo",
                # torchrun's store keeps the addresses of ranks that it has restarted since, where others then look for
                # them.
                store=PrefixStore(f"restart{job.restart}", store),
                rank=self.rank,
                world_size=self.size,
                timeout=datetime.timedelta(seconds=timeout),
                device_id=device if on_gpu else None,
            )
        except (distributed.DistError, RuntimeError, ValueError) as error:
            place = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
            raise RendezvousError(
                f"rank {self.rank} of {self.size} did not find the others at {place} within {timeout:g} s: {error}"
            ) from error
        self._owns_group = True

    def gather(self, value: torch.Tensor) -> torch.Tensor:
        """The tensors of all learners, stacked in the order of ranks: (size, *shape)."""
        if self.size == 1:
            return value[None]
        parts = [torch.empty_like(value) for _ in range(self.size)]
        distributed.all_gather(parts, value.contiguous())
        return torch.stack(parts)

    def gather_values(self, value: Any) -> list[Any]:
        """The plain values of all learners, in the order of ranks."""
        if self.size == 1:
            return [value]
        values = [None] * self.size
        distributed.all_gather_object(values, value)
        return values

    def from_rank(self, rank: int, value: Any) -> Any:
        """The plain value of one rank, whatever the others give."""
        if self.size == 1:
            return value
        values = [value]
        distributed.broadcast_object_list(values, src=rank)
        return values[0]

    def from_first(self, value: Any) -> Any:
        """Rank 0's plain value, whatever the others give."""
        return self.from_rank(0, value)

    def mark(self, name: str) -> None:
        """Sets a mark that stays when torchrun starts the ranks anew."""
        if self._store is not None and self.rank == 0:
            self._store.set(name, "")

    def is_marked(self, name: str) -> bool:
        """Whether :meth:`mark` was called, by these ranks or those before a restart."""
        return self.from_first(self._store is not None and self.rank == 0 and self._store.check([name]))

    def any(self, flag: bool) -> bool:
        """Whether some learner's flag is set."""
        return bool(self.gather(torch.tensor(flag)).any())

    def agree(self, error: Exception | None, doing: str) -> None:
        """Lets all learners fail if one has, so that none waits for it.

        Args:
            error: What went wrong here, None if nothing did.
            doing: What all of them were doing, for the message.

        Raises:
            Exception: The error given, or a RendezvousError that names another rank's.
        """
        texts = self.gather_values(None if error is None else f"{type(error).__name__}: {error}")
        if error is not None:
            raise error
        for rank, text in enumerate(texts):
            if text is not None:
                raise RendezvousError(f"rank {rank} failed while {doing}: {text}")

    def wrap(self, module: torch.nn.Module) -> torch.nn.Module:
        """The module, with its gradients averaged over all learners in each backward pass."""
        if self.size == 1:
            return module
        # The normalisation in the module's buffers is merged by the learner; it is the same everywhere already.
        return DistributedDataParallel(module, forward_sync_buffers=False, gradient_as_bucket_view=True)

    def barrier(self) -> None:
        """Waits until all learners are here."""
        self.gather(torch.zeros(()))

    def close(self) -> None:
        """Leaves the group, without waiting for anyone."""
        if not self._owns_group:
            return
        self._owns_group = False
        # A wrapped module that is still about would keep the group's threads alive.
        gc.collect()
        distributed.destroy_process_group()
        # Where something still does, an error's traceback for instance: a thread of gloo may be about to drop the last
        # collective's tensors, for which it waits for the interpreter. At the interpreter's end it would abort the
        # process, in one of 24 runs. Sleeping lets it have its turn.
        time.sleep(_SETTLING_S)

    def __enter__(self) -> World:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                # Whoever leaves first takes the connections of the others with it.
                self.barrier()
            elif self.size > 1 and isinstance(error, (distributed.DistError, RuntimeError)) and _is_lost_peer(error):
                raise RendezvousError(
                    f"rank {self.rank} lost another rank, which has failed or took longer than collective_timeout="
                    f"{self._timeout:g} s ({str(error).splitlines()[0]})"
                ) from error
        finally:
            self.close()


def _is_lost_peer(error: BaseException) -> bool:
    """Whether a collective failed for want of another rank. Gloo raises plain RuntimeErrors, which name its source."""
    return isinstance(error, distributed.DistError) or "gloo" in str(error)
