"""What is said about a task that breaks its contract: which method, what it gave, what is expected."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from genesis_vec.errors import TaskError
from genesis_vec.task import Task
from genesis_vec.task_check import RESERVED_INFO_KEYS, check_outputs, check_spaces, torch_dtype
from tests.little_tasks import CountingTask

BOX = spaces.Box(-1.0, 1.0, (2,), np.float32)
N = 3


class RightTask(Task):
    """Meets the contract without a scene; each test spoils one thing."""

    observation_space: Any = BOX
    action_space: Any = BOX
    num_envs = N
    device = torch.device("cpu")

    def observe(self):
        return torch.zeros(N, 2)

    def reward(self):
        return {"a": torch.zeros(N), "b": torch.zeros(N)}

    def terminated(self):
        return torch.zeros(N, dtype=torch.bool)

    def metrics(self):
        return {"success": torch.zeros(N, dtype=torch.bool), "position": torch.zeros(N, 3)}


class DictTask(RightTask):
    observation_space = spaces.Dict({"x": BOX, "pixels": spaces.Box(0, 255, (4,), np.uint8)})

    def observe(self):
        return {"x": torch.zeros(N, 2), "pixels": torch.zeros(N, 4, dtype=torch.uint8)}


def task_with(base: type[Task] = RightTask, **attributes: Any) -> Task:
    methods = {
        name: (lambda self, value=value: value) if name in ("observe", "reward", "terminated", "metrics") else value
        for name, value in attributes.items()
    }
    return type("BadTask", (base,), methods)()


def spaces_error(task: Task) -> str:
    with pytest.raises(TaskError) as raised:
        check_spaces(task)
    return str(raised.value)


def outputs_error(task: Task) -> str:
    check_spaces(task)
    with pytest.raises(TaskError) as raised:
        check_outputs(task)
    return str(raised.value)


@pytest.mark.parametrize("task_class", [RightTask, DictTask])
def test_a_right_task_passes(task_class):
    assert check_spaces(task_class()) is None
    assert check_outputs(task_class()) is None


def test_defaults_of_the_optional_methods_pass():
    task = task_with(terminated=None, metrics={}, reward=torch.zeros(N), reward_weights={})
    assert check_outputs(task) is None


# ----------------------------------------------------------------------------------------------------------- spaces


@pytest.mark.parametrize("name", ["observation_space", "action_space"])
@pytest.mark.parametrize("value", [None, (2,)], ids=["None", "a shape"])
def test_a_missing_space(name, value):
    assert spaces_error(task_with(**{name: value})) == (
        f"BadTask.{name} is not set; assign a gymnasium space in the class or in setup()"
    )


def test_a_space_never_assigned():
    class BareTask(Task):
        pass

    assert spaces_error(BareTask()) == (
        "BareTask.observation_space is not set; assign a gymnasium space in the class or in setup()"
    )


@pytest.mark.parametrize(
    "space",
    [spaces.Discrete(3), spaces.Tuple([BOX]), spaces.Dict({"x": BOX, "n": spaces.Discrete(2)})],
    ids=lambda space: type(space).__name__,
)
def test_an_observation_space_that_is_not_of_boxes(space):
    assert spaces_error(task_with(observation_space=space)) == (
        f"BadTask.observation_space must be a Box or a Dict of Box, got {space}"
    )


@pytest.mark.parametrize(
    "space",
    [
        spaces.Discrete(3),
        spaces.Box(-np.inf, 1.0, (2,), np.float32),
        spaces.Box(0.0, np.inf, (2,), np.float32),
        spaces.Box(-1.0, 1.0, (2,), np.float64),
        spaces.Box(-1, 1, (2,), np.int32),
    ],
    ids=["discrete", "unbounded below", "unbounded above", "float64", "integers"],
)
def test_an_action_space_that_is_no_bounded_float32_box(space):
    assert spaces_error(task_with(action_space=space)) == (
        f"BadTask.action_space must be a bounded float32 Box, got {space}"
    )


# ---------------------------------------------------------------------------------------------------------- outputs


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (np.zeros((N, 2), np.float32), "must return a torch.Tensor, got ndarray"),
        (None, "must return a torch.Tensor, got NoneType"),
        ({"x": torch.zeros(N, 2)}, "must return a torch.Tensor, got dict"),
        (torch.zeros(N), "has shape (3,), expected (3, 2)"),
        (torch.zeros(2), "has shape (2,), expected (3, 2)"),
        (torch.zeros(N, 3), "has shape (3, 3), expected (3, 2)"),
        (torch.zeros(N, 2, device="meta"), "is on meta, expected cpu"),
        (torch.zeros(N, 2, dtype=torch.int32), "has dtype torch.int32, expected torch.float32"),
        (torch.zeros(N, 2, dtype=torch.float16), "has dtype torch.float16, expected torch.float32"),
    ],
    ids=["numpy", "None", "dict", "no axis", "no batch", "width", "device", "int", "half"],
)
def test_a_wrong_observation(value, said):
    assert outputs_error(task_with(observe=value)) == f"BadTask.observe() {said}"


def test_float64_passes_for_float32():
    class PreciseTask(RightTask):
        def observe(self):
            return torch.zeros(N, 2, dtype=torch.float64)

    assert check_outputs(PreciseTask()) is None


@pytest.mark.parametrize(
    ("value", "given"),
    [
        (torch.zeros(N, 2), "Tensor"),
        ({"x": torch.zeros(N, 2)}, "['x']"),
        ({"x": torch.zeros(N, 2), "pixels": None, "more": None}, "['more', 'pixels', 'x']"),
    ],
    ids=["tensor", "missing", "too many"],
)
def test_a_dict_observation_with_other_keys_than_its_space(value, given):
    assert outputs_error(task_with(DictTask, observe=value)) == (
        f"BadTask.observe() must return a dict with the keys ['pixels', 'x'], got {given}"
    )


def test_a_wrong_leaf_of_a_dict_observation_is_named_by_its_key():
    class BadTask(DictTask):
        def observe(self):
            return {"x": torch.zeros(N, 2), "pixels": torch.zeros(N, 4)}

    assert outputs_error(BadTask()) == ("BadTask.observe()['pixels'] has dtype torch.float32, expected torch.uint8")


@pytest.mark.parametrize("view", [lambda x: x, lambda x: x[:, :2], lambda x: x.T[:2].T], ids=["itself", "slice", "T"])
def test_an_observation_that_is_the_same_memory_twice(view):
    kept = torch.zeros(N, 3)

    class BadTask(RightTask):
        observation_space = spaces.Box(-1.0, 1.0, (view(kept).shape[1],), np.float32)

        def observe(self):
            return view(kept)

    assert outputs_error(BadTask()) == (
        "BadTask.observe() gives the same memory twice, so that what was handed out would change later; return a new "
        "tensor each time, such as its .clone()"
    )


def test_a_metric_that_is_the_same_memory_twice():
    assert outputs_error(task_with(metrics={"success": torch.zeros(N)})).startswith(
        "BadTask.metrics()['success'] gives the same memory twice"
    )


@pytest.mark.parametrize("key", [*RESERVED_INFO_KEYS, "_success"])
def test_a_metric_by_a_name_that_the_info_has_already(key):
    assert outputs_error(task_with(metrics={key: torch.zeros(N)})) == (
        f"BadTask.metrics() may not use the name {key!r}: the environment's info has it already"
    )


@pytest.mark.parametrize(
    ("value", "said"),
    [(True, "must return a torch.Tensor, got bool"), (torch.zeros(2, 3), "has shape (2, 3), expected (3, 3)")],
    ids=["bool", "rows"],
)
def test_a_wrong_metric(value, said):
    assert outputs_error(task_with(metrics={"success": value})) == f"BadTask.metrics()['success'] {said}"


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (0.0, "reward() must return a torch.Tensor, got float"),
        (torch.zeros(N, 1), "reward() has shape (3, 1), expected (3,)"),
        (torch.zeros(()), "reward() has shape (), expected (3,)"),
        ({"a": torch.zeros(N), "b": torch.zeros(N, 1)}, "reward()['b'] has shape (3, 1), expected (3,)"),
        ({"a": 1.0}, "reward()['a'] must return a torch.Tensor, got float"),
        ({"a": torch.zeros(N, device="meta")}, "reward()['a'] is on meta, expected cpu"),
        ({}, "reward() must return a tensor or at least one named term, got an empty dict"),
    ],
    ids=["float", "column", "scalar", "term shape", "term float", "term device", "no terms"],
)
def test_a_wrong_reward(value, said):
    assert outputs_error(task_with(reward=value)) == f"BadTask.{said}"


@pytest.mark.parametrize(
    ("reward", "weights", "unknown"),
    [
        ({"a": torch.zeros(N)}, {"a": 2.0, "z": 1.0, "y": 1.0}, "['y', 'z']"),
        (torch.zeros(N), {"reward": 2.0}, "['reward']"),
    ],
    ids=["terms", "no terms"],
)
def test_a_weight_of_a_term_that_is_not_given(reward, weights, unknown):
    assert outputs_error(task_with(reward=reward, reward_weights=weights)) == (
        f"BadTask.reward_weights names terms that reward() does not give: {unknown}"
    )


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (False, "must return a torch.Tensor, got bool"),
        (torch.zeros(N), "has dtype torch.float32, expected torch.bool"),
        (torch.zeros(N, dtype=torch.uint8), "has dtype torch.uint8, expected torch.bool"),
        (torch.zeros(N, 1, dtype=torch.bool), "has shape (3, 1), expected (3,)"),
    ],
    ids=["bool", "float", "uint8", "column"],
)
def test_wrong_terminations(value, said):
    assert outputs_error(task_with(terminated=value)) == f"BadTask.terminated() {said}"


@pytest.mark.parametrize("method", ["build", "act", "observe", "reward"])
def test_the_methods_a_task_must_define_say_so(method):
    class BareTask(Task):
        pass

    with pytest.raises(NotImplementedError, match=f"BareTask must define {method}"):
        getattr(BareTask(), method)(*[None] * (method in ("build", "act")))


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [(np.float32, torch.float32), (np.uint8, torch.uint8), (np.int64, torch.int64), (np.bool_, torch.bool)],
)
def test_torch_dtype_is_that_of_the_space(dtype, expected):
    assert torch_dtype(spaces.Box(0, 1, (1,), dtype)) is expected


# ------------------------------------------------------------------------------------------------ in an environment


def test_construction_runs_both_checks_and_leaves_nothing_open(make_env):
    class NoActionSpace(CountingTask):
        def setup(self):
            super().setup()
            del self.action_space

    class ColumnReward(CountingTask):
        def reward(self):
            return super().reward()[:, None]

    for task, said in (
        (NoActionSpace(), "NoActionSpace.action_space is not set"),
        (ColumnReward(), r"ColumnReward.reward\(\) has shape \(3, 1\), expected \(3,\)"),
    ):
        with pytest.raises(TaskError, match=said):
            make_env(task)
        assert not task.scene.is_built  # it was destroyed with what it held
