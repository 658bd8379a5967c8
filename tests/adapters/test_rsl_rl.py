"""rsl_rl's own runner and storage, on environments whose every number is known."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from gymnasium.vector import AutoresetMode, VectorEnv

from genesis_vec import MultiDeviceVectorEnv
from genesis_vec.adapters.common import only_gpu_as_local_rank
from genesis_vec.errors import RendezvousError
from tests.fakes import CounterEnv
from tests.little_tasks import CountingTask
from tests.wrappers.support import ForbidHostReads, MetaEnv, WatchedEnv

pytest.importorskip("rsl_rl")

from rsl_rl.runners import OnPolicyRunner

from genesis_vec.adapters.rsl_rl import RslRlVecEnv

STEPS = 8


def runner(env: RslRlVecEnv, critic: tuple[str, ...] = ("policy",), device: str = "cpu", **settings: Any) -> Any:
    network = {"class_name": "MLPModel", "hidden_dims": [8], "activation": "elu"}
    noise = {"class_name": "GaussianDistribution", "init_std": 1.0, "std_type": "log"}
    config = {
        "num_steps_per_env": STEPS, "save_interval": 100, "obs_groups": {"actor": ["policy"], "critic": list(critic)},
        "actor": {**network, "distribution_cfg": noise}, "critic": network,
        "algorithm": {"class_name": "PPO", "gamma": 0.5, "lam": 1.0, **settings},
    }  # fmt: skip
    with contextlib.redirect_stdout(io.StringIO()):
        return OnPolicyRunner(env, config, log_dir=None, device=device)


def rollout(made: Any) -> Any:
    """The storage after a rollout, as the runner fills it."""
    kept: list[Any] = []
    made.alg.update = lambda: kept.append(made.alg.storage) or {}
    made.learn(1)
    return kept[0]


def test_stored_observations_are_those_that_the_actions_were_drawn_for():
    storage = rollout(runner(RslRlVecEnv(CounterEnv(num_envs=3, limit=[2, 3, 5]))))
    steps = storage.observations["policy"][..., 2]
    assert steps[:, 0].tolist() == [0, 1] * 4
    assert steps[:, 2].tolist() == [0, 1, 2, 3, 4, 0, 1, 2]
    assert storage.dones[:, 1, 0].tolist() == [0, 0, 1, 0, 0, 1, 0, 0]


def test_a_time_limit_adds_the_value_before_the_last_step_and_a_termination_nothing():
    made = runner(RslRlVecEnv(CounterEnv(num_envs=2, limit=4, terminate_at=[None, 4])))
    storage = rollout(made)
    rewards, values = storage.rewards[..., 0], storage.values[..., 0]
    expected = torch.tensor([1.0, 2.0, 3.0, 4.0] * 2).repeat(2, 1).T.clone()
    expected[[3, 7], 0] += 0.5 * values[[3, 7], 0]
    torch.testing.assert_close(rewards, expected)
    torch.testing.assert_close(storage.returns[3, :, 0], rewards[3], msg="the estimate stops at either")


def test_time_outs_are_truncations_and_nothing_else():
    env = RslRlVecEnv(CounterEnv(num_envs=2, limit=2, terminate_at=[None, 2]))
    assert env.max_episode_length == 1000, "the environment has no time limit that it tells"
    env.step(torch.zeros(2, 2))
    _, _, dones, extras = env.step(torch.zeros(2, 2))
    assert dones.tolist() == [True, True]
    assert extras["time_outs"].tolist() == [True, False]
    assert env.get_observations()["policy"][:, 2].tolist() == [0, 0]


def test_terms_of_the_reward_are_logged_by_their_means(make_env: Callable[..., Any]):
    env = RslRlVecEnv(make_env(CountingTask(), 3), seed=0)
    env.step(torch.zeros(3, 1))
    assert {name: value.item() for name, value in env.step(torch.zeros(3, 1))[3]["log"].items()} == {
        "Reward/reward": 2.0
    }


def test_episodes_can_begin_at_different_steps_so_that_time_limits_do_not_come_together(make_env: Callable[..., Any]):
    vector_env = make_env(CountingTask(count_episodes=False), 4, max_episode_steps=5)
    env = RslRlVecEnv(vector_env, seed=0)
    assert env.max_episode_length == 5
    env.episode_length_buf = torch.tensor([0, 1, 3, 4])
    dones = [env.step(torch.zeros(4, 1))[2].tolist() for _ in range(5)]
    assert [[step[row] for step in dones].index(True) for row in range(4)] == [4, 3, 1, 0]
    assert env.episode_length_buf.tolist() == [0, 1, 3, 4]
    runner(env).learn(1, init_at_random_ep_len=True)
    for wrong in (torch.zeros(4), torch.zeros(3, dtype=torch.int64), torch.full((4,), -1)):
        with pytest.raises(ValueError, match="steps must be"):
            vector_env.set_episode_steps(wrong)
    with pytest.raises(TypeError, match=r"CounterEnv has no set_episode_steps.*leave init_at_random_ep_len=False"):
        RslRlVecEnv(CounterEnv()).episode_length_buf = torch.zeros(3, dtype=torch.int64)


@pytest.mark.slow
def test_workers_take_the_steps_of_their_own_rows():
    with contextlib.closing(
        MultiDeviceVectorEnv(CountingTask, 5, devices="cpu:1", envs_per_scene=2, max_episode_steps=5)
    ) as vector_env:
        env = RslRlVecEnv(vector_env, seed=0)
        env.episode_length_buf = torch.tensor([4, 3, 2, 1, 0])
        dones = [env.step(torch.zeros(5, 1))[2].tolist() for _ in range(5)]
        assert [[step[row] for step in dones].index(True) for row in range(5)] == [0, 1, 2, 3, 4]
        with pytest.raises(ValueError, match="steps must be 0 or more, got -1"):
            vector_env.set_episode_steps(torch.full((5,), -1))


def test_groups_of_a_dict_go_to_actor_and_critic_by_name():
    env = CounterEnv(num_envs=3, dict_obs=True)
    made = runner(RslRlVecEnv(_Renamed(env)), critic=("policy", "critic"))
    made.learn(1)
    assert made.alg.critic.mlp[0].in_features == 5 and made.alg.actor.mlp[0].in_features == 3


class _Renamed(CounterEnv):
    """Its observation's parts are "policy" and "critic"."""

    def __init__(self, env: CounterEnv) -> None:
        super().__init__(env.num_envs, dict_obs=True)
        space: Any = env.single_observation_space
        self.single_observation_space = type(space)({"policy": space["counter"], "critic": space["noise"]})

    def _observe(self) -> Any:
        observations = super()._observe()
        return {"policy": observations["counter"], "critic": observations["noise"]}


@pytest.mark.parametrize("num_envs", [1, 7])
def test_training_on_the_engine_changes_the_policy_and_leaves_the_environment_usable(
    num_envs: int, make_env: Callable[..., Any]
):
    vector_env = make_env(num_envs=num_envs, max_episode_steps=5)
    made = runner(RslRlVecEnv(vector_env, seed=1), num_mini_batches=2)
    before = {name: value.clone() for name, value in made.alg.actor.state_dict().items()}
    made.learn(2)
    after = made.alg.actor.state_dict()
    assert any(not torch.equal(value, after[name]) for name, value in before.items())
    assert all(bool(value.isfinite().all()) for value in after.values())
    # The runner steps under inference mode, whose tensors could not be written to any more.
    vector_env.reset(seed=3)
    vector_env.step(torch.zeros(num_envs, 1))


def test_it_writes_into_nothing_that_the_environment_gave():
    vector_env = WatchedEnv(num_envs=3, limit=[2, 3, 5])
    runner(RslRlVecEnv(vector_env)).learn(2)
    vector_env.assert_untouched()


def test_a_step_reads_nothing_on_the_host():
    env = RslRlVecEnv(MetaEnv(AutoresetMode.SAME_STEP))
    with ForbidHostReads():
        observations, rewards, dones, _ = env.step(torch.empty(3, 2, device="meta"))
    assert observations["policy"].is_meta and rewards.is_meta and dones.is_meta


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED], ids=lambda mode: mode.name)
def test_another_autoreset_mode_is_refused_with_the_fix(mode: AutoresetMode):
    with pytest.raises(ValueError, match=rf"RslRlVecEnv needs .*SAME_STEP.* has {mode.name}.*autoreset_mode=Auto"):
        RslRlVecEnv(CounterEnv(autoreset_mode=mode))


# ---------------------------------------------------------------------------------------------------------------- ranks


def test_a_rank_that_sees_one_gpu_gives_it_to_the_runner_whatever_its_local_rank(monkeypatch: pytest.MonkeyPatch):
    joined: list[Any] = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "set_device", joined.append)
    monkeypatch.setattr(torch.distributed, "init_process_group", lambda **kwargs: joined.append(kwargs["rank"]))
    for name, value in {"WORLD_SIZE": "4", "RANK": "3", "LOCAL_RANK": "3"}.items():
        monkeypatch.setenv(name, value)
    parts: Any = object.__new__(OnPolicyRunner)
    parts.cfg, parts.device = {}, "cuda:0"
    with pytest.raises(ValueError, match="does not match expected device"):
        parts._configure_multi_gpu()
    with only_gpu_as_local_rank():
        parts._configure_multi_gpu()
    assert joined == [3, 0]
    assert __import__("os").environ["LOCAL_RANK"] == "3", "put back"


def test_several_ranks_without_gpus_are_refused_before_they_would_wait_for_ever(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(RendezvousError, match=r"WORLD_SIZE=2.*NCCL only.*TorchPPO"), only_gpu_as_local_rank():
        pass


def test_only_vector_environments_of_tensors_are_taken():
    class NoTensors(VectorEnv):
        num_envs = 1
        metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012

    with pytest.raises(TypeError, match="takes a gymnasium"):
        RslRlVecEnv(NoTensors())
