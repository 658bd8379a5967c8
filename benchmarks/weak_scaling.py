"""Simulation and learning on one rank and on two, with as many environments for each rank.

Three groups of processes take turns, in an order that moves on by one in each round, while the others idle:

- one: a learner alone.
- two: two ranks that learn together, as under torchrun.
- two_free: two learners at once that have nothing to do with each other. What two has less than these goes into
  communication and into waiting for each other; what these have less than twice one is the machine's.

Each process has one torch thread and one scene. Ratios are of env-steps/s within a round, medians with quartiles; weak
efficiency is two / (2 x one).

    python benchmarks/weak_scaling.py [--num-envs-per-rank 512] [--rounds 7] [--out …]
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import socket
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import tyro
from common import ROBOTS, PipedProcesses, in_turn, use_one_thread

from genesis_vec.benchmark.record import Metric, Physics, spread, write_record

AIM = 0.9
GROUPS = {"one": [1], "two": [2], "two_free": [1, 1]}
"""Each group's jobs, by their world sizes."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of the benchmark."""

    num_envs_per_rank: int = 512
    """Robots of each rank."""
    rounds: int = 7
    """Rounds; in each one every group has one block."""
    block_iterations: int = 2
    """Iterations in one block."""
    rollout_steps: int = 24
    """Steps of a rollout."""
    hidden_sizes: tuple[int, ...] = (256, 128)
    """Hidden layers of actor and critic each."""
    dt: float = 0.02
    """Seconds per step."""
    substeps: int = 2
    """Solver substeps per step."""
    self_collision: bool = False
    """Whether the robot's links collide with each other."""
    out: Path = Path("benchmarks/results/weak_scaling.json")
    """Where the result goes."""


class Group(PipedProcesses):
    """The processes of some jobs, that work at the same time."""

    def __init__(self, settings: Settings, world_sizes: list[int]) -> None:
        places = [
            {"RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            for size, port in ((size, _free_port()) for size in world_sizes)
            for rank in range(size)
        ]
        plan = {**dataclasses.asdict(settings), "out": None}
        super().__init__("weak_scaling:learn", [plan] * len(places), places)

    def block(self) -> tuple[float, float]:
        """Env-steps/s of all processes together, and the share of the time that went into collecting rollouts."""
        answers = self.ask("block")
        return sum(rate for rate, _ in answers), sum(share for _, share in answers) / len(answers)


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def learn(file_descriptor: str, plan_text: str) -> None:
    """What a process of a group runs.

    Args:
        file_descriptor: Its end of the connection.
        plan_text: The settings, as JSON.
    """
    from genesis_vec import GenesisVectorEnv
    from genesis_vec.tasks.rigid import RigidTask
    from genesis_vec.training.config import PPOConfig
    from genesis_vec.training.distributed import World
    from genesis_vec.training.job import Job
    from genesis_vec.training.ppo import PPO

    torch.set_num_threads(1)
    connection, plan = Connection(int(file_descriptor)), json.loads(plan_text)
    settings = Settings(**{**plan, "hidden_sizes": tuple(plan["hidden_sizes"]), "out": Path()})
    job = Job.from_environment()
    world = World(job)
    task = RigidTask(ROBOTS["go2"], dt=settings.dt, substeps=settings.substeps, self_collision=settings.self_collision)
    first = job.rank * settings.num_envs_per_rank
    env = GenesisVectorEnv(task, settings.num_envs_per_rank, device="cpu", max_episode_steps=100, first_env_index=first)
    ppo = PPOConfig(rollout_steps=settings.rollout_steps, hidden_sizes=settings.hidden_sizes)
    learner = PPO(env, ppo, seed=0, world=world, first_env_index=first)
    learner.iterate()
    collecting = 0.0
    collect = learner._collect

    def timed_collect() -> None:
        nonlocal collecting
        start = time.perf_counter()
        collect()
        collecting += time.perf_counter() - start

    learner._collect = timed_collect
    connection.send("ready")
    with contextlib.suppress(EOFError):  # the benchmark is over
        while True:
            connection.recv()
            collecting = 0.0
            world.barrier()
            start = time.perf_counter()
            for _ in range(settings.block_iterations):
                learner.iterate()
            seconds = time.perf_counter() - start
            steps = settings.block_iterations * settings.rollout_steps * settings.num_envs_per_rank
            connection.send((steps / seconds, collecting / seconds))


def measure(settings: Settings) -> tuple[dict[str, Any], list[Metric]]:
    with contextlib.ExitStack() as stack:
        groups: dict[str, Group] = {}
        for name, sizes in GROUPS.items():
            start = time.perf_counter()
            groups[name] = stack.enter_context(contextlib.closing(Group(settings, sizes)))
            print(f"{name}: ready after {time.perf_counter() - start:.0f} s")
        rounds = []
        for index in range(settings.rounds):
            blocks = {name: groups[name].block() for name in in_turn(list(groups), index)}
            rounds.append(blocks)
            print(f"round {index + 1}: " + ", ".join(f"{name} {rate:,.0f}" for name, (rate, _) in blocks.items()))
    rates = [{name: rate for name, (rate, _) in blocks.items()} for blocks in rounds]
    efficiency = [rate["two"] / (2.0 * rate["one"]) for rate in rates]
    metrics = [
        Metric("weak efficiency", "ratio", "higher", efficiency),
        Metric("two / two free", "ratio", "higher", [rate["two"] / rate["two_free"] for rate in rates]),
        Metric("two: env-steps/s", "rate", "higher", [rate["two"] for rate in rates]),
    ]
    return {
        "env_steps_per_s": {name: spread((rate[name] for rate in rates), 1) for name in GROUPS},
        "weak_efficiency": spread(efficiency, 3),
        "two_over_two_free": spread((rate["two"] / rate["two_free"] for rate in rates), 3),
        "communication_and_waiting_share": spread((1.0 - rate["two"] / rate["two_free"] for rate in rates), 3),
        "collecting_share": {name: spread((blocks[name][1] for blocks in rounds), 3) for name in GROUPS},
        "rounds": [{name: round(value, 1) for name, value in rate.items()} for rate in rates],
    }, metrics


def main() -> None:
    settings = tyro.cli(Settings)
    use_one_thread()
    results, metrics = measure(settings)
    efficiency = results["weak_efficiency"]
    verdict = "met" if efficiency["median"] >= AIM else "NOT MET"
    print(f"weak efficiency {efficiency['median']} {efficiency['quartiles']}, aim {AIM}: {verdict}")
    print(f"communication and waiting: {results['communication_and_waiting_share']}")
    write_record(
        settings.out, "weak_scaling", settings, results, device="cpu", metrics=metrics,
        physics=Physics(
            robot=ROBOTS["go2"], dt=settings.dt, substeps=settings.substeps, self_collision=settings.self_collision,
            actions="of the untrained policy being trained",
        ),
        aims={"two / (2 one)": AIM},
    )  # fmt: skip


if __name__ == "__main__":
    main()
