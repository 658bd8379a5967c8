"""B20: machines without graphics libraries."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import ctypes

real = ctypes.CDLL.__init__

def refuse(self, name, *args, **kwargs):
    if name and any(part in str(name) for part in ("libGL", "libEGL", "OSMesa", "libOpenGL", "libPyGEL")):
        raise OSError(f"{name}: cannot open shared object file: No such file or directory")
    real(self, name, *args, **kwargs)

ctypes.CDLL.__init__ = refuse
import ctypes.util
find = ctypes.util.find_library
ctypes.util.find_library = lambda name: None if name in ("GL", "EGL", "OSMesa", "OpenGL", "GLX") else find(name)

import gymnasium, torch
from genesis_vec.errors import RenderingUnavailableError

env = gymnasium.make_vec("genesis_vec:GenesisCartPole-v0", num_envs=2, device="cpu")
env.reset(seed=0)
assert env.step(torch.zeros(2, 1))[1].tolist() == [1.0, 1.0]
env.close()
try:
    gymnasium.make_vec("genesis_vec:GenesisCartPole-v0", num_envs=2, device="cpu", render_mode="rgb_array")
except RenderingUnavailableError as error:
    print("refused:", error)
"""


def test_b20_without_graphics_libraries_everything_but_drawing_works_and_drawing_names_the_package():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert "refused: this machine has no graphics libraries" in done.stdout
    assert "libegl1" in done.stdout
