"""Names of devices: what is picked, said and refused. What a GPU would add is told to torch by a monkeypatch."""

from __future__ import annotations

import logging
import warnings

import pytest
import torch

from genesis_vec.devices import resolve_device
from genesis_vec.errors import DeviceNotFoundError


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.fixture
def gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: f"Fake GPU {index}")


@pytest.mark.parametrize("name", ["cpu", "cpu:0", torch.device("cpu")], ids=repr)
def test_the_cpu_has_no_index(name):
    device = resolve_device(name)
    assert (device.type, device.index) == ("cpu", None)


@pytest.mark.parametrize("name", ["cuda", "cuda:0", torch.device("cuda"), torch.device("cuda", 0)], ids=repr)
def test_a_gpu_has_its_index(gpu, name):
    assert resolve_device(name) == torch.device("cuda", 0)


@pytest.mark.parametrize("name", ["cuda", "cuda:0", "cuda:3", torch.device("cuda")], ids=repr)
@pytest.mark.parametrize(
    ("variable", "said"), [("", "CUDA_VISIBLE_DEVICES=''"), (None, "CUDA_VISIBLE_DEVICES is not set")]
)
def test_b32_a_gpu_that_is_not_there_is_an_error_and_never_the_cpu(no_gpu, monkeypatch, name, variable, said):
    if variable is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", variable)
    with pytest.raises(DeviceNotFoundError) as raised:
        resolve_device(name)
    assert str(raised.value) == (
        f"device={str(name)!r} was asked for, and this process sees no GPU ({said}). Check the driver and that "
        "variable, or pass device='cpu'."
    )


def test_b32_auto_says_when_it_picks_the_cpu(no_gpu, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.warns(UserWarning, match=r"^device='auto' picked the CPU: .*CUDA_VISIBLE_DEVICES=''.*device='cpu'"):
        assert resolve_device("auto") == torch.device("cpu")


def test_auto_picks_the_first_gpu_and_logs_it_without_a_warning(gpu, caplog):
    with warnings.catch_warnings(), caplog.at_level(logging.INFO, "genesis_vec"):
        warnings.simplefilter("error")
        assert resolve_device("auto") == torch.device("cuda", 0)
    assert caplog.messages == ["device='auto' picked cuda:0 (Fake GPU 0)"]


def test_a_gpu_other_than_the_first_is_refused_with_the_way_to_use_it(gpu):
    with pytest.raises(DeviceNotFoundError, match=r"device='cuda:2'.*CUDA_VISIBLE_DEVICES=2 and use 'cuda:0'"):
        resolve_device("cuda:2")


@pytest.mark.parametrize("name", ["gpu", "", "cuda:x", "cuda:-1", "cpu:2:3", None, 1.5], ids=repr)
def test_what_is_no_device_is_refused_with_those_that_are(gpu, name):
    with pytest.raises(ValueError, match=r"is not a device; use 'auto', 'cpu', 'cuda' or 'cuda:0'"):
        resolve_device(name)


@pytest.mark.parametrize("name", ["meta", "mps", "xpu:1"])
def test_other_kinds_of_devices_are_refused(gpu, name):
    with pytest.raises(ValueError, match=f"device='{name}': only 'cpu' and 'cuda' devices are supported"):
        resolve_device(name)
