"""The hot path never makes the host wait for the device, and does no more torch operations than it must."""

from __future__ import annotations

import contextlib
import functools
from typing import Any

import pytest
import torch
from gymnasium.vector import AutoresetMode
from torch.utils._python_dispatch import _disable_current_modes

from genesis_vec.benchmark.counting import CountOperations
from genesis_vec.tasks.cart_pole import CartPoleTask
from genesis_vec.tasks.drone_hover import DroneHoverTask
from genesis_vec.tasks.franka_lift import FrankaLiftTask
from genesis_vec.tasks.franka_reach import FrankaReachTask
from genesis_vec.tasks.go2_velocity import Go2VelocityTask
from genesis_vec.tasks.locomotion import AntTask, HumanoidTask
from genesis_vec.tasks.rigid import RigidTask
from tests.little_tasks import CountingTask
from tests.wrappers.support import ALL_MODES, ForbidHostReads, exempt_engine, tensors_in

DISABLED = AutoresetMode.DISABLED
NUM_ENVS, LIMIT = 3, 7
# Episodes end by termination, by the time limit, and by a fault.
TASKS = {
    "GenesisCartPole-v0": CartPoleTask,
    "GenesisRigid-v0": RigidTask,
    "GenesisGo2Velocity-v0": Go2VelocityTask,
    "GenesisDroneHover-v0": DroneHoverTask,
    "GenesisAnt-v0": AntTask,
    "GenesisHumanoid-v0": HumanoidTask,
    "GenesisFrankaReach-v0": FrankaReachTask,
    "GenesisFrankaLift-v0": FrankaLiftTask,
    "terminations": functools.partial(CountingTask, [3, None, 5], True),
}
EACH_TASK = pytest.mark.parametrize("name", TASKS)
# What a step in which nothing ends does beyond `scene.step`: raise these only for a reason worth its microseconds.
QUIET_OPERATIONS = {
    "GenesisCartPole-v0": 33,
    "GenesisRigid-v0": 33,
    "GenesisGo2Velocity-v0": 86,
    "GenesisDroneHover-v0": 77,
    "GenesisAnt-v0": 40,
    "GenesisHumanoid-v0": 40,
    "GenesisFrankaReach-v0": 67,
    "GenesisFrankaLift-v0": 114,
}


def actions_of(env: Any, num_steps: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    actions = torch.rand(num_steps, *env.action_space.shape, generator=generator) * 2 - 1
    actions[num_steps // 2, 1] = torch.nan
    return actions


@ALL_MODES
@EACH_TASK
def test_a_step_reads_nothing_back_to_the_host(make_env, monkeypatch, name, mode):
    env = make_env(TASKS[name](), NUM_ENVS, autoreset_mode=mode, max_episode_steps=LIMIT)
    env.reset(seed=0)
    exempt_engine(env, monkeypatch, _disable_current_modes)
    monkeypatch.setattr(env, "_asks_masks", False)
    results = []
    with ForbidHostReads():
        for action in actions_of(env, 20):
            results.append(env.step(action))
            if mode is DISABLED:
                env.reset(options={"reset_mask": results[-1][2] | results[-1][3]})
    ends = torch.stack([result[-1]["_episode"] for result in results]).sum(dim=0)
    faults = torch.stack([result[-1]["fault"] for result in results]).sum(dim=0)
    assert (ends >= 2).all()
    assert faults.tolist() == [0, 1, 0]
    assert all(tensor.isfinite().all() for result in results for tensor in tensors_in(result[0]))


@ALL_MODES
def test_a_masked_reset_reads_nothing_back_to_the_host(make_env, monkeypatch, mode):
    env = make_env(CartPoleTask(), NUM_ENVS, autoreset_mode=mode, max_episode_steps=LIMIT)
    start, _ = env.reset(seed=0)
    exempt_engine(env, monkeypatch, _disable_current_modes)
    monkeypatch.setattr(env, "_asks_masks", False)
    mask = torch.tensor([True, False, True])
    with ForbidHostReads():
        partly, _ = env.reset(options={"reset_mask": mask})
        wholly, _ = env.reset()
    assert (partly != start).any(dim=1).tolist() == mask.tolist()
    assert (wholly != partly).any(dim=1).all()


@ALL_MODES
@EACH_TASK
def test_the_shortcuts_of_the_cpu_change_no_bit(make_env, monkeypatch, name, mode):
    env = make_env(TASKS[name](), NUM_ENVS, autoreset_mode=mode, max_episode_steps=LIMIT)
    runs = []
    for asks_masks in (True, False):
        monkeypatch.setattr(env, "_asks_masks", asks_masks)
        if hasattr(env.task, "episode"):
            env.task.episode.fill_(-1)
        results = [env.reset(seed=0)]
        for step, action in enumerate(actions_of(env, 60)):
            results.append(env.step(action))
            for info in (results[-1][-1], results[-1][-1].get("final_info", {})):
                info["episode"] = {key: value for key, value in info.get("episode", {}).items() if key != "t"}
            if mode is DISABLED and step % 3 == 2:
                results.append(env.reset(options={"reset_mask": results[-1][2] | results[-1][3]}))
        runs.append([tensors_in(result) for result in results])
    for one, other in zip(*runs, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


@pytest.mark.parametrize("name", QUIET_OPERATIONS)
@ALL_MODES
def test_a_quiet_step_does_not_grow(make_env, monkeypatch, name, mode):
    env = make_env(TASKS[name](), NUM_ENVS, autoreset_mode=mode, max_episode_steps=LIMIT)
    env.reset(seed=0)
    monkeypatch.setattr(env.scene, "step", lambda **kwargs: None)
    # The engine takes propellers' speeds once a step, and there are no steps here.
    monkeypatch.setattr(env.task.robot, "set_propellers_rpm", lambda speeds: None, raising=False)
    action = torch.zeros(env.action_space.shape)
    env.step(action)
    with CountOperations() as counting:
        *_, info = env.step(action)
    names = counting.counts.names
    assert not info["_episode"].any()
    assert len(names) <= QUIET_OPERATIONS[name] + 2, f"{len(names)} operations: {names}"


def test_a_quiet_step_calls_nothing_that_a_restart_needs(make_env, monkeypatch):
    env = make_env(CartPoleTask(), NUM_ENVS, max_episode_steps=LIMIT)
    env.reset(seed=0)
    calls: list[str] = []
    for owner, name in ((env.scene, "reset"), (env.task, "reset"), (env.task, "act"), (env.task, "observe")):
        method = getattr(owner, name)
        label = f"{type(owner).__name__}.{name}"
        monkeypatch.setattr(
            owner, name, lambda *args, m=method, s=label, **kwargs: (calls.append(s), m(*args, **kwargs))[1]
        )
    action = torch.zeros(NUM_ENVS, 1)
    for _ in range(LIMIT - 1):
        env.step(action)
    assert calls == ["CartPoleTask.act", "CartPoleTask.observe"] * (LIMIT - 1)
    calls.clear()
    env.step(action)
    assert calls == [
        "CartPoleTask.act",
        "CartPoleTask.observe",
        "Scene.reset",
        "CartPoleTask.reset",
        "CartPoleTask.observe",
    ]


@pytest.mark.parametrize(
    "wait",
    [
        lambda env: env._last_obs[0, 0].item(),
        lambda env: bool(env._all.any()),
        lambda env: env._last_obs[env._all],
        lambda env: env._all.nonzero(),
    ],
    ids=["item", "bool", "index", "nonzero"],
)
def test_the_tests_here_notice_a_step_that_waits(make_env, monkeypatch, wait):
    env = make_env(CartPoleTask(), NUM_ENVS, max_episode_steps=LIMIT)
    env.reset(seed=0)
    monkeypatch.setattr(env, "_asks_masks", False)
    exempt_engine(env, monkeypatch, _disable_current_modes)
    original = env._observe
    monkeypatch.setattr(env, "_observe", lambda rows: (wait(env), original(rows))[1])
    with ForbidHostReads(), pytest.raises(AssertionError, match="makes the host wait for the device"):
        env.step(torch.zeros(NUM_ENVS, 1))


def test_exempting_the_engine_lets_its_own_reads_pass_and_nothing_else(make_env, monkeypatch):
    env = make_env(CartPoleTask(), NUM_ENVS)
    env.reset(seed=0)
    monkeypatch.setattr(env.scene, "step", lambda **kwargs: torch.zeros(1).item())
    exempt_engine(env, monkeypatch, contextlib.nullcontext)
    with ForbidHostReads(), pytest.raises(AssertionError, match="_local_scalar_dense"):
        env.scene.step()
    exempt_engine(env, monkeypatch, _disable_current_modes)
    with ForbidHostReads(), pytest.raises(AssertionError, match="_local_scalar_dense"):
        env.scene.step()
        torch.zeros(1).item()
