"""TorchRLEnv: what TorchRL stores is what happened, with environments that count, and with the real engine."""

from __future__ import annotations

import gc
import importlib
import sys
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

from genesis_vec.errors import LibraryNotFoundError
from tests.fakes import CounterEnv
from tests.little_tasks import CountingTask
from tests.wrappers.support import ForbidHostReads, WatchedEnv

pytest.importorskip("torchrl")

from tensordict import TensorDict
from tensordict.nn import AddStateIndependentNormalScale, TensorDictModule
from torchrl.collectors import Collector
from torchrl.data import Bounded
from torchrl.envs import Compose, RewardScaling, RewardSum, StepCounter, TransformedEnv
from torchrl.envs.utils import check_env_specs
from torchrl.modules import IndependentNormal, ProbabilisticActor, ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

from genesis_vec.adapters.torchrl import TorchRLEnv

DISABLED = AutoresetMode.DISABLED


class RecordingEnv(WatchedEnv):
    """A CounterEnv that remembers the arguments of its resets."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs, autoreset_mode=DISABLED)
        self.resets: list[tuple[int | None, list[bool] | None]] = []

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple:
        self.resets.append((seed, options and options["reset_mask"].tolist()))
        return super().reset(seed=seed, options=options)


def counter_env(kind: str, make_env: Any, num_envs: int = 3, limit: int = 3, terminate_at: Any = None, **kwargs: Any):
    """An environment that counts: without an engine ("fake"), or a task on the real one ("engine")."""
    if kind == "fake":
        return CounterEnv(num_envs, limit, terminate_at, autoreset_mode=DISABLED, **kwargs)
    task = CountingTask(terminate_at, **kwargs)
    return make_env(task, num_envs, autoreset_mode=DISABLED, max_episode_steps=limit)


BOTH = pytest.mark.parametrize("kind", ["fake", "engine"])


# ---------------------------------------------------------------------------------------------------------- the specs


@pytest.mark.parametrize("dict_obs", [False, True], ids=["box", "dict"])
@pytest.mark.parametrize("num_envs", [1, 3])
@BOTH
def test_torchrls_own_check_passes(make_env, kind, num_envs, dict_obs):
    env = TorchRLEnv(counter_env(kind, make_env, num_envs, limit=2, dict_obs=dict_obs))
    check_env_specs(env, break_when_any_done="both", seed=3)
    assert set(env.observation_spec.keys()) == ({"counter", "noise"} if dict_obs else {"observation"})
    assert env.batch_size == (num_envs,)
    for key in ("reward", "done", "terminated", "truncated"):
        assert env.rollout(2)["next", key].shape == (num_envs, 2, 1)


def test_actions_have_the_environments_bounds_and_arrive_unchanged():
    vector_env = CounterEnv(3, autoreset_mode=DISABLED)
    vector_env.single_action_space = spaces.Box(np.float32([-2, 0]), np.float32([1, 3]))
    vector_env.action_space = batch_space(vector_env.single_action_space, 3)
    env = TorchRLEnv(vector_env)
    assert isinstance(env.action_spec, Bounded)
    assert env.action_spec.space.low.tolist() == [[-2, 0]] * 3
    assert env.action_spec.space.high.tolist() == [[1, 3]] * 3
    data = env.rollout(2)
    assert torch.equal(data["action"], torch.stack(vector_env.received_actions, dim=1))


def test_bounds_of_observations_are_known_where_they_are_finite():
    env = TorchRLEnv(CounterEnv(2, autoreset_mode=DISABLED, dict_obs=True))
    assert isinstance(env.observation_spec["noise"], Bounded)
    assert not isinstance(env.observation_spec["counter"], Bounded)


# ----------------------------------------------------------------------------------------------------- what is stored


@BOTH
def test_stored_steps_are_what_was_seen_and_what_came_of_it(make_env, kind):
    # In the third step row 0 is at its time limit and row 2 terminates; row 1 terminates a step earlier.
    env = TorchRLEnv(counter_env(kind, make_env, limit=3, terminate_at=[None, 2, 3]))
    data = env.rollout(7, break_when_any_done=False)
    index, episode, step = data["observation"].unbind(-1)
    steps = torch.tensor([[0, 1, 2, 0, 1, 2, 0], [0, 1, 0, 1, 0, 1, 0], [0, 1, 2, 0, 1, 2, 0]])
    episodes = torch.tensor([[0, 0, 0, 1, 1, 1, 2], [0, 0, 1, 1, 2, 2, 3], [0, 0, 0, 1, 1, 1, 2]])
    assert torch.equal(index, torch.arange(3.0)[:, None].expand(3, 7))
    assert torch.equal(step, steps.float())
    assert torch.equal(episode - episode[:, :1], episodes.float())
    # At an end too, "next" is of the same episode: the final observation, not the first one of the next.
    assert torch.equal(data["next", "observation"], data["observation"] + torch.tensor([0.0, 0.0, 1.0]))
    assert torch.equal(data["next", "reward"], data["next", "observation"][..., 2:])
    truncated = (steps == 2) & torch.tensor([True, False, False])[:, None]
    terminated = steps == torch.tensor([[9], [1], [2]])
    assert torch.equal(data["next", "truncated"][..., 0], truncated)
    assert torch.equal(data["next", "terminated"][..., 0], terminated)
    assert torch.equal(data["next", "done"][..., 0], truncated | terminated)
    assert not data["done"].any()


@BOTH
def test_dict_observations_are_stored_key_by_key(make_env, kind):
    env = TorchRLEnv(counter_env(kind, make_env, limit=2, dict_obs=True))
    data = env.rollout(5, break_when_any_done=False)
    assert data["counter"][:, :, 2].tolist() == [[0, 1, 0, 1, 0]] * 3
    assert torch.equal(data["next", "noise"], data["noise"])  # it stays for an episode
    assert not torch.equal(data["noise"][:, 1], data["noise"][:, 2])


class OneBufferEnv(CounterEnv):
    """Writes every result into the same tensors."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs, autoreset_mode=DISABLED)
        self.buffers: dict[int, torch.Tensor] = {}

    def _same(self, result: tuple) -> tuple:
        tensors = [self.buffers.setdefault(i, value.clone()).copy_(value) for i, value in enumerate(result[:-1])]
        return (*tensors, result[-1])

    def reset(self, **kwargs: Any) -> tuple:
        return self._same(super().reset(**kwargs))

    def step(self, actions: Any) -> tuple:
        return self._same(super().step(actions))


def test_what_is_stored_does_not_change_when_the_environment_writes_into_its_tensors():
    args = {"limit": [3, 2, 4], "terminate_at": [None, 2, None]}
    stored = TorchRLEnv(OneBufferEnv(3, **args)).rollout(9, break_when_any_done=False)
    expected = TorchRLEnv(CounterEnv(3, **args, autoreset_mode=DISABLED)).rollout(9, break_when_any_done=False)
    # rollout() copies no tensors until its end.
    assert all(torch.equal(stored[key], expected[key]) for key in stored.keys(True, True) if key != "action")


def test_nobody_writes_into_what_the_environment_gave():
    vector_env = RecordingEnv(3, limit=[3, 2, 4])
    env = TransformedEnv(TorchRLEnv(vector_env), RewardScaling(loc=0.0, scale=0.5))
    collector = Collector(env, frames_per_batch=15, total_frames=30)
    for _ in collector:
        collector.reset()
    vector_env.assert_untouched()


def test_steps_in_inference_mode_give_tensors_that_can_be_learnt_from():
    env = TorchRLEnv(CounterEnv(autoreset_mode=DISABLED))
    with torch.inference_mode():
        data = env.step(env.rand_action(env.reset()))
    for observations in (data["observation"], data["next", "observation"]):
        layer = torch.nn.Linear(3, 1)
        layer(observations).sum().backward()
        torch.testing.assert_close(layer.weight.grad[0], observations.sum(dim=0))


# -------------------------------------------------------------------------------------------------------------- resets


def test_only_rows_that_are_done_are_reset():
    vector_env = RecordingEnv(3, limit=[3, 2, 4])
    TorchRLEnv(vector_env).rollout(7, break_when_any_done=False)
    assert vector_env.resets == [
        (None, None),
        (None, [False, True, False]),  # after step 2
        (None, [True, False, False]),
        (None, [False, True, True]),
        (None, [True, True, False]),  # after step 6; none after the last one
    ]


@BOTH
def test_a_partial_reset_leaves_the_other_rows_running(make_env, kind):
    env = TorchRLEnv(counter_env(kind, make_env, limit=9))
    before = env.rollout(2)[:, -1]["next"]
    mask = torch.tensor([[False], [True], [False]])
    after = env.reset(before.clone().set("_reset", mask))
    assert after["observation"][:, 2].tolist() == [2, 0, 2]
    assert (after["observation"] - before["observation"])[:, 1].tolist() == [0, 1, 0]
    after["action"] = torch.zeros(env.action_spec.shape)
    assert env.step(after)["next", "observation"][:, 2].tolist() == [3, 1, 3]


def test_a_mask_without_a_row_resets_nothing():
    vector_env = RecordingEnv(3)
    env = TorchRLEnv(vector_env)
    last = env.rollout(2)[:, -1]["next"]
    result = env._reset(TensorDict({"_reset": torch.zeros(3, 1, dtype=torch.bool)}, batch_size=[3]))
    assert len(vector_env.resets) == 1
    assert torch.equal(result["observation"], last["observation"])


def test_rows_that_another_transform_truncates_are_reset_in_the_environment():
    env = TransformedEnv(TorchRLEnv(CounterEnv(2, limit=9, autoreset_mode=DISABLED)), StepCounter(max_steps=2))
    data = env.rollout(5, break_when_any_done=False)
    assert data["observation"][:, :, 2].tolist() == [[0, 1, 0, 1, 0]] * 2


@BOTH
def test_a_rollout_until_all_are_done_keeps_the_ends_of_those_that_wait(make_env, kind):
    env = TorchRLEnv(counter_env(kind, make_env, limit=9, terminate_at=[1, 3, 2]))
    data = env.rollout(9, break_when_any_done=False, break_when_all_done=True)
    assert data["next", "observation"][:, :, 2].tolist() == [[1, 1, 1], [1, 2, 3], [1, 2, 2]]
    assert data["next", "done"][..., 0].tolist() == [[True] * 3, [False, False, True], [False, True, True]]


def test_holding_a_running_row_is_refused():
    env = TorchRLEnv(CounterEnv(2, autoreset_mode=DISABLED))
    data = env.rand_action(env.reset()).set("_step", torch.tensor([[True], [False]]))
    with pytest.raises(NotImplementedError, match='"_step" may hold ended ones only'):
        env.step(data)


def test_a_held_row_shows_how_it_ended_and_earns_nothing():
    env = TorchRLEnv(CounterEnv(2, limit=9, terminate_at=[1, None], autoreset_mode=DISABLED))
    data = env.step_mdp(env.step(env.rand_action(env.reset())))
    data = env.step(env.rand_action(data).set("_step", ~data["done"]))
    assert data["next", "observation"][:, 2].tolist() == [1, 2]
    assert data["next", "reward"].tolist() == [[0], [2]]
    assert data["next", "terminated"].tolist() == data["next", "done"].tolist() == [[True], [False]]


class FixedEnv(CounterEnv):
    """Gives the same tensors always, and looks at nothing."""

    def __init__(self) -> None:
        super().__init__(autoreset_mode=DISABLED)
        self.masks: list[Any] = []
        self.fixed = (torch.zeros(3, 3), torch.zeros(3), *(torch.zeros(3, dtype=torch.bool) for _ in range(2)), {})

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple:
        self.masks.append(options and options["reset_mask"])
        return self.fixed[0], {}

    def step(self, actions: Any) -> tuple:
        return self.fixed


def test_nothing_here_makes_the_host_wait_for_the_device():
    vector_env = FixedEnv()
    env = TorchRLEnv(vector_env)
    data = env.rand_action(env.reset())
    # A tensor on the meta device stands for one on a GPU: it has no values to look at.
    mask = torch.empty(3, 1, dtype=torch.bool, device="meta")
    with ForbidHostReads():
        env._step(data)
        env._reset(TensorDict({"_reset": mask}, batch_size=[3]))
    assert vector_env.masks[1].shape == (3,)


# --------------------------------------------------------------------------------------------------------------- seeds


def first_observation(env: TorchRLEnv) -> torch.Tensor:
    data = env.reset()
    return data.get("noise", data.get("observation", None))


@pytest.mark.parametrize("kind", ["fake", "engine"])
def test_the_same_seed_gives_the_same_first_observation(make_env, kind):
    vector_env = counter_env(kind, make_env, dict_obs=True) if kind == "fake" else make_env(autoreset_mode=DISABLED)
    env = TorchRLEnv(vector_env)
    seen = []
    for seed in (5, 5, 6, None):
        env.set_seed(seed)
        seen.append(first_observation(env))
    expected, _ = vector_env.reset(seed=5)
    assert torch.equal(seen[0], expected["noise"] if kind == "fake" else expected)
    assert torch.equal(seen[0], seen[1])
    assert not torch.equal(seen[0], seen[2])
    assert not torch.equal(seen[2], seen[3])


def test_a_seed_is_used_once_and_by_the_next_reset():
    vector_env = RecordingEnv(2, limit=1)
    env = TransformedEnv(TorchRLEnv(vector_env), StepCounter())
    env.set_seed(7)
    env.rollout(2, break_when_any_done=False)
    env.reset(seed=8)
    env.reset()
    assert vector_env.resets == [(7, None), (None, [True, True]), (8, None), (None, None)]


def test_a_seed_set_while_episodes_run_waits_for_a_reset_of_all_and_says_so():
    vector_env = RecordingEnv(2, limit=[1, 9])
    collector = Collector(TorchRLEnv(vector_env), frames_per_batch=4, total_frames=8)
    collector.set_seed(7)
    with pytest.warns(UserWarning, match=r"the seed 7 waits .* call set_seed\(\) before making a Collector"):
        next(iter(collector))
    collector.reset()
    assert vector_env.resets == [(None, None), (None, [True, False]), (None, [True, False]), (7, None)]


# -------------------------------------------------------------------------------------------------- what is learnt from


def test_gae_bootstraps_a_time_limit_with_the_value_of_the_final_observation():
    # Row 0 is truncated after two steps, row 1 terminates then; both take the rewards 1 and 2.
    env = TorchRLEnv(CounterEnv(2, limit=2, terminate_at=[None, 2], autoreset_mode=DISABLED))
    data = env.rollout(4, break_when_any_done=False)
    value = torch.nn.Linear(3, 1)
    with torch.no_grad():
        value.weight.copy_(torch.tensor([[0.0, 0.0, 1.0]]))
        value.bias.fill_(1.0)  # V = 1 + step: 1, 2, and 3 for the final observation
    result = GAE(gamma=0.5, lmbda=0.5, value_network=ValueOperator(value))(data)
    # Row 0: δ_1 = 2 + 0.5·3 - 2 = 1.5, δ_0 = 1 + 0.5·2 - 1 = 1. A_1 = 1.5, A_0 = 1 + 0.25·1.5 = 1.375.
    # Row 1: δ_1 = 2 - 2 = 0, δ_0 = 1. A_1 = 0, A_0 = 1.
    advantages = torch.tensor([[1.375, 1.5, 1.375, 1.5], [1.0, 0.0, 1.0, 0.0]])
    values = torch.tensor([1.0, 2.0, 1.0, 2.0])
    torch.testing.assert_close(result["advantage"][..., 0], advantages)
    torch.testing.assert_close(result["value_target"][..., 0], advantages + values)


def test_torchrls_transforms_count_returns_and_lengths_of_episodes():
    vector_env = CounterEnv(3, limit=[3, 2, 4], autoreset_mode=DISABLED)
    env = TransformedEnv(TorchRLEnv(vector_env), Compose(RewardSum(), StepCounter()))
    check_env_specs(env)
    data = env.rollout(6, break_when_any_done=False)
    ends = data["next", "done"]
    assert data["next", "episode_reward"][ends].tolist() == [6, 6, 3, 3, 3, 10]
    assert data["next", "step_count"][ends].tolist() == [3, 3, 2, 2, 2, 4]


def test_the_last_info_is_at_hand(make_env):
    env = TorchRLEnv(make_env(autoreset_mode=DISABLED))
    env.rollout(2)
    assert torch.equal(env.last_info["reward_terms"]["reward"], torch.ones(3))
    assert not env.last_info["fault"].any()


def test_a_collectors_batch_trains_ppo(make_env):
    torch.manual_seed(0)
    # Limits in the middle of the batches.
    vector_env = make_env(num_envs=3, autoreset_mode=DISABLED, max_episode_steps=5, fresh=True)
    env = TransformedEnv(TorchRLEnv(vector_env), StepCounter())
    env.set_seed(0)
    mean_and_std = torch.nn.Sequential(torch.nn.Linear(4, 1), AddStateIndependentNormalScale(1))
    policy = ProbabilisticActor(
        TensorDictModule(mean_and_std, in_keys=["observation"], out_keys=["loc", "scale"]),
        in_keys=["loc", "scale"],
        distribution_class=IndependentNormal,
        return_log_prob=True,
    )
    critic = ValueOperator(torch.nn.Linear(4, 1))
    loss_module = ClipPPOLoss(policy, critic)
    optimizer = torch.optim.SGD(loss_module.parameters(), lr=0.1)
    before = [parameter.detach().clone() for parameter in loss_module.parameters()]
    collector = Collector(env, policy, frames_per_batch=36, total_frames=72, auto_register_policy_transforms=False)
    seen = []
    for data in collector:
        assert data.shape == (3, 12)
        goes_on = ~data["next", "done"][:, :-1, 0]
        assert torch.equal(data["next", "observation"][:, :-1][goes_on], data["observation"][:, 1:][goes_on])
        assert not torch.equal(data["next", "observation"][:, :-1][~goes_on], data["observation"][:, 1:][~goes_on])
        seen.append(data["next", "step_count"][0, :, 0])
        losses = loss_module(GAE(gamma=0.99, lmbda=0.95, value_network=critic, average_gae=True)(data).reshape(-1))
        optimizer.zero_grad()
        (losses["loss_objective"] + losses["loss_critic"] + losses["loss_entropy"]).backward()
        optimizer.step()
    assert torch.cat(seen).tolist() == ([1, 2, 3, 4, 5] * 5)[:24]  # from one batch to the next without a gap
    for old, new in zip(before, loss_module.parameters(), strict=True):
        assert bool(new.isfinite().all())
        assert not torch.equal(old, new)
    assert vector_env.closed  # a collector does it that has its frames


def test_several_workers_give_the_same_data_as_one_scene():
    args = {"num_envs": 5, "autoreset_mode": DISABLED, "max_episode_steps": 4}
    rollouts = []
    for place in ({"device": "cpu"}, {"devices": "cpu:2"}):
        env = TorchRLEnv(gymnasium.make_vec("GenesisCartPole-v0", **args, **place))
        torch.manual_seed(0)
        env.set_seed(1)
        rollouts.append(env.rollout(10, break_when_any_done=False))
        check_env_specs(env)
        env.close()
        assert env.env.closed
    assert rollouts[0]["next", "truncated"].sum() == 10
    assert set(rollouts[0].keys(True, True)) == set(rollouts[1].keys(True, True))
    assert all(torch.equal(rollouts[0][key], rollouts[1][key]) for key in rollouts[0].keys(True, True))


# ---------------------------------------------------------------------------------------------- closing, and refusals


def test_closing_closes_the_environment_and_twice_is_once():
    vector_env = CounterEnv(autoreset_mode=DISABLED)
    env = TorchRLEnv(vector_env)
    assert not env.is_closed
    env.close()
    env.close()
    assert env.is_closed
    assert vector_env.closed


def test_an_adapter_that_is_dropped_leaves_the_environment_open():
    vector_env = CounterEnv(autoreset_mode=DISABLED)
    TorchRLEnv(vector_env)
    gc.collect()
    assert not vector_env.closed


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP], ids=lambda mode: mode.name)
def test_modes_in_which_the_environment_resets_itself_are_refused(mode):
    message = rf"needs autoreset_mode=DISABLED.* has {mode.name}.*Make it with autoreset_mode=AutoresetMode\.DISABLED"
    with pytest.raises(ValueError, match=message):
        TorchRLEnv(CounterEnv(autoreset_mode=mode))


def test_observations_that_a_tensordict_cannot_hold_are_refused():
    vector_env = CounterEnv(autoreset_mode=DISABLED)
    vector_env.single_observation_space = spaces.Discrete(3)
    with pytest.raises(TypeError, match=r"in a Box or in a Dict of Boxes, got Discrete\(3\)"):
        TorchRLEnv(vector_env)
    vector_env.single_observation_space = spaces.Dict({"done": spaces.Box(0, 1), "eye": spaces.Box(0, 1)})
    with pytest.raises(ValueError, match=r"under \['done'\]: rename"):
        TorchRLEnv(vector_env)


def test_a_missing_library_is_named_with_what_brings_it(monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] in ("torchrl", "tensordict")]:
        monkeypatch.delitem(sys.modules, name)
    for name in ("torchrl", "tensordict"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "genesis_vec.adapters.torchrl")
    with pytest.raises(LibraryNotFoundError, match=r"pip install 'genesis-vec\[torchrl\]'"):
        importlib.import_module("genesis_vec.adapters.torchrl")
