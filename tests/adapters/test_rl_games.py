"""rl_games' own runner, agents and players, on environments whose every number is known."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv

from genesis_vec.vector_env import GenesisVectorEnv
from genesis_vec.wrappers import TransformObservation
from tests.fakes import CounterEnv
from tests.wrappers.support import ForbidHostReads, MetaEnv, WatchedEnv

pytest.importorskip("rl_games")

from rl_games.algos_torch import model_builder, torch_ext
from rl_games.algos_torch.network_builder import NetworkBuilder
from rl_games.common import env_configurations, vecenv
from rl_games.common.algo_observer import DefaultAlgoObserver, IsaacAlgoObserver
from rl_games.torch_runner import Runner

from genesis_vec.adapters.rl_games import RlGamesVecEnv, register

GAMMA = 0.5


class KnownValueBuilder(NetworkBuilder):
    """A network with V = 10 * episode number + step in the episode, of a CounterEnv's observation."""

    def load(self, params: dict[str, Any]) -> None:
        pass

    def build(self, name: str, **kwargs: Any) -> torch.nn.Module:
        return self.Network(kwargs["actions_num"])

    class Network(NetworkBuilder.BaseNetwork):
        def __init__(self, size: int) -> None:
            super().__init__()
            self.mean = torch.nn.Parameter(torch.zeros(size))

        def forward(self, inputs: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, None]:
            counter = inputs["obs"]["counter"] if isinstance(inputs["obs"], dict) else inputs["obs"]
            mean = self.mean.expand(len(counter), -1)
            return mean, torch.zeros_like(mean), 10 * counter[:, 1:2] + counter[:, 2:3], None


NETWORK = {
    "name": "actor_critic",
    "separate": False,
    "space": {
        "continuous": {
            "mu_activation": "None",
            "sigma_activation": "None",
            "mu_init": {"name": "default"},
            "sigma_init": {"name": "const_initializer", "val": 0},
            "fixed_sigma": True,
        }
    },
    "mlp": {"units": [8], "activation": "elu", "initializer": {"name": "default"}},
}


@pytest.fixture(autouse=True)
def _rl_games_leaves_no_trace() -> Iterator[None]:
    """Undoes what registering and making a Runner do to the process."""
    model_builder.register_network("known_value", KnownValueBuilder)
    precision = torch.get_float32_matmul_precision()
    flags = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark
    generator = np.random.get_state()
    with mock.patch.dict(vecenv.vecenv_config), mock.patch.dict(env_configurations.configurations):
        yield
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark = flags
    torch.set_float32_matmul_precision(precision)
    torch.set_printoptions(profile="default")
    np.random.set_state(generator)


@pytest.fixture
def load(tmp_path: Path) -> Callable[..., Runner]:
    """Loads settings for the environment "counter" into a Runner."""

    def load(
        num_envs: int,
        horizon: int,
        *,
        network: dict[str, Any] | None = None,
        observer: Any = None,
        algo: str = "a2c_continuous",
        **config: Any,
    ) -> Runner:
        params = {
            "seed": 5,
            "torch_threads": 0,
            "algo": {"name": algo},
            "model": {"name": "continuous_a2c_logstd"},
            "network": network or {"name": "known_value"},
            "config": {
                "name": "test",
                "env_name": "counter",
                "num_actors": num_envs,
                "env_config": {},
                "device": "cpu",
                "device_name": "cpu",
                "torch_compile": False,
                "train_dir": str(tmp_path),
                "print_stats": False,
                "reward_shaper": {"scale_value": 1.0},
                "normalize_advantage": True,
                "normalize_input": False,
                "normalize_value": False,
                "gamma": GAMMA,
                "tau": 1.0,
                "learning_rate": 1e-3,
                "lr_schedule": None,
                "e_clip": 0.2,
                "clip_value": False,
                "critic_coef": 1.0,
                "entropy_coef": 0.0,
                "bounds_loss_coef": 0.0,
                "truncate_grads": True,
                "grad_norm": 1.0,
                "horizon_length": horizon,
                "minibatch_size": num_envs * horizon,
                "mini_epochs": 1,
                # rl_games' dataset takes no smaller batch than a sequence, also without a recurrent network.
                "seq_length": 1,
                "max_epochs": 2,
                **config,
            },
        }
        runner = Runner(observer or IsaacAlgoObserver())
        runner.load({"params": params})
        return runner

    return load


def agent_of(runner: Runner) -> Any:
    return runner.algo_factory.create(runner.algo_name, base_name="run", params=runner.params)


def rollout(runner: Runner) -> tuple[Any, dict[str, Any]]:
    """The agent after one rollout, and the batch it made of it: (num_envs * horizon, …), by environments."""
    agent = agent_of(runner)
    agent.init_tensors()
    agent.obs = agent.env_reset()
    return agent, agent.play_steps()


def with_critic(env: VectorEnv) -> VectorEnv:
    """A CounterEnv whose counter is the policy's, and whose noise is the critic's."""
    box = env.single_observation_space
    assert isinstance(box, spaces.Dict)
    space = spaces.Dict({"policy": box["counter"], "critic": box["noise"]})
    return TransformObservation(
        env, lambda obs: {"policy": obs["counter"], "critic": obs["noise"]}, single_observation_space=space
    )


class TestVecEnv:
    def test_termination_and_time_limit_in_one_step_are_told_apart(self):
        env = RlGamesVecEnv(CounterEnv(num_envs=3, limit=[2, 2, 9], terminate_at=[None, 2, None]))
        assert env.reset()["obs"].tolist() == [[0, 0, 0], [1, 0, 0], [2, 0, 0]]
        env.step(torch.zeros(3, 2))
        observations, rewards, dones, infos = env.step(torch.zeros(3, 2))
        assert observations["obs"].tolist() == [[0, 1, 0], [1, 1, 0], [2, 0, 2]]
        assert rewards.tolist() == [2, 2, 2]
        assert dones.tolist() == [True, True, False] and dones.dtype == torch.bool
        assert infos["time_outs"].tolist() == [True, False, False]

    def test_time_outs_are_never_terminations_even_where_an_environment_gives_both(self):
        env = CounterEnv(num_envs=1)
        both = torch.ones(1, dtype=torch.bool)
        env.step = lambda actions: (torch.zeros(1, 3), torch.zeros(1), both, both, {})
        assert RlGamesVecEnv(env).step(torch.zeros(1, 2))[-1]["time_outs"].tolist() == [False]

    def test_the_seed_is_for_the_first_reset_and_may_be_set_anew(self):
        fake = CounterEnv(num_envs=2)
        env = RlGamesVecEnv(fake, seed=7)
        env.reset()
        assert (fake.seeds, fake.episode) == ([7, 8], [0, 0])
        env.reset()
        assert (fake.seeds, fake.episode) == ([7, 8], [1, 1])
        env.seed(3)
        env.reset()
        assert (fake.seeds, fake.episode) == ([3, 4], [0, 0])

    def test_the_critics_part_is_the_state(self):
        fake = CounterEnv(num_envs=2, dict_obs=True)
        env = RlGamesVecEnv(with_critic(fake))
        observations = env.reset()
        assert sorted(observations) == ["obs", "states"]
        torch.testing.assert_close(observations["states"], fake.noise)
        info = env.get_env_info()
        assert (info["observation_space"].shape, info["state_space"].shape) == ((3,), (2,))
        assert sorted(env.step(torch.zeros(2, 2))[0]) == ["obs", "states"]

    def test_a_policys_part_alone_has_no_state(self):
        fake = CounterEnv(num_envs=2)
        space = spaces.Dict({"policy": fake.single_observation_space})
        env = RlGamesVecEnv(TransformObservation(fake, lambda obs: {"policy": obs}, single_observation_space=space))
        assert sorted(env.reset()) == ["obs"] and env.get_env_info()["state_space"] is None

    def test_episode_statistics_are_not_where_observers_average_them(self):
        env = RlGamesVecEnv(CounterEnv(num_envs=2, limit=1))
        env.reset()
        infos = env.step(torch.zeros(2, 2))[-1]
        assert "episode" not in infos and "_episode" not in infos
        assert infos["final_info"]["episode"]["l"].tolist() == [1, 1]

    def test_reward_terms_are_where_observers_average_them(self):
        fake = CounterEnv(num_envs=2)
        terms = {"upright": torch.tensor([1.0, 3.0]), "effort": torch.tensor([-1.0, 0.0])}
        step = fake.step
        fake.step = lambda actions: (*step(actions)[:4], {"reward_terms": terms})
        env = RlGamesVecEnv(fake)
        env.reset()
        infos = env.step(torch.zeros(2, 2))[-1]
        assert {name: value.item() for name, value in infos["episode"].items()} == {
            "Reward/upright": 2.0,
            "Reward/effort": -0.5,
        }
        assert all(value.shape == () for value in infos["episode"].values())

    def test_it_does_not_wait_for_the_device(self):
        env = RlGamesVecEnv(MetaEnv(AutoresetMode.SAME_STEP))
        with ForbidHostReads():
            env.reset()
            observations, rewards, dones, _ = env.step(torch.empty(3, 2, device="meta"))
        assert observations["obs"].is_meta and rewards.is_meta and dones.is_meta

    def test_it_closes_and_gives_no_state_for_checkpoints(self):
        fake = CounterEnv()
        env = RlGamesVecEnv(fake)
        assert env.get_env_state() is None
        env.set_env_state(None)
        env.close()
        assert fake.closed

    @pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED], ids=lambda mode: mode.name)
    def test_other_autoreset_modes_are_refused(self, mode):
        with pytest.raises(ValueError, match=rf"{mode.name}.*Make it with autoreset_mode=AutoresetMode.SAME_STEP"):
            RlGamesVecEnv(CounterEnv(autoreset_mode=mode))

    def test_a_policys_part_beside_foreign_ones_is_refused(self):
        box = CounterEnv().single_observation_space
        space = spaces.Dict({"policy": box, "camera": box})
        env = TransformObservation(
            CounterEnv(), lambda obs: {"policy": obs, "camera": obs}, single_observation_space=space
        )
        with pytest.raises(TypeError, match="FlattenObservation"):
            RlGamesVecEnv(env)


class TestRegister:
    def test_a_function_gets_the_number_of_environments_and_env_config_without_the_seed(self, load):
        calls = []

        def make(num_envs: int, **kwargs: Any) -> CounterEnv:
            calls.append((num_envs, kwargs))
            return CounterEnv(num_envs, **kwargs)

        register("counter", make)
        config = {"limit": 4, "seed": 11}
        agent, _ = rollout(load(num_envs=3, horizon=2, env_config=config))
        assert calls == [(3, {"limit": 4})] and agent.vec_env.env.seeds == [11, 12, 13]
        assert config == {"limit": 4, "seed": 11}

    def test_an_id_is_made_by_gymnasium(self, load):
        with mock.patch.dict(gymnasium.registry):
            gymnasium.register("Counter-v0", vector_entry_point=CounterEnv)
            register("counter", "Counter-v0")
            agent, _ = rollout(load(num_envs=3, horizon=2, env_config={"limit": 4}))
        assert agent.vec_env.env.limit == [4, 4, 4] and agent.vec_env.env.spec.id == "Counter-v0"

    def test_without_a_seed_of_its_own_it_gets_that_of_the_runner(self, load):
        register("counter", CounterEnv)
        agent, _ = rollout(load(num_envs=2, horizon=2))
        assert agent.vec_env.env.seeds == [5, 6]

    def test_a_number_of_environments_that_was_not_asked_for_is_refused(self, load):
        register("counter", lambda num_envs: CounterEnv(num_envs + 1))
        with pytest.raises(ValueError, match="num_actors=2, and 'counter' has 3 environments"):
            agent_of(load(num_envs=2, horizon=2))

    @pytest.mark.parametrize("use_vecenv", [False, True])
    def test_a_player_plays(self, load, use_vecenv, tmp_path, capsys):
        made = []

        def make(num_envs: int) -> CounterEnv:
            made.append(CounterEnv(num_envs, limit=4))
            return made[-1]

        register("counter", make)
        player = {"games_num": 2, "use_vecenv": use_vecenv, "deterministic": True}
        runner = load(num_envs=2, horizon=2, player=player)
        runner.run({"train": False, "play": True})
        assert made[0].num_envs == (2 if use_vecenv else 1)
        # 1 + 2 + 3 + 4 points in four steps.
        assert "av reward: 10.0" in capsys.readouterr().out


class TestRollout:
    @pytest.mark.parametrize("num_envs", [1, 3])
    def test_stored_observations_are_those_acted_upon(self, load, num_envs):
        register("counter", lambda num_envs: WatchedEnv(num_envs, limit=3))
        agent, _ = rollout(load(num_envs=num_envs, horizon=5))
        buffer = agent.experience_buffer.tensor_dict
        for i in range(num_envs):
            assert buffer["obses"][:, i].tolist() == [[i, 0, 0], [i, 0, 1], [i, 0, 2], [i, 1, 0], [i, 1, 1]]
            # rl_games stores whether the step before ended an episode; the first has none before it.
            assert buffer["dones"][:, i].tolist() == [1, 0, 0, 1, 0]
        env = agent.vec_env.env
        torch.testing.assert_close(buffer["actions"].clamp(-1, 1), torch.stack(env.received_actions))
        env.assert_untouched()

    # Rewards are the number of the step, V is 10 * episode + step, γ = 0.5, and each environment takes four steps:
    # - the first is truncated by its third, in which s_t is worth 2, and then begins episode 1;
    # - the second is terminated by every second;
    # - the third is truncated by the fourth, the rollout's last, in which s_t is worth 3.
    @pytest.mark.parametrize(
        ("lambda_", "returns"),
        [
            # reward + γ·V(next)
            (0.0, [[1 + 0.5, 2 + 1, 3 + 1, 1 + 5.5], [1 + 0.5, 2, 1 + 5.5, 2], [1 + 0.5, 2 + 1, 3 + 1.5, 4 + 1.5]]),
            # The discounted rewards of the episode, and γ^k·V at its end or the rollout's.
            (1.0, [[3, 4, 4, 6.5], [2, 2, 2, 2], [3.4375, 4.875, 5.75, 5.5]]),
        ],
    )
    def test_a_time_limit_adds_the_value_before_the_last_step(self, load, lambda_, returns):
        register("counter", lambda num_envs: WatchedEnv(num_envs, limit=[3, 9, 4], terminate_at=[None, 2, None]))
        agent, batch = rollout(load(num_envs=3, horizon=4, tau=lambda_))
        torch.testing.assert_close(batch["returns"].reshape(3, 4), torch.tensor(returns, dtype=torch.float32))
        agent.vec_env.env.assert_untouched()

    def test_the_critics_part_reaches_the_central_value_network(self, load):
        register("counter", lambda num_envs: with_critic(CounterEnv(num_envs, limit=1, dict_obs=True)))
        central = {
            "minibatch_size": 6,
            "mini_epochs": 1,
            "learning_rate": 1e-3,
            "clip_value": False,
            "normalize_input": False,
            "truncate_grads": True,
            "grad_norm": 1.0,
            "network": {**NETWORK, "central_value": True},
        }
        runner = load(num_envs=3, horizon=2, network=NETWORK, central_value_config=central)
        agent = agent_of(runner)
        before = [parameter.detach().clone() for parameter in agent.central_value_net.parameters()]
        states, step = [], agent.vec_env.step
        agent.vec_env.step = lambda actions: (states.append(agent.obs["states"]), step(actions))[1]
        agent.train()
        buffer = agent.experience_buffer.tensor_dict
        assert buffer["states"].shape == (2, 3, 2)
        torch.testing.assert_close(buffer["states"], torch.stack(states[-2:]))
        after = list(agent.central_value_net.parameters())
        assert any(not torch.equal(a, b) for a, b in zip(before, after, strict=True))

    def test_other_dicts_go_to_the_network_as_a_whole(self, load):
        register("counter", lambda num_envs: CounterEnv(num_envs, limit=3, dict_obs=True))
        agent, batch = rollout(load(num_envs=3, horizon=4, normalize_input=False))
        stored = agent.experience_buffer.tensor_dict["obses"]
        assert sorted(stored) == ["counter", "noise"]
        assert stored["counter"][:, 1].tolist() == [[1, 0, 0], [1, 0, 1], [1, 0, 2], [1, 1, 0]]
        assert batch["returns"].isfinite().all()


class TestTraining:
    @pytest.mark.parametrize("observer", [IsaacAlgoObserver, DefaultAlgoObserver])
    def test_rl_games_own_statistics_are_of_the_episodes_that_ended(self, load, observer):
        register("counter", lambda num_envs: CounterEnv(num_envs, limit=[2, 3, 9], terminate_at=[None, 3, None]))
        agent = agent_of(load(num_envs=3, horizon=6, observer=observer()))
        agent.train()
        # In twelve steps: six episodes of 2 steps, four of 3, and one of 9, which gives 1 + … + 9 points.
        assert agent.game_lengths.get_mean() == pytest.approx((6 * 2 + 4 * 3 + 9) / 11)
        assert agent.game_rewards.get_mean() == pytest.approx((6 * 3 + 4 * 6 + 45) / 11)

    def test_a_checkpoint_holds_no_environment_and_can_be_taken_up(self, load, tmp_path):
        register("counter", CounterEnv)
        agent = agent_of(load(num_envs=3, horizon=4))
        agent.train()
        agent.save(str(tmp_path / "checkpoint"))
        path = str(tmp_path / "checkpoint.pth")
        assert torch_ext.load_checkpoint(path)["env_state"] is None
        again = agent_of(load(num_envs=3, horizon=4, max_epochs=3))
        again.restore(path)
        again.train()
        assert again.epoch_num == 3

    def test_sac_stores_the_observation_before_the_last_step_at_a_time_limit(self, load):
        register("counter", lambda num_envs: WatchedEnv(num_envs, limit=[3, 9], terminate_at=[None, 2]))
        network = {"name": "soft_actor_critic", "separate": True, "mlp": NETWORK["mlp"], "space": {"continuous": {}}}
        network["log_std_bounds"] = [-5, 2]
        settings = {
            "init_alpha": 1.0,
            "alpha_lr": 1e-3,
            "actor_lr": 1e-3,
            "critic_lr": 1e-3,
            "critic_tau": 0.01,
            "learnable_temperature": True,
            "batch_size": 2,
            "replay_buffer_size": 100,
            "num_warmup_steps": 9,
            "num_steps_per_episode": 4,
        }
        runner = load(num_envs=2, horizon=4, network=network, algo="sac", **settings)
        runner.params["model"] = {"name": "soft_actor_critic"}
        agent = agent_of(runner)
        agent.init_tensors()
        agent.algo_observer.after_init(agent)
        agent.obs = agent.env_reset()
        agent.play_steps(random_exploration=True)
        buffer = agent.replay_buffer
        assert buffer.next_obses[:8:2, 1:].tolist() == [[0, 1], [0, 2], [0, 2], [1, 1]]
        assert buffer.dones[:8, 0].reshape(4, 2).int().tolist() == [[0, 0], [0, 1], [0, 0], [0, 1]]
        agent.vec_env.env.assert_untouched()

    def test_ppo_trains_on_the_engine(self, load, make_env: Callable[..., GenesisVectorEnv]):
        register("counter", lambda num_envs: make_env(num_envs=num_envs, max_episode_steps=10))
        runner = load(num_envs=5, horizon=16, network=NETWORK, normalize_input=True, normalize_value=True)
        agent = agent_of(runner)
        before = [parameter.detach().clone() for parameter in agent.model.parameters()]
        agent.train()
        after = list(agent.model.parameters())
        assert all(parameter.isfinite().all() for parameter in after)
        assert not any(torch.equal(a, b) for a, b in zip(before, after, strict=True))
        assert 0 < agent.game_lengths.get_mean() <= 10
