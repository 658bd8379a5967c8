"""Independent programs, one per device at a time: their queue, their output, their failures.

Not ``launch.py``: a module of that name would take the place of :func:`genesis_vec.launch` once it is imported.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import hashlib
import importlib.util
import inspect
import io
import os
import pickle
import re
import reprlib
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
import time
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Literal

import cloudpickle

from genesis_vec.devices import ProcessDevice, parse_devices
from genesis_vec.errors import LaunchError
from genesis_vec.launched import LaunchContext, device_argument, function_name
from genesis_vec.processes import exit_in_words, signal_group, start_process, stop_processes
from genesis_vec.program_output import ProgramOutput, print_lines


@dataclasses.dataclass(frozen=True)
class LaunchResult:
    """How one program ended.

    Attributes:
        index: Its number, that of its item in ``args``.
        item: That item; None where none was given.
        device: The device it ran on, as this process calls it: "cpu", "cuda:1".
        seed: The seed it was offered.
        exit_code: Its exit code, negative for a signal.
        attempts: How often it was started, 1 without a retry.
        seconds: How long the last attempt took, from the start of its process to the end.
        value: What a function returned; None for other programs.
        failure: None if it did what it should; else its end in words and, below that, the end of what it wrote to
            stderr, from the traceback on where there is one.
    """

    index: int
    item: Any
    device: str
    seed: int
    exit_code: int
    attempts: int
    seconds: float
    value: Any = None
    failure: str | None = None


def launch(
    program: str | os.PathLike[str] | Callable[..., Any],
    *,
    devices: str | int | Iterable[object] = "auto",
    args: Iterable[Any] | None = None,
    seed: int = 0,
    retries: int = 0,
    timeout: float | None = None,
    on_failure: Literal["stop", "continue"] = "stop",
) -> list[LaunchResult]:
    """Runs independent programs, each an ordinary one for a single device, on several devices side by side.

    Every program has a process of its own, which sees its device only and is pinned to it before anything is imported.
    With more items in ``args`` than devices, each device takes the next item when it is free. What the programs print
    appears line by line behind a prefix with index and device; of a progress bar, its newest state every few seconds.
    What a program leaves running in its process group ends with it; if this process dies, they die with it.

    Each program is offered a seed of its own and its place among the others, by :func:`genesis_vec.launch_context` or
    the environment variables it reads.

    >>> def double(x):
    ...     return 2 * x
    >>> [result.value for result in launch(double, devices="cpu:2", args=[(1,), (2,), (3,)])]
    [2, 4, 6]

    Args:
        program: The path of a Python script (.py); a module as for ``python -m``; "module:function"; or a function,
            which may be a lambda or come from the main script or a notebook (the main script is not imported again, so
            it needs no ``__main__`` guard). Function and return value travel by cloudpickle; a tensor should be
            returned on the CPU.
        devices: As in :func:`genesis_vec.devices.parse_devices`: "cuda", "cuda:0,1", "cpu:2", "auto", or a list.
        args: One item per program. For a function a tuple of positional or a dict of keyword arguments; for a script or
            module a list of command-line arguments. By default one program per device, without arguments. In the
            strings of a program that is named, ``{index}``, ``{count}``, ``{seed}`` and ``{device}`` are filled in.
        seed: What the programs' seeds follow from; below 2**64.
        retries: How often a program that failed is started anew, with the same arguments and seed.
        timeout: Seconds a program may take, each attempt anew; None for no limit.
        on_failure: "stop" ends the others (SIGTERM, and SIGKILL five seconds later) when a program has failed for the
            last time; "continue" runs them all and raises at the end.

    Returns:
        How each program ended, in the order of the items.

    Raises:
        LaunchError: If a program failed. It holds the results so far and all failures.
        KeyboardInterrupt: On Ctrl-C, after all programs were ended.
        FileNotFoundError: If there is no such script.
        DeviceNotFoundError: If a GPU is asked for that this process does not see.
        ValueError: If another argument makes no sense.
        TypeError: If an item is not of the form above or does not fit the function's parameters, or cannot be pickled.
    """
    _check_integer("retries", retries)
    if timeout is not None and not (isinstance(timeout, (int, float)) and timeout > 0):
        raise ValueError(f"timeout must be a positive number of seconds, or None for no limit, got {timeout!r}")
    if on_failure not in ("stop", "continue"):
        raise ValueError(f"on_failure must be 'stop' or 'continue', got {on_failure!r}")
    _check_integer("seed", seed, 1 << 64)
    parsed_program = _parse_program(program)
    process_devices = parse_devices(devices)
    items = [None] * len(process_devices) if args is None else _listed(args)
    items = [
        _Item(index, item, program_seed(seed, index), parsed_program.prepare(index, item))
        for index, item in enumerate(items)
    ]
    return _Launcher(parsed_program, items, process_devices, retries, timeout, on_failure == "stop").run()


def program_seed(seed: int, index: int) -> int:
    """The seed offered to a program: below 2**31, distinct for the indices of one launch.

    A hash of the seed, plus the index, through a bijection of 31-bit numbers, so that seeds of neighbours do not look
    alike and yet never coincide. (Multiplying by an odd number and xor with a right shift of itself are bijections.)
    """
    bits = (1 << 31) - 1
    z = int.from_bytes(hashlib.blake2b(str(seed).encode(), digest_size=8).digest(), "little") + index & bits
    for multiplier in (0x2C1B3C6D, 0x297A2D39):
        z = (z ^ z >> 16) * multiplier & bits
    return z ^ z >> 15


def _check_integer(name: str, value: object, end: int | None = None) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0 or (end is not None and value >= end):
        limit = "" if end is None else f" below 2**{end.bit_length() - 1}"
        raise ValueError(f"{name} must be a non-negative integer{limit}, got {value!r}")


def _listed(args: Iterable[Any]) -> list[Any]:
    if isinstance(args, (str, bytes, Mapping)) or not isinstance(args, Iterable):
        raise TypeError(f"args={args!r} must be a list with one item per program")
    items = list(args)
    if not items:
        raise ValueError("args is empty, so there is nothing to launch; leave it out for one program per device")
    return items


# ---------------------------------------------------------------------------------------------- programs


class _Command:
    """A script or a module, with command-line arguments."""

    def __init__(self, name: str, start: Sequence[str]) -> None:
        self._name = name
        self._start = start

    def prepare(self, index: int, item: Any) -> list[str]:
        """The item as command-line arguments."""
        if item is None:
            return []
        if not isinstance(item, (list, tuple)) or not all(_is_word(word) for word in item):
            raise TypeError(
                f"args[{index}]={reprlib.repr(item)} must be a list of command-line arguments (strings, numbers or "
                "paths), such as ['--lr', '0.1']"
            )
        return [str(word) for word in item]

    def describe(self, item: Any) -> str:
        return " ".join([self._name, *map(str, item or ())])

    def start(
        self, device: ProcessDevice, call: list[str], context: LaunchContext
    ) -> tuple[subprocess.Popen[bytes], None]:
        arguments = [device_argument(device), *self._start, *call]
        return _start("genesis_vec.launched:run_command", arguments, device, context), None


class _Function:
    """A function, or the name of one."""

    def __init__(self, function: Callable[..., Any] | str) -> None:
        self._name = function if isinstance(function, str) else getattr(function, "__qualname__", repr(function))
        self._sent = function if isinstance(function, str) else _pickle(function, f"the function {self._name}")
        self._signature = None
        if not isinstance(function, str):
            # Some callables, such as those of C, cannot say what they take.
            with contextlib.suppress(ValueError, TypeError):
                self._signature = inspect.signature(function)

    def prepare(self, index: int, item: Any) -> bytes:
        """The item as pickled positional and keyword arguments."""
        if item is not None and not isinstance(item, (tuple, Mapping)):
            text = reprlib.repr(item)
            raise TypeError(
                f"args[{index}]={text} must be a tuple of positional arguments or a dict of keyword arguments; a "
                f"single one is ({text},)"
            )
        positional = item if isinstance(item, tuple) else ()
        keywords = dict(item) if isinstance(item, Mapping) else {}
        if self._signature is not None:
            try:
                self._signature.bind(*positional, **keywords)
            except TypeError as error:
                what = "without args" if item is None else f"with args[{index}]={reprlib.repr(item)}"
                raise TypeError(f"{self._name}{self._signature} cannot be called {what}: {error}") from error
        return _pickle((positional, keywords), f"args[{index}]={reprlib.repr(item)}")

    def describe(self, item: Any) -> str:
        if isinstance(item, Mapping):
            words = [f"{name}={reprlib.repr(value)}" for name, value in item.items()]
        else:
            words = [reprlib.repr(value) for value in item or ()]
        return f"{self._name}({', '.join(words)})"

    def start(
        self, device: ProcessDevice, call: bytes, context: LaunchContext
    ) -> tuple[subprocess.Popen[bytes], IO[bytes]]:
        # Files without a name: nothing is left of them, however this process ends.
        with contextlib.ExitStack() as opened:
            value_file = opened.enter_context(tempfile.TemporaryFile())
            call_file = opened.enter_context(tempfile.TemporaryFile())
            pickle.dump((self._sent, call), call_file)
            call_file.flush()
            call_file.seek(0)
            files = [call_file.fileno(), value_file.fileno()]
            arguments = [device_argument(device), *map(str, files)]
            process = _start("genesis_vec.launched:run_function", arguments, device, context, pass_fds=files)
            opened.pop_all()
        call_file.close()
        return process, value_file


def _parse_program(program: Any) -> _Command | _Function:
    if callable(program):
        return _Function(program)
    if not isinstance(program, (str, os.PathLike)):
        raise TypeError(f"program={program!r} must be a script's path, a module's name, 'module:function', or callable")
    name = os.fspath(program)
    if not isinstance(program, str) or name.endswith(".py") or os.sep in name:
        if not Path(name).is_file():
            raise FileNotFoundError(f"program={name!r}: there is no such script (working directory: {Path.cwd()})")
        return _Command(name, [name])
    module, function = function_name(name)
    if not re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*(:[^\W\d]\w*(\.[^\W\d]\w*)*)?", name):
        raise ValueError(f"program={name!r} is neither a script (.py) nor a module nor 'module:function'")
    package = module.partition(".")[0]
    # Only the outermost: to find a module within it, Python would import it here.
    if not _module_exists(package):
        raise ValueError(f"program={name!r}: there is no module {package!r}; a script's name ends in .py")
    return _Function(name) if function else _Command(f"python -m {name}", ["-m", name])


def _module_exists(package: str) -> bool:
    if package in sys.modules or importlib.util.find_spec(package) is not None:
        return True
    return (Path.cwd() / package).is_dir() or (Path.cwd() / f"{package}.py").is_file()


def _is_word(word: Any) -> bool:
    return isinstance(word, (str, int, float, os.PathLike)) and not isinstance(word, bool)


def _reduce_code(code: types.CodeType) -> tuple[Any, ...]:
    # Cloudpickle leaves out the file's name, without which a traceback in the program shows no lines of code.
    constructor, arguments, *_ = cloudpickle.Pickler.dispatch_table[types.CodeType](code)
    return constructor, tuple(code.co_filename if value == "<dynamic-code>" else value for value in arguments)


class _Pickler(cloudpickle.Pickler):
    dispatch_table = {**cloudpickle.Pickler.dispatch_table, types.CodeType: _reduce_code}  # noqa: RUF012


def _pickle(value: object, what: str) -> bytes:
    buffer = io.BytesIO()
    try:
        _Pickler(buffer).dump(value)
        return buffer.getvalue()
    except Exception as error:
        raise TypeError(
            f"{what} cannot be sent to another process: {error}. Let the function make or open it instead."
        ) from error


def _start(
    entry_point: str, arguments: Sequence[str], device: ProcessDevice, context: LaunchContext, **kwargs: Any
) -> subprocess.Popen[bytes]:
    # Unbuffered: its lines appear when it prints them, and those before a crash are not lost.
    variables = {**device.variables, **context.variables(), "PYTHONUNBUFFERED": "1"}
    pipes: Any = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return start_process(entry_point, arguments, variables=variables, **pipes, **kwargs)


# ----------------------------------------------------------------------------------------------- running

_GRACE_S = 5.0
"""Seconds between SIGTERM and SIGKILL."""
_POLL_S = 0.1


@dataclasses.dataclass
class _Item:
    index: int
    item: Any
    seed: int
    call: Any
    attempts: int = 0


class _Running:
    """One attempt at an item."""

    def __init__(self, item: _Item, device: ProcessDevice, process: subprocess.Popen[bytes], value_file: Any) -> None:
        self.item = item
        self.device = device
        self.process = process
        self.started = time.monotonic()
        self.timed_out = False
        self.kill_at: float | None = None
        """When it is killed; None as long as nobody has asked it to end."""
        self.prefix = f"[{item.index} {device.name}]"
        assert process.stdout is not None and process.stderr is not None
        self.stderr = ProgramOutput(process.stderr, "stderr", self.prefix, item.index)
        self.outputs = [ProgramOutput(process.stdout, "stdout", self.prefix, item.index), self.stderr]
        self.value_file = value_file

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started

    def terminate(self) -> None:
        """Asks it to end, and gives it a while."""
        if self.kill_at is None:
            self.kill_at = time.monotonic() + _GRACE_S
            signal_group(self.process, signal.SIGTERM)

    def has_ended(self) -> bool:
        """Whether it has, without waiting. Its number is not given to another process before :meth:`finish`."""
        return os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def finish(self) -> int:
        """Ends what it left running, shows the rest of its output; its exit code."""
        signal_group(self.process, signal.SIGKILL)
        exit_code = self.process.wait()
        for output in self.outputs:
            output.close()
        return exit_code

    def read_value(self) -> tuple[Any, str | None]:
        """What the function returned, and what is wrong with that."""
        if self.value_file is None:
            return None, None
        self.value_file.seek(0)
        data = self.value_file.read()
        if not data:
            return None, "it ended before it returned"
        try:
            return pickle.loads(data), None
        except Exception as error:
            return None, f"what it returned cannot be unpickled here: {type(error).__name__}: {error}"

    def close(self) -> None:
        if self.value_file is not None:
            self.value_file.close()
        for output in self.outputs:
            output.pipe.close()


class _Launcher:
    def __init__(
        self,
        program: _Command | _Function,
        items: list[_Item],
        devices: Sequence[ProcessDevice],
        retries: int,
        timeout: float | None,
        stop: bool,
    ) -> None:
        self._program = program
        self._count = len(items)
        self._queue = collections.deque(items)
        self._free = collections.deque(devices)
        self._retries = retries
        self._timeout = timeout
        self._stop = stop
        self._stopping = False
        self._running: list[_Running] = []
        self._results: list[LaunchResult | None] = [None] * len(items)
        self._failures: list[LaunchResult] = []

    def run(self) -> list[LaunchResult]:
        with selectors.DefaultSelector() as self._selector, _interrupts_noted() as interrupts:
            try:
                while (self._queue and not self._stopping) or self._running:
                    if interrupts:
                        raise KeyboardInterrupt
                    while self._queue and self._free and not self._stopping:
                        self._start(self._queue.popleft(), self._free.popleft())
                    self._turn()
            finally:
                self._end_all()
        if self._failures:
            raise LaunchError(self._report(), failures=list(self._failures), results=list(self._results))
        return [result for result in self._results if result is not None]

    def _start(self, item: _Item, device: ProcessDevice) -> None:
        item.attempts += 1
        context = LaunchContext(item.index, self._count, item.seed, device.local_name)
        process, value_file = self._program.start(device, item.call, context)
        running = _Running(item, device, process, value_file)
        self._running.append(running)
        for output in running.outputs:
            self._selector.register(output.pipe, selectors.EVENT_READ, output)

    def _turn(self) -> None:
        """Shows what came, and looks who has ended or must end."""
        # Pipes that are closed say that an end is near, and nothing more.
        near = any(all(output.pipe not in self._selector.get_map() for output in r.outputs) for r in self._running)
        for key, _ in self._selector.select(_POLL_S / 10 if near else _POLL_S):
            if not key.data.read():
                self._selector.unregister(key.fileobj)
        now = time.monotonic()
        for running in list(self._running):
            if running.has_ended():
                self._running.remove(running)
                self._ended(running)
            elif running.kill_at is not None:
                if now > running.kill_at:
                    signal_group(running.process, signal.SIGKILL)
            elif self._timeout is not None and running.seconds > self._timeout:
                running.timed_out = True
                running.terminate()
        if self._stopping:
            for running in self._running:
                running.terminate()

    def _ended(self, running: _Running) -> None:
        for output in running.outputs:
            if output.pipe in self._selector.get_map():
                self._selector.unregister(output.pipe)
        seconds, exit_code = running.seconds, running.finish()
        value, failure = None, None
        if running.timed_out:
            failure = f"it took longer than timeout={self._timeout} seconds and was stopped"
        elif exit_code != 0:
            failure = exit_in_words(exit_code)
        else:
            value, failure = running.read_value()
        running.close()
        item = running.item
        if running.kill_at is not None and not running.timed_out and (failure or running.value_file is None):
            # It ended because it was asked to. Only a function's value proves that it was done nevertheless.
            return
        self._free.append(running.device)
        if failure is not None:
            attempts = f", attempt {item.attempts} of {self._retries + 1}" if self._retries else ""
            print_lines("stderr", running.prefix, [f"failed: {failure}{attempts}"], running.item.index)
            if item.attempts <= self._retries and not self._stopping:
                self._queue.appendleft(item)
                return
            failure = "\n".join([failure + attempts, *_from_traceback(running.stderr.tail)])
        result = LaunchResult(
            index=item.index,
            item=item.item,
            device=running.device.name,
            seed=item.seed,
            exit_code=exit_code,
            attempts=item.attempts,
            seconds=seconds,
            value=value,
            failure=failure,
        )
        if failure is None:
            self._results[item.index] = result
            return
        self._failures.append(result)
        self._stopping = self._stopping or self._stop

    def _end_all(self) -> None:
        """Ends those that run; there are none unless an exception passes through."""
        self._stopping = True
        try:
            for running in self._running:
                running.terminate()
            while self._running:
                self._turn()
        finally:
            # A second interrupt, or an output that cannot be written: without grace.
            stop_processes([running.process for running in self._running], grace_s=0.0)
            for running in self._running:
                running.close()

    def _report(self) -> str:
        first = self._failures[0]
        finished = sum(result is not None for result in self._results)
        name = self._program.describe(first.item)
        rest = self._count - finished - len(self._failures)
        counts = [f"{finished} of {self._count} programs finished"]
        if len(self._failures) > 1:
            counts.append(f"{len(self._failures)} failed")
        if rest:
            counts.append(f"{rest} stopped or not started")
        return f"program {first.index}, {name}, on {first.device}: {first.failure}\n({', '.join(counts)})"


def _from_traceback(lines: Iterable[str]) -> list[str]:
    """The end of an output, from the first traceback on, else its last lines."""
    lines = list(lines)
    starts = [number for number, line in enumerate(lines) if line.startswith("Traceback (most recent call last)")]
    return lines[starts[0] :] if starts else lines[-15:]


@contextlib.contextmanager
def _interrupts_noted() -> Iterator[list[int]]:
    """Lets Ctrl-C be noted instead of raised anywhere, such as between a process's start and its being remembered.

    The second one is raised at once. On leaving, one that was noted is raised.
    """
    noted: list[int] = []

    def note(signal_number: int, _frame: object) -> None:
        noted.append(signal_number)
        if len(noted) > 1:
            raise KeyboardInterrupt

    in_main_thread = threading.current_thread() is threading.main_thread()
    if not in_main_thread or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield noted
        return
    signal.signal(signal.SIGINT, note)
    try:
        yield noted
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if noted:
        raise KeyboardInterrupt
