"""Torch-native vector wrappers: for every autoreset mode, with every tensor on the environment's device.

None writes into a tensor or a dict it did not make, and but for the recorders none reads a tensor's value on the host
while stepping.
"""

from genesis_vec.wrappers.episode_statistics import RecordEpisodeStatistics
from genesis_vec.wrappers.normalize import NormalizeObservation, NormalizeReward
from genesis_vec.wrappers.record_trajectories import RecordTrajectories
from genesis_vec.wrappers.record_video import RecordVideo
from genesis_vec.wrappers.transform import (
    ChannelsFirst,
    ClipAction,
    ClipReward,
    FlattenObservation,
    RescaleAction,
    TransformObservation,
)

__all__ = [
    "ChannelsFirst",
    "ClipAction",
    "ClipReward",
    "FlattenObservation",
    "NormalizeObservation",
    "NormalizeReward",
    "RecordEpisodeStatistics",
    "RecordTrajectories",
    "RecordVideo",
    "RescaleAction",
    "TransformObservation",
]
