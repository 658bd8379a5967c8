"""The launched program's side of :func:`genesis_vec.launch`: what it may ask, and what its process does first."""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import pickle
import re
import sys
import traceback
from typing import Any, NoReturn

from genesis_vec.devices import ProcessDevice, pin_process


@dataclasses.dataclass(frozen=True)
class LaunchContext:
    """What a launched program may know of its place among the others.

    Attributes:
        index: Its number, from 0.
        count: How many programs there are.
        seed: A seed of its own, below 2**31, so that every library takes it. It follows from the launch's seed and the
            index alone: neither the device nor a retry changes it, and no two programs of a launch have the same.
        device: What its device is called inside its process: "cpu", or "cuda:0" whichever GPU it is pinned to.
    """

    index: int
    count: int
    seed: int
    device: str

    def variables(self) -> dict[str, str]:
        """The environment variables that say so, for programs in any language: ``GENESIS_VEC_INDEX`` and so on."""
        return {f"{_PREFIX}{name.upper()}": str(value) for name, value in dataclasses.asdict(self).items()}


def launch_context() -> LaunchContext:
    """This process's place in the :func:`genesis_vec.launch` that started it.

    Returns:
        What the variables ``GENESIS_VEC_INDEX``, ``_COUNT``, ``_SEED`` and ``_DEVICE`` say. Without them, in a program
        that was started by itself, it is the only one: index 0 of 1, seed 0, device "auto".
    """
    return LaunchContext(
        index=int(os.environ.get(f"{_PREFIX}INDEX", 0)),
        count=int(os.environ.get(f"{_PREFIX}COUNT", 1)),
        seed=int(os.environ.get(f"{_PREFIX}SEED", 0)),
        device=os.environ.get(f"{_PREFIX}DEVICE", "auto"),
    )


def run_command(device: str, *command: str) -> NoReturn:
    """Becomes ``python COMMAND…``: an ordinary program, with nothing imported on its behalf.

    Args:
        device: A :class:`ProcessDevice`, as :func:`device_argument` gives it.
        *command: The interpreter's arguments: a script's path or "-m" and a module, and the program's own, in which
            placeholders are filled in.
    """
    _pin(device)
    command = tuple(_filled(word) for word in command)
    # Not a run within this interpreter: the program may set variables that NumPy, imported by now, reads on import.
    os.execv(sys.executable, [sys.executable, *command])


def run_function(device: str, call_file: str, value_file: str) -> None:
    """Calls a function and writes what it returns.

    Args:
        device: A :class:`ProcessDevice`, as :func:`device_argument` gives it.
        call_file: Descriptor of a file with a pickled pair: the pickled function, or its name as "module:function", in
            whose arguments placeholders are filled in; the pickled arguments, a tuple and a dict.
        value_file: Descriptor of the file for the pickled value.
    """
    _pin(device)
    with os.fdopen(int(call_file), "rb") as file:
        function, arguments = pickle.load(file)
    value = None
    try:
        # Only now, pinned: unpickling imports what the function refers to, which may be torch.
        positional, keywords = pickle.loads(arguments)
        if isinstance(function, str):
            positional = [_filled(value) for value in positional]
            keywords = {name: _filled(value) for name, value in keywords.items()}
            function = _find(function)
        else:
            function = pickle.loads(function)
        value = _pickled(function(*positional, **keywords))
    except SystemExit as exit:
        value = _pickled(None) if exit.code in (None, 0) else None
        raise
    except BaseException as error:
        # Without this function's own frame, which says nothing to a user.
        error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next
        traceback.print_exception(error)
        sys.exit(1)
    finally:
        if value is not None:
            with os.fdopen(int(value_file), "wb") as file:
                file.write(value)


def device_argument(device: ProcessDevice) -> str:
    """A device as an argument of this module's functions for a process."""
    return json.dumps([device.name, device.index, dict(device.variables)])


def function_name(program: str) -> tuple[str, str]:
    """The two parts of "module:function"."""
    module, _, name = program.partition(":")
    return module, name


_PREFIX = "GENESIS_VEC_"


def _pin(device: str) -> None:
    name, index, variables = json.loads(device)
    # They are set already, unless something that Python runs when it starts has changed them.
    pin_process(ProcessDevice(name, index, variables))


def _filled(value: Any) -> Any:
    """A string with its placeholders ``{index}``, ``{count}``, ``{seed}`` and ``{device}`` filled in."""
    if not isinstance(value, str):
        return value
    context = dataclasses.asdict(launch_context())
    # Not str.format: other braces, such as those of JSON, stay.
    return re.sub(r"\{(\w+)\}", lambda match: str(context.get(match[1], match[0])), value)


def _find(program: str) -> Any:
    # As `python -m` does: a module in the working directory is found.
    sys.path.insert(0, os.getcwd())
    module, name = function_name(program)
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found


def _pickled(value: object) -> bytes:
    import cloudpickle

    return cloudpickle.dumps(value)
