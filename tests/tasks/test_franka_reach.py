"""GenesisFrankaReach-v0: the observation against the engine's getters, rewards and success by hand, goals in reach."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
import torch

from genesis_vec.checks import check_vector_env
from genesis_vec.registry import SHIPPED
from genesis_vec.streams import EnvStreams
from genesis_vec.tasks.franka import GRIP_OFFSET
from genesis_vec.tasks.franka_reach import FrankaReachTask
from genesis_vec.tasks.rotations import about_axis, angle, multiply, pointing_matrix, rotated, sine_vector
from tests.wrappers.support import ALL_MODES

PARTS = (7, 7, 3, 4, 3, 4, 3, 3, 7)
Q, VELOCITY, HAND, HAND_QUATERNION, GOAL, GOAL_QUATERNION, OFFSET, ROTATION, LAST_ACTION = range(9)


def split(obs: torch.Tensor) -> tuple[torch.Tensor, ...]:
    assert obs.shape[1] == sum(PARTS)
    return obs.split(PARTS, dim=1)


def joint_changes(env: Any, twist: torch.Tensor) -> torch.Tensor:
    """Damped least squares: what the joints must do for the hand to move by a twist (num_envs, 6)."""
    robot = env.task.robot
    jacobian = robot.get_jacobian(robot.get_link("hand"))[:, :, :7]
    square = jacobian @ jacobian.mT + 0.05**2 * torch.eye(6)
    return (jacobian.mT @ torch.linalg.solve(square, twist[:, :, None]))[:, :, 0]


def put_goal_at_hand(task: FrankaReachTask, offset: list[float], turn: float) -> None:
    """Sets all goals to the hand's pose moved by an offset and turned about the world's z axis."""
    hand = task.robot.get_link("hand")
    position = hand.get_pos() + torch.tensor(offset)
    quaternion = multiply(about_axis(torch.full((task.num_envs,), turn), 0, 0, 1), hand.get_quat())
    task.set_goal(position, quaternion)


# ------------------------------------------------------------------------------------------------ the observation


def test_the_observation_is_what_the_engine_s_getters_say(make_env):
    env = make_env(FrankaReachTask())
    env.reset(seed=0)
    actions = torch.rand(4, 3, 7, generator=torch.Generator().manual_seed(0)) * 2 - 1
    for action in actions:
        obs, *_ = env.step(action)
    robot, parts = env.task.robot, split(obs)
    hand = robot.get_link("hand")
    goal, goal_quaternion = env.task.goal_position, env.task.goal_quaternion
    for index, expected in (
        (Q, robot.get_qpos()[:, :7]),
        (VELOCITY, robot.get_dofs_velocity()[:, :7]),
        (HAND, hand.get_pos()),
        (HAND_QUATERNION, hand.get_quat()),
        (GOAL, goal),
        (GOAL_QUATERNION, goal_quaternion),
        (OFFSET, goal - hand.get_pos()),
        (LAST_ACTION, actions[-1]),
    ):
        torch.testing.assert_close(parts[index], expected, rtol=0, atol=1e-6)
    assert parts[VELOCITY].abs().min() > 1e-4


def test_the_rotation_to_the_goal_is_small_angle_times_world_axis(make_env):
    env = make_env(FrankaReachTask())
    env.reset(seed=0)
    for turn in (0.5, -0.5, 3.0):
        put_goal_at_hand(env.task, [0.0, 0.0, 0.0], turn)
        expected = torch.tensor([[0.0, 0.0, 2 * math.sin(turn / 2)]] * 3)
        torch.testing.assert_close(split(env.task.observe())[ROTATION], expected, rtol=0, atol=1e-5)


def test_at_the_start_the_arm_is_at_rest_within_the_noise_and_the_hand_points_down(make_env):
    parts = split(make_env(FrankaReachTask(reset_noise=0.0)).reset(seed=0)[0])
    rest = torch.tensor([0.0, -0.25, 0.0, -2.35, 0.0, 2.1, math.pi / 4])
    torch.testing.assert_close(parts[Q], rest.expand(3, -1), rtol=0, atol=1e-6)
    down = torch.tensor([0.0, 1.0, 0.0, 0.0]).expand(3, -1)
    torch.testing.assert_close(parts[HAND_QUATERNION], down, rtol=0, atol=1e-3)
    noisy = split(make_env(FrankaReachTask(), 16).reset(seed=0)[0])
    offset = (noisy[Q] - rest).abs()
    assert 0.08 < offset.max() <= 0.1
    assert not noisy[VELOCITY].any() and not noisy[LAST_ACTION].any()


# ------------------------------------------------------------------------------------------------- goals and streams


def test_goals_and_starts_are_the_streams_draws(make_env):
    task = FrankaReachTask(goal_low=(0.3, -0.2, 0.3), goal_high=(0.5, 0.2, 0.5), goal_tilt=0.4, goal_yaw=1.0)
    env = make_env(task, 32)
    streams = EnvStreams(32, env.device)
    streams.seed(3)
    for seed in (3, None):
        parts = split(env.reset(seed=seed)[0])
        streams.begin_episode(torch.ones(32, dtype=torch.bool))
        draws = streams.select(None)
        low, high = torch.tensor([0.3, -0.2, 0.3]), torch.tensor([0.5, 0.2, 0.5])
        torch.testing.assert_close(parts[GOAL], low + (high - low) * draws.uniform(3), rtol=0, atol=1e-6)
        yaw, tilt, _ = draws.uniform(3, low=-1.0, high=1.0).unbind(dim=1)
        # A tilt turns the hand's z axis away from straight down by its angle, whatever the yaw.
        z_axis = rotated(parts[GOAL_QUATERNION], pointing_matrix((0.0, 0.0, 1.0), env.device))
        torch.testing.assert_close(z_axis[:, 2], -(0.4 * tilt).cos(), rtol=0, atol=1e-5)
        upright = tilt.abs() < 0.1
        x_axis = rotated(parts[GOAL_QUATERNION], pointing_matrix((1.0, 0.0, 0.0), env.device))
        torch.testing.assert_close(
            torch.atan2(x_axis[:, 1], x_axis[:, 0])[upright], yaw[upright], rtol=0, atol=0.4 * 0.1
        )
        noise = draws.uniform(7, low=-0.1, high=0.1)
        torch.testing.assert_close(parts[Q], env.task._panda.rest_positions[:7] + noise)


def test_without_tilt_and_yaw_goals_point_straight_down(make_env):
    parts = split(make_env(FrankaReachTask(goal_tilt=0.0, goal_yaw=0.0)).reset(seed=0)[0])
    turned = multiply(parts[GOAL_QUATERNION], torch.tensor([[0.0, -1.0, 0.0, 0.0]] * 3))
    torch.testing.assert_close(angle(turned), torch.zeros(3), rtol=0, atol=1e-6)


def test_an_environment_s_episodes_do_not_depend_on_how_many_there_are(make_env):
    actions = torch.rand(20, 5, 7, generator=torch.Generator().manual_seed(1)) * 2 - 1
    runs = []
    for num_envs in (2, 5):
        env = make_env(FrankaReachTask(), num_envs, max_episode_steps=8)
        run = [env.reset(seed=4)[0]] + [env.step(action[:num_envs])[0] for action in actions]
        runs.append(torch.stack(run)[:, :2])
    torch.testing.assert_close(runs[0], runs[1], rtol=0, atol=0)
    goals = split(runs[0].flatten(0, 1))[GOAL].reshape(21, 2, 3)
    assert (goals[7] == goals[0]).all() and (goals[8] != goals[7]).all() and (goals[16] != goals[8]).all()


def test_a_masked_reset_leaves_the_other_goals_and_actions_as_they_were(make_env):
    env = make_env(FrankaReachTask())
    env.reset(seed=0)
    before = split(env.step(torch.full((3, 7), 0.5))[0])
    after = split(env.reset(options={"reset_mask": torch.tensor([False, True, False])})[0])
    for index in (GOAL, GOAL_QUATERNION, LAST_ACTION, Q):
        assert (before[index] == after[index]).all(dim=1).tolist() == [True, False, True]
    # What was drawn anew has its own rotation to the goal too.
    expected = sine_vector(multiply(after[GOAL_QUATERNION], after[HAND_QUATERNION] * torch.tensor([1, -1, -1, -1])))
    torch.testing.assert_close(after[ROTATION], expected, rtol=0, atol=1e-5)


# -------------------------------------------------------------------------------------------------- rewards, success


def test_each_term_by_hand(make_env):
    """The goal 0.03 m and 0.04 m away along x and z, so 0.05 m, turned by 0.3 rad; actions of 0.5, then of 0.3."""
    env = make_env(FrankaReachTask())
    env.reset(seed=0)
    env.step(torch.full((3, 7), 0.5))
    env.task.act(torch.full((3, 7), 0.3))
    put_goal_at_hand(env.task, [0.03, 0.0, 0.04], 0.3)
    env.task.observe()
    assert not env.task.metrics()["success"].any()
    terms = env.task.reward()
    expected = {
        "position": 0.05,
        "precision": 1 - math.tanh(1.0),
        "orientation": 0.3,
        "action_rate": 7 * 0.2**2,
    }
    assert terms.keys() == expected.keys() == env.task.reward_weights.keys()
    for name, value in expected.items():
        torch.testing.assert_close(terms[name], torch.full((3,), value), rtol=1e-3, atol=1e-5)
    assert env.task.reward_weights == {"position": -2.0, "precision": 1.0, "orientation": -0.5, "action_rate": -0.01}


@pytest.mark.parametrize(
    ("offset", "turn", "success"),
    [
        ([0.0, 0.0, 0.0], 0.0, True),
        ([0.019, 0.0, 0.0], -0.19, True),
        ([0.0, -0.021, 0.0], 0.0, False),
        ([0.0, 0.0, 0.0], 0.21, False),
    ],
    ids=["there", "nearly", "too far", "turned"],
)
def test_success_is_within_2_cm_and_2_tenths_of_a_radian(make_env, offset, turn, success):
    env = make_env(FrankaReachTask())
    env.reset(seed=0)
    put_goal_at_hand(env.task, offset, turn)
    *_, terminated, _, info = env.step(torch.zeros(3, 7))
    assert info["success"].tolist() == [success] * 3
    assert not terminated.any()


def test_every_goal_can_be_reached_and_held(make_env):
    env = make_env(FrankaReachTask(), 64)
    obs, _ = env.reset(seed=0)
    reached = []
    for _ in range(149):
        parts = split(obs)
        twist = torch.cat([parts[OFFSET], parts[ROTATION]], dim=1)
        obs, reward, _, truncated, info = env.step(joint_changes(env, twist) / 0.1)
        assert not truncated.any()
        reached.append(info["success"])
    assert torch.stack(reached[-50:]).all()
    # At the goal "precision" alone is left, and it is 1.
    torch.testing.assert_close(reward, torch.ones(64), rtol=0, atol=0.01)


def test_no_action_holds_the_arm_where_it_is(make_env):
    env = make_env(FrankaReachTask())
    start = split(env.reset(seed=0)[0])
    for _ in range(100):
        obs, *_ = env.step(torch.zeros(3, 7))
    torch.testing.assert_close(split(obs)[HAND], start[HAND], rtol=0, atol=1e-3)
    fingers = env.task.robot.get_qpos()[:, 7:]
    torch.testing.assert_close(fingers, torch.full((3, 2), 0.04), rtol=0, atol=1e-3)


def test_a_full_action_moves_a_joint_with_nine_times_the_scale(make_env):
    for scale in (0.05, 0.1):
        env = make_env(FrankaReachTask(action_scale=scale))
        env.reset(seed=0)
        action = torch.zeros(3, 7)
        action[:, 0] = torch.tensor([1.0, -1.0, 0.5])
        for _ in range(20):
            obs, *_ = env.step(action)
        expected = torch.tensor([1.0, -1.0, 0.5]) * 9 * scale
        torch.testing.assert_close(split(obs)[VELOCITY][:, 0], expected, rtol=0.03, atol=0)


def test_a_joint_at_its_limit_stays_there(make_env):
    env = make_env(FrankaReachTask(action_scale=0.2))
    env.reset(seed=0)
    action = torch.zeros(3, 7)
    action[:, 6] = 1.0
    for _ in range(149):
        obs, *_ = env.step(action)
    torch.testing.assert_close(split(obs)[Q][:, 6], torch.full((3,), 2.8973), rtol=0, atol=0.02)


# ------------------------------------------------------------------------------------------- contract and arguments


def test_the_id_makes_it_with_150_steps():
    assert SHIPPED["GenesisFrankaReach-v0"] == ("genesis_vec.tasks.franka_reach:FrankaReachTask", 150)
    assert FrankaReachTask.max_episode_steps == 150


@ALL_MODES
def test_it_is_a_vector_environment_by_contract(make_env, mode):
    report = check_vector_env(make_env(FrankaReachTask(), 3, autoreset_mode=mode, max_episode_steps=9))
    assert report.num_episodes >= 3


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"action_scale": 0}, "action_scale=0: use a number in (0, 0.2]"),
        ({"action_scale": math.nan}, "action_scale=nan: use a number in (0, 0.2]"),
        ({"goal_yaw": -0.1}, "goal_yaw=-0.1: use a number from 0 to π"),
        ({"goal_tilt": 2.0}, "goal_tilt=2.0: use a number from 0 to π / 2"),
        ({"reset_noise": 1.0}, "reset_noise=1.0: use a number from 0 to 0.5"),
        ({"goal_low": (0.1, 0.2)}, "goal_low=(0.1, 0.2): use three finite numbers (x, y, z), in metres"),
        ({"goal_high": (0.6, math.inf, 0.5)}, "goal_high=(0.6, inf, 0.5): use three finite numbers"),
        ({"goal_low": (0.7, 0.0, 0.3)}, "goal_low=(0.7, 0.0, 0.3): use x, y and z of at most those of goal_high"),
        ({"goal_low": (0.4, 0.0, 0.0)}, "goal_low=(0.4, 0.0, 0.0): use x, y and z of at most those of goal_high"),
    ],
    ids=lambda value: "" if isinstance(value, str) else str(value),
)
def test_arguments_out_of_range_are_refused_by_name_with_what_is_accepted(kwargs, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        FrankaReachTask(**kwargs)


# ---------------------------------------------------------------------------------------------------------- rotations


def test_rotations_agree_with_one_another_and_with_quarter_turns():
    quarter = torch.tensor([math.pi / 2])
    about_z, about_x = about_axis(quarter, 0, 0, 1), about_axis(quarter, 1, 0, 0)
    cpu = torch.device("cpu")
    x, y, z = (pointing_matrix(axis, cpu) for axis in ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)))
    for q, axis, expected in (
        (about_z, x, [0.0, 1.0, 0.0]),
        (about_z, y, [-1.0, 0.0, 0.0]),
        (about_x, y, [0.0, 0.0, 1.0]),
        # x first: y goes to z, which then stays; z goes to -y, which then goes to x.
        (multiply(about_z, about_x), y, [0.0, 0.0, 1.0]),
        (multiply(about_z, about_x), z, [1.0, 0.0, 0.0]),
    ):
        torch.testing.assert_close(rotated(q, axis), torch.tensor([expected]), rtol=0, atol=1e-6)
    torch.testing.assert_close(angle(-about_z), quarter)
    torch.testing.assert_close(sine_vector(-about_z), torch.tensor([[0.0, 0.0, math.sqrt(2.0)]]))
    half = about_axis(torch.tensor([math.pi]), 0, 1, 0) * torch.tensor([0.0, 1.0, 1.0, 1.0])
    torch.testing.assert_close(sine_vector(half).abs(), torch.tensor([[0.0, 2.0, 0.0]]))
    tip = rotated(about_x, pointing_matrix((0.0, 0.0, GRIP_OFFSET), cpu))
    torch.testing.assert_close(tip, torch.tensor([[0.0, -GRIP_OFFSET, 0.0]]), rtol=0, atol=1e-6)
