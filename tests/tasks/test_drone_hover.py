"""GenesisDroneHover-v0: flight by Newton's law, observations by the engine's getters, rewards and targets by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from genesis.utils.geom import inv_quat, transform_by_quat, xyz_to_quat

from genesis_vec.checks import check_vector_env
from genesis_vec.streams import EnvStreams
from genesis_vec.tasks.drone_hover import HOVER_RPM, DroneHoverTask
from tests.tasks.support import assert_rows_do_not_depend_on_how_many_there_are
from tests.wrappers.support import ALL_MODES, tensors_in

MASS, THRUST = 0.027, 3.16e-10  # kg; N per (revolution per minute)², of the model's file
ZERO = torch.zeros(3, 4)


@pytest.fixture
def make_drones(make_env):
    def make(num_envs: int = 3, env_args: dict[str, Any] | None = None, **kwargs: Any) -> Any:
        return make_env(DroneHoverTask(**kwargs), num_envs, **(env_args or {}))

    return make


def random_actions(num_steps: int, num_envs: int, scale: float = 0.2) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return scale * torch.randn(num_steps, num_envs, 4, generator=generator)


def hold(env: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps the state as it is during a step, but for what `place` sets."""
    monkeypatch.setattr(env.task.robot, "set_propellers_rpm", lambda rpm: None)
    monkeypatch.setattr(env.scene, "step", lambda **kwargs: None)


def moves_to(env: Any, monkeypatch: pytest.MonkeyPatch, positions: Any, **kwargs: Any) -> None:
    """Makes the next step a jump of all drones to positions (num_envs, 3)."""
    hold(env, monkeypatch)
    monkeypatch.setattr(env.scene, "step", lambda **_: place(env, positions, **kwargs))


def place(env: Any, positions: Any, roll: float = 0.0, pitch: float = 0.0, yaw: float = 0.0, **kwargs: Any) -> None:
    """Sets positions (num_envs, 3), and for all alike angles (degrees) and velocity (6; angular in its frame)."""
    quaternion = xyz_to_quat(torch.tensor([roll, pitch, yaw]), rpy=True, degrees=True).expand(env.num_envs, 4)
    env.task.robot.set_qpos(torch.cat([torch.as_tensor(positions), quaternion], dim=1))
    env.task.robot.set_dofs_velocity(kwargs.get("velocity", torch.zeros(6)).expand(env.num_envs, 6))


def targets_of(seed: int, num_envs: int) -> torch.Tensor:
    """All targets of the first episode, (num_envs, 32, 3)."""
    streams = EnvStreams(num_envs, torch.device("cpu"))
    streams.seed(seed)
    streams.begin_episode(torch.ones(num_envs, dtype=torch.bool))
    low, high = torch.tensor([[-1.0, -1.0, 1.0], [1.0, 1.0, 1.0]])
    return streams.select(None).uniform(32, 3, low=low, high=high)


# ------------------------------------------------------------------------------------------------------ the contract


@ALL_MODES
def test_it_keeps_the_whole_contract(make_drones, mode):
    report = check_vector_env(make_drones(4, {"autoreset_mode": mode, "max_episode_steps": 9}))
    assert report.not_checked == ()
    assert report.num_episodes >= 16


def test_rows_do_not_depend_on_how_many_there_are(make_drones):
    few, many = (make_drones(num_envs, {"max_episode_steps": 35}) for num_envs in (2, 5))
    assert_rows_do_not_depend_on_how_many_there_are(few, many, random_actions(80, 5, scale=1.0))


# ------------------------------------------------------------------------------------------------------------- flight


def test_full_and_no_action_lift_a_drone_by_newtons_law(make_drones):
    """At 1.8, 1 and 0.2 times the hovering speed the thrust is 3.24, 1 and 0.04 times 0.027 kg · 9.8 m/s²."""
    assert pytest.approx(MASS * 9.8, rel=1e-6) == 4 * THRUST * HOVER_RPM**2
    env = make_drones()
    env.reset(seed=0)
    actions = torch.tensor([[1.0] * 4, [0.0] * 4, [-1.0] * 4])
    for _ in range(10):
        env.step(actions)
    expected = torch.tensor([3.24, 1.0, 0.04]) * 9.8 - 9.81
    torch.testing.assert_close(env.task.robot.get_vel()[:, 2], 0.1 * expected, rtol=1e-3, atol=5e-5)


def test_each_propeller_is_one_component_of_the_action(make_drones, monkeypatch):
    env = make_drones(2)
    env.reset(seed=0)
    speeds: list[torch.Tensor] = []
    monkeypatch.setattr(env.task.robot, "set_propellers_rpm", speeds.append)
    env.step(torch.tensor([[0.0, 0.5, -0.5, 1.0], [3.0, -3.0, 0.1, 0.0]]))
    expected = HOVER_RPM * torch.tensor([[1.0, 1.4, 0.6, 1.8], [1.8, 0.2, 1.08, 1.0]])
    torch.testing.assert_close(speeds[0], expected)


def test_it_runs_at_a_hundred_steps_a_second_for_fifteen_seconds(make_drones):
    env = make_drones()
    assert (env.scene.sim.dt, env.scene.sim.substeps, env.max_episode_steps) == (0.01, 2, 1500)


# ------------------------------------------------------------------------------------------------------- observations


def test_an_episode_starts_level_and_at_rest_a_metre_up(make_drones):
    env = make_drones()
    for _ in range(2):
        obs, _ = env.reset(seed=0)
        assert env.task.robot.get_pos().tolist() == [[0.0, 0.0, 1.0]] * 3
        expected = torch.zeros(3, 17)
        expected[:, 3] = 1.0
        expected[:, :3] = (targets_of(0, 3)[:, 0] - torch.tensor([0.0, 0.0, 1.0])) / 3
        torch.testing.assert_close(obs, expected)
        for actions in random_actions(5, 3):
            env.step(actions)


def test_the_observation_is_what_the_engines_getters_say(make_drones):
    env = make_drones()
    env.reset(seed=0)
    robot, targets, previous = env.task.robot, targets_of(0, 3)[:, 0], torch.zeros(3, 4)
    # Small enough that no value is clipped.
    for actions in random_actions(20, 3, scale=0.02):
        obs, *_, info = env.step(actions)
        assert not info["targets_reached"].any() and obs[:, 7:].abs().max() < 1.0
        back = inv_quat(robot.get_quat())
        expected = [
            (targets - robot.get_pos()) / 3,
            robot.get_quat(),
            transform_by_quat(robot.get_vel(), back) / 3,
            transform_by_quat(robot.get_ang(), back) / math.pi,
            previous,
        ]
        torch.testing.assert_close(obs, torch.cat(expected, dim=1), rtol=1e-4, atol=1e-6)
        previous = actions
    assert robot.get_ang().norm(dim=1).min() > 0.2


def test_what_is_out_of_range_is_clipped(make_drones, monkeypatch):
    env = make_drones()
    env.reset(seed=0)
    position = [[-2.9, 0.0, 1.0]] * 3
    moves_to(env, monkeypatch, position, velocity=torch.tensor([5.0, -0.3, -4.0, 7.0, -7.0, 0.1]))
    obs = env.step(ZERO)[-1]["final_obs"]
    torch.testing.assert_close(obs[:, 7:13], torch.tensor([1.0, -0.1, -1.0, 1.0, -1.0, 0.1 / math.pi]).expand(3, 6))
    assert env.single_observation_space.high.tolist() == [1.0] * 17


# ------------------------------------------------------------------------------------------------------------ rewards


def test_each_reward_term_by_hand(make_drones, monkeypatch):
    env = make_drones()
    env.reset(seed=0)
    targets = targets_of(0, 3)[:, 0]
    place(env, targets + torch.tensor([0.5, 0.0, 0.5]))
    hold(env, monkeypatch)
    env.step(torch.full((3, 4), 0.5))
    monkeypatch.setattr(env.scene, "reset", lambda **kwargs: None)
    positions = targets + torch.tensor([[0.3, 0.0, 0.4], [0.6, 0.0, 0.8], [0.0, 0.0, 2.1]])
    moves_to(env, monkeypatch, positions, yaw=-30.0, velocity=torch.tensor([0.0, 0.0, 0.0, 1.0, -2.0, 2.0]))
    _, reward, terminated, _, info = env.step(torch.tensor([[0.5, 0.5, 0.5, -0.5]] * 3))
    expected = {
        "target": [0.01 * 10 * (0.5 - squared) for squared in (0.25, 1.0, 4.41)],
        "smooth": [0.01 * -1e-4 * 1.0] * 3,
        "yaw": [0.01 * 0.01 * math.exp(-10 * math.pi / 6)] * 3,
        "angular": [0.01 * -2e-4 * 3.0 / math.pi] * 3,
        "crash": [0.0, 0.0, 0.01 * -10.0],
    }
    assert info["reward_terms"].keys() == expected.keys()
    for name, values in expected.items():
        assert info["reward_terms"][name].tolist() == pytest.approx(values, rel=1e-4), name
    sums = [sum(values) for values in zip(*expected.values(), strict=True)]
    assert reward.tolist() == pytest.approx(sums, rel=1e-4)
    assert terminated.tolist() == [False, False, True]


@pytest.mark.parametrize("angles", [{"yaw": 170.0}, {"yaw": -170.0}, {"yaw": 60.0, "roll": 40.0, "pitch": -20.0}])
def test_the_term_of_the_yaw_is_the_angle_whatever_the_tilt(make_drones, monkeypatch, angles):
    env = make_drones()
    env.reset(seed=0)
    moves_to(env, monkeypatch, [[0.0, 0.0, 1.0]] * 3, **angles)
    monkeypatch.setattr(type(env.task), "reward_weights", {"yaw": 1.0})
    *_, info = env.step(ZERO)
    expected = math.exp(-10 * math.radians(abs(angles["yaw"])))
    assert info["reward_terms"]["yaw"].tolist() == pytest.approx([expected] * 3, rel=1e-3)


# ------------------------------------------------------------------------------------------------------- terminations


@pytest.mark.parametrize(
    ("offset", "height", "ends"),
    [
        ((2.99, 0.0), None, False),
        ((3.01, 0.0), None, True),
        ((-3.01, 0.0), None, True),
        ((0.0, -2.99), None, False),
        ((0.0, -3.01), None, True),
        ((0.0, 3.01), None, True),
        ((0.5, 0.0), 2.99, False),
        ((0.5, 0.0), 3.01, True),
        ((0.5, 0.0), 0.11, False),
        ((0.5, 0.0), 0.09, True),
    ],
)
def test_it_terminates_far_from_the_target_and_near_the_ground(make_drones, monkeypatch, offset, height, ends):
    env = make_drones(2)
    env.reset(seed=0)
    position = targets_of(0, 2)[:, 0] + torch.tensor([*offset, 0.0])
    if height is not None:
        position[:, 2] = height
    moves_to(env, monkeypatch, position)
    _, _, terminated, truncated, info = env.step(torch.zeros(2, 4))
    assert terminated.tolist() == [ends] * 2
    assert truncated.tolist() == [False] * 2
    assert info["reward_terms"]["crash"].tolist() == pytest.approx([-0.1 * ends] * 2)


def test_a_drone_upside_down_flies_on(make_drones, monkeypatch):
    env = make_drones()
    env.reset(seed=0)
    moves_to(env, monkeypatch, [[0.0, 0.0, 1.0]] * 3, roll=179.0)
    assert env.step(ZERO)[2].tolist() == [False] * 3


# ------------------------------------------------------------------------------------------------------------ targets


def test_a_target_reached_gives_way_to_the_next_and_after_the_last_the_first(make_drones, monkeypatch):
    env = make_drones(2, {"max_episode_steps": None})
    obs, _ = env.reset(seed=5)
    targets = targets_of(5, 2)
    up = torch.tensor([0.0, 0.0, 1.0])
    torch.testing.assert_close(obs[:, :3], (targets[:, 0] - up) / 3)
    place_before = up.expand(2, 3)
    for count in range(34):
        target = targets[:, count % 32]
        near = target + torch.tensor([[0.0, 0.0, 0.09], [0.0, 0.0, 0.11]])
        if count:
            near[1] = place_before[1]
        moves_to(env, monkeypatch, near)
        obs, *_, info = env.step(torch.zeros(2, 4))
        # The reward is for the target that was there during the step, the observation shows the next one.
        gain = (target[0] - place_before[0]).square().sum() - 0.09**2
        assert info["reward_terms"]["target"][0].item() == pytest.approx(0.1 * gain.item(), rel=1e-4, abs=1e-6)
        assert info["targets_reached"].tolist() == [count + 1, 0]
        assert info["success"].tolist() == [True, False]
        expected = torch.stack([targets[0, (count + 1) % 32], targets[1, 0]]) - near
        torch.testing.assert_close(obs[:, :3], expected / 3, atol=1e-6, rtol=1e-4)
        place_before = near
    # Success is having been there, and a reset forgets it.
    moves_to(env, monkeypatch, place_before + 0.3)
    assert env.step(torch.zeros(2, 4))[-1]["success"].tolist() == [True, False]
    env.reset(options={"reset_mask": torch.tensor([True, False])})
    moves_to(env, monkeypatch, up.expand(2, 3))
    info = env.step(torch.zeros(2, 4))[-1]
    assert (info["success"].tolist(), info["targets_reached"].tolist()) == ([False, False], [0, 0])


def test_a_restart_elsewhere_counts_no_target_twice(make_drones, monkeypatch):
    """The first row is at its target, in the step in which the second is lost and starts anew."""
    env = make_drones(2)
    env.reset(seed=5)
    targets = targets_of(5, 2)
    moves_to(env, monkeypatch, torch.stack([targets[0, 0], targets[1, 0] + torch.tensor([3.5, 0.0, 0.0])]))
    obs, _, terminated, _, info = env.step(torch.zeros(2, 4))
    assert terminated.tolist() == [False, True]
    torch.testing.assert_close(obs[0, :3], (targets[0, 1] - targets[0, 0]) / 3)
    moves_to(env, monkeypatch, torch.stack([targets[0, 1] + 0.5, torch.tensor([0.0, 0.0, 1.0])]))
    info = env.step(torch.zeros(2, 4))[-1]
    assert info["targets_reached"].tolist() == [1, 0]
    expected = 0.1 * ((targets[0, 1] - targets[0, 0]).square().sum() - 0.75)
    assert info["reward_terms"]["target"][0].item() == pytest.approx(expected.item(), rel=1e-4)


def test_targets_depend_on_the_environments_stream_alone(make_drones):
    ranges = {"target_x": (-0.5, 0.0), "target_y": (0.2, 1.0), "target_z": (0.5, 1.5)}
    env = make_drones(16, {"first_env_index": 3}, **ranges)
    streams = EnvStreams(16, env.device, 3)
    streams.seed(8)
    low, high = torch.tensor(list(ranges.values())).unbind(dim=1)
    for seed in (8, None):
        obs, _ = env.reset(seed=seed)
        streams.begin_episode(torch.ones(16, dtype=torch.bool))
        expected = streams.select(None).uniform(32, 3, low=low, high=high)[:, 0]
        targets = 3 * obs[:, :3] + torch.tensor([0.0, 0.0, 1.0])
        torch.testing.assert_close(targets, expected)
        assert ((targets > low - 1e-6) & (targets < high + 1e-6)).all()
        assert (targets.std(dim=0) > 0.2 * (high - low)).all()


def test_the_state_holds_targets_and_actions(make_drones, monkeypatch):
    env = make_drones()
    env.reset(seed=0)
    place(env, targets_of(0, 3)[:, 0] + torch.tensor([0.1, 0.0, 0.05]))
    actions = random_actions(30, 3)
    for action in actions[:10]:
        env.step(action)
    state = env.state_dict()
    runs = []
    for _ in range(2):
        runs.append([tensors_in(env.step(action)[:4]) for action in actions[10:]])
        env.load_state_dict(state)
    for one, other in zip(*runs, strict=True):
        for expected, value in zip(one, other, strict=True):
            torch.testing.assert_close(value, expected, rtol=0, atol=0)


# ---------------------------------------------------------------------------------------------------------- arguments


@pytest.mark.parametrize("name", ["target_x", "target_y", "target_z"])
@pytest.mark.parametrize("value", [(1.5, 0.5), (1.0,), 1.0, (0.5, math.nan)])
def test_what_is_no_range_is_refused(name, value):
    with pytest.raises(ValueError) as refusal:
        DroneHoverTask(**{name: value})
    assert str(refusal.value).startswith(f"{name}={value!r}: give two finite numbers (m), the lower one first")


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("target_x", (-1.5, 1.5), "at most 2.9 m wide, between -3.0 and 3.0"),
        ("target_y", (2.0, 3.0), "at most 2.9 m wide, between -3.0 and 3.0"),
        ("target_z", (1.5, 3.5), "at most 1.9 m wide, between -1.0 and 3.0"),
        ("target_z", (0.1, 1.0), "below 0.1 m a drone has crashed; give larger heights"),
    ],
)
def test_targets_that_cannot_be_flown_to_are_refused(name, value, said):
    with pytest.raises(ValueError) as refusal:
        DroneHoverTask(**{name: value})
    assert str(refusal.value).startswith(f"{name}={value!r}: ")
    assert said in str(refusal.value)
