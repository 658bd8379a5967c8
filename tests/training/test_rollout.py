"""Advantages and discounted sums, worked out by hand."""

from __future__ import annotations

import torch

from genesis_vec.training.rollout import advantages_and_returns, discounted_returns


def column(*values: float) -> torch.Tensor:
    return torch.tensor(values)[:, None]


def flags(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.bool)[:, None]


def compute(terminated: torch.Tensor, truncated: torch.Tensor) -> list[float]:
    advantages, returns = advantages_and_returns(
        rewards=column(1.0, 2.0, 3.0),
        values=column(10.0, 20.0, 30.0),
        next_value=torch.tensor([40.0]),
        final_values=column(100.0, 200.0, 300.0),
        terminated=terminated,
        truncated=truncated,
        gamma=0.5,
        gae_lambda=0.5,
    )
    torch.testing.assert_close(returns, advantages + column(10.0, 20.0, 30.0))
    return advantages[:, 0].tolist()


def test_without_an_end_the_sum_runs_through_to_the_value_after_the_last_step():
    # Deltas: 1 + 10 - 10 = 1, 2 + 15 - 20 = -3, 3 + 20 - 30 = -7; each later one weighs a quarter.
    assert compute(flags(0, 0, 0), flags(0, 0, 0)) == [1 + 0.25 * (-3 + 0.25 * -7), -3 + 0.25 * -7, -7.0]


def test_a_termination_is_worth_nothing_more_and_stops_the_sum():
    # Second delta: 2 + 0 - 20 = -18, and the third step no longer enters the first two.
    assert compute(flags(0, 1, 0), flags(0, 0, 0)) == [1 + 0.25 * -18, -18.0, -7.0]


def test_a_truncation_is_worth_its_own_final_observation_and_stops_the_sum():
    # Second delta: 2 + 0.5 * 200 - 20 = 82: neither 0 nor the next episode's value of 30.
    assert compute(flags(0, 0, 0), flags(0, 1, 0)) == [1 + 0.25 * 82, 82.0, -7.0]


def test_an_end_in_the_last_step_does_not_use_the_value_of_the_next_episode():
    assert compute(flags(0, 0, 1), flags(0, 0, 0))[2] == 3 - 30
    assert compute(flags(0, 0, 0), flags(0, 0, 1))[2] == 3 + 0.5 * 300 - 30


def test_discounted_sums_start_anew_after_an_end_and_carry_over_between_rollouts():
    sums, carried = discounted_returns(column(1.0, 1.0, 1.0, 1.0), flags(0, 1, 0, 0), torch.tensor([8.0]), 0.5)
    assert sums[:, 0].tolist() == [5.0, 3.5, 1.0, 1.5]
    assert carried.tolist() == [1.5]
    _, carried = discounted_returns(column(1.0), flags(1), torch.tensor([8.0]), 0.5)
    assert carried.tolist() == [0.0]
