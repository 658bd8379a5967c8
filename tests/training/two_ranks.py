"""What test_ranks.py runs on two ranks: asserts about the world they share."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch

from genesis_vec.moments import RunningMoments
from genesis_vec.training import checkpoint
from genesis_vec.training.checkpoint import Checkpoints
from genesis_vec.training.config import PPOConfig
from genesis_vec.training.distributed import World
from genesis_vec.training.job import Job
from genesis_vec.training.ppo import PPO
from tests.training.toy import ToyEnv


def main(run_dir: Path) -> None:
    with World(Job.from_environment(), timeout=60) as world:
        statistics_are_pooled(world)
        unequal_shares_are_weighted(world)
        a_slow_disk_is_waited_for(world, run_dir)


def statistics_are_pooled(world: World) -> None:
    """Ten rows around 0 on one rank and ninety around 5 on the other: weighted by count, and the means differ."""
    generator = torch.Generator().manual_seed(0)
    parts = [torch.randn(10, 3, generator=generator), torch.randn(90, 3, generator=generator) + 5.0]
    learner = PPO(ToyEnv(2 + world.rank), PPOConfig(rollout_steps=4), seed=0, world=world)
    moments = RunningMoments((3,), torch.device("cpu"))
    learner._merge(moments, parts[world.rank])
    every = torch.cat(parts).double()
    torch.testing.assert_close(moments.mean, every.mean(dim=0), rtol=1e-4, atol=0)
    torch.testing.assert_close(moments.var, every.var(dim=0, correction=0), rtol=1e-4, atol=0)
    # A resumed run has what was saved, and counts nothing twice.
    restored = RunningMoments((3,), torch.device("cpu"))
    restored.load_state_dict(moments.state_dict())
    assert restored.count == moments.count
    assert torch.equal(world.gather(moments.mean)[0], world.gather(moments.mean)[1])


def unequal_shares_are_weighted(world: World) -> None:
    """Two environments here and three there make the average of five."""
    learner = PPO(ToyEnv(2 + world.rank), PPOConfig(rollout_steps=4), seed=0, world=world)
    mean = learner._pooled(torch.tensor([0.0, 10.0][world.rank]))
    torch.testing.assert_close(mean, torch.tensor(10.0 * 3 / 5))
    assert learner._loss_weight == [2 * 2 / 5, 3 * 2 / 5][world.rank]
    assert world.any(world.rank == 1)
    assert not world.any(False)
    assert world.from_first(f"rank {world.rank}") == "rank 0"


def a_slow_disk_is_waited_for(world: World, run_dir: Path) -> None:
    save = checkpoint.save_checkpoint

    def slow(path: Path, state: dict) -> None:
        if world.rank == 0:
            time.sleep(0.3)
        save(path, state)

    checkpoint.save_checkpoint = slow
    checkpoints = Checkpoints(run_dir, world, keep=2)
    checkpoints.prepare()
    for iteration in range(1, 5):
        checkpoints.save(iteration, {"iteration": iteration}, {"rank": world.rank})
        world.barrier()
    assert checkpoints.load_own(4) == {"format": checkpoint.FORMAT, "iteration": 4, "rank": world.rank}
    assert checkpoints.load_own(1) is None


if __name__ == "__main__":
    main(Path(sys.argv[1]))
