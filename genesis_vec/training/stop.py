"""Signals that ask a run to end: it finishes its iteration and saves, instead of losing both."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from types import FrameType

# torchrun passes a terminal's Ctrl-C on, so that one interrupt can come twice.
_SAME_REQUEST_S = 2.0


class StopRequest:
    """Whether the run was asked to end.

    Attributes:
        signal: The signal that asked for it, None for none.
    """

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self._time = 0.0

    @contextlib.contextmanager
    def listen(self) -> Iterator[None]:
        """Takes SIGTERM and SIGINT for requests, instead of ending at once; a second SIGINT still does that.

        Where signals cannot be taken, in a thread that is not the main one, they stay as they are.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._take) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _take(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self.signal is None:
            self.signal, self._time = signal.Signals(number), now
        elif number == signal.SIGINT and now - self._time > _SAME_REQUEST_S:
            raise KeyboardInterrupt
