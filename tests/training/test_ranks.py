"""Training on several ranks: torchrun, real processes and signals, on the CPU."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from genesis_vec.training.checkpoint import load_checkpoint
from tests.training import torchrun
from tests.training.torchrun import ROOT, SMALL, curve, iteration_of, ranks_of, same_training, toy, wait_until


def rigid(run_dir: Path, *more: str) -> list[str]:
    return [
        "-m", "genesis_vec.train", "GenesisRigid-v0", "--num-envs", "18", "--iterations", "10", "--device", "cpu",
        "--run-dir", str(run_dir), "--env", "max_episode_steps=20", *SMALL, *more,
    ]  # fmt: skip


# ------------------------------------------------------------------------------------------------ scale changes nothing


@pytest.fixture(scope="module")
def one_rank(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("ranks") / "one"
    code, output = torchrun.run(rigid(run_dir), ranks=1)
    assert code == 0, output
    return run_dir


def assert_close_to(one_rank: Path, run_dir: Path) -> None:
    """Equal but for the order of float32 sums, which ten updates of Adam carry on.

    Adam divides each gradient by its own size, so that a parameter whose gradient is all rounding error moves by up to
    the learning rate, 2e-3, in an update. Measured on 2 and on 4 ranks: at most 1e-6, of which the bound is 20 times.
    """
    ours, theirs = load_checkpoint(run_dir), load_checkpoint(one_rank)
    for name, value in theirs["policy"].items():
        torch.testing.assert_close(ours["policy"][name], value, rtol=1e-4, atol=2e-5)
    assert ours["env_steps"] == theirs["env_steps"] == 18 * 8 * 10
    for row, expected in zip(curve(run_dir), curve(one_rank), strict=True):
        assert row["episodes"] == expected["episodes"]
        for name in ("mean_return", "mean_length", "kl", "value_loss", "success"):
            if expected[name]:
                assert float(row[name]) == pytest.approx(float(expected[name]), rel=1e-3, abs=1e-4)


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_the_number_of_ranks_does_not_change_training(ranks: int, one_rank: Path, tmp_path: Path):
    code, output = torchrun.run(rigid(tmp_path / "run"), ranks=ranks)
    assert code == 0, output
    assert output.count("untrained   mean return") == 1, "rank 0 alone reports"
    assert_close_to(one_rank, tmp_path / "run")


@pytest.mark.slow
def test_workers_within_ranks_do_not_change_a_bit_and_ranks_only_the_order_of_sums(one_rank: Path, tmp_path: Path):
    code, output = torchrun.run(rigid(tmp_path / "workers", "--devices", "cpu:2"), ranks=1)
    assert code == 0, output
    assert same_training(one_rank, tmp_path / "workers")
    code, output = torchrun.run(rigid(tmp_path / "both", "--devices", "cpu:2"), ranks=2)
    assert code == 0, output
    assert_close_to(one_rank, tmp_path / "both")


# --------------------------------------------------------------------------------------------------- stops and restarts


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("ranks") / "uninterrupted"
    code, output = torchrun.run(toy(run_dir, 30))
    assert code == 0, output
    return run_dir


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_a_job_told_to_stop_saves_and_goes_on_as_if_never_stopped(
    number: signal.Signals, uninterrupted: Path, tmp_path: Path
):
    run_dir = tmp_path / "run"
    with torchrun.start(toy(run_dir, 30, "--env", "sleep=0.03")) as process:
        wait_until(lambda: iteration_of(run_dir) >= 2, 60)
        os.kill(process.pid, number)
        output, _ = process.communicate(timeout=30)
    assert process.returncode != 0
    assert f"stopped by {number.name} after iteration" in output
    stopped_at = iteration_of(run_dir)
    assert 2 <= stopped_at < 30
    code, output = torchrun.run(toy(run_dir, 30, "--env", "sleep=0.03", "--resume"))
    assert code == 0, output
    assert f"going on from iteration {stopped_at}, where it stopped" in output
    assert same_training(uninterrupted, run_dir)


def test_a_killed_rank_is_restarted_and_training_ends_bit_for_bit_the_same(tmp_path: Path):
    def cart_pole(run_dir: Path) -> list[str]:
        return [
            "-m", "genesis_vec.train", "GenesisCartPole-v0", "--num-envs", "9", "--iterations", "120", "--device",
            "cpu", "--run-dir", str(run_dir), "--checkpoint-every", "10", "--env", "max_episode_steps=20", *SMALL,
        ]  # fmt: skip

    restarts = ["--standalone", "--max-restarts=3"]
    with torchrun.start(cart_pole(tmp_path / "killed"), options=restarts) as process:
        wait_until(lambda: iteration_of(tmp_path / "killed") >= 20, 60)
        os.kill(ranks_of(process.pid)[1], signal.SIGKILL)
        output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    assert "going on from iteration" in output and "where it stopped" in output
    code, output = torchrun.run(cart_pole(tmp_path / "whole"))
    assert code == 0, output
    assert same_training(tmp_path / "whole", tmp_path / "killed")


def test_on_another_number_of_ranks_it_goes_on_with_new_episodes_and_says_so(tmp_path: Path):
    run_dir = tmp_path / "run"
    assert torchrun.run(toy(run_dir, 3), ranks=1)[0] == 0
    code, output = torchrun.run(toy(run_dir, 6, "--resume"), ranks=2)
    assert code == 0, output
    assert "going on from iteration 3, with new episodes, as the checkpoint is of 1 ranks" in output
    assert [row["iteration"] for row in curve(run_dir)] == ["1", "2", "3", "4", "5", "6"]
    state = load_checkpoint(run_dir)
    assert state["world_size"] == 2
    assert not any("module." in name for name in state["policy"])
    assert torchrun.run(toy(run_dir, 7, "--resume"), ranks=1)[0] == 0


def test_ranks_end_when_the_agent_that_started_them_is_killed(tmp_path: Path):
    with torchrun.start(toy(tmp_path / "run", 1000, "--env", "sleep=0.03")) as process:
        wait_until(lambda: iteration_of(tmp_path / "run") >= 2, 60)
        ranks = ranks_of(process.pid)
        process.kill()
        process.wait()
        wait_until(lambda: not any(map(torchrun.is_alive, ranks)), 10)
    assert len(ranks) == 2
    assert iteration_of(tmp_path / "run") < 1000


# --------------------------------------------------------------------------------------------------------------- nodes


def test_two_nodes_compute_what_one_node_with_as_many_ranks_does(uninterrupted: Path, tmp_path: Path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = ["--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=test"]
    arguments = toy(tmp_path / "run", 30)
    with (
        torchrun.start(arguments, ranks=1, options=options) as first,
        torchrun.start(arguments, ranks=1, options=options) as second,
    ):
        outputs = [process.communicate(timeout=120)[0] for process in (first, second)]
    assert (first.returncode, second.returncode) == (0, 0), outputs
    assert sum("trained     mean return" in output for output in outputs) == 1, "one of them is rank 0"
    assert same_training(uninterrupted, tmp_path / "run")


# ------------------------------------------------------------------------------------------------------------- failures


@pytest.mark.parametrize("failure", ["build", "step"])
def test_a_rank_that_fails_ends_the_job_with_its_traceback(failure: str, tmp_path: Path):
    start = time.monotonic()
    with torchrun.start(toy(tmp_path / "run", 30, "--env", "failing_rank=1", "--env", f"failure={failure}")) as process:
        wait_until(lambda: len(ranks_of(process.pid)) == 2, 30)
        ranks = ranks_of(process.pid)
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert f"RuntimeError: the toy cannot be {'built' if failure == 'build' else 'stepped'}" in output
    assert "tests/training/toy.py" in output, "the traceback says where"
    assert not any(map(torchrun.is_alive, ranks))
    assert time.monotonic() - start < 50
    if failure == "build":
        assert "rank 1 failed while making its environments: RuntimeError: the toy cannot be built" in output


def test_more_ranks_than_gpus_are_refused_on_every_rank_before_they_meet(tmp_path: Path):
    code, output = torchrun.run(
        ["-m", "genesis_vec.train", torchrun.TOY, "--device", "cuda", "--run-dir", str(tmp_path / "run")],
        CUDA_VISIBLE_DEVICES="5",
    )
    assert code == 1
    message = "LOCAL_WORLD_SIZE=2 ranks on this node, and 1 GPUs for them (CUDA_VISIBLE_DEVICES='5')"
    assert output.count(f"genesis-vec: {message}") >= 1
    assert "--nproc-per-node=1" in output
    assert not (tmp_path / "run").exists()


def test_restarts_without_a_run_dir_are_refused(tmp_path: Path):
    arguments = ["-m", "genesis_vec.train", torchrun.TOY, "--device", "cpu"]
    with torchrun.start(arguments, options=["--standalone", "--max-restarts=1"]) as process:
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "run_dir=None must be given with torchrun's --max-restarts" in output


def test_a_restart_does_not_go_on_with_the_run_of_another_job(tmp_path: Path):
    run_dir = tmp_path / "run"
    assert torchrun.run(toy(run_dir, 2), ranks=1)[0] == 0
    with torchrun.start(toy(run_dir, 4), options=["--standalone", "--max-restarts=1"]) as process:
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert output.count(f"{run_dir} holds a run already") >= 2, "on the restart too"
    assert iteration_of(run_dir) == 2


def by_hand(rank: int, run_dir: Path, port: int, *more: str, cwd: Path = ROOT) -> subprocess.Popen[str]:
    """A rank that is started without torchrun."""
    place = {
        "RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
        "PYTHONPATH": str(ROOT),
    }  # fmt: skip
    return subprocess.Popen(
        [sys.executable, *toy(run_dir, 2, *more)], cwd=cwd, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, env={**os.environ, **place},
    )  # fmt: skip


def test_nodes_with_disks_of_their_own_go_on_wherever_the_newest_checkpoint_is(tmp_path: Path):
    disks = [tmp_path / "one", tmp_path / "other"]
    for disk in disks:
        disk.mkdir()
    for numbering, more in (((0, 1), []), ((1, 0), ["--resume", "--iterations", "4"])):
        ranks = [
            by_hand(rank, Path("run"), 29615, *more, cwd=disk) for rank, disk in zip(numbering, disks, strict=True)
        ]
        outputs = [rank.communicate(timeout=60)[0] for rank in ranks]
        assert [rank.returncode for rank in ranks] == [0, 0], outputs
    assert "going on from iteration 2, with new episodes, as the checkpoint is without them" in outputs[1]
    assert iteration_of(disks[1] / "run") == 4


def test_a_rank_whose_other_hangs_says_so(tmp_path: Path):
    ranks = [
        by_hand(
            rank, tmp_path / "run", 29616, "--iterations", "1000", "--env", "sleep=0.03", "--collective-timeout", "4"
        )
        for rank in range(2)
    ]
    wait_until(lambda: iteration_of(tmp_path / "run") >= 2, 60)
    ranks[1].send_signal(signal.SIGSTOP)
    output, _ = ranks[0].communicate(timeout=60)
    ranks[1].kill()
    ranks[1].communicate()
    assert ranks[0].returncode == 1
    assert (
        "genesis-vec: rank 0 lost another rank, which has failed or took longer than collective_timeout=4 s" in output
    )


def test_ranks_started_with_other_settings_are_told_so(tmp_path: Path):
    ranks = [by_hand(rank, tmp_path / "run", 29613, "--seed", str(rank)) for rank in range(2)]
    outputs = [rank.communicate(timeout=60)[0] for rank in ranks]
    for rank, output in zip(ranks, outputs, strict=True):
        assert rank.returncode == 1
        assert "genesis-vec: rank 1 was started with seed=1 and rank 0 with 0: give all nodes the same" in output


def test_a_rank_whose_others_do_not_come_gives_up_in_time(tmp_path: Path):
    rank = by_hand(0, tmp_path / "run", 29614, "--collective-timeout", "3")
    output, _ = rank.communicate(timeout=60)
    assert rank.returncode == 1
    assert "genesis-vec: rank 0 of 2 did not find the others at 127.0.0.1:29614 within 3 s" in output


# ------------------------------------------------------------------------------------------- what is merged over ranks


def test_statistics_are_merged_by_count_and_a_slow_disk_makes_others_wait_and_nothing_else(tmp_path: Path):
    code, output = torchrun.run([str(ROOT / "tests" / "training" / "two_ranks.py"), str(tmp_path)])
    assert code == 0, output
    expected = {f"iteration-00000{number}{rank}.pt" for number in (3, 4) for rank in ("", ".rank0of2", ".rank1of2")}
    assert {path.name for path in (tmp_path / "checkpoints").iterdir()} == expected
    assert load_checkpoint(tmp_path)["iteration"] == 4


# ----------------------------------------------------------------------------------------------------------- checkpoint


@pytest.mark.slow
def test_killed_in_the_midst_of_saving_there_is_always_a_whole_newest_checkpoint(tmp_path: Path):
    generator = torch.Generator().manual_seed(0)
    run_dir = tmp_path / "run"
    reached = 0
    for _ in range(50):
        arguments = toy(run_dir, 100_000, "--checkpoint-every", "1", "--resume")
        process = subprocess.Popen([sys.executable, *arguments], cwd=ROOT, stdout=subprocess.DEVNULL)
        wait_until(lambda before=reached: iteration_of(run_dir) > before, 60)
        time.sleep(0.2 * torch.rand((), generator=generator).item())
        process.kill()
        process.wait()
        state = load_checkpoint(run_dir)
        assert state["iteration"] > reached
        own = run_dir / "checkpoints" / f"iteration-{state['iteration']:06d}.rank0of1.pt"
        assert torch.load(own, weights_only=True)["iteration"] == state["iteration"]
        reached = state["iteration"]
