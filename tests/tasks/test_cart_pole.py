"""GenesisCartPole-v0 against the equations of Barto, Sutton and Anderson (1983), and its limits by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from genesis_vec.streams import EnvStreams
from genesis_vec.tasks.cart_pole import CartPoleTask

CART_MASS, POLE_MASS, HALF_LENGTH, GRAVITY = 1.0, 0.1, 0.5, 9.81


def accelerations(state: np.ndarray, force: float) -> tuple[float, float]:
    """Of the cart and of the pole's angle, by the paper's appendix, without friction."""
    _, angle, _, rate = state
    total = CART_MASS + POLE_MASS
    push = (force + POLE_MASS * HALF_LENGTH * rate**2 * math.sin(angle)) / total
    angular = (GRAVITY * math.sin(angle) - math.cos(angle) * push) / (
        HALF_LENGTH * (4 / 3 - POLE_MASS * math.cos(angle) ** 2 / total)
    )
    return push - POLE_MASS * HALF_LENGTH * angular * math.cos(angle) / total, angular


def set_state(env, rows: list[list[float]]) -> None:
    """Positions and velocities in the order of the observation."""
    state = torch.tensor(rows)
    env.task.robot.set_qpos(state[:, :2], zero_velocity=False)
    env.task.robot.set_dofs_velocity(state[:, 2:])


def test_initial_states_are_the_environments_streams_first_draws_within_five_hundredths(make_env):
    env = make_env(num_envs=64, first_env_index=3)
    streams = EnvStreams(64, env.device, 3)
    streams.seed(8)
    starts = [env.reset(seed=8)[0], env.reset()[0]]
    for start in starts:
        streams.begin_episode(torch.ones(64, dtype=torch.bool))
        expected = streams.select(None).uniform(4, low=-0.05, high=0.05)
        torch.testing.assert_close(start, expected, rtol=0, atol=0)
    assert torch.cat(starts).abs().max() < 0.05
    assert torch.cat(starts).amin(dim=0).max() < -0.04 and torch.cat(starts).amax(dim=0).min() > 0.04


def test_a_push_from_rest_moves_cart_and_pole_as_the_equations_say(make_env):
    """10 N on an upright pole at rest: 9.756 m/s² and -14.63 rad/s², so 0.1951 m/s and -0.2927 rad/s after 0.02 s."""
    assert accelerations(np.zeros(4), 10.0) == pytest.approx((9.756, -14.634), rel=1e-4)
    env = make_env()
    env.reset(seed=0)
    set_state(env, [[0.0] * 4] * 3)
    obs = env.step(torch.tensor([[1.0], [-1.0], [0.0]]))[0].numpy()
    velocities = [[0.1951, -0.2927], [-0.1951, 0.2927], [0.0, 0.0]]
    # The pole is a capsule, whose round ends add two hundredths to its moment of inertia.
    np.testing.assert_allclose(obs[:, 2:], velocities, rtol=0.025, atol=1e-6)
    np.testing.assert_allclose(obs[:, :2], obs[:, 2:] * 0.02, rtol=1e-3, atol=1e-6)


def test_a_swing_follows_the_equations_integrated_finely(make_env):
    env = make_env()
    env.reset(seed=0)
    start = [0.1, 0.02, -0.2, 0.1]
    set_state(env, [start] * 3)
    forces = np.array([3.0, -3.0, 0.0])
    for _ in range(10):
        obs, _, terminated, *_ = env.step(torch.tensor(forces[:, None] / 10.0))
        assert not terminated.any()
    expected = []
    for force in forces:
        state = np.array(start)
        for _ in range(10 * 100):
            state[2:] += np.array(accelerations(state, force)) * 0.02 / 100
            state[:2] += state[2:] * 0.02 / 100
        expected.append(state)
    np.testing.assert_allclose(obs.numpy(), expected, rtol=0.03, atol=0.01)


def test_the_force_of_a_full_action_is_an_argument(make_env):
    pushes = []
    for task in (CartPoleTask(), CartPoleTask(max_force=20.0)):
        env = make_env(task)
        env.reset(seed=0)
        set_state(env, [[0.0] * 4] * 3)
        pushes.append(env.step(torch.full((3, 1), 0.5))[0][0, 2].item())
    assert pushes[1] == pytest.approx(2 * pushes[0], rel=1e-4)


@pytest.mark.parametrize("max_force", [0, -1.0, math.nan])
def test_a_force_that_is_not_positive_is_refused(max_force):
    with pytest.raises(ValueError, match=f"max_force must be positive, got {max_force}"):
        CartPoleTask(max_force=max_force)


@pytest.mark.parametrize(
    ("inside", "outside"),
    [
        ([2.39, 0.0], [2.41, 0.0]),
        ([-2.39, 0.0], [-2.41, 0.0]),
        ([0.0, math.radians(11.9)], [0.0, math.radians(12.1)]),
        ([0.0, -math.radians(11.9)], [0.0, -math.radians(12.1)]),
    ],
    ids=["right", "left", "forward", "backward"],
)
def test_it_terminates_beyond_2_4_metres_and_12_degrees(make_env, inside, outside):
    env = make_env(num_envs=2)
    env.reset(seed=0)
    set_state(env, [[*inside, 0.0, 0.0], [*outside, 0.0, 0.0]])
    _, reward, terminated, truncated, info = env.step(torch.zeros(2, 1))
    assert terminated.tolist() == [False, True]
    assert truncated.tolist() == [False, False]
    assert reward.tolist() == [1.0, 1.0]
    np.testing.assert_allclose(info["final_obs"][:, :2], [inside, outside], atol=2e-3)


def test_without_a_hand_on_it_the_pole_falls_within_three_seconds(make_env):
    env = make_env(num_envs=16)
    env.reset(seed=0)
    fallen = torch.zeros(16, dtype=torch.bool)
    for _ in range(150):
        _, _, terminated, truncated, info = env.step(torch.zeros(16, 1))
        assert (info["final_obs"][terminated, 1].abs() > 0.2094).all()
        fallen |= terminated
        assert not truncated.any()
    assert fallen.all()


def test_a_simple_controller_earns_the_full_500(make_env):
    env = make_env(num_envs=4)
    obs, _ = env.reset(seed=0)
    for _ in range(500):
        action = (obs @ torch.tensor([0.1, 3.0, 0.2, 0.5]))[:, None]
        obs, _, terminated, truncated, info = env.step(action)
        assert not terminated.any()
    assert truncated.all()
    assert info["episode"]["r"].tolist() == [500.0] * 4
    assert info["episode"]["l"].tolist() == [500] * 4
