"""Environments for rl_games, which makes its vector environment itself, by the name of a registered one."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import gymnasium
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv

from genesis_vec.adapters.common import actor_and_critic, check_env
from genesis_vec.extras import library

with library("rl_games", "rl-games"):
    from rl_games.common import env_configurations, vecenv
    from rl_games.common.ivecenv import IVecEnv


def register(name: str, env: str | Callable[..., VectorEnv]) -> None:
    """Makes an environment known to rl_games, as ``env_name`` of its settings.

    rl_games makes it with ``num_actors`` environments and the entries of ``env_config`` as arguments. The entry
    "seed", which rl_games adds from its own seed if there is an ``env_config`` at all, seeds the first reset. A player
    without ``use_vecenv: True`` makes it with one environment.

    ``device`` in rl_games' settings (``device_name`` for players) is "cuda:0" by default, and must be the
    environment's. With ``multi_gpu: True`` it is ``cuda:LOCAL_RANK``, which rl_games selects only after the
    environment is there:

    - where each rank sees all GPUs, let ``env_config["device"]`` be ``f"cuda:{LOCAL_RANK}"``;
    - where a GPU is pinned to each rank (:meth:`genesis_vec.Job.pin`), let it be "cuda:0", and load and run rl_games'
      ``Runner`` in the context :func:`genesis_vec.adapters.common.only_gpu_as_local_rank`.

    Example::

        register("cart-pole", "GenesisCartPole-v0")
        runner = Runner(IsaacAlgoObserver())
        runner.load({"params": {"config": {"env_name": "cart-pole", "num_actors": 64, ...}, ...}})

    Args:
        name: The name; one that is taken is taken over.
        env: An id for ``gymnasium.make_vec``, or a function that takes the number of environments, and the entries of
            ``env_config`` by name, and returns an environment in SAME_STEP mode.

    Raises:
        TypeError: If env is neither.
    """
    if not (isinstance(env, str) or callable(env)):
        raise TypeError(f"env={env!r}: give an id for gymnasium.make_vec, or a function that makes an environment")
    make = functools.partial(gymnasium.make_vec, env) if isinstance(env, str) else env

    def create(config_name: str, num_actors: int, **env_config: Any) -> RlGamesVecEnv:
        seed = env_config.pop("seed", None)
        made = make(num_actors, **env_config)
        if isinstance(made, VectorEnv) and made.num_envs != num_actors:
            raise ValueError(f"num_actors={num_actors}, and {config_name!r} has {made.num_envs} environments")
        return RlGamesVecEnv(made, seed)

    vecenv.register(name, create)
    env_configurations.register(name, {"vecenv_type": name, "env_creator": functools.partial(create, name, 1)})


class RlGamesVecEnv(IVecEnv):
    """A vector environment as rl_games' agents and players take it; :func:`register` makes them.

    Observations in a Box are rl_games' observations. Of those in a Dict with "policy" and, at most, "critic", the
    first is the observation and the other the state, which only a network of ``central_value_config`` sees. Any other
    Dict goes as a whole to the network, which must be one of yours that takes it (rl_games'
    ``model_builder.register_network``).

    At a time limit rl_games' PPO adds γ·V(s_t) to the reward, with the value that the critic gave for the observation
    *before* the last step, and stops the estimate of the advantage there, unless ``value_bootstrap`` is False; its SAC
    stores s_t as the next observation likewise. It has no use for the final observation.

    Args:
        env: An environment in SAME_STEP mode.
        seed: Seed of the first reset; None draws one.

    Attributes:
        env: The environment.
        observation_space: Space of one environment's observation.
        state_space: Space of one environment's state, None without a "critic".
        action_space: Space of one environment's action.

    Raises:
        TypeError, ValueError: If the environment is not of the package's contract or in another mode.
    """

    # get_env_state() stays rl_games' own, which returns None. It is asked for in every checkpoint, where the state
    # would take some 100 KB per environment, and a training that is taken up again resets the environments anyway.

    def __init__(self, env: VectorEnv, seed: int | None = None) -> None:
        check_env(
            env,
            "RlGamesVecEnv",
            AutoresetMode.SAME_STEP,
            "rl_games has no step in which an environment only resets",
        )
        self.env = env
        space = env.single_observation_space
        self._policy: str | None = None
        self._critic: str | None = None
        if not isinstance(space, spaces.Dict) or "policy" in space.spaces:
            self._policy, self._critic = actor_and_critic("RlGamesVecEnv", space)
        self.observation_space = space if self._policy is None else space[self._policy]  # type: ignore[index]
        self.state_space = None if self._critic is None else space[self._critic]  # type: ignore[index]
        self.action_space = env.single_action_space
        self._seed = seed

    def reset(self) -> dict[str, Any]:
        """Starts new episodes, the first time by the seed.

        Returns:
            "obs", and with a "critic" also "states": (num_envs, …).
        """
        seed, self._seed = self._seed, None
        return self._named(self.env.reset(seed=seed)[0])

    def step(self, actions: torch.Tensor) -> tuple[dict[str, Any], torch.Tensor, torch.Tensor, dict[str, Any]]:
        """Takes a step in every environment.

        Args:
            actions: (num_envs, action size).

        Returns:
            Observations as :meth:`reset` gives them, rewards float32 (num_envs,), whether the episode ended bool
            (num_envs,), and the environment's info with "time_outs", bool (num_envs,), true for truncations, faults
            included, and never for a termination. Its "episode" is the mean of each term of the reward in this step,
            (); the statistics of the episodes that ended are in ``infos["final_info"]`` alone.
        """
        observations, rewards, terminated, truncated, info = self.env.step(actions)
        # rl_games' IsaacAlgoObserver logs the mean of all that "episode" ever held: of an episode's statistics, mostly
        # the zeros of environments in which none ended.
        infos = {key: value for key, value in info.items() if key not in ("episode", "_episode")}
        infos["time_outs"] = truncated & ~terminated
        if "reward_terms" in info:
            infos["episode"] = {f"Reward/{name}": term.mean() for name, term in info["reward_terms"].items()}
        return self._named(observations), rewards, terminated | truncated, infos

    def get_env_info(self) -> dict[str, Any]:  # type: ignore[override]
        """The spaces of one environment, as "observation_space", "state_space" and "action_space"."""
        return {
            "observation_space": self.observation_space,
            "state_space": self.state_space,
            "action_space": self.action_space,
            "agents": 1,
            "value_size": 1,
        }

    def seed(self, seed: int) -> None:
        """Sets the seed of the next reset."""
        self._seed = seed

    def render(self, mode: str | None = None) -> Any:
        """The environment's frames, None without a render mode; ``mode`` is what rl_games' players pass."""
        return self.env.render()

    def close(self) -> None:
        """Closes the environment."""
        self.env.close()

    def _named(self, observations: Any) -> dict[str, Any]:
        if self._policy is None:
            return {"obs": observations}
        states = {} if self._critic is None else {"states": observations[self._critic]}
        return {"obs": observations[self._policy], **states}
