import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode

from genesis_vec.wrappers import ClipReward, RecordEpisodeStatistics, episode_statistics
from tests.fakes import CounterEnv
from tests.wrappers.support import ALL_MODES, ScriptedEnv

ACTIONS = torch.zeros(3, 2)
SAME_STEP, NEXT_STEP, DISABLED = AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED


def episodes(env: RecordEpisodeStatistics, steps: int, first_step: int = 1) -> list[tuple[int, int, float, int]]:
    """(step, env, return, length) of each reported episode, after checking that all else is zero."""
    found = []
    for step in range(first_step, first_step + steps):
        *_, info = env.step(torch.zeros(env.num_envs, 2))
        entry, mask = info["episode"], info["_episode"]
        assert {key: value.dtype for key, value in entry.items()} == {
            "r": torch.float32,
            "l": torch.int64,
            "t": torch.float32,
        }
        assert mask.dtype is torch.bool
        for values in entry.values():
            assert values.shape == (env.num_envs,)
            assert (values[~mask] == 0).all()
        found += [(step, i, entry["r"][i].item(), entry["l"][i].item()) for i in range(env.num_envs) if mask[i]]
    return found


# Limits 2, 3 and 4 and rewards 1, 2, 3, ... make returns of 3, 6 and 10. NEXT_STEP spends a step on each reset.
EXPECTED = {
    SAME_STEP: [(2, 0, 3, 2), (3, 1, 6, 3), (4, 0, 3, 2), (4, 2, 10, 4), (6, 0, 3, 2), (6, 1, 6, 3)],
    NEXT_STEP: [(2, 0, 3, 2), (3, 1, 6, 3), (4, 2, 10, 4), (5, 0, 3, 2), (7, 1, 6, 3)],
    DISABLED: [(2, 0, 3, 2), (3, 1, 6, 3), (4, 2, 10, 4)],
}


@ALL_MODES
@pytest.mark.parametrize("ending", ["terminated", "truncated"])
def test_every_episode_is_reported_once_with_its_return_and_length(mode, ending):
    steps = [2, 3, 4]
    env = RecordEpisodeStatistics(
        CounterEnv(limit=steps, autoreset_mode=mode)
        if ending == "truncated"
        else CounterEnv(limit=100, terminate_at=steps, autoreset_mode=mode)
    )
    env.reset(seed=0)
    assert episodes(env, steps=7) == EXPECTED[mode]


@ALL_MODES
def test_a_full_reset_starts_every_row_anew(mode):
    env = RecordEpisodeStatistics(CounterEnv(limit=[2, 3, 4], autoreset_mode=mode))
    env.reset(seed=0)
    episodes(env, steps=3)
    env.reset()
    assert episodes(env, steps=7) == EXPECTED[mode]


@ALL_MODES
@pytest.mark.parametrize("as_mask", [torch.tensor, np.array], ids=["torch", "numpy"])
def test_a_partial_reset_starts_only_its_rows_anew_and_reports_nothing(mode, as_mask):
    env = RecordEpisodeStatistics(CounterEnv(limit=4, autoreset_mode=mode))
    env.reset(seed=0)
    assert episodes(env, steps=2) == []
    env.reset(options={"reset_mask": as_mask([False, True, False])})
    assert episodes(env, steps=3, first_step=3) == [(4, 0, 10, 4), (4, 2, 10, 4)]


@pytest.mark.parametrize("mode", [NEXT_STEP, DISABLED], ids=["NEXT_STEP", "DISABLED"])
def test_after_resetting_an_ended_episode_by_hand_the_next_step_counts(mode):
    env = RecordEpisodeStatistics(CounterEnv(limit=2, autoreset_mode=mode))
    env.reset(seed=0)
    assert episodes(env, steps=2) == [(2, 0, 3, 2), (2, 1, 3, 2), (2, 2, 3, 2)]
    env.reset(options={"reset_mask": torch.tensor([True, True, False])})
    assert episodes(env, steps=2, first_step=3) == [(4, 0, 3, 2), (4, 1, 3, 2)]


def test_a_reward_in_the_reset_step_of_next_step_does_not_count():
    env = RecordEpisodeStatistics(ScriptedEnv([[1.0], [50.0], [2.0], [4.0]], [[1], [0], [0], [1]], NEXT_STEP))
    env.reset()
    assert episodes(env, steps=4) == [(1, 0, 1, 1), (4, 0, 6, 2)]


def test_disabled_reports_no_second_end_of_an_episode_that_is_stepped_on():
    env = RecordEpisodeStatistics(ScriptedEnv([[1.0]] * 4, [[1], [0], [1], [0]], DISABLED))
    env.reset()
    assert episodes(env, steps=4) == [(1, 0, 1, 1)]


@pytest.mark.parametrize("mode", [SAME_STEP, NEXT_STEP], ids=["SAME_STEP", "NEXT_STEP"])
def test_it_agrees_with_what_the_environment_reports_itself(mode):
    reporting, silent = (CounterEnv(limit=[2, 3, 1], terminate_at=[None, 2, None], autoreset_mode=mode) for _ in "ab")
    measured = RecordEpisodeStatistics(silent)
    reporting.reset(seed=0), measured.reset(seed=0)
    for _ in range(8):
        *_, expected = reporting.step(ACTIONS)
        *_, info = measured.step(ACTIONS)
        assert torch.equal(info["_episode"], expected["_episode"])
        assert torch.equal(info["episode"]["r"], expected["episode"]["r"])
        assert torch.equal(info["episode"]["l"], expected["episode"]["l"])


def test_the_environments_own_entry_is_replaced_by_the_rewards_seen_here():
    env = RecordEpisodeStatistics(ClipReward(CounterEnv(limit=[2, 3, 4]), max_reward=1.5))
    env.reset(seed=0)
    assert episodes(env, steps=4) == [(2, 0, 2.5, 2), (3, 1, 4, 3), (4, 0, 2.5, 2), (4, 2, 5.5, 4)]


def test_another_key_leaves_the_environments_entry_in_place():
    env = RecordEpisodeStatistics(ClipReward(CounterEnv(limit=2), max_reward=1.5), stats_key="clipped")
    env.reset(seed=0)
    env.step(ACTIONS)
    *_, info = env.step(ACTIONS)
    assert info["episode"]["r"].tolist() == [3, 3, 3]
    assert info["clipped"]["r"].tolist() == [2.5, 2.5, 2.5]
    assert info["_clipped"].tolist() == [True, True, True]


def test_same_step_has_the_entry_in_final_info_too():
    env = RecordEpisodeStatistics(ClipReward(CounterEnv(limit=[1, 2, 1]), max_reward=0.5))
    env.reset(seed=0)
    *_, info = env.step(ACTIONS)
    assert info["final_info"]["episode"]["r"].tolist() == [0.5, 0, 0.5]
    assert info["final_info"]["episode"]["l"].tolist() == [1, 0, 1]
    assert info["final_info"]["_episode"].tolist() == [True, False, True]


def test_long_returns_do_not_drown_in_float32_rounding():
    rewards = [[1e8]] + [[1.0]] * 8  # one by one, float32 would add nothing to 1e8
    env = RecordEpisodeStatistics(ScriptedEnv(rewards, [[0]] * 8 + [[1]], SAME_STEP))
    env.reset()
    assert episodes(env, steps=9) == [(9, 0, 100_000_008, 9)]


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        # Reset at tick 0, then a step per tick; limit 2, one more reset of row 1 at tick 7.
        (SAME_STEP, [(2, 0, 2), (2, 1, 2), (4, 0, 2), (4, 1, 2), (6, 0, 2), (6, 1, 2), (9, 0, 3), (9, 1, 2)]),
        (NEXT_STEP, [(2, 0, 2), (2, 1, 2), (5, 0, 2), (5, 1, 2), (9, 0, 3), (9, 1, 2)]),
        (DISABLED, [(2, 0, 2), (2, 1, 2), (9, 1, 2)]),
    ],
    ids=["SAME_STEP", "NEXT_STEP", "DISABLED"],
)
def test_duration_runs_from_the_reset_to_the_last_step(monkeypatch, mode, expected):
    ticks = itertools.count()  # of 1/64 s, after 11 days; float32 has a resolution of 1/16 s there
    clock = SimpleNamespace(perf_counter=lambda: 1e6 + next(ticks) / 64)
    monkeypatch.setattr(episode_statistics, "time", clock)
    env = RecordEpisodeStatistics(CounterEnv(num_envs=2, limit=2, autoreset_mode=mode))
    env.reset(seed=0)
    found = []
    for tick in [1, 2, 3, 4, 5, 6, 8, 9]:
        if tick == 8:
            env.reset(options={"reset_mask": torch.tensor([False, True])})
        *_, info = env.step(torch.zeros(2, 2))
        found += [(tick, i, info["episode"]["t"][i].item() * 64) for i in range(2) if info["_episode"][i]]
    assert found == expected
