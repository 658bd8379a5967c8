"""The designs that the transport benchmark compares, each around an environment that costs nothing.

All of them take actions (n, 12) and give float32 observations (n, 48), float32 rewards (n,) and two bool flags (n,), in
memory that the caller may keep. TorchRL's is in ``transport_torchrl.py``, since its library is optional.
"""

from __future__ import annotations

import functools
import math
import os
import time
from collections.abc import Sequence
from multiprocessing.reduction import DupFd
from typing import Any, Protocol

import gymnasium
import numpy as np
import torch
import torch.multiprocessing
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

import genesis_vec

OBSERVATION_SIZE = 48
ACTION_SIZE = 12
WORKERS = 2

Batch = Sequence[torch.Tensor]  # observations, rewards, terminated, truncated


def known_batch(num_envs: int, first_env_index: int) -> list[torch.Tensor]:
    """What the environments give, in their own memory: values that tell the rows apart."""
    rows = torch.arange(first_env_index, first_env_index + num_envs)
    columns = torch.arange(OBSERVATION_SIZE)
    return [(rows[:, None] + columns).float(), -rows.float(), rows % 3 == 0, rows % 3 == 1]


class FreeEnv(VectorEnv[Any, Any, Any]):
    """An environment that costs nothing: each step gives the same tensors, which it has already.

    The first step after a reset gives the first action as reward, so that it can be seen that actions arrive.
    """

    def __init__(self, num_envs: int, *, device: Any = "cpu", first_env_index: int = 0) -> None:
        self.num_envs = num_envs
        self.device = torch.device(device)
        self.autoreset_mode = AutoresetMode.DISABLED
        self.metadata = {"autoreset_mode": AutoresetMode.DISABLED}
        self.single_observation_space = spaces.Box(-np.inf, np.inf, (OBSERVATION_SIZE,), np.float32)
        self.single_action_space = spaces.Box(-1.0, 1.0, (ACTION_SIZE,), np.float32)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._obs, self._reward, self._terminated, self._truncated = known_batch(num_envs, first_env_index)
        self._info: dict[str, Any] = {}
        self._is_first = True

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[torch.Tensor, dict[str, Any]]:
        self._is_first = True
        return self._obs, self._info

    def step(self, actions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, dict]:
        if self._is_first:
            self._is_first = False
            return self._obs, actions[:, 0].clone(), self._terminated, self._truncated, self._info
        return self._obs, self._reward, self._terminated, self._truncated, self._info


def make_free_env(num_envs: int, *, device: str, first_env_index: int) -> FreeEnv:
    """What a worker of ours calls."""
    return FreeEnv(num_envs, device=device, first_env_index=first_env_index)


class Contender(Protocol):
    """A way to get a batch of actions to two processes and a batch of results back."""

    def step(self, actions: torch.Tensor) -> Any:
        """A step, as a user of it would call it."""
        ...

    def rows(self, result: Any) -> Batch:
        """What a step gave, in the form of :func:`known_batch`; not timed."""
        ...

    def close(self) -> None:
        """Ends its processes."""
        ...


def check(contender: Contender, num_envs: int) -> None:
    """Finds that actions and results arrive, at their rows, in memory of the caller's. Makes the first two steps.

    Raises:
        RuntimeError: If they do not: its times would mean nothing.
    """
    actions = torch.rand(num_envs, ACTION_SIZE) * 2 - 1
    obs, reward, terminated, truncated = known_batch(num_envs, 0)
    first = contender.rows(contender.step(actions))
    second = contender.rows(contender.step(actions))
    # The first one is looked at after the second step, which must not have written into it.
    for got, rewards in ((first, actions[:, 0]), (second, reward)):
        if not all(map(torch.equal, got, (obs, rewards, terminated, truncated))):
            raise RuntimeError(f"{type(contender).__name__} does not bring its environments' results to the caller")


class Ours:
    """The package's own; one environment in each worker, as in the other designs, and not one for each 128 rows."""

    def __init__(self, num_envs: int) -> None:
        self._env = genesis_vec.MultiDeviceVectorEnv(
            make_free_env, num_envs, devices=f"cpu:{WORKERS}", envs_per_scene=num_envs
        )
        self._env.reset(seed=0)
        self.step = self._env.step
        self.close = self._env.close

    def rows(self, result: Any) -> Batch:
        return result[:4]


class Copies:
    """The copies that the calling process cannot do without, and no other process: actions in, a fresh batch out."""

    def __init__(self, num_envs: int) -> None:
        self._actions = torch.zeros(num_envs, ACTION_SIZE)
        self._env = FreeEnv(num_envs)

    def step(self, actions: torch.Tensor) -> list[torch.Tensor]:
        self._actions.copy_(actions)
        return [part.clone() for part in self._env.step(self._actions)[:4]]

    def rows(self, result: Any) -> Batch:
        return result

    def close(self) -> None:
        pass


class GymnasiumAsync:
    """Gymnasium's AsyncVectorEnv, shared memory, a process for each environment; in NumPy, as it always is."""

    def __init__(self, num_envs: int) -> None:
        self._env = gymnasium.vector.AsyncVectorEnv(
            [functools.partial(_FreeSingleEnv, index) for index in range(num_envs)],
            context="spawn",
            autoreset_mode=AutoresetMode.DISABLED,
        )
        self._env.reset(seed=0)
        self.close = self._env.close

    def step(self, actions: torch.Tensor) -> Any:
        return self._env.step(actions.numpy())

    def rows(self, result: Any) -> Batch:
        obs, reward, terminated, truncated = (torch.from_numpy(part) for part in result[:4])
        return obs, reward.float(), terminated, truncated


class _FreeSingleEnv(gymnasium.Env[np.ndarray, np.ndarray]):
    def __init__(self, index: int) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (OBSERVATION_SIZE,), np.float32)
        self.action_space = spaces.Box(-1.0, 1.0, (ACTION_SIZE,), np.float32)
        obs, reward, terminated, truncated = known_batch(1, index)
        self._obs, self._reward = obs[0].numpy(), float(reward)
        self._terminated, self._truncated = bool(terminated), bool(truncated)
        self._is_first = True

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        self._is_first = True
        return self._obs, {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        reward = float(action[0]) if self._is_first else self._reward
        self._is_first = False
        return self._obs, reward, self._terminated, self._truncated, {}


# ------------------------------------------------------------------------------------- the plain design, four signals


class Signal(Protocol):
    """Tells one other process, once for each call, that it may go on."""

    def send(self) -> None:
        """Tells it."""
        ...

    def wait(self) -> None:
        """Waits to be told."""
        ...


class PipeSignal:
    """A message through a pipe of multiprocessing's."""

    def __init__(self, context: Any) -> None:
        self._reader, self._writer = context.Pipe(duplex=False)

    def send(self) -> None:
        self._writer.send(None)

    def wait(self) -> None:
        self._reader.recv()


class EventFdSignal:
    """The kernel's eventfd, with a read that blocks."""

    def __init__(self, context: Any) -> None:
        self._fd = os.eventfd(0)

    def send(self) -> None:
        os.eventfd_write(self._fd, 1)

    def wait(self) -> None:
        os.eventfd_read(self._fd)

    def __getstate__(self) -> Any:
        return DupFd(self._fd)

    def __setstate__(self, duplicate: Any) -> None:
        self._fd = duplicate.detach()

    def __del__(self) -> None:
        os.close(self._fd)


class SemaphoreSignal:
    """A POSIX semaphore: without a waiter, and without waiting, no system call."""

    def __init__(self, context: Any) -> None:
        self._semaphore = context.Semaphore(0)
        self.send, self.wait = self._semaphore.release, self._semaphore.acquire

    def __getstate__(self) -> Any:
        return self._semaphore

    def __setstate__(self, semaphore: Any) -> None:
        self._semaphore = semaphore
        self.send, self.wait = semaphore.release, semaphore.acquire


class SpinningSignal:
    """A POSIX semaphore that is asked again and again for a while, the core offered to others in between."""

    def __init__(self, context: Any, spin_s: float) -> None:
        self._semaphore = context.Semaphore(0)
        self._spin_s = spin_s

    def send(self) -> None:
        self._semaphore.release()

    def wait(self) -> None:
        acquire = self._semaphore.acquire
        deadline = time.perf_counter() + self._spin_s
        while not acquire(False):
            if time.perf_counter() > deadline:
                acquire()
                return
            os.sched_yield()


class Plain:
    """What one would write first: shared tensors, a signal per worker and step each way, a copy for the caller."""

    def __init__(self, num_envs: int, make_signal: Any) -> None:
        context = torch.multiprocessing.get_context("spawn")
        self._actions = torch.zeros(num_envs, ACTION_SIZE).share_memory_()
        self._results = [torch.zeros_like(part).share_memory_() for part in known_batch(num_envs, 0)]
        self._is_over = context.RawValue("b", 0)
        self._go = [make_signal(context) for _ in range(WORKERS)]
        self._done = [make_signal(context) for _ in range(WORKERS)]
        self._processes = []
        size = math.ceil(num_envs / WORKERS)
        for index in range(WORKERS):
            rows = slice(index * size, (index + 1) * size)
            arguments = (
                index * size, self._actions[rows], [part[rows] for part in self._results],
                self._go[index], self._done[index], self._is_over,
            )  # fmt: skip
            process = context.Process(target=_work, args=arguments, daemon=True)
            process.start()
            self._processes.append(process)

    def step(self, actions: torch.Tensor) -> list[torch.Tensor]:
        self._actions.copy_(actions)
        for go in self._go:
            go.send()
        for done in self._done:
            done.wait()
        return [part.clone() for part in self._results]

    def rows(self, result: Any) -> Batch:
        return result

    def close(self) -> None:
        self._is_over.value = 1
        for go in self._go:
            go.send()
        for process in self._processes:
            process.join()


def _work(
    first_env_index: int,
    actions: torch.Tensor,
    results: list[torch.Tensor],
    go: Signal,
    done: Signal,
    is_over: Any,
) -> None:
    torch.set_num_threads(1)
    env = FreeEnv(len(actions), first_env_index=first_env_index)
    while True:
        go.wait()
        if is_over.value:
            return
        for shared, part in zip(results, env.step(actions)[:4], strict=True):
            shared.copy_(part)
        done.send()
