"""Lets Genesis be imported, and scenes be stepped, on machines without graphics libraries.

Genesis loads OpenGL when it is imported, whether or not anything is drawn. Where that fails, stand-ins take the place
of the modules that cannot be loaded, so that everything but drawing works.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import traceback
from types import ModuleType
from typing import Any

RENDERING_REMEDY = (
    "On Debian and Ubuntu the packages libegl1 and libgl1 bring what drawing without a display needs (libosmesa6 where "
    "there is no EGL driver)."
)

# What loads system libraries for graphics at its import: Genesis' renderer, OpenGL's choice of a platform, and a mesh
# library of which only hybrid entities have a use.
_NEED_GRAPHICS = ("genesis.ext.pyrender", "OpenGL.platform", "OpenGL.GL", "OpenGL.EGL", "pygel3d")


def is_rendering_error(error: BaseException) -> bool:
    """Whether an error came out of the engine's drawing code or of OpenGL."""
    names = ("pyrender", "OpenGL", "rasterizer", "pyglet", "visualizer", "pygel3d")
    return any(name in frame.filename for frame in traceback.extract_tb(error.__traceback__) for name in names)


def import_without_graphics() -> ModuleType:
    """Imports Genesis with stand-ins for the modules that need graphics libraries, after it failed for want of them."""
    for name in list(sys.modules):
        if name.partition(".")[0] in ("genesis", "OpenGL", "pygel3d"):
            del sys.modules[name]
    sys.meta_path.insert(0, _StandInFinder())
    import genesis

    return genesis


def has_graphics() -> bool:
    """Whether Genesis, once imported, could load its renderer."""
    return not isinstance(sys.modules.get("genesis.ext.pyrender"), _StandIn)


class _StandIn(ModuleType):
    """A module of which every name is a class that does nothing."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__ = []  # what makes it a package, so that its submodules are asked for too

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


class _StandInFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if fullname.startswith(_NEED_GRAPHICS):
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return _StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass
