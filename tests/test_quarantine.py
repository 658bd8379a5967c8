"""B02: one environment's broken numbers end that environment's episode, and nothing else happens."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode

from genesis_vec.errors import EnvFaultError
from genesis_vec.streams import EnvStreams
from tests.little_tasks import BreakableTask, CountingTask
from tests.wrappers.support import ALL_MODES, tensors_in

SAME_STEP, NEXT_STEP, DISABLED = AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED
FAULT_STEP, NUM_STEPS, LIMIT = 5, 30, 20  # counted from 0; the time limit comes once before and once after
WHERE = pytest.mark.parametrize(
    ("num_envs", "row"), [(4, 0), (4, 1), (4, 3), (1, 0)], ids=["first", "middle", "last", "only"]
)
FLAGGED = "the engine flags an error (forces that are not finite, or too many contacts)"
BREAKAGES = ["action", "infinite_action", "force", "velocity", "position", "observation", "reward"]


def rollout(env: Any, breakage: str | None, row: int) -> list[tuple]:
    """What each of 30 steps from a fixed seed returned; one environment's numbers break at step 5."""
    env.reset(seed=3)
    env.task.steps_taken = 0
    broken_action = {"action": torch.nan, "infinite_action": -torch.inf}.get(breakage or "")
    env.task.breakage = (breakage, row, FAULT_STEP) if breakage and broken_action is None else None
    generator = torch.Generator().manual_seed(0)
    results = []
    for step in range(NUM_STEPS):
        actions = torch.rand(4, 1, generator=generator)[: env.num_envs] * 2 - 1
        if broken_action is not None and step == FAULT_STEP:
            actions[row] = broken_action
        results.append(env.step(actions))
        if env.autoreset_mode is DISABLED and step % 3 == 2:  # so that ended environments also stay so for a while
            env.reset(options={"reset_mask": results[-1][2] | results[-1][3]})
    env.task.breakage = None
    return results


def assert_same_rows(results: list[tuple], clean: list[tuple], rows: list[int]) -> None:
    for result, expected in zip(results, clean, strict=True):
        for info in (result[-1], expected[-1], result[-1].get("final_info", {}), expected[-1].get("final_info", {})):
            info["episode"] = {key: value for key, value in info.get("episode", {}).items() if key != "t"}
        for one, other in zip(tensors_in(result), tensors_in(expected), strict=True):
            torch.testing.assert_close(one[rows], other[rows], rtol=0, atol=0)


def assert_all_finite(results: list[tuple]) -> None:
    tensors = [tensor for result in results for tensor in tensors_in(result)]
    assert all(tensor.isfinite().all() for tensor in tensors)


@ALL_MODES
@WHERE
@pytest.mark.parametrize("breakage", BREAKAGES)
def test_b02_a_faulty_environment_is_truncated_alone(make_env, mode, num_envs, row, breakage):
    env, untouched = (
        make_env(BreakableTask(), num_envs, autoreset_mode=mode, max_episode_steps=LIMIT) for _ in range(2)
    )
    clean = rollout(untouched, None, row)
    results = rollout(env, breakage, row)
    others = [other for other in range(num_envs) if other != row]
    assert_same_rows(results, clean, others)
    assert_all_finite(results)

    faults = torch.stack([result[-1]["fault"] for result in results])
    assert faults.nonzero().tolist() == [[FAULT_STEP, row]]
    before, (obs, reward, terminated, truncated, info) = results[FAULT_STEP - 1 : FAULT_STEP + 1]
    assert (reward[row].item(), terminated[row].item(), truncated[row].item()) == (0.0, False, True)
    assert [term[row].item() for term in info["reward_terms"].values()] == [0.0, 0.0]
    assert info["position"][row].item() == 0.0
    # The last observation that a policy could have seen stands for the broken one.
    last = info["final_obs"] if mode is SAME_STEP else obs
    assert last[row].tolist() == before[0][row].tolist()
    # The episode counts the faulty step, and its return what was paid before it.
    assert info["_episode"][row]
    assert info["episode"]["l"][row].item() == FAULT_STEP + 1
    paid = torch.stack([result[1][row] for result in results[: FAULT_STEP + 1]]).sum()
    torch.testing.assert_close(info["episode"]["r"][row], paid)
    if mode is SAME_STEP:
        assert info["_final_obs"][row] and info["final_info"]["fault"][row]

    # It starts anew as an environment does that has had no fault: with its stream's next episode.
    streams = EnvStreams(num_envs, env.device)
    streams.seed(3)
    for _ in range(2):
        streams.begin_episode(torch.ones(num_envs, dtype=torch.bool))
    start = streams.select(None).uniform(4, low=-0.05, high=0.05)[row]
    if mode is not DISABLED:  # there reset() gave the first observation, which is not among the results
        assert results[FAULT_STEP + (mode is NEXT_STEP)][0][row].tolist() == start.tolist()


@ALL_MODES
@WHERE
def test_b02_a_huge_force_ends_the_episode_and_the_next_is_finite(make_env, mode, num_envs, row):
    """1e30 N leave the cart's numbers finite for a step, in which it is out of bounds."""
    env, untouched = (
        make_env(BreakableTask(), num_envs, autoreset_mode=mode, max_episode_steps=LIMIT) for _ in range(2)
    )
    clean, results = rollout(untouched, None, row), rollout(env, "huge_force", row)
    assert_same_rows(results, clean, [other for other in range(num_envs) if other != row])
    assert_all_finite(results)
    assert results[FAULT_STEP][2][row]
    later = [result[0][row].abs().max() for result in results[FAULT_STEP + 4 :]]
    assert max(later) < 10


def test_b02_a_huge_force_without_terminations_is_a_fault_as_soon_as_a_number_is_not_finite(make_env):
    env, untouched = (make_env(BreakableTask(terminates=False), 4, max_episode_steps=LIMIT) for _ in range(2))
    clean, results = rollout(untouched, None, 1), rollout(env, "huge_force", 1)
    assert_same_rows(results, clean, [0, 2, 3])
    assert_all_finite(results)
    faults = torch.stack([result[-1]["fault"] for result in results])
    assert faults.any(dim=0).tolist() == [False, True, False, False]
    assert faults[:, 1].int().argmax() in (FAULT_STEP + 1, FAULT_STEP + 2)


@pytest.mark.parametrize("breakage", ["action", "velocity"])
def test_b02_a_fault_with_several_engine_steps_per_step(make_env, breakage):
    env, untouched = (make_env(BreakableTask(decimation=3), 4, max_episode_steps=LIMIT) for _ in range(2))
    clean, results = rollout(untouched, None, 1), rollout(env, breakage, 1)
    assert_same_rows(results, clean, [0, 2, 3])
    assert_all_finite(results)
    assert torch.stack([result[-1]["fault"] for result in results]).nonzero().tolist() == [[FAULT_STEP, 1]]


@ALL_MODES
def test_after_a_fault_an_environment_moves_as_one_that_never_had_any(make_env, mode):
    env, fresh = (make_env(BreakableTask(), 3, autoreset_mode=mode) for _ in range(2))
    env.reset(seed=0), fresh.reset(seed=0)
    env.task.steps_taken, env.task.breakage = 0, ("velocity", 1, 0)
    env.step(torch.zeros(3, 1))
    if mode is NEXT_STEP:
        env.step(torch.zeros(3, 1))
    elif mode is DISABLED:
        env.reset(options={"reset_mask": torch.tensor([False, True, False])})
    fresh.reset()
    for step in range(8):
        action = torch.full((3, 1), 0.1 * step)
        torch.testing.assert_close(env.step(action)[0][1], fresh.step(action)[0][1], rtol=0, atol=0)


@ALL_MODES
def test_several_faults_at_once_and_in_steps_on_end(make_env, mode):
    env = make_env(CountingTask(), 4, autoreset_mode=mode, max_episode_steps=3)
    env.reset(seed=0)
    seen = []
    for broken in ([0, 3], [1], [0, 1, 2, 3], []):
        action = torch.zeros(4, 1)
        action[broken] = torch.nan
        obs, reward, terminated, truncated, info = env.step(action)
        assert obs.isfinite().all() and not terminated.any()
        assert reward[info["fault"]].tolist() == [0.0] * int(info["fault"].sum())
        seen.append((info["fault"].int().tolist(), truncated.int().tolist()))
        if mode is DISABLED:
            env.reset(options={"reset_mask": truncated})
    # Row 2 runs until the time limit of 3. In NEXT_STEP a row that is being reset does nothing with its action.
    resets = mode is NEXT_STEP
    assert seen == [
        ([1, 0, 0, 1], [1, 0, 0, 1]),
        ([0, 1, 0, 0], [0, 1, 0, 0]),
        ([1, 0, 1, 1], [1, 0, 1, 1]) if resets else ([1, 1, 1, 1], [1, 1, 1, 1]),
        ([0, 0, 0, 0], [0, 0, 0, 0]),
    ]


@ALL_MODES
def test_a_fault_on_the_step_of_a_termination_or_of_the_time_limit_is_a_truncation_and_a_fault(make_env, mode):
    env = make_env(CountingTask([2, None, 2]), autoreset_mode=mode, max_episode_steps=2)
    env.reset(seed=0)
    env.step(torch.zeros(3, 1))
    *_, terminated, truncated, info = env.step(torch.tensor([[torch.nan], [torch.nan], [0.0]]))
    assert info["fault"].tolist() == [True, True, False]
    assert terminated.tolist() == [False, False, True]
    assert truncated.tolist() == [True, True, False]
    assert info["episode"]["r"].tolist() == [1.0, 1.0, 3.0]
    assert info["episode"]["l"].tolist() == [2, 2, 2]


@pytest.mark.parametrize("row", [0, 2])
def test_next_step_a_fault_in_the_step_in_which_another_environment_starts_anew(make_env, row):
    """The engine is reset for both in one step; the link poses of the new episode must still be computed."""
    runs = []
    for broken in (torch.nan, 0.0):
        env = make_env(num_envs=3, autoreset_mode=NEXT_STEP, max_episode_steps=5)
        env.reset(seed=0)
        results = []
        for step in range(12):
            action = torch.full((3, 1), 0.5)
            if step == 1:
                action[row] = torch.nan  # so that this one's episodes are out of step with the others'
            if step == 5:
                action[row] = broken
            results.append(env.step(action))
        runs.append(results)
    assert runs[0][4][3].int().tolist() == [int(other != row) for other in range(3)]  # so they start anew in step 5
    assert runs[0][5][-1]["fault"].int().tolist() == [int(other == row) for other in range(3)]
    assert_same_rows(*runs, [other for other in range(3) if other != row])


def test_a_fault_in_a_dict_observation_leaves_every_part_of_it_finite(make_env):
    env = make_env(CountingTask(dict_obs=True), max_episode_steps=9)
    first, _ = env.reset(seed=0)
    *_, info = env.step(np.array([[0.0], [np.nan], [0.0]]))
    assert info["fault"].tolist() == [False, True, False]
    for key, value in info["final_obs"].items():
        assert value[1].tolist() == first[key][1].tolist()


def test_disabled_nothing_is_done_about_an_ended_environment_that_breaks(make_env):
    """Its results are frozen already; the others must not notice."""
    env, untouched = (make_env(BreakableTask(), 3, autoreset_mode=DISABLED) for _ in range(2))
    results = []
    for each, breaks in ((env, True), (untouched, False)):
        each.reset(seed=0)
        each.task.steps_taken, each.task.breakage = 0, None
        first = each.step(torch.tensor([[0.0], [torch.nan], [0.0]]))
        assert first[-1]["fault"].tolist() == [False, True, False]
        each.task.breakage = ("velocity", 1, 3) if breaks else None
        results.append([each.step(torch.zeros(3, 1)) for _ in range(25)])
        each.task.breakage = None
    assert_same_rows(*results, [0, 1, 2])
    assert not any(result[-1]["fault"].any() for result in results[0])
    obs, _ = env.reset(options={"reset_mask": torch.tensor([False, True, False])})
    assert obs.isfinite().all()
    result = env.step(torch.zeros(3, 1))
    assert result[0].isfinite().all() and not result[-1]["fault"].any() and not result[3][1]


# ----------------------------------------------------------------------------------------------------- on_fault="raise"


@pytest.mark.parametrize(
    ("breakage", "causes"),
    [
        ("action", "an action is not finite"),
        ("force", FLAGGED),
        ("velocity", f"{FLAGGED}; the engine's state is not finite; an observation is not finite"),
        ("observation", "an observation is not finite"),
        ("reward", "a reward is not finite"),
    ],
)
def test_on_fault_raise_names_the_environments_and_the_causes(make_env, breakage, causes):
    env = make_env(BreakableTask(), 4, on_fault="raise")
    with pytest.raises(EnvFaultError) as raised:
        rollout(env, breakage, 2)
    assert str(raised.value) == f"environments [2] are faulty: {causes}"
    assert raised.value.env_indices == [2]
    assert env.task.steps_taken == FAULT_STEP + 1


def test_on_fault_raise_names_all_environments_and_a_reset_goes_on(make_env):
    env = make_env(BreakableTask(), 4, on_fault="raise")
    env.reset(seed=0)
    with pytest.raises(EnvFaultError, match=r"environments \[0, 3\] are faulty: an action is not finite"):
        env.step(torch.tensor([[torch.nan], [0.0], [0.0], [torch.inf]]))
    clean = rollout(make_env(BreakableTask(), 4), None, 0)
    assert_same_rows(rollout(env, None, 0), clean, [0, 1, 2, 3])


@pytest.mark.parametrize("mode", [NEXT_STEP, DISABLED], ids=lambda mode: mode.name)
def test_on_fault_raise_is_silent_about_environments_whose_episode_is_over(make_env, mode):
    env = make_env(CountingTask([1, None, None]), autoreset_mode=mode, on_fault="raise")
    env.reset(seed=0)
    broken = torch.tensor([[torch.nan], [0.0], [0.0]])
    assert env.step(torch.zeros(3, 1))[2].tolist() == [True, False, False]
    assert not env.step(broken)[-1]["fault"].any()
