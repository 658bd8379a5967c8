"""What the package does to the process it runs in: nothing but its job. One fresh interpreter tells most of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from genesis_vec.registry import SHIPPED

IMPORT_SCRIPT = """
import gymnasium, sys, time
before = time.perf_counter()
import genesis_vec
seconds = time.perf_counter() - before
heavy = sorted({"torch", "genesis", "quadrants"} & set(sys.modules))
print(seconds, heavy, sorted(id for id in gymnasium.registry if id.startswith("Genesis")))
"""

# Started with no visible GPU, with no EGL driver, and as one of two ranks.
SCRIPT = """
import json, random, resource, signal, sys, threading, warnings
from pathlib import Path

import gymnasium
import numpy as np
import torch

REPORT = {}

def state():
    generator = np.random.get_state(legacy=False)["state"]
    return {
        "sys.excepthook": sys.excepthook,
        "threading.excepthook": threading.excepthook,
        "signal handlers": {number: signal.getsignal(number) for number in signal.valid_signals()},
        "python's generator": random.getstate(),
        "numpy's generator": (generator["key"].tobytes(), generator["pos"]),
        "torch's generator": torch.get_rng_state().numpy().tobytes(),
        "torch's default dtype": torch.get_default_dtype(),
        "torch's default device": torch.get_default_device(),
        "torch's threads": torch.get_num_threads(),
        "torch's grad mode": torch.is_grad_enabled(),
        "torch's determinism": torch.are_deterministic_algorithms_enabled(),
        "numpy's error state": np.geterr(),
        "standard streams": (sys.stdout, sys.stderr),
    }

def attempt(function):
    try:
        return function()
    except Exception as error:
        return f"{type(error).__name__}: {error}"

def make(**kwargs):
    return gymnasium.make_vec("genesis_vec:GenesisCartPole-v0", **{"num_envs": 3, **kwargs})

before = state()
REPORT["cuda"] = attempt(lambda: make(device="cuda"))
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    env = make(device="auto", max_episode_steps=4)
REPORT["auto"] = [str(warning.message) for warning in caught if "device=" in str(warning.message)]
REPORT["device"] = str(env.device)
REPORT["rewards"] = []
env.reset(seed=0)
for _ in range(6):
    REPORT["rewards"].append(env.step(torch.zeros(3, 1))[1].tolist())
env.reset()
env.close()
after = state()
REPORT["changed"] = [name for name in before if before[name] != after[name]]

def draw():
    env = make(device="cpu", render_mode="rgb_array")
    env.reset(seed=0)
    return f"{len(env.render())} frames"

REPORT["drawing"] = attempt(draw)

# Room for a small scene, but not for two million environments.
used = next(int(line.split()[1]) for line in Path("/proc/self/status").read_text().splitlines() if "VmSize" in line)
resource.setrlimit(resource.RLIMIT_AS, (used * 1024 + (2 << 30),) * 2)
REPORT["too many"] = attempt(lambda: make(num_envs=2_000_000, device="cpu"))
env = make(num_envs=8, device="cpu")
env.reset(seed=0)
REPORT["after too many"] = env.step(torch.zeros(8, 1))[1].tolist()
print("REPORT" + json.dumps(REPORT))
"""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    ranks = {"WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "1"}
    nothing = {"CUDA_VISIBLE_DEVICES": "", "__EGL_VENDOR_LIBRARY_DIRS": str(tmp_path_factory.mktemp("no_egl"))}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env={**os.environ, **ranks, **nothing},
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.rpartition("REPORT")[2])


def test_importing_the_package_registers_its_ids_and_loads_nothing_heavy():
    outputs = []
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", IMPORT_SCRIPT], capture_output=True, text=True, check=True)
        seconds, _, rest = done.stdout.strip().partition(" ")
        assert rest == f"[] {sorted(SHIPPED)}"
        outputs.append(float(seconds))
    assert min(outputs) < 0.3


def test_hooks_generators_and_defaults_of_the_process_stay_as_they_were(report):
    assert report["changed"] == []


def test_the_module_id_form_needs_no_import_and_works_as_one_of_several_ranks(report):
    assert report["rewards"] == [[1.0, 1.0, 1.0]] * 6


def test_b32_a_gpu_that_is_hidden_is_an_error_and_never_the_cpu(report):
    assert report["cuda"] == (
        "DeviceNotFoundError: device='cuda' was asked for, and this process sees no GPU (CUDA_VISIBLE_DEVICES=''). "
        "Check the driver and that variable, or pass device='cpu'."
    )


def test_b32_auto_warns_once_that_it_picked_the_cpu(report):
    assert report["auto"] == [
        "device='auto' picked the CPU: no GPU is visible (CUDA_VISIBLE_DEVICES=''). Pass device='cpu' to say that it "
        "is meant."
    ]
    assert report["device"] == "cpu"


def test_b20_without_an_egl_driver_drawing_works_all_the_same_or_is_refused_with_the_package_that_helps(report):
    if report["drawing"] != "3 frames":
        assert report["drawing"].startswith("RenderingUnavailableError: ")
        assert "EGL" in report["drawing"] and "libegl1" in report["drawing"]


def test_b22_too_many_environments_are_refused_with_their_number_and_fewer_work_in_the_same_process(report):
    assert report["too many"].startswith(
        "EngineBuildError: the engine could not build the scene of CartPoleTask with num_envs=2000000 on cpu: "
    )
    assert report["too many"].endswith("If memory ran out, use fewer environments.")
    assert report["after too many"] == [1.0] * 8
