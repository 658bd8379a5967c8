"""The table of ids, and what `gymnasium.make_vec` makes of it."""

from __future__ import annotations

import re

import gymnasium
import pytest
import torch
from gymnasium.vector import AutoresetMode

import genesis_vec
from genesis_vec.errors import TaskError
from genesis_vec.make import make_registered
from genesis_vec.registry import SHIPPED
from genesis_vec.tasks.cart_pole import CartPoleTask
from genesis_vec.vector_env import GenesisVectorEnv


class HeavyTask(CartPoleTask):
    """A user's own task, with an argument of its own."""

    max_episode_steps = 7

    def __init__(self, load: float = 1.0) -> None:
        super().__init__(max_force=load)
        self.load = load


@pytest.fixture
def register():
    """`register_task`, of which nothing is left after the test."""
    before = set(gymnasium.registry)
    yield genesis_vec.register_task
    for id in set(gymnasium.registry) - before:
        del gymnasium.registry[id]


def make(id: str, **kwargs) -> GenesisVectorEnv:
    return gymnasium.make_vec(id, **{"num_envs": 2, "device": "cpu", **kwargs})


@pytest.mark.parametrize("id", SHIPPED)
def test_shipped_ids_are_registered_for_make_vec_only(id):
    spec = gymnasium.spec(id)
    assert spec.vector_entry_point == "genesis_vec.make:make_registered"
    assert spec.entry_point is None
    assert spec.kwargs == {"task": SHIPPED[id][0]}
    assert spec.max_episode_steps == SHIPPED[id][1]


def test_make_vec_gives_the_environment_its_spec_and_the_registered_time_limit():
    env = make("GenesisCartPole-v0")
    try:
        assert type(env) is GenesisVectorEnv
        assert type(env.task) is CartPoleTask
        assert (env.num_envs, env.device, env.autoreset_mode) == (2, torch.device("cpu"), AutoresetMode.SAME_STEP)
        assert (env.spec.id, env.max_episode_steps) == ("GenesisCartPole-v0", 500)
    finally:
        env.close()


def test_make_vec_takes_arguments_of_the_environment_and_of_the_task():
    env = make("GenesisCartPole-v0", max_force=3.0, max_episode_steps=5, autoreset_mode="NextStep", first_env_index=4)
    try:
        assert env.task.max_force == 3.0
        assert (env.max_episode_steps, env.autoreset_mode) == (5, AutoresetMode.NEXT_STEP)
    finally:
        env.close()


@pytest.mark.parametrize("task", [HeavyTask, "tests.test_registry:HeavyTask"], ids=["class", "string"])
def test_register_task_takes_a_class_or_where_it_is(register, task):
    register("Heavy-v0", task, max_episode_steps=9, load=2.5)
    for kwargs, load, limit in (({}, 2.5, 9), ({"load": 4.0, "max_episode_steps": 3}, 4.0, 3)):
        env = make("Heavy-v0", **kwargs)
        assert type(env.task).__name__ == "HeavyTask"
        assert (env.task.load, env.max_episode_steps) == (load, limit)
        env.close()
    assert gymnasium.spec("Heavy-v0").kwargs == {"task": task, "load": 2.5}


def test_without_a_registered_time_limit_the_tasks_own_counts(register):
    register("Heavy-v0", HeavyTask)
    env = make("Heavy-v0")
    assert env.max_episode_steps == 7
    env.close()


def test_a_task_needs_no_id(make_env):
    env = make_env(HeavyTask(load=2.0), num_envs=2)
    obs, info = env.reset(seed=0)
    assert (obs.shape, info, env.spec, env.max_episode_steps) == ((2, 4), {}, None, 7)
    assert env.step(torch.zeros(2, 1))[1].tolist() == [1.0, 1.0]


def test_unknown_arguments_are_refused_with_the_known_ones():
    with pytest.raises(TypeError) as raised:
        make("GenesisCartPole-v0", max_forse=1.0, colour="red")
    assert str(raised.value) == (
        "unknown arguments ['colour', 'max_forse']; CartPoleTask takes ['max_force'] and the environment "
        "['autoreset_mode', 'device', 'first_env_index', 'image_size', 'max_episode_steps', 'observation', 'on_fault', "
        "'performance_mode', 'randomization', 'render_envs', 'render_mode'], with devices= also envs_per_scene, "
        "egl_device_ids, timeout, start_timeout, on_worker_failure and max_restarts"
    )


class ClashingTask(CartPoleTask):
    def __init__(self, observation: str = "full") -> None:
        super().__init__()


def test_an_argument_of_a_task_that_the_environment_would_take_is_refused():
    with pytest.raises(TypeError, match=r"ClashingTask: \['observation'\] are the environment's own arguments"):
        make_registered(ClashingTask, 2)


def test_what_rigid_tasks_observe_can_be_chosen_by_id():
    env = make("GenesisRigid-v0", state="qpos")
    assert env.single_observation_space.shape == (env.task.robot.n_qs,)
    env.close()


@pytest.mark.parametrize(
    ("entry_point", "said"),
    [
        ("tests.no_such_module:Task", "there is no task 'tests.no_such_module:Task': No module named"),
        ("tests.test_registry:NoTask", "there is no task 'tests.test_registry:NoTask': module .* has no attribute"),
        ("tests.test_registry", "there is no task 'tests.test_registry'"),
        ("", "there is no task ''"),
    ],
)
def test_an_entry_point_that_leads_nowhere(register, entry_point, said):
    register("Nowhere-v0", entry_point)
    with pytest.raises(TaskError, match=said):
        make("Nowhere-v0")


@pytest.mark.parametrize(
    "task",
    [dict, "builtins:dict", HeavyTask(), "genesis_vec.make:make_registered"],
    ids=["class", "string", "instance", "function"],
)
def test_what_is_no_task_class_is_refused(task):
    with pytest.raises(TaskError, match=rf"task={re.escape(repr(task))} is not a subclass of genesis_vec.Task"):
        make_registered(task, 2)


def test_bad_arguments_are_refused_before_a_worker_starts():
    for kwargs, error, match in (
        ({"devices": "tpu:2"}, ValueError, "devices='tpu:2' is not understood"),
        ({"devices": "cpu:2", "devil": 1}, TypeError, r"unknown arguments \['devil'\]"),
        ({"devices": "cpu:2", "on_fault": "pray"}, ValueError, "on_fault='pray'"),
        ({"envs_per_scene": 4}, TypeError, "with devices= also envs_per_scene"),
    ):
        with pytest.raises(error, match=match):
            make("GenesisCartPole-v0", **kwargs)


def test_public_names_are_resolved_lazily_and_listed():
    for name in genesis_vec.__all__:
        assert getattr(genesis_vec, name) is not None
        assert name in dir(genesis_vec)
    assert genesis_vec.GenesisVectorEnv is GenesisVectorEnv
    with pytest.raises(AttributeError, match="module 'genesis_vec' has no attribute 'NoSuchName'"):
        genesis_vec.NoSuchName  # noqa: B018
