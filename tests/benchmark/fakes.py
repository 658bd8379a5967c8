"""Environments of a known speed, which fail on demand: ``tests.benchmark.fakes:Costly-v0``."""

from __future__ import annotations

import os
import time
from typing import Any

import gymnasium
import torch

from tests.training.toy import ToyEnv


def rate(num_envs: int, workers: int, envs_per_scene: int | None) -> float:
    """Env-steps/s: it grows with the number of environments towards a limit, and has a best size of a scene."""
    scene = envs_per_scene or num_envs
    return 40_000.0 * workers * num_envs / (num_envs + 400.0) / (1.0 + 0.3 * abs(scene - 256) / 256)


class CostlyEnv(ToyEnv):
    """Takes as long for a step as its rate says.

    Args:
        num_envs: Number of environments.
        devices: "cpu:N".
        envs_per_scene: Most in a scene.
        crash_at: The number of environments at which the process ends by a signal.
        crash_above: The number above which it always does.
        exhaust_at: The number at which it asks for more memory than there is.
        **kwargs: As for ToyEnv.
    """

    def __init__(
        self, num_envs: int, devices: str = "cpu:1", envs_per_scene: int | None = None, crash_at: int = 0,
        crash_above: int = 1 << 30, exhaust_at: int = 0, **kwargs: Any,
    ) -> None:  # fmt: skip
        super().__init__(num_envs, **kwargs)
        self._step_s = num_envs / rate(num_envs, int(devices.partition(":")[2]), envs_per_scene)
        if num_envs == crash_at or num_envs > crash_above:
            os.abort()
        if num_envs == exhaust_at:
            self._block = torch.zeros(1 << 33)
        self._kept = torch.zeros(num_envs, 50_000)  # 200 KB for each

    def step(self, actions: torch.Tensor) -> Any:
        time.sleep(self._step_s)
        return super().step(actions)


gymnasium.register("Costly-v0", vector_entry_point="tests.benchmark.fakes:CostlyEnv")
