"""What it costs to have two processes step an environment, when the environment itself costs nothing.

Contenders take turns in blocks of steps, in an order that moves on by one in each round, so that all of them meet the
same disturbances of the machine. Every one takes actions and gives a fresh batch (see transport_contenders.py), which
is checked before anything is timed. Figures are microseconds per step, and ratios within a round; medians with
quartiles. At 8 environments and fewer Gymnasium's AsyncVectorEnv takes part, with a process for each environment.
Differences of less than 1.3 times are noise on small machines.

Then all of them idle for a second, and the processor time that their workers take in it is reported.

    python benchmarks/transport.py [--sizes 64 512] [--out benchmarks/results/transport.json]

TorchRL takes part where it is installed: pip install -c constraints.txt -e ".[torchrl]".
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import os
import time
from collections.abc import Callable
from functools import partial
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import torch
import tyro
from common import in_turn, random_actions, use_one_thread
from transport_contenders import (
    ACTION_SIZE,
    Contender,
    Copies,
    EventFdSignal,
    GymnasiumAsync,
    Ours,
    PipeSignal,
    Plain,
    SemaphoreSignal,
    SpinningSignal,
    check,
)

from genesis_vec.benchmark.record import Metric, spread, write_record

# What ours should be at most, as a share of another contender's time per step.
AIMS = {"plain_pipes": 0.75, "torchrl": 0.25}
TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of the benchmark."""

    sizes: tuple[int, ...] = (8, 64, 512, 4096, 16384)
    """Numbers of environments."""
    rounds: int = 24
    """Rounds; in each one every contender has one block."""
    block_steps: int = 100
    """Timed steps in one block."""
    settle_steps: int = 10
    """Steps before those, not timed: the caches hold what the contender before has left."""
    spin_us: float = 1000.0
    """How long the contender that spins does so before it sleeps, microseconds."""
    idle_s: float = 1.0
    """Seconds that the workers idle for."""
    async_vector_env_up_to: int = 8
    """Number of environments up to which AsyncVectorEnv takes part."""
    out: Path = Path("benchmarks/results/transport.json")
    """Where the result goes."""


def contenders(num_envs: int, settings: Settings) -> dict[str, Callable[[], Contender]]:
    found: dict[str, Callable[[], Contender]] = {
        "ours": partial(Ours, num_envs),
        "plain_pipes": partial(Plain, num_envs, PipeSignal),
        "plain_eventfd": partial(Plain, num_envs, EventFdSignal),
        "plain_semaphores": partial(Plain, num_envs, SemaphoreSignal),
        "plain_spin_then_sleep": partial(Plain, num_envs, partial(SpinningSignal, spin_s=settings.spin_us * 1e-6)),
        "copies": partial(Copies, num_envs),
    }
    if importlib.util.find_spec("torchrl"):
        from transport_torchrl import TorchRL

        found["torchrl"] = partial(TorchRL, num_envs)
    if num_envs <= settings.async_vector_env_up_to:
        found["gymnasium_async"] = partial(GymnasiumAsync, num_envs)
    return found


def measure(num_envs: int, settings: Settings) -> tuple[dict[str, Any], list[Metric]]:
    with contextlib.ExitStack() as stack:
        running: dict[str, Contender] = {}
        workers: dict[str, set[int]] = {}
        for name, make in contenders(num_envs, settings).items():
            before = descendants()
            running[name] = stack.enter_context(contextlib.closing(make()))
            check(running[name], num_envs)
            workers[name] = descendants() - before
        actions = random_actions(8, num_envs, ACTION_SIZE)
        rounds = []
        for index in range(settings.rounds):
            times = {name: time_block(running[name], actions, settings) for name in in_turn(list(running), index)}
            rounds.append(times)
        idle_s = idle_processor_time(workers, settings.idle_s)
    metrics = [
        *(
            Metric(f"{num_envs} envs: ours / {name}", "ratio", "lower", [row["ours"] / row[name] for row in rounds])
            for name in AIMS
            if name in running
        ),
        Metric(f"{num_envs} envs: ours, steps/s", "rate", "higher", [1e6 / row["ours"] for row in rounds]),
    ]
    return {
        "num_envs": num_envs,
        "contenders": {
            name: {
                "us_per_step": spread((times[name] for times in rounds), 1),
                "workers": len(workers[name]),
                "worker_cores_while_idle": round(idle_s[name] / settings.idle_s, 2),
            }
            for name in running
        },
        "ours_over": {
            name: spread((times["ours"] / times[name] for times in rounds), 3) for name in running if name != "ours"
        },
        "over_plain_pipes": {
            name: spread((times[name] / times["plain_pipes"] for times in rounds), 3)
            for name in running
            if name.startswith("plain_") and name != "plain_pipes"
        },
    }, metrics


def time_block(contender: Contender, actions: list[torch.Tensor], settings: Settings) -> float:
    """Microseconds per step, the mean of a block."""
    step = contender.step
    for index in range(settings.settle_steps):
        result = step(actions[index % len(actions)])
    start = time.perf_counter()
    for index in range(settings.block_steps):
        result = step(actions[index % len(actions)])  # noqa: F841 - kept until the next is there, as a user does
    return (time.perf_counter() - start) / settings.block_steps * 1e6


def idle_processor_time(workers: dict[str, set[int]], idle_s: float) -> dict[str, float]:
    """Seconds of processor time that each contender's workers take while nobody asks them for anything."""
    before = {name: sum(map(processor_time, pids)) for name, pids in workers.items()}
    time.sleep(idle_s)
    return {name: sum(map(processor_time, pids)) - before[name] for name, pids in workers.items()}


def processor_time(pid: int) -> float:
    """Seconds, user's and system's, of all threads of a process."""
    fields = stat_fields(pid)
    return (int(fields[11]) + int(fields[12])) * TICK_S


def descendants() -> set[int]:
    """All processes that descend from this one."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):  # it has ended meanwhile
                parents[int(entry.name)] = int(stat_fields(int(entry.name))[1])
    found, generation = set(), {os.getpid()}
    while generation:
        generation = {pid for pid, parent in parents.items() if parent in generation}
        found |= generation
    return found


def stat_fields(pid: int) -> list[str]:
    """What ``/proc/PID/stat`` says after the name, which may hold spaces; proc(5) counts on from its field 3."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def report(result: dict[str, Any]) -> None:
    print(f"{result['num_envs']} environments")
    for name, figures in result["contenders"].items():
        times = figures["us_per_step"]
        ratio = result["ours_over"].get(name)
        against = f"   ours {ratio['median']:.2f} of it {ratio['quartiles']}" if ratio else ""
        if ratio and name in AIMS:
            against += f", aim {AIMS[name]}: {'met' if ratio['median'] <= AIMS[name] else 'NOT MET'}"
        print(
            f"  {name:<22} {times['median']:>8,.1f} us/step {times['quartiles']!s:<18} "
            f"idle {figures['worker_cores_while_idle']:.2f} cores{against}"
        )


def main() -> None:
    settings = tyro.cli(Settings)
    use_one_thread()
    if not importlib.util.find_spec("torchrl"):
        print("TorchRL is not installed (extra 'torchrl'), so it does not take part")
    resource_tracker.ensure_running()  # a process of multiprocessing's own, which is nobody's worker
    results: list[dict[str, Any]] = []
    metrics: list[Metric] = []
    for num_envs in settings.sizes:
        result, of_size = measure(num_envs, settings)
        results.append(result)
        metrics += of_size
        report(result)
    write_record(
        settings.out,
        "transport",
        settings,
        results,
        device="cpu",
        physics=None,
        metrics=metrics,
        packages=("torchrl", "tensordict"),
        environment="48 float32 observations, 12 float32 actions, float32 reward, two bool flags; costs nothing",
        aims={f"ours / {name}": aim for name, aim in AIMS.items()},
    )


if __name__ == "__main__":
    main()
