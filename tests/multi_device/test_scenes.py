"""Which rows go to which worker and scene, and what a user may give to make them."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genesis_vec.errors import TaskError
from genesis_vec.multi_device.scenes import CallableScenes, TaskScenes, make_scenes, split_rows
from genesis_vec.tasks.cart_pole import CartPoleTask


@given(num_envs=st.integers(1, 5000), num_workers=st.integers(1, 20), envs_per_scene=st.none() | st.integers(2, 400))
def test_every_row_is_in_one_scene_and_scenes_are_even_and_not_too_large(num_envs, num_workers, envs_per_scene):
    workers = split_rows(num_envs, num_workers, envs_per_scene)
    scenes = [scene for worker in workers for scene in worker]
    assert [row for first, count in scenes for row in range(first, first + count)] == list(range(num_envs))
    sizes = [count for _, count in scenes]
    assert min(sizes) >= min(2, num_envs)
    assert max(sizes) <= max(envs_per_scene or num_envs, 3)
    per_worker = [sum(count for _, count in worker) for worker in workers]
    assert max(per_worker) - min(per_worker) <= 1
    assert len(workers) == max(1, min(num_workers, num_envs // 2))
    for worker in workers:
        counts = [count for _, count in worker]
        assert max(counts) - min(counts) <= 1


def test_no_scene_has_a_single_environment_unless_there_is_no_more_than_one():
    assert split_rows(1, 4, 128) == [[(0, 1)]]
    assert split_rows(3, 4, 128) == [[(0, 3)]]
    assert split_rows(5, 2, 2) == [[(0, 2)], [(2, 3)]]


@pytest.mark.parametrize(
    "task",
    [
        "GenesisCartPole-v0",
        "genesis_vec:GenesisCartPole-v0",
        "genesis_vec.tasks.cart_pole:CartPoleTask",
        CartPoleTask,
        CartPoleTask(),
        lambda: CartPoleTask(),
    ],
    ids=["id", "module:id", "module:class", "class", "instance", "function"],
)
def test_a_task_can_be_given_in_many_ways(task):
    scenes = make_scenes(task, 5, 0, {"max_episode_steps": 7})
    assert isinstance(scenes, TaskScenes)
    assert (scenes.num_envs, scenes.settings.max_episode_steps) == (5, 7)


def test_kernels_are_for_any_size_of_scene_unless_they_are_compiled_for_one():
    keys = {
        (mode, size): make_scenes(CartPoleTask, 8, 0, {"performance_mode": mode}).key(size)  # type: ignore[union-attr]
        for mode in (None, False, True)
        for size in (3, 4)
    }
    assert keys[None, 3] == keys[None, 4] == keys[False, 3] == keys[False, 4]
    assert len({keys[None, 3], keys[True, 3], keys[True, 4]}) == 3


def test_an_ids_own_time_limit_is_kept():
    scenes = make_scenes("GenesisRigid-v0", 5, 0, {})
    assert isinstance(scenes, TaskScenes)
    assert scenes.settings.max_episode_steps == 100


def test_a_function_of_num_envs_makes_environments_itself():
    scenes = make_scenes(lambda num_envs, device, first_env_index: (num_envs, device, first_env_index), 5, 10, {})
    assert isinstance(scenes, CallableScenes)
    assert scenes(2, "cpu", 3) == (2, "cpu", 13)


@pytest.mark.parametrize(
    ("task", "kwargs", "error", "match"),
    [
        (7, {}, TaskError, "give an id, a Task"),
        (lambda: 7, {}, TaskError, "give an id, a Task"),
        (int, {}, TaskError, "not a subclass"),
        ("nothing:Here", {}, (TaskError, ImportError), "nothing"),
        (CartPoleTask, {"devil": 1}, TypeError, r"unknown arguments \['devil'\]"),
        (CartPoleTask, {"autoreset_mode": "sometimes"}, ValueError, "sometimes"),
        (CartPoleTask, {"max_episode_steps": 0}, ValueError, "max_episode_steps"),
        (CartPoleTask, {"render_mode": "human"}, ValueError, "render_mode"),
        (lambda num_envs, device, first_env_index: None, {"on_fault": "raise"}, TypeError, "on_fault"),
    ],
)
def test_what_cannot_be_made_is_refused_before_any_process_starts(task, kwargs, error, match):
    with pytest.raises(error, match=match):
        make_scenes(task, 4, 0, kwargs)


@pytest.mark.parametrize("num_envs", [0, -1, 2.5, True, "4"])
@pytest.mark.parametrize("task", [CartPoleTask, lambda num_envs, device, first_env_index: None])
def test_a_number_of_environments_that_is_none_is_refused(task, num_envs):
    with pytest.raises(ValueError, match="num_envs"):
        make_scenes(task, num_envs, 0, {})


def test_a_task_that_cannot_be_sent_is_refused_with_the_remedy():
    task = CartPoleTask()
    task.lock = threading.Lock()
    with pytest.raises(TaskError, match=r"cannot be sent to a worker process.*build\(\)"):
        make_scenes(task, 4, 0, {})
