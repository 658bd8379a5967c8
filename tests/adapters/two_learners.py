"""One of two ranks that train with TorchPPO; leaves what it came to. Started by torchrun in test_sb3.py."""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from genesis_vec.adapters.sb3 import SB3VecEnv, TorchPPO
from genesis_vec.training.distributed import World
from genesis_vec.training.job import Job
from tests.fakes import CounterEnv

LIMITS = ([2, 3, 4], [4, 5, 6])
SETTINGS: dict[str, Any] = {"n_steps": 8, "n_epochs": 1, "policy_kwargs": {"net_arch": [8]}, "seed": 3}


def main(folder: Path) -> None:
    job = Job.from_environment()
    with World(job, timeout=60.0) as world:
        env = SB3VecEnv(CounterEnv(num_envs=3, limit=LIMITS[world.rank]))
        with pytest.raises(ValueError, match=r"target_kl=0\.1 with 2 learners"):
            TorchPPO("MlpPolicy", env, world=world, target_kl=0.1)
        # One minibatch, so that the whole rollout is in it.
        model = TorchPPO("MlpPolicy", env, world=world, batch_size=24, verbose=1, **SETTINGS)
        before = copy.deepcopy(model.policy.state_dict())
        model.learn(1, log_interval=100)
        after_one = copy.deepcopy(model.policy.state_dict())
        expected = one_learner(before, model, world)
        model.learn(48, reset_num_timesteps=False, log_interval=1)
        state = {
            "policy": model.policy.state_dict(),
            "policy_after_one": after_one,
            "expected": expected,
            "num_timesteps": model.num_timesteps,
            "lengths": [episode["l"] for episode in model.ep_info_buffer or ()],
        }
        torch.save(state, folder / f"rank{world.rank}.pt")


def one_learner(before: dict[str, Any], model: TorchPPO, world: World) -> dict[str, Any]:
    """The policy that one learner would have after an update with the rollouts of both."""
    single = TorchPPO("MlpPolicy", SB3VecEnv(CounterEnv(num_envs=6)), batch_size=48, **SETTINGS)
    single.policy.load_state_dict(before)
    ours, theirs = single.rollout_buffer, model.rollout_buffer
    for name in ("observations", "actions", "log_probs", "_values", "_returns", "_advantages"):
        setattr(ours, name, torch.cat(list(world.gather(getattr(theirs, name))), dim=1))
    ours.pos, ours.full = ours.buffer_size, True
    single._setup_learn(1, None)
    single.train()
    return single.policy.state_dict()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
