import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector.utils import batch_space

from genesis_vec.wrappers import (
    ChannelsFirst,
    ClipAction,
    ClipReward,
    FlattenObservation,
    RescaleAction,
    TransformObservation,
)
from tests.fakes import CounterEnv
from tests.wrappers.support import ALL_MODES

ACTIONS = torch.zeros(2, 2)
AS_ACTIONS = pytest.mark.parametrize(
    "as_actions",
    [torch.tensor, lambda x: np.array(x, np.float32), lambda x: np.array(x, np.float64)],
    ids=["torch", "numpy-float32", "numpy-float64"],
)


def with_action_space(low, high, **kwargs) -> CounterEnv:
    env = CounterEnv(num_envs=2)
    env.single_action_space = spaces.Box(np.array(low, np.float32), np.array(high, np.float32), **kwargs)
    env.action_space = batch_space(env.single_action_space, 2)
    return env


class TestTransformObservation:
    @ALL_MODES
    def test_observations_of_resets_and_steps_are_transformed(self, mode):
        env = TransformObservation(CounterEnv(num_envs=2, autoreset_mode=mode), lambda obs: obs * 10 + 1)
        observations, _ = env.reset(seed=0)
        assert observations.tolist() == [[1, 1, 1], [11, 1, 1]]
        observations, *_ = env.step(ACTIONS)
        assert observations.tolist() == [[1, 1, 11], [11, 1, 11]]
        observations, _ = env.reset(options={"reset_mask": torch.tensor([True, False])})
        assert observations.tolist() == [[1, 11, 1], [11, 1, 11]]

    def test_final_observations_are_transformed(self):
        env = TransformObservation(CounterEnv(num_envs=2, limit=[1, 5]), lambda obs: obs * 10 + 1)
        env.reset(seed=0)
        observations, *_, info = env.step(ACTIONS)
        assert observations.tolist() == [[1, 11, 1], [11, 1, 11]]
        assert info["final_obs"].tolist() == [[1, 1, 11], [11, 1, 11]]
        assert info["_final_obs"].tolist() == [True, False]

    def test_a_dict_may_become_a_tensor(self):
        single = spaces.Box(-np.inf, np.inf, (1,), np.float32)
        env = TransformObservation(
            CounterEnv(num_envs=2, limit=1, dict_obs=True),
            lambda obs: obs["counter"][:, 2:],
            single_observation_space=single,
        )
        assert env.single_observation_space == single
        assert env.observation_space == spaces.Box(-np.inf, np.inf, (2, 1), np.float32)
        assert env.reset(seed=0)[0].tolist() == [[0], [0]]
        *_, info = env.step(ACTIONS)
        assert info["final_obs"].tolist() == [[1], [1]]

    def test_without_a_space_the_environments_stays(self):
        inner = CounterEnv()
        env = TransformObservation(inner, lambda obs: obs, observation_space=inner.observation_space)
        assert env.single_observation_space == inner.single_observation_space
        assert env.observation_space == inner.observation_space

    def test_spaces_that_do_not_fit_each_other_are_refused(self):
        single, batch = spaces.Box(0, 1, (2,)), spaces.Box(0, 1, (3, 4))
        with pytest.raises(ValueError, match=r"got observation_space=.*\(3, 4\).*the batch .*\(3, 2\)"):
            TransformObservation(
                CounterEnv(), lambda obs: obs, single_observation_space=single, observation_space=batch
            )


class TestFlattenObservation:
    def test_a_dict_is_joined_in_the_order_of_the_space(self):
        inner = CounterEnv(num_envs=2, limit=[1, 5], dict_obs=True)
        counter, noise = (inner.single_observation_space[key] for key in ("counter", "noise"))
        # A list of pairs, as a dict would be sorted.
        inner.single_observation_space = spaces.Dict([("noise", noise), ("counter", counter)])
        env = FlattenObservation(inner)
        observations, _ = env.reset(seed=0)
        torch.testing.assert_close(observations[:, :2], inner.noise)
        assert observations[:, 2:].tolist() == [[0, 0, 0], [1, 0, 0]]
        *_, info = env.step(ACTIONS)
        assert info["final_obs"].shape == (2, 5)
        assert info["final_obs"][:, 2:].tolist() == [[0, 0, 1], [1, 0, 1]]
        assert env.single_observation_space.low.tolist() == [-1, -1, -np.inf, -np.inf, -np.inf]
        assert env.observation_space.shape == (2, 5)

    @pytest.mark.parametrize(("shape", "size"), [((), 1), ((3,), 3), ((2, 2, 3), 12)], ids=["scalar", "flat", "image"])
    def test_rows_of_any_shape_become_flat_float32(self, shape, size):
        inner = CounterEnv(num_envs=2)
        inner.single_observation_space = spaces.Box(0, 255, shape, np.uint8)
        batch = torch.arange(2 * size, dtype=torch.uint8).reshape(2, *shape)
        inner.reset = lambda **kwargs: (batch, {})
        env = FlattenObservation(inner)
        observations, _ = env.reset()
        assert observations.dtype is torch.float32
        assert observations.tolist() == [list(range(size)), list(range(size, 2 * size))]
        assert env.single_observation_space == spaces.Box(0, 255, (size,), np.float32)
        assert env.observation_space == spaces.Box(0, 255, (2, size), np.float32)

    def test_other_observation_spaces_are_refused(self):
        env = CounterEnv()
        env.single_observation_space = spaces.Discrete(3)
        with pytest.raises(TypeError, match=r"FlattenObservation takes observations in a Box.*Discrete\(3\)"):
            FlattenObservation(env)


class TestClipReward:
    @pytest.mark.parametrize(
        ("bounds", "expected"),
        [
            ({"min_reward": 1.5}, [1.5, 2, 3, 4]),
            ({"max_reward": 2.5}, [1, 2, 2.5, 2.5]),
            ({"min_reward": 1.5, "max_reward": 2.5}, [1.5, 2, 2.5, 2.5]),
            ({"min_reward": 2, "max_reward": 2}, [2, 2, 2, 2]),
        ],
        ids=["below", "above", "both", "point"],
    )
    def test_rewards_are_clipped(self, bounds, expected):
        env = ClipReward(CounterEnv(num_envs=1, limit=9), **bounds)
        env.reset(seed=0)
        assert [env.step(ACTIONS)[1].item() for _ in range(4)] == expected

    @pytest.mark.parametrize(
        "bounds", [(None, None), (2.0, 1.0), (float("nan"), 1.0)], ids=["none", "crossed", "not-a-number"]
    )
    def test_bounds_that_make_no_interval_are_refused(self, bounds):
        with pytest.raises(ValueError, match=f"got min_reward={bounds[0]} and max_reward={bounds[1]}; give"):
            ClipReward(CounterEnv(), *bounds)


class TestClipAction:
    @AS_ACTIONS
    def test_actions_arrive_clipped_as_a_tensor(self, as_actions):
        inner = with_action_space([-1.0, 0.0], [0.5, np.inf])
        env = ClipAction(inner)
        env.reset(seed=0)
        env.step(as_actions([[-3.0, -4.0], [3.0, 4.0]]))
        received = inner.received_actions[0]
        assert received.dtype is torch.float32
        assert received.tolist() == [[-1, 0], [0.5, 4]]

    def test_infinity_becomes_the_bound_and_nan_stays(self):
        inner = CounterEnv(num_envs=2)
        env = ClipAction(inner)
        env.reset(seed=0)
        env.step(torch.tensor([[float("inf"), -float("inf")], [float("nan"), 0.5]]))
        torch.testing.assert_close(
            inner.received_actions[0], torch.tensor([[1, -1], [float("nan"), 0.5]]), equal_nan=True
        )

    def test_its_action_space_has_no_bounds(self):
        env = ClipAction(CounterEnv(num_envs=4))
        assert env.single_action_space == spaces.Box(-np.inf, np.inf, (2,), np.float32)
        assert env.action_space == spaces.Box(-np.inf, np.inf, (4, 2), np.float32)


class TestRescaleAction:
    @AS_ACTIONS
    def test_the_interval_is_mapped_onto_the_bounds(self, as_actions):
        inner = with_action_space([-3.0, 0.0], [5.0, 1.0])
        env = RescaleAction(inner, 0.0, 2.0)
        env.reset(seed=0)
        env.step(as_actions([[0.0, 2.0], [0.5, 1.0]]))
        received = inner.received_actions[0]
        assert received.dtype is torch.float32
        assert received.tolist() == [[-3, 1], [-1, 0.5]]

    def test_each_part_of_an_action_may_have_its_own_interval(self):
        inner = with_action_space([-3.0, 0.0], [5.0, 1.0])
        env = RescaleAction(inner, np.array([0.0, -1.0]), np.array([2.0, 3.0]))
        env.reset(seed=0)
        env.step(torch.tensor([[1.0, 1.0], [2.0, -1.0]]))
        assert inner.received_actions[0].tolist() == [[1, 0.5], [5, 0]]
        assert env.single_action_space == spaces.Box(
            np.array([0, -1], np.float32), np.array([2, 3], np.float32), dtype=np.float32
        )
        assert env.action_space.shape == (2, 2)

    def test_the_ends_meet_the_bounds_to_the_last_bit(self):
        rng = np.random.default_rng(0)
        ends = np.sort(rng.normal(size=(4, 500)).astype(np.float32) * 10, axis=0)
        env = RescaleAction(inner := with_action_space(ends[0], ends[3]), ends[1], ends[2])
        env.reset(seed=0)
        env.step(torch.tensor(ends[1:3]))
        np.testing.assert_array_equal(inner.received_actions[0].numpy(), ends[[0, 3]])

    def test_outside_of_the_interval_the_line_goes_on(self):
        inner = with_action_space([-3.0, 0.0], [5.0, 1.0])
        env = RescaleAction(inner, 0.0, 2.0)
        env.reset(seed=0)
        env.step(torch.tensor([[-2.0, 4.0], [3.0, -1.0]]))
        assert inner.received_actions[0].tolist() == [[-11, 2], [9, -0.5]]

    @pytest.mark.parametrize("bounds", [([-1.0, -np.inf], [1.0, 1.0]), ([-1.0, -1.0], [1.0, np.inf])])
    def test_infinite_bounds_are_refused(self, bounds):
        with pytest.raises(ValueError, match=r"needs finite action bounds, got Box.*give the environment some"):
            RescaleAction(with_action_space(*bounds), -1.0, 1.0)

    @pytest.mark.parametrize(
        ("low", "high", "message"),
        [
            (1.0, -1.0, r"min_action must be below max_action; got 1\.0 and -1\.0"),
            (1.0, 1.0, "min_action must be below max_action"),
            (np.array([-1.0, 2.0]), 1.0, "min_action must be below max_action"),
            (-np.inf, 1.0, "min_action must be finite"),
            (-1.0, float("nan"), "max_action must be finite"),
            (np.zeros(3), 1.0, r"min_action must be finite, and a number or of shape \(2,\); got"),
        ],
        ids=["crossed", "empty", "crossed-in-one-part", "infinite", "not-a-number", "shape"],
    )
    def test_an_impossible_interval_is_refused(self, low, high, message):
        with pytest.raises(ValueError, match=message):
            RescaleAction(CounterEnv(), low, high)


@pytest.mark.parametrize("wrap", [ClipAction, lambda env: RescaleAction(env, -1.0, 1.0)], ids=["Clip", "Rescale"])
@pytest.mark.parametrize(
    "space", [spaces.Discrete(4), spaces.Box(0, 9, (2,), np.int64)], ids=["discrete", "box-of-integers"]
)
def test_other_action_spaces_are_refused(wrap, space):
    env = CounterEnv()
    env.single_action_space = space
    with pytest.raises(TypeError, match=r"Action takes actions in a Box of floats, got .*; leave it out"):
        wrap(env)


def test_channels_come_first_in_observations_final_ones_and_the_space():
    pictures = torch.arange(3 * 4 * 5 * 2, dtype=torch.float32).reshape(3, 4, 5, 2)
    inner = TransformObservation(
        CounterEnv(num_envs=3, limit=1),
        lambda obs: pictures + obs[:, :1, None, None],
        single_observation_space=spaces.Box(0.0, 255.0, (4, 5, 2)),
    )
    env = ChannelsFirst(inner)
    assert env.single_observation_space == spaces.Box(0.0, 255.0, (2, 4, 5))
    expected = (pictures + torch.arange(3.0)[:, None, None, None]).permute(0, 3, 1, 2)
    obs, _ = env.reset(seed=0)
    stepped, *_, info = env.step(torch.zeros(3, 2))
    for seen in (obs, stepped, info["final_obs"]):
        torch.testing.assert_close(seen, expected, rtol=0, atol=0)
        assert seen.is_contiguous()
    with pytest.raises(TypeError, match=r"ChannelsFirst takes observations in a Box \(height, width, channels\)"):
        ChannelsFirst(CounterEnv())
