"""A rollout's storage, on the device, and the advantages computed from it."""

from __future__ import annotations

import torch


class Rollout:
    """What happened in T steps of N environments, in preallocated tensors.

    Args:
        steps: T.
        num_envs: N.
        observation_size: Length of an observation vector.
        action_size: Length of an action vector.
        device: Where it lies.

    Attributes:
        observations: (T, N, observation_size), s_t.
        actions: (T, N, action_size), a_t, as drawn.
        means: (T, N, action_size), the policy's means then.
        log_probabilities: (T, N), log π(a_t | s_t) then.
        values: (T, N), V(s_t) then.
        rewards: (T, N).
        terminated: (T, N) bool.
        truncated: (T, N) bool.
        final_observations: (T, N, observation_size), s_{t+1} before any reset.
    """

    def __init__(
        self, steps: int, num_envs: int, observation_size: int, action_size: int, device: torch.device
    ) -> None:
        def empty(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
            return torch.empty(steps, num_envs, *shape, dtype=dtype, device=device)

        self.observations = empty(observation_size)
        self.actions = empty(action_size)
        self.means = empty(action_size)
        self.log_probabilities = empty()
        self.values = empty()
        self.rewards = empty()
        self.terminated = empty(dtype=torch.bool)
        self.truncated = empty(dtype=torch.bool)
        self.final_observations = empty(observation_size)


def advantages_and_returns(
    rewards: torch.Tensor,
    values: torch.Tensor,
    next_value: torch.Tensor,
    final_values: torch.Tensor,
    terminated: torch.Tensor,
    truncated: torch.Tensor,
    gamma: float,
    gae_lambda: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Generalised advantage estimation (arXiv:1506.02438, equations 11 to 16) with time limits treated as such.

    δ_t = r_t + γ V(s_{t+1}) - V(s_t) and A_t = δ_t + γ λ A_{t+1} within an episode. After a termination V(s_{t+1}) is
    0. After a truncation it is the value of the observation the episode was cut at, not of the next episode's first
    one. The sum over later steps stops at either.

    Args:
        rewards: (T, N).
        values: (T, N), V(s_t).
        next_value: (N,), the value of the observation after the last step.
        final_values: (T, N), the value of the final observation where truncated; elsewhere anything finite.
        terminated: (T, N) bool.
        truncated: (T, N) bool.
        gamma: Discount factor.
        gae_lambda: λ.

    Returns:
        Advantages and returns (advantage + value), (T, N).
    """
    advantages = torch.empty_like(rewards)
    following_values = torch.cat([values[1:], next_value[None]])
    following_values = torch.where(truncated, final_values, following_values).masked_fill(terminated, 0.0)
    deltas = rewards + gamma * following_values - values
    carried = gamma * gae_lambda * (~(terminated | truncated)).to(rewards.dtype)
    advantage = torch.zeros_like(next_value)
    for t in range(len(rewards) - 1, -1, -1):
        advantage = deltas[t] + carried[t] * advantage
        advantages[t] = advantage
    return advantages, advantages + values


def discounted_returns(
    rewards: torch.Tensor, done: torch.Tensor, start: torch.Tensor, gamma: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Running discounted sums G_t = γ G_{t-1} + r_t, which start anew after an episode's end.

    Args:
        rewards: (T, N).
        done: (T, N) bool, whether the episode ended in that step.
        start: (N,), G before the first step.
        gamma: Discount factor.

    Returns:
        G (T, N), and G after the last step (N,), 0 where the episode ended.
    """
    sums = torch.empty_like(rewards)
    running = start
    for t in range(len(rewards)):
        sums[t] = running * gamma + rewards[t]
        running = sums[t].masked_fill(done[t], 0.0)
    return sums, running
