"""Environments for skrl's trainers, and agents of skrl that see how an episode ended.

Where ``WORLD_SIZE`` is set, skrl joins a process group when it is imported, over NCCL only, and takes
``cuda:LOCAL_RANK``. On CPUs this module therefore refuses to be imported there, and on a GPU that is pinned to its rank
it lets skrl take ``cuda:0``. For both it must be imported before skrl.
"""

from __future__ import annotations

import copy
from typing import Any, TypeVar

import gymnasium
import torch
from gymnasium.vector import AutoresetMode, VectorEnv

from genesis_vec.adapters.common import actor_and_critic, check_env, only_gpu_as_local_rank
from genesis_vec.batches import select_rows
from genesis_vec.extras import library

with only_gpu_as_local_rank(), library("skrl", "skrl"):
    from skrl.agents.torch import Agent
    from skrl.envs.wrappers.torch import Wrapper
    from skrl.utils.spaces.torch import flatten_tensorized_space

AnyAgent = TypeVar("AnyAgent", bound=Agent)


class SkrlWrapper(Wrapper):
    """A vector environment as skrl's trainers take it; skrl's own wrappers copy through the host or want other spaces.

    Observations in a Box are skrl's observations. Of those in a Dict, "policy" is the observation and "critic", if
    there is one, the state, which skrl gives to the models as ``inputs["states"]``. Both are flattened to
    (num_envs, size), as skrl stores them. The spaces are those of one environment.

    Use it with the agents of :func:`with_final_observations`.

    Args:
        env: An environment in SAME_STEP mode.
        seed: Seed of the environments; None draws one. ``skrl.utils.set_seed`` does not reach them.

    Raises:
        TypeError, ValueError: If the environment is not of the package's contract or in another mode.
    """

    def __init__(self, env: VectorEnv, seed: int | None = None) -> None:
        check_env(env, "SkrlWrapper", AutoresetMode.SAME_STEP, "skrl has no step in which an environment only resets")
        super().__init__(env)
        space = env.single_observation_space
        self._policy, self._critic = actor_and_critic("SkrlWrapper", space)
        self._observation_space = space if self._policy is None else space[self._policy]  # type: ignore[index]
        self._state_space = None if self._critic is None else space[self._critic]  # type: ignore[index]
        self._seed = seed
        self._observations: torch.Tensor | None = None
        self._states: torch.Tensor | None = None

    @property
    def observation_space(self) -> gymnasium.Space:
        """Space of one environment's observation."""
        return self._observation_space

    @property
    def state_space(self) -> gymnasium.Space | None:
        """Space of one environment's state, None without a "critic"."""
        return self._state_space

    @property
    def action_space(self) -> gymnasium.Space:
        """Space of one environment's action."""
        return self._env.single_action_space

    def reset(self) -> tuple[torch.Tensor, dict[str, Any]]:
        """Starts the environments the first time; afterwards returns the present observations.

        skrl's trainers call it whenever they begin, and after each episode of an environment that is alone. In
        SAME_STEP that has been reset already.

        Returns:
            Observations (num_envs, size), and an empty info.
        """
        if self._observations is None:
            observations, _ = self._env.reset(seed=self._seed)
            self._observations, self._states = self._split(observations)
        return self._observations, {}

    def step(self, actions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, Any]:
        """Takes a step in every environment.

        Args:
            actions: (num_envs, action size), of any size: the environment clips them.

        Returns:
            Observations (num_envs, size); rewards float32, terminated and truncated bool, each (num_envs, 1); and the
            environment's info with, beside ``"_final_obs"``, ``"final_observations"`` and ``"final_states"`` in the
            form of observations and states, the latter None without a "critic". The statistics of the episodes that
            ended are in ``infos["final_info"]`` alone.
        """
        observations, rewards, terminated, truncated, info = self._env.step(actions)
        self._observations, self._states = self._split(observations)
        # skrl's trainers log what they find as a single number in "episode", in every step: for an environment that
        # is alone, the zeros of the steps in which no episode ends.
        infos = {key: value for key, value in info.items() if key not in ("episode", "_episode")}
        infos["final_observations"], infos["final_states"] = self._split(info["final_obs"])
        # A copy, since skrl's agents add the value of a truncated episode's end to the rewards where they are.
        return self._observations, rewards.clone()[:, None], terminated[:, None], truncated[:, None], infos

    def state(self) -> torch.Tensor | None:
        """What only the critic sees, after the last reset or step: (num_envs, size), None without a "critic"."""
        return self._states

    def render(self, *args: Any, **kwargs: Any) -> Any:
        """The environment's frames, None without a render mode."""
        # skrl's trainers call it in every step unless they are told to be headless.
        return None if self._env.render_mode is None else self._env.render()

    def close(self) -> None:
        """Closes the environment."""
        self._env.close()

    def _split(self, observations: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Observations and states, from what the environment gives."""
        policy = observations if self._policy is None else observations[self._policy]
        critic = None if self._critic is None else observations[self._critic]
        return flatten_tensorized_space(policy), flatten_tensorized_space(critic)  # type: ignore[return-value]


def with_final_observations(agent_class: type[AnyAgent]) -> type[AnyAgent]:
    """A subclass of a skrl agent whose transitions end where the episode ended, not where the next began.

    In SAME_STEP the observation after an episode's last step is the next episode's first. The subclass gives skrl
    ``infos["final_observations"]`` and ``infos["final_states"]`` in its place. Off-policy agents store them.

    It also turns ``cfg.time_limit_bootstrap`` on, in a copy of the settings, where there is such a setting. Without
    it, skrl's estimate of the advantage does not stop at a truncation, but runs on into the next episode. With it,
    the estimate stops, and PPO, A2C, RPO, TRPO and AMP add γ·V(final observation) to the reward; without the subclass
    it would be γ·V(first observation of the next episode). Their recurrent variants add γ·V(s_t) either way.

    Example::

        agent = with_final_observations(PPO)(models=models, memory=memory, cfg=cfg, ...)

    Args:
        agent_class: A class of ``skrl.agents.torch``, or one derived from it. Its instances need the infos of
            :class:`SkrlWrapper`, and all of its environments: skrl's "scopes", which deal an environment's rows out to
            several agents, are refused in the first transition.

    Returns:
        The subclass, under the same name, since skrl names folders by it.

    Raises:
        TypeError: If it is no agent of skrl, or one of its multi-agent classes.
    """
    if not (isinstance(agent_class, type) and issubclass(agent_class, Agent)):
        raise TypeError(f"with_final_observations takes a class of skrl.agents.torch, such as PPO; got {agent_class!r}")

    class WithFinalObservations(agent_class):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            if hasattr(self.cfg, "time_limit_bootstrap"):
                self.cfg = copy.copy(self.cfg)
                self.cfg.time_limit_bootstrap = True  # type: ignore[attr-defined]

        def record_transition(
            self, *, next_observations: torch.Tensor, next_states: torch.Tensor, infos: Any, **kwargs: Any
        ) -> None:
            if "final_observations" not in infos:
                raise ValueError("infos has no 'final_observations': put SkrlWrapper around the environment")
            ended, final_observations = infos["_final_obs"], infos["final_observations"]
            if final_observations.shape != next_observations.shape:
                raise ValueError(
                    f"this agent has {len(next_observations)} of {len(final_observations)} environments; with final "
                    "observations it must have all: give each agent an environment, and a trainer, of its own"
                )
            # PPO takes the last transition's for the value after the rollout. Where they differ, an episode has
            # ended, and the estimate of the advantage does not look.
            next_observations = select_rows(ended, final_observations, next_observations)
            if next_states is not None:
                next_states = select_rows(ended, infos["final_states"], next_states)
            super().record_transition(
                next_observations=next_observations, next_states=next_states, infos=infos, **kwargs
            )

    WithFinalObservations.__name__ = agent_class.__name__
    WithFinalObservations.__qualname__ = f"with_final_observations.<locals>.{agent_class.__name__}"
    return WithFinalObservations  # type: ignore[return-value]
