"""SB3VecEnv: a vector environment of torch tensors as stable-baselines3 takes it, in NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv

from genesis_vec.adapters.common import check_env
from genesis_vec.batches import leaves, map_observation
from genesis_vec.extras import library

with library("stable_baselines3", "sb3"):
    from stable_baselines3.common.monitor import Monitor
    from stable_baselines3.common.vec_env import VecEnv

# What the widest type needs, so that each array begins where its type may.
_ALIGNMENT = 8


class SB3VecEnv(VecEnv):
    """A vector environment as stable-baselines3's algorithms take it: NumPy arrays, and a dict of infos for each row.

    In the step that ends an episode the row's info has "terminal_observation", "TimeLimit.truncated" (true for a time
    limit or a fault, never for a termination), "episode" with return "r", length "l" and seconds "t", as a Monitor
    gives it, and the task's metrics, "success" also as "is_success". Other rows' infos are empty, and the same dicts in
    every step: do not write to them.

    What a step gives comes to the host in one copy, and the last observations of the episodes that ended in a second
    one. On the CPU nothing but the rewards, into which stable-baselines3 writes, is copied.

    Args:
        env: An environment in SAME_STEP mode.

    Attributes:
        env: The environment.

    Raises:
        TypeError, ValueError: If the environment is not of the package's contract or in another mode.
    """

    def __init__(self, env: VectorEnv) -> None:
        self.device = check_env(
            env,
            "SB3VecEnv",
            AutoresetMode.SAME_STEP,
            "stable-baselines3 takes every observation after an episode's end for the next episode's first",
        )
        self.env = env
        self._copies = self.device.type != "cpu"
        self._empty_infos: list[dict[str, Any]] = [{} for _ in range(env.num_envs)]
        self._actions: np.ndarray | None = None
        super().__init__(env.num_envs, env.single_observation_space, env.single_action_space)

    # ----------------------------------------------------------------------------------------------- reset and step

    def reset(self) -> Any:
        """Starts new episodes, with the seed and the options given since the last time.

        Returns:
            Observations (num_envs, …), an array or a dict of arrays.

        Raises:
            ValueError: If :meth:`set_options` gave environments different options.
        """
        if any(options != self._options[0] for options in self._options):
            raise ValueError("set_options() gave environments different options: give all the same")
        # One seed for all: each environment draws its own from it by its index, whatever their number.
        observations, _ = self.env.reset(seed=self._seeds[0], options=self._options[0] or None)
        self.reset_infos = list(self._empty_infos)
        self._reset_seeds()
        self._reset_options()
        keys, tensors = _take_apart(observations)
        return _put_together(keys, self._to_host(tensors))

    def step_async(self, actions: np.ndarray) -> None:
        """Keeps the actions (num_envs, …) for :meth:`step_wait`."""
        self._actions = actions

    def step_wait(self) -> tuple[Any, np.ndarray, np.ndarray, list[dict[str, Any]]]:
        """Takes a step in every environment.

        Returns:
            Observations (num_envs, …), rewards float32 (num_envs,), whether the episode ended bool (num_envs,), infos.
        """
        assert self._actions is not None, "step_async() comes first"
        observations, rewards, terminated, truncated, info = self.env.step(self._actions)
        keys, tensors = _take_apart(observations)
        # Statistics come along in the same copy: whether there are any is known on the host only after it.
        statistics = info.get("episode", {})
        metrics = _metrics(info.get("final_info", {}), self.num_envs)
        tensors += [rewards, terminated, truncated, *statistics.values(), *metrics.values()]
        arrays = iter(self._to_host(tensors))
        observations = _put_together(keys, [next(arrays) for _ in leaves(observations)])
        rewards, terminated, truncated = next(arrays), next(arrays), next(arrays)
        dones = terminated | truncated
        infos = list(self._empty_infos)
        rows = np.flatnonzero(dones)
        if len(rows):
            final = self._rows_to_host(info["final_obs"], rows)
            time_limits = (truncated & ~terminated)[rows].tolist()
            episodes = _rows_of({name: next(arrays) for name in statistics}, rows)
            ends = _rows_of({name: next(arrays) for name in metrics}, rows)
            for place, row in enumerate(rows.tolist()):
                infos[row] = {
                    **ends[place],
                    "episode": episodes[place],
                    "terminal_observation": map_observation(lambda leaf, place=place: leaf[place], final),
                    "TimeLimit.truncated": time_limits[place],
                }
        # stable-baselines3 adds a time limit's bootstrap in place, and the tensor is not only ours.
        return observations, rewards if self._copies else rewards.copy(), dones, infos

    def _rows_to_host(self, final_obs: Any, rows: np.ndarray) -> Any:
        keys, tensors = _take_apart(final_obs)
        index = torch.as_tensor(rows, device=self.device)
        return _put_together(keys, self._to_host([tensor[index] for tensor in tensors]))

    def _to_host(self, tensors: Sequence[torch.Tensor]) -> list[np.ndarray]:
        """Arrays of the tensors' values, which are views of them on the CPU; from a device they come in one copy."""
        if not self._copies:
            return [tensor.numpy() for tensor in tensors]
        parts, starts, size = [], [], 0
        for tensor in tensors:
            flat = tensor.reshape(-1).view(torch.uint8)
            padding = -flat.numel() % _ALIGNMENT
            parts += [flat, flat.new_empty(padding)]
            starts.append(size)
            size += flat.numel() + padding
        block = torch.cat(parts).cpu().numpy()
        return [
            block[start : start + tensor.nbytes].view(_NUMPY_TYPES[tensor.dtype]).reshape(tensor.shape)
            for start, tensor in zip(starts, tensors, strict=True)
        ]

    # ------------------------------------------------------------------------------------- the rest of the interface

    def close(self) -> None:
        """Closes the environment."""
        self.env.close()

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """An attribute of the vector environment, or of a wrapper around it: the same for each index.

        Raises:
            AttributeError: If there is none.
        """
        return [getattr(self._owner(attr_name), attr_name)] * len(list(self._get_indices(indices)))

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """Sets an attribute of the vector environment, or of a wrapper around it that has it already.

        Raises:
            ValueError: For some of the environments only.
        """
        self._require_all("set_attr", attr_name, indices)
        try:
            owner = self._owner(attr_name)
        except AttributeError:
            owner = self.env.unwrapped
        setattr(owner, attr_name, value)

    def env_method(self, method_name: str, *method_args: Any, indices: Any = None, **method_kwargs: Any) -> list[Any]:
        """Calls a method of the vector environment, or of a wrapper around it, once; its result for each index.

        Raises:
            ValueError: For some of the environments only.
        """
        self._require_all("env_method", method_name, indices)
        result = getattr(self._owner(method_name), method_name)(*method_args, **method_kwargs)
        return [result] * self.num_envs

    def env_is_wrapped(self, wrapper_class: type, indices: Any = None) -> list[bool]:
        """Whether a wrapper of the class is around the environment; true for Monitor, whose infos are given."""
        is_wrapped = wrapper_class is Monitor or any(isinstance(env, wrapper_class) for env in self._chain())
        return [is_wrapped] * len(list(self._get_indices(indices)))

    def get_images(self) -> Sequence[np.ndarray | None]:
        """A frame of each environment, uint8 (height, width, 3), or None without a render mode."""
        frames: Any = self.env.render()
        return [None] * self.num_envs if frames is None else list(frames)

    def _chain(self) -> list[Any]:
        """The environment's wrappers, outermost first, and the environment."""
        chain: list[Any] = [self.env]
        while chain[-1] is not chain[-1].unwrapped:
            chain.append(chain[-1].env)
        return chain

    def _owner(self, name: str) -> Any:
        for env in self._chain():
            if hasattr(env, name):
                return env
        raise AttributeError(f"neither {type(self.env.unwrapped).__name__} nor a wrapper around it has {name!r}")

    def _require_all(self, call: str, name: str, indices: Any) -> None:
        if len(list(self._get_indices(indices))) != self.num_envs:
            raise ValueError(
                f"{call}({name!r}, indices={indices!r}): the environments are one object, so that it holds for all of "
                "them; leave indices=None"
            )


_NUMPY_TYPES = {torch.from_numpy(np.empty(0, dtype)).dtype: dtype for dtype in "?bBhilfd"}


def _take_apart(observations: Any) -> tuple[list[str] | None, list[torch.Tensor]]:
    """The keys of a dict, None for a tensor, and a new list of the tensors."""
    return (list(observations) if isinstance(observations, dict) else None), list(leaves(observations))


def _put_together(keys: list[str] | None, arrays: list[np.ndarray]) -> Any:
    return arrays[0] if keys is None else dict(zip(keys, arrays, strict=True))


def _metrics(final_info: dict[str, Any], num_envs: int) -> dict[str, torch.Tensor]:
    """What an episode's info says at its end in one number, under stable-baselines3's name where it has one."""
    metrics = {
        name: value
        for name, value in final_info.items()
        if isinstance(value, torch.Tensor) and value.shape == (num_envs,) and not name.startswith("_")
    }
    return {**metrics, "is_success": metrics["success"]} if "success" in metrics else metrics


def _rows_of(columns: dict[str, np.ndarray], rows: np.ndarray) -> list[dict[str, Any]]:
    """A dict of plain values for each of the rows."""
    if not columns:
        return [{} for _ in rows]
    chosen = [column[rows].tolist() for column in columns.values()]
    return [dict(zip(columns, values, strict=True)) for values in zip(*chosen, strict=True)]
