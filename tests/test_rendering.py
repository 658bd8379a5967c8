"""Pictures: how many, of whom, and at what cost where nobody wants any."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.wrappers.vector import RecordVideo

from genesis_vec.engine import import_genesis
from genesis_vec.errors import RenderingUnavailableError
from genesis_vec.tasks.cart_pole import CartPoleTask

WIDTH, HEIGHT = 96, 64


class SmallPictures(CartPoleTask):
    camera = {**CartPoleTask.camera, "res": (WIDTH, HEIGHT)}  # noqa: RUF012


class OwnCamera(SmallPictures):
    """Sees for itself; it wants no frames for people."""

    def build(self, scene: Any) -> None:
        super().build(scene)
        self.eye = scene.add_camera(GUI=False, **self.camera)


@pytest.fixture
def make_drawing_env(make_env) -> Callable[..., Any]:
    def make(num_envs: int, task: CartPoleTask | None = None, **kwargs: Any) -> Any:
        try:
            return make_env(task or SmallPictures(), num_envs, **{"render_mode": "rgb_array", **kwargs})
        except RenderingUnavailableError as error:
            pytest.skip(f"this machine cannot draw: {error}")

    return make


@pytest.fixture
def visualizer_calls(monkeypatch) -> list[str]:
    visualizer = import_genesis().vis.Visualizer
    calls: list[str] = []
    for name in ("build", "reset", "update", "update_on_sim_step", "update_visual_states"):
        method = getattr(visualizer, name)

        def call(self: Any, *args: Any, name: str = name, method: Any = method, **kwargs: Any) -> Any:
            calls.append(name)
            return method(self, *args, **kwargs)

        monkeypatch.setattr(visualizer, name, call)
    return calls


@pytest.mark.parametrize("num_envs", [1, 3])
def test_there_is_a_frame_for_each_environment(make_drawing_env, num_envs):
    env = make_drawing_env(num_envs)
    env.reset(seed=0)
    frames = env.render()
    assert isinstance(frames, tuple) and len(frames) == num_envs
    for frame in frames:
        assert (type(frame), frame.shape, frame.dtype) == (np.ndarray, (HEIGHT, WIDTH, 3), np.uint8)
        assert frame.flags.c_contiguous
        assert frame.std() > 5  # something is to be seen


def test_each_frame_shows_its_own_environment_as_it_is_now(make_drawing_env):
    env = make_drawing_env(2)
    env.reset(seed=0)
    before = env.render()
    env.task.robot.set_qpos(torch.tensor([[0.0, 0.0], [1.0, 0.0]]))
    after = env.render()
    cart = [_blue_columns(frame) for frame in after]
    assert abs(cart[0].mean() - WIDTH / 2) < 4
    assert cart[1].mean() > cart[0].mean() + 10  # one metre to the right
    assert not (before[1] == after[1]).all()


def _blue_columns(frame: np.ndarray) -> np.ndarray:
    """Columns of the picture in which the cart is, which is the only blue thing."""
    red, blue = frame[..., 0].astype(int), frame[..., 2].astype(int)
    return np.nonzero((blue > red + 25) & (blue < 200))[1]


@pytest.mark.parametrize("chosen", [[1], [2, 0], np.array([0, 1])], ids=str)
def test_environments_that_are_not_chosen_are_black(make_drawing_env, chosen):
    env = make_drawing_env(3, render_envs=chosen)
    env.reset(seed=0)
    env.task.robot.set_qpos(torch.tensor([[-1.0, 0.0], [0.0, 0.0], [1.0, 0.0]]))
    frames = env.render()
    assert [bool(frame.any()) for frame in frames] == [index in chosen for index in range(3)]
    assert {frame.shape for frame in frames} == {(HEIGHT, WIDTH, 3)}
    columns = {index: _blue_columns(frames[index]).mean() for index in chosen}
    assert all(abs(columns[index] - WIDTH / 2 - 25 * (index - 1)) < 12 for index in chosen)


def test_drawing_leaves_the_simulation_as_it_is(make_drawing_env, make_env):
    drawn, plain = make_drawing_env(3), make_env(num_envs=3)
    action = torch.full((3, 1), 0.3)
    results = []
    for env in (drawn, plain):
        env.reset(seed=0)
        observed = []
        for _ in range(5):
            observed.append(env.step(action)[0])
            env.render()
        results.append(torch.stack(observed))
    torch.testing.assert_close(*results, rtol=0, atol=0)


def test_gymnasiums_recorder_takes_the_frames(make_drawing_env, tmp_path):
    env = make_drawing_env(2, autoreset_mode="NextStep")
    recorder = RecordVideo(env, str(tmp_path / "videos"), episode_trigger=lambda episode: episode == 0, video_length=3)
    recorder.reset(seed=0)
    for _ in range(4):
        recorder.step(torch.zeros(2, 1))
    assert [path.suffix for path in (tmp_path / "videos").iterdir()] == [".mp4"]


def test_without_a_render_mode_the_engines_visualizer_is_never_built_nor_called(make_env, visualizer_calls):
    env = make_env(fresh=True, max_episode_steps=2)
    env.reset(seed=0)
    for _ in range(4):
        env.step(torch.zeros(3, 1))
    env.reset(options={"reset_mask": torch.tensor([True, False, False])})
    assert env.render() is None
    assert visualizer_calls == []
    assert not env.scene.visualizer.is_built


def test_with_a_render_mode_nothing_is_drawn_until_a_frame_is_asked_for(make_drawing_env, visualizer_calls):
    env = make_drawing_env(2, max_episode_steps=50)
    env.reset(seed=0)
    visualizer_calls.clear()
    for _ in range(4):
        env.step(torch.zeros(2, 1))
    assert visualizer_calls == []
    env.render()
    assert "update_visual_states" in visualizer_calls or "update" in visualizer_calls


def test_a_tasks_own_camera_sees_without_a_render_mode(make_drawing_env):
    env = make_drawing_env(1, OwnCamera(), render_mode=None)
    env.reset(seed=0)
    assert env.render() is None
    assert np.asarray(env.task.eye.render(rgb=True, force_render=True)[0]).std() > 5
