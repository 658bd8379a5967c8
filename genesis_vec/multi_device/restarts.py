"""What the caller sees of environments whose worker was lost and replaced: a truncated episode, then a new one."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from gymnasium.vector import AutoresetMode

from genesis_vec.batches import Observation, map_observation
from genesis_vec.multi_device.receiver import Receiver
from genesis_vec.multi_device.transport import Path
from genesis_vec.multi_device.worker import WorkerReport


@dataclasses.dataclass(frozen=True)
class Lost:
    """What is known of a lost worker's environments.

    Attributes:
        obs: The last observations that the caller got of all environments.
        terminated: Those whose episode had been over, and had not started anew, by termination; bool (num_envs,).
        truncated: Likewise by truncation.
        returns: float32 (rows,), the running episodes' returns; None where the scenes do not tell.
        lengths: int64 (rows,), their lengths in steps, likewise.
    """

    obs: Observation
    terminated: torch.Tensor
    truncated: torch.Tensor
    returns: torch.Tensor | None
    lengths: torch.Tensor | None


def restart_seed(seed: int | Sequence[int | None], restarts: int) -> int | list[int]:
    """The seed of a replaced worker's streams: another one, so that its episodes are not the ones it had before."""

    def moved(value: int) -> int:
        # The multiplier is 2**64 over the golden ratio: far from any seed near the first one.
        return (value + restarts * 0x9E3779B97F4A7C15) % (1 << 64)

    return moved(seed) if isinstance(seed, int) else [moved(value or 0) for value in seed]


def fill_lost_rows(
    receiver: Receiver, index: int, rows: slice, report: WorkerReport, mode: AutoresetMode | None, lost: Lost
) -> None:
    """Writes the results of the step that a worker was lost in into its replacement's buffers.

    Args:
        receiver: Where the buffers are; they hold the replacement's first observations.
        index: The worker's number.
        rows: Its rows.
        report: What a step gives.
        mode: The autoreset mode.
        lost: What is known of the lost ones.
    """
    was_over = (lost.terminated | lost.truncated)[rows]
    cut = ~was_over
    values: dict[Path, Any] = {("truncated",): cut, ("info", "fault"): cut}
    if mode is AutoresetMode.DISABLED:
        # An ended environment that nobody reset goes on showing how it ended.
        values[("terminated",)] = lost.terminated[rows]
        values[("truncated",)] = cut | lost.truncated[rows]
    last_obs = map_observation(lambda leaf: leaf[rows], lost.obs)
    if mode is not AutoresetMode.SAME_STEP:
        values.update(_under(("obs",), last_obs))
    values.update(_under(("info", "final_obs"), last_obs))
    for name in ("_episode", "_final_obs", "_final_info"):
        values[("info", name)] = cut
    for name, value in (("r", lost.returns), ("l", lost.lengths)):
        if value is not None:
            values[("info", "episode", name)] = value.to(cut.device) * cut
    for leaf in report.step_leaves:
        target = receiver.rows(index, leaf.path)
        if leaf.path in values:
            target.copy_(values[leaf.path])
        elif leaf.path[0] != "obs":
            target.zero_()


def _under(path: Path, value: Observation) -> dict[Path, torch.Tensor]:
    if isinstance(value, dict):
        return {(*path, key): leaf for key, leaf in value.items()}
    return {path: value}
