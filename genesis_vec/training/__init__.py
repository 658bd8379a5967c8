"""PPO: model, rollouts, update, checkpoints and logs. It knows vector environments, not Genesis."""
