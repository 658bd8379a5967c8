"""What two worker processes gain over one plain scene, and what they lose to two that need not care for each other.

Three contenders take turns, in an order that moves on by one in each round, while the processes of the others idle:

- ours: one environment over two CPU workers, stepped with random actions.
- one_scene: one process with one plain scene of as many robots: the bare engine loop (control, scene.step, get_qpos).
- two_free: two processes at once, each with half of the robots in plain scenes of 128: the bare engine loop, without
  waiting for each other; the sum of their env-steps/s.

In each round all of them start from the same states (a reset with the same seed) and take the same actions, so that
they compute the same physics; that is compared before anything is timed. A block of as many steps as the task's time
limit is one episode, whose autoreset at the end is a part of ours alone. Figures are env-steps/s, and ratios within a
round; medians with quartiles.

    python benchmarks/multi_device.py [--num-envs 2048] [--rounds 7] [--block-steps 100] [--out …]

The engine compiles kernels for some minutes on a machine that has not run this robot before; after that it takes about
five minutes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

import gymnasium
import torch
import tyro
from common import (
    RANDOM_ACTIONS,
    ROBOTS,
    PipedProcesses,
    bare_step,
    in_turn,
    position_targets,
    random_actions,
    use_one_thread,
)

from genesis_vec import GenesisVectorEnv
from genesis_vec.benchmark.record import Metric, Physics, spread, write_record
from genesis_vec.tasks.rigid import RigidTask

# What ours should be at least, as a multiple of another contender's env-steps/s.
AIMS = {"one_scene": 3.0, "two_free": 0.95}
ACTION_SIZE = 12


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of the benchmark."""

    num_envs: int = 2048
    """Number of robots, an even one."""
    rounds: int = 7
    """Rounds; in each one every contender has one block."""
    block_steps: int = 100
    """Steps in one block; the default is the task's time limit."""
    envs_per_scene: int = 128
    """Robots in one scene of two_free. Ours decides for itself."""
    dt: float = 0.02
    """Seconds per step."""
    substeps: int = 2
    """Solver substeps per step."""
    self_collision: bool = False
    """Whether the robot's links collide with each other."""
    check_steps: int = 10
    """Steps after which the states of the contenders are compared, in the beginning."""
    out: Path = Path("benchmarks/results/multi_device.json")
    """Where the result goes."""

    @property
    def task(self) -> dict[str, Any]:
        """Arguments of the task, the same for all."""
        return {
            "morph": ROBOTS["go2"],
            "dt": self.dt,
            "substeps": self.substeps,
            "self_collision": self.self_collision,
        }


class Contender(Protocol):
    """A way to step all the robots."""

    def block(self, seed: int, steps: int) -> float:
        """Resets, then steps; env-steps/s of the steps."""
        ...

    def positions(self) -> torch.Tensor:
        """The robots' generalised positions as they are, (num_envs, nq)."""
        ...

    def close(self) -> None:
        """Ends its processes."""
        ...


class Ours:
    """The package's environment over two workers, stepped as by a user who acts at random."""

    def __init__(self, settings: Settings) -> None:
        self._env = gymnasium.make_vec("GenesisRigid-v0", num_envs=settings.num_envs, devices="cpu:2", **settings.task)
        self._actions = random_actions(settings.block_steps, settings.num_envs, ACTION_SIZE)
        self.close = self._env.close

    def block(self, seed: int, steps: int) -> float:
        self._obs, _ = self._env.reset(seed=seed)
        start = time.perf_counter()
        for action in self._actions[:steps]:
            self._obs, *_ = self._env.step(action)
        return len(self._obs) * steps / (time.perf_counter() - start)

    def positions(self) -> torch.Tensor:
        return self._obs[:, : 7 + ACTION_SIZE]  # a floating base, then the joints


class BareEngines(PipedProcesses):
    """Processes of the bare engine, each with scenes of its own and a part of the robots, stepping at the same time."""

    def __init__(self, settings: Settings, num_processes: int, envs_per_scene: int) -> None:
        size = settings.num_envs // num_processes
        shared = {
            "num_envs": size,
            "envs_per_scene": envs_per_scene,
            "total": settings.num_envs,
            "block_steps": settings.block_steps,
            "task": settings.task,
        }
        super().__init__(
            "multi_device:bare_engine", [{"first_row": index * size, **shared} for index in range(num_processes)]
        )

    def block(self, seed: int, steps: int) -> float:
        rates = self.ask((seed, steps))
        self._positions = torch.cat([torch.from_numpy(part) for part in self.ask(None)])
        return sum(rates)

    def positions(self) -> torch.Tensor:
        return self._positions


def bare_engine(file_descriptor: str, plan_text: str) -> None:
    """What a process of :class:`BareEngines` runs.

    Args:
        file_descriptor: Its end of the connection.
        plan_text: Its share, as JSON.
    """
    torch.set_num_threads(1)
    connection, plan = Connection(int(file_descriptor)), json.loads(plan_text)
    actions = random_actions(plan["block_steps"], plan["total"], ACTION_SIZE)
    end = plan["first_row"] + plan["num_envs"]
    envs, scenes = [], []
    for first in range(plan["first_row"], end, plan["envs_per_scene"]):
        rows = slice(first, min(first + plan["envs_per_scene"], end))
        # The environment makes the scene and its initial states; it is not what steps.
        env = GenesisVectorEnv(RigidTask(**plan["task"]), rows.stop - first, device="cpu", first_env_index=first)
        envs.append(env)
        scenes.append((env.task, position_targets(env.task, [action[rows] for action in actions])))

    def step(index: int) -> None:
        for task, targets in scenes:
            bare_step(task, targets[index % len(targets)])

    connection.send("built")
    with contextlib.suppress(EOFError):  # the benchmark is over
        while True:
            seed, steps = connection.recv()
            for env in envs:
                env.reset(seed=seed)
            start = time.perf_counter()
            for index in range(steps):
                step(index)
            seconds = time.perf_counter() - start
            positions = torch.cat([task.robot.get_qpos() for task, _ in scenes])
            connection.send(plan["num_envs"] * steps / seconds)
            # The last steps of a slower process would be faster than the others, were this one to stop now.
            for index in itertools.count(steps):
                if connection.poll():
                    break
                step(index)
            connection.recv()
            connection.send(positions.numpy())


def same_states(contenders: dict[str, Contender], steps: int) -> bool:
    """Whether all contenders compute the same bits; also their warm-up."""
    for contender in contenders.values():
        contender.block(seed=0, steps=steps)
    first, *others = (contender.positions() for contender in contenders.values())
    return all(torch.equal(first, other) for other in others)


def measure(settings: Settings) -> tuple[dict[str, Any], list[Metric]]:
    with contextlib.ExitStack() as stack:
        contenders: dict[str, Contender] = {}
        for name, make in {
            "ours": lambda: Ours(settings),
            "one_scene": lambda: BareEngines(settings, 1, settings.num_envs),
            "two_free": lambda: BareEngines(settings, 2, settings.envs_per_scene),
        }.items():
            start = time.perf_counter()
            contenders[name] = stack.enter_context(contextlib.closing(make()))
            print(f"{name}: ready after {time.perf_counter() - start:.0f} s")
        are_same = same_states(contenders, settings.check_steps)
        if not are_same:
            print("The contenders' states differ: they do not compute the same physics")
        rounds = []
        for index in range(settings.rounds):
            rates = {
                name: contenders[name].block(seed=index + 1, steps=settings.block_steps)
                for name in in_turn(list(contenders), index)
            }
            rounds.append(rates)
            print(f"round {index + 1}: " + ", ".join(f"{name} {rate:,.0f}" for name, rate in rates.items()))
    metrics = [
        *(
            Metric(f"ours / {name}", "ratio", "higher", [rates["ours"] / rates[name] for rates in rounds])
            for name in AIMS
        ),
        Metric("ours: env-steps/s", "rate", "higher", [rates["ours"] for rates in rounds]),
    ]
    return {
        "states_are_the_same": are_same,
        "env_steps_per_s": {name: spread((rates[name] for rates in rounds), 1) for name in contenders},
        "ours_over": {name: spread((rates["ours"] / rates[name] for rates in rounds), 3) for name in AIMS},
        "two_free_over_one_scene": spread((rates["two_free"] / rates["one_scene"] for rates in rounds), 3),
        "rounds": [{name: round(rate, 1) for name, rate in rates.items()} for rates in rounds],
    }, metrics


def main() -> None:
    settings = tyro.cli(Settings)
    use_one_thread()
    results, metrics = measure(settings)
    for name, ratio in results["ours_over"].items():
        verdict = "met" if ratio["median"] >= AIMS[name] else "NOT MET"
        print(f"ours over {name}: {ratio['median']} {ratio['quartiles']}, aim {AIMS[name]}: {verdict}")
    write_record(
        settings.out,
        "multi_device",
        settings,
        results,
        device="cpu",
        physics=Physics(
            robot=ROBOTS["go2"], dt=settings.dt, substeps=settings.substeps, self_collision=settings.self_collision,
            actions=RANDOM_ACTIONS,
        ),
        metrics=metrics,
        aims={f"ours / {name}": aim for name, aim in AIMS.items()},
    )  # fmt: skip


if __name__ == "__main__":
    main()
