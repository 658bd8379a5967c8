"""A training run from its settings to its files, on one rank or many."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
import warnings
from pathlib import Path
from signal import SIGINT, Signals
from typing import Any

import gymnasium
import torch
from gymnasium import spaces
from gymnasium.vector import VectorEnv
from rich.console import Console

import genesis_vec  # noqa: F401 - registers the ids
from genesis_vec.batches import split_evenly
from genesis_vec.errors import (
    CheckpointError,
    DivergedError,
    RendezvousError,
    StateMismatchError,
    StateUnavailableError,
)
from genesis_vec.training.checkpoint import Checkpoints, newest_checkpoint, save_checkpoint
from genesis_vec.training.config import PPOConfig, TrainConfig
from genesis_vec.training.distributed import World
from genesis_vec.training.evaluate import Evaluation, evaluate
from genesis_vec.training.job import Job
from genesis_vec.training.log import RunLog
from genesis_vec.training.model import ActorCritic
from genesis_vec.training.ppo import PPO
from genesis_vec.training.stop import StopRequest
from genesis_vec.wrappers import FlattenObservation, RecordVideo

# Evaluations use other episodes than training.
EVALUATION_SEED = 1 << 50
# In torchrun's store: this job has a run of its own in the folder.
_BEGUN = "genesis_vec/begun"


@dataclasses.dataclass(frozen=True)
class RunResult:
    """What a run came to; the same on every rank.

    Attributes:
        run_dir: The run's folder.
        checkpoint: The newest checkpoint.
        before: The untrained policy's evaluation, None without evaluation, for a resumed run, or where episodes have no
            time limit.
        after: The trained policy's.
    """

    run_dir: Path
    checkpoint: Path
    before: Evaluation | None
    after: Evaluation | None


def train(config: TrainConfig, console: Console | None = None, job: Job | None = None) -> RunResult:
    """Runs training from its settings, and says where its results are.

    Under torchrun every rank calls it. Rank 0 writes the run's files and shows its progress.

    Args:
        config: The settings.
        console: Where rank 0's progress goes, standard output by default.
        job: This process's place among the ranks, where it has been pinned to its device already; by default it is
            read from the environment, and the process pinned.

    Raises:
        CheckpointError: If run_dir holds another run already, or its checkpoint does not fit.
        RendezvousError: If the ranks do not find one another, were started with different settings, or one fails.
        DivergedError: If an iteration comes to numbers that are not finite.
        KeyboardInterrupt: After an interrupt, once the iteration is finished and the work done is saved.
        SystemExit: Likewise after SIGTERM, with its exit code.
    """
    if job is None:
        job = Job.from_environment()
        config = config.pinned(job)
    if console is None:
        console = Console(highlight=False, soft_wrap=True)
    if job.rank > 0:
        console = Console(quiet=True)
    config = config.for_ranks(job)
    threads_before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with World(job, learner_device(config), config.collective_timeout) as world:
            return _Run(config, job, world, console).train()
    finally:
        torch.set_num_threads(threads_before)


def make_env(env_id: str, num_envs: int, env_kwargs: dict[str, Any]) -> VectorEnv:
    """The environment that a learner trains on: with vector observations, whatever the task's are."""
    with warnings.catch_warnings():
        # What device="auto" picked is printed, and kept with the run.
        warnings.filterwarnings("ignore", message="device='auto' picked")
        try:
            env = gymnasium.make_vec(env_id, num_envs=num_envs, **env_kwargs)
        except gymnasium.error.UnregisteredEnv as error:
            raise type(error)(f"{error} `genesis-vec list` shows the ids that ship with the package.") from error
        except ModuleNotFoundError as error:
            module = env_id.rpartition(":")[0]
            # Gymnasium's own error is without a name. One inside the module is its author's, who wants to see where.
            missing = getattr(error.__cause__, "name", None)
            if missing is None or not f"{module}.".startswith(f"{missing}."):
                raise
            raise ValueError(
                f"{env_id}: there is no module {module!r} here: start in the folder that it is in, or put that on "
                "PYTHONPATH"
            ) from error
        except TypeError as error:
            if "unexpected keyword argument 'device'" not in str(error):
                raise
            raise ValueError(
                f"{env_id} takes no device: it is no vector environment of torch tensors. Register a task "
                "(genesis_vec.register_task), or a function that makes such an environment"
            ) from error
    if isinstance(env.single_observation_space, spaces.Dict):
        return FlattenObservation(env)
    return env


def policy_of(state: dict[str, Any]) -> ActorCritic:
    """The policy of a checkpoint, on the CPU.

    Raises:
        CheckpointError: If the checkpoint is without a part of it.
    """
    ppo = PPOConfig(**{**state["config"]["ppo"], "hidden_sizes": tuple(state["config"]["ppo"]["hidden_sizes"])})
    weights = state["policy"]
    missing = {"observation_mean", "observation_inverse_std", "log_std", "actor.0.weight"} - weights.keys()
    if missing:
        raise CheckpointError(f"the checkpoint's policy is without {', '.join(sorted(missing))}")
    sizes = len(weights["observation_mean"]), len(weights["log_std"])
    actor_size = weights["actor.0.weight"].shape[1]
    policy = ActorCritic(*sizes, ppo.hidden_sizes, ppo.initial_std, 0, actor_size)
    try:
        policy.load_state_dict(weights)
    except RuntimeError as error:
        raise CheckpointError(f"the checkpoint's policy is not of its own settings: {error}") from error
    return policy.eval()


def load_policy(state: dict[str, Any], env: VectorEnv) -> ActorCritic:
    """The policy of a checkpoint, for an environment, on its device.

    Raises:
        CheckpointError: If the checkpoint is of an environment with other spaces.
    """
    policy = policy_of(state)
    own = ((len(policy.observation_mean),), (len(policy.log_std),))
    given = (env.single_observation_space.shape, env.single_action_space.shape)
    if own != given:
        raise CheckpointError(
            f"the checkpoint's policy is for observations {own[0]} and actions {own[1]}, the environment has "
            f"{given[0]} and {given[1]}"
        )
    return policy.to(env.unwrapped.device)  # type: ignore[attr-defined]


class _Run:
    """One rank's part of a run."""

    def __init__(self, config: TrainConfig, job: Job, world: World, console: Console) -> None:
        self._config = config
        self._world = world
        self._console = console
        self._stop = StopRequest()
        self._recorder: RecordVideo | None = None
        _check_same_settings(world.gather_values(config.to_dict()))
        self._run_dir: Path = world.from_first(config.run_dir or new_run_dir(config.env_id))
        holds_run = newest_checkpoint(self._run_dir) is not None or (self._run_dir / "config.json").exists()
        # Not by the number of restarts: what torchrun answers with a restart may be the very refusal below.
        is_restarted = world.is_marked(_BEGUN)
        if world.any(holds_run) and not config.resume and not is_restarted:
            raise CheckpointError(
                f"{self._run_dir} holds a run already: give another run_dir, or resume to go on with it"
            )
        world.mark(_BEGUN)
        self._checkpoints = Checkpoints(self._run_dir, world, config.keep_checkpoints)
        self._state = self._checkpoints.load_shared() if config.resume or is_restarted else None
        if self._state is not None:
            _check_same_run(self._state["config"], config, self._run_dir)
        self._best = float("-inf") if self._state is None else self._state["best_mean_return"]
        self._saved_iteration = 0 if self._state is None else self._state["iteration"]

    def train(self) -> RunResult:
        config, world = self._config, self._world
        first_row, count = split_evenly(0, config.num_envs, world.size)[world.rank]
        env, error = None, None
        if config.compile:
            # torch's compiler imports it, which fails once Genesis is imported.
            with contextlib.suppress(ImportError):
                import setuptools  # noqa: F401
        try:
            env = self._make_env(first_row, count)
        except Exception as caught:
            error = caught
        try:
            # A rank that fails to build must not leave the others waiting for it in the first update.
            world.agree(error, "making its environments")
            assert env is not None
            return self._train(env, first_row)
        finally:
            if env is not None:
                env.close()

    def _make_env(self, first_row: int, count: int) -> VectorEnv:
        config = self._config
        kwargs = {**config.env_kwargs(), "first_env_index": first_row}
        # One rank films, so that there is one file.
        if config.video_every is None or self._world.rank > 0:
            return make_env(config.env_id, count, kwargs)
        envs = config.filmed_envs()
        taken = sorted({"render_mode", "render_envs"} & kwargs.keys())
        if taken:
            raise ValueError(f"video_every films video_envs={config.video_envs!r}: leave --env {taken[0]}=… out")
        if max(envs) >= count:
            raise ValueError(f"video_envs={config.video_envs!r}: rank 0, which films, has the first {count} only")
        env = make_env(config.env_id, count, {**kwargs, "render_mode": "rgb_array", "render_envs": envs})
        self._recorder = RecordVideo(env, self._run_dir / "videos", envs, config.video_length, config.video_tiled)
        return self._recorder

    def _train(self, env: VectorEnv, first_row: int) -> RunResult:
        config, world, console = self._config, self._world, self._console
        compile_mode = ("reduce-overhead" if config.cuda_graphs else "default") if config.compile else None
        learner = PPO(
            env, config.ppo, config.seed, world, first_row, compile_mode, config.torch_threads, config.mixed_precision
        )
        device = device_in_words(env, learner.device)
        ranks = f", shared by {world.size} ranks" if world.size > 1 else ""
        console.print(f"{config.env_id}: {config.num_envs} environments on {device}{ranks}")
        before = None
        if self._state is not None:
            self._resume(learner, self._state)
        else:
            before = self._evaluate(env, learner.policy)
        if before is not None:
            console.print(f"untrained: {before}")
        with self._stop.listen():
            stopped_by = self._learn(learner, device)
        if stopped_by:
            # As a shell tells the end by a signal.
            raise KeyboardInterrupt if stopped_by == SIGINT else SystemExit(128 + stopped_by)
        # From here on there is nothing to lose, and signals end the run at once, as before the first iteration.
        after = self._evaluate(env, learner.policy)
        if before is not None and after is not None:
            console.print(f"untrained   {before}")
            console.print(f"trained     {after}")
            console.print(f"improvement {after.mean_return - before.mean_return:+.2f} in mean return")
        elif after is not None:
            console.print(f"trained     {after}")
        return RunResult(self._run_dir, world.from_first(newest_checkpoint(self._run_dir)), before, after)

    def _learn(self, learner: PPO, device: str) -> int:
        """Trains, and leaves the run's files however that ends; the number of the signal that ended it, 0 for none."""
        config, console = self._config, self._console
        self._checkpoints.prepare()
        log = None
        if self._world.rank == 0:
            log = RunLog(self._run_dir, config.to_dict(), device, config.iterations, learner.iteration, console)
        stopped_by = 0
        try:
            stopped_by = self._iterate(learner, log)
        except DivergedError:
            raise
        except BaseException:
            self._rescue(learner)
            raise
        finally:
            if log is not None:
                curves = log.draw()
                log.close()
                console.print(f"curves      {curves}")
                console.print(f"progress    {self._run_dir / 'progress.csv'}")
                console.print(f"checkpoint  {newest_checkpoint(self._run_dir) or 'none'}")
        if stopped_by:
            console.print(f"stopped by {Signals(stopped_by).name} after iteration {learner.iteration}")
        elif self._recorder is not None:
            self._recorder.stop()
            console.print(f"videos      {self._run_dir / 'videos'}")
        return stopped_by

    def _iterate(self, learner: PPO, log: RunLog | None) -> int:
        """Trains to the end, or until some rank is told to stop; the number of that signal, 0 for none."""
        config = self._config
        while learner.iteration < config.iterations:
            if self._recorder is not None and learner.iteration % (config.video_every or 1) == 0:
                self._recorder.start(f"iteration-{learner.iteration:06d}")
            figures = learner.iterate()
            if log is not None:
                log.iteration(learner.iteration, learner.env_steps, figures)
            _check_finite(figures, learner.iteration)
            mean_return = figures.get("mean_return", float("-inf"))
            is_good_enough = config.stop_at_return is not None and mean_return >= config.stop_at_return
            signals = self._world.gather(torch.tensor(self._stop.signal or 0))
            stopped_by = int(signals.max())
            is_last = learner.iteration == config.iterations or is_good_enough or stopped_by > 0
            if is_last or learner.iteration % config.checkpoint_every == 0:
                self._save(learner, mean_return)
            if is_last:
                return stopped_by
        return 0

    def _save(self, learner: PPO, mean_return: float) -> None:
        is_best = mean_return > self._best
        self._best = max(self._best, mean_return)
        shared = self._shared_state(learner)
        own = None
        if self._config.checkpoint_envs:
            with contextlib.suppress(StateUnavailableError):  # the resumed run says that its environments are new
                own = learner.own_state_dict()
        self._checkpoints.save(learner.iteration, shared, own)
        if is_best and self._world.rank == 0:
            save_checkpoint(self._run_dir / "checkpoints" / "best.pt", shared)
        self._saved_iteration = learner.iteration

    def _rescue(self, learner: PPO) -> None:
        """Keeps what was learnt until an error, for a resumed run that starts new episodes.

        Not with several ranks: of those, torchrun starts all anew from the last whole checkpoint. And not in the midst
        of an update.
        """
        if self._world.size == 1 and not learner.is_updating and learner.iteration > self._saved_iteration:
            self._checkpoints.save(learner.iteration, self._shared_state(learner), None)

    def _shared_state(self, learner: PPO) -> dict[str, Any]:
        return {
            "config": self._config.to_dict(),
            "world_size": self._world.size,
            "best_mean_return": self._best,
            **learner.state_dict(),
        }

    def _resume(self, learner: PPO, state: dict[str, Any]) -> None:
        learner.load_state_dict(state)
        own, error = None, None
        if state["world_size"] == self._world.size:
            own = self._checkpoints.load_own(state["iteration"])
            reason = "the checkpoint is without them"
        else:
            reason = f"the checkpoint is of {state['world_size']} ranks"
        if own is not None:
            try:
                learner.load_own_state_dict(own)
            except (StateMismatchError, StateUnavailableError) as caught:
                error = str(caught)
        errors = [text for text in self._world.gather_values(error) if text is not None]
        if errors:
            learner.load_state_dict(state)
            reason = errors[0]
        where = "where it stopped" if own is not None and not errors else f"with new episodes, as {reason}"
        self._console.print(f"going on from iteration {learner.iteration}, {where}")

    def _evaluate(self, env: VectorEnv, policy: ActorCritic) -> Evaluation | None:
        if not self._config.evaluate or env.unwrapped.max_episode_steps is None:  # type: ignore[attr-defined]
            return None
        return evaluate(env, policy.act, env.num_envs, EVALUATION_SEED, world=self._world)


def _check_finite(figures: dict[str, float], iteration: int) -> None:
    broken = [name for name, value in figures.items() if not math.isfinite(value)]
    if broken:
        raise DivergedError(
            f"training diverged in iteration {iteration}: {', '.join(broken)} not finite. The checkpoints are from "
            "before; lower ppo.learning_rate or ppo.max_grad_norm"
        )


def _check_same_settings(settings: list[dict[str, Any]]) -> None:
    """Whether all ranks were started to do the same, but for their devices."""
    for rank, other in enumerate(settings):
        for name, value in other.items():
            if name not in ("device", "devices", "torch_threads") and value != settings[0][name]:
                raise RendezvousError(
                    f"rank {rank} was started with {name}={value!r} and rank 0 with {settings[0][name]!r}: give all "
                    "nodes the same command"
                )


def _check_same_run(earlier: dict[str, Any], config: TrainConfig, run_dir: Path) -> None:
    earlier, now = ({**values, "env_id": values["env_id"].rpartition(":")[2]} for values in (earlier, config.to_dict()))
    for name in ("env_id", "env", "num_envs", "seed", "ppo"):
        if earlier[name] != now[name]:
            raise CheckpointError(f"{run_dir} was run with {name}={earlier[name]!r}, not {now[name]!r}")


def new_run_dir(env_id: str) -> Path:
    """A folder for a run that is not there yet."""
    name = f"{env_id.rpartition(':')[2].replace('/', '-')}-{time.strftime('%Y%m%d-%H%M%S')}"
    candidates = (Path("runs") / (name if number == 1 else f"{name}-{number}") for number in range(1, 1000))
    return next(path for path in candidates if not path.exists())


def learner_device(config: TrainConfig) -> torch.device:
    """The kind of device that the learner's tensors will be on."""
    name = config.device
    if name == "auto":
        on_gpu = torch.cuda.is_available() if config.devices is None else config.devices.startswith("cuda")
        name = "cuda" if on_gpu else "cpu"
    return torch.device("cuda:0" if name.startswith("cuda") else "cpu")


def device_in_words(env: VectorEnv, device: torch.device) -> str:
    """The device, and the scenes if there are several, for people to read."""
    name = f"{device} ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else "the CPU"
    plans = [worker.plan for worker in getattr(env.unwrapped, "workers", [])]
    if not plans:
        return name
    scenes = sum(len(plan.scenes) for plan in plans)
    return f"{name}, simulated in {scenes} scenes by workers on {', '.join(plan.device.name for plan in plans)}"
