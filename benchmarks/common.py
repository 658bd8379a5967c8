"""What the benchmarks share: the robots, the bare engine step, a free environment, processes that take turns."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, TypeVar

import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from genesis_vec.processes import start_process, stop_processes

ROBOTS = {"panda": "xml/franka_emika_panda/panda.xml", "go2": "urdf/go2/urdf/go2.urdf"}
RANDOM_ACTIONS = "uniform random in [-1, 1], joint position targets"

_T = TypeVar("_T")


class FreeEnv(VectorEnv[Any, Any, Any]):
    """An environment that costs nothing: it gives the same tensors in every step, in which the same rows end.

    Args:
        num_envs: Number of environments.
        observation_size: Length of an observation.
        action_size: Length of an action.
        ended_every: Every how many rows there is one whose time is up in each step.
        mode: The autoreset mode.
    """

    def __init__(
        self,
        num_envs: int,
        observation_size: int,
        action_size: int,
        ended_every: int = 100,
        mode: AutoresetMode = AutoresetMode.SAME_STEP,
    ) -> None:
        self.num_envs = num_envs
        self.device = torch.device("cpu")
        self.metadata = {"autoreset_mode": mode}
        self.single_observation_space = spaces.Box(-np.inf, np.inf, (observation_size,), np.float32)
        self.single_action_space = spaces.Box(-1.0, 1.0, (action_size,), np.float32)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        generator = torch.Generator().manual_seed(0)
        self.observations = torch.randn(num_envs, observation_size, generator=generator)
        self.rewards = torch.randn(num_envs, generator=generator)
        self.truncated = torch.arange(num_envs) % ended_every == 0
        self._terminated = torch.zeros_like(self.truncated)

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[torch.Tensor, dict[str, Any]]:
        return self.observations, {}

    def step(self, actions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, dict]:
        info = {
            "episode": {"r": self.rewards, "l": self.rewards, "t": self.rewards},
            "_episode": self.truncated,
            "final_obs": self.observations,
            "_final_obs": self.truncated,
            "final_info": {},
        }
        return self.observations, self.rewards, self._terminated, self.truncated, info


class Stopwatch:
    """Adds up the time spent in functions."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def around(self, owner: Any, name: str) -> None:
        """Times an object's method from now on."""
        original = getattr(owner, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            try:
                return original(*args, **kwargs)
            finally:
                self.seconds += time.perf_counter() - start

        # Not setattr, by which a module would take a function for a submodule's place.
        owner.__dict__[name] = timed


def use_one_thread() -> None:
    """Makes torch use one thread, in this process and in those that it starts from now on."""
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"


def random_actions(count: int, num_envs: int, size: int) -> list[torch.Tensor]:
    """The same uniform random actions in [-1, 1] wherever it is called."""
    generator = torch.Generator().manual_seed(0)
    return [torch.rand(num_envs, size, generator=generator) * 2 - 1 for _ in range(count)]


def position_targets(task: Any, actions: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """What ``RigidTask.act`` makes of actions, to the bit."""
    return [torch.addcmul(task.rest_positions, action, task.working_range) for action in actions]


def bare_step(task: Any, target: torch.Tensor) -> None:
    """A step of a loop that somebody would write without an environment."""
    task.robot.control_dofs_position(target, task.controlled_dofs)
    task.scene.step()
    task.robot.get_qpos()


class PipedProcesses:
    """Processes that work at the same time, each at the other end of a pipe.

    Each calls "module:function" with the number of its end's file descriptor and its plan as JSON, and sends a first
    message when it is ready.

    Args:
        entry_point: "module:function".
        plans: A plan for each.
        variables: Environment variables for each, none by default.
    """

    def __init__(
        self, entry_point: str, plans: Sequence[Any], variables: Sequence[Mapping[str, str]] | None = None
    ) -> None:
        self._connections: list[Connection] = []
        self._processes = []
        for plan, own_variables in zip(plans, variables or [{}] * len(plans), strict=True):
            ours, theirs = Pipe()
            fd = theirs.fileno()
            self._processes.append(
                start_process(entry_point, [str(fd), json.dumps(plan)], pass_fds=[fd], variables=own_variables)
            )
            theirs.close()
            self._connections.append(ours)
        self._receive()

    def ask(self, message: Any) -> list[Any]:
        """What each of them answers to a message."""
        for connection in self._connections:
            connection.send(message)
        return self._receive()

    def close(self) -> None:
        """Ends them."""
        for connection in self._connections:
            connection.close()
        stop_processes(self._processes, grace_s=10.0)

    def _receive(self) -> list[Any]:
        return [connection.recv() for connection in self._connections]


def in_turn(items: Sequence[_T], round_index: int) -> list[_T]:
    """The items, beginning with another one in each round: none always follows the same disturbance."""
    first = round_index % len(items)
    return [*items[first:], *items[:first]]
