"""The policy network and its Gaussian."""

from __future__ import annotations

import torch
from torch.distributions import Independent, Normal, kl

from genesis_vec.moments import RunningMoments
from genesis_vec.training.model import ActorCritic, entropy, kl_divergence, log_probability


def make(seed: int = 0) -> ActorCritic:
    return ActorCritic(3, 2, (8, 8), 0.5, seed)


def test_densities_entropy_and_divergence_equal_those_of_torch_distributions():
    generator = torch.Generator().manual_seed(0)
    mean, other = torch.randn(5, 2, generator=generator), torch.randn(5, 2, generator=generator)
    std, other_std = torch.tensor([0.3, 2.0]), torch.tensor([0.7, 1.1])
    actions = torch.randn(5, 2, generator=generator)
    old, new = Independent(Normal(mean, std), 1), Independent(Normal(other, other_std), 1)
    torch.testing.assert_close(log_probability(actions, mean, std), old.log_prob(actions))
    torch.testing.assert_close(entropy(std).expand(5), old.entropy())
    torch.testing.assert_close(kl_divergence(mean, std, other, other_std), kl.kl_divergence(old, new))


def test_the_seed_decides_the_weights_and_the_global_generator_is_left_alone():
    before = torch.get_rng_state()
    first, again, other = make(1), make(1), make(2)
    assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True))
    assert not torch.equal(first.actor[0].weight, other.actor[0].weight)


def test_mixed_precision_is_in_the_hidden_layers_of_an_update_and_not_in_the_actions():
    exact, mixed = make(), make()
    mixed.mixed_precision = True
    observations = torch.randn(64, 3, generator=torch.Generator().manual_seed(0))
    assert torch.equal(exact.act(observations), mixed.act(observations))
    types: list[torch.dtype] = []
    for module in [*mixed.actor, *mixed.critic]:
        module.register_forward_hook(lambda module, inputs, output: types.append(output.dtype))
    mean, std, value = mixed(observations)
    low, high = torch.bfloat16, torch.float32
    assert types == [low, low, low, low, high] * 2
    assert {mean.dtype, std.dtype, value.dtype, mixed.value(observations).dtype} == {high}
    # bfloat16 has 8 bits of mantissa.
    for rough, fine in zip((mean, value), (exact.act(observations), exact.value(observations)), strict=True):
        assert not torch.equal(rough, fine)
        torch.testing.assert_close(rough, fine, rtol=0.0, atol=0.02 * float(fine.detach().abs().max()))
    (mean.sum() + value.sum()).backward()
    assert {parameter.grad.dtype for parameter in mixed.parameters() if parameter.grad is not None} == {high}


def test_the_state_dict_carries_the_observation_statistics():
    trained, loaded = make(1), make(2)
    moments = RunningMoments((3,), torch.device("cpu"))
    moments.update(torch.tensor([[0.0, 10.0, -5.0], [2.0, 30.0, -5.0]]).repeat(500, 1))
    trained.set_normalization(moments)
    torch.testing.assert_close(
        trained.normalize(torch.tensor([[2.0, 10.0, -5.0]])), torch.tensor([[1.0, -1.0, 0.0]]), atol=1e-2, rtol=0
    )
    loaded.load_state_dict(trained.state_dict())
    observations = torch.tensor([[1.0, 12.0, -4.0], [50.0, 20.0, 0.0]])
    assert torch.equal(trained.act(observations), loaded.act(observations))


def test_a_normalised_observation_stays_within_ten():
    assert make().normalize(torch.tensor([[1e9, -1e9, 3.0]])).tolist() == [[10.0, -10.0, 3.0]]
