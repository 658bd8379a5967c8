"""MultiDeviceVectorEnv: one vector environment over several scenes, in one worker process per device."""

from __future__ import annotations

import dataclasses
import itertools
import logging
import os
import pickle
import warnings
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, NoReturn

import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from genesis_vec.batches import Observation, as_episode_steps, map_observation, ordinary_tensors, reset_mask
from genesis_vec.devices import ProcessDevice, parse_devices, resolve_batch_device
from genesis_vec.errors import (
    ClosedEnvironmentError,
    EnvFaultError,
    GenesisVecError,
    StateMismatchError,
    StateUnavailableError,
)
from genesis_vec.multi_device import worker as worker_module
from genesis_vec.multi_device.receiver import Receiver
from genesis_vec.multi_device.restarts import Lost, fill_lost_rows, restart_seed
from genesis_vec.multi_device.scenes import CPU_ENVS_PER_SCENE, make_scenes, split_rows
from genesis_vec.multi_device.startup import attach_workers, start_workers
from genesis_vec.multi_device.supervision import Deadline, Failure, Worker, stop_workers, wait_for, wait_for_step
from genesis_vec.multi_device.transport import DONE, STATUS, Layout, SharedMemory
from genesis_vec.multi_device.worker import WorkerPlan, WorkerReport
from genesis_vec.streams import check_seed
from genesis_vec.task import Task
from genesis_vec.vector_env import with_final


class MultiDeviceVectorEnv(VectorEnv[Any, Any, Any]):
    """One vector environment over several Genesis scenes, with a worker process for each device.

    It keeps the contract of :class:`~genesis_vec.GenesisVectorEnv`, and on the CPU gives the same bits for the same
    seed and actions, however its environments are spread. On the CPU it is also the way to use several cores, and even
    with one worker it is faster than one large scene, for its scenes fit into the processor's cache.

    Args:
        task: What every scene is made of: an id, a :class:`~genesis_vec.Task` (each scene gets a copy), its class or
            "module:Class", a function without arguments that returns one, or a function of (num_envs, device,
            first_env_index), by keyword, that returns a vector environment of torch tensors.
        num_envs: Number of environments in all; need not divide evenly.
        devices: The workers' devices, as :func:`~genesis_vec.devices.parse_devices` understands them: ``"cuda"``,
            ``"cuda:0,1"``, ``["cuda:0", "cuda:1"]``, ``"cpu:2"``, ``"auto"``. Fewer workers are started where each
            would get less than two environments.
        device: Where the batches are that the caller gets; "auto" means the first worker's device.
        envs_per_scene: Most environments in one scene; None means 128 on the CPU and no limit on a GPU. No scene has
            one environment only, unless ``num_envs`` is 1.
        egl_device_ids: For drawing on chosen GPUs: one number per device, which its worker finds as ``EGL_DEVICE_ID``.
            EGL counts the machine's devices, whatever ``CUDA_VISIBLE_DEVICES`` says.
        timeout: Seconds that a worker may take for a reset or a step, None for no limit.
        start_timeout: Seconds that starting may take; a first start compiles kernels for a minute or more.
        on_worker_failure: What happens if a worker raises, dies or does not answer in time: ``"raise"`` stops all and
            raises :class:`~genesis_vec.errors.WorkerError`; ``"restart"`` starts it anew, and its environments are
            truncated in that step, with ``info["fault"]``.
        max_restarts: How many times a worker is started anew, over the life of the environment, before that raises.
        first_env_index: Global index of the first environment, where this batch is a part of a larger one.
        **kwargs: Arguments of the task and of :class:`~genesis_vec.GenesisVectorEnv`, told apart by name.

    Attributes:
        device: ``torch.device`` of every tensor.
        workers: The workers, with their processes.
        autoreset_mode: Gymnasium's ``AutoresetMode``, also in ``metadata``.
        max_episode_steps: The time limit in force, None for none.
        render_envs: The environments that are drawn, where there is a render mode.

    Raises:
        ValueError, TypeError, TaskError: For what the in-process environment refuses too.
        DeviceNotFoundError: If a device is not there.
        WorkerError: If a worker ends while it starts.
        WorkerTimeoutError: If starting takes longer than start_timeout.
    """

    def __init__(
        self,
        task: str | Task | type[Task] | Callable[..., Any],
        num_envs: int,
        *,
        devices: str | int | Iterable[object] = "auto",
        device: str | torch.device = "auto",
        envs_per_scene: int | None = None,
        egl_device_ids: Sequence[int] | None = None,
        timeout: float | None = 60.0,
        start_timeout: float | None = 900.0,
        on_worker_failure: Literal["raise", "restart"] = "raise",
        max_restarts: int = 3,
        first_env_index: int = 0,
        **kwargs: Any,
    ) -> None:
        self.closed = True  # until the workers are there
        if worker_module.is_worker:
            raise GenesisVecError(
                "a worker process was about to make an environment of several processes itself. The module that it "
                "imports makes one at its top level: put that under `if __name__ == '__main__':`"
            )
        _check_settings(envs_per_scene, timeout, start_timeout, on_worker_failure, max_restarts)
        process_devices = _with_egl(parse_devices(devices), egl_device_ids)
        self.device = resolve_batch_device(device, process_devices)
        scenes = make_scenes(task, num_envs, first_env_index, kwargs)
        self.render_mode = scenes.render_mode
        self.render_envs = scenes.render_envs
        self.num_envs = scenes.num_envs
        self._timeout = timeout
        self._start_timeout = start_timeout
        self._restarts_on_failure = on_worker_failure == "restart"
        self._restarts_left = max_restarts
        self._restarts = 0
        self._start(scenes, process_devices, envs_per_scene)

    # ------------------------------------------------------------------------------------------------------ starting

    def _start(self, scenes: Any, devices: list[ProcessDevice], envs_per_scene: int | None) -> None:
        if envs_per_scene is None and devices[0].index is None:
            envs_per_scene = CPU_ENVS_PER_SCENE
        pickled = pickle.dumps(scenes)
        rows_of_workers = split_rows(self.num_envs, len(devices), envs_per_scene)
        if len(rows_of_workers) < len(devices):
            warnings.warn(
                f"num_envs={self.num_envs} is too few for {len(devices)} workers of at least two environments; "
                f"{len(rows_of_workers)} are started",
                stacklevel=4,
            )
        self._plans = [
            WorkerPlan(
                index=index,
                device=device,
                scenes=rows,
                make_scene=pickled,
                torch_threads=1,
                reports_running=self._restarts_on_failure,
            )
            for index, (device, rows) in enumerate(zip(devices, rows_of_workers, strict=False))
        ]
        self._memory = SharedMemory()
        self.workers: list[Worker] = []
        finalizer = weakref.finalize(self, stop_workers, self.workers, os.getpid())
        try:
            report = start_workers(self._plans, self._memory.fd, self.workers, self._start_timeout)
            self._adopt(report)
            self._layout = Layout(self.num_envs, len(self._plans), report.actions, report.leaves())
            self._memory.resize(self._layout)
            self._receiver = Receiver(self._memory.fd, self._layout, self._plans, self.device)
            attach_workers(self.workers, self._receiver, self._layout, self._start_timeout)
        except BaseException:
            finalizer()
            raise
        finalizer.detach()
        # From now on the workers serve, and are asked to close before they are killed.
        self._finalizer = weakref.finalize(self, stop_workers, self.workers, os.getpid(), self._receiver.block)
        self._is_stepping = False
        self._is_reset = False
        self._seed: int | list[int | None] | None = None
        self.closed = False

    def _adopt(self, report: WorkerReport) -> None:
        self._report = report
        self.single_observation_space = report.observation_space
        self.single_action_space = report.action_space
        self.observation_space = batch_space(report.observation_space, self.num_envs)
        self.action_space = batch_space(report.action_space, self.num_envs)
        self.metadata = dict(report.metadata)
        self.autoreset_mode: AutoresetMode | None = report.metadata.get("autoreset_mode")
        self.max_episode_steps = report.max_episode_steps
        if self._restarts_on_failure and not report.is_replaceable and self.autoreset_mode is not _SAME_STEP:
            raise ValueError(
                "on_worker_failure='restart' needs autoreset_mode SAME_STEP with environments that a function makes; "
                f"these have {self.autoreset_mode}"
            )

    # --------------------------------------------------------------------------------------------------------- reset

    @ordinary_tensors
    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Starts new episodes; see :meth:`genesis_vec.GenesisVectorEnv.reset`.

        Raises:
            ValueError: For a seed or a mask that is not of the accepted forms, or while a step is under way.
            WorkerError: If a worker fails; the environment is closed then.
            ClosedEnvironmentError: After :meth:`close`.
        """
        self._check_idle("reset()")
        mask = reset_mask(options, self.num_envs, self.device)
        if mask is not None:
            mask = mask.cpu()
        if not self._is_reset:
            mask = None  # nothing has an episode yet that a partial reset could leave running
        if isinstance(seed, list):
            if len(seed) != self.num_envs:
                raise ValueError(f"got a list of {len(seed)} seeds for {self.num_envs} environments")
            for value in seed:
                check_seed(0 if value is None else value)
        elif seed is not None:
            check_seed(seed)
            super().reset(seed=seed)
        if self._seed is None and not isinstance(seed, int):
            # Also before a list of seeds, whose entries that are None leave streams as they are.
            self._seed = int(self.np_random.integers(1 << 62))
            if seed is None:
                seed = self._seed
            else:
                self._reset_workers(self._seed, None)
        if options is not None and "reset_mask" in options:
            options = {**options, "reset_mask": mask}
        self._reset_workers(seed, options)
        if seed is not None and mask is None:
            self._seed = seed
        self._is_reset = True
        tree = self._receiver.take(self._report.reset_leaves)
        if self._restarts_on_failure:
            self._keep(tree["obs"], mask)
        return tree["obs"], tree.get("info", {})

    def _reset_workers(self, seed: int | list[int | None] | None, options: dict[str, Any] | None) -> None:
        for failure in self._exchange(self.workers, "reset", seed, options)[1]:
            if seed is None or (options is not None and options.get("reset_mask") is not None):
                self._replace(failure, "resetting")
                continue
            # As if nothing had been: the replacement starts where this reset says.
            replacement = self._start_anew(failure, "resetting")
            for second in self._exchange([replacement], "reset", seed, options)[1]:
                self._fail(second, "resetting")

    # ---------------------------------------------------------------------------------------------------------- step

    def step(
        self, actions: torch.Tensor | np.ndarray
    ) -> tuple[Observation, torch.Tensor, torch.Tensor, torch.Tensor, dict[str, Any]]:
        """Takes one step in every environment; see :meth:`genesis_vec.GenesisVectorEnv.step`.

        Raises:
            ValueError: If actions have another shape.
            WorkerError: If a worker fails; the environment is closed then.
            ClosedEnvironmentError: After :meth:`close`.
            EnvFaultError: With ``on_fault="raise"``, if an environment is faulty. Reset before going on.
        """
        self.step_async(actions)
        return self.step_wait()

    @ordinary_tensors
    def step_async(self, actions: torch.Tensor | np.ndarray) -> None:
        """Starts a step in every worker and returns at once; :meth:`step_wait` gives its results.

        Args:
            actions: As for :meth:`step`; they are copied.

        Raises:
            ValueError: If actions have another shape, or a step is under way already.
            ClosedEnvironmentError: After :meth:`close`.
        """
        self._check_idle("step()")
        if not self._is_reset:
            raise ValueError("step() before reset(): call reset() first")
        self._receiver.put_actions(actions)
        self._is_stepping = True
        for worker in self.workers:
            worker.start_step(self._receiver.block)
        self._deadline = Deadline(self._timeout)

    @ordinary_tensors
    def step_wait(self) -> tuple[Observation, torch.Tensor, torch.Tensor, torch.Tensor, dict[str, Any]]:
        """The results of the step that :meth:`step_async` started, when all workers have taken it.

        After an interrupt (KeyboardInterrupt) it can be called again.

        Raises:
            ValueError: If no step is under way.
            WorkerError, EnvFaultError, ClosedEnvironmentError: As for :meth:`step`.
        """
        self._check_open()
        if not self._is_stepping:
            raise ValueError("step_wait() without step_async()")
        block = self._receiver.block
        failures = wait_for_step(self.workers, block, self._deadline)
        self._is_stepping = False
        failed = [failure.worker for failure in failures]
        faults: dict[int, str] = {}
        for worker in self.workers:
            if worker in failed or block.word(worker.plan.index, STATUS) == DONE:
                continue
            message = worker.receive()
            if isinstance(message, Failure):
                failures.append(message)
            else:
                faults.update(dict.fromkeys(message[1], message[2]))
        for failure in failures:
            lost = self._replace(failure, "stepping")
            plan = failure.worker.plan
            fill_lost_rows(self._receiver, plan.index, plan.rows, self._report, self.autoreset_mode, lost)
        if faults:
            raise EnvFaultError(f"environments {sorted(faults)} are faulty: {faults[min(faults)]}", sorted(faults))
        tree = self._receiver.take(self._report.step_leaves)
        obs, terminated, truncated = tree["obs"], tree["terminated"], tree["truncated"]
        if self._restarts_on_failure:
            self._keep(obs, None, terminated, truncated)
        info = tree.get("info", {})
        if self._report.derives_final:
            info = with_final(info, info.pop("final_obs"))
        return obs, tree["reward"], terminated, truncated, info

    # ------------------------------------------------------------------------------------------------------- workers

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Calls a method of every scene's environment, or reads an attribute.

        Args:
            name: Its name; what it gives must be fit to be pickled.
            *args: Arguments of the method.
            **kwargs: Likewise.

        Returns:
            What each scene's environment gave, in the order of their rows.

        Raises:
            WorkerError: If a worker fails. Where it only raised an exception, for want of the attribute for instance,
                the environment can be used further.
        """
        self._check_idle("call()")
        answers, failures = self._exchange(self.workers, "call", name, args, kwargs)
        lost = [failure for failure in failures if not failure.is_exception]
        if lost:
            self._fail(lost[0], f"calling {name}")
        if failures:
            raise failures[0].to_error(f"calling {name}")
        return tuple(value for worker in self.workers for value in answers[worker])

    def set_episode_steps(self, steps: torch.Tensor | np.ndarray) -> None:
        """Counts the running episodes as if they had taken so many steps already.

        See :meth:`genesis_vec.GenesisVectorEnv.set_episode_steps`.

        Raises:
            ValueError: For another shape or type, and while a step is under way.
            WorkerError: If a worker fails.
        """
        self._check_idle("set_episode_steps()")
        steps = as_episode_steps(steps, self.num_envs).cpu()
        for failure in self._exchange(self.workers, "episode_steps", steps)[1]:
            self._fail(failure, "setting its episodes' steps")

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next steps depend on; see :meth:`genesis_vec.GenesisVectorEnv.state_dict`.

        Raises:
            StateUnavailableError: If the environments are made by a function.
            WorkerError: If a worker fails.
        """
        self._check_has_state()
        answers, failures = self._exchange(self.workers, "state")
        for failure in failures:
            self._fail(failure, "giving its state")
        return {
            "scenes": [state for worker in self.workers for state in answers[worker]],
            "seed": self._seed,
            "restarts": self._restarts,
        }

    @ordinary_tensors
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Puts back what :meth:`state_dict` gave; see :meth:`genesis_vec.GenesisVectorEnv.load_state_dict`.

        The devices and the number of workers may be others, as long as every scene has the same environments.

        Raises:
            StateMismatchError: If the state is of other environments. Some scenes may have taken it: reset.
            StateUnavailableError: If the environments are made by a function.
            WorkerError: If a worker fails.
        """
        self._check_has_state()
        given = [scene["num_envs"] for scene in state["scenes"]]
        own = [count for plan in self._plans for _, count in plan.scenes]
        if given != own:
            raise StateMismatchError(f"the state is of scenes of {given} environments, these are of {own}")
        answers, failures = self._exchange(self.workers, "load_state", state["scenes"])
        for failure in failures:
            self._fail(failure, "taking its state")
        for text in answers.values():
            if text is not None:
                raise StateMismatchError(text)
        self._seed, self._restarts = state["seed"], state["restarts"]
        self._is_reset = all(scene["last_obs"] is not None for scene in state["scenes"])
        if self._restarts_on_failure and self._is_reset:
            self._adopt_kept(state["scenes"])

    def _adopt_kept(self, scenes: list[dict[str, Any]]) -> None:
        """Takes from scenes' states what is kept for the replacement of a worker."""
        self._last_obs = map_observation(lambda *parts: torch.cat(parts), *(scene["last_obs"] for scene in scenes))
        idle = torch.cat([scene["idle"] for scene in scenes])
        self._last_terminated = torch.cat([scene["idle_terminated"] for scene in scenes]) & idle
        self._last_truncated = idle & ~self._last_terminated

    def _check_has_state(self) -> None:
        self._check_idle("state_dict() or load_state_dict()")
        if not self._report.is_replaceable:
            raise StateUnavailableError("environments that a function makes cannot save or restore their state")

    def _exchange(self, workers: Sequence[Worker], *message: Any) -> tuple[dict[Worker, Any], list[Failure]]:
        """Sends each worker its share of a message and waits for the answers."""
        for worker in workers:
            worker.send(self._receiver.block, *_share(worker.plan, *message))
        ready, failures = wait_for(workers, Deadline(self._timeout))
        answers = {}
        for worker in ready:
            answer = worker.receive()
            if isinstance(answer, Failure):
                failures.append(answer)
            else:
                answers[worker] = answer[1]
        return answers, failures

    def _fail(self, failure: Failure, doing: str) -> NoReturn:
        # Killed rather than asked: what the others are at may take as long as it likes.
        stop_workers(self.workers, os.getpid())
        self.close()
        raise failure.to_error(doing)

    def _replace(self, failure: Failure, doing: str) -> Lost:
        """Starts a failed worker anew, its environments at new episodes; what is known of those that were lost."""
        lost = self._kept_of(failure.worker.plan) if self._restarts_on_failure else None
        replacement = self._start_anew(failure, doing)
        assert lost is not None and self._seed is not None
        seed = restart_seed(self._seed, self._restarts)
        for second in self._exchange([replacement], "replace", seed, None, lost.obs)[1]:
            self._fail(second, "being started anew")
        return lost

    def _start_anew(self, failure: Failure, doing: str) -> Worker:
        """Starts a failed worker anew, if that is wanted and has not been done too often."""
        if not self._restarts_on_failure or self._restarts_left == 0:
            self._fail(failure, doing)
        self._restarts_left -= 1
        self._restarts += 1
        plan = failure.worker.plan
        error = failure.to_error(doing)
        _logger.warning("%s\n%s is started anew (%d more times)", error, failure.worker, self._restarts_left)
        failure.worker.kill()
        self._receiver.forget(plan.index)
        started: list[Worker] = []
        try:
            report = start_workers([plan], self._memory.fd, started, self._start_timeout)
            if report != self._report:
                raise ValueError(f"the replacement's environments differ: {report} and {self._report}")
            attach_workers(started, self._receiver, self._layout, self._start_timeout)
        except BaseException:
            stop_workers(started, os.getpid())
            self.close()
            raise
        self.workers[plan.index] = started[0]
        return started[0]

    def _keep(
        self,
        obs: Observation,
        reset_rows: torch.Tensor | None,
        terminated: torch.Tensor | None = None,
        truncated: torch.Tensor | None = None,
    ) -> None:
        """Keeps what a replacement of a worker will have to go on from."""
        self._last_obs = map_observation(lambda leaf: leaf.to("cpu", copy=True), obs)
        if terminated is None or truncated is None:
            rows = torch.ones(self.num_envs, dtype=torch.bool) if reset_rows is None else reset_rows
            none = torch.zeros_like(rows)
            before = (none, none) if reset_rows is None else (self._last_terminated, self._last_truncated)
            self._last_terminated, self._last_truncated = (flags & ~rows for flags in before)
        elif self.autoreset_mode is _SAME_STEP:
            self._last_terminated = self._last_truncated = torch.zeros(self.num_envs, dtype=torch.bool)
        else:
            self._last_terminated, self._last_truncated = terminated.cpu(), truncated.cpu()

    def _kept_of(self, plan: WorkerPlan) -> Lost:
        running = {}
        for name in ("r", "l"):
            path = ("running", name)
            is_there = any(leaf.path == path for leaf in self._report.step_leaves)
            running[name] = self._receiver.rows(plan.index, path).clone() if is_there else None
        return Lost(self._last_obs, self._last_terminated, self._last_truncated, running["r"], running["l"])

    # --------------------------------------------------------------------------------------------- rendering, closing

    def render(self) -> tuple[np.ndarray, ...] | None:
        """Draws the environments; see :meth:`genesis_vec.GenesisVectorEnv.render`."""
        self._check_open()
        if self.render_mode is None:
            return None
        drawn = self.call("render")
        shape = next(frames[0].shape for frames in drawn if frames is not None)
        blank = np.zeros(shape, dtype=np.uint8)
        blank.flags.writeable = False  # it stands for every environment that is not drawn
        sizes = (count for plan in self._plans for _, count in plan.scenes)
        return tuple(
            frame
            for frames, count in zip(drawn, sizes, strict=True)
            for frame in ([blank] * count if frames is None else frames)
        )

    def close_extras(self, **kwargs: Any) -> None:
        """Stops the workers; called by :meth:`close`, once."""
        self._finalizer()
        for plan in self._plans:
            self._receiver.forget(plan.index)

    def __reduce__(self) -> NoReturn:
        raise TypeError("an environment cannot be copied or pickled: it has processes. Make another one.")

    def _check_open(self) -> None:
        if self.closed:
            raise ClosedEnvironmentError("the environment is closed; make a new one")

    def _check_idle(self, call: str) -> None:
        self._check_open()
        if self._is_stepping:
            raise ValueError(f"{call} while a step is under way: call step_wait() first")


_SAME_STEP = AutoresetMode.SAME_STEP
_logger = logging.getLogger("genesis_vec")


def _share(plan: WorkerPlan, word: str, *arguments: Any) -> tuple[Any, ...]:
    """A worker's share of a message: its own rows of a reset's seeds, mask and observations, or its scenes' states."""
    rows = plan.rows
    if word == "load_state":
        (scenes,) = arguments
        first_rows = itertools.accumulate((scene["num_envs"] for scene in scenes), initial=0)
        return word, [scene for scene, row in zip(scenes, first_rows, strict=False) if rows.start <= row < rows.stop]
    if word == "episode_steps":
        (steps,) = arguments
        return word, steps[rows].numpy()
    if word not in ("reset", "replace"):
        return word, *arguments
    seed, options, *last_obs = arguments
    if isinstance(seed, list):
        seed = seed[rows]
    if options is not None and options.get("reset_mask") is not None:
        options = {**options, "reset_mask": options["reset_mask"][rows].numpy()}
    return word, seed, options, *(map_observation(lambda leaf: leaf[rows].numpy(), obs) for obs in last_obs)


def _with_egl(devices: list[ProcessDevice], egl_device_ids: Sequence[int] | None) -> list[ProcessDevice]:
    """The devices, with the variable that says which of the machine's devices each draws on."""
    if egl_device_ids is None:
        return devices
    if len(egl_device_ids) != len(devices) or not all(_is_integer(number, 0) for number in egl_device_ids):
        raise ValueError(f"egl_device_ids={egl_device_ids!r} must be {len(devices)} integers of 0 or more")
    return [
        dataclasses.replace(device, variables={**device.variables, "EGL_DEVICE_ID": str(number)})
        for device, number in zip(devices, egl_device_ids, strict=True)
    ]


def _check_settings(
    envs_per_scene: Any, timeout: Any, start_timeout: Any, on_worker_failure: Any, max_restarts: Any
) -> None:
    for name, value, fits, accepted in (
        ("envs_per_scene", envs_per_scene, envs_per_scene is None or _is_integer(envs_per_scene, 2), "2 or more"),
        ("timeout", timeout, _is_seconds(timeout), "a number of seconds above 0, or None"),
        ("start_timeout", start_timeout, _is_seconds(start_timeout), "a number of seconds above 0, or None"),
        ("on_worker_failure", on_worker_failure, on_worker_failure in ("raise", "restart"), "'raise' or 'restart'"),
        ("max_restarts", max_restarts, _is_integer(max_restarts, 0), "0 or more"),
    ):
        if not fits:
            raise ValueError(f"{name}={value!r} must be {accepted}")


def _is_seconds(value: Any) -> bool:
    return value is None or (isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0)


def _is_integer(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least
