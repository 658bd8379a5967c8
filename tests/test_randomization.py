"""Domain randomisation: off it is not there; on, each draw is in the engine and depends on one stream alone."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from torch.utils._python_dispatch import _disable_current_modes

from genesis_vec import GenesisVectorEnv, MultiDeviceVectorEnv, Randomization, Task
from genesis_vec.errors import TaskError
from genesis_vec.tasks.cart_pole import CartPoleTask
from genesis_vec.tasks.rigid import RigidTask
from tests.wrappers.support import ALL_MODES, ForbidHostReads, exempt_engine, tensors_in

GO2 = "urdf/go2/urdf/go2.urdf"
LIMIT = 4
EVERYTHING = Randomization(
    friction_ratio=(0.5, 1.5),
    mass_ratio=(0.8, 1.2),
    center_of_mass=(-0.03, 0.03),
    stiffness_ratio=(0.7, 1.3),
    damping_ratio=(0.6, 1.4),
    armature_ratio=(0.5, 2.0),
    gravity=(-1.0, 1.0),
    push_velocity=(0.5, 1.0),
    push_interval=2,
    observation_noise=0.1,
    action_delay=(0, 2),
)


def robot(**kwargs: Any) -> RigidTask:
    return RigidTask(GO2, stiffness=40.0, damping=1.0, **kwargs)


@pytest.fixture(scope="module")
def make_randomized() -> Any:
    made: dict[Any, GenesisVectorEnv] = {}

    def make(num_envs: int = 4, randomization: Any = EVERYTHING, **kwargs: Any) -> GenesisVectorEnv:
        settings = {"device": "cpu", "max_episode_steps": LIMIT, **kwargs}
        key = (num_envs, randomization, *sorted(kwargs.items()))
        if key not in made:
            made[key] = GenesisVectorEnv(robot(), num_envs, randomization=randomization, **settings)
        return made[key]

    yield make
    for env in made.values():
        env.close()


def actions_of(env: Any, num_steps: int) -> torch.Tensor:
    # The same row for row, whatever the number of environments.
    generator = torch.Generator().manual_seed(1)
    return torch.rand(num_steps, 16, *env.action_space.shape[1:], generator=generator)[:, : env.num_envs] * 2 - 1


def rollout(env: Any, num_steps: int = 10, seed: int = 0) -> list[Any]:
    results: list[Any] = [env.reset(seed=seed)]
    results += [env.step(action) for action in actions_of(env, num_steps)]
    for result in results[1:]:
        for info in (result[-1], result[-1].get("final_info", {})):
            if "episode" in info:
                info["episode"] = {name: value for name, value in info["episode"].items() if name != "t"}
    return results


def test_off_it_changes_no_bit_and_adds_no_engine_data(make_env: Callable[..., Any]):
    plain = make_env(robot(), 3, max_episode_steps=LIMIT)
    off = GenesisVectorEnv(robot(), 3, device="cpu", max_episode_steps=LIMIT, randomization=Randomization())
    assert off.randomizer is None
    assert not off.scene.rigid_solver._options.batch_links_info
    assert not off.scene.rigid_solver._options.batch_dofs_info
    for one, other in zip(tensors_in(tuple(rollout(plain))), tensors_in(tuple(rollout(off))), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
    off.close()


def test_batched_engine_data_is_there_for_what_needs_it_only():
    for settings, links, joints in (
        ({"friction_ratio": (0.5, 1.0)}, False, False),
        ({"mass_ratio": (0.5, 1.0)}, True, True),
        ({"stiffness_ratio": (0.5, 1.0)}, False, True),
    ):
        options = Randomization(**settings).with_engine_options({})
        rigid = options.get("rigid_options")
        assert (rigid is not None and rigid.batch_links_info, rigid is not None and rigid.batch_dofs_info) == (
            links, joints,
        )  # fmt: skip


def test_each_draw_is_in_its_range_and_in_the_engine(make_randomized):
    env = make_randomized()
    plain = GenesisVectorEnv(robot(), 4, device="cpu")
    env.reset(seed=5)
    model, changed, drawn = plain.task.robot, env.task.robot, env.randomizer.drawn
    for name, values in drawn.items():
        low, high = getattr(EVERYTHING, name)
        assert ((values >= low) & (values <= high)).all(), name
        assert len(values.unique(dim=0)) > 1, name
    close = {"rtol": 1e-5, "atol": 1e-6}
    # The ground's too: of two surfaces that touch the engine takes the larger friction.
    ratio = env.scene.rigid_solver.get_geoms_friction_ratio()
    assert ratio.shape[1] > changed.geom_end - changed.geom_start
    torch.testing.assert_close(ratio, drawn["friction_ratio"].expand_as(ratio), **close)
    for name, get in (
        ("stiffness_ratio", "get_dofs_kp"),
        ("damping_ratio", "get_dofs_kv"),
        ("armature_ratio", "get_dofs_armature"),
        ("mass_ratio", "get_links_mass"),
    ):
        torch.testing.assert_close(getattr(changed, get)(), getattr(model, get)() * drawn[name], **close)
    torch.testing.assert_close(
        changed.get_links_inertia(), model.get_links_inertia() * drawn["mass_ratio"][..., None, None], **close
    )
    shift = changed.get_links_COM([0])[:, 0] - model.get_links_COM([0])
    torch.testing.assert_close(shift, drawn["center_of_mass"], **close)
    gravity = env.scene.rigid_solver.get_gravity()
    torch.testing.assert_close(gravity[:, 2:], -9.81 + drawn["gravity"], **close)
    plain.close()


def test_draws_change_with_the_episode_and_not_within_it(make_randomized):
    env = make_randomized()
    env.reset(seed=0)
    history = []
    for action in actions_of(env, 2 * LIMIT):
        history.append({name: value.clone() for name, value in env.randomizer.drawn.items()})
        env.step(action)
    for name in ("friction_ratio", "mass_ratio", "center_of_mass", "gravity"):
        assert torch.equal(history[0][name], history[LIMIT - 1][name])
        assert (history[0][name] != history[LIMIT][name]).any(dim=1).all()


def test_rows_do_not_depend_on_how_many_there_are(make_randomized):
    many, few = rollout(make_randomized(4)), rollout(make_randomized(2))
    for one, other in zip(many, few, strict=True):
        for a, b in zip(tensors_in(one[:-1]), tensors_in(other[:-1]), strict=True):
            torch.testing.assert_close(a[:2], b, rtol=0, atol=0)


def test_rows_do_not_depend_on_others_resets(make_randomized):
    env = make_randomized()
    alone, disturbed = [], []
    for results, resets in ((alone, False), (disturbed, True)):
        env.reset(seed=2)
        for step, action in enumerate(actions_of(env, 10)):
            if resets and step % 3 == 1:
                env.reset(options={"reset_mask": torch.tensor([False, False, True, True])})
            results.append(env.step(action)[0])
    for one, other in zip(alone, disturbed, strict=True):
        torch.testing.assert_close(one[:2], other[:2], rtol=0, atol=0)
    assert not torch.equal(alone[-1][2:], disturbed[-1][2:])


def test_workers_draw_what_one_scene_draws(make_randomized):
    env = MultiDeviceVectorEnv(
        robot, 4, devices="cpu:2", max_episode_steps=LIMIT, randomization=EVERYTHING, envs_per_scene=2
    )
    for one, other in zip(rollout(make_randomized(4)), rollout(env), strict=True):
        for a, b in zip(tensors_in(one[:-1]), tensors_in(other[:-1]), strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=0)
    env.close()


def test_a_repeated_run_and_a_restored_state_give_the_same_bits(make_randomized):
    env = make_randomized()
    first = rollout(env)
    again = rollout(env)
    env.reset(seed=0)
    actions = actions_of(env, 10)
    for action in actions[:5]:
        env.step(action)
    state = env.state_dict()
    env.reset(seed=9)
    env.step(actions[0])
    env.load_state_dict(state)
    restored = [env.step(action) for action in actions[5:]]
    for one, other in (*zip(first, again, strict=True), *zip(first[6:], restored, strict=True)):
        for a, b in zip(tensors_in(one[:-1]), tensors_in(other[:-1]), strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=0)


@ALL_MODES
def test_the_shortcuts_of_the_cpu_change_no_bit(make_randomized, monkeypatch, mode: AutoresetMode):
    env = make_randomized(autoreset_mode=mode)
    runs = []
    for asks_masks in (True, False):
        monkeypatch.setattr(env, "_asks_masks", asks_masks)
        runs.append(rollout(env))
    for one, other in zip(*runs, strict=True):
        for a, b in zip(tensors_in(one[:-1]), tensors_in(other[:-1]), strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=0)


@ALL_MODES
def test_a_randomised_step_reads_nothing_back_to_the_host(make_randomized, monkeypatch, mode: AutoresetMode):
    # What the engine weighs constraints by is set row by row on the CPU, and for all rows on a GPU.
    settings = dataclasses.replace(EVERYTHING, mass_ratio=None, center_of_mass=None, armature_ratio=None)
    env = make_randomized(randomization=settings, autoreset_mode=mode)
    env.reset(seed=0)
    exempt_engine(env, monkeypatch, _disable_current_modes)
    monkeypatch.setattr(env, "_asks_masks", False)
    ends = torch.zeros(4, dtype=torch.int64)
    with ForbidHostReads():
        for action in actions_of(env, 3 * LIMIT):
            *_, info = env.step(action)
            ends = ends + info["_episode"]
            if mode is AutoresetMode.DISABLED:
                env.reset(options={"reset_mask": info["_episode"]})
    assert (ends >= 2).all()


# ------------------------------------------------------------------------------------------- one thing at a time


def test_an_action_takes_effect_as_many_steps_late_as_was_drawn(make_env: Callable[..., Any]):
    env = GenesisVectorEnv(CartPoleTask(), 8, device="cpu", randomization={"action_delay": (0, 3)})
    env.reset(seed=0)
    given: list[torch.Tensor] = []
    env.task.act = lambda actions, act=env.task.act: (given.append(actions.clone()), act(actions))[1]  # type: ignore[method-assign]
    delays = env.randomizer.drawn["action_delay"][:, 0]
    assert set(delays.tolist()) == {0, 1, 2, 3} or len(set(delays.tolist())) > 2
    for step in range(5):
        env.step(torch.full((8, 1), 0.1 * (step + 1)))
    for row, delay in enumerate(delays.tolist()):
        expected = [0.0] * delay + [0.1 * (step + 1) for step in range(5 - delay)]
        assert [actions[row, 0].item() for actions in given] == pytest.approx(expected)
    env.close()


def test_noise_has_its_standard_deviation_and_is_fresh_in_every_step(make_env: Callable[..., Any]):
    clean = make_env(CartPoleTask(), 512)
    env = GenesisVectorEnv(CartPoleTask(), 512, device="cpu", randomization=Randomization(observation_noise=0.02))
    noises = []
    clean.reset(seed=0), env.reset(seed=0)
    for action in torch.zeros(4, 512, 1):
        noises.append(env.step(action)[0] - clean.step(action)[0])
    noise = torch.stack(noises)
    assert noise.std().item() == pytest.approx(0.02, rel=0.03)
    assert noise.mean().item() == pytest.approx(0.0, abs=1e-3)
    assert abs(torch.corrcoef(noise[:2].flatten(1))[0, 1].item()) < 0.1
    env.close()


def test_a_push_adds_a_horizontal_velocity_when_it_is_due(make_randomized):
    settings = Randomization(push_velocity=(0.5, 0.8), push_interval=2)
    env = make_randomized(randomization=settings, max_episode_steps=100)
    env.reset(seed=0)
    pushes = []
    original = env.task.robot.set_dofs_velocity

    def watch(velocity: torch.Tensor, **kwargs: Any) -> None:
        pushes.append((step, velocity - env.task.robot.get_dofs_velocity(), kwargs["envs_idx"].clone()))
        original(velocity, **kwargs)

    env.task.robot.set_dofs_velocity = watch
    for step in range(5):  # noqa: B007 - read by watch()
        env.step(torch.zeros(env.action_space.shape))
    env.task.robot.set_dofs_velocity = original
    assert [push[0] for push in pushes] == [2, 4]
    for _, change, rows in pushes:
        assert rows.all()
        speed = torch.linalg.vector_norm(change[:, :2], dim=1)
        assert ((speed > 0.499) & (speed < 0.801)).all()
        assert (change[:, 2:] == 0).all()
        angles = torch.atan2(change[:, 1], change[:, 0])
        assert angles.max() - angles.min() > 0.1 * math.pi


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"friction_ratio": (0.0, 1.0)}, r"friction_ratio=\(0.0, 1.0\): a ratio must be above 0"),
        ({"mass_ratio": (1.2, 0.8)}, r"mass_ratio=\(1.2, 0.8\): give \(low, high\)"),
        ({"gravity": 3.0}, "gravity=3.0: give"),
        ({"gravity": (0.0, math.nan)}, "two finite numbers"),
        ({"push_velocity": (-1.0, 1.0)}, "must not be negative"),
        ({"push_interval": 0}, "push_interval=0"),
        ({"action_delay": (0, 1.5)}, r"action_delay=\(0, 1.5\): give whole numbers of steps"),
        ({"action_delay": (0, 10**9)}, r"action_delay=\(0, 1000000000\): at most 100 steps"),
        ({"friction_ratio": (True, 2.0)}, r"friction_ratio=\(True, 2.0\): give \(low, high\)"),
        ({"push_interval": True}, "push_interval=True"),
        ({"observation_noise": -0.1}, "observation_noise=-0.1"),
        ({"observation_noise": True}, "observation_noise=True"),
    ],
)
def test_values_out_of_range_are_refused(settings: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        Randomization(**settings)


def test_what_cannot_be_randomised_is_refused_by_name():
    with pytest.raises(ValueError, match=r"observation_noise='0\.1' must be 0 or more"):
        Randomization(observation_noise="0.1")  # type: ignore[arg-type]
    assert Randomization(gravity=[0, 1]) == Randomization(gravity=(0.0, 1.0))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"randomization has no \['friction'\]"):
        GenesisVectorEnv(CartPoleTask(), 2, device="cpu", randomization={"friction": (1, 2)})
    with pytest.raises(ValueError, match="randomization=3"):
        GenesisVectorEnv(CartPoleTask(), 2, device="cpu", randomization=3)  # type: ignore[arg-type]
    with pytest.raises(TaskError, match="has no robot 'arm' to randomise"):
        GenesisVectorEnv(CartPoleTask(), 2, device="cpu", randomization={"entity": "arm", "gravity": (0.0, 1.0)})
    with pytest.raises(ValueError, match=r"entity='arm'.* randomises nothing"):
        GenesisVectorEnv(CartPoleTask(), 2, device="cpu", randomization={"entity": "arm"})
    with pytest.raises(TaskError, match="center_of_mass: the base of 'robot' of CartPoleTask is fixed"):
        GenesisVectorEnv(CartPoleTask(), 2, device="cpu", randomization={"center_of_mass": (-0.1, 0.1)})
    with pytest.raises(TaskError, match="gravity: it is compensated in all that moves"):
        GenesisVectorEnv(Weightless(), 2, device="cpu", randomization={"gravity": (-0.1, 0.1)})
    with pytest.raises(TaskError, match="has no floating base"):
        GenesisVectorEnv(CartPoleTask(), 2, device="cpu", randomization={"push_velocity": (0.0, 1.0)})


class Weightless(Task):
    """A ball that feels no gravity."""

    observation_space = spaces.Box(-1e3, 1e3, (1,), np.float32)
    action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def build(self, scene: Any) -> None:
        import genesis as gs

        self.robot = scene.add_entity(gs.morphs.Sphere(radius=0.1), material=gs.materials.Rigid(gravity_compensation=1))


# ----------------------------------------------------------------------------------------------------- curriculum


class Lengthening(CartPoleTask):
    """Forgets nothing: how many episodes each environment has finished, and their returns."""

    def setup(self) -> None:
        super().setup()
        self.finished = torch.zeros(self.num_envs, dtype=torch.int64, device=self.device)
        self.total = torch.zeros(self.num_envs, device=self.device)

    def episodes_ended(self, mask: torch.Tensor, returns: torch.Tensor, lengths: torch.Tensor) -> None:
        self.finished = self.finished + mask
        self.total = self.total + returns
        assert torch.equal(lengths > 0, mask)


@ALL_MODES
@pytest.mark.parametrize("asks_masks", [True, False])
def test_a_curriculum_hears_of_each_episode_once(make_env, monkeypatch, mode: AutoresetMode, asks_masks: bool):
    env = make_env(Lengthening(), 3, max_episode_steps=5, autoreset_mode=mode)
    monkeypatch.setattr(env, "_asks_masks", asks_masks)
    env.reset(seed=0)
    env.task.finished.zero_()
    env.task.total.zero_()
    for _ in range(12):
        *_, info = env.step(torch.zeros(3, 1))
        if mode is AutoresetMode.DISABLED:
            env.reset(options={"reset_mask": info["_episode"]})
    assert env.task.finished.tolist() == [2, 2, 2]
    assert env.task.total.tolist() == [10.0, 10.0, 10.0]


def test_a_robot_whose_motors_have_no_gains_is_told_as_a_task_error():
    with pytest.raises(TaskError, match="'robot' of AntTask cannot be randomised so"):
        gymnasium.make_vec("GenesisAnt-v0", num_envs=2, device="cpu", randomization={"stiffness_ratio": (0.9, 1.1)})


def test_noise_stays_within_the_observation_s_bounds():
    env = gymnasium.make_vec("GenesisDroneHover-v0", num_envs=2, device="cpu", randomization={"observation_noise": 0.5})
    observations, _ = env.reset(seed=0)
    space = env.single_observation_space
    assert isinstance(space, spaces.Box)
    assert (observations >= torch.as_tensor(space.low)).all() and (observations <= torch.as_tensor(space.high)).all()
    assert (observations == torch.as_tensor(space.high)).any()
    env.close()
