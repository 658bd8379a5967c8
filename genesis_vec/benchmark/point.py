"""One configuration, measured in a process of its own, so that what ends one ends nothing else."""

from __future__ import annotations

import dataclasses
import json
import os
import resource
import select
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gymnasium.error import Error as GymnasiumError

from genesis_vec.errors import TaskError
from genesis_vec.processes import end_in_words, start_process, stop_processes

_BLOCKS = 3
_GRACE_S = 10.0
_LOG_BYTES = 1 << 16
_PATIENCE = 4


@dataclasses.dataclass(frozen=True, kw_only=True)
class Point:
    """A configuration.

    Attributes:
        num_envs: Number of environments.
        workers: Worker processes on the CPU; 0 for one scene in the process itself.
        envs_per_scene: Most environments in one scene, None for no limit.
    """

    num_envs: int
    workers: int = 0
    envs_per_scene: int | None = None

    def env_kwargs(self) -> dict[str, Any]:
        """The arguments of the environment that make it so."""
        if self.workers == 0:
            return {}
        return {"devices": f"cpu:{self.workers}", "envs_per_scene": self.envs_per_scene}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measurement:
    """What a configuration came to; without a failure all figures are there.

    Attributes:
        point: The configuration.
        start_s: Seconds until the first step could be taken.
        step_rate: Env-steps/s of stepping with random actions.
        inference_rate: Env-steps/s of stepping with the policy's actions.
        training_rate: Env-steps/s of whole iterations, rollout and update.
        memory_bytes: Peak of the processes' resident memory, or of their memory on the GPU.
        failure: How it failed, None if it did not.
        is_mistake: Whether it failed for what was asked for (an unknown id, an argument that the task does not take),
            and not for want of memory or time: other sizes are then likely to fail too.
    """

    point: Point
    start_s: float | None = None
    step_rate: float | None = None
    inference_rate: float | None = None
    training_rate: float | None = None
    memory_bytes: int | None = None
    failure: str | None = None
    is_mistake: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Subject:
    """What is measured, the same for all configurations.

    Attributes:
        env_id: Id of the environment.
        env: Its arguments.
        ppo: The learner's settings, of ``PPOConfig``.
        device: "cpu" or "cuda".
        seconds: Roughly how long each of the three rates is measured.
        address_space_bytes: A limit on each process's address space, None for none.
    """

    env_id: str
    env: Mapping[str, Any]
    ppo: Mapping[str, Any]
    device: str
    seconds: float = 1.0
    address_space_bytes: int | None = None


def measure_in_process(subject: Subject, point: Point, timeout_s: float) -> Measurement:
    """Measures a configuration in a fresh process.

    Args:
        subject: What is measured.
        point: The configuration.
        timeout_s: Seconds after which it is given up.

    Returns:
        What it came to; a failure of whatever kind is a part of it.
    """
    reading, writing = os.pipe()
    log = os.memfd_create("measurement")
    plan = json.dumps({"subject": dataclasses.asdict(subject), "point": dataclasses.asdict(point)})
    variables = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"} if subject.device == "cpu" else {}
    process = start_process(
        "genesis_vec.benchmark.point:_main", [str(writing), plan], pass_fds=[writing], variables=variables,
        stdout=log, stderr=log,
    )  # fmt: skip
    os.close(writing)
    try:
        answer = _read_all(reading, timeout_s)
    finally:
        # Also after an interrupt. One that has answered is about to end, and saves the engine's kernels meanwhile.
        stop_processes([process], grace_s=_GRACE_S if select.select([reading], [], [], 0)[0] else 0.0)
        words = os.pread(log, _LOG_BYTES, max(0, os.fstat(log).st_size - _LOG_BYTES)).decode(errors="replace")
        os.close(reading)
        os.close(log)
    if answer is None:
        return Measurement(point=point, failure=f"took longer than {timeout_s:.0f} s")
    if answer:
        return Measurement(point=point, **json.loads(answer))
    return Measurement(point=point, failure=end_in_words(process.returncode, words))


def _read_all(descriptor: int, timeout_s: float) -> bytes | None:
    """What comes until the other side closes; None if that takes too long."""
    deadline = time.monotonic() + timeout_s
    parts = []
    while select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))[0]:
        part = os.read(descriptor, 1 << 16)
        if not part:
            return b"".join(parts)
        parts.append(part)
    return None


# --------------------------------------------------------------------------------------------------- in the process


def _main(descriptor: str, plan_text: str) -> None:
    plan = json.loads(plan_text)
    subject, point = Subject(**plan["subject"]), Point(**plan["point"])
    if subject.address_space_bytes is not None:
        resource.setrlimit(resource.RLIMIT_AS, (subject.address_space_bytes, subject.address_space_bytes))
    try:
        figures = _measure(subject, point)
    except Exception as error:
        figures = {
            "failure": f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}",
            "is_mistake": isinstance(error, (GymnasiumError, ImportError, TaskError, TypeError, ValueError)),
        }
    with os.fdopen(int(descriptor), "w") as file:
        json.dump(figures, file)


def _measure(subject: Subject, point: Point) -> dict[str, Any]:
    import torch

    from genesis_vec.training.config import PPOConfig
    from genesis_vec.training.ppo import PPO
    from genesis_vec.training.run import make_env

    if subject.device == "cpu":
        torch.set_num_threads(1)
    ppo = PPOConfig(**{**subject.ppo, "hidden_sizes": tuple(subject.ppo["hidden_sizes"])})
    start = time.perf_counter()
    env = make_env(subject.env_id, point.num_envs, {**subject.env, "device": subject.device, **point.env_kwargs()})
    observations, _ = env.reset(seed=0)
    size = env.single_action_space.shape[0]  # type: ignore[index]
    actions = torch.rand(point.num_envs, size, device=observations.device) * 2 - 1
    env.step(actions)
    figures: dict[str, Any] = {"start_s": round(time.perf_counter() - start, 2)}
    learner = PPO(env, ppo, seed=0)

    def act() -> None:
        nonlocal observations
        with torch.no_grad():
            observations = env.step(learner.policy.act(observations))[0]

    wait = torch.cuda.synchronize if subject.device == "cuda" else lambda: None
    figures["step_rate"] = point.num_envs * _calls_per_s(lambda: env.step(actions), subject.seconds, wait)
    figures["inference_rate"] = point.num_envs * _calls_per_s(act, subject.seconds, wait)
    # An iteration is long already; the first one warms up.
    per_iteration = point.num_envs * ppo.rollout_steps
    figures["training_rate"] = per_iteration * _calls_per_s(learner.iterate, subject.seconds / _BLOCKS, wait)
    figures["memory_bytes"] = _gpu_memory() if subject.device == "cuda" else _resident_memory()
    env.close()
    return figures


def _calls_per_s(call: Callable[[], Any], seconds: float, wait: Callable[[], None]) -> float:
    """Calls per second, the median of three blocks, after a call that warms up; of fewer where one call takes long."""
    call()
    wait()
    rates = []
    began = time.perf_counter()
    for _ in range(_BLOCKS):
        start = time.perf_counter()
        if start - began > _PATIENCE * seconds:
            break
        count = 0
        while count == 0 or time.perf_counter() - start < seconds / _BLOCKS:
            call()
            count += 1
        wait()
        rates.append(count / (time.perf_counter() - start))
    return statistics.median(rates)


def _resident_memory() -> int:
    """The peak of this process's resident memory and of its children's, in bytes; shared pages count for each."""
    total = 0
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    for pid in ["self", *children]:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                total += int(line.split()[1]) * 1024
    return total


def _gpu_memory() -> int:
    """What this process has on its GPU, in bytes, as the driver counts it: the engine's memory is not all torch's."""
    import pynvml
    import torch

    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(0).uuid}")
    used = {process.pid: process.usedGpuMemory for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)}
    # In a container the driver may count processes by other numbers: then all that is in use, which is this one's if
    # nothing else runs.
    return int(used.get(os.getpid()) or pynvml.nvmlDeviceGetMemoryInfo(handle).used)
