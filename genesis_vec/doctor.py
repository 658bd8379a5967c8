"""``genesis-vec doctor``: what is installed and visible here, and what works, tried out where that is possible."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import importlib.util
import json
import os
import platform
import select
import shutil
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from genesis_vec.devices import usable_cores, visible_gpus
from genesis_vec.graphics import RENDERING_REMEDY
from genesis_vec.processes import exit_in_words, start_process, stop_processes

SCHEMA = 1
_PACKAGES = ("genesis-vec", "genesis-world", "quadrants", "torch", "gymnasium", "numpy", "nvidia-ml-py")
# Import name -> what pip calls it, and the extra that brings it.
_EXTRAS = {
    "stable_baselines3": ("stable-baselines3", "sb3"),
    "rsl_rl": ("rsl-rl-lib", "rsl-rl"),
    "skrl": ("skrl", "skrl"),
    "rl_games": ("rl-games", "rl-games"),
    "torchrl": ("torchrl", "torchrl"),
    "onnxruntime": ("onnxruntime", "export"),
}
# What decides on the devices of this process, of its children and of its drawing.
_VARIABLES = (
    "CUDA_VISIBLE_DEVICES", "QD_VISIBLE_DEVICE", "EGL_DEVICE_ID", "PYOPENGL_PLATFORM", "WORLD_SIZE", "RANK",
    "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "PYTORCH_CUDA_ALLOC_CONF", "OMP_NUM_THREADS",
)  # fmt: skip
_PROBE_TIMEOUT_S = 300.0


@dataclasses.dataclass(frozen=True)
class Verdict:
    """Whether something works here.

    Attributes:
        capability: What.
        works: Whether it does.
        reason: How that is known, or why it does not.
        remedy: What would change it; empty where it works, or nothing would.
        is_tried: Whether it was tried out; else what it needs was found.
    """

    capability: str
    works: bool
    reason: str
    remedy: str = ""
    is_tried: bool = False


def examine() -> dict[str, Any]:
    """Looks around and tries out; takes half a minute, or some minutes where the engine compiles its kernels first.

    Returns:
        Plain values: "packages", "python", "system", "cpu", "gpus", "variables", "engine", "distributed" and
        "verdicts", a list of the fields of :class:`Verdict`.
    """
    gpus = _gpus()
    visible = visible_gpus(os.environ)
    cpu_probe = _probe("simulate", "cpu")
    gpu_probe = _probe("simulate", "cuda") if visible else None
    draw_probe = _probe("draw", "cpu")
    distributed = _probe("distributed", "cpu")
    compiler = shutil.which("c++") or shutil.which("g++")
    verdicts = [
        _tried("simulate on the CPU", cpu_probe, "reinstall: pip install --force-reinstall genesis-world"),
        _gpu_verdict(gpus, visible, gpu_probe),
        _tried("draw pictures", draw_probe, RENDERING_REMEDY),
        _backend("train on several ranks on the CPU (gloo)", distributed, "gloo"),
        _backend("train on several ranks on GPUs (NCCL)", distributed, "nccl"),
        Verdict(
            "compile the learner on the CPU (--compile)",
            compiler is not None,
            f"torch.compile needs a C++ compiler: {compiler or 'none is there'}",
            "" if compiler else "install one; on Debian and Ubuntu the package g++",
        ),
        *(_extra(name, *brought_by) for name, brought_by in _EXTRAS.items()),
    ]
    return {
        "schema": SCHEMA,
        "packages": {name: _version(name) for name in (*_PACKAGES, *(package for package, _ in _EXTRAS.values()))},
        "python": platform.python_version(),
        "system": platform.platform(),
        "cpu": {"usable_cores": usable_cores(), "cores": os.cpu_count(), "memory": _memory()},
        "gpus": gpus,
        "variables": {name: os.environ.get(name) for name in _VARIABLES},
        "visible_gpus": visible,
        "engine": cpu_probe.get("engine"),
        "distributed": distributed.get("backends"),
        "verdicts": [dataclasses.asdict(verdict) for verdict in verdicts],
    }


def doctor(as_json: bool = False) -> bool:
    """Examines this machine and prints what was found; whether the package can simulate here at all."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    report = examine()
    works = bool(report["verdicts"][0]["works"])
    if as_json:
        sys.stdout.write(json.dumps(report, indent=2) + "\n")
        return works
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"Python {report['python']} on {report['system']}")
    console.print(
        "packages    " + ", ".join(f"{name} {version or '-'}" for name, version in report["packages"].items())
    )
    cpu, memory = report["cpu"], _memory_in_words(report["cpu"]["memory"])
    console.print(f"CPU         {cpu['usable_cores']} of {cpu['cores']} cores usable, {memory}")
    for gpu in report["gpus"]["devices"]:
        console.print(
            f"GPU {gpu['index']}       {gpu['name']}, {gpu['free_bytes'] / 1024**3:.1f} of "
            f"{gpu['total_bytes'] / 1024**3:.1f} GiB free, driver {report['gpus']['driver']}, {gpu['uuid']}"
        )
    if not report["gpus"]["devices"]:
        console.print(f"GPU         none: {report['gpus']['reason']}")
    set_variables = {name: value for name, value in report["variables"].items() if value is not None}
    console.print(
        "variables   " + (", ".join(f"{name}={value}" for name, value in set_variables.items()) or "none set")
    )
    if report["engine"]:
        cache = report["engine"]["kernel_cache"]
        console.print(
            f"engine      {report['engine']['backend']}; {cache['files']} files, {cache['bytes'] / 1024**2:.0f} MiB of "
            f"compiled kernels in {cache['folder']}"
        )
    table = Table("", "", "why", "what would help")
    for verdict in report["verdicts"]:
        works_here = ("yes" if verdict["is_tried"] else "found") if verdict["works"] else "no"
        table.add_row(works_here, *(escape(verdict[name]) for name in ("capability", "reason", "remedy")))
    console.print(table)
    return works


# -------------------------------------------------------------------------------------------------------- what there is


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _memory() -> dict[str, int]:
    fields = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    total, available = (int(fields[name].split()[0]) * 1024 for name in ("MemTotal", "MemAvailable"))
    return {"total_bytes": total, "available_bytes": available}


def _memory_in_words(memory: Mapping[str, int]) -> str:
    return f"{memory['available_bytes'] / 1024**3:.1f} of {memory['total_bytes'] / 1024**3:.1f} GiB available"


def _gpus() -> dict[str, Any]:
    """The machine's GPUs, whether this process sees them or not."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return {"driver": None, "devices": [], "reason": f"the driver does not answer ({error})"}
    try:
        devices = []
        for index in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
            devices.append(
                {
                    "index": index,
                    "name": pynvml.nvmlDeviceGetName(handle),
                    "uuid": pynvml.nvmlDeviceGetUUID(handle),
                    "total_bytes": int(memory.total),
                    "free_bytes": int(memory.free),
                }
            )
        reason = "" if devices else "the driver knows of none"
        return {"driver": pynvml.nvmlSystemGetDriverVersion(), "devices": devices, "reason": reason}
    finally:
        pynvml.nvmlShutdown()


# ------------------------------------------------------------------------------------------------------------- verdicts


def _tried(capability: str, probe: Mapping[str, Any], remedy: str) -> Verdict:
    if "error" in probe:
        return Verdict(capability, False, probe["error"], remedy)
    by = f" by {probe['renderer']}" if "renderer" in probe else ""
    return Verdict(capability, True, f"tried, in {probe['seconds']:.0f} s{by}", is_tried=True)


def _gpu_verdict(gpus: Mapping[str, Any], visible: list[str], probe: Mapping[str, Any] | None) -> Verdict:
    capability = "simulate on a GPU"
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if probe is not None:
        remedy = (
            "install the CUDA build of torch that suits the driver" if "sees no GPU" in probe.get("error", "") else ""
        )
        return _tried(capability, probe, remedy)
    if gpus["devices"]:
        return Verdict(
            capability, False, f"CUDA_VISIBLE_DEVICES={listed!r} hides the {len(gpus['devices'])} GPUs there are",
            "unset it, or list some of them",
        )  # fmt: skip
    return Verdict(capability, False, gpus["reason"], "an NVIDIA GPU with its driver")


def _backend(capability: str, probe: Mapping[str, Any], name: str) -> Verdict:
    if "error" in probe:
        return Verdict(capability, False, probe["error"])
    if probe["backends"][name]:
        return Verdict(capability, True, "torch was built with it")
    return Verdict(capability, False, "torch was built without it", "another build of torch")


def _extra(module: str, package: str, extra: str) -> Verdict:
    capability = "export to ONNX" if extra == "export" else f"train with {module}"
    if importlib.util.find_spec(module) is None:
        return Verdict(capability, False, f"{package} is not installed", f"pip install 'genesis-vec[{extra}]'")
    return Verdict(capability, True, f"{package} {_version(package)}")


# ----------------------------------------------------------------------------------------------------------- trying out


def _probe(what: str, device: str) -> dict[str, Any]:
    """Tries something in a process of its own: what it found, or under "error" why it failed."""
    reading, writing = os.pipe()
    log = os.memfd_create("probe")
    # A process of a job of several would wait for the others.
    alone = {"WORLD_SIZE": "1", "RANK": "0", "LOCAL_RANK": "0"}
    start = time.monotonic()
    process = start_process(
        "genesis_vec.doctor:_try_out", [what, device, str(writing)], pass_fds=[writing], stdout=log, stderr=log,
        variables=alone,
    )  # fmt: skip
    os.close(writing)
    answer = b""
    try:
        if select.select([reading], [], [], _PROBE_TIMEOUT_S)[0]:
            answer = os.read(reading, 1 << 16)
        is_late = not answer and process.poll() is None and time.monotonic() - start >= _PROBE_TIMEOUT_S
    finally:
        stop_processes([process], grace_s=10.0 if answer else 0.0)
        os.close(reading)
        words = os.pread(log, 1 << 16, 0).decode(errors="replace").strip()
        os.close(log)
    if is_late:
        return {"error": f"no answer within {_PROBE_TIMEOUT_S:.0f} s"}
    if not answer:
        return {"error": f"{exit_in_words(process.returncode)}: {words.rpartition(chr(10))[2]}"}
    return {"seconds": time.monotonic() - start, **json.loads(answer)}


def _try_out(what: str, device: str, descriptor: str) -> None:
    try:
        found = {"simulate": _simulate, "draw": _draw, "distributed": _distributed}[what](device)
    except Exception as error:
        found = {"error": f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"}
    with os.fdopen(int(descriptor), "w") as file:
        json.dump(found, file)


def _simulate(device: str) -> dict[str, Any]:
    import torch

    from genesis_vec.engine import kernel_cache_folder
    from genesis_vec.tasks.cart_pole import CartPoleTask
    from genesis_vec.vector_env import GenesisVectorEnv

    env = GenesisVectorEnv(CartPoleTask(), 2, device=device)
    env.reset(seed=0)
    if bool(env.step(torch.zeros(2, 1))[4]["fault"].any()):
        raise RuntimeError("a step gave values that are not finite")
    import genesis as gs

    folder = kernel_cache_folder()
    files = [path.stat().st_size for path in folder.rglob("*") if path.is_file()] if folder.is_dir() else []
    cache = {"folder": str(folder), "files": len(files), "bytes": sum(files)}
    env.close()
    return {
        "engine": {
            "backend": gs.backend.name,  # type: ignore[union-attr]
            "kernel_cache": cache,
        }
    }


def _draw(device: str) -> dict[str, Any]:
    from genesis_vec.tasks.cart_pole import CartPoleTask
    from genesis_vec.vector_env import GenesisVectorEnv

    env = GenesisVectorEnv(CartPoleTask(), 2, device=device, render_mode="rgb_array", render_envs=[0])
    env.reset(seed=0)
    frames = env.render()
    env.close()
    if frames is None or frames[0].max() == frames[0].min():
        raise RuntimeError("the picture is blank")
    return {"renderer": os.environ.get("PYOPENGL_PLATFORM", "the system's OpenGL")}


def _distributed(device: str) -> dict[str, Any]:
    from torch import distributed

    backends = {"gloo": distributed.is_gloo_available(), "nccl": distributed.is_nccl_available()}
    return {"backends": backends if distributed.is_available() else dict.fromkeys(backends, False)}
