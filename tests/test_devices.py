"""Names of devices: what is picked, said and refused. What a GPU would add is told to torch by a monkeypatch."""

from __future__ import annotations

import logging
import sys
import warnings
from pathlib import Path

import pytest
import torch

from genesis_vec.devices import ProcessDevice, parse_devices, pin_process, resolve_device, usable_cores
from genesis_vec.errors import DeviceNotFoundError, DevicePinningError


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


# ------------------------------------------------------------------------------ devices for processes of their own


@pytest.fixture
def gpus(monkeypatch):
    """Says how many GPUs the driver knows of."""

    def set_count(count):
        monkeypatch.setattr("genesis_vec.devices._count_gpus", lambda: count)

    set_count(0)
    return set_count


def seen(listed: str) -> dict[str, str]:
    return {"CUDA_VISIBLE_DEVICES": listed}


def gpu_device(index: int, entry: str) -> ProcessDevice:
    # Only a number has a place in the variable of the engine's compiler.
    compiler = {"QD_VISIBLE_DEVICE": entry} if entry.isdecimal() else {}
    return ProcessDevice(f"cuda:{index}", index, {"CUDA_VISIBLE_DEVICES": entry, **compiler})


CPU = ProcessDevice("cpu", None, {})


@pytest.mark.parametrize(
    ("devices", "indices"),
    [
        ("cuda", [0, 1, 2]),
        ("auto", [0, 1, 2]),
        ("cuda:1", [1]),
        ("cuda:2,0", [2, 0]),
        ("cuda:1,1", [1, 1]),
        (2, [2]),
        ([0, 2], [0, 2]),
        (["cuda:1", "cuda:0"], [1, 0]),
        (("cuda:0", "cuda:0"), [0, 0]),
        ([torch.device("cuda", 1), 0, "cuda:2"], [1, 0, 2]),
        (iter(["cuda:2"]), [2]),
    ],
    ids=repr,
)
def test_b11_gpus_are_counted_within_the_inherited_list_and_passed_on_as_they_are_called(devices, indices):
    entries = ["5", "GPU-abc", "MIG-1/2/3"]
    parsed = parse_devices(devices, seen("5, GPU-abc ,MIG-1/2/3"))
    assert parsed == [gpu_device(index, entries[index]) for index in indices]
    assert {device.local_name for device in parsed} == {"cuda:0"}


@pytest.mark.parametrize(
    ("devices", "count"), [("cpu", 1), ("cpu:1", 1), ("cpu:3", 3), (["cpu"], 1), (["cpu", torch.device("cpu")], 2)]
)
def test_a_cpu_stands_for_a_process_each_and_changes_no_variable(devices, count):
    assert parse_devices(devices, seen("0,1")) == [CPU] * count
    assert CPU.local_name == "cpu"


def test_without_the_variable_the_driver_is_asked_how_many_gpus_there_are(gpus):
    gpus(2)
    assert parse_devices("cuda", {}) == [gpu_device(0, "0"), gpu_device(1, "1")]
    with pytest.raises(
        DeviceNotFoundError,
        match=r"'cuda:2' was asked for, and this process sees 2 GPUs \(CUDA_VISIBLE_DEVICES is not set\)",
    ):
        parse_devices("cuda:2", {})


@pytest.mark.parametrize(
    ("listed", "entries"),
    [("3,-1,4", ["3"]), ("3,,4", ["3"]), ("3,", ["3"]), (" 3 , 4 ", ["3", "4"]), ("0,0", ["0", "0"])],
)
def test_the_inherited_list_ends_where_cuda_ends_it(gpus, listed, entries):
    gpus(8)
    assert parse_devices("cuda", seen(listed)) == [gpu_device(index, entry) for index, entry in enumerate(entries)]


@pytest.mark.parametrize("listed", ["", "-1", " ", "-1,0"])
@pytest.mark.parametrize("devices", ["cuda", "cuda:0", 0, [0], ["cuda:0"]], ids=repr)
def test_b32_an_empty_list_means_no_gpu_whatever_the_driver_says(gpus, listed, devices):
    gpus(8)
    with pytest.raises(DeviceNotFoundError, match=rf"CUDA_VISIBLE_DEVICES={listed!r}"):
        parse_devices(devices, seen(listed))


def test_b32_auto_without_a_gpu_takes_each_core_and_says_so(gpus, monkeypatch):
    monkeypatch.setattr("genesis_vec.devices.usable_cores", lambda: 3)
    with pytest.warns(
        UserWarning, match=r"^devices='auto' picked 3 CPU processes: no GPU .*''\). Pass devices='cpu:3'"
    ):
        assert parse_devices("auto", seen("")) == [CPU] * 3


@pytest.mark.parametrize("devices", ["cuda:2", "cuda:0,2", 2, -1, [0, 2]], ids=repr)
def test_b11_a_gpu_beyond_the_inherited_list_is_refused(devices):
    with pytest.raises(DeviceNotFoundError, match=r"'cuda:(2|-1)' .* sees 2 GPUs \(CUDA_VISIBLE_DEVICES='6,7'\)"):
        parse_devices(devices, seen("6,7"))


@pytest.mark.parametrize(
    ("devices", "message"),
    [
        ("gpu", "devices='gpu' is not understood; use 'auto', 'cuda'"),
        ("", "is not understood"),
        ("cuda:x", "devices='cuda:x' is not understood"),
        ("cuda:0,", "is not understood"),
        ("cuda:-1", "is not understood"),
        ("cpu:-1", "is not understood"),
        ("cpu:1.5", "is not understood"),
        ("cpu:0", "asks for 0 processes; at least 1 is needed"),
        (True, "devices=True is not understood"),
        (1.5, "devices=1.5 is not understood"),
        (None, "devices=None is not understood"),
        ([], "must name at least one device"),
        (["cuda:0", "cpu"], "GPUs only or the CPU only"),
        (["cuda"], "'cuda' in a list must name one device"),
        (["cpu:2"], "'cpu:2' in a list must name one device"),
        (["cuda:0,1"], "'cuda:0,1' in a list must name one device"),
        ([True], "devices=True is not understood"),
        (["auto"], "'auto' in a list must name one device"),
        ([["cuda:0"]], "must name one device"),
    ],
    ids=repr,
)
def test_what_names_no_devices_is_refused(devices, message):
    with pytest.raises(ValueError, match=message):
        parse_devices(devices, seen("0,1"))


def test_the_environment_is_only_read_and_by_default_this_process_has_it(monkeypatch):
    environment = seen("4")
    parse_devices("cuda", environment)
    assert environment == seen("4")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "9")
    assert parse_devices("cuda") == [gpu_device(0, "9")]


def test_pinning_sets_the_variables_before_torch_is_imported(monkeypatch):
    for module in ("torch", "genesis"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    environment = {"CUDA_VISIBLE_DEVICES": "0,1", "HOME": "/root"}
    pin_process(gpu_device(1, "1"), environment)
    assert environment == {"CUDA_VISIBLE_DEVICES": "1", "QD_VISIBLE_DEVICE": "1", "HOME": "/root"}


@pytest.mark.parametrize("module", ["torch", "genesis"])
def test_pinning_too_late_is_refused_and_changes_nothing(monkeypatch, module):
    for name in ("torch", "genesis"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, module, torch)
    environment = seen("0,GPU-abc")
    with pytest.raises(DevicePinningError, match=rf"too late to pin this process to cuda:1 .*GPU-abc.*: {module} is"):
        pin_process(gpu_device(1, "GPU-abc"), environment)
    assert environment == seen("0,GPU-abc")


def test_pinning_what_is_pinned_already_is_never_too_late():
    assert "torch" in sys.modules
    environment = {"CUDA_VISIBLE_DEVICES": "5", "QD_VISIBLE_DEVICE": "5"}
    pin_process(gpu_device(0, "5"), environment)
    pin_process(CPU, environment)
    assert environment == {"CUDA_VISIBLE_DEVICES": "5", "QD_VISIBLE_DEVICE": "5"}


@pytest.mark.parametrize(
    ("limit", "cores"),
    [
        ("max 100000", 4),  # no limit
        (None, 4),  # not in a container
        ("250000 100000", 2),
        ("50000 100000", 1),
        ("900000 100000", 4),
    ],
)
def test_usable_cores_keep_to_affinity_and_the_containers_limit(monkeypatch, limit, cores):
    def read_text(path):
        assert str(path) == "/sys/fs/cgroup/cpu.max"
        if limit is None:
            raise FileNotFoundError(path)
        return f"{limit}\n"

    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 2, 4, 6})
    monkeypatch.setattr(Path, "read_text", read_text)
    assert usable_cores() == cores
