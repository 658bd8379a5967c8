"""What the adapters share: environments that would be misread are refused, the GPU that is pinned is found."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv

from genesis_vec.errors import RendezvousError


def check_env(env: Any, adapter: str, mode: AutoresetMode, otherwise: str) -> torch.device:
    """Refuses an environment that an adapter would misread.

    Args:
        env: What was given to the adapter.
        adapter: The adapter's name, for the message.
        mode: The only autoreset mode in which the library's numbers are right.
        otherwise: What would go wrong in another, for the message.

    Returns:
        The environment's device.

    Raises:
        TypeError: If it is not a vector environment of torch tensors, or its actions are not in a Box.
        ValueError: If it is in another mode.
    """
    if not isinstance(env, VectorEnv) or not hasattr(env.unwrapped, "device"):
        raise TypeError(
            f"{adapter} takes a gymnasium.vector.VectorEnv of torch tensors, with a `device`, such as "
            f"gymnasium.make_vec('GenesisCartPole-v0', num_envs=…) gives; got {env!r}"
        )
    given = env.metadata.get("autoreset_mode")
    if given is not mode:
        raise ValueError(
            f"{adapter} needs autoreset_mode={mode.name}, and this environment has "
            f"{getattr(given, 'name', given)}: {otherwise}. Make it with autoreset_mode=AutoresetMode.{mode.name}"
        )
    if not isinstance(env.single_action_space, spaces.Box) or len(env.single_action_space.shape) != 1:
        raise TypeError(f"{adapter} takes actions in a Box of one axis, got {env.single_action_space}")
    return torch.device(env.unwrapped.device)  # type: ignore[attr-defined]


def actor_and_critic(adapter: str, space: spaces.Space[Any]) -> tuple[str | None, str | None]:
    """The keys of what the actor and the critic see, for libraries that keep these two apart.

    Args:
        adapter: The adapter's name, for the message.
        space: The space of one observation.

    Returns:
        None and None for observations that are one tensor; else "policy", and "critic" if there is such a part.

    Raises:
        TypeError: If the observation is a dict of other parts.
    """
    if isinstance(space, spaces.Box):
        return None, None
    if not isinstance(space, spaces.Dict) or "policy" not in space.spaces or not set(space) <= {"policy", "critic"}:
        raise TypeError(
            f"{adapter} takes observations in a Box, or in a Dict with 'policy' and, for the critic, 'critic'; got "
            f"{space}. Put genesis_vec.wrappers.FlattenObservation around the environment"
        )
    return "policy", "critic" if "critic" in space.spaces else None


@contextlib.contextmanager
def only_gpu_as_local_rank() -> Iterator[None]:
    """A context in which ``LOCAL_RANK`` is 0 where this process sees one GPU only.

    rsl_rl, skrl and rl_games take ``cuda:LOCAL_RANK``. A process that was pinned to its GPU, by
    :meth:`genesis_vec.Job.pin` or a scheduler, knows it as ``cuda:0``, whatever its rank.

    Raises:
        RendezvousError: If there are several ranks and no GPU: these libraries use NCCL, and would wait for ever.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield
        return
    count = torch.cuda.device_count()
    if count == 0:
        raise RendezvousError(
            f"WORLD_SIZE={os.environ['WORLD_SIZE']}, and this process sees no GPU: this library's ranks meet over NCCL "
            "only. On CPUs use genesis_vec's own trainer or TorchPPO of genesis_vec.adapters.sb3"
        )
    if count > 1:
        yield
        return
    before = os.environ["LOCAL_RANK"]
    os.environ["LOCAL_RANK"] = "0"
    try:
        yield
    finally:
        os.environ["LOCAL_RANK"] = before
