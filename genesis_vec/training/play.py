"""Runs a trained policy, and films it."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
from rich.console import Console

from genesis_vec.training.checkpoint import load_checkpoint
from genesis_vec.training.config import TrainConfig
from genesis_vec.training.evaluate import Evaluation, evaluate
from genesis_vec.training.run import load_policy, make_env
from genesis_vec.video import check_video_file, frame_stride, write_video
from genesis_vec.wrappers import FlattenObservation, RecordTrajectories
from genesis_vec.wrappers.record_trajectories import check_dataset_folder


def play(
    checkpoint: Path,
    *,
    episodes: int = 100,
    num_envs: int | None = None,
    seed: int = 0,
    device: str = "auto",
    video: Path | None = None,
    dataset: Path | None = None,
    console: Console | None = None,
) -> Evaluation:
    """Evaluates a checkpoint's policy without exploration noise, and prints the figures.

    Args:
        checkpoint: A checkpoint file, or a run's folder.
        episodes: Number of episodes.
        num_envs: Number of environments; as many as episodes, at most 128, for None.
        seed: Seed of the episodes.
        device: Where to run.
        video: A file for the first environment's first episodes, .mp4 or .gif.
        dataset: A new folder for every episode as data, in the Minari format; see
            :class:`~genesis_vec.wrappers.RecordTrajectories`. Episodes that ended before the last one counted are in it
            too.
        console: Where to print.

    Raises:
        CheckpointError: If the checkpoint cannot be used.
        DatasetError: If the dataset's folder is there already.
        LibraryNotFoundError: If a dataset is asked for, and the extra "dataset" is missing.
        RenderingUnavailableError: If a video is asked for, and this machine cannot draw.
        ValueError: For numbers out of range or a video file of another kind.
    """
    for name, value in (("episodes", episodes), ("num_envs", num_envs)):
        if value is not None and value < 1:
            raise ValueError(f"{name}={value} must be at least 1")
    if video is not None:
        check_video_file(video)
    if dataset is not None:
        check_dataset_folder(dataset)
    console = console or Console(highlight=False, soft_wrap=True)
    state = load_checkpoint(checkpoint)
    config = state["config"]
    env_kwargs = TrainConfig(env_id=config["env_id"], env=tuple(config["env"]), device=device).env_kwargs()
    if video is not None:
        env_kwargs |= {"render_mode": "rgb_array", "render_envs": [0]}
    env = make_env(config["env_id"], num_envs or min(episodes, 128), env_kwargs)
    try:
        policy = load_policy(state, env)
        recorder = None
        if dataset is not None:
            # What the task observes, and not as the policy takes it.
            is_flat = isinstance(env, FlattenObservation)
            env = recorder = RecordTrajectories(env.env if is_flat else env, dataset)
            if is_flat:
                env = FlattenObservation(env)
        frames: list[np.ndarray] = []
        limit = env.unwrapped.max_episode_steps  # type: ignore[attr-defined]

        fps, steps = env.metadata["render_fps"], itertools.count()
        stride = frame_stride(fps)

        def film() -> None:
            step = next(steps)
            if step < (limit or 1000) and step % stride == 0:
                frames.append(env.render()[0])  # type: ignore[index]

        result = evaluate(env, policy.act, episodes, seed, on_step=film if video is not None else None)
        console.print(f"{config['env_id']} after {state['iteration']} iterations: {result}")
        if video is not None:
            write_video(video, frames, fps / stride)
            console.print(f"video       {video}")
        if recorder is not None:
            console.print(f"dataset     {dataset} ({recorder.num_episodes} episodes)")
    finally:
        env.close()
    return result
