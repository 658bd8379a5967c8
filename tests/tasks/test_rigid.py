"""GenesisRigid-v0: working ranges, goals, controls and refusals by hand on small models; Panda and Go2 as they ship."""

from __future__ import annotations

import math
import re
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from genesis_vec.errors import ModelError
from genesis_vec.registry import SHIPPED
from genesis_vec.streams import EnvStreams
from genesis_vec.tasks.rigid import RigidTask
from tests.wrappers.support import tensors_in

# A shoulder whose neutral 0 lies well within its limits, an elbow whose 0 is at a limit, a slider without limits.
ARM = """
<mujoco model="arm">
  <compiler angle="radian" autolimits="true"/>
  <worldbody>
    <body name="upper" pos="0 0 1">
      <joint name="shoulder" type="hinge" axis="0 1 0" range="-1 2" armature="0.1"/>
      <geom type="capsule" fromto="0 0 0 0.3 0 0" size="0.03" mass="0.5"/>
      <body name="lower" pos="0.3 0 0">
        <joint name="elbow" type="hinge" axis="0 1 0" range="0 2" armature="0.1"/>
        <geom type="capsule" fromto="0 0 0 0.3 0 0" size="0.03" mass="0.5"/>
        <body name="hand" pos="0.3 0 0">
          <joint name="slider" type="slide" axis="0 1 0" armature="0.1"/>
          <geom type="box" size="0.05 0.05 0.05" mass="0.2"/>
        </body>
      </body>
    </body>
  </worldbody>
  <actuator>
    <position joint="shoulder" kp="200" kv="20" forcerange="-20 30"/>
    <position joint="elbow" kp="200" kv="20" forcerange="-15 15"/>
    <position joint="slider" kp="100" kv="20"/>
  </actuator>
</mujoco>
"""
REST, RANGE = [0.0, 1.0, 0.0], [0.75, 0.5, 1.0]  # half of half the distance between the limits; 1 m without limits
DOOR = """
<robot name="door">
  <link name="frame">
    <inertial><mass value="5"/><inertia ixx="1" iyy="1" izz="1" ixy="0" ixz="0" iyz="0"/></inertial>
    <collision><geometry><box size="0.1 0.1 2"/></geometry></collision>
  </link>
  <link name="leaf">
    <inertial>
      <origin xyz="0.4 0 0"/><mass value="2"/><inertia ixx="0.1" iyy="0.1" izz="0.1" ixy="0" ixz="0" iyz="0"/>
    </inertial>
    <collision><origin xyz="0.4 0 0"/><geometry><box size="0.6 0.04 1.8"/></geometry></collision>
  </link>
  <joint name="hinge" type="revolute">
    <parent link="frame"/><child link="leaf"/><axis xyz="0 0 1"/>
    <limit lower="-0.5" upper="1.5" effort="12" velocity="3"/>
  </joint>
</robot>
"""
BALL = '<mujoco><worldbody><body pos="0 0 1"><freejoint/><geom type="sphere" size="0.1"/></body></worldbody></mujoco>'


class BreakableRobot(RigidTask):
    """Gives the engine NaN as one environment's velocities, once, when `breaks_row` is set."""

    breaks_row: int | None = None

    def act(self, actions: torch.Tensor) -> None:
        super().act(actions)
        if self.breaks_row is not None:
            mask = torch.arange(self.num_envs) == self.breaks_row
            self.robot.set_dofs_velocity(torch.full((self.num_envs, self.robot.n_dofs), torch.nan), envs_idx=mask)
            self.breaks_row = None


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    for name, text in (("arm.xml", ARM), ("door.urdf", DOOR), ("ball.xml", BALL), ("cut.xml", ARM[:200]),
                       ("cut.urdf", DOOR[:200]), ("mesh.stl", "")):  # fmt: skip
        (folder / name).write_text(text)
    return folder


@pytest.fixture
def make_arm(make_env, models):
    def make(num_envs: int = 3, env_args: dict[str, Any] | None = None, **kwargs: Any) -> Any:
        return make_env(RigidTask(str(models / "arm.xml"), **kwargs), num_envs, **(env_args or {}))

    return make


@pytest.fixture
def panda(make_env):
    return make_env(RigidTask(), 3)


@pytest.fixture(scope="module")
def go2(env_pool):
    with env_pool.lend() as make:
        yield make(BreakableRobot("urdf/go2/urdf/go2.urdf", decimation=2), 4, max_episode_steps=15)


def split(obs: torch.Tensor, *sizes: int) -> tuple[torch.Tensor, ...]:
    assert obs.shape[1] == sum(sizes)
    return obs.split(sizes, dim=1)


# ------------------------------------------------------------------------------------------------ ranges, goals, starts


def test_rest_positions_and_working_ranges_follow_from_the_limits(make_arm):
    task = make_arm().task
    assert task.joint_names == ["shoulder", "elbow", "slider"]
    assert list(task.controlled_dofs) == [0, 1, 2]
    assert task.rest_positions.tolist() == REST
    assert task.working_range.tolist() == RANGE


@pytest.mark.parametrize(
    ("kwargs", "rest", "working_range"),
    [
        ({"reach": 1.0}, REST, [1.0, 1.0, 1.0]),  # the shoulder's lower limit is 1 away; 1.5 would be beyond it
        ({"reach": 0.1}, REST, [0.15, 0.1, 1.0]),
        ({"rest_qpos": [1.75, 0.25, -2.0]}, [1.75, 0.25, -2.0], [0.25, 0.25, 1.0]),
    ],
    ids=["whole", "tenth", "own rest"],
)
def test_reach_and_rest_are_arguments(make_arm, kwargs, rest, working_range):
    task = make_arm(**kwargs).task
    torch.testing.assert_close(task.rest_positions, torch.tensor(rest))
    torch.testing.assert_close(task.working_range, torch.tensor(working_range))


def test_goals_and_starts_are_the_streams_draws_in_the_working_range(make_arm):
    env = make_arm(num_envs=16)
    streams = EnvStreams(16, env.device)
    streams.seed(5)
    for seed in (5, None):
        qpos, velocity, goal = split(env.reset(seed=seed)[0], 3, 3, 3)
        streams.begin_episode(torch.ones(16, dtype=torch.bool))
        draws = streams.select(None)
        rest, working_range = torch.tensor(REST), torch.tensor(RANGE)
        torch.testing.assert_close(goal, rest + working_range * draws.uniform(3, low=-1.0, high=1.0))
        torch.testing.assert_close(qpos, rest + working_range * draws.uniform(3, low=-0.1, high=0.1))
        assert not velocity.any()
        assert env.task.goal.tolist() == goal.tolist()
        assert (goal[:, 1] >= 0.5).all() and (goal[:, 1] <= 1.5).all() and goal[:, 1].std() > 0.1


def test_a_masked_reset_draws_new_goals_for_its_rows_only(make_arm):
    env = make_arm()
    before = split(env.reset(seed=0)[0], 6, 3)[1]
    after = split(env.reset(options={"reset_mask": np.array([False, True, False])})[0], 6, 3)[1]
    assert (before == after).all(dim=1).tolist() == [True, False, True]


def test_without_reset_noise_every_episode_starts_at_rest(make_arm):
    obs, _ = make_arm(reset_noise=0.0).reset(seed=0)
    assert split(obs, 3, 6)[0].tolist() == [REST] * 3


# ----------------------------------------------------------------------------------------------- rewards, observations


def test_distance_and_success_by_hand(make_arm, monkeypatch):
    """Each joint 0, 0.04 and 0.5 working ranges away from its goal, on one side or the other."""
    env = make_arm()
    goal = split(env.reset(seed=0)[0], 6, 3)[1]
    shares = torch.tensor([[0.0, 0.0, 0.0], [0.04, -0.04, 0.04], [-0.5, 0.5, 0.5]])
    env.task.robot.set_qpos(goal + shares * torch.tensor(RANGE))
    monkeypatch.setattr(env.scene, "step", lambda **kwargs: None)
    _, reward, terminated, _, info = env.step(torch.zeros(3, 3))
    torch.testing.assert_close(info["reward_terms"]["distance"], torch.tensor([0.0, -0.04, -0.5]), atol=1e-6, rtol=0)
    assert info["reward_terms"]["success"].tolist() == [0.5, 0.5, 0.0]
    assert info["success"].tolist() == [True, True, False]
    torch.testing.assert_close(reward, torch.tensor([0.5, 0.46, -0.5]), atol=1e-6, rtol=0)
    assert terminated.tolist() == [False] * 3


def test_rewards_follow_from_the_observations_along_an_episode(make_arm):
    env = make_arm()
    env.reset(seed=2)
    for step in range(20):
        obs, reward, *_, info = env.step(torch.full((3, 3), math.sin(step)))
        qpos, _, goal = split(obs, 3, 3, 3)
        distance = (((qpos - goal) / torch.tensor(RANGE)) ** 2).mean(dim=1).sqrt()
        torch.testing.assert_close(reward, -distance + 0.5 * (distance < 0.05), atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(info["success"], distance < 0.05)


def test_the_observation_qpos_is_the_positions_alone_and_contiguous(make_arm):
    full, short = make_arm(), make_arm(state="qpos")
    assert (full.single_observation_space.shape, short.single_observation_space.shape) == ((9,), (3,))
    pairs = [(full.reset(seed=1)[0], short.reset(seed=1)[0])]
    pairs += [(full.step(torch.ones(3, 3))[0], short.step(torch.ones(3, 3))[0]) for _ in range(3)]
    for one, other in pairs:
        assert other.is_contiguous() and other.view(-1).shape == (9,)
        torch.testing.assert_close(one[:, :3], other, rtol=0, atol=0)
    assert not (pairs[-1][1] == pairs[-2][1]).any()


# ------------------------------------------------------------------------------------------------------------- controls


def test_position_actions_reach_the_targets_that_they_name(make_arm):
    env = make_arm()
    env.reset(seed=0)
    actions = torch.tensor([[0.0, 0.0, 0.0], [1.0, 1.0, 1.0], [-1.0, -0.5, 0.3]])
    for _ in range(100):
        *_, info = env.step(actions)
    targets = torch.tensor(REST) + actions * torch.tensor(RANGE)
    # Gravity pulls the arm out of its targets by a few hundredths of a radian.
    torch.testing.assert_close(info["final_obs"][:, :3], targets, rtol=0, atol=0.05)


def test_a_goal_given_as_the_action_is_a_success(make_arm):
    env = make_arm(stiffness=2000.0, damping=100.0)
    obs, _ = env.reset(seed=3)
    action = (split(obs, 6, 3)[1] - torch.tensor(REST)) / torch.tensor(RANGE)
    for _ in range(100):
        *_, info = env.step(action)
    assert info["success"].all()


def test_the_models_force_ranges_bound_what_position_control_applies(make_arm):
    env = make_arm(stiffness=5000.0)
    env.reset(seed=0)
    forces = []
    for step in range(20):
        env.step(torch.full((3, 3), 1.0 if step % 8 < 4 else -1.0))
        forces.append(env.task.robot.get_dofs_control_force())
    low, high = torch.stack(forces).amin(dim=(0, 1)), torch.stack(forces).amax(dim=(0, 1))
    assert low[:2].tolist() == [-20.0, -15.0]
    assert high[:2].tolist() == [30.0, 15.0]
    assert high[2] > 1000.0  # the slider has no bounds


def test_torque_actions_are_shares_of_the_force_range_and_of_max_force_where_there_is_none(make_arm):
    env = make_arm(control="torque", max_force=7.0)
    env.reset(seed=0)
    env.step(torch.tensor([[1.0, 1.0, 1.0], [-1.0, -1.0, -1.0], [0.5, -0.5, 0.0]]))
    forces = env.task.robot.get_dofs_control_force()
    assert forces.tolist() == [[30.0, 15.0, 7.0], [-20.0, -15.0, -7.0], [15.0, -7.5, 0.0]]


def test_velocity_actions_are_shares_of_max_velocity(make_arm):
    env = make_arm(control="velocity", max_velocity=0.4)
    env.reset(seed=0)
    for _ in range(40):
        obs, *_ = env.step(torch.tensor([[0.0, 0.0, 1.0], [0.0, 0.0, -1.0], [0.0, 0.0, 0.5]]))
    # The slider moves sideways, where gravity has no say.
    torch.testing.assert_close(obs[:, 5], torch.tensor([0.4, -0.4, 0.2]), rtol=0, atol=1e-3)


def test_stiffness_and_damping_replace_the_models(make_arm):
    for kwargs, stiffness, damping in (({}, [200, 200, 100], 20), ({"stiffness": 50.0, "damping": 4.0}, [50] * 3, 4)):
        robot = make_arm(**kwargs).task.robot
        assert robot.get_dofs_kp().tolist() == stiffness
        assert robot.get_dofs_kv().tolist() == [damping] * 3


def test_decimation_multiplies_the_simulated_time_of_a_step(make_arm):
    once, twice = make_arm(), make_arm(decimation=2)
    once.reset(seed=0), twice.reset(seed=0)
    action = torch.full((3, 3), 0.7)
    for _ in range(3):
        once.step(action)
        torch.testing.assert_close(once.step(action)[0], twice.step(action)[0], rtol=0, atol=0)
    assert (once.metadata["render_fps"], twice.metadata["render_fps"]) == (50, 25)


def test_a_urdf_with_a_fixed_base_stays_where_it_is(make_env, models):
    env = make_env(RigidTask(str(models / "door.urdf"), fixed_base=True, control="torque"))
    assert (env.task.joint_names, env.single_observation_space.shape) == (["hinge"], (3,))
    assert env.task.rest_positions.tolist() == [0.0]
    assert env.task.working_range.tolist() == [0.5]  # half of 1.0, and the lower limit is 0.5 away
    assert [type(entity.morph).__name__ for entity in env.scene.entities] == ["URDF"]
    env.reset(seed=0)
    for _ in range(5):
        env.step(torch.ones(3, 1))
    assert env.task.robot.get_dofs_control_force().tolist() == [[12.0]] * 3
    assert env.task.robot.get_pos().tolist() == [[0.0, 0.0, 0.0]] * 3


def test_a_ground_can_be_asked_for_and_self_collision_switched_off(make_env, models):
    task = RigidTask(str(models / "door.urdf"), fixed_base=True, ground=True, self_collision=False)
    env = make_env(task)
    assert [type(entity.morph).__name__ for entity in env.scene.entities] == ["URDF", "Plane"]
    assert env.task.scene_options()["rigid_options"].enable_self_collision is False


# ------------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("none.xml", "there is no such file, neither from here nor among the engine's assets"),
        ("none.urdf", "there is no such file"),
        ("mesh.stl", r"give an .xml \(MJCF\) or a .urdf file"),
        ("", r"give an .xml \(MJCF\) or a .urdf file"),
        ("cut.xml", "could not be read: "),
        ("cut.urdf", "could not be read: "),
        ("ball.xml", "has no revolute or prismatic joint, so there is nothing to control"),
    ],
)
def test_a_file_that_is_no_robot_is_refused_by_its_name(make_env, models, name, said):
    morph = str(models / name)
    with pytest.raises(ModelError, match=f"^morph={re.escape(repr(morph))}:? {said}"):
        make_env(RigidTask(morph))


@pytest.mark.parametrize(
    ("kwargs", "said"),
    [
        ({"control": "torque"}, "does not bound every joint's force: pass max_force="),
        ({"rest_qpos": [0.0, 1.0]}, "rest_qpos has 2 numbers for 3 joints: ['shoulder', 'elbow', 'slider']"),
        (
            {"rest_qpos": [0.0, 2.5, 0.0]},
            "rest_qpos=[0.0, 2.5, 0.0] is not within the joints' limits [-1.0, 0.0, -inf]",
        ),
        ({"rest_qpos": [math.nan, 1.0, 0.0]}, "rest_qpos=[nan, 1.0, 0.0] is not within the joints' limits"),
    ],
    ids=["no force range", "too few", "out of limits", "nan"],
)
def test_what_a_model_cannot_do_is_refused_with_the_remedy(make_arm, kwargs, said):
    with pytest.raises(ModelError, match=re.escape(said)):
        make_arm(**kwargs)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("reach", 0.0),
        ("reach", 1.5),
        ("reset_noise", -0.1),
        ("reset_noise", 1.1),
        ("max_velocity", 0.0),
        ("max_force", -1.0),
        ("stiffness", 0.0),
        ("damping", -1.0),
        ("dt", 0.0),
        ("dt", math.nan),
        ("substeps", 0),
        ("decimation", 0),
    ],
)
def test_numbers_out_of_their_range_are_refused(name, value):
    with pytest.raises(ValueError, match=f"^{name}={value!r} is out of range"):
        RigidTask(**{name: value})


@pytest.mark.parametrize(
    ("name", "accepted"),
    [("state", r"\('full', 'qpos'\)"), ("control", r"\('position', 'torque', 'velocity'\)")],
)
def test_a_choice_that_there_is_not_is_refused_with_those_there_are(name, accepted):
    with pytest.raises(ValueError, match=f"^{name}='effort': use one of {accepted}$"):
        RigidTask(**{name: "effort"})


def test_unknown_arguments_are_refused_with_those_of_the_task():
    with pytest.raises(
        TypeError, match=r"unknown arguments \['colour'\]; RigidTask takes \['control', 'damping', .*'sub"
    ):
        gymnasium.make_vec("GenesisRigid-v0", num_envs=2, device="cpu", colour="red")


# ------------------------------------------------------------------------------------------------------ Panda and Go2


def test_panda_is_the_default_and_its_parts_are_within_reach_of_the_user(panda):
    assert SHIPPED["GenesisRigid-v0"] == ("genesis_vec.tasks.rigid:RigidTask", 100)
    assert panda.task.morph == "xml/franka_emika_panda/panda.xml"
    assert panda.task.robot in panda.scene.entities and panda.task.scene is panda.scene
    assert panda.task.device == panda.device == torch.device("cpu")
    assert (panda.single_observation_space.shape, panda.single_action_space.shape) == ((27,), (9,))
    assert panda.task.joint_names == [*(f"joint{i}" for i in range(1, 8)), "finger_joint1", "finger_joint2"]


def test_panda_starts_and_goals_lie_within_its_limits(panda):
    lower, upper = panda.task.robot.get_dofs_limit()
    for obs in (panda.reset(seed=0)[0], panda.reset()[0]):
        qpos, velocity, goal = split(obs, 9, 9, 9)
        for positions in (qpos, goal):
            assert ((positions > lower) & (positions < upper)).all()
        assert not velocity.any()


def test_panda_holds_its_rest_pose_under_the_action_zero(panda):
    task = panda.task
    panda.reset(seed=0)
    for _ in range(99):
        obs, *_ = panda.step(torch.zeros(3, 9))
    qpos, velocity, _ = split(obs, 9, 9, 9)
    error = (qpos - task.rest_positions).abs() / task.working_range
    assert error.max() < 0.05
    assert velocity.abs().max() < 0.02


def test_go2_stands_on_a_ground_with_a_unit_quaternion(go2):
    assert (go2.single_observation_space.shape, go2.single_action_space.shape) == ((19 + 18 + 12,), (12,))
    assert [type(entity.morph).__name__ for entity in go2.scene.entities] == ["URDF", "Plane"]
    obs, _ = go2.reset(seed=0)
    position, quaternion, joints, velocity, _ = split(obs, 3, 4, 12, 18, 12)
    assert (position == position[0]).all() and ((position[:, 2] > 0.2) & (position[:, 2] < 0.6)).all()
    assert quaternion.tolist() == [[1.0, 0.0, 0.0, 0.0]] * 4
    assert not velocity.any()
    assert (joints != joints[0]).any(dim=1).tolist() == [False, True, True, True]
    lowest = go2.task.robot.get_AABB()[..., 0, 2]
    assert (lowest.abs() < 0.1).all()
    for _ in range(10):
        obs, *_ = go2.step(torch.zeros(4, 12))
    torch.testing.assert_close(obs[:, 3:7].norm(dim=1), torch.ones(4), rtol=0, atol=1e-5)
    assert (obs[:, 2] > 0.15).all()


def go2_rollout(go2: Any, breaks: dict[int, int], num_steps: int = 24) -> list[tuple]:
    generator = torch.Generator().manual_seed(0)
    go2.reset(seed=1)
    results = []
    for step in range(num_steps):
        go2.task.breaks_row = breaks.get(step)
        results.append(go2.step(torch.rand(4, 12, generator=generator) * 2 - 1))
        for info in (results[-1][-1], results[-1][-1]["final_info"]):
            info["episode"] = {key: info["episode"][key] for key in ("r", "l")}
    return results


def test_b02_a_robot_in_contact_that_breaks_leaves_the_others_as_they_were(go2):
    clean = go2_rollout(go2, {})
    broken = go2_rollout(go2, {5: 1, 6: 1, 17: 1})
    again = go2_rollout(go2, {})
    for step, (one, other, third) in enumerate(zip(clean, broken, again, strict=True)):
        for a, b, c in zip(tensors_in(one), tensors_in(other), tensors_in(third), strict=True):
            torch.testing.assert_close(a[[0, 2, 3]], b[[0, 2, 3]], rtol=0, atol=0)
            torch.testing.assert_close(a, c, rtol=0, atol=0)
            assert b.isfinite().all()
        assert other[-1]["fault"].tolist() == [False, step in (5, 6, 17), False, False]


def test_b19_a_robot_that_was_pushed_or_broken_starts_anew_like_one_that_was_not(go2):
    """Contacts, warm starts and controllers of the last episode must not be felt in the next."""
    zero = torch.zeros(4, 12)
    go2.reset(seed=1)
    go2.reset()
    expected = [go2.step(zero)[0] for _ in range(10)]
    go2.reset(seed=1)
    push = zero.clone()
    push[0] = 1.0
    for step in range(15):
        go2.task.breaks_row = 2 if step == 14 else None
        *_, truncated, info = go2.step(push if step % 4 < 2 else -push)
    assert truncated.tolist() == [True] * 4
    assert info["fault"].tolist() == [False, False, True, False]
    for obs in expected:
        torch.testing.assert_close(go2.step(zero)[0], obs, rtol=0, atol=0)
