"""Per-environment random streams: what one environment draws does not depend on the others.

Every number is a pure function of (seed, global environment index, episode, position in the episode), so it is the
same whatever the number of environments, scenes, workers, devices, ranks or nodes, and in whatever order environments
are reset. No global generator is read or written.

The function is the SplitMix64 generator (Steele, Lea & Flood, "Fast splittable pseudorandom number generators",
OOPSLA 2014) with Stafford's 13th mixing constants, addressed by position instead of stepped: draw number j of an
episode is ``mix(episode_key + j * GAMMA)``. Keys are derived from one another by the same mixing. It takes a dozen
integer operations for a whole batch, which is less than any counter-based generator of the Philox family costs when
written in torch operations.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch


def _signed(value: int) -> int:
    """The 64-bit two's complement of an unsigned integer: torch has no unsigned 64-bit arithmetic."""
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >= 1 << 63 else value


_GAMMA = _signed(0x9E3779B97F4A7C15)
_MIX_1 = _signed(0xBF58476D1CE4E5B9)
_MIX_2 = _signed(0x94D049BB133111EB)


def _shift_right(z: torch.Tensor, bits: int) -> torch.Tensor:
    # torch shifts arithmetically; the mask removes the copies of the sign bit.
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def _mix(z: torch.Tensor) -> torch.Tensor:
    z = (z ^ _shift_right(z, 30)) * _MIX_1
    z = (z ^ _shift_right(z, 27)) * _MIX_2
    return z ^ _shift_right(z, 31)


def check_seed(seed: Any) -> int:
    """The two's complement of a seed.

    Raises:
        ValueError: If it is not an integer from 0 to 2**64 - 1.
    """
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise ValueError(f"a seed must be a non-negative integer, got {seed!r}")
    if seed >= 1 << 64:
        raise ValueError(f"a seed must be below 2**64, got {seed!r}")
    return _signed(seed)


class Draws:
    """Draws for the rows of a mask: what :meth:`Task.reset` gets, so that other rows' streams do not move.

    Each method returns a full batch of ``num_envs`` rows on the streams' device; only the rows of the mask are meant
    to be used, and only their streams advance.
    """

    def __init__(self, streams: EnvStreams, mask: torch.Tensor | None) -> None:
        self._streams = streams
        self._mask = mask

    def uniform(self, *shape: int, low: float | torch.Tensor = 0.0, high: float | torch.Tensor = 1.0) -> torch.Tensor:
        """Draws from the uniform distribution on [low, high).

        Args:
            *shape: Shape of one environment's draw.
            low: Lower bound, a number or a tensor that broadcasts against (num_envs, *shape).
            high: Upper bound, likewise.

        Returns:
            float32 tensor (num_envs, *shape).
        """
        # 24 bits are what a float32 significand holds, so every value is exact and 1.0 is never reached.
        unit = _shift_right(self._bits(shape), 40).to(torch.float32) * 2.0**-24
        return low + (high - low) * unit

    def normal(self, *shape: int) -> torch.Tensor:
        """Draws from the standard normal distribution by the transform of Box and Muller (1958).

        Args:
            *shape: Shape of one environment's draw.

        Returns:
            float32 tensor (num_envs, *shape); no value exceeds 6.7 in magnitude.
        """
        bits = self._bits(shape)
        # In float64, so that the last-bit differences between the log and cos of devices round away in float32.
        radius_draw = (_shift_right(bits, 32).to(torch.float64) + 1.0) * 2.0**-32
        angle_draw = (bits & 0xFFFFFFFF).to(torch.float64) * (2.0 * math.pi * 2.0**-32)
        return ((-2.0 * radius_draw.log()).sqrt() * angle_draw.cos()).to(torch.float32)

    def integers(self, low: int, high: int, *shape: int) -> torch.Tensor:
        """Draws integers uniformly from {low, …, high - 1}.

        Args:
            low: Smallest value.
            high: One more than the largest value; ``high - low`` may be at most 2**31 (the modulo's bias is then
                below 2**-32).
            *shape: Shape of one environment's draw.

        Returns:
            int64 tensor (num_envs, *shape).

        Raises:
            ValueError: If the range is empty or too wide.
        """
        if not 0 < high - low <= 1 << 31:
            raise ValueError(f"integers({low}, {high}): high - low must lie in 1 … 2**31")
        return low + _shift_right(self._bits(shape), 1) % (high - low)

    def _bits(self, shape: tuple[int, ...]) -> torch.Tensor:
        return self._streams._draw(shape, self._mask)


class EnvStreams:
    """The random streams of a batch of environments, one per environment.

    Args:
        num_envs: Number of environments in this batch.
        device: Where the draws are made.
        first_env_index: Global index of this batch's first environment; a batch that is one part of a larger one
            then draws what the larger one would draw in its place.
    """

    def __init__(self, num_envs: int, device: torch.device, first_env_index: int = 0) -> None:
        self.num_envs = num_envs
        self.device = device
        self.first_env_index = first_env_index
        self._indices = torch.arange(first_env_index, first_env_index + num_envs, dtype=torch.int64, device=device)
        self._env_keys = torch.zeros_like(self._indices)
        self._episodes = torch.full_like(self._indices, -1)
        self._episode_keys = torch.zeros_like(self._indices)
        self._positions = torch.zeros_like(self._indices)
        self._offsets: dict[tuple[int, ...], torch.Tensor] = {}
        self.is_seeded = False

    def seed(self, seed: int | Sequence[int | None], mask: torch.Tensor | None = None) -> None:
        """Sets the streams' seeds; the next :meth:`begin_episode` starts episode 0.

        Args:
            seed: One seed for all (environment i then has the stream of (seed, global index i)), or a list with one
                seed per environment (environment i then has the stream that the environment of global index 0 has
                under its seed, wherever it stands; None leaves an environment as it is).
            mask: bool (num_envs,); the environments to seed, all by default.

        Raises:
            ValueError: If a seed is not a non-negative integer, or the list has another length than num_envs.
        """
        if isinstance(seed, Sequence) and not isinstance(seed, str):
            if len(seed) != self.num_envs:
                raise ValueError(f"got a list of {len(seed)} seeds for {self.num_envs} environments")
            given = torch.tensor([value is not None for value in seed], device=self.device)
            mask = given if mask is None else given & mask
            seeds = torch.tensor([0 if value is None else check_seed(value) for value in seed], device=self.device)
            keys = _mix(_mix(seeds + _GAMMA) + _GAMMA)
        else:
            keys = _mix(_mix(torch.full_like(self._indices, check_seed(seed)) + _GAMMA) + (self._indices + 1) * _GAMMA)
        self._env_keys = keys if mask is None else torch.where(mask, keys, self._env_keys)
        self._episodes = torch.full_like(self._episodes, -1) if mask is None else self._episodes.masked_fill(mask, -1)
        self.is_seeded = True

    def begin_all(self, episode: int) -> None:
        """Moves all streams to the start of an episode, whichever they are in.

        Args:
            episode: Its number, from 0.
        """
        self._episodes = torch.full_like(self._episodes, episode - 1)
        self.begin_episode(torch.ones_like(self._episodes, dtype=torch.bool))

    def begin_episode(self, mask: torch.Tensor) -> None:
        """Moves the masked environments' streams to the start of their next episode.

        Args:
            mask: bool (num_envs,).
        """
        self._episodes = self._episodes + mask
        keys = _mix(self._env_keys + (self._episodes + 1) * _GAMMA)
        self._episode_keys = torch.where(mask, keys, self._episode_keys)
        self._positions = self._positions.masked_fill(mask, 0)

    def select(self, mask: torch.Tensor | None) -> Draws:
        """Draws that advance the masked environments' streams only (all for None)."""
        return Draws(self, mask)

    def _draw(self, shape: tuple[int, ...], mask: torch.Tensor | None) -> torch.Tensor:
        """Raw int64 bits (num_envs, *shape)."""
        offsets = self._offsets.get(shape)
        if offsets is None:
            # Kept, so that a draw on the hot path neither allocates nor fills it again.
            count = math.prod(shape)
            offsets = (torch.arange(1, count + 1, dtype=torch.int64, device=self.device) * _GAMMA).reshape(shape)
            self._offsets[shape] = offsets
        count = math.prod(shape)
        base = (self._episode_keys + self._positions * _GAMMA).reshape(-1, *(1 for _ in shape))
        self._positions = self._positions + (count if mask is None else mask * count)
        return _mix(base + offsets)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """The streams' state: int64 tensors (num_envs,), copied."""
        names = ("_env_keys", "_episodes", "_episode_keys", "_positions")
        return {name.removeprefix("_"): getattr(self, name).clone() for name in names}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        """Puts back what :meth:`state_dict` gave."""
        for name, value in state.items():
            setattr(self, f"_{name}", value.to(self.device, copy=True))
        self.is_seeded = True
