"""TorchRL's PPO on GenesisCartPole-v0: its collector, advantages and loss on the package's adapter.

Needs ``pip install 'genesis-vec[torchrl]'``; two workers: ``python examples/torchrl_ppo.py --devices cpu:2``.
"""

from __future__ import annotations

import dataclasses
import time

import gymnasium
import torch
import tyro
from gymnasium.vector import AutoresetMode
from tensordict.nn import AddStateIndependentNormalScale, TensorDictModule
from torchrl.collectors import Collector
from torchrl.envs import Compose, RewardScaling, StepCounter, TransformedEnv
from torchrl.modules import MLP, IndependentNormal, ProbabilisticActor, ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

from genesis_vec.adapters.torchrl import TorchRLEnv


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Everything there is to set."""

    iterations: int = 100
    num_envs: int = 256
    rollout_steps: int = 32
    epochs: int = 5
    minibatches: int = 4
    learning_rate: float = 1e-3
    devices: str | None = None  # such as "cpu:2", "cuda:0,1"; None for one scene in this process
    seed: int = 0


def main(settings: Settings) -> float:
    """Trains, and returns the mean length of the last num_envs episodes."""
    torch.set_num_threads(1)
    torch.manual_seed(settings.seed)
    place = {} if settings.devices is None else {"devices": settings.devices}
    place["autoreset_mode"] = AutoresetMode.DISABLED
    vector_env = gymnasium.make_vec("GenesisCartPole-v0", num_envs=settings.num_envs, **place)
    # A reward of 1 per step adds up to values near 100, too large for a network to begin with.
    env = TransformedEnv(TorchRLEnv(vector_env), Compose(StepCounter(), RewardScaling(loc=0.0, scale=0.05)))
    env.set_seed(settings.seed)
    device, inputs, size = env.device, env.observation_spec["observation"].shape[-1], env.action_spec.shape[-1]

    def mlp(outputs: int) -> MLP:
        return MLP(inputs, outputs, num_cells=[64, 64], activation_class=torch.nn.ELU, device=device)

    mean_and_std = torch.nn.Sequential(mlp(size), AddStateIndependentNormalScale(size).to(device))
    policy = ProbabilisticActor(
        TensorDictModule(mean_and_std, in_keys=["observation"], out_keys=["loc", "scale"]),
        in_keys=["loc", "scale"],
        distribution_class=IndependentNormal,
        return_log_prob=True,
    )
    critic = ValueOperator(mlp(1))
    advantages = GAE(gamma=0.99, lmbda=0.95, value_network=critic, average_gae=True)
    loss = ClipPPOLoss(policy, critic, clip_epsilon=0.2, entropy_coeff=0.0, loss_critic_type="l2")
    optimizer = torch.optim.Adam(loss.parameters(), lr=settings.learning_rate)
    frames = settings.num_envs * settings.rollout_steps
    total = frames * settings.iterations
    # Of the transforms that it could add, none is for a policy without memory.
    options = {"frames_per_batch": frames, "total_frames": total, "auto_register_policy_transforms": False}
    collector = Collector(env, policy, **options)
    lengths, began = torch.zeros(0, device=device), time.perf_counter()
    for iteration, data in enumerate(collector, start=1):
        lengths = torch.cat([lengths, data["next", "step_count"][data["next", "done"]]])[-settings.num_envs :]
        flat = advantages(data).reshape(-1)
        for _ in range(settings.epochs):
            for rows in torch.randperm(frames, device=device).chunk(settings.minibatches):
                losses = loss(flat[rows])
                optimizer.zero_grad()
                sum(value for name, value in losses.items() if name.startswith("loss_")).backward()
                torch.nn.utils.clip_grad_norm_(loss.parameters(), 1.0)
                optimizer.step()
        if iteration % 10 == 0 or iteration == settings.iterations:
            mean = lengths.float().mean().item()
            print(f"iteration {iteration}: mean episode length {mean:.0f}, {time.perf_counter() - began:.0f} s")
    collector.shutdown()
    return lengths.float().mean().item()


if __name__ == "__main__":
    main(tyro.cli(Settings))
