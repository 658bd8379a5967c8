"""A training run with a library, from its settings to its files: those of the package's own runs."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from signal import SIGINT, Signals

import torch
from gymnasium.vector import AutoresetMode
from rich.console import Console

from genesis_vec.batches import split_evenly
from genesis_vec.errors import CheckpointError
from genesis_vec.library_training.recorder import ProgressRecorder, TrainingEnded
from genesis_vec.library_training.trainer import Trainer
from genesis_vec.training.config import TrainConfig
from genesis_vec.training.distributed import World
from genesis_vec.training.evaluate import evaluate
from genesis_vec.training.job import Job
from genesis_vec.training.log import RunLog
from genesis_vec.training.run import (
    EVALUATION_SEED,
    RunResult,
    device_in_words,
    learner_device,
    make_env,
    new_run_dir,
)
from genesis_vec.training.stop import StopRequest

# What only the package's own learner does.
_OWN = (
    "resume", "checkpoint_every", "keep_checkpoints", "checkpoint_envs", "compile", "cuda_graphs", "mixed_precision",
    "video_every",
)  # fmt: skip


def train_with_library(config: TrainConfig, console: Console | None = None, job: Job | None = None) -> RunResult:
    """Runs training with ``config.library``, and says where its results are.

    What the library prints goes to ``library.log`` in the run's folder, its model to ``checkpoints/``.

    Args:
        config: The settings. Those that the library has no counterpart for have no effect, as docs/libraries.md lists
            them; those of the package's own checkpoints, compilation and videos are refused.
        console: Where rank 0's progress goes, standard output by default.
        job: This process's place among the ranks, where it has been pinned already.

    Raises:
        LibraryNotFoundError: If the library is missing.
        ValueError: For settings that do not go with it.
        CheckpointError: If run_dir holds a run already.
        KeyboardInterrupt: After an interrupt, once the iteration is finished and the model is saved.
        SystemExit: Likewise after SIGTERM, with its exit code.
    """
    if job is None:
        job = Job.from_environment()
        config = config.pinned(job)
    trainer_class: type[Trainer] = importlib.import_module(f"genesis_vec.library_training.{config.library}").Trainer
    _check_settings(config, trainer_class)
    if job.size > 1 and not trainer_class.on_several_ranks:
        raise ValueError(
            f"library={config.library!r} with {job.size} ranks: use 'genesis_vec' or 'sb3', or a script of your own "
            "(docs/libraries.md)"
        )
    if console is None:
        # The present one by name: while the library trains, standard output is a file.
        console = Console(file=sys.stdout, highlight=False, soft_wrap=True, quiet=job.rank > 0)
    config = config.for_ranks(job)
    with _torch_settings_kept(), World(job, learner_device(config), config.collective_timeout) as world:
        assert config.torch_threads is not None  # for_ranks() has chosen
        torch.set_num_threads(config.torch_threads)
        return _train(config, trainer_class, world, console)


def _train(config: TrainConfig, trainer_class: type[Trainer], world: World, console: Console) -> RunResult:
    run_dir: Path = world.from_first(config.run_dir or new_run_dir(config.env_id))
    if world.any((run_dir / "config.json").exists()):
        raise CheckpointError(f"{run_dir} holds a run already: give another run_dir")
    first_row, count = split_evenly(0, config.num_envs, world.size)[world.rank]
    env_kwargs = {**config.env_kwargs(), "first_env_index": first_row}
    mode = trainer_class.autoreset_mode
    training_kwargs = env_kwargs if mode is AutoresetMode.SAME_STEP else {**env_kwargs, "autoreset_mode": mode}
    stop = StopRequest()
    env, error = None, None
    try:
        env = make_env(config.env_id, count, training_kwargs)
    except Exception as caught:
        error = caught
    try:
        world.agree(error, "making its environments")
        assert env is not None
        device = device_in_words(env, env.unwrapped.device)  # type: ignore[attr-defined]
        console.print(f"{config.env_id}: {config.num_envs} environments on {device}, trained with {config.library}")
        (run_dir / "checkpoints").mkdir(parents=True, exist_ok=True)
        with stop.listen(), _output_kept_in(run_dir / "library.log"):
            recorder = ProgressRecorder(env, config, world, stop)
            trainer = trainer_class(recorder, config, run_dir, world)
            if world.rank == 0:
                recorder.log = RunLog(run_dir, config.to_dict(), device, config.iterations, 0, console)
            checkpoint = _iterate(trainer, recorder, run_dir, console)
    finally:
        if env is not None:
            env.close()
    if stop.signal is not None:
        console.print(f"stopped by {Signals(stop.signal).name} after iteration {recorder.iteration}")
        raise KeyboardInterrupt if stop.signal == SIGINT else SystemExit(128 + stop.signal)
    if not config.evaluate:
        return RunResult(run_dir, checkpoint, None, None)
    after = None
    env = make_env(config.env_id, count, env_kwargs)
    try:
        if env.unwrapped.max_episode_steps is not None:  # type: ignore[attr-defined]
            after = evaluate(env, trainer.act, env.num_envs, EVALUATION_SEED, world=world)
            console.print(f"trained     {after}")
    finally:
        env.close()
    return RunResult(run_dir, checkpoint, None, after)


def _iterate(trainer: Trainer, recorder: ProgressRecorder, run_dir: Path, console: Console) -> Path:
    """Trains to the end; the model's file, which is written, as are the curves, however training ends."""
    try:
        with contextlib.suppress(TrainingEnded):
            trainer.train()
        recorder.finish_iteration()
    finally:
        checkpoint = run_dir / "checkpoints"
        if recorder.log is not None:
            if recorder.iteration:
                checkpoint = trainer.save(run_dir / "checkpoints")
            curves = recorder.log.draw()
            recorder.log.close()
            console.print(f"curves      {curves}")
            console.print(f"progress    {run_dir / 'progress.csv'}")
            console.print(f"checkpoint  {checkpoint}")
    return checkpoint


def _check_settings(config: TrainConfig, trainer_class: type[Trainer]) -> None:
    mode = config.env_kwargs().get("autoreset_mode")
    if mode not in (None, trainer_class.autoreset_mode, trainer_class.autoreset_mode.value):
        raise ValueError(
            f"autoreset_mode={mode!r} with library={config.library!r}, which trains in "
            f"{trainer_class.autoreset_mode.value!r}: leave it out"
        )
    ppo = config.ppo
    if ppo.rollout_steps * config.num_envs < 2 * ppo.minibatches:
        raise ValueError(
            f"rollout_steps={ppo.rollout_steps} times num_envs={config.num_envs} is less than two samples for each of "
            f"minibatches={ppo.minibatches}: use more environments or fewer minibatches"
        )
    defaults = TrainConfig(env_id=config.env_id)
    for name in _OWN:
        if getattr(config, name) != getattr(defaults, name):
            raise ValueError(
                f"{name}={getattr(config, name)!r} with library={config.library!r}: that is for 'genesis_vec' only"
            )


@contextlib.contextmanager
def _torch_settings_kept() -> Iterator[None]:
    """Puts back what libraries set for the whole process."""
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.set_float32_matmul_precision(precision)


@contextlib.contextmanager
def _output_kept_in(path: Path) -> Iterator[None]:
    """Sends what is printed into a file; a console made before still prints to the terminal."""
    with path.open("a") as file, contextlib.redirect_stdout(file):
        yield
