"""The contract of a torch vector environment as code: `check_vector_env`.

Gymnasium ships a checker for single environments and none for vector ones. This module holds the one for vector
environments whose observations, rewards and flags are torch tensors on a device. It knows Gymnasium, NumPy and torch
only, so that any author of such an environment can call it, whatever simulates.

Every violation is one line, ``rule: subject what-was-found, what-was-expected; remedy``. The rules, by group:

- attributes: ``num-envs space-type space-dtype space-batch device metadata autoreset-mode``
- reset and step: ``reset-raises reset-value step-raises step-value flags-both``, and for each of ``obs final-obs reward
  terminated truncated`` the rules ``-type -shape -dtype -device -finite``, for observations also ``-keys -bounds``
- info: ``info-type info-keys info-device info-mask info-rows``
- inputs: ``numpy-actions action-range action-clip actions-modified options-modified``
- fresh tensors: ``fresh-kept fresh-shared fresh-reused fresh-write``
- autoreset: ``restart-obs``; ``same-step-missing same-step-mask same-step-running``; ``next-step-reward
  next-step-flags next-step-action``
- seeding: ``seed-repeat seed-list seed-length global-rng``
- partial resets: ``mask-raises mask-rows mask-others mask-others-later mask-invalid``
- episodes: ``episode-missing episode-mask episode-length episode-return time-limit``
- closing, on request: ``close-raises close-step``
"""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

_REPLAY_STEPS = 20  # how far two runs from one seed are compared, counted from the event under test
_SHORT_STEPS = 5  # where nothing is known about when an event comes, or little is asked
_FLAGS = ("terminated", "truncated")
_FINAL = "info['final_obs']"


@dataclass(frozen=True)
class CheckReport:
    """What a successful check saw.

    Attributes:
        num_steps: Vector steps of the main run.
        num_episodes: Episodes that ended in the main run, over all rows.
        not_checked: One line for each part of the contract the run could not reach, with the reason. Empty if all of it
            was checked; a strict caller asserts that.
    """

    num_steps: int
    num_episodes: int
    not_checked: tuple[str, ...]


class VectorEnvContractError(Exception):
    """A vector environment breaks the contract.

    Attributes:
        violations: One line per violation, each beginning with the name of its rule and a colon.
        not_checked: As in `CheckReport`; a violation may keep later parts from being checked.
    """

    def __init__(self, violations: Sequence[str], not_checked: Sequence[str] = ()) -> None:
        self.violations = list(violations)
        self.not_checked = list(not_checked)
        lines = [*self.violations, *(f"(not checked) {line}" for line in self.not_checked)]
        super().__init__(f"{len(self.violations)} violation(s) of the vector environment contract\n" + "\n".join(lines))


def check_vector_env(
    env: VectorEnv, *, num_steps: int | None = None, seed: int = 0, rtol: float = 1e-4, close: bool = False
) -> CheckReport:
    """Runs a torch vector environment, wrapped or not, and raises if it breaks the contract.

    One long run with random actions is checked step by step; further runs from the same seed, to some twenty steps
    beyond the first episode's end, are compared with it bit by bit. An environment of two or more rows with a time
    limit of at most twenty steps can be checked completely; with a longer one, parts may end up in
    `CheckReport.not_checked`.

    The tensors of every step of the long run are kept, to see that they stay as they were: use a few dozen rows. The
    environment is left in an arbitrary state. A wrapper that keeps statistics across seeded resets (a running
    normalisation) cannot repeat a run, and one that changes rewards no longer agrees with the returns counted beneath
    it: freeze it, or check what it wraps.

    Args:
        env: The environment. Its device is read from ``env.unwrapped.device``, its mode from
            ``env.metadata["autoreset_mode"]``.
        num_steps: Vector steps of the long run, at least 1. None: enough for two episodes of the time limit the
            environment declares (``unwrapped.max_episode_steps``, else ``spec.max_episode_steps``), between 50 and
            1000; 200 if it declares none.
        seed: Seeds the environment and, separately, the actions, which come from a private copy of the action space.
        rtol: Tolerance of the episode return, relative to the sum of the absolute rewards of the episode.
        close: Whether to close the environment at the end and check that closing again is harmless and stepping raises.

    Returns:
        What was seen and what could not be checked.

    Raises:
        VectorEnvContractError: The environment breaks the contract; all violations found are listed.
        TypeError: `env` is not a `gymnasium.vector.VectorEnv`.
        ValueError: `num_steps` is below 1.
    """
    if not isinstance(env, VectorEnv):
        raise TypeError(f"check_vector_env takes a gymnasium.vector.VectorEnv, not {type(env).__name__}: {env!r}")
    if num_steps is not None and num_steps < 1:
        raise ValueError(f"num_steps is {num_steps}; at least 1 step is needed, or None to let the checker choose")
    findings = _Findings()
    findings.add(_check_attributes(env))
    seen = (0, 0)
    try:
        probe = _Probe(env, findings, seed, rtol)
        seen = _check_runs(probe, num_steps or _default_num_steps(probe.time_limit))
        if close:
            findings.add(_check_close(probe))
    except _Broken as stop:
        findings.not_checked.append(f"everything after this: {stop}")
    if findings.violations:
        raise VectorEnvContractError(findings.violations, findings.not_checked)
    return CheckReport(*seen, tuple(findings.not_checked))


class _Broken(Exception):
    """A run cannot go on; the violation behind it is already among the findings."""


class _Findings:
    """The violations so far, the first per rule and subject: the same mistake in each of 500 steps is one line."""

    def __init__(self) -> None:
        self._lines: dict[tuple[str, ...], str] = {}
        self.not_checked: list[str] = []

    @property
    def violations(self) -> list[str]:
        return list(self._lines.values())

    def add(self, lines: Iterable[str]) -> None:
        for line in lines:
            words = line.split()  # joined again, because an exception's message may span several lines
            self._lines.setdefault(tuple(words[:2]), " ".join(words))


def _rows(mask: torch.Tensor) -> str:
    rows = mask.nonzero().flatten().tolist()
    return f"rows {rows}" if len(rows) <= 6 else f"rows {rows[:6]} and {len(rows) - 6} more"


def _leaves(value: Any, name: str) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors in nested dictionaries, each with the expression that leads to it."""
    if isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _leaves(item, f"{name}[{key!r}]")


def _map_tree(function: Callable[..., Any], *trees: Any) -> Any:
    """Applies `function` to the arrays of equally nested dictionaries and tuples (actions)."""
    if isinstance(trees[0], dict):
        return {key: _map_tree(function, *(tree[key] for tree in trees)) for key in trees[0]}
    if isinstance(trees[0], tuple):
        return tuple(_map_tree(function, *items) for items in zip(*trees, strict=True))
    return function(*trees)


def _changed_rows(before: torch.Tensor, after: torch.Tensor) -> torch.Tensor:
    """Which rows differ; NaN equals NaN. Bool (N,)."""
    if before.shape != after.shape:
        return torch.ones(len(before), dtype=torch.bool)
    same = (before == after) | ((before != before) & (after != after))
    return ~same.reshape(len(before), math.prod(before.shape[1:])).all(dim=1)


def _changed_obs_rows(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> torch.Tensor:
    """Which rows differ in any of the tensors of two observations. Bool (N,)."""
    return torch.stack([_changed_rows(before[name], after[name]) for name in before]).any(dim=0)


def _same_device(tensor: torch.Tensor, device: torch.device) -> bool:
    # "cuda" and "cuda:0" may mean the same device, and only a tensor's is sure to carry an index.
    return tensor.device.type == device.type and device.index in (None, tensor.device.index or 0)


def _check_attributes(env: VectorEnv) -> Iterator[str]:
    base, mode, n = env.unwrapped, env.metadata.get("autoreset_mode"), env.num_envs
    valid_n = isinstance(n, int) and not isinstance(n, bool) and n > 0
    if not valid_n:
        yield f"num-envs: num_envs is {n!r}, expected a positive int"
    yield from _check_obs_space(env.single_observation_space, "single_observation_space")
    for kind in ("observation", "action"):
        single, batched = getattr(env, f"single_{kind}_space"), getattr(env, f"{kind}_space")
        if valid_n and batched != (expected := batch_space(copy.deepcopy(single), n)):
            yield f"space-batch: {kind}_space is {batched}, expected batch_space(single_{kind}_space, {n}) = {expected}"
    device = getattr(base, "device", None)
    if not isinstance(device, torch.device):
        yield f"device: unwrapped.device is {device!r}, expected a torch.device; wrap it, torch.device(...)"
    if any(vars(cls).get("metadata") is base.metadata for cls in type(base).__mro__):
        yield "metadata: metadata is the dictionary of the class, shared by its instances; copy it in the constructor"
    if not isinstance(mode, AutoresetMode):
        yield f"autoreset-mode: metadata['autoreset_mode'] is {mode!r}, expected a member of AutoresetMode"
    attribute = getattr(base, "autoreset_mode", mode)
    if attribute != mode:
        yield (
            f"autoreset-mode: unwrapped.autoreset_mode is {attribute!r}, expected {mode!r} as in the metadata; "
            f"publish one mode in both places"
        )


def _check_obs_space(space: Any, name: str) -> Iterator[str]:
    if isinstance(space, spaces.Dict):
        for key, item in space.spaces.items():
            yield from _check_obs_space(item, f"{name}[{key!r}]")
    elif not isinstance(space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
        yield f"space-type: {name} is {space}, expected a Box, Discrete, MultiDiscrete, MultiBinary or a Dict of such"
    elif np.dtype(space.dtype).kind == "f" and space.dtype != np.float32:
        yield f"space-dtype: {name} is {space.dtype}, expected float32 for float observations"


def _time_limit(env: VectorEnv) -> int | None:
    """The declared limit in steps.

    The attribute wins: an override given to ``make_vec`` leaves ``spec.max_episode_steps`` at the registered value.
    """
    for owner in (env.unwrapped, env.spec):
        limit = getattr(owner, "max_episode_steps", None)
        if isinstance(limit, int | np.integer) and not isinstance(limit, bool):
            return int(limit)
    return None


def _default_num_steps(time_limit: int | None) -> int:
    # The step that only resets, in NEXT_STEP, is why an episode takes one step more than its limit.
    return 200 if time_limit is None else max(50, min(2 * (time_limit + 1), 1000))


@dataclass
class _Record:
    """What one reset or step returned.

    Attributes:
        where: The call, for messages.
        info: The info as returned.
        live: The very tensors that were returned, by the expression that leads to each.
        copies: Their values at that moment, on the CPU.
        restart: The reset of the done rows that followed this step (DISABLED only).
        masked: The partial reset under test that followed this step.
    """

    where: str
    info: dict[str, Any]
    live: dict[str, torch.Tensor]
    copies: dict[str, torch.Tensor] = field(init=False)
    restart: _Record | None = None
    masked: _Record | None = None

    def __post_init__(self) -> None:
        self.copies = {name: tensor.detach().cpu().clone() for name, tensor in self.live.items()}

    def obs(self, of: str = "obs") -> dict[str, torch.Tensor]:
        """The observation, or what is at `of` in its place, by the expression within it."""
        return {name[len(of) :]: value for name, value in self.copies.items() if name.startswith(of)}

    def per_row(self, name: str) -> torch.Tensor:
        """Reward or a flag, (N,); a wrong trailing axis has been reported by then."""
        return self.copies[name].reshape(-1)

    def done(self) -> torch.Tensor:
        return self.per_row("terminated").bool() | self.per_row("truncated").bool()

    def results(self) -> list[str]:
        """The tensors a run must repeat: of the info, which may hold times, a well-formed final_obs only."""
        obs, final = self.obs(), self.obs(_FINAL)
        names = [name for name in self.copies if name.startswith(("obs", "reward", *_FLAGS))]
        return names + [_FINAL + key for key in final if key in obs and final[key].shape == obs[key].shape]


class _Probe:
    """The environment under test; what must hold for any call at all is checked on every call through it."""

    def __init__(self, env: VectorEnv, findings: _Findings, seed: int, rtol: float) -> None:
        self.env, self.findings, self.seed, self.rtol, self.n = env, findings, seed, rtol, env.num_envs
        if any(line.startswith(("num-envs:", "space-type:")) for line in findings.violations):
            raise _Broken("num_envs or an observation space is unusable")
        try:
            # Both also take a string, so that this mistake costs its one line and not the rest of the check.
            self.mode = AutoresetMode(env.metadata.get("autoreset_mode"))
            self.device = torch.device(getattr(env.unwrapped, "device", ""))
        except (ValueError, RuntimeError, TypeError) as error:
            raise _Broken(f"the mode or the device is unusable, {error}") from error
        # Copied first: sampling or batching a space draws from its generator, which belongs to the environment.
        self.obs_space = batch_space(copy.deepcopy(env.single_observation_space), self.n)
        self.action_space = batch_space(copy.deepcopy(env.single_action_space), self.n)
        sample = _map_tree(torch.as_tensor, self.obs_space.sample())
        self.obs_shapes = {name: leaf.shape for name, leaf in _leaves(sample, "obs")}
        self.time_limit = _time_limit(env)

    def quiet(self) -> _Probe:
        """The same, with findings of its own: for runs in which one mistake shows as many."""
        twin = copy.copy(self)
        twin.findings = _Findings()
        return twin

    def sample_actions(self, count: int, seed: int) -> list[Any]:
        """`count` NumPy action batches, the same for the same seed."""
        self.action_space.seed(seed)
        return [self.action_space.sample() for _ in range(count)]

    def reset(self, *, seed: Any = None, mask: Any = None, rule: str = "reset-raises") -> _Record:
        """Resets all rows, or those of a mask, which is a bool array (N,)."""
        where = f"reset(seed={seed})" if mask is None else "reset(reset_mask)"
        options = None if mask is None else {"reset_mask": mask}
        original = copy.deepcopy(mask)
        value = self._call(rule, "reset", where, lambda: self.env.reset(seed=seed, options=options))
        if options is not None:
            intact = options.keys() == {"reset_mask"} and options["reset_mask"] is mask and (mask == original).all()
            if not intact:
                self.findings.add([f"options-modified: reset wrote into the options it was given: {options}; copy"])
        return self._record("reset", where, value, ("obs", "info"))

    def step(self, actions: Any, where: str, *, as_numpy: bool = False, rule: str = "step-raises") -> _Record:
        """Steps with a NumPy action batch, given as tensors on the device or as it is."""
        given = _map_tree(np.array if as_numpy else lambda array: torch.tensor(array, device=self.device), actions)
        value = self._call(rule, "step", where, lambda: self.env.step(given))

        def check_unmodified(array: np.ndarray, passed: Any) -> None:
            if not np.array_equal(array, passed if as_numpy else passed.cpu().numpy()):
                self.findings.add([f"actions-modified: step wrote into the actions given to {where}; clip a copy"])

        _map_tree(check_unmodified, actions, given)
        return self._record("step", where, value, ("obs", "reward", *_FLAGS, "info"))

    def _call(self, rule: str, method: str, where: str, function: Callable[[], Any]) -> Any:
        before = self._global_generators()
        try:
            value = function()
        except Exception as error:
            self.findings.add([f"{rule}: {method} raised {type(error).__name__}({error}) at {where}"])
            raise _Broken(f"{where} raised") from error
        moved = [name for name, state in self._global_generators().items() if state != before[name]]
        if moved:
            names = ", ".join(moved)
            self.findings.add([f"global-rng: {method} moved the global generator of {names} at {where}; use its own"])
        return value

    def _global_generators(self) -> dict[str, Any]:
        numpy_state = np.random.get_state(legacy=False)["state"]
        states = {
            "random": random.getstate(),
            "numpy": (numpy_state["key"].tobytes(), numpy_state["pos"]),
            "torch": torch.get_rng_state().numpy().tobytes(),
        }
        if self.device.type == "cuda":
            states["torch.cuda"] = torch.cuda.get_rng_state(self.device).numpy().tobytes()
        return states

    def _record(self, method: str, where: str, value: Any, names: tuple[str, ...]) -> _Record:
        """Checks what a call returned, item by item, and puts it on record."""
        if not isinstance(value, tuple) or len(value) != len(names):
            found = f"{type(value).__name__} of {len(value)}" if isinstance(value, tuple) else type(value).__name__
            self.findings.add([f"{method}-value: {method} returned a {found} at {where}, expected {', '.join(names)}"])
            raise _Broken(f"{where} did not return {len(names)} values")
        named: dict[str, Any] = dict(zip(names, value, strict=True))
        self.findings.add(_check_obs(self, named["obs"], self.obs_space, "obs", "obs", where))
        for name in names[1:-1]:
            dtype = torch.float32 if name == "reward" else torch.bool
            self.findings.add(_check_tensor(self, named[name], name, name, where, (self.n,), dtype))
        self.findings.add(_check_info(self, named["info"], "info", where))
        live = {leaf: tensor for name in names for leaf, tensor in _leaves(named[name], name)}
        shapes = {leaf: tensor.shape for leaf, tensor in live.items() if leaf.startswith("obs")}
        row_values = all(name in live and live[name].numel() == self.n for name in names[1:-1])
        if shapes != self.obs_shapes or not row_values or not isinstance(named["info"], dict):
            raise _Broken(f"what {where} returned cannot be taken apart into {self.n} rows")
        return _Record(where, named["info"], live)


def _check_tensor(
    probe: _Probe, value: Any, rule: str, name: str, where: str, shape: tuple[int, ...], dtype: torch.dtype
) -> Iterator[str]:
    if not isinstance(value, torch.Tensor):
        yield f"{rule}-type: {name} of {where} is a {type(value).__name__}, expected a torch tensor on {probe.device}"
        return
    if tuple(value.shape) != shape:
        yield f"{rule}-shape: {name} of {where} has shape {tuple(value.shape)}, expected {shape}"
    if value.dtype != dtype:
        yield f"{rule}-dtype: {name} of {where} is {value.dtype}, expected {dtype}; convert it"
    if not _same_device(value, probe.device):
        yield f"{rule}-device: {name} of {where} is on {value.device}, expected {probe.device}; create it there"
    finite = torch.isfinite(value.detach().cpu())
    if (broken := ~(finite.flatten(1).all(dim=1) if value.ndim > 1 else finite.reshape(-1))).any():
        yield f"{rule}-finite: {name} of {where} is not finite in {_rows(broken)}; end the episode, mask the value"


def _check_obs(probe: _Probe, value: Any, space: spaces.Space, rule: str, name: str, where: str) -> Iterator[str]:
    """Holds an observation, or one tensor of it, to its batched space."""
    if isinstance(space, spaces.Dict):
        if not isinstance(value, dict):
            yield f"{rule}-type: {name} of {where} is a {type(value).__name__}, expected a dict of tensors"
            return
        if value.keys() != space.spaces.keys():
            yield f"{rule}-keys: {name} of {where} has {list(value)}, expected as its space {list(space.spaces)}"
        for key in space.spaces:
            if key in value:
                yield from _check_obs(probe, value[key], space.spaces[key], rule, f"{name}[{key!r}]", where)
        return
    assert isinstance(space, spaces.Box | spaces.MultiDiscrete), "what batching leaves of the spaces accepted"
    numpy_dtype = np.dtype(space.dtype)
    dtype = torch.float32 if numpy_dtype.kind == "f" else torch.from_numpy(np.zeros(0, numpy_dtype)).dtype
    yield from _check_tensor(probe, value, rule, name, where, space.shape, dtype)
    if not isinstance(value, torch.Tensor) or value.shape != space.shape:
        return
    # Box.contains would be shorter, but swallows the TypeError of a CUDA tensor and answers False.
    box = isinstance(space, spaces.Box)
    low, high = (space.low, space.high) if box else (space.start, space.start + space.nvec - 1)
    low, high, numbers = low.astype(np.float64), high.astype(np.float64), value.detach().cpu().double().numpy()
    outside = (numbers < low - 1e-5 * (1 + abs(low))) | (numbers > high + 1e-5 * (1 + abs(high)))
    if outside.any():
        yield f"{rule}-bounds: {name} of {where} holds {numbers[outside][0]:g}, outside {space}; widen it or clip"


def _check_info(probe: _Probe, info: Any, name: str, where: str, masked: bool = False) -> Iterator[str]:
    """Checks the entries of an info or of a dictionary in one; `masked` if a mask of rows lies over all of it."""
    if not isinstance(info, dict):
        yield f"info-type: {name} of {where} is a {type(info).__name__}, expected a dict"
        return
    for key, value in info.items():
        label, masked_here = f"{name}[{key!r}]", masked or f"_{key}" in info
        if label == _FINAL:
            continue  # it is held to the observation space, which says more
        if not isinstance(key, str):
            yield f"info-keys: {label} of {where} has a key of type {type(key).__name__}, expected str"
        elif key.startswith("_"):
            found = (value.dtype, *value.shape) if isinstance(value, torch.Tensor) else type(value)
            if found != (torch.bool, probe.n):
                yield f"info-mask: {label} of {where} is {found}, expected a bool tensor ({probe.n},), a mask of rows"
        elif isinstance(value, dict):
            yield from _check_info(probe, value, label, where, masked_here)
        elif isinstance(value, torch.Tensor) and masked_here and value.shape[:1] != (probe.n,):
            yield f"info-rows: {label} of {where} has shape {tuple(value.shape)}, expected {probe.n} rows, as its mask"
        if isinstance(value, torch.Tensor) and not _same_device(value, probe.device):
            yield f"info-device: {label} of {where} is on {value.device}, expected {probe.device}; create it there"


class _Run:
    """A rollout from a seeded reset, with the checker's own account of every row's episode.

    Attributes:
        records: The reset, then one record a step: ``records[t]`` is step t.
        pending: ``pending[t]``, bool (N,): rows that step t + 1 only resets (NEXT_STEP).
        first_end: The step at which the first episode ended; 0 if none did.
        episodes: Episodes that ended, per row.
        truncated_lengths: The lengths at which episodes were truncated.
        restarts: Rows seen to restart, and how many of them with another observation than the terminal one.
        masked_ends: Episodes that ended after having been started by the partial reset under test.
    """

    def __init__(self, probe: _Probe, record: _Record) -> None:
        none = torch.zeros(probe.n, dtype=torch.bool)
        self.probe = probe
        self.records = [record]
        self.pending = [none]
        self.first_end = 0
        self.episodes = none.long()
        self.truncated_lengths: set[int] = set()
        self.restarts = [0, 0]
        self.masked_ends = 0
        self._by_mask = none.clone()
        self._length, self._return = none.long(), none.double()
        self._size = none.double()  # sum of |reward|, which scales the tolerance of the return

    def step(self, record: _Record) -> Iterator[str]:
        """Takes the next step and yields how it departs from the declared mode and the account."""
        previous, pending, where = self.records[-1], self.pending[-1], record.where
        self.records.append(record)
        reward, done = record.per_row("reward").double(), record.done()
        truncated = record.per_row("truncated").bool()
        if (both := record.per_row("terminated").bool() & truncated).any():
            yield f"flags-both: terminated and truncated are both true at {where} in {_rows(both)}; truncate the rest"
        if (rows := pending & (reward != 0)).any():
            yield f"next-step-reward: reward is not 0 at {where} in {_rows(rows)}, which that step only resets"
        if (rows := pending & done).any():
            yield f"next-step-flags: a flag is set at {where} in {_rows(rows)}, which that step only resets"
        if pending.any():
            self._count_restarts(pending, previous.obs(), record.obs())
        running = ~pending
        ended = done & running
        self._length += running
        self._return += reward * running
        self._size += reward.abs() * running
        yield from self._check_statistics(record, ended)
        if self.probe.mode is AutoresetMode.SAME_STEP:
            yield from self._check_same_step(record, ended)
        limit = self.probe.time_limit
        if limit is not None and (late := running & ~ended & (self._length >= limit)).any():
            yield f"time-limit: max_episode_steps is {limit}, but episodes go on at {where} in {_rows(late)}; truncate"
        if ended.any():
            self.first_end = self.first_end or len(self.records) - 1
            self.truncated_lengths.update(self._length[ended & truncated].tolist())
            self.masked_ends += int((ended & self._by_mask).sum())
            self.episodes += ended
            self._begin(ended, by_mask=False)
        self.pending.append(ended if self.probe.mode is AutoresetMode.NEXT_STEP else torch.zeros_like(ended))

    def restart(self, record: _Record) -> None:
        """Takes the reset of the rows that ended in the last step (DISABLED)."""
        last = self.records[-1]
        last.restart = record
        self._count_restarts(last.done(), last.obs(), record.obs())

    def mask(self, record: _Record, mask: torch.Tensor) -> None:
        """Takes the partial reset under test."""
        self.records[-1].masked = record
        self.pending[-1] = self.pending[-1] & ~mask
        self._begin(mask, by_mask=True)

    def _begin(self, rows: torch.Tensor, *, by_mask: bool) -> None:
        self._length[rows], self._return[rows], self._size[rows] = 0, 0.0, 0.0
        self._by_mask[rows] = by_mask

    def _count_restarts(self, rows: torch.Tensor, before: dict[str, Any], after: dict[str, Any]) -> None:
        self.restarts[0] += int(rows.sum())
        self.restarts[1] += int((rows & _changed_obs_rows(before, after)).sum())

    def _check_mask(self, rule: str, record: _Record, key: str, ended: torch.Tensor) -> Iterator[str]:
        mask = record.copies.get(f"info[{key!r}]")
        if mask is not None and mask.shape == ended.shape and (mask.bool() != ended).any():
            yield f"{rule}: info[{key!r}] of {record.where} marks {_rows(mask)}, but episodes ended in {_rows(ended)}"

    def _check_same_step(self, record: _Record, ended: torch.Tensor) -> Iterator[str]:
        for key in ("final_obs", "_final_obs", "final_info", "_final_info"):
            if key not in record.info:
                yield f"same-step-missing: info[{key!r}] is missing at {record.where}; give it in every step"
        yield from self._check_mask("same-step-mask", record, "_final_obs", ended)
        yield from self._check_mask("same-step-mask", record, "_final_info", ended)
        if "final_obs" not in record.info:
            return
        yield from _check_obs(
            self.probe, record.info["final_obs"], self.probe.obs_space, "final-obs", _FINAL, record.where
        )
        final, obs = record.obs(_FINAL), record.obs()
        if final.keys() != obs.keys() or any(final[key].shape != obs[key].shape for key in obs):
            return  # its key, type or shape is wrong, which has been reported
        if (rows := ~ended & _changed_obs_rows(final, obs)).any():
            yield f"same-step-running: {_FINAL} differs from obs at {record.where} in {_rows(rows)}, which did not end"
        self._count_restarts(ended, final, obs)

    def _check_statistics(self, record: _Record, ended: torch.Tensor) -> Iterator[str]:
        where = record.where
        yield from self._check_mask("episode-mask", record, "_episode", ended)
        if not ended.any():
            return
        if "_episode" not in record.info:
            yield f"episode-missing: info['_episode'] is missing at {where}, where {_rows(ended)} ended"
        counted = {"r": ("episode-return", self._return), "l": ("episode-length", self._length), "t": (None, None)}
        for key, (rule, own) in counted.items():
            value = record.copies.get(name := f"info['episode']['{key}']")
            if value is None or value.shape != ended.shape:
                found = "missing" if value is None else f"of shape {tuple(value.shape)}"
                yield f"episode-missing: {name} is {found} at {where}, expected a tensor of shape ({len(ended)},)"
            elif own is not None:
                tolerance = self.probe.rtol * self._size + 1e-6 if key == "r" else 0
                wrong = ended & ~((value - own).abs() <= tolerance)  # negated, so that a NaN counts as wrong
                if wrong.any():
                    found, expected = value[wrong].tolist()[:6], own[wrong].tolist()[:6]
                    yield f"{rule}: {name} of {where} is {found}, counted {expected}, in {_rows(wrong)}"


def _rollout(
    probe: _Probe,
    actions: Sequence[Any],
    label: str = "",
    *,
    seed: int | None = None,
    as_numpy: bool = False,
    rule: str = "step-raises",
    mask: Any = None,
    mask_after: int = 0,
    overwrite: _Findings | None = None,
) -> _Run:
    """Resets with a seed and steps through `actions`, resetting ended rows where the mode leaves that to the caller.

    Args:
        probe: The environment.
        actions: NumPy batches, one a step.
        label: The run's name in messages.
        seed: Of the reset; None for the probe's.
        as_numpy: Whether to give the actions as NumPy arrays.
        rule: The rule an exception of `step` breaks.
        mask: Rows to reset, bool (N,), NumPy or torch, after step `mask_after`.
        mask_after: See `mask`.
        overwrite: If given, all that the environment returns is written into, and what that shows goes there.
    """

    def spoil(record: _Record) -> None:
        if overwrite is not None:
            overwrite.add(_overwrite(record))

    run = _Run(probe, probe.reset(seed=probe.seed if seed is None else seed))
    spoil(run.records[0])
    for number, action in enumerate(actions, 1):
        where = f"step {number}" + (f" of the {label}" if label else "")
        record = probe.step(action, where, as_numpy=as_numpy, rule=rule)
        probe.findings.add(run.step(record))
        spoil(record)
        if probe.mode is AutoresetMode.DISABLED and (done := record.done()).any():
            run.restart(restart := probe.reset(mask=done.to(probe.device), rule="mask-raises"))
            spoil(restart)
        if number == mask_after:
            given = copy.deepcopy(mask)  # which the environment may spoil
            run.mask(probe.reset(mask=given, rule="mask-raises"), torch.as_tensor(mask).cpu())
    return run


def _overwrite(record: _Record) -> Iterator[str]:
    """Writes into each returned tensor, as a learner may, and yields which of the others changed with it."""
    remaining = record.results()
    while remaining:
        name = remaining.pop(0)
        tensor = record.live[name]
        try:
            if tensor.dtype == torch.bool:
                tensor.logical_not_()
            elif tensor.is_floating_point():
                tensor.mul_(-1).sub_(1)
            else:
                tensor.add_(1)
        except RuntimeError as error:
            yield f"fresh-write: {name} of {record.where} cannot be written into: {error}; return a plain tensor"
        shared = [other for other in remaining if _changed_rows(record.copies[other], record.live[other].cpu()).any()]
        if shared:
            yield f"fresh-shared: {name} of {record.where} shares memory with {', '.join(shared)}; return new tensors"
        remaining = [other for other in remaining if other not in shared]


def _difference(one: _Run, other: _Run, rows: torch.Tensor | None = None, after: int = -1) -> str | None:
    """Where two runs first differ, in the given rows and after the given step; None if nowhere."""
    for left, right in list(zip(one.records, other.records, strict=False))[after + 1 :]:
        for name in left.results():
            if name in right.results():
                changed = _changed_rows(left.copies[name], right.copies[name])
                if (changed := changed if rows is None else changed & rows).any():
                    return f"{name} at {left.where} in {_rows(changed)}"
    return None


def _check_runs(probe: _Probe, num_steps: int) -> tuple[int, int]:
    """Makes the main run and all that are compared with it; returns the main run's steps and episodes."""
    findings = probe.findings
    actions = probe.sample_actions(num_steps, probe.seed)
    main = _rollout(probe, actions)
    probe.reset(seed=None)
    findings.add(_check_kept(main))
    findings.add(_check_ends(probe, main))
    findings.not_checked += _unreached(probe, main)

    actions = actions[: main.first_end + _REPLAY_STEPS]
    checks = [_check_seeds, _check_refusals]
    if where := _difference(main, _rollout(probe, actions, "repetition")):
        findings.add(
            [f"seed-repeat: reset(seed={probe.seed}) and the same actions gave another {where}; seed all draws"]
        )
        findings.not_checked.append("inputs, fresh-reused, partial resets: they compare runs, and no run repeats")
    else:
        checks += [_check_inputs, _check_reused, _check_ignored_actions, _check_partial_reset]
    for check in checks:
        try:
            findings.add(check(probe, main, actions))
        except _Broken as stop:
            findings.not_checked.append(f"the rest of {check.__name__.strip('_')}: {stop}")
    return num_steps, int(main.episodes.sum())


def _check_kept(run: _Run) -> Iterator[str]:
    """What was handed out must still be what it was, many steps and a reset later."""
    for record in (item for step in run.records for item in (step, step.restart) if item is not None):
        for name, tensor in record.live.items():
            if _changed_rows(record.copies[name][None], tensor.detach().cpu()[None]).any():
                yield f"fresh-kept: {name} of {record.where} was changed by later calls; return a new tensor every time"


def _check_ends(probe: _Probe, run: _Run) -> Iterator[str]:
    restarts, changed = run.restarts
    if restarts and not changed:
        # One equal pair may be chance, as observations can be discrete; all of them are not.
        final = _FINAL if probe.mode is AutoresetMode.SAME_STEP else "the terminal obs"
        yield (
            f"restart-obs: obs after an episode's end equals {final} in all of {restarts} cases in {probe.mode}; "
            f"reset the row, and take its terminal observation before that"
        )
    # Any other cause of truncation would not always strike one step before the limit.
    if probe.time_limit is not None and run.truncated_lengths == {probe.time_limit - 1}:
        yield (
            f"time-limit: max_episode_steps is {probe.time_limit}, but all truncations came at length "
            f"{probe.time_limit - 1}; compare after counting the step"
        )


def _unreached(probe: _Probe, run: _Run) -> Iterator[str]:
    """The parts of the contract that the main run says nothing about."""
    steps = len(run.records) - 1
    if not run.episodes.any():
        yield f"autoreset, episode statistics: no episode ended in {steps} steps; raise num_steps or lower the limit"
    elif run.episodes.max() < 2:
        yield f"statistics of a second episode: no row ended two in {steps} steps; raise num_steps"
    if probe.time_limit is None:
        yield "time limit: neither unwrapped.max_episode_steps nor spec.max_episode_steps is an int"
    elif probe.time_limit not in run.truncated_lengths:
        yield f"time limit: no episode was truncated at length {probe.time_limit} in {steps} steps"
    if probe.n == 1:
        yield "partial resets that leave other rows alone: there is one row only"


def _check_seeds(probe: _Probe, main: _Run, actions: list[Any]) -> Iterator[str]:
    other = _rollout(probe, actions[:_REPLAY_STEPS], "run with another seed", seed=probe.seed + 1)
    if _difference(main, other) is None:
        probe.findings.not_checked.append(f"that seeds matter: {probe.seed} and {probe.seed + 1} give the same run")
    seeds = [probe.seed + 100 + row for row in range(probe.n)]
    first, second = probe.reset(seed=list(seeds)), probe.reset(seed=list(seeds))
    if (rows := _changed_obs_rows(first.obs(), second.obs())).any():
        yield f"seed-list: reset(seed=[...]) gave other obs the second time, with the same list, in {_rows(rows)}"


def _check_refusals(probe: _Probe, main: _Run, actions: list[Any]) -> Iterator[str]:
    n = probe.n

    def accepts(**arguments: Any) -> bool:
        try:
            probe.env.reset(**arguments)
        except Exception:
            return False
        return True

    for wrong in (n - 1, n + 1):
        if accepts(seed=list(range(wrong))):
            yield f"seed-length: {wrong}-seed lists are accepted for {n} environments; raise, naming both numbers"
    row = torch.arange(n + 1) == 0
    for mask in (row[: n - 1], row, row[:n, None], row[:n].long(), row[:n].float()):
        for library, value in (("torch", mask.to(probe.device)), ("NumPy", mask.numpy())):
            if accepts(options={"reset_mask": value}):
                found = f"{mask.dtype}{list(mask.shape)}".replace(" ", "")
                yield f"mask-invalid: {found} as reset_mask ({library}) is accepted; raise, naming bool ({n},)"


def _check_inputs(probe: _Probe, main: _Run, actions: list[Any]) -> Iterator[str]:
    label = "run with NumPy actions"
    given = _rollout(probe, actions[:_REPLAY_STEPS], label, as_numpy=True, rule="numpy-actions")
    if where := _difference(main, given):
        yield f"numpy-actions: step gave another {where} for NumPy actions than for the same as tensors"
    space = probe.action_space
    if not isinstance(space, spaces.Box) or np.dtype(space.dtype).kind != "f" or not space.is_bounded("both"):
        probe.findings.not_checked.append("actions out of range: the action space is not a bounded Box of floats")
        return
    edges = [(space.high, space.low)[step % 2] for step in range(_SHORT_STEPS)]
    beyond = [edge + space.dtype.type((1, -1)[step % 2]) for step, edge in enumerate(edges)]
    inside = _rollout(probe, edges, "run with actions at the bounds")
    outside = _rollout(probe, beyond, "run with actions out of bounds", rule="action-range")
    if where := _difference(inside, outside):
        yield f"action-clip: step gave another {where} for actions 1 beyond the bounds than for those at them; clip"


def _check_reused(probe: _Probe, main: _Run, actions: list[Any]) -> Iterator[str]:
    """The environment must not read again what it has handed out: in-place learners write into it."""
    quiet = probe.quiet()
    try:
        run = _rollout(quiet, actions, "run that overwrites what is returned", overwrite=probe.findings)
        where = _difference(main, run)
    except _Broken:
        where = f"the behaviour of the environment ({quiet.findings.violations[-1]})"
    if where:
        yield f"fresh-reused: writing into what is returned changed {where}, later; return copies of the state"


def _check_ignored_actions(probe: _Probe, main: _Run, actions: list[Any]) -> Iterator[str]:
    resetting = [rows.numpy() for rows in main.pending[: len(actions)]]
    if not any(rows.any() for rows in resetting):
        return

    def mixed(rows: np.ndarray, action: Any, other: Any) -> Any:
        return _map_tree(lambda a, b: np.where(rows.reshape(-1, *[1] * (a.ndim - 1)), b, a), action, other)

    others = probe.sample_actions(len(actions), probe.seed + 1)
    changed = [mixed(*items) for items in zip(resetting, actions, others, strict=True)]
    if where := _difference(main, _rollout(probe, changed, "run with other actions for rows being reset")):
        yield f"next-step-action: step gave another {where} when only actions of rows being reset changed; ignore those"


def _check_partial_reset(probe: _Probe, main: _Run, actions: list[Any]) -> Iterator[str]:
    quiet = probe.quiet()
    mask = torch.arange(probe.n) % 2 == 0
    # In the middle of an episode, where a reset shows; and right at an end, where rows may be waiting for theirs.
    end = min(main.first_end or _SHORT_STEPS, len(actions))
    lines: list[str] = []
    moved, restarted, ends = 0, 0, 0
    for library, after, value in (("torch", max(1, end // 2), mask.to(probe.device)), ("NumPy", end, mask.numpy())):
        label = f"run with a partial reset ({library} mask) after step {after}"
        try:
            run = _rollout(quiet, actions[: after + _REPLAY_STEPS], label, mask=value, mask_after=after)
        except _Broken:
            yield from quiet.findings.violations
            raise
        record = run.records[after]
        assert record.masked is not None, "mask_after lies within the actions"
        before = (record.restart or record).obs()
        changed = _changed_obs_rows(before, record.masked.obs())
        if (rows := changed & ~mask).any():
            lines.append(
                f"mask-others: reset_mask after step {after} changed the obs of {_rows(rows)}, not in the mask"
            )
        if where := _difference(main, run, ~mask, after):
            lines.append(f"mask-others-later: reset_mask after step {after} changed {where}, not in the mask")
        moved += int((mask & _changed_obs_rows(run.records[0].obs(), before)).sum())
        restarted += int((mask & changed).sum())
        ends += run.masked_ends
    if moved and not restarted:
        lines.append(f"mask-rows: reset_mask never changed the obs of the rows in the mask, {_rows(mask)}; reset them")
    # Rows that were or were not reset against the account make it wrong in many ways, for one reason.
    yield from lines or quiet.findings.violations
    if not ends:
        probe.findings.not_checked.append(
            f"statistics after a partial reset: no such episode ended within {_REPLAY_STEPS} steps"
        )


def _check_close(probe: _Probe) -> Iterator[str]:
    (action,) = probe.sample_actions(1, probe.seed)
    for call in ("first", "second"):
        try:
            probe.env.close()
        except Exception as error:
            yield f"close-raises: close raised {type(error).__name__}({error}) the {call} time; let it do nothing more"
    try:
        probe.env.step(_map_tree(lambda array: torch.tensor(array, device=probe.device), action))
    except Exception:
        return
    yield "close-step: step returned after close; raise an error that says the environment is closed"
