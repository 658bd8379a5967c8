"""stable-baselines3 on environments whose every number is known, and TorchPPO against its own PPO."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode
from torch.utils._python_dispatch import _disable_current_modes

from genesis_vec import MultiDeviceVectorEnv
from genesis_vec.wrappers import NormalizeObservation
from tests.fakes import CounterEnv
from tests.little_tasks import CountingTask
from tests.multi_device.fakes import PartOfCounterEnv
from tests.training import torchrun
from tests.wrappers.support import ForbidHostReads, WatchedEnv

pytest.importorskip("stable_baselines3")

from stable_baselines3 import PPO, SAC
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import VecMonitor, VecNormalize

from genesis_vec.adapters.sb3 import SB3VecEnv, TorchPPO
from genesis_vec.adapters.sb3.torch_ppo import TorchRolloutBuffer

SMALL: dict[str, Any] = {"n_steps": 8, "batch_size": 12, "n_epochs": 2, "policy_kwargs": {"net_arch": [8]}, "seed": 3}


def zeros(env: Any) -> np.ndarray:
    return np.zeros((env.num_envs, *env.action_space.shape), dtype=np.float32)


# ------------------------------------------------------------------------------------------------------------ SB3VecEnv


def test_a_time_limit_and_a_fall_in_the_same_step_are_told_apart_with_both_last_observations():  # case B08
    env = SB3VecEnv(CounterEnv(num_envs=2, limit=3, terminate_at=[None, 3]))
    env.reset()
    for _ in range(2):
        assert env.step(zeros(env))[3] == [{}, {}]
    observations, rewards, dones, infos = env.step(zeros(env))
    assert [info["TimeLimit.truncated"] for info in infos] == [True, False]
    assert [info["terminal_observation"].tolist() for info in infos] == [[0, 0, 3], [1, 0, 3]]
    assert all(info["terminal_observation"].dtype == np.float32 for info in infos)
    assert [(info["episode"]["r"], info["episode"]["l"]) for info in infos] == [(6.0, 3), (6.0, 3)]
    assert observations.tolist() == [[0, 1, 0], [1, 1, 0]]
    assert rewards.tolist() == [3.0, 3.0] and dones.tolist() == [True, True]
    assert (observations.dtype, rewards.dtype, dones.dtype) == (np.float32, np.float32, np.bool_)


@pytest.mark.parametrize("copies", [False, True], ids=["cpu", "device"])
@pytest.mark.parametrize("dict_obs", [False, True])
def test_observations_are_those_of_the_environment_and_never_change(copies: bool, dict_obs: bool):
    vector_env = WatchedEnv(num_envs=3, limit=[2, 3, 5], dict_obs=dict_obs)
    env = SB3VecEnv(vector_env)
    env._copies = copies
    kept = [env.reset()]
    for _ in range(6):
        kept.append(env.step(zeros(env))[0])
    reference = CounterEnv(num_envs=3, limit=[2, 3, 5], dict_obs=dict_obs)
    expected = [reference.reset()[0], *(reference.step(zeros(env))[0] for _ in range(6))]
    for ours, theirs in zip(kept, expected, strict=True):
        pairs = [(ours[key], theirs[key]) for key in theirs] if dict_obs else [(ours, theirs)]
        for array, tensor in pairs:
            assert array.dtype == np.float32 and array.tolist() == tensor.tolist()


def test_writing_into_the_rewards_leaves_the_environment_s_alone():
    vector_env = WatchedEnv(num_envs=3)
    env = SB3VecEnv(vector_env)
    env.reset()
    env.step(zeros(env))[1][:] += 100.0  # as stable-baselines3 does at a time limit
    vector_env.assert_untouched()


def test_from_a_device_a_step_comes_in_one_copy_and_an_end_s_observations_in_a_second(monkeypatch: pytest.MonkeyPatch):
    copies: list[int] = []
    original = torch.Tensor.cpu
    monkeypatch.setattr(torch.Tensor, "cpu", lambda self: copies.append(self.numel()) or original(self))
    env = SB3VecEnv(CounterEnv(num_envs=4, limit=3, dict_obs=True))
    env._copies = True
    env.reset()
    copies.clear()
    for expected in (1, 1, 2):
        env.step(zeros(env))
        assert len(copies) == expected
        copies.clear()


def test_infos_of_running_rows_cost_nothing_and_are_not_shared_between_rows():
    env = SB3VecEnv(CounterEnv(num_envs=3, limit=[2, 9, 9]))
    env.reset()
    first, second = env.step(zeros(env))[3], env.step(zeros(env))[3]
    assert all(one is other for one, other in zip(first[1:], second[1:], strict=True))
    assert first[1] is not first[2]
    assert first[0] == {} and second[0]["episode"]["l"] == 2


def test_metrics_come_with_the_episode_and_success_under_its_name_there(make_env: Callable[..., Any]):
    class Balancing(CountingTask):
        def metrics(self) -> dict[str, torch.Tensor]:
            return {"success": self.steps >= 3, "height": self.steps * 0.5}

    env = SB3VecEnv(make_env(Balancing(terminate_at=[2, 3]), 2, fresh=True))
    env.reset()
    env.step(zeros(env))
    fallen, still_up = env.step(zeros(env))[3]
    assert (fallen["is_success"], fallen["height"], fallen["fault"]) == (False, 1.0, False)
    assert still_up == {}
    assert env.step(zeros(env))[3][1]["is_success"] is True


def test_a_seed_seeds_every_environment_by_its_index_as_without_the_adapter(make_env: Callable[..., Any]):
    vector_env = make_env(num_envs=3)
    env = SB3VecEnv(vector_env)
    env.seed(7)
    first, unseeded = env.reset().copy(), env.reset().copy()
    env.seed(7)
    assert np.array_equal(first, env.reset()) and not np.array_equal(first, unseeded)
    assert torch.equal(vector_env.reset(seed=7)[0], torch.from_numpy(first))


def test_attributes_methods_and_wrappers_are_those_of_the_one_vector_environment():
    inner = CounterEnv(num_envs=3)
    env = SB3VecEnv(NormalizeObservation(inner))
    assert env.get_attr("limit") == [[3, 3, 3]] * 3
    assert len(env.get_attr("epsilon", indices=[0, 2])) == 2
    env.set_attr("limit", [4, 4, 4])
    env.set_attr("note", "new")
    assert inner.limit == [4, 4, 4] and inner.note == "new"  # type: ignore[attr-defined]
    env.reset()
    assert len(env.env_method("_observe")) == 3
    assert env.env_is_wrapped(NormalizeObservation) == [True] * 3
    assert env.env_is_wrapped(Monitor, indices=0) == [True]
    with pytest.raises(AttributeError, match="neither CounterEnv nor a wrapper around it has 'nothing'"):
        env.get_attr("nothing")
    with pytest.raises(ValueError, match=r"indices=\[1\].*one object.*leave indices=None"):
        env.set_attr("limit", 3, indices=[1])
    with pytest.raises(ValueError, match="different options"):
        env.set_options([{"a": 1}, {}, {}])
        env.reset()


def test_frames_are_given_for_every_environment():
    env = SB3VecEnv(CounterEnv(num_envs=2))
    env.env.render = lambda: tuple(np.full((2, 2, 3), i, np.uint8) for i in range(2))  # type: ignore[method-assign]
    assert [image.max() for image in env.get_images()] == [0, 1]  # type: ignore[union-attr]
    env.env.render = lambda: None  # type: ignore[method-assign]
    assert env.get_images() == [None, None]


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED], ids=lambda mode: mode.name)
def test_another_autoreset_mode_is_refused_with_the_fix(mode: AutoresetMode):
    with pytest.raises(ValueError, match=rf"SB3VecEnv needs .*SAME_STEP.* has {mode.name}.*autoreset_mode=Auto"):
        SB3VecEnv(CounterEnv(autoreset_mode=mode))
    with pytest.raises(TypeError, match=r"SB3VecEnv takes a gymnasium\.vector\.VectorEnv"):
        SB3VecEnv("GenesisCartPole-v0")  # type: ignore[arg-type]


def test_monitors_normalisation_evaluation_and_off_policy_learners_of_the_library_work(tmp_path: Path):
    env = SB3VecEnv(CounterEnv(num_envs=3, limit=[2, 3, 4]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wrapped = VecNormalize(VecMonitor(env))
    model = PPO("MlpPolicy", wrapped, **SMALL).learn(48)
    assert {episode["l"] for episode in model.ep_info_buffer} == {2, 3, 4}  # type: ignore[union-attr]
    model.save(tmp_path / "ppo")
    mean, _ = evaluate_policy(PPO.load(tmp_path / "ppo", env), env, n_eval_episodes=6)
    assert mean == pytest.approx(np.mean([3, 6, 10]))
    learner = SAC("MlpPolicy", env, learning_starts=3, buffer_size=60, policy_kwargs={"net_arch": [8]}).learn(30)
    buffer = learner.replay_buffer
    assert buffer is not None
    stored, following = buffer.observations[: buffer.pos], buffer.next_observations[: buffer.pos]
    assert np.array_equal(following[..., 2], stored[..., 2] + 1), "an episode's last step leads to its own end"
    assert np.array_equal(buffer.timeouts[: buffer.pos], buffer.dones[: buffer.pos])


# ------------------------------------------------------------------------------------------------------------- TorchPPO


def parameters(model: Any) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in model.policy.state_dict().items()}


@pytest.mark.parametrize(
    ("settings", "env_settings"),
    [
        ({}, {"limit": [2, 3, 5]}),
        ({"clip_range_vf": 0.2, "ent_coef": 0.01, "target_kl": 0.01}, {"terminate_at": [2, None, 4]}),
        ({"use_sde": True, "sde_sample_freq": 3, "normalize_advantage": False}, {}),
        ({"policy": "MultiInputPolicy"}, {"dict_obs": True}),
    ],
    ids=["time limits", "terminations, early stop", "state-dependent noise", "dict observations"],
)
def test_it_is_ppo_to_the_order_of_sums(settings: dict[str, Any], env_settings: dict[str, Any]):
    learnt = []
    for algorithm in (PPO, TorchPPO):
        env = SB3VecEnv(CounterEnv(num_envs=3, **env_settings))
        model = algorithm(env=env, **{"policy": "MlpPolicy", **SMALL, **settings}).learn(8 * 3 * 4)
        learnt.append((parameters(model), [(e["r"], e["l"]) for e in model.ep_info_buffer], model.num_timesteps))
    (ours, our_episodes, our_steps), (theirs, their_episodes, their_steps) = reversed(learnt)
    for name, value in theirs.items():
        torch.testing.assert_close(ours[name], value, rtol=1e-5, atol=1e-6)
    assert our_episodes == their_episodes and len(our_episodes) > 10
    assert our_steps == their_steps == 96


def test_on_the_real_engine_too(make_env: Callable[..., Any]):
    learnt = []
    for algorithm in (PPO, TorchPPO):
        env = SB3VecEnv(make_env(num_envs=6, max_episode_steps=7))
        learnt.append(parameters(algorithm("MlpPolicy", env, **{**SMALL, "batch_size": 24}).learn(8 * 6 * 3)))
    for name, value in learnt[0].items():
        torch.testing.assert_close(learnt[1][name], value, rtol=1e-4, atol=1e-5)


class Steps(BaseCallback):
    def __init__(self, stop_at: int) -> None:
        super().__init__()
        self.stop_at = stop_at
        self.seen: list[Any] = []

    def _on_step(self) -> bool:
        self.seen.append(self.locals["infos"]["_final_obs"])
        return self.n_calls < self.stop_at


def test_its_rollouts_hold_what_was_seen_and_a_callback_can_end_them():
    env = SB3VecEnv(CounterEnv(num_envs=3, limit=[2, 3, 5]))
    model = TorchPPO("MlpPolicy", env, **SMALL).learn(24)
    buffer = model.rollout_buffer
    assert isinstance(buffer, TorchRolloutBuffer)
    assert buffer.observations[:, 2, 2].tolist() == [0, 1, 2, 3, 4, 0, 1, 2]
    assert buffer.rewards[:, 1].tolist() == [1, 2, 3, 1, 2, 3, 1, 2], "as the environment gave them"
    assert buffer.truncated[:, 0].tolist() == [False, True] * 4
    stopping = Steps(stop_at=3)
    model.learn(240, callback=stopping)
    assert len(stopping.seen) == 3


def test_rollouts_read_nothing_on_the_host_until_they_are_complete(monkeypatch: pytest.MonkeyPatch):
    class Unwatched(CounterEnv):
        def step(self, actions: Any) -> Any:
            with _disable_current_modes():
                return super().step(actions)

    env = SB3VecEnv(Unwatched(num_envs=3))
    model = TorchPPO("MlpPolicy", env, **SMALL)
    _, callback = model._setup_learn(24, Steps(stop_at=99))
    reached: list[str] = []
    monkeypatch.setattr(model.rollout_buffer, "compute_returns_and_advantages", lambda *args: reached.append("end"))
    monkeypatch.setattr(model, "_keep_episodes", reached.append)
    monkeypatch.setattr(torch.distributions.Distribution, "_validate_args", False)  # the library's own check
    with ForbidHostReads():
        assert model.collect_rollouts(env, callback, model.rollout_buffer, 8)
    assert len(reached) == 2


def test_it_saves_loads_and_goes_on_and_is_evaluated(tmp_path: Path):
    env = SB3VecEnv(CounterEnv(num_envs=3))
    model = TorchPPO("MlpPolicy", env, **SMALL).learn(24)
    model.save(tmp_path / "model")
    loaded = TorchPPO.load(tmp_path / "model", env)
    assert evaluate_policy(loaded, env, n_eval_episodes=3)[0] == 6.0
    for name, value in parameters(model).items():
        assert torch.equal(value, parameters(loaded)[name])
    loaded.learn(24, reset_num_timesteps=False)
    assert loaded.num_timesteps == 48


@pytest.mark.parametrize(("saved_by", "loaded_by"), [(PPO, TorchPPO), (TorchPPO, PPO)])
def test_models_go_back_and_forth_between_it_and_ppo(saved_by: Any, loaded_by: Any, tmp_path: Path):
    env = SB3VecEnv(CounterEnv(num_envs=3))
    model = saved_by("MlpPolicy", env, **SMALL).learn(24)
    model.save(tmp_path / "model")
    loaded = loaded_by.load(tmp_path / "model", env)
    for name, value in parameters(model).items():
        assert torch.equal(value, parameters(loaded)[name])
    loaded.learn(24, reset_num_timesteps=False)
    assert loaded.num_timesteps == 48
    assert isinstance(loaded.rollout_buffer, TorchRolloutBuffer) == (loaded_by is TorchPPO)


def test_what_would_not_pass_through_its_rollouts_is_refused():
    env = SB3VecEnv(CounterEnv(num_envs=3))
    with pytest.raises(TypeError, match=r"do not pass through VecNormalize.*NormalizeObservation"):
        TorchPPO("MlpPolicy", VecNormalize(env))
    with pytest.raises(TypeError, match="leave rollout_buffer_class out"):
        TorchPPO("MlpPolicy", env, rollout_buffer_class=TorchRolloutBuffer)
    model = TorchPPO("MlpPolicy", env, **SMALL)
    with pytest.raises(TypeError, match=r"takes a genesis_vec\.adapters\.sb3\.SB3VecEnv"):
        model.set_env(CounterEnv(num_envs=3))


def part(num_envs: int, device: str, first_env_index: int) -> PartOfCounterEnv:
    return PartOfCounterEnv(num_envs, device, first_env_index)


def test_workers_give_what_one_environment_gives():
    learnt = []
    for vector_env in (
        PartOfCounterEnv(num_envs=6, device="cpu", first_env_index=0),
        MultiDeviceVectorEnv(part, 6, devices="cpu:2"),
    ):
        env = SB3VecEnv(vector_env)
        learnt.append(parameters(TorchPPO("MlpPolicy", env, **SMALL).learn(8 * 6 * 2)))
        env.close()
    assert all(torch.equal(value, learnt[1][name]) for name, value in learnt[0].items())


def test_two_ranks_have_one_policy_average_gradients_and_normalise_over_both(tmp_path: Path):
    script = torchrun.ROOT / "tests" / "adapters" / "two_learners.py"
    code, output = torchrun.run([str(script), str(tmp_path)])
    assert code == 0, output
    assert output.count("ep_len_mean") == 1, "rank 0 alone logs"
    states = [torch.load(tmp_path / f"rank{rank}.pt") for rank in range(2)]
    for name, value in states[0]["policy"].items():
        assert torch.equal(value, states[1]["policy"][name])
    assert states[0]["num_timesteps"] == 2 * 8 * 3 * 2
    assert states[0]["lengths"] == states[1]["lengths"]
    assert set(states[0]["lengths"]) == {2, 3, 4, 5, 6}, "the episodes of both ranks"
    # What one learner computes from both ranks' rollouts, with as large a minibatch.
    for name, value in states[0]["expected"].items():
        torch.testing.assert_close(states[0]["policy_after_one"][name], value, rtol=1e-4, atol=1e-6)
