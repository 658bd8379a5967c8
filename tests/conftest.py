"""Options, markers and the fixtures that many tests share."""

from __future__ import annotations

import contextlib
import gc
import itertools
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from gymnasium.vector import AutoresetMode

from genesis_vec.engine import import_genesis
from genesis_vec.task import Task
from genesis_vec.tasks.cart_pole import CartPoleTask
from genesis_vec.vector_env import GenesisVectorEnv

_GPU_SKIPS: list[str] = []


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--run-slow", action="store_true", help="also run the tests that take more than a minute")


def pytest_configure(config: pytest.Config) -> None:
    # What runs in the background of a script ignores Ctrl-C, and so would the processes that tests start.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
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


class EnvPool:
    """Environments for tests, on the CPU. Building and closing a scene takes half a second, so they are used again.

    Whoever takes one begins with a seeded reset, after which nothing of earlier tests is left.
    """

    def __init__(self) -> None:
        self._idle: dict[str, list[GenesisVectorEnv]] = {}
        # Closing a scene collects garbage. That passes over all objects that were imported, unless they are frozen.
        import_genesis()
        gc.freeze()

    @contextlib.contextmanager
    def lend(self) -> Iterator[Callable[..., GenesisVectorEnv]]:
        """Gives a function that makes environments, and takes back what it made, unless that was closed."""
        lent: list[tuple[str | None, GenesisVectorEnv]] = []

        def make(task: Task | None = None, num_envs: int = 3, *, fresh: bool = False, **kwargs: Any) -> Any:
            """An environment of a task, of cart-poles by default. Its task is `env.task`, not always the one given.

            Args:
                task: The task.
                num_envs: Number of environments.
                fresh: Whether it must be one that was constructed with these very arguments and never reset.
                **kwargs: Arguments of GenesisVectorEnv.
            """
            task = task or CartPoleTask()
            kwargs = {"device": "cpu", "autoreset_mode": AutoresetMode.SAME_STEP, **kwargs}
            if fresh:
                key, env = None, GenesisVectorEnv(task, num_envs, **kwargs)
            else:
                limit = kwargs.pop("max_episode_steps", task.max_episode_steps)
                adjustable = {name: getattr(task, name) for name in getattr(task, "ADJUSTABLE", ())}
                fixed = {name: value for name, value in vars(task).items() if name not in adjustable}
                key = repr((type(task), fixed, num_envs, sorted(kwargs.items())))
                idle = self._idle.get(key)
                env = idle.pop() if idle else GenesisVectorEnv(task, num_envs, **kwargs)
                env.max_episode_steps = limit
                for name, value in adjustable.items():
                    setattr(env.task, name, value)
            lent.append((key, env))
            return env

        try:
            yield make
        finally:
            for key, env in lent:
                if key is None:
                    env.close()
                elif not env.closed:
                    self._idle.setdefault(key, []).append(env)

    def close(self) -> None:
        gc.freeze()
        for env in itertools.chain(*self._idle.values()):
            env.close()
        gc.unfreeze()


@pytest.fixture(scope="session")
def env_pool() -> Iterator[EnvPool]:
    pool = EnvPool()
    yield pool
    pool.close()


@pytest.fixture
def make_env(env_pool: EnvPool) -> Iterator[Callable[..., GenesisVectorEnv]]:
    """Makes environments on the CPU for one test; see `EnvPool.lend`."""
    with env_pool.lend() as make:
        yield make
