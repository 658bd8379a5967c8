"""GenesisAnt-v0 and GenesisHumanoid-v0: layout, torques, rewards and ends against the engine's getters and by hand."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from gymnasium.vector import AutoresetMode

from genesis_vec.checks import check_vector_env
from genesis_vec.streams import EnvStreams
from genesis_vec.tasks.locomotion import AntTask, HumanoidTask, LocomotionTask
from tests.wrappers.support import ALL_MODES

TASKS = {"ant": AntTask, "humanoid": HumanoidTask}
EACH = pytest.mark.parametrize("name", TASKS)
STEP_SECONDS = {"ant": 0.05, "humanoid": 0.015}
NUM_JOINTS = {"ant": 8, "humanoid": 21}
UPSIDE_DOWN = [0.0, 1.0, 0.0, 0.0]


def random_actions(env: Any, num_steps: int, scale: float = 1.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return scale * (torch.rand(num_steps, *env.action_space.shape, generator=generator) * 2 - 1)


def place(env: Any, heights: list[float], quaternion: list[float], x: list[float] | None = None) -> None:
    """The start's joint angles at rest, at these heights."""
    qpos = env.task.start_qpos.repeat(env.num_envs, 1)
    qpos[:, 2] = torch.tensor(heights)
    qpos[:, 3:7] = torch.tensor(quaternion)
    if x is not None:
        qpos[:, 0] = torch.tensor(x)
    env.task.robot.set_qpos(qpos)


def centre_of_mass(env: Any) -> torch.Tensor:
    """From the masses and the centres of the links, as the engine gives them."""
    from genesis import link_ref_frame

    links = env.task.robot.links
    masses = torch.tensor([float(link.get_mass()) for link in links])
    centres = env.scene.rigid_solver.get_links_pos([link.idx for link in links], ref=link_ref_frame.link_COM)
    return (centres * masses[:, None]).sum(dim=1) / masses.sum()


def paid_position(env: Any) -> torch.Tensor:
    """The x that the forward reward is about: the ant's torso, the humanoid's centre of mass."""
    if isinstance(env.task, AntTask):
        return env.task.robot.get_link("torso").get_pos()[:, 0]
    return centre_of_mass(env)[:, 0]


def rotated_back(quaternion: torch.Tensor, vector: torch.Tensor) -> torch.Tensor:
    """A vector of the world in the frame that the unit quaternion (w, x, y, z) turns the world's into."""
    w, axis = quaternion[:, :1], -quaternion[:, 1:]
    twice = 2 * torch.linalg.cross(axis, vector)
    return vector + w * twice + torch.linalg.cross(axis, twice)


# ----------------------------------------------------------------------------------------------------------- contract


@ALL_MODES
@EACH
def test_the_contract_holds_where_robots_fall_and_where_time_is_up(make_env, name, mode):
    lowest, limit = {"ant": (0.53, 12), "humanoid": (1.25, 8)}[name]
    env = make_env(TASKS[name](healthy_range=(lowest, 2.0)), autoreset_mode=mode, max_episode_steps=limit)
    env.reset(seed=0)
    flags = []
    for action in random_actions(env, 40):
        flags.append(torch.stack(env.step(action)[2:4]))
        if mode is AutoresetMode.DISABLED:
            env.reset(options={"reset_mask": flags[-1].any(dim=0)})
    assert (torch.stack(flags).sum(dim=(0, 2)) >= 3).all()
    assert check_vector_env(env).not_checked == ()


# -------------------------------------------------------------------------------------------------------- observation


@EACH
def test_the_observation_is_height_orientation_joints_and_their_velocities(make_env, name):
    env = make_env(TASKS[name]())
    obs, _ = env.reset(seed=0)
    for action in random_actions(env, 4, scale=0.3):
        obs, *_ = env.step(action)
    joints = NUM_JOINTS[name]
    assert obs.shape == (3, 5 + joints + 6 + joints)
    robot, torso = env.task.robot, env.task.robot.get_link("torso")
    height, quaternion, angles, velocity, turning, rates = obs.split([1, 4, joints, 3, 3, joints], dim=1)
    torch.testing.assert_close(height[:, 0], torso.get_pos()[:, 2], rtol=0, atol=1e-6)
    torch.testing.assert_close(quaternion, torso.get_quat(), rtol=0, atol=1e-6)
    torch.testing.assert_close(angles, robot.get_qpos()[:, 7:], rtol=0, atol=0)
    torch.testing.assert_close(velocity, torso.get_vel(), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(turning, rotated_back(quaternion, torso.get_ang()), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(rates, robot.get_dofs_velocity()[:, 6:], rtol=0, atol=0)
    assert (velocity.abs().amax(dim=1) > 0).all() and (turning.abs().amax(dim=1) > 0.01).all()


def test_the_ants_joints_go_leg_by_leg_and_the_humanoids_from_the_waist_down_then_the_arms(make_env):
    legs = [f"{joint}_{leg}" for leg in (1, 2, 3, 4) for joint in ("hip", "ankle")]
    leg = ("hip_x", "hip_z", "hip_y", "knee", "ankle_y", "ankle_x")
    body = ["abdomen_z", "abdomen_y", "abdomen_x"]
    for side in ("right", "left"):
        body += [f"{joint}_{side}" for joint in leg]
    for side in ("right", "left"):
        body += [f"{joint}_{side}" for joint in ("shoulder1", "shoulder2", "elbow")]
    for task, expected in ((AntTask(), legs), (HumanoidTask(), body)):
        joints = make_env(task).task.robot.joints
        assert [joint.name for joint in joints if joint.type.name == "REVOLUTE"] == expected
        assert joints[0].type.name == "FREE"


# ------------------------------------------------------------------------------------------------------------ torques


@EACH
def test_the_torque_of_each_joint_is_its_action_times_the_gear_in_the_models_file(make_env, name):
    from genesis.utils.misc import get_assets_dir

    env = make_env(TASKS[name]())
    env.reset(seed=0)
    motors = ElementTree.parse(Path(get_assets_dir()) / "xml" / f"{name}.xml").findall("actuator/motor")
    gears = {motor.attrib["joint"]: float(motor.attrib["gear"]) for motor in motors}
    names = [joint.name for joint in env.task.robot.joints if joint.type.name == "REVOLUTE"]
    expected = torch.tensor([gears[joint] for joint in names])
    torch.testing.assert_close(env.task.gears, expected)
    (action,) = random_actions(env, 1)
    env.step(action)
    torques = env.task.robot.get_dofs_control_force()
    torch.testing.assert_close(torques[:, 6:], action * expected)
    assert not torques[:, :6].any()


def test_a_torque_turns_a_hip_as_its_inertia_of_1_and_its_damping_of_1_say(make_env):
    """1.5 N·m for 0.05 s in the air: 1.5 (1 - exp(-0.05)) = 0.0732 rad/s; the leg itself adds a little inertia."""
    env = make_env(AntTask(healthy_range=(0.0, 10.0)))
    env.reset(seed=0)
    place(env, [5.0] * 3, [1.0, 0.0, 0.0, 0.0])
    action = torch.zeros(3, 8)
    action[0, 0], action[1, 0] = 0.01, -0.01
    obs, *_ = env.step(action)
    assert obs[:, 19].tolist() == pytest.approx([0.0732, -0.0732, 0.0], rel=0.03, abs=1e-5)


# ------------------------------------------------------------------------------------------------------------- reward


@pytest.mark.parametrize("defaults", [True, False], ids=["default weights", "own weights"])
@EACH
def test_the_reward_is_speed_and_health_less_effort(make_env, name, defaults):
    weights = {"ant": (1.0, 1.0, 0.5), "humanoid": (1.25, 5.0, 0.1)}[name] if defaults else (2.0, 3.0, 0.25)
    names = ("forward_weight", "healthy_reward", "control_cost_weight")
    given = {} if defaults else dict(zip(names, weights, strict=True))
    env = make_env(TASKS[name](**given))
    env.reset(seed=0)
    velocities = []
    for step, action in enumerate(random_actions(env, 6, scale=1.5)):
        before = paid_position(env)
        _, reward, terminated, truncated, info = env.step(action)
        assert not (terminated | truncated).any()
        velocity = (paid_position(env) - before) / STEP_SECONDS[name]
        velocities.append(velocity)
        terms = info["reward_terms"]
        assert set(terms) == {"forward", "healthy", "control"}
        torch.testing.assert_close(info["forward_velocity"], velocity, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(terms["forward"], weights[0] * velocity, rtol=1e-4, atol=2e-4)
        assert terms["healthy"].tolist() == [weights[1]] * 3
        torch.testing.assert_close(terms["control"], -weights[2] * action.clamp(-1, 1).square().sum(dim=1))
        torch.testing.assert_close(reward, terms["forward"] + terms["healthy"] + terms["control"])
        if step == 3:
            # The way back to the start is no displacement, for this row; the others go on.
            env.reset(options={"reset_mask": torch.tensor([False, True, False])})
    assert torch.stack(velocities).abs().amax(dim=0).min() > 0.01


@EACH
def test_a_robot_that_flies_forward_at_3_metres_per_second_earns_3_weights(make_env, name):
    env = make_env(TASKS[name](healthy_range=(0.0, 10.0)))
    env.reset(seed=0)
    place(env, [5.0] * 3, [1.0, 0.0, 0.0, 0.0])
    velocity = torch.zeros(3, 6)
    velocity[:, 0], velocity[1:, 1] = torch.tensor([3.0, -3.0, 0.0]), 2.0
    env.task.robot.set_dofs_velocity(velocity, range(6))
    *_, info = env.step(torch.zeros(env.action_space.shape))
    weight = {"ant": 1.0, "humanoid": 1.25}[name]
    expected = [3.0 * weight, -3.0 * weight, 0.0]
    assert info["reward_terms"]["forward"].tolist() == pytest.approx(expected, abs=1e-3)


# ---------------------------------------------------------------------------------------------------------------- end


# Upside down nothing touches the ground, and in one step the torso falls g h² (1 + … + n), in n substeps of h: 14.7 mm
# for the ant, 1.5 mm for the humanoid.
@pytest.mark.parametrize(
    ("name", "heights"),
    [("ant", [0.21, 0.22, 1.01, 1.02]), ("humanoid", [1.001, 1.002, 2.001, 2.002])],
)
def test_it_terminates_where_the_torso_ends_up_outside_the_healthy_heights(make_env, name, heights):
    env = make_env(TASKS[name](), 4)
    env.reset(seed=0)
    place(env, heights, UPSIDE_DOWN)
    _, _, terminated, truncated, info = env.step(torch.zeros(env.action_space.shape))
    fall = {"ant": 0.0147, "humanoid": 0.0015}[name]
    assert info["final_obs"][:, 0].tolist() == pytest.approx([height - fall for height in heights], abs=2e-4)
    assert terminated.tolist() == [True, False, False, True]
    assert not truncated.any()
    healthy = {"ant": 1.0, "humanoid": 5.0}[name]
    assert info["final_info"]["reward_terms"]["healthy"].tolist() == [0.0, healthy, healthy, 0.0]


@pytest.mark.parametrize(
    ("healthy_range", "expected"),
    [((0.5, 0.7), [True, False, True]), ([-math.inf, math.inf], [False, False, False])],
    ids=["own", "any"],
)
def test_the_healthy_heights_are_an_argument(make_env, healthy_range, expected):
    env = make_env(AntTask(healthy_range=healthy_range))
    env.reset(seed=0)
    place(env, [0.3, 0.6, 0.9], UPSIDE_DOWN)
    _, _, terminated, *_ = env.step(torch.zeros(3, 8))
    assert terminated.tolist() == expected


def test_an_ant_stands_by_itself_and_a_humanoid_falls_within_two_seconds(make_env):
    ant = make_env(AntTask())
    ant.reset(seed=0)
    for _ in range(100):
        obs, _, terminated, truncated, _ = ant.step(torch.zeros(3, 8))
        assert not (terminated | truncated).any()
    assert ((obs[:, 0] > 0.45) & (obs[:, 0] < 0.65)).all()
    humanoid = make_env(HumanoidTask())
    humanoid.reset(seed=0)
    fallen = torch.zeros(3, dtype=torch.bool)
    for _ in range(134):
        fallen |= humanoid.step(torch.zeros(3, 21))[2]
    assert fallen.all()


@EACH
def test_the_ground_does_not_end_where_a_run_may_lead(make_env, name):
    env = make_env(TASKS[name](healthy_range=(-math.inf, math.inf)))
    env.reset(seed=0)
    place(env, [float(env.task.start_qpos[2])] * 3, [1.0, 0.0, 0.0, 0.0], x=[-900.0, 0.0, 900.0])
    for _ in range(30):
        obs, *_ = env.step(torch.zeros(env.action_space.shape))
    assert (obs[:, 0] > {"ant": 0.45, "humanoid": 1.0}[name]).all()


# -------------------------------------------------------------------------------------------------------------- start


@EACH
def test_initial_states_are_the_start_and_the_environments_streams_first_draws(make_env, name):
    noise = {"ant": 0.1, "humanoid": 0.01}[name]
    env = make_env(TASKS[name](), 3, first_env_index=3)
    streams = EnvStreams(3, env.device, 3)
    streams.seed(8)
    nq, nv = 7 + NUM_JOINTS[name], 6 + NUM_JOINTS[name]
    height, angles = {"ant": (0.75, [0.0, 1.0, 0.0, -1.0, 0.0, -1.0, 0.0, 1.0]), "humanoid": (1.3, [0.0] * 21)}[name]
    start = torch.tensor([0.0, 0.0, height, 1.0, 0.0, 0.0, 0.0, *angles])
    for seed in (8, None):
        obs, _ = env.reset(seed=seed)
        streams.begin_episode(torch.ones(3, dtype=torch.bool))
        draws = streams.select(None)
        qpos = start + draws.uniform(nq, low=-noise, high=noise)
        qpos[:, 3:7] /= qpos[:, 3:7].norm(dim=1, keepdim=True)
        velocity = noise * draws.normal(nv) if name == "ant" else draws.uniform(nv, low=-noise, high=noise)
        torch.testing.assert_close(env.task.robot.get_qpos(), qpos, rtol=0, atol=1e-6)
        torch.testing.assert_close(obs, torch.cat([qpos[:, 2:], velocity], dim=1), rtol=0, atol=1e-6)


@EACH
def test_without_noise_it_starts_at_rest_and_above_the_ground(make_env, name):
    env = make_env(TASKS[name](reset_noise=0.0))
    obs, _ = env.reset(seed=0)
    assert torch.equal(env.task.robot.get_qpos(), env.task.start_qpos.expand(3, -1))
    assert not obs[:, -6 - NUM_JOINTS[name] :].any()
    lowest = env.task.robot.get_AABB()[..., 0, 2]
    # As high as the noise of the height and of the joints may bring it down, by default.
    assert (lowest > {"ant": 0.15, "humanoid": 0.01}[name]).all()


@EACH
def test_an_environment_is_the_same_among_2_and_among_5(make_env, name):
    runs = []
    for num_envs in (2, 5):
        env = make_env(TASKS[name](), num_envs, max_episode_steps=4)
        results = [env.reset(seed=5)[0][:2]]
        for action in random_actions(make_env(TASKS[name](), 5, max_episode_steps=4), 10):
            results += [part[:2] for part in env.step(action[:num_envs])[:4]]
        runs.append(results)
    for one, other in zip(*runs, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
    assert (runs[0][0][0] != runs[0][0][1]).any()


@EACH
def test_a_saved_state_goes_on_bit_for_bit(make_env, name):
    env = make_env(TASKS[name](), max_episode_steps=7)
    env.reset(seed=2)
    actions = random_actions(env, 14)
    for action in actions[:5]:
        env.step(action)
    state = env.state_dict()
    first = [env.step(action) for action in actions[5:]]
    env.load_state_dict(state)
    for step, action in zip(first, actions[5:], strict=True):
        again = env.step(action)
        torch.testing.assert_close(again[:4], step[:4], rtol=0, atol=0)
        torch.testing.assert_close(again[4]["reward_terms"], step[4]["reward_terms"], rtol=0, atol=0)


# ---------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize("task", TASKS.values())
@pytest.mark.parametrize(
    ("name", "value", "remedy"),
    [
        ("forward_weight", math.inf, "give a finite number"),
        ("healthy_reward", math.nan, "give a finite number"),
        ("control_cost_weight", -math.inf, "give a finite number"),
        ("reset_noise", -0.1, "give a finite number of 0 or more"),
        ("reset_noise", math.nan, "give a finite number of 0 or more"),
        ("reset_noise", math.inf, "give a finite number of 0 or more"),
        ("healthy_range", (1.0, 0.2), "give two heights in metres, the lower one first"),
        ("healthy_range", (1.0, 1.0), "give two heights in metres, the lower one first"),
        ("healthy_range", (math.nan, 1.0), "give two heights in metres, the lower one first"),
        ("healthy_range", (0.2, 0.5, 1.0), "give two heights in metres, the lower one first"),
    ],
)
def test_arguments_out_of_their_range_are_refused_with_the_remedy(
    task: type[LocomotionTask], name: str, value: Any, remedy: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(f"{name}={value!r}: {remedy}")):
        task(**{name: value})
