"""What programs that run side by side print: whole lines, each behind a prefix that says whose it is."""

from __future__ import annotations

import collections
import os
import sys
import time
from collections.abc import Sequence
from typing import IO, Literal, TextIO

Target = Literal["stdout", "stderr"]

_PROGRESS_INTERVAL_S = 5.0
_LONGEST_LINE = 1 << 16
_READ_SIZE = 1 << 16
_LARGEST_PIPE = 1 << 20
_COLOURS = (36, 33, 32, 35, 34, 31)  # of terminals: cyan, yellow, green, magenta, blue, red


class ProgramOutput:
    """One of a program's two streams: bytes in, prefixed lines out.

    Args:
        pipe: Where the program's bytes come from. It is no longer waited for from now on.
        target: Which of this process's streams they go to.
        prefix: What stands before each line.
        colour: A number; prefixes of different numbers are told apart by colour on a terminal.

    Attributes:
        pipe: As given.
        tail: The last lines.
    """

    def __init__(self, pipe: IO[bytes], target: Target, prefix: str, colour: int) -> None:
        self.pipe = pipe
        self.tail: collections.deque[str] = collections.deque(maxlen=60)
        self._target: Target = target
        self._prefix = prefix
        self._colour = colour
        self._rest = b""
        self._progress_shown = time.monotonic()
        os.set_blocking(pipe.fileno(), False)

    def read(self) -> bool:
        """Shows the lines that have come; whether there may be more later or now."""
        try:
            data = os.read(self.pipe.fileno(), _READ_SIZE)
        except BlockingIOError:
            return True
        self._take(data)
        return data != b""

    def close(self) -> None:
        """Shows all that is left."""
        # As much as a pipe holds, not up to its end, which does not come as long as anyone else holds it open.
        for _ in range(_LARGEST_PIPE // _READ_SIZE):
            if not self.read():
                break
        if self._rest:
            self._show([self._rest])
            self._rest = b""
        self.pipe.close()

    def _take(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        self._show(lines)
        if len(self._rest) > _LONGEST_LINE:
            self._show([self._rest])
            self._rest = b""
        # A progress bar overwrites its line again and again. Of that, the newest whole state is shown now and then.
        states, overwritten, newest = self._rest.rpartition(b"\r")
        if overwritten and newest:
            state = states.rpartition(b"\r")[2]
            if state.strip() and time.monotonic() - self._progress_shown > _PROGRESS_INTERVAL_S:
                self._progress_shown = time.monotonic()
                self._show([state])
            self._rest = b"\r" + newest

    def _show(self, lines: Sequence[bytes]) -> None:
        # Of a line that overwrote itself, what would be seen in the end.
        texts = [line.rstrip(b"\r").rpartition(b"\r")[2].decode(errors="replace") for line in lines]
        self.tail.extend(texts)
        print_lines(self._target, self._prefix, texts, self._colour)


def print_lines(target: Target, prefix: str, lines: Sequence[str], colour: int) -> None:
    """Prints lines behind a prefix, in one piece."""
    if not lines:
        return
    # Asked each time: a notebook or a test may have put another stream in its place.
    stream: TextIO = getattr(sys, target)
    if stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb":
        prefix = f"\x1b[{_COLOURS[colour % len(_COLOURS)]}m{prefix}\x1b[0m"
    text = "".join(f"{prefix} {line}\n" for line in lines)
    encoding = stream.encoding or "utf-8"
    stream.write(text.encode(encoding, "replace").decode(encoding))
    stream.flush()
