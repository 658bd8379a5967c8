"""The policy and value network."""

from __future__ import annotations

import itertools
import math

import torch
from torch import nn

from genesis_vec.moments import RunningMoments

_STD_RANGE = (1e-3, 10.0)
_CLIP_OBSERVATION = 10.0


class ActorCritic(nn.Module):
    """A Gaussian policy and a value function, two multilayer perceptrons on the same normalised observation.

    The mean is the actor's output; the standard deviation is one parameter per action, whatever the observation. The
    observation's statistics are part of the state dict, so that a policy is complete on its own.

    Args:
        observation_size: Length of an observation vector.
        action_size: Length of an action vector.
        hidden_sizes: Widths of the hidden layers of each perceptron.
        initial_std: Standard deviation at the start.
        seed: Seed of the initial weights; the global generator is neither read nor changed.
        actor_size: The actor sees the last so many numbers of an observation, all of them for None. The others are
            for the critic, which learns in simulation only, and so may see what no robot measures.

    Attributes:
        mixed_precision: Whether :meth:`forward` and :meth:`value` compute hidden layers in bfloat16. Parameters and
            results are float32 all the same, and so are the actions of :meth:`act`.
    """

    observation_mean: torch.Tensor
    observation_inverse_std: torch.Tensor

    def __init__(
        self,
        observation_size: int,
        action_size: int,
        hidden_sizes: tuple[int, ...],
        initial_std: float,
        seed: int,
        actor_size: int | None = None,
    ) -> None:
        super().__init__()
        self.mixed_precision = False
        self.actor_size = observation_size if actor_size is None else actor_size
        self._is_asymmetric = self.actor_size < observation_size
        generator = torch.Generator().manual_seed(seed)
        # A small last layer starts every action near the middle, and with it the exploration around it.
        self.actor = _perceptron([self.actor_size, *hidden_sizes, action_size], 0.01, generator)
        self.critic = _perceptron([observation_size, *hidden_sizes, 1], 1.0, generator)
        self.log_std = nn.Parameter(torch.full((action_size,), math.log(initial_std)))
        self.register_buffer("observation_mean", torch.zeros(observation_size))
        self.register_buffer("observation_inverse_std", torch.ones(observation_size))

    @property
    def std(self) -> torch.Tensor:
        """Standard deviation of the actions, (action_size,)."""
        return self.log_std.exp().clamp(*_STD_RANGE)

    def set_normalization(self, moments: RunningMoments) -> None:
        """Takes over an observation's statistics."""
        self.observation_mean.copy_(moments.mean)
        self.observation_inverse_std.copy_((moments.var + 1e-8).rsqrt())

    def normalize(self, observations: torch.Tensor) -> torch.Tensor:
        """Observations (…, observation_size), or their last so many numbers, at mean 0 and variance 1, within ±10."""
        mean, inverse_std = self.observation_mean, self.observation_inverse_std
        if (count := observations.shape[-1]) < len(mean):
            mean, inverse_std = mean[-count:], inverse_std[-count:]
        scaled = (observations - mean) * inverse_std
        return scaled.clamp(-_CLIP_OBSERVATION, _CLIP_OBSERVATION)

    def act(self, observations: torch.Tensor) -> torch.Tensor:
        """The actions without noise, (…, action_size), for whole observations or for what the actor sees of them."""
        return self.actor(self._seen_by_actor(self.normalize(observations)))

    def value(self, observations: torch.Tensor) -> torch.Tensor:
        """Values (…,)."""
        return self._evaluate(self.critic, self.normalize(observations)).squeeze(-1)

    def forward(self, observations: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Means (…, action_size), standard deviations (action_size,) and values (…,)."""
        normalized = self.normalize(observations)
        mean = self._evaluate(self.actor, self._seen_by_actor(normalized))
        return mean, self.std, self._evaluate(self.critic, normalized).squeeze(-1)

    def _seen_by_actor(self, normalized: torch.Tensor) -> torch.Tensor:
        return normalized[..., -self.actor_size :] if self._is_asymmetric else normalized

    def _evaluate(self, network: nn.Sequential, inputs: torch.Tensor) -> torch.Tensor:
        if not self.mixed_precision:
            return network(inputs)
        *hidden, last = network
        with torch.autocast(inputs.device.type, torch.bfloat16):
            for layer in hidden:
                inputs = layer(inputs)
        # In float32: what is lost here would be lost of the ratios and values that the loss compares.
        return last(inputs.float())


def log_probability(actions: torch.Tensor, mean: torch.Tensor, std: torch.Tensor) -> torch.Tensor:
    """Log density (…,) of actions under a Gaussian with independent components."""
    return (-0.5 * ((actions - mean) / std).square() - std.log() - 0.5 * math.log(2.0 * math.pi)).sum(dim=-1)


def entropy(std: torch.Tensor) -> torch.Tensor:
    """Entropy () of such a Gaussian, in nats."""
    return (std.log() + 0.5 * math.log(2.0 * math.pi * math.e)).sum()


def kl_divergence(old_mean: torch.Tensor, old_std: torch.Tensor, mean: torch.Tensor, std: torch.Tensor) -> torch.Tensor:
    """Kullback-Leibler divergence (…,) of such Gaussians, KL(old ‖ new), in nats."""
    quotient = (old_std.square() + (old_mean - mean).square()) / (2.0 * std.square())
    return (std.log() - old_std.log() + quotient - 0.5).sum(dim=-1)


def _perceptron(sizes: list[int], last_gain: float, generator: torch.Generator) -> nn.Sequential:
    layers: list[nn.Module] = []
    for index, (inputs, outputs) in enumerate(itertools.pairwise(sizes)):
        is_last = index == len(sizes) - 2
        # skip_init, because the constructor would draw weights from the global generator only to have them replaced.
        linear = nn.utils.skip_init(nn.Linear, inputs, outputs)
        assert isinstance(linear, nn.Linear)
        nn.init.orthogonal_(linear.weight, last_gain if is_last else math.sqrt(2.0), generator=generator)
        nn.init.zeros_(linear.bias)
        # In place: on the CPU, fetching fresh memory for the activations cost a tenth of an update.
        layers += [linear] if is_last else [linear, nn.ELU(inplace=True)]
    return nn.Sequential(*layers)
