"""An interrupt that is swallowed on its way is raised in the end."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator

import pytest

from genesis_vec.interrupts import interrupts_kept
from genesis_vec.tasks.cart_pole import CartPoleTask
from genesis_vec.vector_env import GenesisVectorEnv


@pytest.fixture(autouse=True)
def own_handler() -> Iterator[None]:
    """Python's own handler, which is not there where the tests were started in the background of a shell."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def swallowed_interrupt() -> None:
    with contextlib.suppress(BaseException):
        os.kill(os.getpid(), signal.SIGINT)
        signal.pthread_sigmask(signal.SIG_BLOCK, [])  # Python's handler runs between two instructions


def test_one_that_was_swallowed_is_raised_at_the_end_of_the_block():
    done = False
    with pytest.raises(KeyboardInterrupt), interrupts_kept():
        swallowed_interrupt()
        done = True
    assert done
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_environment_is_not_made_after_an_interrupt_that_the_engine_swallowed(monkeypatch):
    monkeypatch.setattr(CartPoleTask, "setup", lambda self, original=CartPoleTask.setup: (
        swallowed_interrupt(), original(self)
    ))  # fmt: skip
    with pytest.raises(KeyboardInterrupt):
        GenesisVectorEnv(CartPoleTask(), 2, device="cpu")


def test_another_handler_and_other_threads_are_left_alone():
    seen: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: seen.append(number))
    try:
        with interrupts_kept():
            swallowed_interrupt()
    finally:
        signal.signal(signal.SIGINT, before)
    assert seen == [signal.SIGINT]
    entered: list[bool] = []

    def enter() -> None:
        with interrupts_kept():
            entered.append(True)

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert entered == [True]
