"""The real engine across workers: the same bits, the whole contract, faults, rendering, training, restarts."""

from __future__ import annotations

import io
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode
from rich.console import Console

import genesis_vec
from genesis_vec import MultiDeviceVectorEnv, check_vector_env
from genesis_vec.engine import import_genesis
from genesis_vec.errors import EngineBuildError, EnvFaultError, TaskError
from genesis_vec.graphics import has_graphics
from genesis_vec.registry import SHIPPED
from genesis_vec.tasks.cart_pole import CartPoleTask
from genesis_vec.training.checkpoint import load_checkpoint
from genesis_vec.training.config import PPOConfig, TrainConfig
from genesis_vec.training.run import train
from tests.little_tasks import BreakableTask
from tests.multi_device.processes import children_of, wait_until

ROOT = Path(__file__).parents[2]


def assert_same(first: Any, second: Any, where: str = "") -> None:
    """Bitwise, but for durations."""
    if isinstance(first, dict):
        assert list(first) == list(second), where
        for key in first:
            if key != "t":
                assert_same(first[key], second[key], f"{where}/{key}")
    elif isinstance(first, tuple):
        for number, (one, other) in enumerate(zip(first, second, strict=True)):
            assert_same(one, other, f"{where}/{number}")
    else:
        assert first.dtype == second.dtype, where
        assert torch.equal(first, second), where


def random_actions(env: Any, steps: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.rand(steps, env.num_envs, *env.single_action_space.shape, generator=generator) * 2 - 1


SLOW = pytest.mark.slow  # starting two engines takes a quarter of a minute each time
# Enough of a variety for every change: no contacts, contacts of legs, two entities.
OFTEN = {"GenesisCartPole-v0", "GenesisGo2Velocity-v0", "GenesisFrankaLift-v0"}
IDS = [pytest.param(id, marks=() if id in OFTEN else SLOW) for id in SHIPPED]


@pytest.mark.parametrize(
    "layout",
    [
        pytest.param(("cpu:1", 4), id="1x4", marks=SLOW),
        pytest.param(("cpu:2", None), id="2x1", marks=SLOW),
        pytest.param(("cpu:2", 2), id="2x4"),
    ],
)
@pytest.mark.parametrize("env_id", IDS)
def test_scenes_and_workers_change_no_bit(env_id, layout):
    devices, envs_per_scene = layout
    num_envs, limit = 16, 30
    whole = gymnasium.make_vec(env_id, num_envs=num_envs, device="cpu", max_episode_steps=limit)
    parts = gymnasium.make_vec(
        env_id, num_envs=num_envs, devices=devices, envs_per_scene=envs_per_scene, max_episode_steps=limit
    )
    scenes = [len(worker.plan.scenes) for worker in parts.unwrapped.workers]  # type: ignore[attr-defined]
    assert scenes == {("cpu:1", 4): [4], ("cpu:2", None): [1, 1], ("cpu:2", 2): [4, 4]}[layout]
    assert parts.spec is not None and parts.spec.id == env_id
    assert_same(whole.reset(seed=11), parts.reset(seed=11))
    ended = 0
    for step, actions in enumerate(random_actions(whole, 200)):
        expected = whole.step(actions)
        assert_same(expected, parts.step(actions), f"step {step}")
        ended += int(expected[4]["_final_obs"].sum())
        if step == 100:
            options = {"reset_mask": torch.arange(num_envs) % 3 == 0}
            assert_same(whole.reset(options=options), parts.reset(options=options))
    assert ended >= num_envs * 5
    whole.close()
    parts.close()


@pytest.mark.parametrize(
    ("env_id", "mode"),
    [
        pytest.param(
            id,
            mode,
            id=f"{id}-{mode.name}",
            marks=SLOW if id != "GenesisCartPole-v0" and (number or id not in OFTEN) else (),
        )
        for id in SHIPPED
        for number, mode in enumerate([AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED])
    ],
)
def test_every_shipped_id_keeps_the_whole_contract_across_workers(env_id, mode):
    env = gymnasium.make_vec(
        env_id, num_envs=7, devices="cpu:2", envs_per_scene=2, autoreset_mode=mode, max_episode_steps=9
    )
    report = check_vector_env(env, close=True)
    assert report.num_episodes >= 7


def test_b02_a_faulty_environment_hurts_no_other_across_workers():
    env, clean = (MultiDeviceVectorEnv(CartPoleTask, 6, devices="cpu:2", max_episode_steps=None) for _ in range(2))
    env.reset(seed=1)
    clean.reset(seed=1)
    for step in range(30):
        actions = torch.zeros(6, 1)
        broken = actions.clone()
        if step in (5, 9):
            broken[4] = torch.nan if step == 5 else torch.inf
        result, expected = env.step(broken), clean.step(actions)
        others = torch.arange(6) != 4
        for one, other in zip(result[:4], expected[:4], strict=True):
            assert torch.equal(one[others], other[others])
        assert result[4]["fault"].tolist() == [False] * 4 + [step in (5, 9), False]
        assert bool(result[0].isfinite().all())
    env.close()
    clean.close()


def test_on_fault_raise_names_the_environments_by_their_global_indices():
    env = MultiDeviceVectorEnv(CartPoleTask, 8, devices="cpu:2", envs_per_scene=2, on_fault="raise")
    env.reset(seed=0)
    actions = torch.zeros(8, 1)
    actions[[1, 6]] = torch.nan
    with pytest.raises(EnvFaultError, match=r"environments \[1, 6\] are faulty") as caught:
        env.step(actions)
    assert caught.value.env_indices == [1, 6]
    env.reset(seed=0)
    env.step(torch.zeros(8, 1))
    env.close()


def test_a_task_that_breaks_its_contract_is_told_in_its_own_type_with_the_workers_traceback():
    class Careless(CartPoleTask):
        def reward(self) -> torch.Tensor:
            return torch.ones(self.num_envs, 2)

    with pytest.raises(TaskError, match=r"Careless.reward\(\) has shape") as caught:
        MultiDeviceVectorEnv(Careless, 4, devices="cpu:2")
    assert "worker 0 (cpu, environments 0 to 1)" in caught.value.__notes__[0]
    assert "Traceback" in caught.value.__notes__[0]


def test_b22_a_worker_that_runs_out_of_memory_is_told_and_the_rest_cleaned_up():
    class Bounded(CartPoleTask):
        def build(self, scene: Any) -> None:
            super().build(scene)
            if self.num_envs > 100:
                pages = int(Path("/proc/self/statm").read_text().split()[0])
                limit = pages * resource.getpagesize() + (256 << 20)
                resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))

    with pytest.raises(EngineBuildError, match="num_envs=1000000 on cpu"):
        MultiDeviceVectorEnv(Bounded, 2_000_000, devices="cpu:2", envs_per_scene=1_000_000)
    env = MultiDeviceVectorEnv(Bounded, 8, devices="cpu:2")
    env.reset(seed=0)
    env.step(torch.zeros(8, 1))
    env.close()


def test_chosen_environments_are_drawn_whichever_worker_has_them():
    import_genesis()
    if not has_graphics():
        pytest.skip("this machine has no graphics libraries")
    whole = gymnasium.make_vec(
        "GenesisCartPole-v0", num_envs=6, device="cpu", render_mode="rgb_array", render_envs=[1, 5]
    )
    parts = gymnasium.make_vec(
        "GenesisCartPole-v0", num_envs=6, devices="cpu:2", render_mode="rgb_array", render_envs=[1, 5]
    )
    frames = []
    for env in (whole, parts):
        env.reset(seed=3)
        env.step(torch.ones(6, 1))
        frames.append(env.render())
        env.close()
    assert len(frames[0]) == len(frames[1]) == 6
    for one, other in zip(*frames, strict=True):
        assert one.shape == other.shape
        assert bool(np.any(one)) == bool(np.any(other))
    assert [bool(np.any(frame)) for frame in frames[1]] == [False, True, False, False, False, True]


@pytest.mark.parametrize(
    "mode",
    [
        pytest.param(AutoresetMode.SAME_STEP, id="SAME_STEP"),
        pytest.param(AutoresetMode.NEXT_STEP, id="NEXT_STEP", marks=SLOW),
        pytest.param(AutoresetMode.DISABLED, id="DISABLED", marks=SLOW),
    ],
)
def test_a_killed_worker_is_replaced_in_every_mode_and_the_others_feel_nothing(mode):
    limit = 5
    settings = {"devices": "cpu:2", "autoreset_mode": mode, "max_episode_steps": limit}
    env = MultiDeviceVectorEnv(BreakableTask(terminates=False), 5, on_worker_failure="restart", **settings)
    clean = MultiDeviceVectorEnv(BreakableTask(terminates=False), 5, **settings)
    assert_same(env.reset(seed=2), clean.reset(seed=2))
    rows = env.workers[1].plan.rows
    assert (rows.start, rows.stop) == (2, 5)
    others = torch.arange(5) < rows.start
    for step in range(1, 14):
        if step == 4:
            os.kill(env.workers[1].process.pid, signal.SIGKILL)
        actions = torch.full((5, 1), 0.1)
        result, expected = env.step(actions), clean.step(actions)
        for one, other in zip(result[:4], expected[:4], strict=True):
            assert torch.equal(one[others], other[others])
        mine = ~others
        if step == 3:
            last = result[0].clone()
        if step == 4:
            assert result[3].tolist() == mine.tolist()
            assert result[4]["fault"].tolist() == mine.tolist()
            assert result[4]["_episode"].tolist() == mine.tolist()
            assert result[4]["episode"]["l"].tolist() == [0, 0, 3, 3, 3]
            if mode is AutoresetMode.SAME_STEP:
                assert torch.equal(result[4]["final_obs"][mine], last[mine])
                assert not torch.equal(result[0][mine], last[mine])
            else:
                assert torch.equal(result[0][mine], last[mine])
        if step == 5 and mode is AutoresetMode.NEXT_STEP:
            assert not result[3][mine].any()
            assert not torch.equal(result[0][mine], last[mine])
        if step > 4 and mode is AutoresetMode.DISABLED:
            assert torch.equal(result[0][mine], last[mine])
            assert result[3][mine].all()
    env.close()
    clean.close()


# --------------------------------------------------------------------------------------------------------- training


def config(run_dir: Path, iterations: int = 4, **kwargs: Any) -> TrainConfig:
    ppo = PPOConfig(rollout_steps=8, minibatches=2, epochs=2, hidden_sizes=(8,))
    return TrainConfig(
        env_id="GenesisCartPole-v0",
        num_envs=16,
        iterations=iterations,
        device="cpu",
        run_dir=run_dir,
        ppo=ppo,
        **kwargs,
    )


def test_training_does_not_change_with_scenes_and_workers(tmp_path):
    policies = []
    for name, kwargs in (("whole", {}), ("parts", {"devices": "cpu:2", "env": ("envs_per_scene=4",)})):
        result = train(config(tmp_path / name, **kwargs), Console(file=io.StringIO()))
        policies.append(load_checkpoint(result.checkpoint)["policy"])
    assert list(policies[0]) == list(policies[1])
    for name, value in policies[0].items():
        assert torch.equal(value, policies[1][name]), name


def test_training_goes_on_after_a_worker_is_killed(tmp_path):
    code = (
        "from tests.multi_device.test_engine import *; from pathlib import Path; import sys; "
        "train(config(Path(sys.argv[1]), 400, devices='cpu:2', env=('on_worker_failure=restart',)))"
    )
    run = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "run")], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, cwd=ROOT,
    )  # fmt: skip
    progress = tmp_path / "run" / "progress.csv"
    wait_until(lambda: progress.exists() and len(progress.read_text().splitlines()) > 5, 120)
    os.kill(children_of(run.pid)[-1], signal.SIGKILL)
    output, _ = run.communicate(timeout=120)
    assert run.returncode == 0, output
    assert "started anew" in output
    assert len(progress.read_text().splitlines()) == 401


@SLOW
def test_a_cold_kernel_cache_is_compiled_once_by_the_first_worker(tmp_path, monkeypatch):
    """A cart-pole's kernels compile in seconds; the cache is a new one."""
    monkeypatch.setenv("QD_OFFLINE_CACHE_FILE_PATH", str(tmp_path / "kernels"))
    env = MultiDeviceVectorEnv(CartPoleTask, 4, devices="cpu:2")
    env.close()
    marks = [path for path in (tmp_path / "kernels").rglob("genesis_vec-*")]
    assert len(marks) == 1
    kernels = {path for path in (tmp_path / "kernels").rglob("*.qdc")}
    assert kernels
    again = MultiDeviceVectorEnv(CartPoleTask, 4, devices="cpu:2")
    again.close()
    assert {path for path in (tmp_path / "kernels").rglob("*.qdc")} == kernels


def test_the_public_name_is_there():
    assert genesis_vec.MultiDeviceVectorEnv is MultiDeviceVectorEnv
