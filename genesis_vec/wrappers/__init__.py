"""Torch-native vector wrappers: for every autoreset mode, with every tensor on the environment's device.

None reads a tensor's value on the host while stepping, and none writes into a tensor or a dict it did not make.
"""

from genesis_vec.wrappers.episode_statistics import RecordEpisodeStatistics
from genesis_vec.wrappers.normalize import NormalizeObservation, NormalizeReward
from genesis_vec.wrappers.transform import (
    ClipAction,
    ClipReward,
    FlattenObservation,
    RescaleAction,
    TransformObservation,
)

__all__ = [
    "ClipAction",
    "ClipReward",
    "FlattenObservation",
    "NormalizeObservation",
    "NormalizeReward",
    "RecordEpisodeStatistics",
    "RescaleAction",
    "TransformObservation",
]
