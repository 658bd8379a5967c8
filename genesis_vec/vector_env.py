"""GenesisVectorEnv: a task on one Genesis scene as a Gymnasium vector environment, device-resident.

The order of a step, the three autoreset modes, time limits, episode statistics, the isolation of faulty environments,
rendering and closing live here. Nothing here waits for the device: see ``_any``.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NoReturn

import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from genesis_vec.batches import (
    Observation,
    as_actions,
    as_episode_steps,
    check_rows,
    leaves,
    map_observation,
    ordinary_tensors,
    reset_mask,
    rows_like,
    select_rows,
)
from genesis_vec.camera import OBSERVATION_KINDS, EnvCamera, ObservationKind, read_rows_without_padding
from genesis_vec.devices import resolve_device
from genesis_vec.engine import EngineOptions, live_view, quick_source_lookup, start_engine
from genesis_vec.env_state import engine_state, restore_engine
from genesis_vec.errors import (
    ClosedEnvironmentError,
    EngineBuildError,
    EnvFaultError,
    RenderingUnavailableError,
    StateMismatchError,
    TaskError,
)
from genesis_vec.graphics import RENDERING_REMEDY, has_graphics, is_rendering_error
from genesis_vec.interrupts import interrupts_kept
from genesis_vec.randomization import Randomization, Randomizer
from genesis_vec.streams import EnvStreams
from genesis_vec.task import Task
from genesis_vec.task_check import check_outputs, check_spaces, torch_dtype


@dataclasses.dataclass(frozen=True)
class EnvSettings:
    """The settings of an environment other than its device, checked; the fields are those of GenesisVectorEnv."""

    num_envs: int
    autoreset_mode: AutoresetMode
    max_episode_steps: int | None
    render_mode: str | None
    render_envs: list[int]
    on_fault: str
    first_env_index: int
    randomization: Randomization | None
    observation: ObservationKind
    image_size: tuple[int, int]
    engine: EngineOptions

    @classmethod
    def parse(
        cls,
        task: Task,
        num_envs: int,
        autoreset_mode: AutoresetMode | str = AutoresetMode.SAME_STEP,
        max_episode_steps: int | None = None,
        render_mode: str | None = None,
        render_envs: Sequence[int] | None = None,
        on_fault: str = "quarantine",
        first_env_index: int = 0,
        randomization: Randomization | Mapping[str, Any] | None = None,
        observation: str = "state",
        image_size: Sequence[int] = (84, 84),
        performance_mode: bool | None = None,
    ) -> EnvSettings:
        """Checks and completes what a user gives.

        Raises:
            TaskError: If the task is none.
            ValueError: For a value out of its range.
        """
        if not isinstance(task, Task):
            raise TaskError(f"task must be an instance of genesis_vec.Task, got {task!r}")
        num_envs = _check_count("num_envs", num_envs)
        if max_episode_steps is None:
            max_episode_steps = task.max_episode_steps
        if max_episode_steps is not None:
            max_episode_steps = _check_count("max_episode_steps", max_episode_steps)
        if on_fault not in ("quarantine", "raise"):
            raise ValueError(f"on_fault={on_fault!r}: use 'quarantine' or 'raise'")
        if render_mode not in (None, "rgb_array"):
            raise ValueError(f"render_mode={render_mode!r}: use None or 'rgb_array'")
        if observation not in OBSERVATION_KINDS:
            raise ValueError(f"observation={observation!r}: use one of {', '.join(OBSERVATION_KINDS)}")
        _check_count("decimation", task.decimation)
        engine = task.engine
        if performance_mode is not None:
            if not isinstance(performance_mode, bool):
                raise ValueError(f"performance_mode={performance_mode!r}: use True, False, or None for the task's own")
            engine = dataclasses.replace(engine, performance_mode=performance_mode)
        return cls(
            num_envs=num_envs,
            autoreset_mode=_parse_autoreset_mode(autoreset_mode),
            max_episode_steps=max_episode_steps,
            render_mode=render_mode,
            render_envs=_check_render_envs(render_envs, num_envs),
            on_fault=on_fault,
            first_env_index=_check_count("first_env_index", first_env_index, least=0),
            randomization=_parse_randomization(randomization, observation),
            observation=observation,  # type: ignore[arg-type]
            image_size=_check_image_size(image_size),
            engine=engine,
        )


class GenesisVectorEnv(VectorEnv[Any, Any, Any]):
    """``num_envs`` copies of a task in one Genesis scene, stepped together in this process.

    Observations, rewards and flags are torch tensors on :attr:`device`; each call returns new ones that never change
    afterwards. See ``docs/architecture.md`` for the contract in full.

    Args:
        task: The task. An instance serves one environment.
        num_envs: Number of environments, at least 1.
        device: ``"auto"``, ``"cpu"``, ``"cuda"``, ``"cuda:0"``.
        autoreset_mode: When an ended environment starts anew, with Gymnasium's meaning: in the same step (its last
            observation is then in ``info["final_obs"]``), in the next step, or only by
            ``reset(options={"reset_mask": mask})``. A member of Gymnasium's ``AutoresetMode`` or its value.
        max_episode_steps: Time limit in steps; None means the task's own.
        render_mode: None or ``"rgb_array"``.
        render_envs: With ``"rgb_array"``, the environments that are drawn, all by default. The frames of the others
            are black and cost nothing.
        on_fault: What happens to an environment whose state, observation, reward or action is not finite, or that
            the engine flags: ``"quarantine"`` truncates it and starts it anew, ``"raise"`` raises
            :class:`~genesis_vec.errors.EnvFaultError` (and waits for the device in each step in order to know).
        first_env_index: Global index of the first environment, where this batch is a part of a larger one.
        randomization: What differs between environments, a :class:`~genesis_vec.Randomization` or a dict of its
            attributes; nothing by default.
        observation: What is observed: ``"state"``, what the task observes; ``"rgb"``, what its camera sees, uint8
            (height, width, 3); ``"depth"``, how far that is, float32 (height, width, 1) in metres. Pixels are drawn by
            the engine's rasteriser, on a GPU by its batch renderer where that is installed; ``render`` then shows
            them too.
        image_size: Height and width of those, in pixels.
        performance_mode: Whether the engine compiles its kernels for this very number of environments, which takes a
            minute or more at each start and makes its step faster (``docs/performance.md``); None means as the task's
            ``engine`` has it. All environments of a process have the same.

    Attributes:
        task: The task.
        scene: The Genesis scene.
        device: ``torch.device`` of every tensor.
        autoreset_mode: Gymnasium's ``AutoresetMode``, also in ``metadata``.
        max_episode_steps: The time limit in force, None for none.
        render_envs: The environments that are drawn, where there is a render mode.
        randomizer: What was drawn, in its ``drawn``; None without randomisation.

    Raises:
        ValueError: For an argument out of its range.
        DeviceNotFoundError: If the device is not there.
        EngineConflictError: If the engine already runs with other settings in this process.
        EngineBuildError: If the scene could not be built, for want of memory for instance.
        TaskError: If the task breaks its contract.
        RenderingUnavailableError: If pictures were asked for, and this machine cannot draw.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"]}  # noqa: RUF012 - copied for each instance below

    def __init__(
        self,
        task: Task,
        num_envs: int,
        *,
        device: str | torch.device = "auto",
        autoreset_mode: AutoresetMode | str = AutoresetMode.SAME_STEP,
        max_episode_steps: int | None = None,
        render_mode: str | None = None,
        render_envs: Sequence[int] | None = None,
        on_fault: Literal["quarantine", "raise"] = "quarantine",
        first_env_index: int = 0,
        randomization: Randomization | Mapping[str, Any] | None = None,
        observation: ObservationKind = "state",
        image_size: Sequence[int] = (84, 84),
        performance_mode: bool | None = None,
    ) -> None:
        self.closed = True  # until the scene is there; close() and __del__ then have nothing to do
        settings = EnvSettings.parse(
            task, num_envs, autoreset_mode, max_episode_steps, render_mode, render_envs, on_fault, first_env_index,
            randomization, observation, image_size, performance_mode,
        )  # fmt: skip
        if hasattr(task, "scene"):
            raise TaskError(f"this {type(task).__name__} already serves an environment; make a new one for each")
        self.num_envs = settings.num_envs
        self.autoreset_mode = settings.autoreset_mode
        self.max_episode_steps = settings.max_episode_steps
        self.render_mode = settings.render_mode
        self.on_fault = settings.on_fault
        self._randomization = settings.randomization
        self._observation: ObservationKind = settings.observation
        self.render_envs = settings.render_envs
        self.metadata = {
            **type(self).metadata,
            "autoreset_mode": self.autoreset_mode,
            "render_fps": max(1, round(1.0 / (task.dt * task.decimation))),
        }
        self.device = resolve_device(device)
        self.task = task
        self._camera: EnvCamera | None = None
        if self._observation != "state":
            self._camera = EnvCamera(task.camera, range(self.num_envs), self.device, settings.image_size)
        elif self.render_mode is not None:
            self._camera = EnvCamera(task.camera, self.render_envs, self.device)
        # The camera where its pixels are what is observed.
        self._eye = self._camera if self._observation != "state" else None
        # On a device that computes asynchronously, asking whether any row of a mask is set would make the host wait.
        self._asks_masks = self.device.type == "cpu"

        with interrupts_kept():
            self._prepare(settings.first_env_index, settings.engine)

    @ordinary_tensors
    def _prepare(self, first_env_index: int, engine: EngineOptions) -> None:
        self._build_scene(start_engine(self.device, engine))
        self.closed = False
        try:
            self._watch_engine()
            self.task.setup()
            self.randomizer = None if self._randomization is None else Randomizer(self._randomization, self.task)
            self._adopt_spaces()
            self._streams = EnvStreams(self.num_envs, self.device, first_env_index)
            self._all = torch.ones(self.num_envs, dtype=torch.bool, device=self.device)
            self._none = torch.zeros_like(self._all)
            self._returns = torch.zeros(self.num_envs, dtype=torch.float32, device=self.device)
            # Steps since construction, and the values of it at which episodes began: counting up a tensor of lengths
            # would cost an operation in each step.
            self._clock = 0
            self._start_steps = torch.zeros(self.num_envs, dtype=torch.int64, device=self.device)
            self._epoch = time.perf_counter()
            self._start_times = torch.zeros(self.num_envs, dtype=torch.float64, device=self.device)
            # One round of everything, so that what is wrong with the task is told before any training starts.
            self._streams.seed(0)
            self._start_episodes(self._all)
            self.task.act(self._action_low.clamp(min=0.0).minimum(self._action_high).expand(self._action_shape))
            check_outputs(self.task)
            self._streams.is_seeded = False
        except BaseException:
            self.close()
            raise
        # Rows whose episode is over and that have not started anew (NEXT_STEP, DISABLED), and the flags they ended by.
        self._idle = self._none
        self._idle_terminated = self._none
        self._has_idle = False
        self._last_obs: Observation | None = None
        self._raw_actions: torch.Tensor | None = None  # of a step that is half done

    # ------------------------------------------------------------------------------------------------ construction

    def _build_scene(self, gs: Any) -> None:
        task = self.task
        options = task.scene_options()
        if self._randomization is not None:
            options = self._randomization.with_engine_options(options)
        if self._camera is not None:
            options = self._camera.with_scene_options(gs, options)
        with quick_source_lookup():
            self.scene = gs.Scene(show_viewer=False, **options)
        task.scene, task.num_envs, task.device = self.scene, self.num_envs, self.device
        try:
            task.build(self.scene)
            if self._camera is not None:
                self._camera.add_to(self.scene)
            draws = bool(self.scene.visualizer.cameras)
            if draws and not has_graphics():
                raise RenderingUnavailableError(f"this machine has no graphics libraries. {RENDERING_REMEDY}")
            if not draws:
                # Otherwise the engine opens an OpenGL context that nothing uses, fails where there is no OpenGL, and
                # spends time on it in every reset.
                self.scene.visualizer.build = _do_nothing
            self.scene.build(n_envs=self.num_envs)
            if draws:
                read_rows_without_padding(self.scene)
            if self._camera is not None:
                self._camera.lighten(self.scene)
        except Exception as error:
            self.scene.destroy()
            if isinstance(error, (TaskError, RenderingUnavailableError, NotImplementedError)):
                raise
            if is_rendering_error(error):
                raise RenderingUnavailableError(
                    f"this machine cannot draw: {error}. {RENDERING_REMEDY} An environment without a camera "
                    "(render_mode=None) needs none of them."
                ) from error
            raise EngineBuildError(
                f"the engine could not build the scene of {type(task).__name__} with num_envs={self.num_envs} on "
                f"{self.device}: {error}. If memory ran out, use fewer environments."
            ) from error

    def _watch_engine(self) -> None:
        """Takes over the engine's error check, which would raise for the whole batch and wait for the device.

        The same flags, and the state itself, are looked at row by row in every step instead.
        """
        rigid = self.scene.rigid_solver
        self._engine_state: list[torch.Tensor] = []
        self._engine_flags: torch.Tensor | None = None
        if rigid.is_active:
            rigid.check_errno = _do_nothing
            self._engine_flags = live_view(rigid._errno)
            self._engine_state = [live_view(rigid.qpos), live_view(rigid.dyn_state.dofs.vel)]

    def _adopt_spaces(self) -> None:
        check_spaces(self.task)
        self.single_observation_space = self.task.observation_space
        if self._eye is not None:
            self.single_observation_space = self._eye.space(self._observation)
        self.single_action_space = box = self.task.action_space
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(box, self.num_envs)
        self._obs_dtypes = map_observation(torch_dtype, self.single_observation_space)
        self._action_low = torch.as_tensor(box.low, device=self.device)
        self._action_high = torch.as_tensor(box.high, device=self.device)
        self._action_shape = (self.num_envs, *box.shape)

    # ------------------------------------------------------------------------------------------------------- reset

    @ordinary_tensors
    def reset(
        self, *, seed: int | list[int] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Starts new episodes.

        Args:
            seed: Seed of the environments' random streams: one for all (each environment then draws its own, by its
                index), a list with one per environment, or None to go on with the streams as they are (the first
                time, with a seed from the operating system).
            options: ``{"reset_mask": mask}`` resets just those environments; mask is bool (num_envs,), a torch tensor
                or a NumPy array.

        Returns:
            The observations of all environments, tensor or dict of tensors (num_envs, *shape), and an empty info.

        Raises:
            ValueError: For a seed or a mask that is not of these forms.
            ClosedEnvironmentError: After :meth:`close`.
        """
        self._check_idle("reset()")
        mask = reset_mask(options, self.num_envs, self.device)
        rows = self._all if mask is None else mask
        if self._last_obs is None:
            rows = self._all  # nothing has an episode yet that a partial reset could leave running
        if not self._streams.is_seeded and not isinstance(seed, int):
            # Also before a list of seeds, whose entries that are None leave streams as they are.
            self._streams.seed(int(self.np_random.integers(1 << 62)))
        if seed is not None:
            self._streams.seed(seed, rows)
            super().reset(seed=seed if isinstance(seed, int) else None)
        self._start_episodes(rows)
        obs = self._observe(rows)
        if self._last_obs is not None and (self._has_idle or self.randomizer is not None):
            # An ended environment that is not among these goes on showing how it ended, and noise stays as it was.
            obs = select_rows(rows, obs, self._last_obs)
        self._last_obs = map_observation(torch.clone, obs)
        self._idle = self._idle & ~rows
        self._has_idle = self.autoreset_mode is not AutoresetMode.SAME_STEP and self._any(self._idle)
        return obs, {}

    def _start_episodes(self, rows: torch.Tensor) -> None:
        self.scene.reset(envs_idx=rows)
        self._streams.begin_episode(rows)
        draws = self._streams.select(rows)
        self.task.reset(rows, draws)
        if self.randomizer is not None:
            self.randomizer.start_episodes(rows, draws)
        self._returns = self._returns.masked_fill(rows, 0.0)
        self._start_steps = self._start_steps.masked_fill(rows, self._clock)
        if self._asks_masks:
            self._earliest_start = int(self._start_steps.min())
        self._start_times = self._start_times.masked_fill(rows, time.perf_counter() - self._epoch)

    # -------------------------------------------------------------------------------------------------------- step

    def step(
        self, actions: torch.Tensor | np.ndarray
    ) -> tuple[Observation, torch.Tensor, torch.Tensor, torch.Tensor, dict[str, Any]]:
        """Takes one step in every environment.

        Args:
            actions: (num_envs, *action shape), a torch tensor on any device or a NumPy array. Values out of range are
                clipped; one that is not finite makes its environment faulty.

        Returns:
            observations (num_envs, *shape); rewards float32 (num_envs,); terminated and truncated bool (num_envs,),
            never both true for one environment; and info, of which every tensor has num_envs rows:

            - "reward_terms": the weighted terms by name, which sum to the reward; the task's metrics by name;
              "fault": bool, the environments that were found faulty in this step.
            - "episode": {"r": return, "l": length in steps, "t": seconds of wall-clock time} of the episodes that
              ended in this step, 0 elsewhere, with the mask "_episode".
            - In SAME_STEP also "final_obs", the observation before any reset, and "final_info", this info before any
              reset, with the mask of the environments that ended in "_final_obs" and "_final_info". Do not write to
              "final_obs": a fault in the next step goes back to it.

        Raises:
            ValueError: If actions have another shape.
            ClosedEnvironmentError: After :meth:`close`.
            EnvFaultError: With ``on_fault="raise"``, if an environment is faulty. Reset before going on.
        """
        self.step_async(actions)
        return self.step_wait()

    @ordinary_tensors
    def step_async(self, actions: torch.Tensor | np.ndarray) -> None:
        """The first half of a step: acts, and steps the engine. :meth:`step_wait` is the other.

        A GPU is then at work while the caller does something else. On the CPU the engine has been stepped; a caller of
        several environments gains by taking the halves of all of them together, since what Python and torch do runs
        several times faster when it has not just been displaced from the caches by an engine's step.

        Args:
            actions: As for :meth:`step`. They must not change before :meth:`step_wait`.

        Raises:
            ValueError: If actions have another shape, or a step has been begun already.
            ClosedEnvironmentError: After :meth:`close`.
        """
        self._check_open()
        if self._last_obs is None:
            raise ValueError("step() before reset(): call reset() first")
        if self._raw_actions is not None:
            raise ValueError("step_async() twice: call step_wait() first")
        raw_actions = as_actions(actions, self._action_shape, self.device)
        # nan_to_num first: clamp would let NaN through to the engine, which swallows it without a word.
        actions = raw_actions.nan_to_num().clamp(self._action_low, self._action_high)
        self.task.act(actions if self.randomizer is None else self._randomized(self.randomizer, actions))
        for _ in range(self.task.decimation):
            self.scene.step(update_visualizer=False)
        self._raw_actions = raw_actions

    def _randomized(self, randomizer: Randomizer, actions: torch.Tensor) -> torch.Tensor:
        """The actions that take effect now; robots that are due are pushed."""
        due = randomizer.is_push_due(self._clock - self._start_steps)
        if due is not None and self._any(due):
            randomizer.push(due, self._streams.select(due))
        return randomizer.delayed(actions)

    @ordinary_tensors
    def step_wait(self) -> tuple[Observation, torch.Tensor, torch.Tensor, torch.Tensor, dict[str, Any]]:
        """The results of the step that :meth:`step_async` began; see :meth:`step`.

        Raises:
            ValueError: If none was begun.
            ClosedEnvironmentError, EnvFaultError: As for :meth:`step`.
        """
        self._check_open()
        raw_actions, self._raw_actions = self._raw_actions, None
        if raw_actions is None:
            raise ValueError("step_wait() without step_async()")
        task = self.task
        obs = self._observe(None)
        metrics = task.metrics()
        terms = self._weighted_terms()
        reward = functools.reduce(torch.add, terms.values()) if len(terms) > 1 else next(iter(terms.values())).clone()
        terminated = task.terminated()
        fault = self._find_faults(raw_actions, obs, reward)
        self._clock += 1
        timed_out = self._timed_out()
        ended = fault
        for flags in (terminated, timed_out):
            ended = ended if flags is None else ended | flags
        something_ends = self._any(ended)

        if something_ends or self._has_idle:
            if self._has_idle:
                fault = fault & ~self._idle
            if self.on_fault == "raise" and bool(fault.any()):
                self._raise_fault(fault, raw_actions, obs, reward)
            truncated = fault if timed_out is None else fault | timed_out
            terminated = self._none.clone() if terminated is None else terminated & ~fault
            truncated = truncated & ~terminated
            reward = reward.masked_fill(fault, 0.0)
            terms = {name: term.masked_fill(fault, 0.0) for name, term in terms.items()}
            metrics = {name: value.masked_fill(rows_like(fault, value), 0) for name, value in metrics.items()}
            # V(final_obs) bootstraps a truncation, so a faulty row's must be one that a policy could have seen.
            obs = select_rows(fault, self._last_obs, obs)
        else:
            terminated = self._none.clone() if terminated is None else terminated.clone()
            truncated = self._none.clone()

        idle = self._idle if self._has_idle else None
        if idle is not None:
            reward = reward.masked_fill(idle, 0.0)
            terms = {name: term.masked_fill(idle, 0.0) for name, term in terms.items()}
            terminated, truncated = terminated & ~idle, truncated & ~idle
            ended = terminated | truncated
        self._returns = self._returns + reward
        info: dict[str, Any] = {**metrics, "reward_terms": terms, "fault": fault}
        info["episode"] = self._episode_statistics(ended, something_ends)
        info["_episode"] = ended
        if something_ends:
            task.episodes_ended(ended, info["episode"]["r"], info["episode"]["l"])

        if self.autoreset_mode is AutoresetMode.SAME_STEP:
            info = with_final(info, obs)
            if something_ends:
                obs = self._restart(ended, obs)
            # Kept for a fault in the next step. In a step without an end it is the tensor handed out as final_obs,
            # of which nobody has a use then: one copy less.
            self._last_obs = obs
            obs = map_observation(torch.clone, obs)
        else:
            if something_ends and self._any(fault):
                # The episode is over but the next has not begun: until then the engine must not compute with broken
                # numbers. Before the restarts below, after which the engine still has to compute the link poses where
                # a task left that to the next step: this reset would count them as computed.
                self.scene.reset(envs_idx=fault)
            if idle is not None and self.autoreset_mode is AutoresetMode.NEXT_STEP:
                obs = self._restart(idle, obs)
            elif idle is not None:
                # An ended environment that nobody reset stays as it ended, rather than going on as if nothing were.
                obs = select_rows(idle, self._last_obs, obs)
                terminated = torch.where(idle, self._idle_terminated, terminated)
                truncated = torch.where(idle, ~self._idle_terminated, truncated)
            if something_ends or idle is not None:
                self._idle_terminated = terminated.clone()
                self._idle = terminated | truncated
                self._has_idle = self._any(self._idle)
            self._last_obs = map_observation(torch.clone, obs)
        return obs, reward, terminated, truncated, info

    def _timed_out(self) -> torch.Tensor | None:
        """Rows, bool (num_envs,), whose time is up; None where it is known without asking the device that none is."""
        limit = self.max_episode_steps
        if limit is None or (self._asks_masks and self._clock - self._earliest_start < limit):
            return None
        return self._start_steps <= self._clock - limit

    def _any(self, mask: torch.Tensor) -> bool:
        """Whether there may be work to do for a mask: looked up on the CPU, assumed where looking would wait."""
        return not self._asks_masks or bool(mask.any())

    def _observe(self, rows: torch.Tensor | None) -> Observation:
        """The present observations; for those rows, or all for None, noise is drawn where there is any."""
        if self._eye is not None:
            return self._eye.observe(self._observation)
        observations = map_observation(_as_declared, self.task.observe(), self._obs_dtypes)
        if self.randomizer is None:
            return observations
        return self.randomizer.noisy(observations, self._streams.select(rows))

    def _weighted_terms(self) -> dict[str, torch.Tensor]:
        """The reward's terms by name, float32 (num_envs,), new tensors: multiplied also where the weight is 1."""
        reward = self.task.reward()
        terms = reward if isinstance(reward, dict) else {"reward": reward}
        weights = self.task.reward_weights
        return {name: (term * weights.get(name, 1.0)).to(torch.float32) for name, term in terms.items()}

    def _find_faults(self, actions: torch.Tensor, obs: Observation, reward: torch.Tensor) -> torch.Tensor:
        """Rows, bool (num_envs,), with a value that is not finite, or with an error flag of the engine."""
        checked = [actions, *leaves(obs), reward, *self._engine_state]
        rows = [value.reshape(self.num_envs, -1) for value in checked if value.is_floating_point()]
        # Zero times a finite number is zero and times anything else is NaN, so that one sum tells for the whole row.
        total = torch.cat(rows, dim=1).mul_(0.0).sum(dim=1)
        return (total if self._engine_flags is None else total + self._engine_flags) != 0.0

    def _raise_fault(self, fault: torch.Tensor, actions: torch.Tensor, obs: Observation, reward: torch.Tensor) -> None:
        indices = fault.nonzero()[:, 0].tolist()
        causes = []
        if not bool(actions[fault].isfinite().all()):
            causes.append("an action is not finite")
        if self._engine_flags is not None and bool((self._engine_flags[fault] != 0).any()):
            causes.append("the engine flags an error (forces that are not finite, or too many contacts)")
        if not all(bool(value[fault].isfinite().all()) for value in self._engine_state):
            causes.append("the engine's state is not finite")
        if not all(bool(leaf[fault].isfinite().all()) for leaf in leaves(obs)):
            causes.append("an observation is not finite")
        if not bool(reward[fault].isfinite().all()):
            causes.append("a reward is not finite")
        raise EnvFaultError(f"environments {indices} are faulty: {'; '.join(causes)}", indices)

    def _episode_statistics(self, ended: torch.Tensor, something_ends: bool) -> dict[str, torch.Tensor]:
        if not something_ends:
            return {
                "r": torch.zeros_like(self._returns),
                "l": torch.zeros_like(self._start_steps),
                "t": torch.zeros_like(self._returns),
            }
        seconds = time.perf_counter() - self._epoch - self._start_times
        return {
            "r": self._returns * ended,
            "l": (self._clock - self._start_steps) * ended,
            "t": (seconds * ended).to(torch.float32),
        }

    def _restart(self, rows: torch.Tensor, obs: Observation) -> Observation:
        """Starts the rows' next episodes; the observations with those rows' first ones in place."""
        self._start_episodes(rows)
        return select_rows(rows, self._observe(rows), obs)

    @ordinary_tensors
    def set_episode_steps(self, steps: torch.Tensor | np.ndarray) -> None:
        """Counts the running episodes as if they had taken so many steps already, up to the time limit.

        With a different number for each, episodes that began together do not all end in the same step.

        Args:
            steps: Integers of 0 or more, (num_envs,). ``info["episode"]["l"]`` will count them too.

        Raises:
            ValueError: For another shape or type, and while a step is half done.
            ClosedEnvironmentError: After :meth:`close`.
        """
        self._check_idle("set_episode_steps()")
        self._start_steps = self._clock - as_episode_steps(steps, self.num_envs).to(self.device)
        if self._asks_masks:
            self._earliest_start = int(self._start_steps.min())

    # ----------------------------------------------------------------------------------------- for a part of a whole

    def running_episodes(self) -> dict[str, torch.Tensor]:
        """Return "r", float32, and length "l", int64, of every row's episode so far: (num_envs,)."""
        return {"r": self._returns, "l": self._clock - self._start_steps}

    @ordinary_tensors
    def count_as_truncated(self, last_obs: Observation) -> None:
        """Takes every row's episode for truncated in the step before, whatever happened.

        For a scene that replaces one that was lost. In SAME_STEP a reset alone does it; in the other modes the rows
        then start anew in the next step, or wait for their reset.

        Args:
            last_obs: The last observation that the lost scene gave.
        """
        if self.autoreset_mode is AutoresetMode.SAME_STEP:
            return
        self._last_obs = map_observation(torch.clone, last_obs)
        self._idle, self._idle_terminated, self._has_idle = self._all, self._none, True

    # -------------------------------------------------------------------------------------------------------- state

    @ordinary_tensors
    def state_dict(self) -> dict[str, Any]:
        """Everything that the next steps depend on, the engine's state included.

        After :meth:`load_state_dict`, here or in another process, the same actions give the same bits on the CPU.

        Returns:
            Copies, of tensors and plain values only, of some 100 KB per quadruped.

        Raises:
            ValueError: While a step is half done.
            ClosedEnvironmentError: After :meth:`close`.
        """
        self._check_idle("state_dict()")
        return {
            "task_class": type(self.task).__qualname__,
            "num_envs": self.num_envs,
            "first_env_index": self._streams.first_env_index,
            "autoreset_mode": self.autoreset_mode.value,
            "randomization": str(self._randomization),
            "observation": self._observation,
            "engine": engine_state(self.scene),
            "task": self.task.state_dict(),
            "randomizer": None if self.randomizer is None else self.randomizer.state_dict(),
            "streams": self._streams.state_dict(),
            "is_seeded": self._streams.is_seeded,
            "returns": self._returns.clone(),
            "lengths": self._clock - self._start_steps,
            "seconds": time.perf_counter() - self._epoch - self._start_times,
            "last_obs": None if self._last_obs is None else map_observation(torch.clone, self._last_obs),
            "idle": self._idle.clone(),
            "idle_terminated": self._idle_terminated.clone(),
        }

    @ordinary_tensors
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Puts back what :meth:`state_dict` gave, in this process or another one, on this device or another one.

        Args:
            state: The state of an environment of the same task, settings and number of environments.

        Raises:
            StateMismatchError: If it is of another one; nothing has changed then.
            ValueError: While a step is half done.
            ClosedEnvironmentError: After :meth:`close`.
        """
        self._check_idle("load_state_dict()")
        for name, own in (
            ("task_class", type(self.task).__qualname__),
            ("num_envs", self.num_envs),
            ("first_env_index", self._streams.first_env_index),
            ("autoreset_mode", self.autoreset_mode.value),
            ("randomization", str(self._randomization)),
            ("observation", self._observation),
        ):
            if state[name] != own:
                raise StateMismatchError(f"the state is of an environment with {name}={state[name]!r}, not {own!r}")
        restore_engine(self.scene, state["engine"])
        self.task.load_state_dict(state["task"])
        if self.randomizer is not None:
            self.randomizer.load_state_dict(state["randomizer"])
        self._streams.load_state_dict(state["streams"])
        self._streams.is_seeded = state["is_seeded"]
        self._returns = self._own(state["returns"])
        self._start_steps = self._clock - self._own(state["lengths"])
        self._start_times = time.perf_counter() - self._epoch - self._own(state["seconds"])
        self._last_obs = None if state["last_obs"] is None else map_observation(self._own, state["last_obs"])
        self._idle, self._idle_terminated = self._own(state["idle"]), self._own(state["idle_terminated"])
        self._has_idle = self.autoreset_mode is not AutoresetMode.SAME_STEP and self._any(self._idle)
        if self._asks_masks:
            self._earliest_start = int(self._start_steps.min())

    def _own(self, value: torch.Tensor) -> torch.Tensor:
        return value.to(self.device, copy=True)

    # --------------------------------------------------------------------------------------------- rendering, closing

    def render(self) -> tuple[np.ndarray, ...] | None:
        """Draws the environments.

        Returns:
            ``num_envs`` frames, each uint8 (height, width, 3); black for an environment not in ``render_envs``. None
            without a render mode.

        Raises:
            ClosedEnvironmentError: After :meth:`close`.
        """
        self._check_open()
        if self._camera is None or self.render_mode is None:
            return None
        drawn = self._camera.frames()
        blank = np.zeros_like(next(iter(drawn.values())))
        blank.flags.writeable = False  # it stands for every environment that is not drawn
        return tuple(drawn[index] if index in self.render_envs else blank for index in range(self.num_envs))

    def close_extras(self, **kwargs: Any) -> None:
        """Frees the scene; called by :meth:`close`, once. The engine stays, for other environments of this process."""
        self.scene.destroy()

    def __reduce__(self) -> NoReturn:
        raise TypeError("an environment cannot be copied or pickled: use its state_dict(), or make another one")

    def _check_open(self) -> None:
        if self.closed:
            raise ClosedEnvironmentError("the environment is closed; make a new one")

    def _check_idle(self, call: str) -> None:
        self._check_open()
        if self._raw_actions is not None:
            raise ValueError(f"{call} while a step is under way: call step_wait() first")


def _check_image_size(size: Sequence[int]) -> tuple[int, int]:
    if not isinstance(size, (Sequence, np.ndarray)) or len(size) != 2:
        raise ValueError(f"image_size={size!r}: give (height, width) in pixels")
    return _check_count("image_size", size[0]), _check_count("image_size", size[1])


def _parse_randomization(given: Randomization | Mapping[str, Any] | None, observation: str) -> Randomization | None:
    """What a user gives, None where nothing is randomised."""
    if isinstance(given, Mapping):
        unknown = sorted(set(given) - {field.name for field in dataclasses.fields(Randomization)})
        if unknown:
            raise ValueError(
                f"randomization has no {unknown}; it has {[f.name for f in dataclasses.fields(Randomization)]}"
            )
        given = Randomization(**given)
    if given is not None and not isinstance(given, Randomization):
        raise ValueError(f"randomization={given!r}: give a genesis_vec.Randomization or a dict of its attributes")
    if given is not None and given.observation_noise and observation != "state":
        raise ValueError(f"observation_noise is for observation='state', not {observation!r}")
    if given is None or not given.is_off:
        return given
    if given != Randomization():
        raise ValueError(f"randomization={given!r} randomises nothing: give a range for one of its parameters")
    return None


def with_final(info: dict[str, Any], final_obs: Observation) -> dict[str, Any]:
    """The info of a SAME_STEP step: with what the ended rows came to, before any of them starts anew."""
    ended = info["_episode"]
    return {
        **info,
        "final_info": info,
        "_final_info": ended,
        "final_obs": final_obs,
        "_final_obs": ended,
    }


def _as_declared(leaf: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if leaf.dtype == dtype and leaf.is_contiguous():
        return leaf
    # The engine's getters are not contiguous, on which a learner's .view() would fail.
    return leaf.to(dtype).contiguous()


def _do_nothing(*args: Any, **kwargs: Any) -> None:
    pass


def _check_count(name: str, value: Any, least: int = 1) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise ValueError(f"{name} must be an integer of at least {least}, got {value!r}")
    return int(value)


def _check_render_envs(render_envs: Sequence[int] | None, num_envs: int) -> list[int]:
    if render_envs is None:
        return list(range(num_envs))
    return check_rows("render_envs", render_envs, range(num_envs), f"from 0 to {num_envs - 1}")


def _parse_autoreset_mode(mode: AutoresetMode | str) -> AutoresetMode:
    try:
        return AutoresetMode(mode)
    except ValueError:
        accepted = [member.value for member in AutoresetMode]
        raise ValueError(f"autoreset_mode={mode!r}: use gymnasium.vector.AutoresetMode or one of {accepted}") from None
