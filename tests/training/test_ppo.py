"""The learner, on environments with known answers."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

from genesis_vec.training.config import PPOConfig
from genesis_vec.training.evaluate import evaluate
from genesis_vec.training.ppo import PPO
from genesis_vec.training.run import policy_of
from genesis_vec.wrappers import FlattenObservation
from tests.fakes import CounterEnv

CONFIG = PPOConfig(rollout_steps=8, minibatches=4, epochs=2, hidden_sizes=(16,))


class TargetEnv(CounterEnv):
    """Reward is how near the first action is to the noise in the observation; the best return is 0."""

    def __init__(self, num_envs: int = 64, **kwargs: Any) -> None:
        super().__init__(num_envs, limit=4, **kwargs)

    def _observe(self) -> torch.Tensor:
        return torch.cat([self.noise, torch.zeros(self.num_envs, 1)], dim=1)

    def step(self, actions: Any) -> tuple[Any, torch.Tensor, torch.Tensor, torch.Tensor, dict]:
        reward = -(torch.as_tensor(actions)[:, 0] - self.noise[:, 0]).square()
        obs, _, terminated, truncated, info = super().step(actions)
        info["episode"]["r"] = reward * info["_episode"]
        return obs, reward, terminated, truncated, info


def parameters(learner: PPO) -> list[torch.Tensor]:
    return [value.detach().clone() for value in learner.policy.parameters()]


def test_stored_observations_are_those_the_action_was_chosen_from():
    learner = PPO(CounterEnv(num_envs=2, limit=3), CONFIG, seed=0)
    learner.iterate()
    counters = learner._rollout.observations[:, 0, 2].tolist()
    assert counters == [0, 1, 2, 0, 1, 2, 0, 1]
    finals = learner._rollout.final_observations[:, 0, 2].tolist()
    assert finals == [1, 2, 3, 1, 2, 3, 1, 2]
    assert learner._rollout.truncated[:, 0].tolist() == [False, False, True, False, False, True, False, False]


def test_truncations_are_bootstrapped_with_the_value_of_the_final_observation():
    learner = PPO(CounterEnv(num_envs=2, limit=3), CONFIG, seed=0)
    learner._observations, _ = learner.env.reset(seed=0)
    learner._collect()
    values = learner._final_values()
    expected = learner.policy.value(learner._rollout.final_observations) * learner._rollout.truncated
    torch.testing.assert_close(values, expected)
    assert values[2, 0] != 0 and values[3, 0] == 0


def test_values_are_those_of_the_stored_observations():
    learner = PPO(CounterEnv(num_envs=2, limit=3), CONFIG, seed=0)
    learner._observations, _ = learner.env.reset(seed=0)
    learner._collect()
    learner._targets()
    expected = [learner.policy.value(observations) for observations in learner._rollout.observations]
    torch.testing.assert_close(learner._rollout.values, torch.stack(expected))


def test_an_update_has_its_own_number_of_threads(monkeypatch: pytest.MonkeyPatch):
    threads: dict[str, set[int]] = {"step": set(), "update": set()}
    env = CounterEnv(num_envs=2)
    learner = PPO(env, CONFIG, seed=0, update_threads=3)
    step, losses = env.step, learner._losses
    monkeypatch.setattr(env, "step", lambda a: threads["step"].add(torch.get_num_threads()) or step(a))
    monkeypatch.setattr(learner, "_losses", lambda *a: threads["update"].add(torch.get_num_threads()) or losses(*a))
    before = torch.get_num_threads()
    learner.iterate()
    assert threads == {"step": {before}, "update": {3}}
    assert torch.get_num_threads() == before


def test_it_learns_the_same_task_in_mixed_precision():
    returns = {}
    for mixed in (False, True):
        learner = PPO(TargetEnv(), dataclasses.replace(CONFIG, epochs=4), seed=0, mixed_precision=mixed)
        returns[mixed] = [learner.iterate()["mean_return"] for _ in range(30)][-1]
        assert {value.dtype for value in parameters(learner)} == {torch.float32}
    assert returns[True] != returns[False]
    assert returns[True] == pytest.approx(returns[False], abs=0.1)


def test_minibatches_take_every_step_of_every_environment_once_in_equal_shares():
    learner = PPO(CounterEnv(num_envs=5), CONFIG, seed=0)
    parts = learner._minibatch_indices()
    assert [len(part) for part in parts] == [10, 10, 10, 10]
    assert sorted(torch.cat(parts).tolist()) == list(range(40))
    for part in parts:
        assert (part % 5).bincount().tolist() == [2] * 5
    assert not torch.equal(torch.cat(parts), torch.cat(learner._minibatch_indices()))


def test_an_environment_s_noise_and_order_do_not_depend_on_how_many_others_there_are():
    few, many = PPO(CounterEnv(num_envs=2), CONFIG, seed=3), PPO(CounterEnv(num_envs=5), CONFIG, seed=3)
    torch.testing.assert_close(
        few._noise_streams.select(None).normal(2), many._noise_streams.select(None).normal(2)[:2], rtol=0, atol=0
    )
    steps_few = torch.cat([part.reshape(2, -1) // 2 for part in few._minibatch_indices()], dim=1)
    steps_many = torch.cat([part.reshape(5, -1) // 5 for part in many._minibatch_indices()], dim=1)
    assert torch.equal(steps_few, steps_many[:2])


def test_the_same_seed_gives_the_same_bits_and_another_seed_others():
    runs = []
    for seed in (7, 7, 8):
        torch.manual_seed(seed * 100)  # what the global generator holds must not matter
        learner = PPO(TargetEnv(num_envs=4), CONFIG, seed=seed)
        figures = [learner.iterate() for _ in range(3)]
        runs.append((parameters(learner), figures))
    assert all(torch.equal(a, b) for a, b in zip(runs[0][0], runs[1][0], strict=True))
    assert runs[0][1] == runs[1][1]
    assert not all(torch.equal(a, b) for a, b in zip(runs[0][0], runs[2][0], strict=True))


def test_it_learns_to_hit_a_target_that_it_sees():
    env = TargetEnv()
    learner = PPO(env, PPOConfig(rollout_steps=8, hidden_sizes=(32,), schedule="fixed", learning_rate=3e-3), seed=0)
    before = evaluate(env, learner.policy.act, 64, seed=123)
    for _ in range(60):
        learner.iterate()
    after = evaluate(env, learner.policy.act, 64, seed=123)
    assert before.mean_return < -0.2
    assert after.mean_return > -0.03


def test_restored_state_gives_the_update_that_would_have_come():
    first = PPO(TargetEnv(num_envs=4), CONFIG, seed=1)
    for _ in range(2):
        first.iterate()
    second = PPO(TargetEnv(num_envs=4), CONFIG, seed=1)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    assert (second.iteration, second.env_steps) == (2, 64)
    first._observations = None  # as after a restart: the environments start new episodes
    first._running_returns.zero_()
    assert first.iterate() == second.iterate()
    assert all(torch.equal(a, b) for a, b in zip(parameters(first), parameters(second), strict=True))


def test_the_learning_rate_follows_the_divergence():
    learner = PPO(CounterEnv(), CONFIG, seed=0)
    for kl, expected in ((0.03, 1e-3 / 1.5), (0.004, 1e-3), (0.01, 1e-3), (0.0, 1.5e-3)):
        learner._adapt_learning_rate(torch.tensor(kl))
        assert learner.optimizer.param_groups[0]["lr"].item() == pytest.approx(expected)
    for _ in range(20):
        learner._adapt_learning_rate(torch.tensor(1.0))
    assert learner.learning_rate.item() == pytest.approx(1e-5)


def test_episode_figures_are_means_over_the_episodes_that_ended():
    learner = PPO(CounterEnv(num_envs=2, limit=[3, 5]), CONFIG, seed=0)
    figures = learner.iterate()
    # Eight steps: two episodes of length 3 (return 1 + 2 + 3) and one of length 5 (return 15).
    assert figures["episodes"] == 3
    assert figures["mean_length"] == pytest.approx((3 + 3 + 5) / 3)
    assert figures["mean_return"] == pytest.approx((6 + 6 + 15) / 3)


def test_without_an_ended_episode_there_are_no_episode_figures():
    figures = PPO(CounterEnv(num_envs=2, limit=100), CONFIG, seed=0).iterate()
    assert figures["episodes"] == 0
    assert "mean_return" not in figures


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED], ids=lambda mode: mode.name)
def test_an_environment_without_final_observations_is_refused(mode: AutoresetMode):
    with pytest.raises(ValueError, match=r"make the environment with autoreset_mode=AutoresetMode\.SAME_STEP"):
        PPO(CounterEnv(autoreset_mode=mode), CONFIG, seed=0)


def test_a_dict_observation_is_refused_with_the_remedy():
    with pytest.raises(ValueError, match="use FlattenObservation"):
        PPO(CounterEnv(dict_obs=True), CONFIG, seed=0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"minibatches": 5}, r"ppo.minibatches=5 must be a divisor of rollout_steps=24"),
        ({"gamma": 0.0}, r"ppo.gamma=0.0 must be in \(0, 1\]"),
        ({"clip": -1.0}, r"ppo.clip=-1.0 must be above 0"),
        ({"hidden_sizes": ()}, r"ppo.hidden_sizes=\(\) must be one size of 1 or more for each layer"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        PPOConfig(**settings)


def test_evaluation_counts_the_same_number_of_first_episodes_of_every_environment():
    env = CounterEnv(num_envs=2, limit=[2, 6])
    result = evaluate(env, lambda observations: torch.zeros(2, 2), episodes=4, seed=0)
    # Two of each: a plain mean over the first four ended episodes would hold three short ones.
    assert result.episodes == 4
    assert result.mean_length == 4.0
    assert result.mean_return == (3 + 21) / 2


def test_evaluation_of_endless_episodes_says_so():
    with pytest.raises(RuntimeError, match="3 environments have not finished their episodes within 5 steps"):
        evaluate(CounterEnv(limit=100), lambda observations: torch.zeros(3, 2), episodes=1, seed=0, max_steps=5)


class PrivilegedEnv(TargetEnv):
    """The target is in "critic" alone: what the policy sees of it is nothing."""

    def __init__(self, num_envs: int = 64) -> None:
        super().__init__(num_envs)
        box = spaces.Box(-np.inf, np.inf, (3,), np.float32)
        self.single_observation_space = spaces.Dict({"policy": box, "critic": box})
        self.observation_space = batch_space(self.single_observation_space, num_envs)

    def _observe(self) -> Any:
        hidden = super()._observe()
        return {"policy": torch.ones_like(hidden), "critic": hidden}


def test_the_critic_sees_what_the_policy_does_not():
    learner = PPO(FlattenObservation(PrivilegedEnv()), CONFIG, seed=0)
    policy = learner.policy
    assert (policy.actor_size, len(policy.observation_mean)) == (3, 6)
    learner.iterate()
    observations = learner._rollout.observations[0]
    privileged = observations.clone()
    privileged[:, :3] += 1.0
    assert torch.equal(policy.act(privileged), policy.act(observations))
    assert torch.equal(policy.act(observations[:, -3:]), policy.act(observations))
    assert not torch.equal(policy.value(privileged), policy.value(observations))
    restored = policy_of({"policy": policy.state_dict(), "config": {"ppo": dataclasses.asdict(CONFIG)}})
    assert torch.equal(restored.act(observations), policy.act(observations))
