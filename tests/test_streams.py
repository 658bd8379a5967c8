"""Random streams: a pure function of (seed, global environment index, episode, position), and statistically sound."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from genesis_vec.streams import Draws, EnvStreams

CPU = torch.device("cpu")
KINDS = {
    "uniform": lambda draws: draws.uniform(3),
    "normal": lambda draws: draws.normal(3),
    "integers": lambda draws: draws.integers(-5, 1000, 3),
}
EACH_KIND = pytest.mark.parametrize("draw", KINDS.values(), ids=KINDS)


def streams_of(num_envs: int, seed: int | list[int | None] = 0, first_env_index: int = 0) -> EnvStreams:
    """Seeded streams, at the start of episode 0."""
    streams = EnvStreams(num_envs, CPU, first_env_index)
    streams.seed(seed)
    streams.begin_episode(torch.ones(num_envs, dtype=torch.bool))
    return streams


def mask_of(num_envs: int, *rows: int) -> torch.Tensor:
    mask = torch.zeros(num_envs, dtype=torch.bool)
    mask[list(rows)] = True
    return mask


def assert_equal(actual: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)


# ---------------------------------------------------------------------------------------------------- which numbers


def test_draws_are_the_published_outputs_of_splitmix64():
    """From episode key 0 the raw draws are SplitMix64's from seed 0, as in the reference implementation's tests."""
    streams = EnvStreams(1, CPU)
    zero = torch.zeros(1, dtype=torch.int64)
    streams.load_state_dict({"env_keys": zero, "episodes": zero, "episode_keys": zero, "positions": zero})
    raw = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F, 0xF88BB8A8724C81EC, 0x1B39896A51A8749B]
    assert streams.select(None).uniform(3)[0].tolist() == [(bits >> 40) / 2**24 for bits in raw[:3]]
    assert streams.select(None).integers(10, 1010, 2)[0].tolist() == [10 + (bits >> 1) % 1000 for bits in raw[3:]]


def test_golden_values_of_seed_42():
    """A regression guard: these numbers are what this package gave first, and a change of them changes every run."""
    draws = streams_of(2, seed=42).select(None)
    assert draws.uniform(2).tolist() == [
        [0.7553887963294983, 0.4462101459503174],
        [0.19725316762924194, 0.22313284873962402],
    ]
    assert draws.integers(0, 1000, 3).tolist() == [[333, 958, 654], [424, 865, 996]]
    normal = [[-1.3475637435913086, -0.05635560676455498], [0.5698738098144531, 0.19165955483913422]]
    np.testing.assert_allclose(draws.normal(2).numpy(), normal, rtol=1e-6)


@EACH_KIND
@settings(deadline=None)  # the first call compiles
@given(
    total=st.integers(1, 40),
    data=st.data(),
    seed=st.integers(0, 2**64 - 1),
    first=st.integers(0, 2**40),
    episodes=st.integers(1, 3),
)
def test_a_part_of_a_batch_draws_what_the_whole_batch_draws_in_its_place(draw, total, data, seed, first, episodes):
    start = data.draw(st.integers(0, total - 1))
    stop = data.draw(st.integers(start + 1, total))
    whole, part = streams_of(total, seed, first), streams_of(stop - start, seed, first + start)
    for _ in range(episodes):
        assert_equal(draw(part.select(None)), draw(whole.select(None))[start:stop])
        assert_equal(draw(part.select(None)), draw(whole.select(None))[start:stop])
        for streams in (whole, part):
            streams.begin_episode(torch.ones(streams.num_envs, dtype=torch.bool))


@EACH_KIND
def test_a_draw_of_several_numbers_is_the_draws_of_one_after_another(draw):
    at_once, singly = streams_of(4), streams_of(4)
    expected = at_once.select(None).uniform(2, 3)
    assert_equal(torch.stack([singly.select(None).uniform() for _ in range(6)], dim=1).reshape(4, 2, 3), expected)
    assert_equal(draw(singly.select(None)), draw(at_once.select(None)))


@EACH_KIND
def test_only_masked_streams_advance(draw):
    moved, still = streams_of(4), streams_of(4)
    draw(moved.select(mask_of(4, 0, 2)))
    second, first = draw(moved.select(None)), draw(still.select(None))
    assert_equal(second[[1, 3]], first[[1, 3]])
    assert_equal(second[[0, 2]], draw(still.select(None))[[0, 2]])
    assert not (second[[0, 2]] == first[[0, 2]]).all(dim=1).any()


@EACH_KIND
def test_draws_do_not_depend_on_when_and_in_what_order_environments_are_reset(draw):
    together, apart = streams_of(3), streams_of(3)
    for _ in range(2):
        together.begin_episode(mask_of(3, 0, 1, 2))
    expected = draw(together.select(None))
    for rows in ((2,), (0, 2), (1,)):  # env 2 is in episode 2 now; what it draws in between must not matter
        apart.begin_episode(mask_of(3, *rows))
        draw(apart.select(mask_of(3, *rows)))
    apart.begin_episode(mask_of(3, 0, 1))
    fresh = draw(apart.select(mask_of(3, 0, 1)))
    assert_equal(fresh[[0, 1]], expected[[0, 1]])
    apart.seed(0, mask_of(3, 2))
    for _ in range(3):
        apart.begin_episode(mask_of(3, 2))
    assert_equal(draw(apart.select(mask_of(3, 2)))[2], expected[2])


@EACH_KIND
def test_a_new_episode_of_one_environment_leaves_the_others_where_they_are(draw):
    reset, still = streams_of(3), streams_of(3)
    draw(reset.select(None)), draw(still.select(None))
    reset.begin_episode(mask_of(3, 1))
    assert_equal(draw(reset.select(None))[[0, 2]], draw(still.select(None))[[0, 2]])


@EACH_KIND
def test_the_global_generator_is_neither_read_nor_moved(draw):
    torch.manual_seed(0)
    before, first = torch.get_rng_state(), draw(streams_of(3).select(None))
    assert_equal(torch.get_rng_state(), before)
    torch.manual_seed(1)
    assert_equal(draw(streams_of(3).select(None)), first)


# ------------------------------------------------------------------------------------------------------------ seeds


def test_a_list_of_seeds_gives_each_row_the_stream_of_environment_0_under_its_seed():
    listed = streams_of(3, [7, 9, 7], first_env_index=5).select(None).uniform(4)
    single = {seed: streams_of(1, seed).select(None).uniform(4)[0] for seed in (7, 9)}
    assert_equal(listed, torch.stack([single[7], single[9], single[7]]))


def test_none_in_a_list_of_seeds_leaves_that_stream_as_it_is():
    streams, other = streams_of(3, 1), streams_of(3, 1)
    streams.begin_episode(mask_of(3, 1))
    streams.seed([4, None, 4])
    streams.begin_episode(mask_of(3, 0, 2))
    other.begin_episode(mask_of(3, 1))
    assert_equal(streams.select(None).uniform(2)[1], other.select(None).uniform(2)[1])


def test_seeding_under_a_mask_leaves_the_other_streams_as_they_are():
    streams = streams_of(3, 1)
    streams.seed(2, mask_of(3, 1))
    streams.begin_episode(mask_of(3, 1))
    expected = torch.stack([streams_of(3, seed).select(None).uniform(2)[row] for row, seed in enumerate((1, 2, 1))])
    assert_equal(streams.select(None).uniform(2), expected)


def test_a_list_of_seeds_under_a_mask_seeds_the_rows_that_are_in_both():
    streams = streams_of(3, 1)
    streams.seed([2, None, 2], mask_of(3, 0, 1))
    streams.begin_episode(mask_of(3, 0))
    expected = streams_of(3, 1).select(None).uniform(2)
    expected[0] = streams_of(1, 2).select(None).uniform(2)[0]
    assert_equal(streams.select(None).uniform(2), expected)


def test_a_new_seed_is_felt_from_the_next_episode_on():
    streams, other = streams_of(2, 3), streams_of(2, 3)
    streams.seed(8)
    streams.begin_episode(mask_of(2, 0))
    drawn = streams.select(None).uniform(2)
    assert_equal(drawn[0], streams_of(2, 8).select(None).uniform(2)[0])
    assert_equal(drawn[1], other.select(None).uniform(2)[1])


def test_seeding_starts_again_at_episode_0():
    streams = streams_of(2, 3)
    streams.begin_episode(mask_of(2, 0, 1))
    streams.select(None).uniform(5)
    streams.seed(3)
    streams.begin_episode(mask_of(2, 0, 1))
    assert_equal(streams.select(None).uniform(2), streams_of(2, 3).select(None).uniform(2))


@pytest.mark.parametrize("seed", [-1, True, 1.0, "7", np.arange(2), [1, -1], [1, True], [1, 2.0]], ids=str)
def test_a_seed_that_is_no_non_negative_integer_is_refused(seed):
    with pytest.raises(ValueError, match="a seed must be a non-negative integer, got"):
        EnvStreams(2, CPU).seed(seed)


@pytest.mark.parametrize("seeds", [[], [1], [1, 2, 3]], ids=str)
def test_a_list_of_seeds_of_the_wrong_length_is_refused_with_both_numbers(seeds):
    with pytest.raises(ValueError, match=f"got a list of {len(seeds)} seeds for 2 environments"):
        EnvStreams(2, CPU).seed(seeds)


def test_is_seeded_tells_whether_seed_was_called():
    streams = EnvStreams(2, CPU)
    assert not streams.is_seeded
    streams.seed(0)
    assert streams.is_seeded


# --------------------------------------------------------------------------------------- shapes, ranges, distributions


@pytest.mark.parametrize("shape", [(), (1,), (5,), (2, 3)], ids=str)
def test_shapes_dtypes_and_contiguity(shape):
    draws = streams_of(4).select(None)
    for value, dtype in (
        (draws.uniform(*shape), torch.float32),
        (draws.normal(*shape), torch.float32),
        (draws.integers(0, 3, *shape), torch.int64),
    ):
        assert (value.shape, value.dtype, value.device) == ((4, *shape), dtype, CPU)
        assert value.is_contiguous()


def test_uniform_lies_between_bounds_that_may_be_tensors_per_environment_and_element():
    low = torch.tensor([[-1.0, 0.0], [5.0, 5.0]])
    high = torch.tensor([10.0, 6.0])
    unit, scaled = (streams_of(2) for _ in range(2))
    expected = low + (high - low) * unit.select(None).uniform(2)
    value = scaled.select(None).uniform(2, low=low, high=high)
    assert_equal(value, expected)
    assert ((value >= low) & (value < high)).all()


@pytest.mark.parametrize(("low", "high"), [(0, 1), (-3, 4), (10**9, 10**9 + 7), (0, 1 << 31)])
def test_integers_cover_exactly_their_range(low, high):
    values = streams_of(64).select(None).integers(low, high, 64)
    assert low <= values.min() and values.max() < high
    if high - low < 10:
        assert sorted(set(values.flatten().tolist())) == list(range(low, high))


@pytest.mark.parametrize(("low", "high"), [(0, 0), (3, 1), (0, (1 << 31) + 1)])
def test_an_empty_or_too_wide_range_of_integers_is_refused(low, high):
    with pytest.raises(ValueError, match=rf"integers\({low}, {high}\): high - low must lie in 1 … 2\*\*31"):
        streams_of(1).select(None).integers(low, high)


ENVS, EPISODES, NUMBERS = 256, 4, 256


def sample(draw: Callable[[Draws], torch.Tensor], seed: int = 0) -> np.ndarray:
    """(environment, episode, position) -> number."""
    streams = streams_of(ENVS, seed)
    episodes = []
    for _ in range(EPISODES):
        episodes.append(draw(streams.select(None)))
        streams.begin_episode(torch.ones(ENVS, dtype=torch.bool))
    return torch.stack(episodes, dim=1).double().numpy()


def test_uniform_draws_follow_the_uniform_distribution():
    values = sample(lambda draws: draws.uniform(NUMBERS))
    error = 1 / math.sqrt(values.size)
    assert abs(values.mean() - 0.5) < 4 * math.sqrt(1 / 12) * error
    assert abs(values.var() - 1 / 12) < 4 * math.sqrt(1 / 180) * error
    assert values.min() >= 0 and values.max() < 1
    assert stats.kstest(values.ravel(), "uniform").pvalue > 1e-3


def test_normal_draws_follow_the_standard_normal_distribution():
    values = sample(lambda draws: draws.normal(NUMBERS))
    error = 1 / math.sqrt(values.size)
    for power, moment, spread in ((1, 0, 1), (2, 1, math.sqrt(2)), (3, 0, math.sqrt(15)), (4, 3, math.sqrt(96))):
        assert abs((values**power).mean() - moment) < 4 * spread * error, f"moment {power}"
    assert abs(values).max() < 6.7
    assert stats.kstest(values.ravel(), "norm").pvalue > 1e-3


def test_integer_draws_are_equally_frequent():
    values = sample(lambda draws: draws.integers(0, 10, NUMBERS))
    assert stats.chisquare(np.bincount(values.ravel().astype(int), minlength=10)).pvalue > 1e-3


@pytest.mark.parametrize("kind", ["uniform", "normal"])
@pytest.mark.parametrize("neighbours", ["environments", "episodes", "positions", "seeds"])
def test_neighbouring_streams_are_uncorrelated(kind, neighbours):
    values = sample(lambda draws: getattr(draws, kind)(NUMBERS))
    if neighbours == "seeds":
        one, other = values, sample(lambda draws: getattr(draws, kind)(NUMBERS), seed=1)
    else:
        axis = ["environments", "episodes", "positions"].index(neighbours)
        one = np.take(values, range(values.shape[axis] - 1), axis)
        other = np.take(values, range(1, values.shape[axis]), axis)
    bound = 4 / math.sqrt(one.size)
    assert abs(np.corrcoef(one.ravel(), other.ravel())[0, 1]) < bound
    # Also without a linear relation: squares, which pairs like (x, -x + noise) would show.
    assert abs(np.corrcoef((one.ravel() - one.mean()) ** 2, (other.ravel() - other.mean()) ** 2)[0, 1]) < bound


def test_no_two_streams_of_nearby_seeds_environments_and_episodes_coincide():
    """Keys that were sums of the coordinates would repeat: seed 1's environment 0 would be seed 0's environment 1."""
    firsts = torch.cat(
        [torch.from_numpy(sample(lambda draws: draws.integers(0, 1 << 31, 2), seed)) for seed in range(16)]
    )
    pairs = {tuple(pair) for pair in firsts.reshape(-1, 2).tolist()}
    assert len(pairs) == 16 * ENVS * EPISODES


# ------------------------------------------------------------------------------------------------------------ state


@EACH_KIND
def test_a_saved_state_goes_on_where_it_was_saved(draw):
    streams = streams_of(3, 5)
    streams.begin_episode(mask_of(3, 1))
    draw(streams.select(mask_of(3, 0)))
    state = streams.state_dict()
    expected = [draw(streams.select(None)) for _ in range(2)]
    streams.begin_episode(mask_of(3, 0, 2))
    expected.append(draw(streams.select(None)))

    restored = EnvStreams(3, CPU)
    restored.load_state_dict(state)
    assert restored.is_seeded
    actual = [draw(restored.select(None)) for _ in range(2)]
    restored.begin_episode(mask_of(3, 0, 2))
    actual.append(draw(restored.select(None)))
    for one, other in zip(actual, expected, strict=True):
        assert_equal(one, other)


def test_a_saved_state_is_a_copy_on_both_ways():
    streams, restored = streams_of(2), EnvStreams(2, CPU)
    state = streams.state_dict()
    before = {name: value.clone() for name, value in state.items()}
    restored.load_state_dict(state)
    expected = streams_of(2).select(None)
    expected = [expected.uniform(2), expected.uniform(2)]
    assert_equal(restored.select(None).uniform(2), expected[0])
    for name, value in state.items():
        assert_equal(value, before[name])
        value.fill_(17)
    assert_equal(restored.select(None).uniform(2), expected[1])
    assert_equal(streams.select(None).uniform(2), expected[0])
