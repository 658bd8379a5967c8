"""Recorders: what they write is what happened, and they change nothing."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode

import genesis_vec
from genesis_vec import GenesisVectorEnv
from genesis_vec.errors import DatasetError, RenderingUnavailableError
from genesis_vec.tasks.cart_pole import CartPoleTask
from genesis_vec.video import tile, write_video
from genesis_vec.wrappers import RecordTrajectories, RecordVideo
from tests.fakes import CounterEnv
from tests.wrappers.support import ALL_MODES


class SmallPictures(CartPoleTask):
    camera = {**CartPoleTask.camera, "res": (64, 48)}  # noqa: RUF012


@pytest.fixture
def drawing_env() -> Any:
    try:
        env = GenesisVectorEnv(SmallPictures(), 4, device="cpu", render_mode="rgb_array", render_envs=[1, 3])
    except RenderingUnavailableError as error:
        pytest.skip(f"this machine cannot draw: {error}")
    yield env
    env.close()


def frames_of(path: Path) -> list[np.ndarray]:
    import imageio.v3

    return list(imageio.v3.imiter(path))


@pytest.mark.parametrize("tiled", [True, False])
def test_chosen_environments_are_filmed_for_the_steps_asked_for_and_drawn_in_no_other(
    drawing_env, tmp_path, monkeypatch, tiled
):
    env = RecordVideo(drawing_env, tmp_path, envs=[1, 3], length=5, tiled=tiled)
    drawn = 0
    render = drawing_env.render

    def count() -> Any:
        nonlocal drawn
        drawn += 1
        return render()

    monkeypatch.setattr(drawing_env, "render", count)
    env.reset(seed=0)
    for step in range(20):
        if step == 3:
            env.start("walk")
        env.step(torch.zeros(4, 1))
    # Of 50 steps a second every second one, so that the frames are 25 a second.
    assert drawn == 3 and not env.is_recording
    env.wait()
    sizes = {path.name: (len(frames), frames[0].shape) for path in tmp_path.iterdir() if (frames := frames_of(path))}
    if tiled:
        assert sizes == {"walk.mp4": (3, (48, 128, 3))}
    else:
        assert sizes == {"walk-env-1.mp4": (3, (48, 64, 3)), "walk-env-3.mp4": (3, (48, 64, 3))}


def test_a_video_that_another_or_the_end_cuts_short_is_written(drawing_env, tmp_path):
    env = RecordVideo(drawing_env, tmp_path, envs=[1], length=50)
    env.reset(seed=0)
    for name in ("first", "second"):
        env.start(name)
        for _ in range(5):
            env.step(torch.zeros(4, 1))
    env.close()
    assert {path.name: len(frames_of(path)) for path in tmp_path.iterdir()} == {"first.mp4": 3, "second.mp4": 3}


@pytest.mark.parametrize(
    ("max_fps", "frames", "fps"),
    [(math.inf, 12, 50.0), (50.0, 12, 50.0), (30.0, 6, 25.0), (10.0, 3, 10.0), (12.0, 3, 10.0)],
)
def test_a_video_lasts_as_long_as_what_it_shows(drawing_env, tmp_path, max_fps, frames, fps):
    import imageio_ffmpeg

    env = RecordVideo(drawing_env, tmp_path, envs=[1], length=12, max_fps=max_fps)
    env.reset(seed=0)
    env.start("walk")
    for _ in range(12):
        env.step(torch.zeros(4, 1))
    env.close()
    about = next(imageio_ffmpeg.read_frames(tmp_path / "walk.mp4"))
    assert (len(frames_of(tmp_path / "walk.mp4")), about["fps"]) == (frames, fps)


def test_a_video_that_cannot_be_written_is_a_warning_and_all_goes_on(drawing_env, tmp_path):
    with pytest.raises(OSError):
        (tmp_path / "file").write_text("")
        RecordVideo(drawing_env, tmp_path / "file" / "folder", envs=[1])
    env = RecordVideo(drawing_env, tmp_path / "videos", envs=[1], length=3)
    env.reset(seed=0)
    (tmp_path / "videos" / "lost.mp4").mkdir()
    with pytest.warns(RuntimeWarning, match=r"lost\.mp4 could not be written"):
        for name in ("lost", "kept"):
            env.start(name)
            for _ in range(3):
                env.step(torch.zeros(4, 1))
        env.close()
    assert drawing_env.closed
    assert len(frames_of(tmp_path / "videos" / "kept.mp4")) == 2


@pytest.mark.parametrize("fps", [10.0, 22.3, 30.0, 67.0, 100.0])
def test_a_gif_lasts_as_long_as_what_it_shows(tmp_path, fps):
    from PIL import Image

    write_video(tmp_path / "walk.gif", [np.full((8, 8, 3), 2 * value, np.uint8) for value in range(100)], fps)
    with Image.open(tmp_path / "walk.gif") as gif:
        durations = []
        for index in range(gif.n_frames):
            gif.seek(index)
            durations.append(gif.info["duration"])
    assert len(durations) == 100
    assert sum(durations) == pytest.approx(1000 * 100 / fps, abs=10)


def test_pictures_of_odd_sizes_make_a_video_that_players_read(tmp_path):
    import imageio_ffmpeg

    write_video(tmp_path / "odd.mp4", [np.full((33, 47, 3), 200, np.uint8)] * 4, 10.0)
    about = next(imageio_ffmpeg.read_frames(tmp_path / "odd.mp4"))
    assert about["pix_fmt"].startswith("yuv420p")
    assert about["size"] == (48, 34)


INTERRUPTED = """
import itertools, sys, time
import numpy as np, torch
from genesis_vec.wrappers import RecordVideo
from tests.fakes import CounterEnv

pictures = itertools.cycle(np.random.default_rng(0).integers(0, 255, (20, 480, 640, 3), dtype=np.uint8))
fake = CounterEnv(num_envs=1)
fake.render_mode, fake.metadata["render_fps"], fake.render = "rgb_array", 30, lambda: [next(pictures)]
env = RecordVideo(fake, sys.argv[1], length=300)
env.reset(seed=0)
env.start("walk")
for _ in range(300):
    env.step(torch.zeros(1, *env.single_action_space.shape))
print("writing", flush=True)
try:
    while True:
        time.sleep(0.1)
except KeyboardInterrupt:
    print("interrupted", flush=True)
env.close()
"""


def test_an_interrupt_from_the_terminal_does_not_cut_the_file_that_is_being_written(tmp_path):
    # In a process group of its own, which gets the signal as a terminal's would.
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, str(tmp_path)], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None and process.stdout.readline() == "writing\n"
    deadline = time.monotonic() + 60
    while not (tmp_path / "walk.mp4").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)
    output, _ = process.communicate(timeout=120)
    assert (process.returncode, output) == (0, "interrupted\n")
    assert len(frames_of(tmp_path / "walk.mp4")) == 300


def test_bad_arguments_are_refused(drawing_env, tmp_path, make_env):
    with pytest.raises(ValueError, match="needs render_mode='rgb_array'"):
        RecordVideo(make_env(CartPoleTask(), 2), tmp_path)
    for kwargs, message in (
        ({"envs": 1}, "envs=1: give different indices"),
        ({"envs": np.array([])}, "give different indices"),
        ({"envs": [1], "length": 2.5}, "length=2.5 must be an integer"),
        ({"envs": [1], "max_fps": "30"}, "max_fps='30' must be a number"),
        ({"envs": [4]}, r"envs=\[4\]: give different indices of those that are drawn, \[1, 3\]"),
        ({"envs": [0, 1]}, r"envs=\[0, 1\]"),
        ({"envs": [1, 1]}, r"envs=\[1, 1\]"),
        ({"envs": []}, r"envs=\[\]"),
        ({"envs": [1], "length": 0}, "length=0"),
        ({"envs": [1], "max_fps": 0.0}, "max_fps=0.0"),
        ({"envs": [1], "max_fps": math.nan}, "max_fps=nan"),
    ):
        with pytest.raises(ValueError, match=message):
            RecordVideo(drawing_env, tmp_path, **kwargs)


def test_tiles_are_in_order():
    pictures = [np.full((2, 3, 3), value, np.uint8) for value in (1, 2, 3)]
    tiled = tile(pictures)
    assert tiled.shape == (4, 6, 3)
    assert [tiled[y, x, 0] for y in (0, 2) for x in (0, 3)] == [1, 2, 3, 0]


# ---------------------------------------------------------------------------------------------------- trajectories


def minari_dataset(folder: Path) -> Any:
    return pytest.importorskip("minari").MinariDataset(folder / "data")


@ALL_MODES
def test_every_finished_episode_is_read_back_as_it_was(tmp_path, mode: AutoresetMode):
    pytest.importorskip("minari")
    fake = CounterEnv(num_envs=2, limit=3, autoreset_mode=mode)
    env = RecordTrajectories(fake, tmp_path / "data set")
    obs, _ = env.reset(seed=7)
    seen: list[list[Any]] = [[obs[row].numpy().copy()] for row in range(2)]
    episodes: list[Any] = []
    generator = torch.Generator().manual_seed(0)
    starting = [False, False]
    actions_of: list[list[Any]] = [[], []]
    for _ in range(11):
        actions = torch.rand(2, *fake.single_action_space.shape, generator=generator) * 2 - 1
        obs, _, terminated, truncated, info = env.step(actions)
        ended = terminated | truncated
        for row in range(2):
            if starting[row]:  # NEXT_STEP's reset step
                seen[row], actions_of[row], starting[row] = [obs[row].numpy().copy()], [], False
                continue
            actions_of[row].append(actions[row].numpy())
            final = info["final_obs"] if mode is AutoresetMode.SAME_STEP else obs
            seen[row].append((final if ended[row] else obs)[row].numpy().copy())
            if ended[row]:
                episodes.append((row, np.stack(seen[row]), np.stack(actions_of[row])))
                seen[row], actions_of[row] = [obs[row].numpy().copy()], []
                starting[row] = mode is AutoresetMode.NEXT_STEP
        if mode is AutoresetMode.DISABLED and bool(ended.any()):
            obs, _ = env.reset(options={"reset_mask": ended})
            for row in ended.nonzero()[:, 0].tolist():
                seen[row] = [obs[row].numpy().copy()]
    dataset = minari_dataset(tmp_path / "data set")
    assert dataset.total_episodes == env.num_episodes == len(episodes) >= 4
    read = list(dataset.iterate_episodes())
    metadata = list(dataset.storage.get_episode_metadata(range(len(read))))
    for (row, observations, actions), episode, about in zip(episodes, read, metadata, strict=True):
        np.testing.assert_array_equal(episode.observations, observations)
        np.testing.assert_array_equal(episode.actions, actions)
        assert len(episode.rewards) == len(actions) == len(observations) - 1
        assert episode.truncations[-1] or episode.terminations[-1]
        assert not any(episode.truncations[:-1]) and not any(episode.terminations[:-1])
        assert (about["env_index"], about["seed"]) == (row, 7)
    assert [about["episode"] for about in metadata if about["env_index"] == 0][:2] == [0, 1]


def test_a_folder_may_be_given_from_where_one_is(tmp_path, monkeypatch):
    pytest.importorskip("minari")
    monkeypatch.chdir(tmp_path)
    env = RecordTrajectories(CounterEnv(num_envs=2, limit=3), "data")
    env.reset(seed=0)
    for _ in range(4):
        env.step(torch.zeros(2, *env.single_action_space.shape))
    assert minari_dataset(tmp_path / "data").total_episodes == env.num_episodes >= 2


@ALL_MODES
def test_recorders_leave_the_contract_as_it_is(make_env, tmp_path, mode: AutoresetMode):
    pytest.importorskip("minari")
    env = make_env(CartPoleTask(), 3, autoreset_mode=mode, max_episode_steps=10)
    recorder = RecordTrajectories(env, tmp_path / "data")
    genesis_vec.check_vector_env(recorder)
    assert recorder.num_episodes > 6


def test_a_folder_with_something_in_it_is_refused(tmp_path):
    pytest.importorskip("minari")
    (tmp_path / "mine.txt").write_text("")
    with pytest.raises(DatasetError, match="is there already"):
        RecordTrajectories(CounterEnv(num_envs=2), tmp_path)
    assert (tmp_path / "mine.txt").exists()
