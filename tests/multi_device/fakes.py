"""Environments for worker processes that cost nothing to start: no engine, and failures on demand."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import torch

from tests.fakes import CounterEnv


class PartOfCounterEnv(CounterEnv):
    """A CounterEnv that is a part of a larger one: rows know their global indices."""

    def __init__(self, num_envs: int, device: str, first_env_index: int, **kwargs: Any) -> None:
        super().__init__(num_envs, **kwargs)
        self.first_env_index = first_env_index

    def _observe(self) -> Any:
        obs = super()._observe()
        counter = obs["counter"] if isinstance(obs, dict) else obs
        counter[:, 0] += self.first_env_index
        return obs

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict]:
        if isinstance(seed, int):
            seed = seed % (1 << 31) + self.first_env_index
        return super().reset(seed=seed, options=options)

    def echo(self, text: str) -> str:
        """What was sent."""
        return text

    def report(self) -> dict[str, Any]:
        """What the worker process is like."""
        names = ("CUDA_VISIBLE_DEVICES", "QD_VISIBLE_DEVICE", "EGL_DEVICE_ID")
        return {"pid": os.getpid(), **{name: os.environ.get(name) for name in names}}


class FailingEnv(PartOfCounterEnv):
    """Fails in one way at one step of the scene that has global row `row`, counted from the last reset.

    Args:
        how: "raise", "kill", "exit", "hang" or "interrupt".
        at: The step, from 1 on; 0 means while it is made.
        row: A global index.
        once: A file: if it is there already, nothing fails.
    """

    def __init__(
        self, num_envs: int, device: str, first_env_index: int, *, how: str, at: int, row: int,
        once: Path | None = None, **kwargs: Any,
    ) -> None:  # fmt: skip
        super().__init__(num_envs, device, first_env_index, **kwargs)
        self.how, self.at, self.once = how, at, once
        self.concerned = first_env_index <= row < first_env_index + num_envs
        self.count = 0
        # A worker tries its scenes out with a reset and a step first.
        self.resets = 0
        if at == 0:
            self._fail()

    def _fail(self) -> None:
        if not self.concerned:
            return
        if self.once is not None:
            if self.once.exists():
                return
            self.once.touch()
        if self.how == "raise":
            raise ZeroDivisionError("told to fail")
        if self.how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.how == "exit":
            os._exit(7)
        if self.how == "hang":
            time.sleep(1000)

    def reset(self, **kwargs: Any) -> tuple[Any, dict]:
        self.count = 0
        self.resets += 1
        return super().reset(**kwargs)

    def step(self, actions: Any) -> Any:
        self.count += 1
        if self.resets > 1 and self.count == self.at:
            self._fail()
        return super().step(actions)


def same_step(**kwargs: Any) -> Any:
    """A function that makes parts of a CounterEnv."""

    def make(num_envs: int, device: str, first_env_index: int) -> PartOfCounterEnv:
        return PartOfCounterEnv(num_envs, device, first_env_index, **kwargs)

    return make


def failing(**kwargs: Any) -> Any:
    """A function that makes parts that fail; see FailingEnv."""

    def make(num_envs: int, device: str, first_env_index: int) -> FailingEnv:
        return FailingEnv(num_envs, device, first_env_index, **kwargs)

    return make


def actions(num_envs: int) -> torch.Tensor:
    return torch.zeros(num_envs, 2)
