"""Pixels as observations: each environment's own, as it is now, in the contract of every environment."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

import genesis_vec
from genesis_vec.errors import RenderingUnavailableError
from genesis_vec.tasks.cart_pole import CartPoleTask

KINDS = {"rgb": (torch.uint8, (48, 64, 3)), "depth": (torch.float32, (48, 64, 1))}


@pytest.fixture
def make_seeing(make_env):
    def make(num_envs: int, observation: str = "rgb", **kwargs):
        try:
            return make_env(CartPoleTask(), num_envs, observation=observation, image_size=(48, 64), **kwargs)
        except RenderingUnavailableError as error:
            pytest.skip(f"this machine cannot draw: {error}")

    return make


@pytest.mark.parametrize("kind", KINDS)
def test_observations_are_each_environments_pixels_as_they_are_now(make_seeing, kind):
    env = make_seeing(3, kind)
    dtype, shape = KINDS[kind]
    assert env.single_observation_space.shape == shape
    obs, _ = env.reset(seed=0)
    assert (obs.dtype, tuple(obs.shape)) == (dtype, (3, *shape))
    env.task.robot.set_qpos(torch.tensor([[-1.0, 0.0], [0.0, 0.0], [1.0, 0.0]]))
    before = obs.clone()
    moved = env.step(torch.zeros(3, 1))[0]
    torch.testing.assert_close(obs, before, rtol=0, atol=0)  # what was handed out stays
    background = moved.double().median(dim=0).values  # what two of three agree on
    differs = (moved.double() != background).any(dim=-1).any(dim=1)  # columns with something of its own
    columns = [float(row.nonzero().float().mean()) for row in differs]
    assert columns[0] < columns[1] - 5 < columns[2] - 10
    if kind == "depth":
        assert isinstance(env.single_observation_space, spaces.Box)
        high = float(env.single_observation_space.high.max())
        assert ((moved > 0) & (moved <= high)).all()
        # The camera is 4 m in front of the cart, 0.2 m above it.
        nearest = moved.amin(dim=(1, 2, 3))
        assert ((nearest > 3.0) & (nearest < 4.5)).all(), nearest


def test_pictures_of_any_width_are_whole(make_env):
    pictures = {}
    for width in (64, 62, 61):
        try:
            env = make_env(CartPoleTask(), 3, observation="rgb", image_size=np.array([37, width]))
        except RenderingUnavailableError as error:
            pytest.skip(f"this machine cannot draw: {error}")
        pictures[width] = env.reset(seed=0)[0].float()
        env.close()
    # One column fewer on either side. Rows that are read with padding between them would be askew, and the last ones
    # written past their end.
    torch.testing.assert_close(pictures[62], pictures[64][:, :, 1:-1], rtol=0, atol=2)
    # Half a column fewer shows the same between two columns.
    between = (pictures[62][:, :, 1:] + pictures[62][:, :, :-1]) / 2
    assert (pictures[61] - between).abs().mean() < 2.0


class BlueSky(CartPoleTask):
    def scene_options(self):
        import genesis as gs

        look = gs.options.VisOptions(background_color=(0.0, 0.0, 1.0), plane_reflection=False)
        return {**super().scene_options(), "vis_options": look}


def test_a_task_s_own_look_is_kept_and_environments_are_drawn_apart_all_the_same(make_env):
    try:
        env = make_env(BlueSky(), 2, observation="rgb", image_size=(48, 64))
    except RenderingUnavailableError as error:
        pytest.skip(f"this machine cannot draw: {error}")
    env.reset(seed=0)
    env.task.robot.set_qpos(torch.tensor([[-1.0, 0.0], [1.0, 0.0]]))
    obs = env.step(torch.zeros(2, 1))[0]
    assert (obs[0] != obs[1]).any()
    assert (obs[:, 0, 0] == torch.tensor([0, 0, 255], dtype=torch.uint8)).all()


def test_where_an_episode_starts_in_the_same_step_both_ends_are_seen(make_seeing):
    env = make_seeing(2, max_episode_steps=3)
    first, _ = env.reset(seed=0)
    for _ in range(2):
        last = env.step(torch.ones(2, 1))[0]
    obs, *_, info = env.step(torch.ones(2, 1))
    assert info["_final_obs"].all()
    assert (info["final_obs"] != obs).any() and (info["final_obs"] != last).any()
    # The new episode begins near the middle, as the first did, and not where the last one ended.
    assert (obs.double() - first.double()).abs().mean() < (info["final_obs"].double() - first.double()).abs().mean()


@pytest.mark.parametrize("mode", list(AutoresetMode), ids=lambda mode: mode.name)
def test_it_keeps_the_contract(mode):
    try:
        env = gymnasium.make_vec(
            "genesis_vec:GenesisCartPole-v0", num_envs=2, device="cpu", observation="rgb", image_size=(16, 16),
            autoreset_mode=mode, max_episode_steps=10,
        )  # fmt: skip
    except RenderingUnavailableError as error:
        pytest.skip(f"this machine cannot draw: {error}")
    genesis_vec.check_vector_env(env, close=True)


def test_pixels_do_not_change_the_simulation_and_frames_come_from_the_same_camera(make_seeing, make_env):
    seeing, plain = make_seeing(3, render_mode="rgb_array", render_envs=[1]), make_env(CartPoleTask(), 3)
    for env in (seeing, plain):
        env.reset(seed=3)
        for _ in range(5):
            result = env.step(torch.full((3, 1), 0.5))
    torch.testing.assert_close(
        torch.as_tensor(seeing.task.observe()), torch.as_tensor(plain.task.observe()), rtol=0, atol=0
    )
    frames = seeing.render()
    assert frames is not None
    assert not frames[0].any() and not frames[2].any()
    seen = seeing.reset(options={"reset_mask": torch.zeros(3, dtype=torch.bool)})[0]
    np.testing.assert_array_equal(frames[1], seen[1].numpy())
    assert result[1].shape == (3,)


def test_workers_see_what_one_scene_sees():
    made = []
    try:
        for where in ({"device": "cpu"}, {"devices": "cpu:2"}):
            env = gymnasium.make_vec(
                "genesis_vec:GenesisCartPole-v0", num_envs=4, observation="rgb", image_size=(32, 32), **where
            )
            made.append([env.reset(seed=0)[0], *(env.step(torch.full((4, 1), 0.4))[0] for _ in range(3))])
            env.close()
    except RenderingUnavailableError as error:
        pytest.skip(f"this machine cannot draw: {error}")
    for one, other in zip(*made, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"observation": "pixels"}, "observation='pixels': use one of state, rgb, depth"),
        ({"observation": "rgb", "image_size": (3,)}, r"image_size=\(3,\): give \(height, width\)"),
        ({"observation": "rgb", "image_size": (0, 3)}, "image_size must be an integer of at least 1"),
        ({"observation": "rgb", "randomization": {"observation_noise": 0.1}}, "observation_noise is for"),
    ],
)
def test_bad_settings_are_refused(make_env, kwargs, message):
    with pytest.raises(ValueError, match=message):
        make_env(CartPoleTask(), 2, **kwargs)
