"""Settings that suit the shipped ids; others start from the defaults of TrainConfig."""

from __future__ import annotations

import dataclasses

from genesis_vec.training.config import PPOConfig, TrainConfig

# What the engine's own examples train with.
_ENGINE_EXAMPLE = PPOConfig(
    rollout_steps=24, epochs=5, minibatches=4, learning_rate=1e-3, schedule="adaptive", gamma=0.99, gae_lambda=0.95,
    entropy_coefficient=0.01, hidden_sizes=(512, 256, 128), initial_std=1.0,
)  # fmt: skip

_PRESETS: dict[str, dict[str, object]] = {
    # Balancing is a matter of hundreds of steps, and cheap: long rollouts, a small and steady learning rate.
    "GenesisCartPole-v0": {
        "num_envs": 256,
        "iterations": 120,
        "ppo": PPOConfig(rollout_steps=32, schedule="fixed", learning_rate=1e-3),
    },
    # An action is a velocity of the joints, so a second's worth of them decides how near the goal gets.
    "GenesisFrankaReach-v0": {
        "num_envs": 128,
        "iterations": 300,
        "ppo": PPOConfig(gamma=0.95, gae_lambda=0.9, schedule="fixed", learning_rate=1e-3),
    },
    # From the approach to the goal it is a second and a half, and each stage is learnt upon the one before. A learning
    # rate that stays keeps changing a policy that already lifts; one that aims at this divergence falls with the noise.
    "GenesisFrankaLift-v0": {
        "num_envs": 128,
        "iterations": 700,
        "ppo": PPOConfig(rollout_steps=32, gamma=0.97, learning_rate=1e-3, desired_kl=0.03, hidden_sizes=(128, 128)),
    },
    # A joint follows its target within a fraction of a second, so what an action is worth shows within ten steps.
    "GenesisRigid-v0": {
        "num_envs": 128,
        "iterations": 300,
        "ppo": PPOConfig(gamma=0.9, gae_lambda=0.9, schedule="fixed", learning_rate=2e-3),
    },
    # As many environments as suit two CPU cores.
    "GenesisGo2Velocity-v0": {
        "num_envs": 512,
        "iterations": 300,
        "ppo": _ENGINE_EXAMPLE,
    },
    # Likewise. A step is 10 ms, so rollouts are long; a target lies a hundred steps away.
    "GenesisDroneHover-v0": {
        "num_envs": 512,
        "iterations": 300,
        "ppo": dataclasses.replace(
            _ENGINE_EXAMPLE, rollout_steps=100, learning_rate=3e-4, entropy_coefficient=0.004, hidden_sizes=(128, 128)
        ),
    },
    # Noise of 0.6, the default, costs an ant more than it earns by standing. The divergence of a step stays above what
    # an adaptive learning rate aims at while the noise shrinks, which would leave hardly any learning rate.
    "GenesisAnt-v0": {
        "num_envs": 256,
        "iterations": 400,
        "ppo": PPOConfig(
            rollout_steps=32, hidden_sizes=(128, 128), initial_std=0.4, schedule="fixed", learning_rate=1e-3
        ),
    },
    # Twice the joints, so half the learning rate for the same divergence.
    "GenesisHumanoid-v0": {
        "num_envs": 256,
        "iterations": 800,
        "ppo": PPOConfig(
            rollout_steps=32, hidden_sizes=(128, 128), initial_std=0.4, learning_rate=5e-4, desired_kl=0.03
        ),
    },
}


def preset(env_id: str) -> TrainConfig:
    """The settings to start from for an id, with or without its "module:"."""
    return TrainConfig(env_id=env_id, **_PRESETS.get(env_id.rpartition(":")[2], {}))  # type: ignore[arg-type]
