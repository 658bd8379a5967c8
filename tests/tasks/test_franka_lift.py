"""GenesisFrankaLift-v0: the observation against the engine's getters, rewards by hand, and a script that lifts."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
import torch

from genesis_vec.checks import check_vector_env
from genesis_vec.registry import SHIPPED
from genesis_vec.streams import EnvStreams
from genesis_vec.tasks.franka_lift import FrankaLiftTask
from genesis_vec.tasks.rotations import pointing_matrix, rotated
from tests.wrappers.support import ALL_MODES

PARTS = (9, 9, 3, 4, 3, 4, 3, 3, 3, 5)
Q, VELOCITY, GRIP, HAND_QUATERNION, TO_CUBE, CUBE_QUATERNION, CUBE_VELOCITY, CUBE_TURN, TO_GOAL, LAST_ACTION = range(10)
CPU = torch.device("cpu")


def split(obs: torch.Tensor) -> tuple[torch.Tensor, ...]:
    assert obs.shape[1] == sum(PARTS)
    return obs.split(PARTS, dim=1)


def grip_position(env: Any) -> torch.Tensor:
    """0.103 m ahead of the hand's origin, by the engine's own matrix of the hand."""
    from genesis.utils.geom import quat_to_R

    hand = env.task.robot.get_link("hand")
    return hand.get_pos() + 0.103 * quat_to_R(hand.get_quat())[:, :, 2]


def heading(quaternion: torch.Tensor) -> torch.Tensor:
    """Angle about the vertical of a body's y axis, along which the hand's fingers slide."""
    axis = rotated(quaternion, pointing_matrix((0.0, 1.0, 0.0), CPU))
    return torch.atan2(axis[:, 1], axis[:, 0])


def scripted_action(obs: torch.Tensor) -> torch.Tensor:
    """Over the cube, turned as it is; down; close; to the goal."""
    parts = split(obs)
    to_cube = parts[TO_CUBE]
    turn = heading(parts[CUBE_QUATERNION]) - heading(parts[HAND_QUATERNION])
    turn = torch.remainder(turn + math.pi / 4, math.pi / 2) - math.pi / 4
    aligned = (to_cube[:, :2].norm(dim=1) < 0.01) & (turn.abs() < 0.1)
    there = to_cube.norm(dim=1) < 0.012
    holds = there & (parts[Q][:, 7:].sum(dim=1) < 0.045)
    way = to_cube + torch.tensor([0.0, 0.0, 0.08]) * ~aligned[:, None]
    way = torch.where(holds[:, None], parts[TO_GOAL], torch.where(there[:, None], to_cube, way))
    gripper = torch.where(there, -1.0, 1.0)
    return torch.cat([way * 20, turn[:, None] * 3, gripper[:, None]], dim=1).clamp(-1, 1)


def put_cube(env: Any, position: torch.Tensor) -> None:
    env.task.cube.set_qpos(torch.cat([position, torch.tensor([[1.0, 0.0, 0.0, 0.0]] * len(position))], dim=1))


# ------------------------------------------------------------------------------------------------ the observation


def test_the_observation_is_what_the_engine_s_getters_say(make_env):
    env = make_env(FrankaLiftTask())
    env.reset(seed=0)
    actions = torch.rand(6, 3, 5, generator=torch.Generator().manual_seed(0)) * 2 - 1
    put_cube(env, torch.tensor([[0.5, 0.3, 0.4]] * 3))
    env.task.cube.set_dofs_velocity(torch.tensor([[0.1, 0.2, 0.3, 1.0, 2.0, 3.0]] * 3))
    for action in actions:
        obs, *_ = env.step(action)
    robot, cube, parts = env.task.robot, env.task.cube, split(obs)
    for index, expected in (
        (Q, robot.get_qpos()),
        (VELOCITY, robot.get_dofs_velocity()),
        (GRIP, grip_position(env)),
        (HAND_QUATERNION, robot.get_link("hand").get_quat()),
        (TO_CUBE, cube.get_pos() - grip_position(env)),
        (CUBE_QUATERNION, cube.get_quat()),
        (CUBE_VELOCITY, cube.get_dofs_velocity()[:, :3]),
        (CUBE_TURN, cube.get_dofs_velocity()[:, 3:]),
        (TO_GOAL, env.task.goal - cube.get_pos()),
        (LAST_ACTION, actions[-1]),
    ):
        torch.testing.assert_close(parts[index], expected, rtol=0, atol=1e-5)
    assert parts[CUBE_VELOCITY].abs().min() > 0.05 and parts[CUBE_TURN].abs().min() > 0.5


def test_the_grip_is_midway_between_the_fingers(make_env):
    """The pads' middles are 0.0446 m ahead of the fingers' origins, by the model's file."""
    from genesis.utils.geom import quat_to_R

    env = make_env(FrankaLiftTask())
    parts = split(env.reset(seed=0)[0])
    robot = env.task.robot
    fingers = (robot.get_link("left_finger").get_pos() + robot.get_link("right_finger").get_pos()) / 2
    ahead = quat_to_R(robot.get_link("hand").get_quat())[:, :, 2]
    torch.testing.assert_close(parts[GRIP], fingers + 0.0446 * ahead, rtol=0, atol=1e-4)


# ------------------------------------------------------------------------------------------------- draws and streams


def test_goals_cubes_and_starts_are_the_streams_draws(make_env):
    task = FrankaLiftTask(spread=0.12, goal_low=(0.45, -0.1, 0.2), goal_high=(0.5, 0.1, 0.3))
    env = make_env(task, 32)
    streams = EnvStreams(32, env.device)
    streams.seed(3)
    for seed in (3, None):
        parts = split(env.reset(seed=seed)[0])
        streams.begin_episode(torch.ones(32, dtype=torch.bool))
        draws = streams.select(None)
        goal = torch.tensor([0.45, -0.1, 0.2]) + torch.tensor([0.05, 0.2, 0.1]) * draws.uniform(3)
        cube = torch.tensor([0.5, 0.0]) + draws.uniform(2, low=-0.12, high=0.12)
        cube = torch.cat([cube, torch.full((32, 1), 0.02)], dim=1)
        yaw = draws.uniform(1, low=-math.pi / 4, high=math.pi / 4)[:, 0]
        torch.testing.assert_close(env.task.goal, goal, rtol=0, atol=1e-6)
        torch.testing.assert_close(parts[TO_GOAL], goal - cube, rtol=0, atol=1e-6)
        torch.testing.assert_close(parts[TO_CUBE] + parts[GRIP], cube, rtol=0, atol=1e-6)
        torch.testing.assert_close(heading(parts[CUBE_QUATERNION]), yaw + math.pi / 2, rtol=0, atol=1e-5)
        noise = draws.uniform(7, low=-0.05, high=0.05)
        torch.testing.assert_close(parts[Q][:, :7], env.task._panda.rest_positions[:7] + noise)
        assert not parts[CUBE_VELOCITY].any() and not parts[VELOCITY].any() and not parts[LAST_ACTION].any()


def test_an_environment_s_episodes_do_not_depend_on_how_many_there_are(make_env):
    """The script is held too: contacts and the damped least squares come out the same in any batch."""
    runs = []
    for num_envs in (2, 5):
        env = make_env(FrankaLiftTask(), num_envs, max_episode_steps=60)
        obs, _ = env.reset(seed=4)
        run = [obs]
        for _ in range(80):
            obs = env.step(scripted_action(obs))[0]
            run.append(obs)
        runs.append(torch.stack(run)[:, :2])
    torch.testing.assert_close(runs[0], runs[1], rtol=0, atol=0)
    to_cube, to_goal = split(runs[0].flatten(0, 1))[TO_CUBE], split(runs[0].flatten(0, 1))[TO_GOAL].reshape(81, 2, 3)
    assert to_cube.norm(dim=1).min() < 0.012
    assert (to_goal[60] != to_goal[0]).all()


def test_a_masked_reset_leaves_the_other_environments_as_they_were(make_env):
    env = make_env(FrankaLiftTask())
    env.reset(seed=0)
    before = split(env.step(torch.full((3, 5), 0.5))[0])
    after = split(env.reset(options={"reset_mask": torch.tensor([False, True, False])})[0])
    for index in (Q, VELOCITY, TO_CUBE, TO_GOAL, LAST_ACTION):
        assert (before[index] == after[index]).all(dim=1).tolist() == [True, False, True]


# --------------------------------------------------------------------------------------------------- grasp and lift


def test_a_script_grasps_the_cube_and_lifts_it_to_the_goal_everywhere(make_env):
    env = make_env(FrankaLiftTask(), 32)
    obs, _ = env.reset(seed=0)
    heights, successes = [], []
    for _ in range(149):
        obs, _, terminated, truncated, info = env.step(scripted_action(obs))
        assert not terminated.any() and not truncated.any()
        heights.append(env.task.cube.get_pos()[:, 2])
        successes.append(info["success"])
    assert not torch.stack(successes[:25]).any()
    assert torch.stack(successes[-30:]).all()
    torch.testing.assert_close(heights[-1], env.task.goal[:, 2], rtol=0, atol=0.01)
    # Held by friction between the fingers, a cube's width apart, not resting on anything.
    contacts = env.task.cube.get_contacts(env.task.robot)
    assert contacts["valid_mask"].any(dim=1).all()
    width = split(obs)[Q][:, 7:].sum(dim=1)
    assert ((width > 0.036) & (width < 0.042)).all()
    # All of "approach", "lift" and "goal", and what the grip's distance leaves of "grasp".
    terms = info["reward_terms"]
    assert (terms["lift"] > 3.9).all() and (terms["goal"] > 7.5).all() and (terms["grasp"] > 0.4).all()


def test_a_cube_that_is_let_go_falls(make_env):
    env = make_env(FrankaLiftTask(), 4)
    obs, _ = env.reset(seed=1)
    for _ in range(90):
        obs, *_, info = env.step(scripted_action(obs))
    assert info["success"].all()
    release = torch.tensor([[0.0, 0.0, 0.0, 0.0, 1.0]] * 4)
    for _ in range(30):
        obs, *_, info = env.step(release)
    assert (env.task.cube.get_pos()[:, 2] < 0.05).all()
    assert not info["success"].any()


def test_without_closing_the_gripper_nothing_is_lifted(make_env):
    env = make_env(FrankaLiftTask(), 4)
    obs, _ = env.reset(seed=1)
    for _ in range(120):
        action = scripted_action(obs)
        action[:, 4] = 1.0
        obs, *_, info = env.step(action)
        assert not info["success"].any()
    assert (env.task.cube.get_pos()[:, 2] < 0.04).all()


@pytest.mark.parametrize("axis", range(3))
def test_an_action_moves_the_grip_along_its_axis_and_the_hand_goes_on_pointing_down(make_env, axis):
    env = make_env(FrankaLiftTask(max_speed=0.2))
    env.reset(seed=0)
    action = torch.zeros(3, 5)
    action[:, axis] = torch.tensor([1.0, -1.0, 0.5])
    grips = []
    for _ in range(25):
        obs, *_ = env.step(action)
        grips.append(split(obs)[GRIP])
    # 0.2 s, once the joints have gathered speed, at 0.2 m/s.
    expected = torch.zeros(3, 3)
    expected[:, axis] = torch.tensor([0.04, -0.04, 0.02])
    torch.testing.assert_close(grips[-1] - grips[-11], expected, rtol=0.05, atol=2e-3)
    axes = rotated(split(obs)[HAND_QUATERNION], pointing_matrix((0.0, 0.0, 1.0), CPU))
    assert (axes[:, 2] < -0.999).all()


def test_the_fourth_action_turns_the_hand_and_the_fifth_opens_the_gripper(make_env):
    env = make_env(FrankaLiftTask())
    start = split(env.reset(seed=0)[0])
    action = torch.tensor([[0.0, 0.0, 0.0, 0.5, -1.0], [0.0, 0.0, 0.0, -0.5, 0.0], [0.0, 0.0, 0.0, 0.0, 1.0]])
    headings = []
    for _ in range(25):
        parts = split(env.step(action)[0])
        headings.append(heading(parts[HAND_QUATERNION]))
    # 0.2 s, once the joint has gathered speed, at 1 rad/s.
    turned = torch.remainder(headings[-1] - headings[-11] + math.pi, 2 * math.pi) - math.pi
    torch.testing.assert_close(turned, torch.tensor([0.2, -0.2, 0.0]), rtol=0.05, atol=1e-3)
    torch.testing.assert_close(parts[Q][:, 7], torch.tensor([0.0, 0.02, 0.04]), rtol=0, atol=2e-3)
    assert (parts[GRIP] - start[GRIP]).norm(dim=1).max() < 0.01


# -------------------------------------------------------------------------------------- rewards, success, termination


def test_each_term_by_hand(make_env):
    """The cube 0.01 m beside the grip, 0.06 m below the goal; the gripper 0.06 m wide; actions of 0.5, then of 0.3."""
    env = make_env(FrankaLiftTask())
    env.reset(seed=0)
    task = env.task
    task.act(torch.full((3, 5), 0.5))
    task.act(torch.full((3, 5), 0.3))
    qpos = task.robot.get_qpos()
    qpos[:, 7:] = 0.03
    task.robot.set_qpos(qpos)
    cube = grip_position(env) + torch.tensor([0.01, 0.0, 0.0])
    put_cube(env, cube)
    task.goal = cube + torch.tensor([0.0, 0.0, 0.06])
    task.observe()
    assert not task.metrics()["success"].any()
    terms = task.reward()
    lifted = (cube[:, 2] - 0.02) / (cube[:, 2] + 0.06 - 0.02)
    expected = {
        "approach": torch.full((3,), 1 - math.tanh(0.1)),
        "grasp": torch.full((3,), 0.5 * math.exp(-0.25)),
        "lift": lifted,
        "goal": lifted * (1 - math.tanh(0.6)),
        "action_rate": torch.full((3,), 5 * 0.2**2),
    }
    assert terms.keys() == expected.keys() == task.reward_weights.keys()
    for name, value in expected.items():
        torch.testing.assert_close(terms[name], value, rtol=1e-3, atol=1e-4)


def test_the_lift_counts_from_the_ground_to_the_goal_s_height(make_env):
    env = make_env(FrankaLiftTask())
    env.reset(seed=0)
    env.task.goal = torch.tensor([[0.5, 0.0, 0.22]] * 3)
    put_cube(env, torch.tensor([[0.7, 0.2, 0.015], [0.7, 0.2, 0.12], [0.7, 0.2, 0.5]]))
    env.task.observe()
    env.task.metrics()
    torch.testing.assert_close(env.task.reward()["lift"], torch.tensor([0.0, 0.5, 1.0]), rtol=0, atol=1e-5)


@pytest.mark.parametrize(("width", "grasp"), [(0.08, 0.0), (0.06, 0.5), (0.04, 1.0), (0.02, 0.5), (0.0, 0.0)])
def test_a_grasp_is_a_gripper_as_wide_as_the_cube_around_it(make_env, width, grasp):
    env = make_env(FrankaLiftTask())
    env.reset(seed=0)
    qpos = env.task.robot.get_qpos()
    qpos[:, 7:] = width / 2
    env.task.robot.set_qpos(qpos)
    put_cube(env, grip_position(env) + torch.tensor([[0.0, 0.0, 0.0], [0.0, 0.02, 0.0], [0.0, 0.0, 0.2]]))
    env.task.observe()
    env.task.metrics()
    expected = torch.tensor([grasp, grasp * math.exp(-1), 0.0])
    torch.testing.assert_close(env.task.reward()["grasp"], expected, rtol=0, atol=1e-3)


def test_success_is_the_cube_within_3_cm_of_the_goal(make_env):
    env = make_env(FrankaLiftTask())
    env.reset(seed=0)
    cube = torch.tensor([[0.55, 0.1, 0.3]] * 3)
    put_cube(env, cube)
    # It falls 3 mm in 0.02 s.
    env.task.goal = cube + torch.tensor([[0.0, 0.0, 0.0], [0.0, 0.028, 0.0], [0.031, 0.0, 0.0]])
    *_, info = env.step(torch.zeros(3, 5))
    assert info["success"].tolist() == [True, True, False]


def test_it_terminates_where_the_cube_leaves_the_workspace(make_env):
    places = [[0.84, 0.0], [0.86, 0.0], [0.5, 0.34], [0.5, -0.36], [0.16, 0.2], [0.5, 0.2]]
    env = make_env(FrankaLiftTask(), len(places))
    env.reset(seed=0)
    put_cube(env, torch.tensor([[*place, 0.02] for place in places]))
    env.task.observe()
    assert env.task.terminated().tolist() == [False, True, False, True, False, False]
    put_cube(env, torch.tensor([[*place, 0.02] for place in places[:-1]] + [[0.5, 0.2, -0.3]]))
    _, reward, terminated, truncated, _ = env.step(torch.zeros(6, 5))
    assert terminated.tolist() == [False, True, False, True, False, True]
    assert not truncated.any() and reward.isfinite().all()


# ------------------------------------------------------------------------------------------- contract and arguments


def test_the_id_makes_it_with_150_steps():
    assert SHIPPED["GenesisFrankaLift-v0"] == ("genesis_vec.tasks.franka_lift:FrankaLiftTask", 150)
    assert FrankaLiftTask.max_episode_steps == 150


@ALL_MODES
def test_it_is_a_vector_environment_by_contract(make_env, mode):
    report = check_vector_env(make_env(FrankaLiftTask(), 3, autoreset_mode=mode, max_episode_steps=9))
    assert report.num_episodes >= 3


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"max_speed": 0.0}, "max_speed=0.0: use a number in (0, 1], in m/s"),
        ({"max_speed": 2}, "max_speed=2: use a number in (0, 1], in m/s"),
        ({"spread": -0.1}, "spread=-0.1: use a number from 0 to 0.15, in metres"),
        ({"spread": math.nan}, "spread=nan: use a number from 0 to 0.15, in metres"),
        ({"goal_low": (0.4, 0.0, 0.05)}, "goal_low=(0.4, 0.0, 0.05): use z of at least 0.1: the cube is to be lifted"),
        ({"goal_high": (0.3, 0.2, 0.4)}, "use x, y and z of at most those of goal_high=(0.3, 0.2, 0.4)"),
        ({"goal_high": [0.6, 0.2]}, "goal_high=[0.6, 0.2]: use three finite numbers (x, y, z), in metres"),
    ],
    ids=lambda value: "" if isinstance(value, str) else str(value),
)
def test_arguments_out_of_range_are_refused_by_name_with_what_is_accepted(kwargs, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        FrankaLiftTask(**kwargs)
