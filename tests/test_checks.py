from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper
from gymnasium.vector.utils import batch_space

from genesis_vec.checks import CheckReport, VectorEnvContractError, check_vector_env
from tests.fakes import CounterEnv

SAME_STEP, NEXT_STEP, DISABLED = AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED


class StrictEnv(CounterEnv):
    """CounterEnv with the refusals and the declared time limit that complete the contract; the base of every fake."""

    def __init__(self, num_envs: int = 3, limit: int = 4, *, dict_obs: bool = True, **kwargs: Any) -> None:
        super().__init__(num_envs, limit, dict_obs=dict_obs, **kwargs)
        self.max_episode_steps: int | None = limit

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict]:
        if isinstance(seed, list) and len(seed) != self.num_envs:
            raise ValueError(f"{len(seed)} seeds for {self.num_envs} environments")
        mask = (options or {}).get("reset_mask")
        if mask is not None and (tuple(mask.shape) != (self.num_envs,) or mask.dtype not in (torch.bool, np.bool_)):
            raise ValueError(f"reset_mask is {mask.dtype} {tuple(mask.shape)}, expected bool ({self.num_envs},)")
        return super().reset(seed=seed, options=options)

    def step(self, actions: Any) -> tuple[Any, torch.Tensor, torch.Tensor, torch.Tensor, dict]:
        if self.closed:
            raise RuntimeError("the environment is closed")
        return super().step(actions)


class ActingEnv(StrictEnv):
    """The action, clipped, is seen in the noise of the rows that it moves."""

    def act(self, actions: Any) -> torch.Tensor:
        return torch.as_tensor(actions, dtype=torch.float32).clamp(-1, 1)

    def moves(self, row: int) -> bool:
        return not (self.finished[row] and self.autoreset_mode is NEXT_STEP)

    def step(self, actions: Any) -> Any:
        act = self.act(actions)
        moving = [row for row in range(self.num_envs) if self.moves(row)]
        for row in moving:
            self.noise[row] = act[row]
        return super().step(actions)


class DiscreteEnv(StrictEnv):
    """Discrete observations; actions in a dictionary of a Box and a Tuple of Discretes."""

    def __init__(self) -> None:
        super().__init__(dict_obs=False)
        self.single_observation_space = spaces.Discrete(10, start=-1)
        gears = spaces.Tuple([spaces.Discrete(3), spaces.Discrete(2)])
        self.single_action_space = spaces.Dict({"push": spaces.Box(-1, 1, (2,)), "gears": gears})
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)

    def _observe(self) -> torch.Tensor:
        return torch.tensor(self.steps) - 1

    def step(self, actions: Any) -> Any:
        return super().step(actions["push"])


def rules_broken(env: VectorEnv, **kwargs: Any) -> set[str]:
    """The names of the rules the checker finds broken; each violation must be one line."""
    try:
        check_vector_env(env, **kwargs)
    except VectorEnvContractError as error:
        assert all(len(line.splitlines()) == 1 for line in error.violations)
        return {line.split(":")[0] for line in error.violations}
    return set()


# What passes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", AutoresetMode, ids=lambda mode: mode.name)
@pytest.mark.parametrize("dict_obs", [False, True], ids=["tensor", "dict"])
@pytest.mark.parametrize("num_envs", [1, 3])
def test_correct_env_passes(mode: AutoresetMode, dict_obs: bool, num_envs: int) -> None:
    report = check_vector_env(StrictEnv(num_envs, dict_obs=dict_obs, autoreset_mode=mode), close=True)

    # 50 steps, the least; an episode takes 4, and one more where a step is spent on the reset.
    assert report.num_steps == 50
    assert report.num_episodes == num_envs * (50 // (5 if mode is NEXT_STEP else 4))
    # The counter is the same for all seeds, and one row has no other that a partial reset could disturb.
    not_checked = {line.split(":")[0] for line in report.not_checked}
    assert not_checked == (set() if dict_obs else {"that seeds matter"}) | (
        {"partial resets that leave other rows alone"} if num_envs == 1 else set()
    )


@pytest.mark.parametrize("mode", AutoresetMode, ids=lambda mode: mode.name)
def test_env_that_obeys_actions_and_ends_rows_at_different_steps_passes(mode: AutoresetMode) -> None:
    env = ActingEnv(4, limit=5, terminate_at=[2, 3, None, 5], autoreset_mode=mode)
    assert check_vector_env(env, close=True).not_checked == ()


def test_discrete_observations_and_nested_actions_pass() -> None:
    assert [line.split(":")[0] for line in check_vector_env(DiscreteEnv()).not_checked] == [
        "that seeds matter",  # there is no noise
        "actions out of range",
    ]


class MovedEnv(StrictEnv):
    """All that is returned is moved to `device`, but for `left_behind`; draws there if `draws`."""

    def __init__(self, device: str, left_behind: str = "", draws: bool = False) -> None:
        super().__init__()
        self.device, self.left_behind, self.draws = torch.device(device), left_behind, draws

    def moved(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {key: item if key == self.left_behind else self.moved(item) for key, item in value.items()}
        return value.to(self.device)

    def reset(self, **kwargs: Any) -> Any:
        return tuple(self.moved(value) for value in super().reset(**kwargs))

    def step(self, actions: Any) -> Any:
        if self.draws:
            torch.rand(1, device=self.device)
        return tuple(self.moved(value) for value in super().step(actions))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("device", ["cuda", "cuda:0"])
def test_env_on_a_gpu(device: str) -> None:
    assert check_vector_env(MovedEnv(device), close=True).not_checked == ()
    assert rules_broken(MovedEnv(device, left_behind="_episode")) == {"info-device"}
    assert rules_broken(MovedEnv(device, draws=True)) == {"global-rng"}


def test_wrapped_env_is_checked_through_the_wrapper() -> None:
    class DoubleReward(VectorWrapper):
        def step(self, actions: Any) -> Any:
            obs, reward, *rest = self.env.step(actions)
            return obs, reward.double(), *rest

    assert check_vector_env(VectorWrapper(VectorWrapper(StrictEnv())), close=True).not_checked == ()
    assert rules_broken(DoubleReward(StrictEnv())) == {"reward-dtype"}


# What is caught ------------------------------------------------------------------------------------------------------


class EditedEnv(StrictEnv):
    """A correct env whose step results pass through `edit(env, results)`, results being a dict by name."""

    def __init__(self, edit: Callable[[Any, dict[str, Any]], Any], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.edit = edit

    def step(self, actions: Any) -> Any:
        names = ("obs", "reward", "terminated", "truncated", "info")
        results = dict(zip(names, super().step(actions), strict=True))
        self.edit(self, results)
        return tuple(results.values())


def replaced(name: str, function: Callable[[Any], Any], **kwargs: Any) -> Callable[[], VectorEnv]:
    """A fake whose step returns `function` of what it should have returned as `name`."""

    def edit(env: Any, results: dict[str, Any]) -> None:
        results[name] = function(results[name])

    return lambda: EditedEnv(edit, **kwargs)


def info_entry(key: str, function: Callable[[dict[str, Any]], Any], **kwargs: Any) -> Callable[[], VectorEnv]:
    """A fake whose step returns `function` of the correct info under `key`; None removes it."""

    def edit(env: Any, results: dict[str, Any]) -> None:
        value = function(results["info"])
        results["info"].pop(key, None)
        results["info"].update({} if value is None else {key: value})

    return lambda: EditedEnv(edit, **kwargs)


def with_attributes(**attributes: Any) -> Callable[[], VectorEnv]:
    def make() -> VectorEnv:
        env = StrictEnv()
        vars(env).update(attributes)
        return env

    return make


class ClassMetadata(StrictEnv):
    metadata: dict[str, Any] = {"autoreset_mode": SAME_STEP}  # noqa: RUF012 (the mistake under test)

    def __init__(self) -> None:
        super().__init__()
        del self.metadata


class ResetReturnsObsOnly(StrictEnv):
    def reset(self, **kwargs: Any) -> Any:
        return super().reset(**kwargs)[0]


class UnseededResetRaises(StrictEnv):
    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        if seed is None and options is None:
            raise ValueError("a seed\nis needed")
        return super().reset(seed=seed, options=options)


class StartsWithNoise(StrictEnv):
    """Row 1 of the noise is a given number."""

    def __init__(self, number: float) -> None:
        self.number = number
        super().__init__()

    def _reset_env(self, i: int) -> None:
        super()._reset_env(i)
        self.noise[1] = self.number


class RaisesAtEpisodeEnd(StrictEnv):
    def step(self, actions: Any) -> Any:
        if self.steps[0] == 3:
            raise ZeroDivisionError("no steps left")
        return super().step(actions)


class NeedsTensorActions(ActingEnv):
    def act(self, actions: Any) -> torch.Tensor:
        return actions.clamp(-1, 1)


class IgnoresNumpyActions(ActingEnv):
    def act(self, actions: Any) -> torch.Tensor:
        return super().act(actions if isinstance(actions, torch.Tensor) else 0 * actions)


class ColumnForNumpyActions(StrictEnv):
    def step(self, actions: Any) -> Any:
        obs, reward, *rest = super().step(actions)
        return obs, reward if isinstance(actions, torch.Tensor) else reward[:, None], *rest


class RefusesWideActions(ActingEnv):
    def act(self, actions: Any) -> torch.Tensor:
        if abs(torch.as_tensor(actions)).max() > 1:
            raise ValueError("action out of range")
        return super().act(actions)


class WrapsWideActions(ActingEnv):
    def act(self, actions: Any) -> torch.Tensor:
        actions = torch.as_tensor(actions)
        return torch.where(actions.abs() > 1, actions - 2 * actions.sign(), actions)


class ScalesActionsInPlace(ActingEnv):
    def act(self, actions: Any) -> torch.Tensor:
        act = super().act(actions)
        actions *= 0.5
        return act


class ClipsTensorActionsInPlace(ActingEnv):
    def act(self, actions: Any) -> torch.Tensor:
        return actions.clamp_(-1, 1) if isinstance(actions, torch.Tensor) else super().act(actions)


class PopsOptions(StrictEnv):
    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> Any:
        mask = None if options is None else options.pop("reset_mask")
        return super().reset(seed=seed, options=None if mask is None else {"reset_mask": mask})


class ClearsMask(StrictEnv):
    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> Any:
        result = super().reset(seed=seed, options=options)
        if options is not None:
            options["reset_mask"][:] = False
        return result


class OneObsBuffer(StrictEnv):
    def __init__(self) -> None:
        super().__init__(dict_obs=False)
        self.buffer = torch.zeros(self.num_envs, 3)

    def step(self, actions: Any) -> Any:
        obs, *rest = super().step(actions)
        return self.buffer.copy_(obs), *rest


class HandsOutItsReturns(StrictEnv):
    """The statistics handed out are the very accumulators, cleared when the next step is made."""

    def __init__(self) -> None:
        super().__init__()
        self.accumulated = torch.zeros(self.num_envs)

    def step(self, actions: Any) -> Any:
        obs, reward, terminated, truncated, info = super().step(actions)
        self.accumulated.copy_(info["episode"]["r"])
        info["episode"]["r"] = self.accumulated
        return obs, reward, terminated, truncated, info


class HandsOutItsState(StrictEnv):
    """The noise returned is the state; a reset binds a new tensor, so that nothing handed out ever changes."""

    def _observe(self) -> Any:
        return {**super()._observe(), "noise": self.noise}

    def _reset_env(self, i: int) -> None:
        self.noise = self.noise.clone()
        super()._reset_env(i)

    def step(self, actions: Any) -> Any:
        obs, reward, terminated, truncated, info = super().step(actions)
        info["final_obs"]["noise"] = info["final_obs"]["noise"].clone()
        return obs, reward, terminated, truncated, info


class ChecksItsState(HandsOutItsState):
    def step(self, actions: Any) -> Any:
        if (self.noise.abs() > 1).any():
            raise FloatingPointError("noise out of range")
        return super().step(actions)


class InferenceTensors(StrictEnv):
    @torch.inference_mode()
    def step(self, actions: Any) -> Any:
        return super().step(actions)


def share_unless_done(env: Any, results: dict[str, Any]) -> None:
    if not results["info"]["_final_obs"].any():
        results["info"]["final_obs"] = results["obs"]


def give_reset_obs_as_final(env: Any, results: dict[str, Any]) -> None:
    results["info"]["final_obs"] = {key: value.clone() for key, value in results["obs"].items()}


def give_only_done_rows(info: dict[str, Any]) -> dict[str, torch.Tensor]:
    return {key: value[info["_final_obs"]] for key, value in info["final_obs"].items()}


class PaysForResets(StrictEnv):
    def step(self, actions: Any) -> Any:
        resetting = torch.tensor(self.finished)
        obs, reward, *rest = super().step(actions)
        return obs, reward - resetting.float(), *rest


class RepeatsFlags(StrictEnv):
    def step(self, actions: Any) -> Any:
        resetting = torch.tensor(self.finished)
        obs, reward, terminated, truncated, info = super().step(actions)
        return obs, reward, terminated, truncated | resetting, info


class ActsOnResettingRows(ActingEnv):
    def step(self, actions: Any) -> Any:
        resetting = torch.tensor(self.finished)
        obs, *rest = super().step(actions)
        self.noise[resetting] = self.act(actions)[resetting]
        return {**obs, "noise": self.noise.clone()}, *rest


class NeverResetsDoneRows(StrictEnv):
    """Under DISABLED, a partial reset clears the counts but shows the old observation."""

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> Any:
        before = self._observe()
        obs, info = super().reset(seed=seed, options=options)
        return (obs if options is None else before), info


class DrawsFromTorch(StrictEnv):
    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> Any:
        if isinstance(seed, int):
            torch.manual_seed(seed)
        return super().reset(seed=seed, options=options)


class DrawsFromPython(StrictEnv):
    def step(self, actions: Any) -> Any:
        random.random()
        return super().step(actions)


class DrawsFromNumpy(StrictEnv):
    def step(self, actions: Any) -> Any:
        np.random.rand()
        return super().step(actions)


class UnseededNoise(StrictEnv):
    def __init__(self) -> None:
        self.generator = torch.Generator()
        super().__init__()

    def _reset_env(self, i: int) -> None:
        super()._reset_env(i)
        self.noise[i] = torch.rand(2, generator=self.generator)


class IgnoresSeedLists(StrictEnv):
    calls = 0

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> Any:
        if isinstance(seed, list) and len(seed) == self.num_envs:
            self.calls += 1
            seed = self.calls
        return super().reset(seed=seed, options=options)


class CutsSeedLists(StrictEnv):
    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> Any:
        if isinstance(seed, list) and len(seed) > self.num_envs:
            seed = seed[: self.num_envs]
        return super().reset(seed=seed, options=options)


class MaskedEnv(StrictEnv):
    """`masked` says what a partial reset with a good mask does instead of resetting its rows."""

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> Any:
        mask = (options or {}).get("reset_mask")
        if mask is None or tuple(mask.shape) != (self.num_envs,) or mask.dtype not in (torch.bool, np.bool_):
            return super().reset(seed=seed, options=options)
        return self.masked(mask)

    def masked(self, mask: Any) -> Any:
        raise NotImplementedError


class NeedsNumpyMask(MaskedEnv):
    def masked(self, mask: Any) -> Any:
        return StrictEnv.reset(self, options={"reset_mask": mask.astype(bool)})


class ResetsEverybody(MaskedEnv):
    def masked(self, mask: Any) -> Any:
        return StrictEnv.reset(self)


class ResetsNobody(MaskedEnv):
    def masked(self, mask: Any) -> Any:
        return self._observe(), {}


class ReseedsTheOthers(MaskedEnv):
    def masked(self, mask: Any) -> Any:
        self.seeds = [seed + 50 for seed in self.seeds]
        return StrictEnv.reset(self, options={"reset_mask": mask})


class KeepsReturnsOverMask(MaskedEnv):
    def masked(self, mask: Any) -> Any:
        returns = list(self.returns)
        result = StrictEnv.reset(self, options={"reset_mask": mask})
        self.returns = returns
        return result


class ForgetsPendingResets(MaskedEnv):
    """A partial reset makes the rows that wait for their reset go on instead (NEXT_STEP)."""

    def masked(self, mask: Any) -> Any:
        result = StrictEnv.reset(self, options={"reset_mask": mask})
        self.finished = [False] * self.num_envs
        return result


class TakesAnyMask(StrictEnv):
    """Pads, flattens or casts whatever mask comes."""

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> Any:
        mask = (options or {}).get("reset_mask")
        if mask is not None:
            rows = [bool(item) for item in mask.reshape(-1).tolist()] + [False]
            options = {"reset_mask": torch.tensor(rows[: self.num_envs])}
        return super().reset(seed=seed, options=options)


class LosesFirstStep(StrictEnv):
    """Every episode after the first lacks a step, with its reward, in the statistics."""

    def step(self, actions: Any) -> Any:
        later = torch.tensor(self.episode) > 0
        obs, reward, terminated, truncated, info = super().step(actions)
        for key, lost in (("l", 1), ("r", 1.0)):  # the reward of step 1 is 1
            info["episode"][key] = info["episode"][key] - lost * (later & info["_episode"])
        return obs, reward, terminated, truncated, info


class ClosesOnce(StrictEnv):
    def close(self, **kwargs: Any) -> None:
        if self.closed:
            raise RuntimeError("already closed")
        super().close(**kwargs)


class StepsAfterClose(StrictEnv):
    def step(self, actions: Any) -> Any:
        self.closed = False
        return super().step(actions)


def late_limit() -> VectorEnv:
    env = StrictEnv(limit=5)
    env.max_episode_steps = 4
    return env


def early_limit() -> VectorEnv:
    env = StrictEnv(limit=3)
    env.max_episode_steps = 4
    return env


def float64_space() -> VectorEnv:
    env = StrictEnv(dict_obs=False)
    env.single_observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float64)
    env.observation_space = batch_space(env.single_observation_space, env.num_envs)
    return env


def tuple_space() -> VectorEnv:
    env = StrictEnv()
    env.single_observation_space = spaces.Tuple([env.single_observation_space])
    env.observation_space = batch_space(env.single_observation_space, env.num_envs)
    return env


def nan_in_row_one(values: torch.Tensor) -> torch.Tensor:
    return torch.where(torch.arange(len(values)) == 1, torch.nan, values)


DEVICE_RULES = {f"{name}-device" for name in ("obs", "reward", "terminated", "truncated", "final-obs", "info")}

FAKES: dict[str, tuple[Callable[[], VectorEnv], set[str]]] = {
    # attributes
    "num_envs is a float": (with_attributes(num_envs=3.0), {"num-envs"}),
    "observation space is a tuple": (tuple_space, {"space-type"}),
    "observation space is float64": (float64_space, {"space-dtype"}),
    "batched action space is the single one": (
        with_attributes(action_space=spaces.Box(-1.0, 1.0, (2,))),
        {"space-batch"},
    ),
    "device is a string": (with_attributes(device="cpu"), {"device"}),
    "device is missing": (with_attributes(device=None), {"device"}),
    "tensors are on another device": (with_attributes(device=torch.device("cpu:1")), DEVICE_RULES),
    "metadata is the class's": (ClassMetadata, {"metadata"}),
    "mode in the metadata is a string": (
        with_attributes(metadata={"autoreset_mode": "SameStep"}),
        {"autoreset-mode"},
    ),
    "mode in the metadata is missing": (with_attributes(metadata={}), {"autoreset-mode"}),
    # what reset and step return
    "reset returns obs only": (ResetReturnsObsOnly, {"reset-value"}),
    "reset without a seed raises": (UnseededResetRaises, {"reset-raises"}),
    "step raises at an episode's end": (RaisesAtEpisodeEnd, {"step-raises"}),
    "step returns four values": (lambda: EditedEnv(lambda env, results: results.pop("truncated")), {"step-value"}),
    "obs is NumPy": (replaced("obs", lambda obs: obs.numpy(), dict_obs=False), {"obs-type"}),
    "obs is a tensor where a dict is declared": (replaced("obs", lambda obs: obs["counter"]), {"obs-type"}),
    "obs lacks a key": (replaced("obs", lambda obs: {"counter": obs["counter"]}), {"obs-keys"}),
    "obs lacks its rows": (replaced("obs", lambda obs: obs[0], dict_obs=False), {"obs-shape"}),
    "obs is float64": (replaced("obs", lambda obs: obs.double(), dict_obs=False), {"obs-dtype"}),
    "obs lacks its last entry": (replaced("obs", lambda obs: obs[:, :2], dict_obs=False), {"obs-shape"}),
    "obs is out of bounds": (lambda: StartsWithNoise(2.0), {"obs-bounds", "final-obs-bounds"}),
    "obs holds a NaN": (lambda: StartsWithNoise(torch.nan), {"obs-finite", "final-obs-finite"}),
    "reward is a list": (replaced("reward", lambda reward: reward.tolist()), {"reward-type"}),
    "reward is a column": (replaced("reward", lambda reward: reward[:, None]), {"reward-shape"}),
    "reward is float64": (replaced("reward", lambda reward: reward.double()), {"reward-dtype"}),
    "reward is NaN": (replaced("reward", nan_in_row_one), {"reward-finite", "episode-return"}),
    "terminated is int": (replaced("terminated", lambda flag: flag.int()), {"terminated-dtype"}),
    "truncated is a column": (replaced("truncated", lambda flag: flag[:, None]), {"truncated-shape"}),
    "both flags are true": (
        lambda: EditedEnv(lambda env, results: results.update(terminated=results["truncated"].clone())),
        {"flags-both"},
    ),
    # info
    "info is None": (replaced("info", lambda info: None), {"info-type"}),
    "info has an int key": (replaced("info", lambda info: {**info, 7: 1.0}), {"info-keys"}),
    "info mask is int": (info_entry("_final_info", lambda info: info["_final_info"].int()), {"info-mask"}),
    "info mask is a list": (
        replaced("info", lambda info: {**info, "x": torch.zeros(3), "_x": [True] * 3}),
        {"info-mask"},
    ),
    "nested info mask has one row": (
        info_entry("terms", lambda info: {"_alive": torch.ones(1, dtype=torch.bool)}),
        {"info-mask"},
    ),
    "masked info has done rows only": (
        info_entry("final_info", lambda info: {"deep": {"x": torch.zeros(1)}}),
        {"info-rows"},
    ),
    # inputs
    "NumPy actions raise": (NeedsTensorActions, {"numpy-actions"}),
    "NumPy actions are ignored": (IgnoresNumpyActions, {"numpy-actions"}),
    "NumPy actions are rewarded by a column": (ColumnForNumpyActions, {"reward-shape", "numpy-actions"}),
    "actions out of range raise": (RefusesWideActions, {"action-range"}),
    "actions out of range are not clipped": (WrapsWideActions, {"action-clip"}),
    "actions are scaled in place": (ScalesActionsInPlace, {"actions-modified"}),
    "actions are clipped in place": (ClipsTensorActionsInPlace, {"actions-modified"}),
    "options are popped": (PopsOptions, {"options-modified"}),
    "the mask is cleared": (lambda: ClearsMask(autoreset_mode=DISABLED), {"options-modified"}),
    # fresh tensors
    "obs is one buffer": (OneObsBuffer, {"fresh-kept"}),
    "episode returns are the accumulators": (HandsOutItsReturns, {"fresh-kept"}),
    "final_obs is obs when nobody is done": (lambda: EditedEnv(share_unless_done), {"fresh-shared"}),
    "reward is a view of obs": (
        lambda: EditedEnv(lambda env, results: results.update(reward=results["obs"][:, 2]), limit=9, dict_obs=False),
        {"fresh-shared", "episode-return"},  # the counter restarts in the obs of the last step, so the returns differ
    ),
    "obs is the state": (HandsOutItsState, {"fresh-reused"}),
    "obs is the state, which is then invalid": (ChecksItsState, {"fresh-reused"}),
    "tensors are inference tensors": (InferenceTensors, {"fresh-write"}),
    # autoreset
    "final_obs is the reset obs": (lambda: EditedEnv(give_reset_obs_as_final), {"restart-obs"}),
    "final_obs is missing": (info_entry("final_obs", lambda info: None), {"same-step-missing"}),
    "final_info and its mask are missing": (
        replaced("info", lambda info: {key: info[key] for key in info if "final_info" not in key}),
        {"same-step-missing"},
    ),
    "final_obs has done rows only": (info_entry("final_obs", give_only_done_rows), {"final-obs-shape"}),
    "final_obs is an object array": (info_entry("final_obs", lambda info: np.full(3, None)), {"final-obs-type"}),
    "final_obs is zero where not done": (
        info_entry(
            "final_obs",
            lambda info: {key: value * info["_final_obs"][:, None] for key, value in info["final_obs"].items()},
        ),
        {"same-step-running"},
    ),
    "_final_obs marks everybody": (
        info_entry("_final_obs", lambda info: torch.ones(3, dtype=torch.bool)),
        {"same-step-mask"},
    ),
    "the resetting step has a reward": (lambda: PaysForResets(autoreset_mode=NEXT_STEP), {"next-step-reward"}),
    "the resetting step repeats the flags": (lambda: RepeatsFlags(autoreset_mode=NEXT_STEP), {"next-step-flags"}),
    "the resetting step applies the action": (
        lambda: ActsOnResettingRows(autoreset_mode=NEXT_STEP),
        {"next-step-action"},
    ),
    "done rows are never reset": (
        lambda: NeverResetsDoneRows(autoreset_mode=DISABLED),
        {"restart-obs", "mask-others"},  # the partial reset that follows shows the rows that seemed stuck
    ),
    # seeding
    "reset seeds torch": (DrawsFromTorch, {"global-rng"}),
    "step draws from Python's random": (DrawsFromPython, {"global-rng"}),
    "step draws from NumPy's random": (DrawsFromNumpy, {"global-rng"}),
    "noise is not seeded": (UnseededNoise, {"seed-repeat", "seed-list"}),
    "a list of seeds is ignored": (IgnoresSeedLists, {"seed-list"}),
    "a list of seeds is cut": (CutsSeedLists, {"seed-length"}),
    # partial resets
    "a torch mask raises": (NeedsNumpyMask, {"mask-raises"}),
    "a mask resets everybody": (ResetsEverybody, {"mask-others", "mask-others-later"}),
    "a mask resets nobody": (ResetsNobody, {"mask-rows"}),
    "a mask reseeds the others": (ReseedsTheOthers, {"mask-others-later"}),
    "a mask cancels pending resets": (
        lambda: ForgetsPendingResets(autoreset_mode=NEXT_STEP),
        {"mask-others-later"},
    ),
    "any mask is taken": (TakesAnyMask, {"mask-invalid"}),
    # episodes
    "statistics are missing": (
        replaced("info", lambda info: {key: info[key] for key in info if "episode" not in key}),
        {"episode-missing"},
    ),
    "statistics lack the time": (
        info_entry("episode", lambda info: {key: info["episode"][key] for key in "rl"}),
        {"episode-missing"},
    ),
    "statistics are a column": (
        info_entry("episode", lambda info: {key: value[:, None] for key, value in info["episode"].items()}),
        {"episode-missing"},
    ),
    "_episode marks everybody": (
        info_entry("_episode", lambda info: torch.ones(3, dtype=torch.bool)),
        {"episode-mask"},
    ),
    "later episodes lose their first step": (LosesFirstStep, {"episode-length", "episode-return"}),
    "the return is NaN": (
        info_entry("episode", lambda info: {**info["episode"], "r": torch.full((3,), torch.nan)}),
        {"episode-return"},
    ),
    "a masked row keeps its return": (KeepsReturnsOverMask, {"episode-return"}),
    "the limit comes a step late": (late_limit, {"time-limit"}),
    "the limit comes a step early": (early_limit, {"time-limit"}),
    # closing
    "close raises the second time": (ClosesOnce, {"close-raises"}),
    "step works after close": (StepsAfterClose, {"close-step"}),
}


@pytest.mark.parametrize(("make", "rules"), FAKES.values(), ids=FAKES.keys())
def test_fake_breaks_exactly_its_rules(make: Callable[[], VectorEnv], rules: set[str]) -> None:
    assert rules_broken(make(), num_steps=16, close=True) == rules


# What is said and left alone -----------------------------------------------------------------------------------------


def test_error_lists_every_violation_once_with_step_rows_and_remedy() -> None:
    def edit(env: Any, results: dict[str, Any]) -> None:
        results["reward"] = nan_in_row_one(results["reward"].double())
        results["info"]["_episode"] = results["info"]["_episode"].int()

    with pytest.raises(VectorEnvContractError, match=r"^4 violation\(s\)") as caught:
        check_vector_env(EditedEnv(edit))

    assert caught.value.violations == [
        "reward-dtype: reward of step 1 is torch.float64, expected torch.float32; convert it",
        "reward-finite: reward of step 1 is not finite in rows [1]; end the episode, mask the value",
        "info-mask: info['_episode'] of step 1 is (torch.int32, 3), expected a bool tensor (3,), a mask of rows",
        "episode-return: info['episode']['r'] of step 4 is [10.0], counted [nan], in rows [1]",
    ]
    assert all(line in str(caught.value) for line in caught.value.violations)


def test_many_rows_are_abridged() -> None:
    with pytest.raises(VectorEnvContractError, match=r"rows \[0, 1, 2, 3, 4, 5\] and 4 more"):
        check_vector_env(replaced("reward", lambda reward: reward / 0, num_envs=10)())


def test_error_says_what_a_violation_kept_from_being_checked() -> None:
    with pytest.raises(VectorEnvContractError) as caught:
        check_vector_env(RaisesAtEpisodeEnd())

    assert caught.value.violations == ["step-raises: step raised ZeroDivisionError(no steps left) at step 4"]
    assert caught.value.not_checked == ["everything after this: step 4 raised"]
    assert "(not checked) everything after this" in str(caught.value)


def test_a_run_without_an_episode_end_says_so() -> None:
    report = check_vector_env(StrictEnv(limit=500), num_steps=30)

    assert report == CheckReport(30, 0, report.not_checked)
    assert [line.split(":")[0] for line in report.not_checked] == [
        "autoreset, episode statistics",
        "time limit",
        "statistics after a partial reset",
    ]


def test_a_run_with_one_end_per_row_does_not_vouch_for_the_second() -> None:
    (line,) = check_vector_env(StrictEnv(limit=20), num_steps=30).not_checked
    assert line.startswith("statistics of a second episode")


@pytest.mark.parametrize(("limit", "num_steps"), [(None, 200), (4, 50), (60, 122)])
def test_default_length_sees_two_episodes(limit: int | None, num_steps: int) -> None:
    env = StrictEnv(1, limit=limit or 4, dict_obs=False)
    env.max_episode_steps = limit
    assert check_vector_env(env).num_steps == num_steps


def test_time_limit_is_read_from_the_spec_unless_the_env_declares_its_own() -> None:
    env = StrictEnv(limit=5)
    env.spec = EnvSpec("Counter-v0", vector_entry_point="nowhere:Env", max_episode_steps=4)
    assert rules_broken(env) == set()  # the override that make_vec takes leaves the spec as it was

    env.max_episode_steps = None
    assert rules_broken(env) == {"time-limit"}


def test_closing_is_left_to_the_caller_unless_asked_for() -> None:
    env = StrictEnv()
    check_vector_env(env)
    assert not env.closed
    check_vector_env(env, close=True)
    assert env.closed


def test_generators_of_the_caller_and_of_the_spaces_stay_where_they_were() -> None:
    def draws() -> tuple[Any, ...]:
        return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()

    env, twin = StrictEnv(), StrictEnv()
    for each in (env, twin):
        for space in (each.action_space, each.single_action_space, each.single_observation_space):
            space.seed(5)
    before = draws()
    check_vector_env(env)

    assert draws() == before
    assert np.array_equal(env.action_space.sample(), twin.action_space.sample())
    assert np.array_equal(env.single_action_space.sample(), twin.single_action_space.sample())


def test_other_than_a_vector_env_is_refused() -> None:
    with pytest.raises(TypeError, match=r"takes a gymnasium\.vector\.VectorEnv, not .*Env"):
        check_vector_env(gym.Env())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="num_steps is 0; at least 1"):
        check_vector_env(StrictEnv(), num_steps=0)
