"""Environments for rsl_rl, whose runner takes one vector environment of torch tensors."""

from __future__ import annotations

from typing import Any

import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv

from genesis_vec.adapters.common import check_env
from genesis_vec.batches import ordinary_tensors
from genesis_vec.extras import library

with library("rsl_rl", "rsl-rl", "tensordict"):
    from rsl_rl.env import VecEnv
    from tensordict import TensorDict

# For tasks without a time limit: rsl_rl wants a number, to draw episodes' first steps below it.
_NO_LIMIT = 1000


class RslRlVecEnv(VecEnv):
    """A vector environment as rsl_rl's runners take it.

    Observations in a Box are the group "policy". Those in a Dict are groups under their own names, which the runner's
    ``obs_groups`` gives to actor and critic, such as ``{"actor": ["policy"], "critic": ["policy", "critic"]}``.

    rsl_rl bootstraps a time limit with γ·V(s_t), the value of the observation before the last step; it has no use for
    the final one. ``extras["time_outs"]`` marks truncations, faults included, and never a termination.

    Under torchrun with a GPU pinned to each rank (:meth:`genesis_vec.Job.pin`), make the runner with
    ``device="cuda:0"`` in the context :func:`genesis_vec.adapters.common.only_gpu_as_local_rank`.

    Args:
        env: An environment in SAME_STEP mode.
        seed: Seed of the environments; None draws one.

    Attributes:
        env: The environment.
        cfg: Its settings, which rsl_rl's loggers keep.

    Raises:
        TypeError, ValueError: If the environment is not of the package's contract or in another mode.
    """

    def __init__(self, env: VectorEnv, seed: int | None = None) -> None:
        self.device = check_env(
            env, "RslRlVecEnv", AutoresetMode.SAME_STEP, "rsl_rl would take the step that resets for one of an episode"
        )
        self.env = env
        self.num_envs = env.num_envs
        self.num_actions = env.single_action_space.shape[0]  # type: ignore[index]
        self.max_episode_length = getattr(env.unwrapped, "max_episode_steps", None) or _NO_LIMIT
        self.cfg = {"env": str(env.spec.id if env.spec else type(env.unwrapped).__name__), "num_envs": env.num_envs}
        self._has_groups = isinstance(env.single_observation_space, spaces.Dict)
        self._lengths = torch.zeros(self.num_envs, dtype=torch.int64, device=self.device)
        self._observations = self._in_groups(self._reset(seed))

    @property
    def unwrapped(self) -> Any:
        """The innermost environment."""
        return self.env.unwrapped

    @property
    def episode_length_buf(self) -> torch.Tensor:
        """Steps that the running episodes have taken, int64 (num_envs,).

        Setting it, as the runner's ``init_at_random_ep_len`` does, makes time limits come that much earlier.
        """
        return self._lengths

    @episode_length_buf.setter
    def episode_length_buf(self, lengths: torch.Tensor) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        set_episode_steps = getattr(self.env.unwrapped, "set_episode_steps", None)
        if set_episode_steps is None:
            raise TypeError(
                f"{type(self.env.unwrapped).__name__} has no set_episode_steps(), so that its episodes cannot begin at "
                "random steps: leave init_at_random_ep_len=False"
            )
        set_episode_steps(lengths)
        self._lengths = lengths.to(self.device, torch.int64, copy=True)

    def get_observations(self) -> TensorDict:
        """The present observations, a group each (num_envs, …)."""
        return self._observations

    @ordinary_tensors
    def step(self, actions: torch.Tensor) -> tuple[TensorDict, torch.Tensor, torch.Tensor, dict[str, Any]]:
        """Takes a step in every environment.

        Args:
            actions: (num_envs, num_actions), of any size: the environment clips them.

        Returns:
            Observations, rewards float32 (num_envs,), whether the episode ended bool (num_envs,), and extras:
            "time_outs" bool (num_envs,), and in "log" the mean of each term of the reward, ().
        """
        # A copy, since those that come out of inference mode could not be used outside it.
        observations, rewards, terminated, truncated, info = self.env.step(torch.as_tensor(actions).clone())
        dones = terminated | truncated
        self._lengths = (self._lengths + 1).masked_fill(dones, 0)
        self._observations = self._in_groups(observations)
        terms = info.get("reward_terms", {})
        extras = {
            "time_outs": truncated & ~terminated,
            "log": {f"Reward/{name}": term.mean() for name, term in terms.items()},
        }
        return self._observations, rewards, dones, extras

    def close(self) -> None:
        """Closes the environment."""
        self.env.close()

    @ordinary_tensors
    def _reset(self, seed: int | None) -> Any:
        return self.env.reset(seed=seed)[0]

    def _in_groups(self, observations: Any) -> TensorDict:
        groups = observations if self._has_groups else {"policy": observations}
        return TensorDict(groups, batch_size=[self.num_envs], device=self.device)
