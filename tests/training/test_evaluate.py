"""Evaluations: success in an episode and at its end, over the same episodes for the same seed."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from genesis_vec import GenesisVectorEnv
from genesis_vec.tasks.cart_pole import CartPoleTask
from genesis_vec.training.evaluate import evaluate


class Crossing(CartPoleTask):
    """Success while the cart is to the right of the middle."""

    def metrics(self) -> dict[str, torch.Tensor]:
        return {**super().metrics(), "success": self.observe()[:, 0] > 0.0}


@pytest.fixture(scope="module")
def env() -> Any:
    env = GenesisVectorEnv(Crossing(), 4, device="cpu", max_episode_steps=40)
    yield env
    env.close()


def push_right_then_left(env: GenesisVectorEnv) -> Any:
    steps = 0

    def act(observations: torch.Tensor) -> torch.Tensor:
        nonlocal steps
        steps += 1
        return torch.full((env.num_envs, 1), 1.0 if steps <= 6 else -1.0)

    return act


def test_success_once_and_at_the_end_are_told_apart(env: GenesisVectorEnv):
    there = evaluate(env, lambda observations: torch.ones(4, 1), 4, seed=0)
    assert (there.metrics["success_once"], there.metrics["success_at_end"]) == (1.0, 1.0)
    back = evaluate(env, push_right_then_left(env), 4, seed=0)
    assert back.metrics["success_once"] == 1.0
    assert back.metrics["success_at_end"] < 1.0
    assert "success" not in back.metrics
    assert "success once 100%, at the end" in str(back)


def test_the_same_seed_gives_the_same_figures_and_another_others(env: GenesisVectorEnv):
    runs = [evaluate(env, lambda observations: -observations[:, :1], 8, seed) for seed in (3, 3, 4)]
    assert runs[0] == runs[1] != runs[2]
    assert runs[0].episodes == 8
