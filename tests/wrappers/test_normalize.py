import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers.utils import RunningMeanStd

from genesis_vec.moments import RunningMoments
from genesis_vec.wrappers import NormalizeObservation, NormalizeReward
from tests.fakes import CounterEnv
from tests.wrappers.support import ALL_MODES, ScriptedEnv

SAME_STEP, NEXT_STEP, DISABLED = AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED
CPU = torch.device("cpu")


def gymnasium_moments(rows: list) -> RunningMeanStd:
    """Gymnasium's statistics, all rows in one batch: an independent implementation with the same start."""
    moments = RunningMeanStd(shape=np.shape(rows)[1:])
    moments.update(np.array(rows, dtype=np.float64))
    return moments


def assert_counted(state: dict[str, torch.Tensor], rows: list) -> None:
    expected = gymnasium_moments(rows)
    for name in ("mean", "var", "count"):
        np.testing.assert_allclose(state[name].numpy(), getattr(expected, name), rtol=1e-12, atol=1e-12)


def normalised(values: torch.Tensor, rows: list, epsilon: float) -> torch.Tensor:
    moments = gymnasium_moments(rows)
    return torch.tensor((values.numpy() - moments.mean) / np.sqrt(moments.var + epsilon), dtype=torch.float32)


class TestRunningMoments:
    def test_batches_add_up_to_the_moments_of_all_rows(self):
        moments = RunningMoments((2,), CPU)
        batches = [[[1.0, 10.0], [3.0, 30.0]], [[5.0, -50.0]], [[7.0, 0.5], [9.0, 0.0], [11.0, 2.0]]]
        for batch in batches:
            moments.update(torch.tensor(batch), None)
        assert_counted(moments.state_dict(), [row for batch in batches for row in batch])

    def test_with_many_rows_the_start_is_forgotten(self):
        moments = RunningMoments((), CPU)
        for _ in range(1000):
            moments.update(torch.tensor([1.0, 2.0, 3.0, 6.0]), None)
        # mean 3, variance (4 + 1 + 0 + 9) / 4
        assert moments.mean.item() == pytest.approx(3.0, abs=1e-6)
        assert moments.var.item() == pytest.approx(3.5, abs=1e-6)

    def test_only_the_given_rows_count_whatever_the_others_hold(self):
        moments = RunningMoments((1,), CPU)
        values = torch.tensor([[1.0], [float("nan")], [4.0], [float("inf")]])
        moments.update(values, torch.tensor([True, False, True, False]))
        assert_counted(moments.state_dict(), [[1.0], [4.0]])

    def test_no_rows_change_nothing(self):
        moments = RunningMoments((2,), CPU)
        before = moments.state_dict()
        moments.update(torch.full((3, 2), float("nan")), torch.zeros(3, dtype=torch.bool))
        for name, value in moments.state_dict().items():
            assert torch.equal(value, before[name])

    def test_a_small_variance_around_a_large_mean_survives(self):
        moments = RunningMoments((), CPU)
        for _ in range(2000):
            moments.update(torch.tensor([1e6, 1e6 + 1]), None)
        moments_of_all = gymnasium_moments([1e6, 1e6 + 1] * 2000)
        assert moments.var.item() == pytest.approx(moments_of_all.var, rel=1e-6)

    def test_the_count_goes_on_where_float32_stops(self):
        moments = RunningMoments((), CPU)
        moments.load_state_dict({"mean": 0.0, "var": 1.0, "count": 2.0**24})
        moments.update(torch.tensor([1.0]), None)
        assert moments.count.item() == 2**24 + 1

    def test_a_refused_state_changes_nothing(self):
        moments = RunningMoments((2,), CPU)
        before = moments.state_dict()
        bad = {"mean": np.ones(2), "var": np.ones(3), "count": 5.0}
        with pytest.raises(ValueError, match=r"'var': \(3,\).*'var': \(2,\).*same observation space"):
            moments.load_state_dict(bad)
        with pytest.raises(ValueError, match=r"cannot load statistics of the shapes {'mean': \(2,\)}"):
            moments.load_state_dict({"mean": np.ones(2)})
        for name, value in moments.state_dict().items():
            assert torch.equal(value, before[name])


# Rows are [env, episode, step]; limits 1 and 2, two steps.
RESET_ROWS = [[0, 0, 0], [1, 0, 0]]
STEP_ROWS = {
    # In the first step env 0 ends in [0, 0, 1], in the second both end; these are in final_obs only.
    SAME_STEP: [[[0, 1, 0], [1, 0, 1], [0, 0, 1]], [[0, 2, 0], [1, 1, 0], [0, 1, 1], [1, 0, 2]]],
    NEXT_STEP: [[[0, 0, 1], [1, 0, 1]], [[0, 1, 0], [1, 0, 2]]],
    DISABLED: [[[0, 0, 1], [1, 0, 1]], [[0, 0, 2], [1, 0, 2]]],
}


class TestNormalizeObservation:
    @ALL_MODES
    def test_each_visited_state_counts_once_and_before_it_is_normalised(self, mode):
        env = NormalizeObservation(CounterEnv(num_envs=2, limit=[1, 2], autoreset_mode=mode), epsilon=0.1)
        observations, _ = env.reset(seed=0)
        seen = list(RESET_ROWS)
        assert_counted(env.state_dict(), seen)
        torch.testing.assert_close(observations, normalised(torch.tensor(RESET_ROWS), seen, 0.1))
        for rows in STEP_ROWS[mode]:
            observations, *_ = env.step(torch.zeros(2, 2))
            seen += rows
            assert_counted(env.state_dict(), seen)
            torch.testing.assert_close(observations, normalised(torch.tensor(rows[:2]), seen, 0.1))

    def test_final_observations_are_normalised_by_the_same_statistics(self):
        env = NormalizeObservation(CounterEnv(num_envs=2, limit=[1, 2]), epsilon=0.1)
        env.reset(seed=0)
        *_, info = env.step(torch.zeros(2, 2))
        seen = RESET_ROWS + STEP_ROWS[SAME_STEP][0]
        torch.testing.assert_close(info["final_obs"][0], normalised(torch.tensor([0, 0, 1]), seen, 0.1))
        assert info["_final_obs"].tolist() == [True, False]

    @ALL_MODES
    @pytest.mark.parametrize("as_mask", [torch.tensor, np.array], ids=["torch", "numpy"])
    def test_a_partial_reset_counts_its_rows_only_and_normalises_all(self, mode, as_mask):
        env = NormalizeObservation(CounterEnv(num_envs=2, autoreset_mode=mode), epsilon=0.1)
        env.reset(seed=0)
        env.step(torch.zeros(2, 2))
        observations, _ = env.reset(options={"reset_mask": as_mask([False, True])})
        seen = [*RESET_ROWS, [0, 0, 1], [1, 0, 1], [1, 1, 0]]
        assert_counted(env.state_dict(), seen)
        torch.testing.assert_close(observations, normalised(torch.tensor([[0, 0, 1], [1, 1, 0]]), seen, 0.1))

    def test_each_key_of_a_dict_has_its_own_statistics(self):
        env = NormalizeObservation(CounterEnv(num_envs=2, limit=[1, 2], dict_obs=True), epsilon=0.1)
        plain = CounterEnv(num_envs=2, limit=[1, 2], dict_obs=True)
        observations, (raw, _) = env.reset(seed=0)[0], plain.reset(seed=0)
        *_, info = env.step(torch.zeros(2, 2))
        raw_after, *_, raw_info = plain.step(torch.zeros(2, 2))
        noise = [*raw["noise"].tolist(), *raw_after["noise"].tolist(), raw_info["final_obs"]["noise"][0].tolist()]
        assert observations.keys() == {"counter", "noise"}
        assert_counted(env.state_dict()["counter"], RESET_ROWS + STEP_ROWS[SAME_STEP][0])
        assert_counted(env.state_dict()["noise"], noise)
        torch.testing.assert_close(
            info["final_obs"]["noise"][0], normalised(raw_info["final_obs"]["noise"][0], noise, 0.1)
        )

    def test_the_space_has_no_bounds_and_keeps_shape_and_keys(self):
        box, noise = spaces.Box(-np.inf, np.inf, (3,), np.float32), spaces.Box(-np.inf, np.inf, (2,), np.float32)
        assert NormalizeObservation(CounterEnv()).single_observation_space == box
        env = NormalizeObservation(CounterEnv(num_envs=4, dict_obs=True))
        assert env.single_observation_space == spaces.Dict({"counter": box, "noise": noise})
        assert env.observation_space["noise"] == spaces.Box(-np.inf, np.inf, (4, 2), np.float32)

    def test_frozen_statistics_are_used_as_they_are(self):
        env = NormalizeObservation(CounterEnv(num_envs=2, limit=1), epsilon=1.0)
        state = {"mean": np.array([1.0, 2.0, 3.0]), "var": np.array([0.0, 3.0, 15.0]), "count": np.float64(7.0)}
        env.load_state_dict(state)
        env.update_running_mean = False
        observations, _ = env.reset(seed=0)
        # ([0, 0, 0] - mean) / [1, 2, 4], ([1, 0, 0] - mean) / [1, 2, 4]
        assert observations.tolist() == [[-1, -1, -0.75], [0, -1, -0.75]]
        observations, *_, info = env.step(torch.zeros(2, 2))
        assert observations.tolist() == [[-1, -0.5, -0.75], [0, -0.5, -0.75]]
        assert info["final_obs"].tolist() == [[-1, -1, -0.5], [0, -1, -0.5]]
        for name, value in env.state_dict().items():
            np.testing.assert_array_equal(value.numpy(), state[name])
        env.update_running_mean = True
        env.step(torch.zeros(2, 2))
        assert env.state_dict()["count"].item() == 7 + 4

    @pytest.mark.parametrize("dict_obs", [False, True], ids=["tensor", "dict"])
    def test_a_loaded_state_continues_bit_for_bit_and_is_a_copy(self, dict_obs):
        first, second = (NormalizeObservation(CounterEnv(limit=2, dict_obs=dict_obs)) for _ in range(2))
        first.reset(seed=0), second.reset(seed=0)
        for _ in range(3):
            first.step(torch.zeros(3, 2))
            second.env.step(torch.zeros(3, 2))
        state = first.state_dict()
        second.load_state_dict(state)
        for part in state.values() if dict_obs else [state]:
            for value in part.values():
                value.zero_()
        for _ in range(3):
            expected, got = first.step(torch.zeros(3, 2))[0], second.step(torch.zeros(3, 2))[0]
            torch.testing.assert_close(got, expected, rtol=0, atol=0)

    @pytest.mark.parametrize("epsilon", [0.0, -1e-8, float("nan")])
    def test_epsilon_must_be_positive(self, epsilon):
        with pytest.raises(ValueError, match=f"epsilon must be above 0, got {epsilon}"):
            NormalizeObservation(CounterEnv(), epsilon=epsilon)

    def test_other_observation_spaces_are_refused(self):
        env = CounterEnv()
        env.single_observation_space = spaces.Dict({"a": spaces.Discrete(3)})
        with pytest.raises(TypeError, match=r"NormalizeObservation takes observations in a Box.*Discrete\(3\)"):
            NormalizeObservation(env)


REWARDS = [[1.0, 2.0], [3.0, 4.0], [0.0, 6.0], [7.0, 8.0]]
TERMINATED = [[0, 0], [1, 0], [0, 0], [0, 0]]
# With gamma 1/2; env 0 ends in the second step, the third is NEXT_STEP's reset step.
RETURNS = {
    SAME_STEP: [[1, 2], [3.5, 5], [0, 8.5], [7, 12.25]],
    NEXT_STEP: [[1, 2], [3.5, 5], [8.5], [7, 12.25]],
    DISABLED: [[1, 2], [3.5, 5], [8.5], [12.25]],
}


class TestNormalizeReward:
    @ALL_MODES
    def test_rewards_are_divided_by_the_deviation_of_the_discounted_returns(self, mode):
        env = NormalizeReward(ScriptedEnv(REWARDS, TERMINATED, mode), gamma=0.5, epsilon=0.1)
        env.reset()
        seen: list[float] = []
        for rewards, returns in zip(REWARDS, RETURNS[mode], strict=True):
            _, got, *_ = env.step(torch.zeros(2, 1))
            seen += returns
            assert_counted(env.state_dict(), seen)
            assert got.dtype is torch.float32
            torch.testing.assert_close(got, torch.tensor(rewards) / np.sqrt(gymnasium_moments(seen).var + 0.1))

    def test_a_reward_in_the_reset_step_of_next_step_does_not_count(self):
        env = NormalizeReward(ScriptedEnv([[1.0], [50.0], [2.0]], [[1], [0], [0]], NEXT_STEP), gamma=0.5)
        env.reset()
        for _ in range(3):
            env.step(torch.zeros(1, 1))
        assert_counted(env.state_dict(), [1, 2])

    @ALL_MODES
    def test_a_truncation_cuts_the_return_too(self, mode):
        env = NormalizeReward(CounterEnv(num_envs=1, limit=2, autoreset_mode=mode), gamma=0.5)
        env.reset(seed=0)
        for _ in range(4):
            env.step(torch.zeros(1, 2))
        # Rewards 1, 2 and again 1, 2; NEXT_STEP has a step without an episode in between, DISABLED no second episode.
        expected = {SAME_STEP: [1, 2.5, 1, 2.5], NEXT_STEP: [1, 2.5, 1], DISABLED: [1, 2.5]}
        assert_counted(env.state_dict(), expected[mode])

    @ALL_MODES
    @pytest.mark.parametrize("as_mask", [torch.tensor, np.array], ids=["torch", "numpy"])
    def test_a_partial_reset_starts_only_its_rows_anew(self, mode, as_mask):
        env = NormalizeReward(ScriptedEnv(REWARDS, TERMINATED, mode), gamma=0.5)
        env.reset()
        env.step(torch.zeros(2, 1))
        env.reset(options={"reset_mask": as_mask([True, False])})
        env.step(torch.zeros(2, 1))
        env.reset(options={"reset_mask": as_mask([True, False])})  # by hand, after the end of env 0
        env.step(torch.zeros(2, 1))
        assert_counted(env.state_dict(), [1, 2, 3, 5, 0, 8.5])

    def test_a_full_reset_keeps_the_statistics_and_drops_the_returns(self):
        env = NormalizeReward(ScriptedEnv(REWARDS, TERMINATED, SAME_STEP), gamma=0.5)
        env.reset()
        env.step(torch.zeros(2, 1))
        env.reset()
        env.step(torch.zeros(2, 1))
        assert_counted(env.state_dict(), [1, 2, 3, 4])

    def test_frozen_statistics_are_used_as_they_are(self):
        env = NormalizeReward(ScriptedEnv(REWARDS, TERMINATED, SAME_STEP), epsilon=1.0)
        state = {"mean": torch.tensor(5.0), "var": torch.tensor(3.0), "count": torch.tensor(7.0)}
        env.load_state_dict(state)
        env.update_running_mean = False
        env.reset()
        _, rewards, *_ = env.step(torch.zeros(2, 1))
        assert rewards.tolist() == [0.5, 1.0]
        assert {name: value.item() for name, value in env.state_dict().items()} == {"mean": 5, "var": 3, "count": 7}
        env.update_running_mean = True
        env.step(torch.zeros(2, 1))
        assert env.state_dict()["count"].item() == 7 + 2

    @pytest.mark.parametrize("epsilon", [0.0, -1e-8, float("nan")])
    def test_epsilon_must_be_positive(self, epsilon):
        with pytest.raises(ValueError, match=f"epsilon must be above 0, got {epsilon}"):
            NormalizeReward(CounterEnv(), epsilon=epsilon)

    @pytest.mark.parametrize("gamma", [-0.1, 1.1, float("nan")])
    def test_gamma_must_be_a_discount_factor(self, gamma):
        with pytest.raises(ValueError, match=rf"gamma must be in \[0, 1\], got {gamma}"):
            NormalizeReward(CounterEnv(), gamma=gamma)
