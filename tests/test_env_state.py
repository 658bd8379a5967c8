"""The state of an environment: exact in another environment, plain, and refused where it does not fit."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode

from genesis_vec.env_state import attributes_state, restore_attributes
from genesis_vec.errors import StateMismatchError
from genesis_vec.tasks.cart_pole import CartPoleTask
from genesis_vec.tasks.franka_lift import FrankaLiftTask
from genesis_vec.tasks.franka_reach import FrankaReachTask
from genesis_vec.tasks.rigid import RigidTask
from genesis_vec.vector_env import GenesisVectorEnv

TASKS: dict[str, Callable[[], Any]] = {
    "cart-pole": CartPoleTask,
    "rigid": RigidTask,
    "franka-reach": FrankaReachTask,
    "franka-lift": FrankaLiftTask,
}


def stored(state: dict[str, Any]) -> dict[str, Any]:
    """As it comes out of a checkpoint file."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def steps(env: GenesisVectorEnv, count: int, seed: int) -> list[Any]:
    generator = torch.Generator().manual_seed(seed)
    results = []
    for _ in range(count):
        if env.autoreset_mode is AutoresetMode.DISABLED and bool(env._idle.any()):
            results.append(env.reset(options={"reset_mask": env._idle.clone()})[0])
        *result, info = env.step(torch.rand(env.action_space.shape, generator=generator) * 2 - 1)
        info["episode"].pop("t")
        results += [*result, *info["episode"].values(), *info.get("final_info", {}).get("reward_terms", {}).values()]
        if "final_obs" in info:
            results.append(info["final_obs"])
    return results


def assert_same(one: list[Any], other: list[Any]) -> None:
    assert len(one) == len(other)
    for a, b in zip(one, other, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("mode", list(AutoresetMode), ids=lambda mode: mode.name)
@pytest.mark.parametrize("task", TASKS)
def test_another_environment_goes_on_bit_for_bit(task: str, mode: AutoresetMode, make_env: Any):
    # Episodes of seven steps: the state is taken in the midst of some, with rows that wait for their reset.
    first = make_env(TASKS[task](), 4, autoreset_mode=mode, max_episode_steps=7)
    second = make_env(TASKS[task](), 4, autoreset_mode=mode, max_episode_steps=7)
    first.reset(seed=3)
    mask = torch.tensor([True, False, False, True])
    steps(first, 4, seed=0)
    first.reset(options={"reset_mask": mask})
    steps(first, 10 if mode is AutoresetMode.NEXT_STEP else 7, seed=1)
    state = stored(first.state_dict())
    expected = steps(first, 20, seed=2)
    second.reset(seed=9)
    steps(second, 3, seed=5)
    second.load_state_dict(state)
    assert_same(steps(second, 20, seed=2), expected)


def test_a_state_can_be_put_back_into_its_own_environment_more_than_once(make_env: Any):
    env = make_env(num_envs=3, max_episode_steps=5)
    env.reset(seed=0)
    steps(env, 3, seed=0)
    state = env.state_dict()
    first = steps(env, 12, seed=1)
    for _ in range(2):
        env.load_state_dict(state)
        assert_same(steps(env, 12, seed=1), first)


def test_a_state_of_other_environments_is_refused_and_nothing_changes(make_env: Any):
    env, other = make_env(num_envs=3, max_episode_steps=5), make_env(num_envs=4, max_episode_steps=5)
    env.reset(seed=0), other.reset(seed=0)
    before = other.state_dict()
    with pytest.raises(StateMismatchError, match="num_envs=3, not 4"):
        other.load_state_dict(env.state_dict())
    state = other.state_dict()
    name, arrays = next(iter(state["engine"]["solvers"].items()))
    broken = {**state, "engine": {**state["engine"], "solvers": {name: dict(list(arrays.items())[1:])}}}
    with pytest.raises(StateMismatchError, match="the state is of another scene"):
        other.load_state_dict(broken)
    with pytest.raises(StateMismatchError, match="task_class='OtherTask', not 'CartPoleTask'"):
        other.load_state_dict({**state, "task_class": "OtherTask"})
    expected = steps(other, 6, seed=0)
    other.load_state_dict(before)
    assert_same(steps(other, 6, seed=0), expected)


def test_a_state_is_refused_in_the_midst_of_a_step(make_env: Any):
    env = make_env(num_envs=3)
    env.reset(seed=0)
    env.step_async(torch.zeros(3, 1))
    with pytest.raises(ValueError, match=r"state_dict\(\) while a step is under way: call step_wait\(\) first"):
        env.state_dict()
    env.step_wait()


class Owner:
    """Attributes of every kind."""

    def __init__(self) -> None:
        self.memory = torch.zeros(4)
        self.view = self.memory[1:3]
        self.buffer = torch.ones(2)
        self.alias = self.buffer
        self.history = [torch.zeros(2), torch.ones(2)]
        self.named = {"a": torch.zeros(1), "level": 1}
        self.array = np.zeros(3, dtype=np.int64)
        self.count, self.gain, self.name, self.nothing = 3, 0.5, "x", None
        self.other = object()


def test_attributes_come_back_and_views_of_restored_memory_stay_views():
    owner = Owner()
    owner.memory.fill_(7.0)
    owner.buffer = torch.full((2,), float("nan"))
    owner.alias = torch.full((2,), -0.0)
    owner.history.append(torch.full((2,), 5.0))
    owner.named["level"] = 4
    owner.array[1] = 8
    owner.count = 9
    owner.late = torch.arange(2)  # type: ignore[attr-defined]
    state = stored(attributes_state(owner))
    assert "other" not in state
    fresh = Owner()
    fresh.memory.fill_(7.0)  # as the engine has put its own back before
    restore_attributes(fresh, state, torch.device("cpu"))
    assert fresh.view.data_ptr() == fresh.memory[1:].data_ptr()
    assert fresh.buffer.isnan().all() and fresh.alias.signbit().all()
    assert [part.tolist() for part in fresh.history] == [[0, 0], [1, 1], [5, 5]]
    assert (fresh.named["level"], fresh.count, fresh.nothing) == (4, 9, None)
    assert isinstance(fresh.array, np.ndarray) and fresh.array.tolist() == [0, 8, 0]
    assert fresh.late.tolist() == [0, 1]  # type: ignore[attr-defined]
    fresh.buffer[0] = 1.0
    assert state["buffer"].isnan().all(), "the state is not shared with its owner"
