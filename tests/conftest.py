"""Options, markers and the fixtures that many tests share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from genesis_vec.task import Task
from genesis_vec.tasks.cart_pole import CartPoleTask
from genesis_vec.vector_env import GenesisVectorEnv

_GPU_SKIPS: list[str] = []


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--run-slow", action="store_true", help="also run the tests that take more than a minute")


def pytest_configure(config: pytest.Config) -> None:
    # What device="auto" picks is its own test's matter; elsewhere it is noise.
    config.addinivalue_line("filterwarnings", "ignore:device='auto' picked the CPU:UserWarning")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    gpu_items = [item for item in items if item.get_closest_marker("gpu")]
    reason = None
    if not torch.cuda.is_available():
        reason = "needs an NVIDIA GPU, and this process sees none"
    elif len(gpu_items) < len(items):
        reason = "the engine runs on one device per process, here on the CPU: run `pytest tests/gpu` on its own"
    if reason is not None:
        for item in gpu_items:
            item.add_marker(pytest.mark.skip(reason=reason))
            _GPU_SKIPS.append(item.nodeid)
    if not config.getoption("--run-slow"):
        for item in items:
            if item.get_closest_marker("slow"):
                item.add_marker(pytest.mark.skip(reason="slow: run with --run-slow"))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if _GPU_SKIPS:
        count = len(_GPU_SKIPS)
        terminalreporter.write_line(f"{count} GPU tests DID NOT RUN; nothing here says that the GPU works", red=True)


@pytest.fixture
def make_env() -> Iterator[Callable[..., GenesisVectorEnv]]:
    """Makes environments on the CPU, of cart-poles where no task is given, and closes them at the end of the test."""
    made: list[GenesisVectorEnv] = []

    def make(task: Task | None = None, num_envs: int = 3, **kwargs: Any) -> GenesisVectorEnv:
        made.append(GenesisVectorEnv(task or CartPoleTask(), num_envs, **{"device": "cpu", **kwargs}))
        return made[-1]

    yield make
    for env in made:
        env.close()
