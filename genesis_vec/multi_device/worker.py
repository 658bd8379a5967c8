"""A worker process: makes its scenes, then steps them on demand until it is told to stop.

It is started with the variables of its device in its environment, and imports torch and Genesis only when it runs. What
it is told and what it answers goes over a connection, as tuples that begin with a word; a step goes over shared memory
and two event counters instead.
"""

from __future__ import annotations

import contextlib
import dataclasses
import faulthandler
import pickle
import select
import signal
import traceback
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from genesis_vec.devices import ProcessDevice, pin_process
from genesis_vec.multi_device.messages import receive_message, send_message

if TYPE_CHECKING:
    import torch
    from gymnasium.vector import VectorEnv

    from genesis_vec.multi_device.buffers import Buffers
    from genesis_vec.multi_device.transport import Leaf

is_worker = False
"""Whether this process is a worker."""


@dataclasses.dataclass(frozen=True)
class WorkerPlan:
    """What a worker is told first.

    Attributes:
        index: Its number.
        device: Its device.
        scenes: Its scenes, each (first row, number of rows).
        make_scene: Pickled function of (num_envs, device, first_row).
        torch_threads: Threads of torch on the CPU.
        reports_running: Whether each step also gives the running episodes' return and length, so that they are known
            when the worker is lost.
    """

    index: int
    device: ProcessDevice
    scenes: list[tuple[int, int]]
    make_scene: bytes
    torch_threads: int
    reports_running: bool

    @property
    def rows(self) -> slice:
        """The worker's rows."""
        return slice(self.scenes[0][0], sum(self.scenes[-1]))


@dataclasses.dataclass(frozen=True)
class WorkerReport:
    """What a worker says of its scenes when they are built; the same for all workers of an environment.

    Attributes:
        observation_space: One environment's.
        action_space: One environment's.
        metadata: The environment's.
        max_episode_steps: The time limit, None for none or unknown.
        actions: What it takes.
        reset_leaves: What a reset gives.
        step_leaves: What a step gives.
        derives_final: Whether ``final_info`` and the masks of final values follow from the rest, and are left out.
        is_replaceable: Whether a scene can take the place of a lost one in every autoreset mode.
    """

    observation_space: Any
    action_space: Any
    metadata: dict[str, Any]
    max_episode_steps: int | None
    actions: Leaf
    reset_leaves: tuple[Leaf, ...]
    step_leaves: tuple[Leaf, ...]
    derives_final: bool
    is_replaceable: bool

    def leaves(self) -> tuple[Leaf, ...]:
        """Every leaf there is, those of the same path once."""
        return tuple({leaf.path: leaf for leaf in (*self.reset_leaves, *self.step_leaves)}.values())


def main(connection_fd: str, go_fd: str, done_fd: str, memory_fd: str, trace_fd: str) -> None:
    """The worker's life; the arguments are inherited file descriptors."""
    global is_worker
    is_worker = True
    # Ctrl-C is for the process that started this one; it sends its own word, or ends, which ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Where a crash in native code, or a hang, is: into a file that outlives this process, for the other to read.
    faulthandler.enable(int(trace_fd))
    faulthandler.register(signal.SIGUSR1, int(trace_fd))
    connection = Connection(int(connection_fd))
    try:
        worker = _Worker(connection, int(go_fd), int(done_fd), int(memory_fd))
        if worker.build():
            worker.serve()
    except (EOFError, BrokenPipeError):
        pass  # the other side is gone, or does not want this worker any longer
    except BaseException as error:
        _send_error(connection, error)
        raise SystemExit(1) from None


class _Worker:
    def __init__(self, connection: Connection, go_fd: int, done_fd: int, memory_fd: int) -> None:
        self._connection = connection
        self._go_fd, self._done_fd, self._memory_fd = go_fd, done_fd, memory_fd
        (self._plan,) = receive_message(connection)
        pin_process(self._plan.device)

    # -------------------------------------------------------------------------------------------------------- build

    def build(self) -> bool:
        """Makes the scenes, step by step as the other side allows, and reports what they give.

        Returns:
            Whether to serve; otherwise it has compiled kernels for another process to use.
        """
        import torch

        from genesis_vec.multi_device.scenes import TaskScenes

        plan, connection = self._plan, self._connection
        torch.set_num_threads(plan.torch_threads)
        make_scene = pickle.loads(plan.make_scene)
        if isinstance(make_scene, TaskScenes):
            from genesis_vec.engine import import_genesis

            import_genesis()
        send_message(connection, "imported")
        assert receive_message(connection) == ("build",)
        marker = None
        if isinstance(make_scene, TaskScenes):
            from genesis_vec.devices import resolve_device
            from genesis_vec.engine import kernel_cache_folder, start_engine

            start_engine(resolve_device(plan.device.local_name), make_scene.engine)
            marker = kernel_cache_folder() / f"genesis_vec-{make_scene.key(plan.scenes[0][1])}"
        are_compiled = marker is None or marker.is_file()
        send_message(connection, "kernels", are_compiled)
        self._scenes = []
        for first_row, num_envs in plan.scenes if are_compiled else plan.scenes[:1]:
            env = make_scene(num_envs, plan.device.local_name, first_row)
            self._scenes.append(_Scene(env, first_row - plan.rows.start, plan.reports_running))
            send_message(connection, "scene")
        reports = [scene.try_out() for scene in self._scenes]
        if any(report != reports[0] for report in reports):
            raise ValueError(f"the scenes of one environment differ: {reports}")
        if marker is not None and not are_compiled:
            # The engine saves its kernels when this process ends; the next one in its place will find them.
            marker.parent.mkdir(parents=True, exist_ok=True)
            marker.touch()
            send_message(connection, "compiled")
            return False
        send_message(connection, "built", reports[0])
        return True

    # -------------------------------------------------------------------------------------------------------- serve

    def serve(self) -> None:
        """Does what it is told until it is told to close, or the other side is gone."""
        from genesis_vec.multi_device.transport import KIND, REQUEST, STEP, wait_for_word

        self._attach()
        index, block = self._plan.index, self._block
        poll = select.poll()
        poll.register(self._go_fd, select.POLLIN)
        while True:
            wait_for_word(lambda: block.word(index, REQUEST) != self._request, self._go_fd, lambda: bool(poll.poll()))
            self._request = block.word(index, REQUEST)
            if block.word(index, KIND) == STEP:
                self._step()
            elif not self._answer(*receive_message(self._connection)):
                return

    def _attach(self) -> None:
        from genesis_vec.multi_device.buffers import make_buffers
        from genesis_vec.multi_device.transport import REQUEST, Block

        while True:
            message = receive_message(self._connection)
            if message == ("ready",):
                return
            _, layout, kind = message
            self._block = Block(self._memory_fd, layout)
            self._request = self._block.word(self._plan.index, REQUEST)
            self._buffers, exported = make_buffers(
                kind,
                self._block,
                layout,
                self._plan.rows,
                self._scenes[0].env.unwrapped.device,  # type: ignore[attr-defined]
            )
            for scene in self._scenes:
                scene.attach(self._buffers)
            send_message(self._connection, "attached", exported)

    def _step(self) -> None:
        from genesis_vec.errors import EnvFaultError
        from genesis_vec.multi_device.transport import DONE, PROBLEM, STATUS, TAKEN, send_signal

        index, block, buffers = self._plan.index, self._block, self._buffers
        problem: BaseException | None = None
        faults: list[int] = []
        try:
            buffers.before_reading()
            for scene in self._scenes:
                scene.step_async()
            for scene in self._scenes:
                try:
                    scene.step_wait()
                except EnvFaultError as error:
                    # The others take their step all the same, so that all scenes stay at the same one.
                    problem = problem or error
                    faults += [self._plan.rows.start + scene.first + row for row in error.env_indices]
            buffers.after_writing()
        except Exception as error:
            problem, faults = error, []
        block.set_word(index, STATUS, DONE if problem is None else PROBLEM)
        block.set_word(index, TAKEN, self._request)
        send_signal(self._done_fd)
        if faults:
            send_message(self._connection, "faults", faults, str(problem))
        elif problem is not None:
            _send_error(self._connection, problem)

    def _answer(self, word: str, *arguments: Any) -> bool:
        """Does what a message says; whether to go on."""
        if word == "close":
            for scene in self._scenes:
                scene.env.close()
            return False
        try:
            if word == "call":
                answer = [scene.call(*arguments) for scene in self._scenes]
            elif word == "state":
                answer = [scene.state() for scene in self._scenes]
            elif word == "load_state":
                answer = self._load_state(*arguments)
            elif word == "episode_steps":
                (steps,) = arguments
                answer = [scene.env.set_episode_steps(steps[scene.rows]) for scene in self._scenes]
            else:
                self._buffers.before_reading()
                for scene in self._scenes:
                    scene.reset(word, *arguments)
                self._buffers.after_writing()
                answer = None
        except Exception as error:
            _send_error(self._connection, error)
        else:
            send_message(self._connection, "ok", answer)
        return True

    def _load_state(self, states: list[dict[str, Any]]) -> str | None:
        """Puts the scenes into the states; what does not fit, in words."""
        from genesis_vec.errors import StateMismatchError

        try:
            for scene, state in zip(self._scenes, states, strict=True):
                scene.env.load_state_dict(state)  # type: ignore[attr-defined]
        except StateMismatchError as error:
            return str(error)
        return None


class _Scene:
    """One scene among a worker's.

    Attributes:
        env: Its environment.
        first: Its first row among the worker's.
        rows: All of them, as a slice.
    """

    def __init__(self, env: VectorEnv, first: int, reports_running: bool) -> None:
        from gymnasium.vector import AutoresetMode

        from genesis_vec.vector_env import GenesisVectorEnv

        self.env = env
        self.first = first
        self.rows = slice(first, first + env.num_envs)
        self._is_own = isinstance(env, GenesisVectorEnv)
        same_step = env.metadata.get("autoreset_mode") is AutoresetMode.SAME_STEP
        self._derives_final = self._is_own and same_step
        self._reports_running = reports_running and self._is_own

    def try_out(self) -> WorkerReport:
        """Takes one reset and one step, whose results are forgotten with the first reset to come."""
        import torch
        from gymnasium import spaces

        from genesis_vec.multi_device.transport import Leaf, describe, flatten

        env = self.env
        reset = flatten(self._reset_tree(*env.reset(seed=0)))
        space = env.action_space
        if not isinstance(space, (spaces.Box, spaces.MultiDiscrete)):
            raise TypeError(f"actions must be in a Box or a Discrete space, got {env.single_action_space}")
        actions = torch.zeros(space.shape, dtype=torch.from_numpy(space.sample()).dtype)
        if isinstance(space, spaces.Box):
            actions = actions.clamp(torch.as_tensor(space.low), torch.as_tensor(space.high))
        step = flatten(self._step_tree(env.step(actions)))
        self._reset_paths = [path for path, _ in reset]
        self._step_paths = [path for path, _ in step]
        return WorkerReport(
            observation_space=env.single_observation_space,
            action_space=env.single_action_space,
            metadata=dict(env.metadata),
            max_episode_steps=getattr(env.unwrapped, "max_episode_steps", None),
            actions=Leaf((), actions.dtype, tuple(actions.shape[1:])),
            reset_leaves=tuple(describe(reset, env.num_envs)),
            step_leaves=tuple(describe(step, env.num_envs)),
            derives_final=self._derives_final,
            is_replaceable=self._is_own,
        )

    def attach(self, buffers: Buffers) -> None:
        """Takes the worker's buffers for what it reads and writes from now on."""
        self._actions = buffers.actions[self.rows]
        self._reset_views = [buffers.leaves[path][self.rows] for path in self._reset_paths]
        self._step_views = [buffers.leaves[path][self.rows] for path in self._step_paths]

    def step_async(self) -> None:
        """The first half of a step, with the actions that lie there."""
        if self._is_own:
            self.env.step_async(self._actions)  # type: ignore[attr-defined]

    def step_wait(self) -> None:
        """The other half; puts the results in their places."""
        result = self.env.step_wait() if self._is_own else self.env.step(self._actions)  # type: ignore[attr-defined]
        self._write(self._step_tree(result), self._step_paths, self._step_views)

    def reset(self, word: str, seed: Any, options: dict[str, Any] | None, last_obs: Any = None) -> None:
        """Resets, with the worker's share of what the caller gave, and puts the observations in their places."""
        import torch

        from genesis_vec.batches import map_observation

        if isinstance(seed, list):
            seed = seed[self.rows]
        if options is not None and options.get("reset_mask") is not None:
            options = {**options, "reset_mask": options["reset_mask"][self.rows]}
        self._write(self._reset_tree(*self.env.reset(seed=seed, options=options)), self._reset_paths, self._reset_views)
        if word == "replace" and self._is_own:
            own = map_observation(lambda leaf: torch.as_tensor(leaf[self.rows], device=self.env.device), last_obs)  # type: ignore[attr-defined]
            self.env.count_as_truncated(own)  # type: ignore[attr-defined]

    def call(self, name: str, arguments: tuple[Any, ...], keyword_arguments: dict[str, Any]) -> Any:
        """An attribute of the environment, or what it returns if it is a method."""
        attribute = getattr(self.env, name)
        return attribute(*arguments, **keyword_arguments) if callable(attribute) else attribute

    def state(self) -> dict[str, Any]:
        """The environment's state, in this machine's memory: the device may be another process's to name."""
        from genesis_vec.batches import to_host

        return to_host(self.env.state_dict())  # type: ignore[attr-defined]

    def _write(self, tree: dict[str, Any], paths: list[tuple[str, ...]], views: list[torch.Tensor]) -> None:
        import torch

        from genesis_vec.multi_device.transport import flatten

        pairs = flatten(tree)
        if [path for path, _ in pairs] != paths:
            differing = {" / ".join(path) for path in {path for path, _ in pairs} ^ set(paths)}
            raise ValueError(f"the environment gave other values than in its first step: {sorted(differing)}")
        torch._foreach_copy_(  # pyright: ignore[reportPrivateImportUsage]
            views, [tensor for _, tensor in pairs], non_blocking=True
        )

    def _reset_tree(self, obs: Any, info: dict[str, Any]) -> dict[str, Any]:
        return {"obs": obs, "info": info, **self._running()}

    def _step_tree(self, result: tuple[Any, ...]) -> dict[str, Any]:
        obs, reward, terminated, truncated, info = result
        if self._derives_final:
            info = {key: value for key, value in info.items() if key not in _DERIVED}
        return {
            "obs": obs, "reward": reward, "terminated": terminated, "truncated": truncated, "info": info,
            **self._running(),
        }  # fmt: skip

    def _running(self) -> dict[str, Any]:
        return {"running": self.env.running_episodes()} if self._reports_running else {}  # type: ignore[attr-defined]


_DERIVED = ("final_info", "_final_info", "_final_obs")


def _send_error(connection: Connection, error: BaseException) -> None:
    """Sends an exception, where it can be pickled, and its traceback in words."""
    text = "".join(traceback.format_exception(error))
    try:
        pickled = pickle.dumps(error)
        pickle.loads(pickled)
    except Exception:
        pickled = None
    with contextlib.suppress(OSError):
        send_message(connection, "error", pickled, text)
