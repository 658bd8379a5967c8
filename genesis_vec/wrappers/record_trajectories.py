"""Writes every finished episode into a dataset of the Minari format."""

from __future__ import annotations

import dataclasses
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv

from genesis_vec.batches import map_observation
from genesis_vec.errors import DatasetError
from genesis_vec.extras import library
from genesis_vec.wrappers.base import StepResult, TorchVectorWrapper
from genesis_vec.wrappers.episodes import EpisodeBoundaries


@dataclasses.dataclass(frozen=True)
class _Step:
    """One step of all environments, on the host."""

    observations: Any  # before it
    actions: np.ndarray
    rewards: np.ndarray
    terminations: np.ndarray
    truncations: np.ndarray


def check_dataset_folder(folder: Path) -> None:
    """Raises DatasetError for a folder that holds something already."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise DatasetError(f"{folder} is there already: give a new folder for the dataset")


class RecordTrajectories(TorchVectorWrapper):
    """Writes every finished episode to disk: observations, actions, rewards, flags and where its draws came from.

    The folder is a dataset of Minari (https://minari.farama.org), HDF5 files with their spaces beside them, and
    ``minari.MinariDataset(folder / "data")`` reads it. Each episode has one observation more than actions, the last one
    being what it ended with; actions are as the environment was given them. Its metadata name "seed", "env_index" (the
    row) and "episode" (how many that row had begun since its seed was set), from which the environment's random numbers
    follow, and "fault", whether the environment was at fault.

    Every step is copied to the host: not for training at full speed. Episodes that have not ended are not written.

    Args:
        env: The environment to wrap.
        folder: A new folder.
        name: The dataset's id in Minari's form, "name-v0"; after the environment's id by default.

    Raises:
        LibraryNotFoundError: If the extra "dataset" is missing.
        DatasetError: If the folder holds something already.
    """

    def __init__(self, env: VectorEnv, folder: Path | str, name: str | None = None) -> None:
        super().__init__(env)
        with library("minari", "dataset", "h5py"):
            import h5py  # noqa: F401 - minari imports it later, and would not name the extra
            import minari
            from minari.dataset.minari_storage import MinariStorage
        # Whole, since the library joins a relative one to itself when it asks for the files' sizes.
        folder = Path(folder).absolute()
        check_dataset_folder(folder)
        folder.mkdir(parents=True, exist_ok=True)
        space = env.single_observation_space
        self._storage = MinariStorage.new(
            folder / "data", observation_space=space, action_space=env.single_action_space, data_format="hdf5"
        )
        spec = env.spec.id if env.spec is not None else type(env.unwrapped).__name__
        if name is None:
            name = f"genesis-vec/{'trajectories-v0' if env.spec is None else env.spec.id}"
        self._storage.update_metadata(
            {"dataset_id": name, "minari_version": minari.__version__, "algorithm_name": f"genesis_vec, {spec}"}
        )
        self._boundaries = EpisodeBoundaries(self.autoreset_mode, self.num_envs, self.device)
        # Steps that some running episode has a part in, the first of them the _first_step-th.
        self._steps: deque[_Step] = deque()
        self._first_step = 0
        self._start = np.zeros(self.num_envs, dtype=np.int64)
        self._seeds: list[int | None] = [None] * self.num_envs
        self._episodes = np.full(self.num_envs, -1)
        self._observations: Any = None
        self.num_episodes = 0

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset; what the reset rows had begun is not written."""
        observations, info = self.env.reset(seed=seed, options=options)
        rows = self._reset_rows(options)
        self._boundaries.reset(rows)
        for row in rows.nonzero()[:, 0].tolist():
            given = seed[row] if isinstance(seed, list) else seed
            self._start[row] = self._end
            self._episodes[row] += 1
            if given is not None:
                self._seeds[row], self._episodes[row] = int(given), 0
        self._observations = _on_host(observations)
        return observations, info

    def step(self, actions: Any) -> StepResult:
        """Step, and write the episodes that ended."""
        result = self.env.step(actions)
        observations, rewards, terminations, truncations, info = result
        running, ended = self._boundaries.step(terminations | truncations)
        self._steps.append(
            _Step(
                self._observations,
                np.asarray(_on_host(torch.as_tensor(actions)), dtype=np.float32),
                *(_on_host(value) for value in (rewards, terminations, truncations)),
            )
        )
        final = info["final_obs"] if self.autoreset_mode is AutoresetMode.SAME_STEP else observations
        rows = ended.nonzero()[:, 0].tolist()
        if rows:
            self._write(rows, _on_host(final), _on_host(info["fault"]) if "fault" in info else None)
        self._start[(ended | ~running).cpu().numpy()] = self._end
        while self._steps and self._first_step < self._start.min():
            self._steps.popleft()
            self._first_step += 1
        self._observations = _on_host(observations)
        return result

    def _write(self, rows: list[int], final: Any, fault: np.ndarray | None) -> None:
        from minari.data_collector import EpisodeBuffer

        buffers, metadata = [], []
        for row in rows:
            steps = [self._steps[index - self._first_step] for index in range(self._start[row], self._end)]
            observations = [step.observations for step in steps]
            buffers.append(
                EpisodeBuffer(
                    id=self.num_episodes + len(buffers),
                    seed=self._seeds[row],
                    observations=_column([*observations, final], row),
                    actions=np.stack([step.actions[row] for step in steps]),  # type: ignore[arg-type]
                    rewards=[step.rewards[row] for step in steps],
                    terminations=[step.terminations[row] for step in steps],
                    truncations=[step.truncations[row] for step in steps],
                )
            )
            metadata.append(
                {
                    "env_index": row,
                    "episode": int(self._episodes[row]),
                    "fault": bool(fault is not None and fault[row]),
                }
            )
            if self.autoreset_mode is not AutoresetMode.DISABLED:
                self._episodes[row] += 1
        self._storage.update_episodes(buffers)
        self._storage.update_episode_metadata(metadata, range(self.num_episodes, self.num_episodes + len(rows)))
        self.num_episodes += len(rows)

    @property
    def _end(self) -> int:
        return self._first_step + len(self._steps)


def _on_host(values: Any) -> Any:
    """NumPy arrays of a tensor or a dict of tensors, as they are now."""
    return map_observation(lambda value: value.detach().cpu().numpy().copy(), values)


def _column(observations: list[Any], row: int) -> Any:
    """One row's observations in time, an array or a dict of arrays."""
    if isinstance(observations[0], dict):
        return {key: np.stack([step[key][row] for step in observations]) for key in observations[0]}
    return np.stack([step[row] for step in observations])
