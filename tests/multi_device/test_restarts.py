"""on_worker_failure="restart": a lost worker's environments are truncated and start anew, the others feel nothing."""

from __future__ import annotations

import pytest
import torch
from gymnasium.vector import AutoresetMode

from genesis_vec import MultiDeviceVectorEnv
from genesis_vec.errors import WorkerError
from genesis_vec.multi_device.restarts import restart_seed
from tests.multi_device.fakes import actions, failing


@pytest.mark.parametrize("how", ["raise", "kill", "hang"])
def test_a_lost_workers_environments_are_truncated_and_start_anew(tmp_path, how, caplog):
    env = MultiDeviceVectorEnv(
        failing(how=how, at=3, row=5, once=tmp_path / "failed", limit=100), 7, devices="cpu:2", timeout=1.5,
        on_worker_failure="restart",
    )  # fmt: skip
    lost_pid = env.workers[1].process.pid
    env.reset(seed=0)
    for _ in range(2):
        before, *_ = env.step(actions(7))
    obs, reward, terminated, truncated, info = env.step(actions(7))
    lost = torch.tensor([False] * 3 + [True] * 4)
    assert truncated.tolist() == lost.tolist()
    assert not terminated.any()
    assert reward.tolist() == [3.0] * 3 + [0.0] * 4
    assert info["_final_obs"].tolist() == lost.tolist()
    assert info["_episode"].tolist() == lost.tolist()
    assert torch.equal(info["final_obs"][lost], before[lost])
    assert obs[:, 2].tolist() == [3.0] * 3 + [0.0] * 4
    assert obs[:, 0].tolist() == list(range(7))
    assert env.workers[1].process.pid != lost_pid
    assert "worker 1" in caplog.text
    assert env.step(actions(7))[0][:, 2].tolist() == [4.0] * 3 + [1.0] * 4
    env.close()


def test_a_worker_that_is_lost_in_a_reset_starts_where_the_reset_says():
    env = MultiDeviceVectorEnv(failing(how="no", at=0, row=0), 4, devices="cpu:2", on_worker_failure="restart")
    env.reset(seed=0)
    env.step(actions(4))
    env.workers[0].process.kill()
    env.workers[0].process.wait()
    assert env.reset(seed=5)[0][:, 2].tolist() == [0.0] * 4
    assert env.step(actions(4))[1].tolist() == [1.0] * 4
    env.close()


def test_a_worker_that_is_lost_in_the_first_reset_starts_where_it_says():
    env = MultiDeviceVectorEnv(failing(how="no", at=0, row=0), 4, devices="cpu:2", on_worker_failure="restart")
    env.workers[1].process.kill()
    env.workers[1].process.wait()
    assert env.reset(seed=5)[0][:, :2].tolist() == [[row, 0.0] for row in range(4)]
    assert env.step(actions(4))[1].tolist() == [1.0] * 4
    env.close()


def test_restarts_are_counted_and_then_it_is_an_error():
    env = MultiDeviceVectorEnv(
        failing(how="kill", at=2, row=0, limit=99), 4, devices="cpu:2", on_worker_failure="restart", max_restarts=2
    )
    env.reset(seed=0)
    losses = 0
    with pytest.raises(WorkerError, match=r"worker 0 .*SIGKILL"):
        for _ in range(20):
            losses += int(env.step(actions(4))[3].any())
    assert losses == 2
    assert env.closed


def test_other_modes_need_scenes_that_can_take_another_ones_place():
    with pytest.raises(ValueError, match=r"SAME_STEP.*NEXT_STEP"):
        MultiDeviceVectorEnv(
            failing(how="no", at=0, row=0, autoreset_mode=AutoresetMode.NEXT_STEP), 4, devices="cpu:2",
            on_worker_failure="restart",
        )  # fmt: skip


def test_a_replacement_draws_from_other_streams_which_are_always_the_same():
    assert restart_seed(3, 1) == restart_seed(3, 1)
    seeds = {restart_seed(seed, restarts) for seed in range(50) for restarts in range(4)}
    assert len(seeds) == 200
    assert all(0 <= seed < 1 << 64 for seed in seeds)
    assert restart_seed([3, None], 2) == [restart_seed(3, 2), restart_seed(0, 2)]
