"""On a GPU: the physics is the CPU's to within float error, and a policy learns."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import gymnasium
import pytest
import torch

from genesis_vec.training.config import PPOConfig
from genesis_vec.training.ppo import PPO

pytestmark = pytest.mark.gpu
# The engine runs on one device per process, so the other device's results come from another process.
ROLLOUT = """
import sys, gymnasium, torch, genesis_vec
def rollout(id, device, steps=10):
    env = gymnasium.make_vec(id, num_envs=4, device=device)
    observations = [env.reset(seed=3)[0].cpu()]
    actions = torch.rand(steps, *env.action_space.shape, generator=torch.Generator().manual_seed(1)) * 2 - 1
    observations += [env.step(action)[0].cpu() for action in actions]
    env.close()
    return torch.stack(observations)
"""


@pytest.mark.parametrize("id", ["GenesisCartPole-v0", "GenesisRigid-v0"])
def test_a_rollout_is_the_one_of_the_cpu(tmp_path: Path, id: str):
    file = tmp_path / "cpu.pt"
    program = f"{ROLLOUT}\ntorch.save(rollout({id!r}, 'cpu'), {str(file)!r})"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=300)
    here: dict = {}
    exec(ROLLOUT, here)
    on_gpu, on_cpu = here["rollout"](id, "cuda"), torch.load(file, weights_only=True)
    assert not torch.equal(on_cpu[0], on_cpu[-1])
    torch.testing.assert_close(on_gpu, on_cpu, rtol=1e-3, atol=1e-3)


def test_a_policy_learns_to_balance():
    env = gymnasium.make_vec("GenesisCartPole-v0", num_envs=256, device="cuda")
    learner = PPO(env, PPOConfig(rollout_steps=32, schedule="fixed", learning_rate=1e-3), seed=1)
    lengths = [learner.iterate().get("mean_length") for _ in range(40)]
    known = [length for length in lengths if length is not None]
    assert learner.policy.std.is_cuda
    assert known[-1] > 3 * known[0]
    env.close()
