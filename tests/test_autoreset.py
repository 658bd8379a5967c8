"""How episodes end and start anew, in the three modes, with exact arrays; time limits; episode statistics."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode

from tests.fakes import CounterEnv
from tests.little_tasks import CountingTask, start_counting
from tests.wrappers.support import ALL_MODES

SAME_STEP, NEXT_STEP, DISABLED = AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED
ACTIONS = torch.zeros(3, 1)


def assert_result(result: tuple, obs: list, reward: list, terminated: list, truncated: list) -> None:
    assert result[0].tolist() == obs
    assert result[1].tolist() == reward
    assert (result[2].dtype, result[3].dtype) == (torch.bool, torch.bool)
    assert result[2].int().tolist() == terminated
    assert result[3].int().tolist() == truncated


def assert_same_tree(one: object, other: object, where: str) -> None:
    """Equality of everything but durations in what two environments returned."""
    if isinstance(one, dict):
        assert isinstance(other, dict), where
        for key in set(one) - {"t"}:
            assert_same_tree(one[key], other[key], f"{where}[{key!r}]")
    else:
        torch.testing.assert_close(one, other, rtol=0, atol=0, msg=lambda text: f"{where}: {text}")


# ---------------------------------------------------------------------------------------------- by hand, mode by mode


def test_b01_same_step_gives_the_last_observation_and_the_next_first_one(make_env):
    env = make_env(CountingTask(), max_episode_steps=3)
    obs, _ = start_counting(env, seed=0)
    assert obs.tolist() == [[0, 0, 0], [1, 0, 0], [2, 0, 0]]
    for step in (1, 2):
        result = env.step(ACTIONS)
        assert_result(result, [[i, 0, step] for i in range(3)], [step] * 3, [0] * 3, [0] * 3)
        assert not result[-1]["_final_obs"].any() and not result[-1]["_final_info"].any()
        assert result[-1]["final_obs"].tolist() == result[0].tolist()
    result = env.step(ACTIONS)
    info = result[-1]
    assert_result(result, [[i, 1, 0] for i in range(3)], [3] * 3, [0] * 3, [1] * 3)
    kept = info["final_obs"]
    for _ in range(4):
        env.step(ACTIONS)
    assert kept.tolist() == [[0, 0, 3], [1, 0, 3], [2, 0, 3]]
    assert info["_final_obs"].tolist() == info["_final_info"].tolist() == info["_episode"].tolist() == [True] * 3
    assert info["final_info"]["reward_terms"]["reward"].tolist() == [3, 3, 3]
    assert info["final_info"]["episode"]["l"].tolist() == [3, 3, 3]


def test_same_step_leaves_the_environments_that_go_on_alone(make_env):
    env = make_env(CountingTask([2, None, None]), max_episode_steps=4)
    start_counting(env, seed=0)
    env.step(ACTIONS)
    result = env.step(ACTIONS)
    assert_result(result, [[0, 1, 0], [1, 0, 2], [2, 0, 2]], [2, 2, 2], [1, 0, 0], [0, 0, 0])
    assert result[-1]["final_obs"].tolist() == [[0, 0, 2], [1, 0, 2], [2, 0, 2]]
    assert result[-1]["_final_obs"].tolist() == [True, False, False]


def test_next_step_shows_the_last_observation_and_resets_in_the_next_step_without_a_reward(make_env):
    env = make_env(CountingTask([2, None, None]), autoreset_mode=NEXT_STEP, max_episode_steps=3)
    start_counting(env, seed=0)
    env.step(ACTIONS)
    expected = [
        ([[0, 0, 2], [1, 0, 2], [2, 0, 2]], [2, 2, 2], [1, 0, 0], [0, 0, 0]),
        ([[0, 1, 0], [1, 0, 3], [2, 0, 3]], [0, 3, 3], [0, 0, 0], [0, 1, 1]),
        ([[0, 1, 1], [1, 1, 0], [2, 1, 0]], [1, 0, 0], [0, 0, 0], [0, 0, 0]),
        ([[0, 1, 2], [1, 1, 1], [2, 1, 1]], [2, 1, 1], [1, 0, 0], [0, 0, 0]),
        ([[0, 2, 0], [1, 1, 2], [2, 1, 2]], [0, 2, 2], [0, 0, 0], [0, 0, 0]),
    ]
    for row in expected:
        result = env.step(ACTIONS)
        assert_result(result, *row)
        assert not {"final_obs", "final_info"} & set(result[-1])


def test_next_step_a_reset_by_mask_of_a_waiting_environment_is_the_reset_it_waited_for(make_env):
    env = make_env(CountingTask(), autoreset_mode=NEXT_STEP, max_episode_steps=2)
    start_counting(env, seed=0)
    env.step(ACTIONS)
    env.step(ACTIONS)
    obs, _ = env.reset(options={"reset_mask": np.array([True, False, False])})
    assert obs.tolist() == [[0, 1, 0], [1, 0, 2], [2, 0, 2]]
    result = env.step(ACTIONS)
    assert_result(result, [[0, 1, 1], [1, 1, 0], [2, 1, 0]], [1, 0, 0], [0] * 3, [0] * 3)


def test_disabled_leaves_an_ended_environment_as_it_ended_until_it_is_reset(make_env):
    env = make_env(CountingTask([2, None, 3]), autoreset_mode=DISABLED, max_episode_steps=3)
    start_counting(env, seed=0)
    env.step(ACTIONS)
    steps = [
        ([[0, 0, 2], [1, 0, 2], [2, 0, 2]], [2, 2, 2], [1, 0, 0], [0, 0, 0]),
        ([[0, 0, 2], [1, 0, 3], [2, 0, 3]], [0, 3, 3], [1, 0, 1], [0, 1, 0]),
        ([[0, 0, 2], [1, 0, 3], [2, 0, 3]], [0, 0, 0], [1, 0, 1], [0, 1, 0]),
        ([[0, 0, 2], [1, 0, 3], [2, 0, 3]], [0, 0, 0], [1, 0, 1], [0, 1, 0]),
    ]
    episodes = [[True, False, False], [False, True, True], [False] * 3, [False] * 3]
    for row, ended in zip(steps, episodes, strict=True):
        result = env.step(ACTIONS)
        assert_result(result, *row)
        assert result[-1]["_episode"].tolist() == ended  # each episode is reported once
        assert result[-1]["reward_terms"]["reward"].tolist() == row[1]
        assert not {"final_obs", "final_info"} & set(result[-1])
    obs, _ = env.reset(options={"reset_mask": torch.tensor([False, True, False])})
    assert obs.tolist() == [[0, 0, 2], [1, 1, 0], [2, 0, 3]]
    assert_result(env.step(ACTIONS), [[0, 0, 2], [1, 1, 1], [2, 0, 3]], [0, 1, 0], [1, 0, 1], [0, 0, 0])
    obs, _ = env.reset()
    assert obs.tolist() == [[0, 1, 0], [1, 2, 0], [2, 1, 0]]
    assert_result(env.step(ACTIONS), [[0, 1, 1], [1, 2, 1], [2, 1, 1]], [1, 1, 1], [0] * 3, [0] * 3)


@ALL_MODES
def test_an_end_on_the_step_of_the_time_limit_is_a_termination_only(make_env, mode):
    env = make_env(CountingTask([3, None, 2]), autoreset_mode=mode, max_episode_steps=3)
    start_counting(env, seed=0)
    flags = [env.step(ACTIONS)[2:4] for _ in range(3)]
    expected_last = [False, False, mode is DISABLED]
    assert [flag.tolist() for flag in flags[1]] == [[False, False, True], [False] * 3]
    assert [flag.tolist() for flag in flags[2]] == [[True, False, expected_last[2]], [False, True, False]]


# ------------------------------------------------------------------------------- against a second, plain implementation


@ALL_MODES
@pytest.mark.parametrize(
    ("limit", "terminate_at"),
    [(4, [None, 2, 4]), (1, None), (3, 3), (5, [1, 2, 3])],
    ids=["mixed", "one step", "both at once", "never the limit"],
)
@pytest.mark.parametrize("device_path", [False, True], ids=["cpu path", "device path"])
def test_counters_equal_those_of_a_plain_implementation(make_env, monkeypatch, mode, limit, terminate_at, device_path):
    plain = CounterEnv(3, limit, terminate_at, mode)
    env = make_env(CountingTask(terminate_at), autoreset_mode=mode, max_episode_steps=limit)
    if device_path:
        monkeypatch.setattr(env, "_asks_masks", False)
    assert_same_tree(start_counting(env, seed=0)[0], plain.reset(seed=0)[0], "reset")
    masks = {4: torch.tensor([True, False, False]), 5: torch.tensor([False, True, True]), 9: torch.zeros(3).bool()}
    for step in range(1, 14):
        result, expected = env.step(ACTIONS), plain.step(ACTIONS)
        for name, one, other in zip(("obs", "reward", "terminated", "truncated"), result, expected, strict=False):
            assert_same_tree(one, other, f"{name} of step {step}")
        # The plain one's info is smaller.
        assert_same_tree(expected[-1], result[-1], f"info of step {step}")
        mask = masks.get(step)
        if mode is DISABLED:
            mask = (result[2] | result[3]) | (torch.zeros(3).bool() if mask is None else mask)
        if mask is not None:
            options = {"reset_mask": mask}
            assert_same_tree(env.reset(options=options)[0], plain.reset(options=options)[0], f"reset after step {step}")


# ------------------------------------------------------------------------------------------------ limits and statistics


@ALL_MODES
@pytest.mark.parametrize("limit", [3, 4, 5])
def test_b25_five_episodes_have_their_exact_lengths_and_returns(make_env, mode, limit):
    env = make_env(CountingTask(), autoreset_mode=mode, max_episode_steps=limit)
    start_counting(env, seed=0)
    lengths, returns = [], []
    for _ in range(5 * (limit + 1)):
        *_, info = env.step(ACTIONS)
        if info["_episode"].any():
            lengths.append(info["episode"]["l"].tolist())
            returns.append(info["episode"]["r"].tolist())
            if mode is DISABLED:
                env.reset(options={"reset_mask": info["_episode"]})
        else:
            assert info["episode"]["l"].tolist() == info["episode"]["r"].tolist() == [0, 0, 0]
            assert info["episode"]["t"].tolist() == [0.0, 0.0, 0.0]
        if len(lengths) == 5:
            break
    assert lengths == [[limit] * 3] * 5
    assert returns == [[sum(range(1, limit + 1))] * 3] * 5


def test_statistics_have_rows_of_ended_episodes_only_and_their_dtypes(make_env):
    env = make_env(CountingTask([2, None, None]), max_episode_steps=3)
    start_counting(env, seed=0)
    env.step(ACTIONS)
    episode = env.step(ACTIONS)[-1]["episode"]
    assert episode["l"].tolist() == [2, 0, 0] and episode["l"].dtype == torch.int64
    assert episode["r"].tolist() == [3, 0, 0] and episode["r"].dtype == torch.float32
    assert episode["t"].dtype == torch.float32
    episode = env.step(ACTIONS)[-1]["episode"]
    assert (episode["l"].tolist(), episode["r"].tolist()) == ([0, 3, 3], [0, 6, 6])


def test_statistics_count_from_a_reset_by_mask(make_env):
    env = make_env(CountingTask(), max_episode_steps=4)
    start_counting(env, seed=0)
    for _ in range(2):
        env.step(ACTIONS)
    env.reset(options={"reset_mask": torch.tensor([False, True, False])})
    ends = [env.step(ACTIONS)[-1]["episode"] for _ in range(4)]
    assert [end["l"].tolist() for end in ends] == [[0, 0, 0], [4, 0, 4], [0, 0, 0], [0, 4, 0]]
    assert [end["r"].tolist() for end in ends] == [[0, 0, 0], [10, 0, 10], [0, 0, 0], [0, 10, 0]]


def test_t_is_the_episodes_wall_clock_time(make_env, monkeypatch):
    now = 1000.0
    monkeypatch.setattr(time, "perf_counter", lambda: now)
    env = make_env(CountingTask([2, None, None]), max_episode_steps=3, fresh=True)
    now = 1007.0
    start_counting(env, seed=0)
    now = 1008.0
    env.step(ACTIONS)
    now = 1010.5
    assert env.step(ACTIONS)[-1]["episode"]["t"].tolist() == [3.5, 0.0, 0.0]
    now = 1011.0
    assert env.step(ACTIONS)[-1]["episode"]["t"].tolist() == [0.0, 4.0, 4.0]
    now = 1011.25
    assert env.step(ACTIONS)[-1]["episode"]["t"].tolist() == [0.75, 0.0, 0.0]


@ALL_MODES
def test_without_a_time_limit_nothing_is_ever_truncated(make_env, mode):
    env = make_env(CountingTask([None, 30, None]), autoreset_mode=mode)
    assert env.max_episode_steps is None
    start_counting(env, seed=0)
    results = [env.step(ACTIONS) for _ in range(40)]
    assert not any(result[3].any() for result in results)
    assert next(step for step, result in enumerate(results, 1) if result[2][1]) == 30
    assert not any(result[2][[0, 2]].any() for result in results)
