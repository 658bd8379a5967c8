"""The process's one Genesis runtime: shared where settings agree, refused where they do not."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import pytest
import torch

from genesis_vec.engine import EngineOptions, live_view, start_engine
from genesis_vec.errors import EngineConflictError
from genesis_vec.tasks.cart_pole import CartPoleTask

CPU = torch.device("cpu")


class PreciseTask(CartPoleTask):
    engine = EngineOptions(precision="64")


@pytest.fixture
def gs():
    return start_engine(CPU, EngineOptions())


def test_options_are_keyword_only_and_frozen():
    with pytest.raises(TypeError, match="positional"):
        EngineOptions("64")
    with pytest.raises(dataclasses.FrozenInstanceError, match="precision"):
        EngineOptions().precision = "64"


def test_starting_again_with_the_same_settings_shares_the_engine(gs):
    assert start_engine(CPU, EngineOptions()) is gs
    assert start_engine(CPU, EngineOptions(logging_level="debug")) is gs  # no conflict: it says so itself


@pytest.mark.parametrize(
    ("device", "options", "said"),
    [
        (CPU, EngineOptions(precision="64"), "precision='64' (it runs with '32')"),
        (CPU, EngineOptions(performance_mode=True), "performance_mode=True (it runs with False)"),
        (torch.device("cuda", 0), EngineOptions(), "device='cuda' (it runs with 'cpu')"),
        (
            torch.device("cuda", 0),
            EngineOptions(precision="64", performance_mode=True),
            "device='cuda' (it runs with 'cpu'), precision='64' (it runs with '32'), performance_mode=True (it runs "
            "with False)",
        ),
    ],
    ids=["precision", "mode", "device", "all"],
)
def test_b07_each_conflicting_setting_is_named_with_both_values(gs, device, options, said):
    with pytest.raises(EngineConflictError) as raised:
        start_engine(device, options)
    assert str(raised.value) == (
        f"Genesis already runs in this process and was asked for {said}. It can be started only once a process: use "
        "the same settings for every environment here, or another process."
    )


def test_b07_two_environments_share_a_process_and_a_conflicting_third_harms_neither(make_env):
    training, evaluation, alone = make_env(num_envs=3), make_env(num_envs=2), make_env(num_envs=3)
    action = torch.full((3, 1), 0.5)
    alone.reset(seed=1)
    expected = [alone.step(action)[0] for _ in range(4)]

    training.reset(seed=1), evaluation.reset(seed=2)
    seen = [training.step(action)[0]]
    evaluation.step(action[:2])
    seen.append(training.step(action)[0])
    with pytest.raises(EngineConflictError, match=r"precision='64' \(it runs with '32'\)"):
        make_env(PreciseTask(), num_envs=2)
    seen.append(training.step(action)[0])
    evaluation.close()
    seen.append(training.step(action)[0])
    torch.testing.assert_close(torch.stack(seen), torch.stack(expected), rtol=0, atol=0)


def test_the_environment_s_argument_wins_over_the_task_s_engine(make_env):
    with pytest.raises(EngineConflictError, match=r"performance_mode=True \(it runs with False\)"):
        make_env(num_envs=2, performance_mode=True)
    with pytest.raises(ValueError, match="performance_mode='yes': use True, False"):
        make_env(num_envs=2, performance_mode="yes")
    hurried = type("Hurried", (CartPoleTask,), {"engine": EngineOptions(performance_mode=True)})
    make_env(hurried(), num_envs=2, performance_mode=False).reset(seed=0)


def test_arrays_that_cannot_be_read_in_place_are_refused(gs, monkeypatch):
    monkeypatch.setattr(gs, "use_zerocopy", False)
    with pytest.raises(EngineConflictError, match="must be readable in place: unset GS_ENABLE_ZEROCOPY"):
        start_engine(CPU, EngineOptions())


def test_a_live_view_is_the_engines_own_memory(make_env):
    env = make_env(num_envs=3)
    env.reset(seed=0)
    view = live_view(env.scene.rigid_solver.qpos)
    assert view.shape == (3, 2)
    address, before = view.data_ptr(), view.clone()
    env.step(torch.ones(3, 1))
    assert not (view == before).any()
    torch.testing.assert_close(view, env.task.robot.get_qpos(), rtol=0, atol=0)
    env.reset()
    torch.testing.assert_close(view, env.task.robot.get_qpos(), rtol=0, atol=0)
    assert live_view(env.scene.rigid_solver.qpos).data_ptr() == address


SETTINGS_SCRIPT = """
import sys
import genesis_vec
from genesis_vec.tasks.cart_pole import CartPoleTask
from genesis_vec.tasks.rigid import RigidTask

options = genesis_vec.EngineOptions(**eval(sys.argv[1]))
tasks = [CartPoleTask, RigidTask][: int(sys.argv[2])]
for base in tasks:
    task = type("Task", (base,), {"engine": options})()
    env = genesis_vec.GenesisVectorEnv(task, 3, device="cpu", max_episode_steps=5)
    assert genesis_vec.check_vector_env(env, close=True).not_checked == ()
print("all checked")
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "num_tasks"),
    [({"precision": "64"}, 2), ({"performance_mode": True}, 1)],  # which compiles for minutes for a Panda
    ids=["double precision", "performance mode"],
)
def test_the_contract_holds_with_other_settings_of_the_engine(settings, num_tasks):
    command = [sys.executable, "-c", SETTINGS_SCRIPT, repr(settings), str(num_tasks)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.endswith("all checked\n"), done.stderr


WORKERS_SCRIPT = """
import torch
from genesis_vec import GenesisVectorEnv, MultiDeviceVectorEnv
from genesis_vec.tasks.cart_pole import CartPoleTask

def rollout(env):
    results = [env.reset(seed=1)[0]]
    results += [env.step(torch.full((4, 1), 0.3))[0] for _ in range(6)]
    env.close()
    return torch.stack(results)

settings = {"max_episode_steps": 4, "performance_mode": True}
one = rollout(GenesisVectorEnv(CartPoleTask(), 4, device="cpu", **settings))
many = rollout(MultiDeviceVectorEnv(CartPoleTask, 4, devices="cpu:2", **settings))
assert torch.equal(one, many)
print("the same")
"""


@pytest.mark.slow
def test_workers_in_performance_mode_give_the_bits_of_one_scene():
    done = subprocess.run([sys.executable, "-c", WORKERS_SCRIPT], capture_output=True, text=True, check=False)
    assert done.stdout.endswith("the same\n"), done.stderr
