"""skrl's own trainers and memories, on environments whose every number is known."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv

from genesis_vec.vector_env import GenesisVectorEnv
from genesis_vec.wrappers import TransformObservation
from tests.fakes import CounterEnv
from tests.wrappers.support import ForbidHostReads, MetaEnv, WatchedEnv

pytest.importorskip("skrl")

from skrl.agents.torch import Agent
from skrl.agents.torch.ppo import PPO, PPO_CFG
from skrl.agents.torch.sac import SAC
from skrl.memories.torch import RandomMemory
from skrl.models.torch import DeterministicMixin, GaussianMixin, Model
from skrl.multi_agents.torch.ippo import IPPO
from skrl.resources.preprocessors.torch import RunningStandardScaler
from skrl.trainers.torch import SequentialTrainer

from genesis_vec.adapters.skrl import SkrlWrapper, with_final_observations

# What the trainer and the agent would write to files.
QUIET = {"write_interval": 0, "checkpoint_interval": 0}


class Policy(GaussianMixin, Model):
    def __init__(self, wrapper: SkrlWrapper) -> None:
        Model.__init__(
            self,
            observation_space=wrapper.observation_space,
            action_space=wrapper.action_space,
            device=wrapper.device,
        )
        GaussianMixin.__init__(self)
        self.mean = torch.nn.Linear(self.num_observations, self.num_actions)
        self.log_std = torch.nn.Parameter(torch.zeros(self.num_actions))

    def compute(self, inputs: dict[str, Any], role: str) -> tuple[torch.Tensor, dict[str, Any]]:
        return self.mean(inputs["observations"]), {"log_std": self.log_std.expand(len(inputs["observations"]), -1)}


class Value(DeterministicMixin, Model):
    """A linear function of one of the inputs, of the taken actions too where it is a critic of SAC."""

    def __init__(self, wrapper: SkrlWrapper, key: str = "observations", takes_actions: bool = False) -> None:
        Model.__init__(self, action_space=wrapper.action_space, device=wrapper.device)
        DeterministicMixin.__init__(self)
        self.keys = [key, "taken_actions"] if takes_actions else [key]
        space = wrapper.state_space if key == "states" else wrapper.observation_space
        assert space is not None and space.shape is not None
        size = int(np.prod(space.shape)) + (self.num_actions if takes_actions else 0)
        self.linear = torch.nn.Linear(size, 1)

    def compute(self, inputs: dict[str, Any], role: str) -> tuple[torch.Tensor, dict[str, Any]]:
        return self.linear(torch.cat([inputs[key] for key in self.keys], dim=1)), {}


def known_value(wrapper: SkrlWrapper) -> Value:
    """Of a CounterEnv's observation: V = 10 * episode number + step in the episode."""
    value = Value(wrapper)
    with torch.no_grad():
        value.linear.weight.copy_(torch.tensor([[0.0, 10.0, 1.0]]))
        value.linear.bias.zero_()
    return value


def run(agent: Agent, wrapper: SkrlWrapper, steps: int) -> None:
    cfg = {"timesteps": steps, "disable_progressbar": True, "close_environment_at_exit": False}
    SequentialTrainer(env=wrapper, agents=agent, cfg=cfg).train()


def ppo(
    wrapper: SkrlWrapper,
    value: Value,
    rollouts: int,
    agent_class: type[Agent] | None = None,
    policy: Policy | None = None,
    **cfg: Any,
) -> Any:
    return (agent_class or with_final_observations(PPO))(
        models={"policy": policy or Policy(wrapper), "value": value},
        memory=RandomMemory(memory_size=rollouts, num_envs=wrapper.num_envs, device=wrapper.device),
        observation_space=wrapper.observation_space,
        state_space=wrapper.state_space,
        action_space=wrapper.action_space,
        device=wrapper.device,
        cfg={"rollouts": rollouts, "experiment": QUIET, **cfg},
    )


def sac(wrapper: SkrlWrapper, steps: int) -> Any:
    names = ("critic_1", "critic_2", "target_critic_1", "target_critic_2")
    return with_final_observations(SAC)(
        models={"policy": Policy(wrapper), **{name: Value(wrapper, takes_actions=True) for name in names}},
        memory=RandomMemory(memory_size=steps, num_envs=wrapper.num_envs, device=wrapper.device),
        observation_space=wrapper.observation_space,
        state_space=wrapper.state_space,
        action_space=wrapper.action_space,
        device=wrapper.device,
        cfg={"learning_starts": steps - 1, "batch_size": 2, "experiment": QUIET},
    )


def stored(agent: Any, name: str) -> torch.Tensor:
    """What the agent's memory holds, (steps, num_envs, …); of one column, (steps, num_envs)."""
    return agent.memory.get_tensor_by_name(name).squeeze(-1)


def with_critic(env: VectorEnv) -> VectorEnv:
    """A CounterEnv whose counter is the policy's, and whose noise is the critic's."""
    box = env.single_observation_space
    assert isinstance(box, spaces.Dict)
    space = spaces.Dict({"policy": box["counter"], "critic": box["noise"]})
    return TransformObservation(
        env, lambda obs: {"policy": obs["counter"], "critic": obs["noise"]}, single_observation_space=space
    )


class TestWrapper:
    def test_it_gives_columns_and_the_spaces_of_one_environment(self):
        env = CounterEnv(num_envs=3)
        wrapper = SkrlWrapper(env)
        observations, _ = wrapper.reset()
        assert observations.shape == (3, 3)
        _, rewards, terminated, truncated, _ = wrapper.step(torch.zeros(3, 2))
        assert [x.shape for x in (rewards, terminated, truncated)] == [(3, 1)] * 3
        assert (wrapper.observation_space, wrapper.action_space) == (
            env.single_observation_space,
            env.single_action_space,
        )
        assert wrapper.state_space is None and wrapper.state() is None
        assert (wrapper.num_envs, wrapper.device) == (3, torch.device("cpu"))

    def test_only_its_first_reset_resets_by_the_seed(self):
        env = CounterEnv(num_envs=2)
        wrapper = SkrlWrapper(env, seed=7)
        wrapper.reset()
        assert env.seeds == [7, 8]
        observations, *_ = wrapper.step(torch.zeros(2, 2))
        again, infos = wrapper.reset()
        assert again is observations and infos == {} and env.episode == [0, 0]

    def test_termination_and_time_limit_in_one_step_are_told_apart(self):
        wrapper = SkrlWrapper(CounterEnv(num_envs=3, limit=[2, 2, 9], terminate_at=[None, 2, None]))
        wrapper.reset()
        wrapper.step(torch.zeros(3, 2))
        _, _, terminated, truncated, infos = wrapper.step(torch.zeros(3, 2))
        assert terminated[:, 0].tolist() == [False, True, False]
        assert truncated[:, 0].tolist() == [True, False, False]
        assert infos["_final_obs"].tolist() == [True, True, False]
        assert infos["final_observations"].tolist() == [[0, 0, 2], [1, 0, 2], [2, 0, 2]]
        assert infos["final_states"] is None

    def test_the_critics_part_is_the_state(self):
        env = CounterEnv(num_envs=2, limit=1, dict_obs=True)
        wrapper = SkrlWrapper(with_critic(env))
        observations, _ = wrapper.reset()
        first_states = wrapper.state()
        assert observations.shape == (2, 3) and wrapper.state_space.shape == (2,)
        torch.testing.assert_close(first_states, env.noise)
        _, _, _, _, infos = wrapper.step(torch.zeros(2, 2))
        # Of the episode that ended, and of the next one.
        torch.testing.assert_close(infos["final_states"], first_states)
        torch.testing.assert_close(wrapper.state(), env.noise)
        assert not torch.equal(first_states, env.noise)

    def test_observations_with_several_axes_are_flattened_as_skrl_stores_them(self):
        env = TransformObservation(
            CounterEnv(num_envs=2, limit=1),
            lambda obs: obs[:, :, None].expand(-1, -1, 2).transpose(1, 2),
            single_observation_space=spaces.Box(-np.inf, np.inf, (2, 3), np.float32),
        )
        wrapper = SkrlWrapper(env)
        assert wrapper.reset()[0].tolist() == [[0, 0, 0] * 2, [1, 0, 0] * 2]
        infos = wrapper.step(torch.zeros(2, 2))[-1]
        assert infos["final_observations"].tolist() == [[0, 0, 1] * 2, [1, 0, 1] * 2]

    def test_episode_statistics_are_not_where_skrl_logs_them(self):
        wrapper = SkrlWrapper(CounterEnv(num_envs=1, limit=1))
        wrapper.reset()
        infos = wrapper.step(torch.zeros(1, 2))[-1]
        assert "episode" not in infos and "_episode" not in infos
        assert infos["final_info"]["episode"]["l"].tolist() == [1]
        agent = ppo(wrapper, Value(wrapper), rollouts=9)
        run(agent, wrapper, steps=2)
        assert not [name for name in agent.tracking_data if name.startswith("Info")]

    def test_it_renders_nothing_without_a_render_mode_and_closes(self):
        env = CounterEnv()
        wrapper = SkrlWrapper(env)
        assert wrapper.render() is None
        env.render_mode, env.render = "rgb_array", lambda: ("frame",) * 3
        assert wrapper.render() == ("frame",) * 3
        wrapper.close()
        wrapper.close()
        assert env.closed

    def test_it_does_not_wait_for_the_device(self):
        env = MetaEnv(AutoresetMode.SAME_STEP)
        with ForbidHostReads():
            wrapper = SkrlWrapper(env)
            wrapper.reset()
            results = wrapper.step(torch.empty(3, 2, device="meta"))
        assert all(tensor.is_meta for tensor in results[:4])

    @pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED], ids=lambda mode: mode.name)
    def test_other_autoreset_modes_are_refused(self, mode):
        with pytest.raises(ValueError, match=rf"{mode.name}.*Make it with autoreset_mode=AutoresetMode.SAME_STEP"):
            SkrlWrapper(CounterEnv(autoreset_mode=mode))

    def test_other_dicts_are_refused(self):
        with pytest.raises(TypeError, match=r"'policy'.*FlattenObservation"):
            SkrlWrapper(CounterEnv(dict_obs=True))


class TestStoredTransitions:
    @pytest.mark.parametrize("num_envs", [1, 3])
    def test_stored_observations_are_those_acted_upon(self, num_envs):
        env = WatchedEnv(num_envs=num_envs, limit=3)
        wrapper = SkrlWrapper(env)
        agent = ppo(wrapper, known_value(wrapper), rollouts=7)
        run(agent, wrapper, steps=7)
        for i in range(num_envs):
            assert stored(agent, "observations")[:, i].tolist() == [
                [i, 0, 0],
                [i, 0, 1],
                [i, 0, 2],
                [i, 1, 0],
                [i, 1, 1],
                [i, 1, 2],
                [i, 2, 0],
            ]
        torch.testing.assert_close(stored(agent, "actions"), torch.stack(env.received_actions))
        env.assert_untouched()

    def test_an_off_policy_agent_stores_the_final_observation_as_the_next(self):
        env = WatchedEnv(num_envs=3, limit=[3, 9, 2], terminate_at=[None, 2, None])
        wrapper = SkrlWrapper(env)
        agent = sac(wrapper, steps=4)
        run(agent, wrapper, steps=4)
        assert stored(agent, "observations")[:, :, 2].tolist() == [[0, 0, 0], [1, 1, 1], [2, 0, 0], [0, 1, 1]]
        assert stored(agent, "next_observations")[:, :, 1:].tolist() == [
            [[0, 1], [0, 1], [0, 1]],
            [[0, 2], [0, 2], [0, 2]],
            [[0, 3], [1, 1], [1, 1]],
            [[1, 1], [1, 2], [1, 2]],
        ]
        assert stored(agent, "terminated").int().tolist() == [[0, 0, 0], [0, 1, 0], [0, 0, 0], [0, 1, 0]]
        env.assert_untouched()

    def test_the_critics_part_of_the_final_observation_is_stored_too(self):
        env = CounterEnv(num_envs=2, limit=1, dict_obs=True)
        wrapper = SkrlWrapper(with_critic(env))
        wrapper.reset()
        states = [wrapper.state()]
        agent = sac(wrapper, steps=3)
        agent.pre_interaction = lambda **_: states.append(wrapper.state())
        run(agent, wrapper, steps=3)
        torch.testing.assert_close(stored(agent, "states"), torch.stack(states[1:]))
        # An episode has one step and one state here, so that where it began is where it ended.
        torch.testing.assert_close(stored(agent, "next_states"), torch.stack(states[1:]))


class TestTimeLimits:
    # Rewards are the number of the step, V is 10 * episode + step, γ = 0.5, and each environment takes four steps:
    # - the first is truncated by its third, whose final observation is worth 3, and then begins episode 1;
    # - the second is terminated by every second;
    # - the third is truncated by the fourth, the rollout's last, whose final observation is worth 4.
    GAMMA = 0.5
    # λ = 0: reward + γ·V(next). λ = 1: the discounted rewards of the episode, and γ^k·V at its end or the rollout's.
    RETURNS = {  # noqa: RUF012 - read only
        0.0: [[1 + 0.5, 2 + 1, 3 + 1.5, 1 + 5.5], [1 + 0.5, 2, 1 + 5.5, 2], [1 + 0.5, 2 + 1, 3 + 1.5, 4 + 2]],
        1.0: [[3.125, 4.25, 4.5, 6.5], [2, 2, 2, 2], [3.5, 5, 6, 6]],
    }

    def rollout(self, lambda_: float, agent_class: type[Agent] | None = None) -> tuple[Any, WatchedEnv]:
        env = WatchedEnv(num_envs=3, limit=[3, 9, 4], terminate_at=[None, 2, None])
        wrapper = SkrlWrapper(env)
        cfg = {"discount_factor": self.GAMMA, "gae_lambda": lambda_, "learning_epochs": 1, "mini_batches": 1}
        agent = ppo(wrapper, known_value(wrapper), rollouts=4, agent_class=agent_class, **cfg)
        run(agent, wrapper, steps=4)
        return agent, env

    @pytest.mark.parametrize("lambda_", [0.0, 1.0])
    def test_returns_bootstrap_from_the_final_observation(self, lambda_):
        agent, env = self.rollout(lambda_)
        torch.testing.assert_close(stored(agent, "returns").T, torch.tensor(self.RETURNS[lambda_], dtype=torch.float32))
        env.assert_untouched()

    def test_skrls_own_agent_runs_on_into_the_next_episode(self):
        # What the subclass is for. Should this fail, skrl may have mended it.
        agent, _ = self.rollout(0.0, agent_class=PPO)
        assert stored(agent, "returns")[2, 0].item() == 3 + self.GAMMA * 10

    def test_the_setting_is_turned_on_in_a_copy(self):
        wrapper = SkrlWrapper(CounterEnv())
        cfg = PPO_CFG()
        agent_class = with_final_observations(PPO)
        agent = agent_class(models={}, action_space=wrapper.action_space, device="cpu", cfg=cfg)
        assert agent.cfg.time_limit_bootstrap and not cfg.time_limit_bootstrap
        assert agent_class.__name__ == "PPO" and issubclass(agent_class, PPO)

    def test_an_agent_without_the_setting_gets_none(self):
        wrapper = SkrlWrapper(CounterEnv())
        assert not hasattr(sac(wrapper, steps=1).cfg, "time_limit_bootstrap")


def test_evaluation_changes_nothing_and_goes_on_with_the_episodes():
    env = CounterEnv(num_envs=2, limit=9)
    wrapper = SkrlWrapper(env)
    policy = Policy(wrapper)
    agent = ppo(wrapper, known_value(wrapper), rollouts=2, policy=policy)
    before = [parameter.detach().clone() for parameter in policy.parameters()]
    cfg = {"timesteps": 4, "disable_progressbar": True, "close_environment_at_exit": False}
    trainer = SequentialTrainer(env=wrapper, agents=agent, cfg=cfg)
    trainer.eval()
    trainer.eval()
    assert env.steps == [8, 8] and env.episode == [0, 0]
    assert all(torch.equal(a, b) for a, b in zip(before, policy.parameters(), strict=True))


class TestMisuse:
    @pytest.mark.parametrize("agent_class", [IPPO, CounterEnv, None])
    def test_what_is_no_agent_is_refused(self, agent_class):
        with pytest.raises(TypeError, match=r"takes a class of skrl\.agents\.torch, such as PPO"):
            with_final_observations(agent_class)

    def test_infos_of_another_wrapper_are_refused(self):
        wrapper = SkrlWrapper(CounterEnv())
        agent = ppo(wrapper, known_value(wrapper), rollouts=4)
        with pytest.raises(ValueError, match="put SkrlWrapper around the environment"):
            agent.record_transition(next_observations=torch.zeros(3, 3), next_states=None, infos={})

    def test_agents_that_share_an_environment_are_refused(self):
        wrapper = SkrlWrapper(CounterEnv(num_envs=4))
        agents = [ppo(wrapper, known_value(wrapper), rollouts=4) for _ in range(2)]
        cfg = {"timesteps": 1, "disable_progressbar": True, "close_environment_at_exit": False}
        trainer = SequentialTrainer(env=wrapper, agents=agents, scopes=[2, 2], cfg=cfg)
        with pytest.raises(ValueError, match="has 2 of 4 environments"):
            trainer.train()


@pytest.mark.parametrize("critic_key", ["observations", "states"])
def test_a_critic_learns_from_its_own_part(critic_key):
    wrapper = SkrlWrapper(with_critic(CounterEnv(num_envs=3, dict_obs=True)))
    value = Value(wrapper, key=critic_key)
    before = value.linear.weight.detach().clone()
    run(ppo(wrapper, value, rollouts=4, mini_batches=1), wrapper, steps=8)
    assert value.linear.weight.isfinite().all() and not torch.equal(value.linear.weight, before)


def test_ppo_trains_on_the_engine(make_env: Callable[..., GenesisVectorEnv]):
    wrapper = SkrlWrapper(make_env(num_envs=5, max_episode_steps=10), seed=3)
    policy, value = Policy(wrapper), Value(wrapper)
    scaler = {"size": wrapper.observation_space, "device": wrapper.device}
    agent = ppo(
        wrapper,
        value,
        rollouts=16,
        policy=policy,
        observation_preprocessor=RunningStandardScaler,
        observation_preprocessor_kwargs=scaler,
    )
    before = [parameter.detach().clone() for parameter in (*policy.parameters(), *value.parameters())]
    run(agent, wrapper, steps=32)
    after = [*policy.parameters(), *value.parameters()]
    assert all(parameter.isfinite().all() for parameter in after)
    assert not any(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert stored(agent, "truncated").any()
    assert stored(agent, "rewards").isfinite().all()


def test_importing_it_as_a_rank_without_gpu_fails_at_once():
    env = {**os.environ, "WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0", "CUDA_VISIBLE_DEVICES": ""}
    script = "import genesis_vec; print('imported'); import genesis_vec.adapters.skrl"
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, timeout=60)
    assert done.stdout == "imported\n"
    assert done.returncode == 1 and "RendezvousError: WORLD_SIZE=2, and this process sees no GPU" in done.stderr
