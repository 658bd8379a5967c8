"""TorchPPO: stable-baselines3's PPO with rollouts that stay on the device, on one rank or many."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from genesis_vec.adapters.sb3.vec_env import SB3VecEnv
from genesis_vec.batches import map_observation
from genesis_vec.extras import library
from genesis_vec.moments import RunningMoments, batch_moments
from genesis_vec.training.distributed import World
from genesis_vec.training.rollout import advantages_and_returns

with library("stable_baselines3", "sb3"):
    from stable_baselines3 import PPO
    from stable_baselines3.common.buffers import BaseBuffer
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.type_aliases import DictRolloutBufferSamples, RolloutBufferSamples
    from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper


class TorchRolloutBuffer(BaseBuffer):
    """A rollout in tensors on the learner's device, with what stable-baselines3's PPO asks of its own buffer.

    Minibatches have the rows that its own buffer would give them: they are drawn from NumPy's global generator.

    Attributes:
        observations: (steps, num_envs, …), or a dict of such.
        actions: (steps, num_envs, action_size).
        rewards: (steps, num_envs).
        terminated: (steps, num_envs) bool.
        truncated: (steps, num_envs) bool.
        log_probs: (steps, num_envs).
        world: The learners, over all of whose minibatches advantages are normalised.
        normalizes: Whether :meth:`get` normalises advantages, since the minibatch is spread over several learners.
    """

    def __init__(
        self,
        buffer_size: int,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        device: torch.device | str = "auto",
        gae_lambda: float = 1.0,
        gamma: float = 0.99,
        n_envs: int = 1,
    ) -> None:
        super().__init__(buffer_size, observation_space, action_space, device, n_envs=n_envs)
        self.gae_lambda = gae_lambda
        self.gamma = gamma
        self.world = World()
        self.normalizes = False

        def empty(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
            return torch.empty(buffer_size, n_envs, *shape, dtype=dtype, device=self.device)

        def empty_like(box: spaces.Space[Any]) -> torch.Tensor:
            assert box.shape is not None
            return empty(*box.shape, dtype=torch.from_numpy(np.empty(0, box.dtype)).dtype)

        self.observations = map_observation(empty_like, observation_space)
        self.actions = empty(self.action_dim)
        self.rewards = empty()
        self.terminated = empty(dtype=torch.bool)
        self.truncated = empty(dtype=torch.bool)
        self.log_probs = empty()
        self._values = empty()
        self._returns = empty()
        self._advantages = empty()
        self._final_observations: list[Any] = []

    @property
    def values(self) -> np.ndarray:
        """Values when the actions were drawn, (steps, num_envs), which PPO's logging takes from NumPy."""
        return self._values.cpu().numpy()

    @property
    def returns(self) -> np.ndarray:
        """Their targets, (steps, num_envs), likewise."""
        return self._returns.cpu().numpy()

    def reset(self) -> None:
        """Forgets the rollout."""
        self._final_observations = []
        super().reset()

    def add(  # type: ignore[override]
        self,
        observations: Any,
        actions: torch.Tensor,
        values: torch.Tensor,
        log_probs: torch.Tensor,
        rewards: torch.Tensor,
        terminated: torch.Tensor,
        truncated: torch.Tensor,
        final_observations: Any,
    ) -> None:
        """Adds a step; everything is (num_envs, …), and final_observations holds where truncated."""
        map_observation(lambda kept, new: kept[self.pos].copy_(new), self.observations, observations)
        self.actions[self.pos] = actions
        self._values[self.pos] = values.flatten()
        self.log_probs[self.pos] = log_probs
        self.rewards[self.pos] = rewards
        self.terminated[self.pos] = terminated
        self.truncated[self.pos] = truncated
        # Kept as they are, for they do not change: few of their rows are looked at in the end.
        self._final_observations.append(final_observations)
        self.pos += 1
        self.full = self.pos == self.buffer_size

    def compute_returns_and_advantages(self, policy: Any, last_values: torch.Tensor) -> None:
        """Computes the advantages of the whole rollout.

        Args:
            policy: Its value function bootstraps the time limits, from the final observations.
            last_values: Values of the observations after the last step, (num_envs,).
        """
        final_values = torch.zeros_like(self._values)
        # The one place in a rollout where the host waits for the device.
        steps, rows = self.truncated.nonzero(as_tuple=True)
        if len(steps):
            counts = torch.bincount(steps, minlength=self.buffer_size).tolist()
            chosen = [
                map_observation(lambda leaf, index=index: leaf[index].to(self.device), final)
                for final, index in zip(self._final_observations, rows.split(counts), strict=True)
                if len(index)
            ]
            cut_off = map_observation(lambda *leaves: torch.cat(leaves), *chosen)
            final_values[steps, rows] = policy.predict_values(cut_off).flatten()
        self._final_observations = []
        self._advantages, self._returns = advantages_and_returns(
            self.rewards,
            self._values,
            last_values.flatten(),
            final_values,
            self.terminated,
            self.truncated,
            self.gamma,
            self.gae_lambda,
        )

    def get(self, batch_size: int | None = None) -> Iterator[RolloutBufferSamples | DictRolloutBufferSamples]:
        """The minibatches of one pass, in random order.

        Args:
            batch_size: Size of a minibatch, None for one of all.
        """
        assert self.full, "the rollout is not complete"
        count = self.buffer_size * self.n_envs
        # Its own buffer has all steps of the first environment first; numbering them likewise gives the same draws.
        drawn = torch.from_numpy(np.random.permutation(count)).to(self.device)
        order = (drawn % self.buffer_size) * self.n_envs + drawn // self.buffer_size
        for index in order.split(batch_size or count):
            yield self._get_samples(index)

    def _get_samples(  # type: ignore[override]
        self, batch_inds: torch.Tensor, env: Any = None
    ) -> RolloutBufferSamples | DictRolloutBufferSamples:
        """The rows of a minibatch, by their numbers in the flattened rollout."""
        observations = map_observation(lambda leaf: leaf.flatten(0, 1)[batch_inds], self.observations)
        advantages = self._advantages.flatten()[batch_inds]
        samples: Any = DictRolloutBufferSamples if isinstance(observations, dict) else RolloutBufferSamples
        return samples(
            observations,
            self.actions.flatten(0, 1)[batch_inds],
            self._values.flatten()[batch_inds],
            self.log_probs.flatten()[batch_inds],
            self._normalized(advantages) if self.normalizes else advantages,
            self._returns.flatten()[batch_inds],
        )

    def _normalized(self, advantages: torch.Tensor) -> torch.Tensor:
        """The advantages at mean 0 and variance 1 over all learners' parts of the minibatch."""
        moments = RunningMoments((), advantages.device)
        for count, mean, m2 in self.world.gather(torch.stack(batch_moments(advantages))):
            moments.merge(count, mean, m2)
        # Divided by n - 1, as torch.std does, which PPO uses.
        std = (moments.var * moments.count / (moments.count - 1)).sqrt()
        return (advantages - moments.mean.float()) / (std.float() + 1e-8)


class TorchPPO(PPO):
    """stable-baselines3's PPO with rollouts in tensors on the device: the same results, without its way through NumPy.

    On the same seed it is PPO with :class:`SB3VecEnv`, but for the order of sums: the value of all final observations
    is computed in one batch, once in a rollout. There is no Python per environment but for finished episodes, of
    which the newest ``stats_window_size`` are kept for the log.

    Under torchrun, with a :class:`~genesis_vec.training.distributed.World` of several learners, each has environments
    of its own. Gradients are averaged, the advantages normalised over all learners' parts of a minibatch, episodes and
    timesteps counted over all, and only rank 0 logs. ``n_steps`` and the number of environments must be the same
    everywhere; ``batch_size`` is each learner's part.

    In a rollout the host waits for the device where torch's distributions check their arguments, and nowhere else;
    ``torch.distributions.Distribution.set_default_validate_args(False)`` turns that off.

    Save, load, ``predict`` and ``evaluate_policy`` are stable-baselines3's, and a model that PPO saved can be loaded,
    as PPO can load this one's. Callbacks are called in every step; what they find in ``self.locals`` are tensors, and
    "infos" is the vector environment's info, so that those that want arrays or a dict for each row, such as
    ``StopTrainingOnMaxEpisodes``, do not work. With several learners, one
    that stops does so at the end of a rollout, and stops all.

    Args:
        policy: As for PPO.
        env: An :class:`SB3VecEnv` itself, whose environment is stepped directly. In place of stable-baselines3's
            wrappers put those of ``genesis_vec.wrappers`` around that environment.
        world: The learners; this process alone by default.
        **kwargs: As for PPO, but for ``rollout_buffer_class``. ``device`` is the environment's by default.

    Raises:
        TypeError: If the environment is another, or in wrappers.
        ValueError: For what several learners cannot have: ``target_kl`` (each would stop by itself), different numbers
            of environments.
    """

    rollout_buffer: TorchRolloutBuffer  # type: ignore[assignment]

    def __init__(self, policy: Any, env: VecEnv | None, *, world: World | None = None, **kwargs: Any) -> None:
        self.world = world or World()
        if kwargs.get("rollout_buffer_class") is not None:
            raise TypeError("TorchPPO has a rollout buffer of its own: leave rollout_buffer_class out")
        if self.world.size > 1 and kwargs.get("target_kl") is not None:
            raise ValueError(
                f"target_kl={kwargs['target_kl']} with {self.world.size} learners: each would stop its epochs by "
                "itself; leave it out"
            )
        if env is not None:
            kwargs.setdefault("device", _adapter(env).device)
        if self.world.rank > 0:
            kwargs = {**kwargs, "verbose": 0, "tensorboard_log": None}
        super().__init__(policy, env, **{**kwargs, "rollout_buffer_class": TorchRolloutBuffer})  # type: ignore[arg-type]

    def _setup_model(self) -> None:
        # Also in a model that stable-baselines3's own PPO has saved, with its own buffer.
        self.rollout_buffer_class = TorchRolloutBuffer  # type: ignore[assignment]
        super()._setup_model()
        self.rollout_buffer.world = self.world
        if self.world.size == 1:
            return
        counts = self.world.gather_values(self.n_envs)
        if len(set(counts)) > 1:
            raise ValueError(f"the learners have {counts} environments: give each the same number")
        # Parameters are made equal to rank 0's by it. PPO.train() calls evaluate_actions and goes backward from there.
        evaluate = self.world.wrap(_EvaluateActions(self.policy))
        self.policy.evaluate_actions = lambda obs, actions: evaluate(obs, actions)  # type: ignore[method-assign]
        # From here on each explores by itself.
        torch.manual_seed(torch.initial_seed() + self.world.rank)

    def _maybe_recommend_cpu(self, mlp_class_name: str = "ActorCriticPolicy") -> None:
        """Nothing: the advice is about rollouts that go through the host."""

    @classmethod
    def load(cls, path: Any, env: VecEnv | None = None, *args: Any, **kwargs: Any) -> TorchPPO:  # type: ignore[override]
        """Loads a model that was saved; see stable-baselines3. ``device`` is the environment's by default."""
        if env is not None:
            kwargs.setdefault("device", _adapter(env).device)
        return super().load(path, env, *args, **kwargs)

    def _excluded_save_params(self) -> list[str]:
        # The observations would come back on a device that the loading process may not have. Without the buffer's class
        # stable-baselines3's own PPO can load the model too, and takes its own.
        own = ["world", "_last_obs", "_last_episode_starts", "rollout_buffer_class"]
        return [*super()._excluded_save_params(), *own]

    def set_env(self, env: Any, force_reset: bool = True) -> None:
        """Trains on another environment from now on; see stable-baselines3.

        Raises:
            TypeError, ValueError: As for the first one.
        """
        _adapter(env)
        super().set_env(env, force_reset)

    def collect_rollouts(  # type: ignore[override]
        self, env: VecEnv, callback: BaseCallback, rollout_buffer: TorchRolloutBuffer, n_rollout_steps: int
    ) -> bool:
        """Fills the buffer with a rollout; whether to go on. See :meth:`OnPolicyAlgorithm.collect_rollouts`."""
        adapter = _adapter(env)
        self.policy.set_training_mode(False)
        rollout_buffer.reset()
        if self.use_sde:
            self.policy.reset_noise(env.num_envs)
        callback.on_rollout_start()
        observations: Any = map_observation(lambda leaf: torch.as_tensor(leaf, device=self.device), self._last_obs)
        goes_on = True
        episodes: list[tuple[torch.Tensor, torch.Tensor]] = []
        with torch.no_grad():
            for step in range(n_rollout_steps):
                if self.use_sde and self.sde_sample_freq > 0 and step % self.sde_sample_freq == 0:
                    self.policy.reset_noise(env.num_envs)
                actions, values, log_probs = self.policy(observations)
                new_observations, rewards, terminated, truncated, infos = adapter.env.step(self._in_bounds(actions))
                new_observations = map_observation(lambda leaf: leaf.to(self.device), new_observations)
                dones = terminated | truncated
                self.num_timesteps += env.num_envs * self.world.size
                callback.update_locals(locals())
                goes_on = callback.on_step() and goes_on
                if not goes_on and self.world.size == 1:
                    return False
                rollout_buffer.add(
                    observations,
                    actions.reshape(env.num_envs, -1),
                    values,
                    log_probs,
                    rewards,
                    terminated,
                    truncated & ~terminated,
                    infos["final_obs"],
                )
                episodes.append((dones, _episode_figures(infos)))
                observations = new_observations
            # As PPO computes it: also where the episode ended, which makes no difference.
            last_values = self.policy.predict_values(observations)
            rollout_buffer.compute_returns_and_advantages(self.policy, last_values)
        self._last_obs = observations
        self._last_episode_starts = dones  # type: ignore[assignment]
        self._keep_episodes(episodes)
        callback.update_locals(locals())
        callback.on_rollout_end()
        return goes_on if self.world.size == 1 else not self.world.any(not goes_on)

    def train(self) -> None:
        """Updates the policy with the rollout: PPO's own update."""
        if self.world.size == 1:
            super().train()
            return
        # PPO would normalise each learner's part of a minibatch by itself.
        normalizes = self.normalize_advantage
        self.rollout_buffer.normalizes, self.normalize_advantage = normalizes, False
        try:
            super().train()
        finally:
            self.rollout_buffer.normalizes, self.normalize_advantage = False, normalizes

    def _in_bounds(self, actions: torch.Tensor) -> torch.Tensor:
        """The actions as the environment takes them; it clips by itself."""
        if not self.policy.squash_output:
            return actions
        box: Any = self.action_space
        low, high = (torch.as_tensor(bound, device=actions.device) for bound in (box.low, box.high))
        return low + 0.5 * (actions + 1.0) * (high - low)

    def _keep_episodes(self, episodes: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Takes the rollout's newest episodes, of all learners, over into what is logged."""
        window = self._stats_window_size
        ended = torch.stack([dones for dones, _ in episodes])
        figures = torch.stack([values for _, values in episodes])
        # In the order of time, and of the environments within a step.
        newest = torch.cat([ended.nonzero().float(), figures[ended]], dim=1)[-window:].tolist()
        everywhere = [row for rows in self.world.gather_values(newest) for row in rows]
        assert self.ep_info_buffer is not None and self.ep_success_buffer is not None
        for _, _, episode_return, length, seconds, *success in sorted(everywhere, key=lambda row: row[0]):
            self.ep_info_buffer.append({"r": episode_return, "l": int(length), "t": seconds})
            self.ep_success_buffer.extend(success)


def _episode_figures(info: dict[str, Any]) -> torch.Tensor:
    """Return, length, seconds, and success where the task tells it, of the episodes that ended: (num_envs, 3 or 4)."""
    columns = [info["episode"][name] for name in ("r", "l", "t")]
    success = info.get("final_info", {}).get("success")
    return torch.stack([column.float() for column in [*columns, *([] if success is None else [success])]], dim=1)


class _EvaluateActions(torch.nn.Module):
    """A policy's evaluation of actions as a forward pass, to which DistributedDataParallel can hook on."""

    def __init__(self, policy: Any) -> None:
        super().__init__()
        self.policy = policy
        self._evaluate = policy.evaluate_actions

    def forward(self, observations: Any, actions: torch.Tensor) -> Any:
        return self._evaluate(observations, actions)


def _adapter(env: Any) -> SB3VecEnv:
    """The environment, if it is the adapter itself.

    Raises:
        TypeError: If it is not.
    """
    if isinstance(env, VecEnvWrapper):
        raise TypeError(
            f"TorchPPO's rollouts do not pass through {type(env).__name__}: give it the SB3VecEnv itself, and put "
            "wrappers of genesis_vec.wrappers around the environment inside it, such as NormalizeObservation, or for "
            "pictures ChannelsFirst"
        )
    if not isinstance(env, SB3VecEnv):
        raise TypeError(f"TorchPPO takes a genesis_vec.adapters.sb3.SB3VecEnv, got {env!r}")
    return env
