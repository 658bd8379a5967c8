"""What several wrapper tests need: the three modes, environments that tell on misuse, and a check for host reads."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from torch.utils._python_dispatch import TorchDispatchMode

from tests.fakes import CounterEnv

ALL_MODES = pytest.mark.parametrize("mode", list(AutoresetMode), ids=lambda mode: mode.name)


def tensors_in(value: Any) -> list[torch.Tensor]:
    """All tensors in nested tuples and dicts."""
    if isinstance(value, torch.Tensor):
        return [value]
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, tuple) else ()
    return [tensor for part in parts for tensor in tensors_in(part)]


class Snapshot:
    """The tensors in a value and what they held when it was taken."""

    def __init__(self, value: Any) -> None:
        self.pairs = [(tensor, tensor.clone()) for tensor in tensors_in(value)]

    def assert_unchanged(self) -> None:
        for tensor, before in self.pairs:
            torch.testing.assert_close(tensor, before, rtol=0, atol=0, equal_nan=True)


class WatchedEnv(CounterEnv):
    """A CounterEnv that remembers what it handed out, to show afterwards that nobody wrote into it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.infos: list[tuple[dict, dict]] = []
        self.snapshots: list[Snapshot] = []

    def _watch(self, result: tuple) -> tuple:
        info = result[-1]
        self.snapshots.append(Snapshot(result))
        for each in (info, info.get("final_info"), info.get("episode")):
            if each is not None:
                self.infos.append((each, dict(each)))
        return result

    def reset(self, **kwargs: Any) -> tuple:
        return self._watch(super().reset(**kwargs))

    def step(self, actions: Any) -> tuple:
        return self._watch(super().step(actions))

    def assert_untouched(self) -> None:
        assert self.snapshots
        for snapshot in self.snapshots:
            snapshot.assert_unchanged()
        for info, before in self.infos:
            assert info.keys() == before.keys()
            assert all(info[key] is before[key] for key in before)


class ScriptedEnv(VectorEnv):
    """Rewards, terminations and truncations of each step as given; observations are the rewards, in a column."""

    def __init__(self, rewards: list[list[float]], terminated: list[list[int]], mode: AutoresetMode) -> None:
        self.num_envs = len(rewards[0])
        self.device = torch.device("cpu")
        self.metadata = {"autoreset_mode": mode}
        self.single_observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)
        self.single_action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self.script = iter(zip(rewards, terminated, strict=True))

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[torch.Tensor, dict]:
        return torch.zeros(self.num_envs, 1), {}

    def step(self, actions: Any) -> tuple:
        rewards, terminated = next(self.script)
        reward = torch.tensor(rewards)
        return reward[:, None], reward, torch.tensor(terminated).bool(), torch.zeros(self.num_envs).bool(), {}


class MetaEnv(VectorEnv):
    """An environment on torch's meta device, whose tensors have no values: reading one on the host raises."""

    def __init__(self, mode: AutoresetMode, dict_obs: bool = False) -> None:
        self.num_envs = 3
        self.device = torch.device("meta")
        self.metadata = {"autoreset_mode": mode}
        box = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.single_observation_space = spaces.Dict({"a": box, "b": box}) if dict_obs else box
        self.single_action_space = box
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(box, self.num_envs)
        self.dict_obs = dict_obs
        self.received: list[Any] = []

    def _empty(self, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.empty(self.num_envs, *shape, dtype=dtype, device=self.device)

    def _observe(self) -> Any:
        return {"a": self._empty(2), "b": self._empty(2)} if self.dict_obs else self._empty(2)

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict]:
        return self._observe(), {}

    def step(self, actions: Any) -> tuple:
        self.received.append(actions)
        mask = self._empty(dtype=torch.bool)
        info = {"final_obs": self._observe(), "_final_obs": mask, "final_info": {}, "_final_info": mask}
        return self._observe(), self._empty(), mask, self._empty(dtype=torch.bool), info


class ForbidHostReads(TorchDispatchMode):
    """Fails on operations that make the host wait for a GPU: reading a value, or a shape that depends on values."""

    FORBIDDEN = ("_local_scalar_dense", "nonzero", "masked_select", "is_nonzero", "equal", "unique")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        indices = args[1] if name in ("index", "index_put", "index_put_") else ()
        by_mask = any(index is not None and index.dtype is torch.bool for index in indices)
        # torch.where wraps a Python number in a tensor on the CPU, which it then copies to the device and waits.
        wraps_a_number = name == "where" and any(isinstance(arg, torch.Tensor) and arg.dim() == 0 for arg in args[1:])
        if name in self.FORBIDDEN or by_mask or wraps_a_number:
            raise AssertionError(f"{func} makes the host wait for the device")
        return func(*args, **(kwargs or {}))


def exempt_engine(env: Any, monkeypatch: pytest.MonkeyPatch, exempting: Callable[[], Any]) -> None:
    """Runs the engine's own calls, in which the package has no say, under another context manager."""
    calls = [(env.scene, "step"), (env.scene, "reset")]
    calls += [(entity, name) for entity in env.scene.entities for name in ("set_qpos", "set_dofs_velocity")]
    for owner, name in calls:
        method = getattr(owner, name)

        @functools.wraps(method)
        def call(*args: Any, method: Callable[..., Any] = method, **kwargs: Any) -> Any:
            with exempting():
                return method(*args, **kwargs)

        monkeypatch.setattr(owner, name, call)
