"""On a GPU: everything stays there, the host never waits, and the numbers are those of the CPU where they can be.

Run on its own, `pytest tests/gpu`: the engine runs on one device per process.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode

from genesis_vec.checks import check_vector_env
from genesis_vec.errors import DeviceNotFoundError, EngineConflictError
from genesis_vec.registry import SHIPPED
from genesis_vec.streams import EnvStreams
from tests.wrappers.support import ALL_MODES, exempt_engine, tensors_in

pytestmark = pytest.mark.gpu
NUM_ENVS, LIMIT = 8, 6
EACH_ID = pytest.mark.parametrize("id", SHIPPED)


@pytest.fixture
def make_gpu_env() -> Iterator[Callable[..., Any]]:
    made: list[Any] = []

    def make(id: str, **kwargs: Any) -> Any:
        defaults = {"num_envs": NUM_ENVS, "device": "cuda", "max_episode_steps": LIMIT}
        made.append(gymnasium.make_vec(id, **{**defaults, **kwargs}))
        return made[-1]

    yield make
    for env in made:
        env.close()


@contextlib.contextmanager
def sync_debug_mode(mode: str) -> Iterator[None]:
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode(mode)
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


def let_engine_wait(env: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    exempt_engine(env.unwrapped, monkeypatch, lambda: sync_debug_mode("default"))


def actions_of(env: Any, num_steps: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return (torch.rand(num_steps, *env.action_space.shape, generator=generator) * 2 - 1).cuda()


@ALL_MODES
@EACH_ID
def test_every_shipped_id_keeps_the_whole_contract(make_gpu_env, id, mode):
    env = make_gpu_env(id, autoreset_mode=mode)
    assert check_vector_env(env, num_steps=30, close=True).not_checked == ()


@ALL_MODES
@EACH_ID
def test_a_step_never_makes_the_host_wait(make_gpu_env, monkeypatch, id, mode):
    env = make_gpu_env(id, autoreset_mode=mode)
    env.reset(seed=0)
    actions = actions_of(env, 15)
    actions[7, 1] = torch.nan
    env.step(actions[0])  # what is allocated in a first step only may wait
    let_engine_wait(env, monkeypatch)
    results = []
    with sync_debug_mode("error"):
        for action in actions:
            results.append(env.step(action))
            if mode is AutoresetMode.DISABLED:
                env.reset(options={"reset_mask": results[-1][2] | results[-1][3]})
    assert torch.stack([result[-1]["_episode"] for result in results]).any(dim=0).all()
    faults = torch.stack([result[-1]["fault"] for result in results]).sum(dim=0)
    assert faults.tolist() == [0, 1] + [0] * (NUM_ENVS - 2)


def test_the_test_above_notices_a_step_that_waits(make_gpu_env, monkeypatch):
    env = make_gpu_env("GenesisCartPole-v0")
    env.reset(seed=0)
    env.step(actions_of(env, 1)[0])
    let_engine_wait(env, monkeypatch)
    original = env.unwrapped._observe
    monkeypatch.setattr(env.unwrapped, "_observe", lambda: (env.unwrapped._all.any().item(), original())[1])
    with sync_debug_mode("error"), pytest.raises(RuntimeError, match="synchronizing"):
        env.step(actions_of(env, 1)[0])


@EACH_ID
def test_every_tensor_is_on_the_gpu_whatever_the_actions_came_from(make_gpu_env, id):
    env = make_gpu_env(id)
    device = torch.device("cuda", 0)
    assert env.unwrapped.device == device
    tensors = tensors_in(env.reset(seed=0))
    action = actions_of(env, 1)[0]
    for given in (action, action.cpu(), action.cpu().numpy(), action.double()):
        tensors += tensors_in(env.step(given))
    tensors += tensors_in(env.reset(options={"reset_mask": np.arange(NUM_ENVS) == 2}))
    assert len(tensors) > 40
    assert {tensor.device for tensor in tensors} == {device}


@EACH_ID
def test_a_run_repeats_bit_by_bit(make_gpu_env, id):
    env = make_gpu_env(id)
    runs = []
    for _ in range(2):
        results = [env.reset(seed=3)[0]]
        results += [tensor for action in actions_of(env, 20) for tensor in env.step(action)[:4]]
        runs.append(results)
    torch.testing.assert_close(*runs, rtol=0, atol=0)


def test_a_faulty_environment_is_truncated_alone(make_gpu_env):
    env = make_gpu_env("GenesisCartPole-v0", max_episode_steps=20)
    runs = []
    for broken in (False, True):
        env.reset(seed=0)
        results = []
        for step, action in enumerate(actions_of(env, 12)):
            if broken and step == 5:
                action[1] = torch.nan
            results.append(env.step(action))
        runs.append(results)
    others = torch.arange(NUM_ENVS, device="cuda") != 1
    for clean, result in zip(*runs, strict=True):
        torch.testing.assert_close([t[others] for t in result[:4]], [t[others] for t in clean[:4]], rtol=0, atol=0)
        assert all(tensor.isfinite().all() for tensor in tensors_in(result))
    assert [bool(result[-1]["fault"][1]) for result in runs[1]] == [step == 5 for step in range(12)]
    assert runs[1][5][3][1]


def test_streams_are_those_of_the_cpu():
    gpu, cpu = EnvStreams(64, torch.device("cuda", 0), 5), EnvStreams(64, torch.device("cpu"), 5)
    for streams in (gpu, cpu):
        streams.seed(9)
        streams.begin_episode(torch.ones(64, dtype=torch.bool, device=streams.device))
    one, other = gpu.select(None), cpu.select(None)
    torch.testing.assert_close(one.uniform(33).cpu(), other.uniform(33), rtol=0, atol=0)
    torch.testing.assert_close(one.integers(0, 1000, 33).cpu(), other.integers(0, 1000, 33), rtol=0, atol=0)
    torch.testing.assert_close(one.normal(33).cpu(), other.normal(33), rtol=1e-6, atol=1e-6)


def test_steps_do_not_pile_up_device_memory(make_gpu_env):
    env = make_gpu_env("GenesisCartPole-v0", num_envs=1024)
    env.reset(seed=0)
    actions = actions_of(env, 1)[0]
    for _ in range(2 * LIMIT):
        env.step(actions)
    before = torch.cuda.memory_allocated()
    for _ in range(20 * LIMIT):
        env.step(actions)
    assert torch.cuda.memory_allocated() <= before + 1024 * 64


def test_auto_is_the_gpu_and_another_than_the_first_is_refused(make_gpu_env):
    assert make_gpu_env("GenesisCartPole-v0", device="auto").unwrapped.device == torch.device("cuda", 0)
    with pytest.raises(DeviceNotFoundError, match="drives only the first GPU"):
        make_gpu_env("GenesisCartPole-v0", device="cuda:1")
    with pytest.raises(EngineConflictError, match=r"device='cpu' \(it runs with 'cuda'\)"):
        make_gpu_env("GenesisCartPole-v0", device="cpu")


def test_frames_are_drawn_beside_a_simulation_on_the_gpu(make_gpu_env):
    env = make_gpu_env("GenesisCartPole-v0", num_envs=2, render_mode="rgb_array")
    env.reset(seed=0)
    frames = env.render()
    assert [(type(frame), frame.shape, frame.dtype) for frame in frames] == [(np.ndarray, (240, 320, 3), np.uint8)] * 2
    assert all(frame.std() > 5 for frame in frames)
