"""PPO: collects rollouts from a vector environment and updates a policy. It knows of no files or terminals."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper

from genesis_vec.errors import StateUnavailableError
from genesis_vec.moments import RunningMoments, batch_moments
from genesis_vec.streams import EnvStreams
from genesis_vec.training.config import PPOConfig
from genesis_vec.training.distributed import World
from genesis_vec.training.episodes import EpisodeSums
from genesis_vec.training.model import ActorCritic, entropy, kl_divergence, log_probability
from genesis_vec.training.rollout import Rollout, advantages_and_returns, discounted_returns
from genesis_vec.wrappers import FlattenObservation
from genesis_vec.wrappers.base import TorchObservationWrapper

# Distances between the seeds of the streams that one run's seed stands for: the environments' own streams have seed
# itself.
_NOISE_SEED = 1 << 40
_ORDER_SEED = 2 << 40
_LEARNING_RATE_RANGE = (1e-5, 3e-3)


class PPO:
    """A learner with its environment.

    Exploration noise and the order of minibatches come from per-environment streams, so that they depend on the seed,
    the iteration and an environment's global index alone. All that is averaged is averaged over the environments of
    all learners, so that their number changes nothing but the order of sums.

    Args:
        env: Any vector environment of the package's contract, in SAME_STEP mode, with vector observations and actions.
        config: Settings.
        seed: Seed of environments, network, noise and order.
        world: The learners of this run.
        first_env_index: Global index of the environment's first row; the rows of all ranks together count through.
        compile_mode: The mode in which ``torch.compile`` compiles network and loss, None for neither.
        update_threads: Threads of torch on the CPU during an update, None for as many as the process has.
        mixed_precision: Whether the update computes hidden layers in bfloat16; actions are computed in float32.

    Attributes:
        policy: The network.
        iteration: Iterations done.
        env_steps: Environment steps done, over all environments of all learners.
        is_updating: Whether an update is under way, in which what is learnt is not the last iteration's any longer.

    Raises:
        ValueError: If the environment's mode or spaces do not fit.
    """

    def __init__(
        self,
        env: VectorEnv,
        config: PPOConfig,
        seed: int,
        world: World | None = None,
        first_env_index: int = 0,
        compile_mode: str | None = None,
        update_threads: int | None = None,
        mixed_precision: bool = False,
    ) -> None:
        mode = env.metadata.get("autoreset_mode")
        if mode is not AutoresetMode.SAME_STEP:
            raise ValueError(
                f"the learner needs final observations, which autoreset_mode={mode} does not give: make the "
                "environment with autoreset_mode=AutoresetMode.SAME_STEP"
            )
        observation_size = _vector_size("observation", env.single_observation_space)
        action_size = _vector_size("action", env.single_action_space)
        self.env = env
        self.config = config
        self.seed = seed
        self.world = world or World()
        self.device: torch.device = env.unwrapped.device  # type: ignore[attr-defined]
        num_envs = env.num_envs
        self.policy = ActorCritic(
            observation_size, action_size, config.hidden_sizes, config.initial_std, seed, actor_size(env)
        ).to(self.device)
        self.policy.mixed_precision = mixed_precision
        self.optimizer = torch.optim.Adam(
            self.policy.parameters(), lr=torch.tensor(config.learning_rate, device=self.device), fused=True
        )
        self.learning_rate: torch.Tensor = self.optimizer.param_groups[0]["lr"]
        self._update_threads = update_threads
        self._act = self.policy.act
        self._losses = _losses
        if compile_mode is not None:
            # In place, so that the names of its parameters stay.
            self.policy.compile(mode=compile_mode)
            self._act = torch.compile(self.policy.act, mode=compile_mode)
            self._losses = torch.compile(_losses, mode=compile_mode)
        self._averaging_policy = self.world.wrap(self.policy)
        self.observation_moments = RunningMoments((observation_size,), self.device)
        self.return_moments = RunningMoments((), self.device)
        self._running_returns = torch.zeros(num_envs, device=self.device)
        self._rollout = Rollout(config.rollout_steps, num_envs, observation_size, action_size, self.device)
        self._noise_streams = EnvStreams(num_envs, self.device, first_env_index)
        self._order_streams = EnvStreams(num_envs, self.device, first_env_index)
        self._noise_streams.seed(seed + _NOISE_SEED)
        self._order_streams.seed(seed + _ORDER_SEED)
        counts = self.world.gather(torch.tensor(float(num_envs), device=self.device))
        self._total_envs = int(counts.sum())
        # Each learner's share of the environments. It makes an average of averages the average over all.
        self._shares = counts / counts.sum()
        # DistributedDataParallel averages as if all learners had as many.
        self._loss_weight = num_envs * self.world.size / self._total_envs
        self._env_numbers = torch.arange(num_envs, device=self.device)
        self._observations: torch.Tensor | None = None
        self._episodes = EpisodeSums()
        self.iteration = 0
        self.env_steps = 0
        self.is_updating = False

    def iterate(self) -> dict[str, float]:
        """One iteration: a rollout and an update.

        Returns:
            Figures for the log: mean_return, mean_length and the environment's own metrics over the episodes that
            ended (absent if none did), and the update's losses.
        """
        if self._observations is None:
            # The iteration is part of the seed, so that a resumed run does not replay its first episodes.
            self._observations, _ = self.env.reset(seed=self.seed + (self.iteration << 20))
        # An iteration is an episode of these streams: a resumed run needs nothing but its number.
        self._noise_streams.begin_all(self.iteration)
        self._order_streams.begin_all(self.iteration)
        self._collect()
        self.is_updating = True
        with _torch_threads(self._update_threads):
            losses = self._update()
        self.is_updating = False
        self.iteration += 1
        self.env_steps += self.config.rollout_steps * self._total_envs
        return {**self._episodes.take_means(self.world), **losses}

    # --------------------------------------------------------------------------------------------------- collection

    @torch.no_grad()
    def _collect(self) -> None:
        rollout, policy, observations = self._rollout, self.policy, self._observations
        assert observations is not None
        noise = self._noise_streams.select(None)
        for t in range(self.config.rollout_steps):
            mean, std = self._act(observations), policy.std
            actions = mean + std * noise.normal(mean.shape[1])
            rollout.observations[t] = observations
            rollout.actions[t] = actions
            rollout.means[t] = mean
            rollout.log_probabilities[t] = log_probability(actions, mean, std)
            observations, reward, terminated, truncated, info = self.env.step(actions)
            rollout.rewards[t] = reward
            rollout.terminated[t] = terminated
            rollout.truncated[t] = truncated
            rollout.final_observations[t] = info["final_obs"]
            self._episodes.add(info)
        self._observations = observations

    # ------------------------------------------------------------------------------------------------------- update

    def _update(self) -> dict[str, float]:
        config, rollout = self.config, self._rollout
        advantages, returns = self._targets()
        old_std = self.policy.std.detach().clone()
        flat = {
            "observations": rollout.observations.flatten(0, 1),
            "actions": rollout.actions.flatten(0, 1),
            "means": rollout.means.flatten(0, 1),
            "log_probabilities": rollout.log_probabilities.flatten(),
            "values": rollout.values.flatten(),
            "advantages": advantages.flatten(),
            "returns": returns.flatten(),
        }
        figures = []
        for _ in range(config.epochs):
            for index in self._minibatch_indices():
                figures.append(self._step({name: value[index] for name, value in flat.items()}, old_std))
        if config.normalize_observations:
            self._merge(self.observation_moments, rollout.observations.flatten(0, 1))
            self.policy.set_normalization(self.observation_moments)
        names = ("policy_loss", "value_loss", "entropy", "kl")
        means = self._pooled(torch.stack(figures).mean(dim=0))
        extra = torch.stack([self.learning_rate, self.policy.std.detach().mean()])
        # The one place in an iteration where the host waits for the device.
        return dict(zip((*names, "learning_rate", "std"), torch.cat([means, extra]).tolist(), strict=True))

    @torch.no_grad()
    def _targets(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Normalised advantages and returns, (T, N)."""
        config, rollout = self.config, self._rollout
        # All at once, and not step by step while the simulation waits for the next actions.
        rollout.values.copy_(self.policy.value(rollout.observations))
        rewards, done = rollout.rewards, rollout.terminated | rollout.truncated
        if config.normalize_rewards:
            sums, self._running_returns = discounted_returns(rewards, done, self._running_returns, config.gamma)
            self._merge(self.return_moments, sums.flatten())
            rewards = rewards * (self.return_moments.var + 1e-8).rsqrt().to(torch.float32)
        assert self._observations is not None
        advantages, returns = advantages_and_returns(
            rewards,
            rollout.values,
            self.policy.value(self._observations),
            self._final_values(),
            rollout.terminated,
            rollout.truncated,
            config.gamma,
            config.gae_lambda,
        )
        moments = RunningMoments((), self.device)
        self._merge(moments, advantages.flatten())
        normalized = (advantages - moments.mean.float()) / (moments.var.float().sqrt() + 1e-8)
        return normalized, returns

    def _final_values(self) -> torch.Tensor:
        """Values of the final observations where episodes were truncated, 0 elsewhere: (T, N)."""
        rollout = self._rollout
        values = torch.zeros_like(rollout.rewards)
        # Looking the few up costs one wait per iteration, and saves evaluating the critic on every step once more.
        rows = rollout.truncated.flatten().nonzero()[:, 0]
        values.view(-1)[rows] = self.policy.value(rollout.final_observations.flatten(0, 1)[rows])
        return values

    def _minibatch_indices(self) -> list[torch.Tensor]:
        """Indices into the flattened rollout: each minibatch has its share of every environment's steps.

        Which ones is drawn for each environment from its own stream, so that it does not depend on who else is there.
        """
        steps = self.config.rollout_steps
        order = self._order_streams.select(None).uniform(steps).argsort(dim=1)
        flat = order * self.env.num_envs + self._env_numbers[:, None]
        return [part.flatten() for part in flat.chunk(self.config.minibatches, dim=1)]

    def _step(self, batch: dict[str, torch.Tensor], old_std: torch.Tensor) -> torch.Tensor:
        """One gradient step; returns policy loss, value loss, entropy and divergence, (4,)."""
        config = self.config
        mean, std, value = self._averaging_policy(batch["observations"])
        loss, *figures = self._losses(batch, mean, std, value, old_std, config)
        self.optimizer.zero_grad(set_to_none=True)
        (loss * self._loss_weight).backward()
        torch.nn.utils.clip_grad_norm_(self.policy.parameters(), config.max_grad_norm)
        if config.schedule == "adaptive":
            self._adapt_learning_rate(self._pooled(figures[-1]))
        self.optimizer.step()
        return torch.stack(figures)

    def _adapt_learning_rate(self, kl: torch.Tensor) -> None:
        # On the device: reading the divergence would make the host wait in every gradient step.
        rate, aim = self.learning_rate, self.config.desired_kl
        new_rate = torch.where(kl > 2.0 * aim, rate / 1.5, torch.where(kl < 0.5 * aim, rate * 1.5, rate))
        rate.copy_(new_rate.clamp(*_LEARNING_RATE_RANGE))

    def _merge(self, moments: RunningMoments, values: torch.Tensor) -> None:
        """Adds all learners' values, by their counts."""
        count, mean, m2 = batch_moments(values)
        for parts in self.world.gather(torch.cat([count.reshape(1), mean.reshape(-1), m2.reshape(-1)])):
            mean, m2 = parts[1:].reshape(2, *mean.shape)
            moments.merge(parts[0], mean, m2)

    def _pooled(self, mean: torch.Tensor) -> torch.Tensor:
        """The mean over all learners' environments, of each learner's own."""
        parts = self.world.gather(mean)
        return (parts * self._shares.reshape(-1, *[1] * mean.dim())).sum(dim=0)

    # -------------------------------------------------------------------------------------------------------- state

    def state_dict(self) -> dict[str, Any]:
        """What all learners share, of plain values and tensors."""
        return {
            "policy": self.policy.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "observation_moments": self.observation_moments.state_dict(),
            "return_moments": self.return_moments.state_dict(),
            "iteration": self.iteration,
            "env_steps": self.env_steps,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Puts back what :meth:`state_dict` gave; the environments start new episodes."""
        self.policy.load_state_dict(state["policy"])
        self.optimizer.load_state_dict(state["optimizer"])
        # The optimiser takes over the checkpoint's tensor as it is, on whichever device it was read to.
        self.learning_rate.copy_(self.optimizer.param_groups[0]["lr"])
        self.optimizer.param_groups[0]["lr"] = self.learning_rate
        self.observation_moments.load_state_dict(state["observation_moments"])
        self.return_moments.load_state_dict(state["return_moments"])
        self.iteration = state["iteration"]
        self.env_steps = state["env_steps"]
        self._observations = None
        self._running_returns.zero_()

    def own_state_dict(self) -> dict[str, Any] | None:
        """What this learner has for itself: its environments, and what it keeps for each of them.

        Returns:
            Plain values and tensors, None before the first iteration.

        Raises:
            StateUnavailableError: If the environments cannot give their state.
        """
        if self._observations is None:
            return None
        unwrapped: Any = self.env.unwrapped
        if not hasattr(unwrapped, "state_dict"):
            raise StateUnavailableError(f"{type(unwrapped).__name__} has no state_dict()")
        return {
            "observations": self._observations.clone(),
            "running_returns": self._running_returns.clone(),
            "env": unwrapped.state_dict(),
        }

    def load_own_state_dict(self, state: dict[str, Any]) -> None:
        """Puts back what :meth:`own_state_dict` gave, after :meth:`load_state_dict`.

        Raises:
            StateMismatchError: If it is of other environments; then they start new episodes.
        """
        self.env.unwrapped.load_state_dict(state["env"])  # type: ignore[attr-defined]
        self._observations = state["observations"].to(self.device)
        self._running_returns = state["running_returns"].to(self.device)


@contextlib.contextmanager
def _torch_threads(number: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def actor_size(env: VectorEnv) -> int | None:
    """How many of an observation's last numbers the actor sees: those of "policy" where there is a "critic" too.

    Returns:
        None where the actor sees all.
    """
    while isinstance(env, VectorWrapper) and not isinstance(env, TorchObservationWrapper):
        env = env.env
    if not isinstance(env, FlattenObservation):
        return None
    space = env.env.single_observation_space
    if not isinstance(space, spaces.Dict) or set(space) != {"critic", "policy"}:
        return None
    # The space's keys are in alphabetical order, so that what is the critic's alone comes first.
    return math.prod(space["policy"].shape or ())


def _vector_size(name: str, space: spaces.Space[Any]) -> int:
    if not isinstance(space, spaces.Box) or len(space.shape) != 1:
        raise ValueError(f"the learner takes {name}s in a Box of one axis, got {space}; use FlattenObservation")
    return space.shape[0]


def _losses(
    batch: dict[str, torch.Tensor],
    mean: torch.Tensor,
    std: torch.Tensor,
    value: torch.Tensor,
    old_std: torch.Tensor,
    config: PPOConfig,
) -> tuple[torch.Tensor, ...]:
    """The loss to descend; for the log policy loss, value loss, entropy and divergence from the old policy. All ()."""
    # The clipped surrogate objective: equation 7 of arXiv:1707.06347.
    ratio = (log_probability(batch["actions"], mean, std) - batch["log_probabilities"]).exp()
    clipped_ratio = ratio.clamp(1.0 - config.clip, 1.0 + config.clip)
    policy_loss = -torch.minimum(ratio * batch["advantages"], clipped_ratio * batch["advantages"]).mean()
    value_loss = (value - batch["returns"]).square()
    if config.clip_value:
        near = batch["values"] + (value - batch["values"]).clamp(-config.clip, config.clip)
        value_loss = torch.maximum(value_loss, (near - batch["returns"]).square())
    value_loss = 0.5 * value_loss.mean()
    policy_entropy = entropy(std)
    loss = policy_loss + config.value_coefficient * value_loss - config.entropy_coefficient * policy_entropy
    with torch.no_grad():
        kl = kl_divergence(batch["means"], old_std, mean, std).mean()
    return loss, policy_loss.detach(), value_loss.detach(), policy_entropy.detach(), kl
