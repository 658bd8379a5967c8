"""What every wrapper promises, whatever it does."""

from collections.abc import Callable

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv, VectorWrapper

import genesis_vec.wrappers as wrappers
from genesis_vec.batches import map_observation
from genesis_vec.wrappers import (
    ChannelsFirst,
    ClipAction,
    ClipReward,
    FlattenObservation,
    NormalizeObservation,
    NormalizeReward,
    RecordEpisodeStatistics,
    RescaleAction,
    TransformObservation,
)
from tests.fakes import CounterEnv
from tests.wrappers.support import ALL_MODES, ForbidHostReads, MetaEnv, Snapshot, WatchedEnv, tensors_in

Wrap = Callable[[VectorEnv], VectorWrapper]


def everything(env: VectorEnv) -> VectorWrapper:
    for wrap in WRAPPERS:
        env = wrap(env)
    return env


def channels_first(env: VectorEnv) -> VectorWrapper:
    """Around pictures of one row, one number of an observation to a pixel."""
    flat = FlattenObservation(env)
    space = flat.single_observation_space
    assert isinstance(space, spaces.Box)
    low, high = (bound.reshape(1, -1, 1) for bound in (space.low, space.high))
    pictures = TransformObservation(
        flat, lambda obs: obs[:, None, :, None], single_observation_space=spaces.Box(low, high)
    )
    return ChannelsFirst(pictures)


WRAPPERS: list[Wrap] = [
    RecordEpisodeStatistics,
    NormalizeReward,
    lambda env: ClipReward(env, -0.5, 0.5),
    ClipAction,
    lambda env: RescaleAction(env, -2.0, 3.0) if env.single_action_space.is_bounded() else env,
    NormalizeObservation,
    lambda env: TransformObservation(env, lambda obs: map_observation(lambda x: x * 2, obs)),
    channels_first,
    FlattenObservation,
]
NAMES = [
    "RecordEpisodeStatistics",
    "NormalizeReward",
    "ClipReward",
    "ClipAction",
    "RescaleAction",
    "NormalizeObservation",
    "TransformObservation",
    "ChannelsFirst",
    "FlattenObservation",
]
EACH = pytest.mark.parametrize("wrap", [*WRAPPERS, everything], ids=[*NAMES, "everything"])
OBSERVATIONS = pytest.mark.parametrize("dict_obs", [False, True], ids=["tensor", "dict"])
ACTIONS = torch.tensor([[0.5, -2.0], [3.0, 0.0], [-0.25, 1.0]])


def run(env: VectorEnv, steps: int = 7) -> list[tuple]:
    """A full reset, some steps, a partial reset, and as many steps again."""
    results = [env.reset(seed=0)]
    results += [env.step(ACTIONS) for _ in range(steps)]
    results.append(env.reset(options={"reset_mask": torch.tensor([False, True, False])}))
    return results + [env.step(ACTIONS) for _ in range(steps)]


def test_the_tests_here_cover_every_exported_wrapper():
    # The recorders write files, and read tensors for it: test_recording.py has them.
    assert sorted([*NAMES, "RecordTrajectories", "RecordVideo"]) == wrappers.__all__
    assert all(wrap(CounterEnv()).__class__.__name__ == name for wrap, name in zip(WRAPPERS, NAMES, strict=True))


@EACH
@ALL_MODES
def test_device_and_autoreset_mode_are_visible_on_the_wrapper(wrap, mode):
    env = wrap(CounterEnv(autoreset_mode=mode))
    assert env.device == torch.device("cpu")
    assert env.autoreset_mode is mode
    assert env.metadata["autoreset_mode"] is mode


@EACH
@ALL_MODES
@OBSERVATIONS
def test_what_the_environment_and_the_caller_own_is_never_written_into(wrap, mode, dict_obs):
    inner = WatchedEnv(limit=[2, 3, 4], autoreset_mode=mode, dict_obs=dict_obs)
    actions = Snapshot(ACTIONS)
    run(wrap(inner))
    inner.assert_untouched()
    actions.assert_unchanged()


@EACH
@ALL_MODES
@OBSERVATIONS
def test_returned_tensors_never_change_later(wrap, mode, dict_obs):
    env = wrap(CounterEnv(limit=[2, 3, 4], autoreset_mode=mode, dict_obs=dict_obs))
    snapshots = [Snapshot(env.reset(seed=0))]
    for _ in range(9):
        snapshots.append(Snapshot(env.step(ACTIONS)))
        snapshots.append(Snapshot(env.reset(options={"reset_mask": np.array([True, False, False])})))
    for snapshot in snapshots:
        snapshot.assert_unchanged()


@EACH
@ALL_MODES
def test_a_caller_may_write_into_what_it_got_without_changing_what_comes_later(wrap, mode):
    spoiled, kept = (wrap(CounterEnv(limit=[2, 3, 4], autoreset_mode=mode)) for _ in range(2))
    spoiled.reset(seed=0), kept.reset(seed=0)
    for _ in range(9):
        got, expected = spoiled.step(ACTIONS), kept.step(ACTIONS)
        for info in (got[-1], expected[-1], got[-1].get("final_info", {}), expected[-1].get("final_info", {})):
            info["episode"] = {key: value for key, value in info.get("episode", {}).items() if key != "t"}
        for a, b in zip(tensors_in(got), tensors_in(expected), strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=0)
        # One tensor may be in the result more than once.
        for tensor in {id(tensor): tensor for tensor in tensors_in(got)}.values():
            tensor.logical_not_() if tensor.dtype is torch.bool else tensor.add_(100)


@EACH
def test_reset_leaves_the_options_of_the_caller_alone(wrap):
    env = wrap(CounterEnv())
    env.reset(seed=0)
    options = {"reset_mask": np.array([True, False, True]), "other": 1}
    before = dict(options)
    env.reset(options=options)
    assert options.keys() == before.keys()
    assert all(options[key] is before[key] for key in before)
    assert options["reset_mask"].tolist() == [True, False, True]


@EACH
@ALL_MODES
@OBSERVATIONS
def test_steps_read_no_value_on_the_host(wrap, mode, dict_obs):
    env = wrap(CounterEnv(limit=[2, 3, 4], autoreset_mode=mode, dict_obs=dict_obs))
    env.reset(seed=0)
    with ForbidHostReads():
        results = [env.step(ACTIONS) for _ in range(6)]
    assert any(truncated.any() for _, _, _, truncated, _ in results)


@pytest.mark.parametrize(
    "wait",
    [
        lambda x, mask: x[0].item(),
        lambda x, mask: bool(mask.any()),
        lambda x, mask: mask.nonzero(),
        lambda x, mask: x[mask],
        lambda x, mask: x.clone().__setitem__(mask, x[:1]),
        lambda x, mask: torch.where(mask, 0.0, x),
    ],
    ids=["item", "if", "nonzero", "read-by-mask", "write-by-mask", "where-with-a-number"],
)
def test_the_check_for_host_reads_sees_each_kind(wait):
    with pytest.raises(AssertionError, match="makes the host wait"), ForbidHostReads():
        wait(torch.ones(3), torch.tensor([True, False, True]))


@EACH
@ALL_MODES
@OBSERVATIONS
def test_everything_stays_on_a_device_that_the_host_cannot_read(wrap, mode, dict_obs):
    inner = MetaEnv(mode, dict_obs)
    env = wrap(inner)
    mask = {"reset_mask": np.array([True, False, True])}
    results = [env.reset(), env.reset(options=mask)]
    results += [env.step(actions) for actions in (ACTIONS.to("meta"), ACTIONS, ACTIONS.numpy())]
    assert env.device == torch.device("meta")
    assert {tensor.device for result in results for tensor in tensors_in(result)} == {torch.device("meta")}
    if wrap is everything or isinstance(env, (ClipAction, RescaleAction)):
        assert [actions.device.type for actions in inner.received] == ["meta"] * 3


@EACH
@ALL_MODES
@OBSERVATIONS
def test_steps_in_and_out_of_inference_mode_give_the_same(wrap, mode, dict_obs):
    def results(inference: bool) -> list[tuple]:
        inner = CounterEnv(limit=[2, 3, 4], autoreset_mode=mode, dict_obs=dict_obs)
        with torch.inference_mode(inference):
            env = wrap(inner)
            found = [env.reset(seed=0), env.step(ACTIONS), env.step(ACTIONS)]
        found += [env.step(ACTIONS), env.step(ACTIONS)]
        found.append(env.reset(options={"reset_mask": torch.tensor([False, True, False])}))
        with torch.inference_mode(inference):
            found += [env.step(ACTIONS), env.step(ACTIONS)]
        return [*found, env.step(ACTIONS), env.step(ACTIONS)]

    mixed, plain = results(inference=True), results(inference=False)
    for got, expected in zip(mixed, plain, strict=True):
        for a, b in zip(tensors_in(got[:4]), tensors_in(expected[:4]), strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=0)


@EACH
@OBSERVATIONS
def test_observations_and_final_observations_have_the_shapes_and_types_of_the_space(wrap, dict_obs):
    env = wrap(CounterEnv(limit=[1, 2, 3], dict_obs=dict_obs))
    observations, _ = env.reset(seed=0)
    *_, info = env.step(ACTIONS)

    def assert_fits(batch, space):
        assert batch.dtype is torch.float32
        assert tuple(batch.shape) == space.shape
        assert space.dtype == np.float32

    spaces_ = env.observation_space.spaces if isinstance(env.observation_space, spaces.Dict) else env.observation_space
    for batch in (observations, info["final_obs"]):
        map_observation(assert_fits, batch, spaces_)
    assert info["_final_obs"].tolist() == [True, False, False]


@EACH
def test_an_environment_without_a_device_is_refused(wrap):
    numpy_env = SyncVectorEnv([lambda: _SingleEnv()], autoreset_mode=AutoresetMode.SAME_STEP)
    with pytest.raises(TypeError, match=r"needs an environment of torch tensors, with a `device`.*SyncVectorEnv"):
        wrap(numpy_env)


@EACH
@pytest.mark.parametrize("metadata", [{}, {"autoreset_mode": "SameStep"}], ids=["missing", "string"])
def test_an_environment_without_an_autoreset_mode_is_refused(wrap, metadata):
    env = CounterEnv()
    env.metadata = metadata
    with pytest.raises(TypeError, match=r"to one of AutoresetMode\.NEXT_STEP, .*; it is (None|'SameStep')"):
        wrap(env)


class _SingleEnv(gymnasium.Env):
    observation_space = action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)


@ALL_MODES
@OBSERVATIONS
def test_array_conversion_gives_numpy_users_arrays_in_and_out(mode, dict_obs):
    pytest.importorskip("array_api_compat", reason="ArrayConversion needs gymnasium[array-api]")
    from gymnasium.wrappers.vector import ArrayConversion

    inner = CounterEnv(limit=[1, 2, 3], autoreset_mode=mode, dict_obs=dict_obs)
    env = ArrayConversion(RecordEpisodeStatistics(inner), env_xp=torch, target_xp=np)
    observations, _ = env.reset(seed=0)
    counters = observations["counter"] if dict_obs else observations
    assert isinstance(counters, np.ndarray)
    np.testing.assert_array_equal(counters, [[0, 0, 0], [1, 0, 0], [2, 0, 0]])

    _, reward, terminated, truncated, info = env.step(ACTIONS.numpy())
    assert isinstance(inner.received_actions[0], torch.Tensor)
    torch.testing.assert_close(inner.received_actions[0], ACTIONS)
    for value in (reward, terminated, truncated, info["_episode"], *info["episode"].values()):
        assert isinstance(value, np.ndarray)
    np.testing.assert_array_equal(reward, [1, 1, 1])
    np.testing.assert_array_equal(truncated, [True, False, False])
    np.testing.assert_array_equal(info["_episode"], [True, False, False])
    np.testing.assert_array_equal(info["episode"]["r"], [1, 0, 0])
    np.testing.assert_array_equal(info["episode"]["l"], [1, 0, 0])

    observations, _ = env.reset(options={"reset_mask": np.array([True, False, False])})
    counters = observations["counter"] if dict_obs else observations
    started = 2 if mode is AutoresetMode.SAME_STEP else 1
    np.testing.assert_array_equal(counters, [[0, started, 0], [1, 0, 1], [2, 0, 1]])
    np.testing.assert_array_equal(reward, [1, 1, 1])
