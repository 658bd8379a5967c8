"""PPO on GenesisCartPole-v0 in one file, after the manner of CleanRL: torch and the environment, nothing in between.

Everything stays on the environment's device, and the host reads once per iteration. A time limit is not an end: the
value of the final observation, which SAME_STEP gives in ``info["final_obs"]``, stands for what would have followed.

    python examples/cleanrl_ppo.py --iterations 100
    python examples/cleanrl_ppo.py --devices cpu:2

The algorithm: Schulman et al., arXiv:1707.06347, with the advantages of Schulman et al., arXiv:1506.02438.
"""

from __future__ import annotations

import dataclasses
import time

import gymnasium
import torch
import tyro
from torch import nn

from genesis_vec.wrappers import ClipReward, NormalizeObservation, NormalizeReward


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Everything there is to set."""

    env_id: str = "GenesisCartPole-v0"
    devices: str | None = None  # such as "cpu:2", "cuda:0,1"; None for one scene in this process
    seed: int = 0
    iterations: int = 100
    num_envs: int = 256
    rollout_steps: int = 32
    epochs: int = 5
    minibatches: int = 4
    learning_rate: float = 1e-3
    gamma: float = 0.99
    gae_lambda: float = 0.95
    clip: float = 0.2
    value_coefficient: float = 1.0
    entropy_coefficient: float = 0.0
    max_grad_norm: float = 1.0
    initial_log_std: float = -0.5
    hidden_size: int = 64


class Agent(nn.Module):
    """A Gaussian policy and a critic, of two hidden layers each."""

    def __init__(self, observation_size: int, action_size: int, settings: Settings) -> None:
        super().__init__()

        def mlp(outputs: int, last_gain: float) -> nn.Sequential:
            width = settings.hidden_size
            layers = nn.Linear(observation_size, width), nn.Linear(width, width), nn.Linear(width, outputs)
            for layer, gain in zip(layers, (2**0.5, 2**0.5, last_gain), strict=True):
                nn.init.orthogonal_(layer.weight, gain)
                nn.init.zeros_(layer.bias)
            return nn.Sequential(layers[0], nn.Tanh(), layers[1], nn.Tanh(), layers[2])

        self.mean, self.critic = mlp(action_size, 0.01), mlp(1, 1.0)
        self.log_std = nn.Parameter(torch.full((action_size,), settings.initial_log_std))

    def policy(self, observations: torch.Tensor) -> torch.distributions.Independent:
        # Without the check of its arguments, which would make the host wait for a GPU.
        normal = torch.distributions.Normal(self.mean(observations), self.log_std.exp(), validate_args=False)
        return torch.distributions.Independent(normal, 1, validate_args=False)

    def value(self, observations: torch.Tensor) -> torch.Tensor:
        return self.critic(observations).squeeze(-1)


def main(settings: Settings) -> float:
    """Trains, and returns the mean length of the last num_envs episodes."""
    torch.set_num_threads(1)
    torch.manual_seed(settings.seed)
    place = {} if settings.devices is None else {"devices": settings.devices}
    env = gymnasium.make_vec(settings.env_id, num_envs=settings.num_envs, **place)
    device = env.unwrapped.device
    # final_obs is normalised as observations are. The first returns are all alike, and would make rewards huge.
    env = ClipReward(NormalizeReward(NormalizeObservation(env), gamma=settings.gamma), -10.0, 10.0)
    size, action_size = env.single_observation_space.shape[0], env.single_action_space.shape[0]
    agent = Agent(size, action_size, settings).to(device)
    optimizer = torch.optim.Adam(agent.parameters(), lr=settings.learning_rate, eps=1e-5)

    T, N = settings.rollout_steps, settings.num_envs
    observations, final_observations = (torch.empty(T, N, size, device=device) for _ in range(2))
    actions = torch.empty(T, N, action_size, device=device)
    log_probs, rewards, values, advantages = (torch.empty(T, N, device=device) for _ in range(4))
    terminated, truncated = (torch.empty(T, N, dtype=torch.bool, device=device) for _ in range(2))
    lengths = torch.empty(T, N, dtype=torch.int64, device=device)
    last_lengths, began = torch.empty(0, device=device), time.perf_counter()

    observation, _ = env.reset(seed=settings.seed)
    for iteration in range(1, settings.iterations + 1):
        with torch.no_grad():
            for t in range(T):
                distribution = agent.policy(observation)
                actions[t] = distribution.sample()
                observations[t], values[t] = observation, agent.value(observation)
                log_probs[t] = distribution.log_prob(actions[t])
                observation, rewards[t], terminated[t], truncated[t], info = env.step(actions[t])
                final_observations[t], lengths[t] = info["final_obs"], info["episode"]["l"]

            # δ = r + γ V(s') - V(s), where V(s') is 0 after a termination and V(final_obs) after a time limit.
            following = torch.cat([values[1:], agent.value(observation)[None]])
            following = torch.where(truncated, agent.value(final_observations), following).masked_fill(terminated, 0.0)
            deltas = rewards + settings.gamma * following - values
            goes_on = (~(terminated | truncated)).float()
            advantage = torch.zeros(N, device=device)
            for t in reversed(range(T)):
                advantage = deltas[t] + settings.gamma * settings.gae_lambda * goes_on[t] * advantage
                advantages[t] = advantage
            returns = advantages + values

        batch = [x.flatten(0, 1) for x in (observations, actions, log_probs, advantages, returns)]
        for _ in range(settings.epochs):
            for rows in torch.randperm(T * N, device=device).chunk(settings.minibatches):
                b_observations, b_actions, b_log_probs, b_advantages, b_returns = (x[rows] for x in batch)
                distribution = agent.policy(b_observations)
                ratio = (distribution.log_prob(b_actions) - b_log_probs).exp()
                b_advantages = (b_advantages - b_advantages.mean()) / (b_advantages.std() + 1e-8)
                clipped = ratio.clamp(1.0 - settings.clip, 1.0 + settings.clip)
                policy_loss = -torch.minimum(ratio * b_advantages, clipped * b_advantages).mean()
                value_loss = 0.5 * (agent.value(b_observations) - b_returns).square().mean()
                loss = policy_loss + settings.value_coefficient * value_loss
                loss = loss - settings.entropy_coefficient * distribution.entropy().mean()
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), settings.max_grad_norm)
                optimizer.step()

        last_lengths = torch.cat([last_lengths, lengths[terminated | truncated]])[-N:]
        if iteration % 10 == 0 or iteration == settings.iterations:
            mean = last_lengths.float().mean().item()
            print(f"iteration {iteration}: mean episode length {mean:.0f}, {time.perf_counter() - began:.0f} s")
    env.close()
    return last_lengths.float().mean().item()


if __name__ == "__main__":
    main(tyro.cli(Settings))
