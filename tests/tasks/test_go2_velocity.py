"""GenesisGo2Velocity-v0: observations against the engine's getters, rewards, latency, commands and limits by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from genesis.utils.geom import inv_quat, quat_to_xyz, transform_by_quat, xyz_to_quat

from genesis_vec.checks import check_vector_env
from genesis_vec.streams import EnvStreams
from genesis_vec.tasks.go2_velocity import DEFAULT_POSE, Go2VelocityTask
from tests.tasks.support import assert_rows_do_not_depend_on_how_many_there_are
from tests.wrappers.support import ALL_MODES

RANGES = {"forward_speed": (-1.0, 1.5), "sideways_speed": (-0.5, 0.5), "turn_rate": (-2.0, -1.0)}
POSE = torch.tensor(list(DEFAULT_POSE.values()))


@pytest.fixture
def make_go2(make_env):
    def make(num_envs: int = 3, env_args: dict[str, Any] | None = None, **kwargs: Any) -> Any:
        return make_env(Go2VelocityTask(**{**RANGES, **kwargs}), num_envs, **(env_args or {}))

    return make


def random_actions(num_steps: int, num_envs: int, scale: float = 2.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return scale * torch.randn(num_steps, num_envs, 12, generator=generator)


def joint_indices(env: Any) -> list[int]:
    return [env.task.robot.get_joint(name).dofs_idx_local[0] for name in DEFAULT_POSE]


def read_state(env: Any) -> dict[str, torch.Tensor]:
    """The state by the engine's getters, velocities in the frame of the base."""
    robot, joints = env.task.robot, joint_indices(env)
    back = inv_quat(robot.get_quat())
    return {
        "position": robot.get_pos(),
        "orientation": robot.get_quat(),
        "linear": transform_by_quat(robot.get_vel(), back),
        "angular": transform_by_quat(robot.get_ang(), back),
        "gravity": transform_by_quat(torch.tensor([0.0, 0.0, -1.0]).expand(env.num_envs, 3), back),
        "joints": robot.get_dofs_position(joints),
        "joint_velocity": robot.get_dofs_velocity(joints),
    }


def hold(env: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps states that were set by hand as they are during a step."""
    monkeypatch.setattr(env.scene, "step", lambda **kwargs: None)


def set_state(env: Any, roll: float = 0.0, pitch: float = 0.0, yaw: float = 0.0, **kwargs: Any) -> None:
    """Sets all robots: base orientation (degrees), height (m), velocity (18), joints' offsets from the pose (12)."""
    robot = env.task.robot
    qpos = robot.get_qpos()
    qpos[:, 2] = kwargs.get("height", 0.3)
    qpos[:, 3:7] = xyz_to_quat(torch.tensor([roll, pitch, yaw]), rpy=True, degrees=True)
    robot.set_qpos(qpos)
    robot.set_dofs_position(POSE + kwargs.get("offsets", torch.zeros(12)), joint_indices(env), zero_velocity=False)
    robot.set_dofs_velocity(kwargs.get("velocity", torch.zeros(18)).expand(env.num_envs, 18))


# ------------------------------------------------------------------------------------------------------ the contract


@ALL_MODES
def test_it_keeps_the_whole_contract_also_with_terminations(make_go2, monkeypatch, mode):
    # With actions of this size some fall before the time limit, and some do not.
    env = make_go2(4, {"autoreset_mode": mode, "max_episode_steps": 9}, action_limit=8.0)
    lengths = set()
    step = env.step

    def count(actions: Any) -> Any:
        result = step(actions)
        lengths.update(result[-1]["episode"]["l"].tolist())
        return result

    monkeypatch.setattr(env, "step", count)
    report = check_vector_env(env)
    assert report.not_checked == ()
    assert 9 in lengths and lengths - {0, 9}


def test_rows_do_not_depend_on_how_many_there_are(make_go2):
    few, many = (make_go2(num_envs, {"max_episode_steps": 25}) for num_envs in (2, 5))
    assert_rows_do_not_depend_on_how_many_there_are(few, many, random_actions(60, 5))


# ------------------------------------------------------------------------------------------------------- observations


def test_an_episode_starts_in_the_default_pose_at_rest(make_go2):
    env = make_go2()
    for _ in range(3):
        obs, _ = env.reset(seed=0)
        state = read_state(env)
        assert state["position"].tolist() == [[0.0, 0.0, pytest.approx(0.42)]] * 3
        torch.testing.assert_close(state["joints"], POSE.expand(3, 12))
        expected = torch.zeros(3, 45)
        expected[:, 5] = -1.0
        expected[:, 6:9] = obs[:, 6:9]
        torch.testing.assert_close(obs, expected)
        for actions in random_actions(5, 3):
            env.step(actions)


def test_the_observation_is_what_the_engines_getters_say(make_go2):
    env = make_go2(forward_speed=(0.5, 0.5), sideways_speed=(-0.2, -0.2), turn_rate=(1.0, 1.0))
    env.reset(seed=0)
    for actions in random_actions(12, 3, scale=1.0):
        obs, *_, info = env.step(actions)
        assert not info["_episode"].any()
        state = read_state(env)
        torch.testing.assert_close(obs[:, 0:3], state["angular"] * 0.25, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(obs[:, 3:6], state["gravity"], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(obs[:, 6:9], torch.tensor([1.0, -0.4, 0.25]).expand(3, 3))
        torch.testing.assert_close(obs[:, 9:21], state["joints"] - POSE)
        torch.testing.assert_close(obs[:, 21:33], state["joint_velocity"] * 0.05)
        torch.testing.assert_close(obs[:, 33:45], actions)
    assert state["angular"].abs().max() > 0.5 and state["gravity"][:, :2].abs().max() > 0.02


def test_joints_are_in_the_order_of_the_default_pose(make_go2, monkeypatch):
    env = make_go2()
    env.reset(seed=0)
    hold(env, monkeypatch)
    set_state(env, offsets=torch.arange(12) * 0.01)
    obs, *_ = env.step(torch.zeros(3, 12))
    torch.testing.assert_close(obs[:, 9:21], (torch.arange(12) * 0.01).expand(3, 12))
    by_name = {joint.name: joint.dofs_idx_local[0] for joint in env.task.robot.joints}
    positions = env.task.robot.get_dofs_position()
    assert positions[0, by_name["FR_calf_joint"]].item() == pytest.approx(-1.5 + 0.02)
    assert positions[0, by_name["RL_thigh_joint"]].item() == pytest.approx(1.0 + 0.10)


# ------------------------------------------------------------------------------------------------------------ actions


def test_gains_and_solver_are_those_of_the_example(make_go2):
    env = make_go2()
    joints = joint_indices(env)
    assert env.task.robot.get_dofs_kp(joints).tolist() == [20.0] * 12
    assert env.task.robot.get_dofs_kv(joints).tolist() == [0.5] * 12
    assert (env.scene.sim.dt, env.scene.sim.substeps) == (0.02, 2)
    assert (env.max_episode_steps, env.single_action_space.high.tolist()) == (1000, [100.0] * 12)


def test_an_action_is_executed_one_step_after_it_is_given(make_go2, monkeypatch):
    env = make_go2()
    env.reset(seed=0)
    targets = []
    control = env.task.robot.control_dofs_position

    def record(position: torch.Tensor, dofs: range) -> None:
        row = torch.full((3, 18), torch.nan)
        row[:, dofs.start : dofs.stop] = position
        targets.append(row[:, joint_indices(env)])
        control(position, dofs)

    monkeypatch.setattr(env.task.robot, "control_dofs_position", record)
    actions = 0.01 * torch.arange(12) + torch.arange(1, 4)[:, None, None] * torch.ones(3, 3, 1)
    for action in actions:
        env.step(action)
    env.reset()
    env.step(actions[0])
    expected = [POSE.expand(3, 12), POSE + 0.25 * actions[0], POSE + 0.25 * actions[1], POSE.expand(3, 12)]
    torch.testing.assert_close(torch.stack(targets), torch.stack(expected))


def test_a_robot_feels_its_first_action_in_the_second_step(make_go2):
    env = make_go2(2)
    env.reset(seed=0)
    push = torch.zeros(2, 12)
    push[1] = 1.0
    first = env.step(push)[0]
    torch.testing.assert_close(first[0, :33], first[1, :33].where(torch.arange(33) // 3 != 2, first[0, :33]))
    second = env.step(push)[0]
    assert (second[0, 21:33] - second[1, 21:33]).abs().min() > 0.01


# ------------------------------------------------------------------------------------------------------------ rewards


def test_each_reward_term_by_hand(make_go2, monkeypatch):
    """Heading left (yaw 90°), so that the world's y is forward, and the world's -x is to the left."""
    env = make_go2(forward_speed=(0.5, 0.5), sideways_speed=(0.1, 0.1), turn_rate=(0.3, 0.3))
    env.reset(seed=0)
    hold(env, monkeypatch)
    velocity = torch.zeros(18)
    velocity[:3] = torch.tensor([-0.2, 0.9, 0.4])  # in the base's frame: 0.9 forward, 0.2 to the left, 0.4 up
    velocity[5] = 0.7
    offsets = torch.tensor([0.1, -0.2, 0.3] + [0.0] * 8 + [-0.05])
    set_state(env, yaw=90.0, height=0.36, velocity=velocity, offsets=offsets)
    env.step(torch.full((3, 12), 0.5))
    actions = torch.full((3, 12), 0.5)
    actions[:, 0] = 1.5  # one component changes by 1, and one by 2
    actions[:, 7] = -1.5
    _, reward, *_, info = env.step(actions)
    expected = {
        "tracking_lin_vel": 0.02 * math.exp(-(0.4**2 + 0.1**2) / 0.25),
        "tracking_ang_vel": 0.02 * 0.2 * math.exp(-(0.4**2) / 0.25),
        "lin_vel_z": 0.02 * -1.0 * 0.4**2,
        "base_height": 0.02 * -50.0 * 0.06**2,
        "action_rate": 0.02 * -0.005 * 5.0,
        "similar_to_default": 0.02 * -0.1 * 0.65,
    }
    assert info["reward_terms"].keys() == expected.keys()
    for name, value in expected.items():
        assert info["reward_terms"][name].tolist() == pytest.approx([value] * 3, rel=1e-4), name
    assert reward.tolist() == pytest.approx([sum(expected.values())] * 3, rel=1e-4)


def test_standing_still_as_commanded_earns_the_whole_tracking_reward(make_go2, monkeypatch):
    env = make_go2(forward_speed=(0, 0), sideways_speed=(0, 0), turn_rate=(0, 0))
    env.reset(seed=0)
    hold(env, monkeypatch)
    set_state(env, height=0.3)
    _, reward, *_ = env.step(torch.zeros(3, 12))
    assert reward.tolist() == pytest.approx([0.024] * 3)


# ------------------------------------------------------------------------------------------------------- terminations


@pytest.mark.parametrize(
    ("angles", "falls"),
    [
        ({"roll": 9.9}, False),
        ({"roll": -9.9}, False),
        ({"roll": 10.1}, True),
        ({"roll": -10.1}, True),
        ({"pitch": 9.9}, False),
        ({"pitch": -9.9}, False),
        ({"pitch": 10.1}, True),
        ({"pitch": -10.1}, True),
        ({"roll": 9.9, "pitch": 9.9, "yaw": 120.0}, False),
        ({"roll": 10.1, "pitch": 9.9, "yaw": 120.0}, True),
        ({"roll": 90.0}, True),
        ({"roll": 180.0}, True),
        ({"roll": -179.9, "yaw": 30.0}, True),
        ({"pitch": 90.0}, True),
        ({"roll": 179.0, "pitch": 9.0}, True),
    ],
)
def test_it_terminates_beyond_ten_degrees_of_roll_or_pitch(make_go2, monkeypatch, angles, falls):
    env = make_go2()
    env.reset(seed=0)
    hold(env, monkeypatch)
    set_state(env, **angles)
    angles_read = quat_to_xyz(env.task.robot.get_quat(), rpy=True, degrees=True)[0, :2].abs()
    assert bool((angles_read > 10.0).any()) == falls
    _, _, terminated, truncated, _ = env.step(torch.zeros(3, 12))
    assert terminated.tolist() == [falls] * 3
    assert truncated.tolist() == [False] * 3


# ----------------------------------------------------------------------------------------------------------- commands


def test_commands_are_the_first_draws_of_the_environments_streams(make_go2):
    env = make_go2(16, {"first_env_index": 3})
    streams = EnvStreams(16, env.device, 3)
    streams.seed(8)
    low, high = torch.tensor(list(RANGES.values())).unbind(dim=1)
    for seed in (8, None):
        obs, _ = env.reset(seed=seed)
        streams.begin_episode(torch.ones(16, dtype=torch.bool))
        expected = streams.select(None).uniform(5, 3, low=low, high=high)[:, 0]
        commands = obs[:, 6:9] / torch.tensor([2.0, 2.0, 0.25])
        torch.testing.assert_close(commands, expected)
        assert ((commands >= low) & (commands <= high)).all()
        assert (commands.std(dim=0) > 0.2 * (high - low)).all()


def test_a_command_holds_for_200_steps_of_its_own_episode_and_rewards_lag_behind_none(make_go2, monkeypatch):
    env = make_go2(2, {"max_episode_steps": None})
    obs, _ = env.reset(seed=1)
    hold(env, monkeypatch)
    zero, shown, tracked = torch.zeros(2, 12), [obs[:, 6:9]], []
    for step in range(1, 1251):
        obs, *_, info = env.step(zero)
        if step == 50:
            obs, _ = env.reset(options={"reset_mask": torch.tensor([False, True])})
        shown.append(obs[:, 6:9])
        tracked.append(info["reward_terms"]["tracking_lin_vel"] / 0.02)
    shown = torch.stack(shown) / torch.tensor([2.0, 2.0, 0.25])
    changes = (shown[1:] != shown[:-1]).any(dim=2).nonzero() + torch.tensor([1, 0])
    assert [step for step, row in changes.tolist() if row == 0] == [200, 400, 600, 800, 1000, 1200]
    assert [step for step, row in changes.tolist() if row == 1] == [50, 250, 450, 650, 850, 1050, 1250]
    # The sixth is the first again. A robot at rest is rewarded for the command that it was shown before the step.
    torch.testing.assert_close(shown[1000:1200, 0], shown[:200, 0], rtol=0, atol=0)
    expected = torch.exp(-shown[:-1, :, :2].square().sum(dim=2) / 0.25)
    torch.testing.assert_close(torch.stack(tracked), expected, rtol=1e-4, atol=1e-6)


def test_the_state_holds_commands_and_latency(make_go2):
    env = make_go2()
    env.reset(seed=0)
    actions = random_actions(205, 3, scale=0.2)
    for action in actions[:195]:
        env.step(action)
    state = env.state_dict()
    runs = []
    for _ in range(2):
        runs.append([env.step(action)[:4] for action in actions[195:]])
        env.load_state_dict(state)
    commands = torch.stack([result[0][:, 6:9] for result in runs[0]])
    assert (commands[0] != commands[-1]).all(dim=1).any()
    for one, other in zip(*runs, strict=True):
        for expected, value in zip(one, other, strict=True):
            torch.testing.assert_close(value, expected, rtol=0, atol=0)


# ---------------------------------------------------------------------------------------------------------- arguments


@pytest.mark.parametrize("name", ["forward_speed", "sideways_speed", "turn_rate"])
@pytest.mark.parametrize("value", [(1.0, 0.0), (0.0,), (0.0, 1.0, 2.0), 0.5, (0.0, math.nan), (0.0, math.inf), "ab"])
def test_what_is_no_range_is_refused(name, value):
    with pytest.raises(ValueError) as refusal:
        Go2VelocityTask(**{name: value})
    unit = "rad/s" if name == "turn_rate" else "m/s"
    assert str(refusal.value).startswith(f"{name}={value!r}: give two finite numbers ({unit}), the lower one first")


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_a_limit_of_actions_must_be_positive_and_finite(value):
    with pytest.raises(ValueError, match=f"^action_limit={value!r}: give a finite number above 0"):
        Go2VelocityTask(action_limit=value)


def test_self_collision_must_be_a_bool():
    with pytest.raises(ValueError, match=r"^self_collision='no': give True or False$"):
        Go2VelocityTask(self_collision="no")  # type: ignore[arg-type]


def test_arguments_reach_the_engine_and_the_space():
    task = Go2VelocityTask(forward_speed=[0, 1], action_limit=10, self_collision=True)
    rigid = task.scene_options()["rigid_options"]
    assert (rigid.enable_self_collision, rigid.tolerance) == (True, 1e-5)
    assert Go2VelocityTask().scene_options()["rigid_options"].max_collision_pairs == 20
    assert rigid.max_collision_pairs > 20
    assert task.forward_speed == (0.0, 1.0)
    assert task.action_space.high.tolist() == [10.0] * 12
