"""Two workers on one GPU: device to device by CUDA IPC, and through host memory where that cannot be."""

from __future__ import annotations

import warnings

import pytest
import torch

from genesis_vec import MultiDeviceVectorEnv, check_vector_env
from genesis_vec.tasks.cart_pole import CartPoleTask

pytestmark = pytest.mark.gpu


def make(**kwargs: object) -> MultiDeviceVectorEnv:
    return MultiDeviceVectorEnv(CartPoleTask, 9, devices="cuda:0,0", max_episode_steps=9, **kwargs)  # type: ignore[arg-type]


def test_two_workers_on_one_gpu_keep_the_whole_contract_on_the_device():
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # host memory in between would be a warning
        env = make()
    assert env.device == torch.device("cuda:0")
    report = check_vector_env(env)
    assert report.num_episodes >= 9
    env.close()


def test_batches_through_host_memory_are_the_same():
    direct, through_host = make(), make(device="cpu")
    assert torch.equal(direct.reset(seed=3)[0].cpu(), through_host.reset(seed=3)[0])
    generator = torch.Generator().manual_seed(0)
    for _ in range(50):
        actions = torch.rand(9, 1, generator=generator) * 2 - 1
        for one, other in zip(direct.step(actions.cuda())[:4], through_host.step(actions)[:4], strict=True):
            assert torch.equal(one.cpu(), other)
    direct.close()
    through_host.close()


def test_b29_expandable_segments_fall_back_to_host_memory(monkeypatch):
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    with pytest.warns(UserWarning, match="expandable_segments"):
        env = make()
    obs, _ = env.reset(seed=0)
    kept = env.step(torch.zeros(9, 1, device="cuda"))[0]
    copy = kept.clone()
    env.close()
    assert bool(obs.isfinite().all())
    assert torch.equal(kept, copy)  # it stays valid when its worker is gone
