"""The contract across workers, with environments that cost nothing: no engine."""

from __future__ import annotations

import copy
import multiprocessing
import os
import pickle
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode

from genesis_vec import MultiDeviceVectorEnv, check_vector_env
from genesis_vec.errors import (
    ClosedEnvironmentError,
    DeviceNotFoundError,
    GenesisVecError,
    StateUnavailableError,
    WorkerError,
)
from genesis_vec.wrappers import NormalizeObservation, RecordEpisodeStatistics
from tests.fakes import CounterEnv
from tests.multi_device.fakes import PartOfCounterEnv, actions, same_step

MODES = list(AutoresetMode)


def make(num_envs: int = 7, devices: object = "cpu:2", **kwargs: object) -> MultiDeviceVectorEnv:
    options = {name: kwargs.pop(name) for name in list(kwargs) if name in ("envs_per_scene", "timeout", "device")}
    return MultiDeviceVectorEnv(same_step(**kwargs), num_envs, devices=devices, **options)  # type: ignore[arg-type]


def assert_same(first: object, second: object) -> None:
    if isinstance(first, dict):
        assert isinstance(second, dict)
        assert list(first) == list(second)
        for key in first:
            if key != "t":
                assert_same(first[key], second[key])
    elif isinstance(first, tuple):
        for one, other in zip(first, second, strict=True):  # type: ignore[call-overload]
            assert_same(one, other)
    else:
        assert torch.equal(first, second)  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_workers_and_scenes_give_what_one_environment_gives(mode):
    settings = {"autoreset_mode": mode, "limit": 4, "terminate_at": 3, "dict_obs": True}
    whole, parts = CounterEnv(7, **settings), make(envs_per_scene=2, **settings)
    assert [worker.plan.scenes for worker in parts.workers] == [[(0, 3)], [(3, 2), (5, 2)]]
    assert_same(whole.reset(seed=3), parts.reset(seed=3))
    for step in range(12):
        assert_same(whole.step(actions(7)), parts.step(actions(7)))
        if step == 5:
            mask = torch.tensor([False, True, False, False, True, True, False])
            options = {"reset_mask": mask}
            assert_same(whole.reset(options=options), parts.reset(options=options))
            assert list(options) == ["reset_mask"]
    assert_same(whole.reset(seed=list(range(7))), parts.reset(seed=list(range(7))))
    check_vector_env(parts, close=True)


def test_b10_what_was_given_never_changes():
    env = make()
    env.reset(seed=0)
    kept = env.step(actions(7))
    copies = [leaf.clone() for leaf in kept[:4]]
    for _ in range(5):
        env.step(actions(7))
    env.reset()
    for leaf, copied in zip(kept[:4], copies, strict=True):
        assert torch.equal(leaf, copied)
    env.close()


def test_a_step_can_be_started_and_fetched_later():
    env = make()
    with pytest.raises(ValueError, match="step_async"):
        env.step_wait()
    with pytest.raises(ValueError, match=r"reset\(\) first"):
        env.step_async(actions(7))
    env.reset(seed=0)
    given = torch.rand(7, 2)
    env.step_async(given)
    given.fill_(torch.nan)  # they were copied
    for method in (env.step_async, env.step):
        with pytest.raises(ValueError, match="step_wait"):
            method(given)
    with pytest.raises(ValueError, match="step_wait"):
        env.reset()
    assert env.step_wait()[1].tolist() == [1.0] * 7
    received = [tensors[-1] for tensors in env.call("received_actions")]
    assert bool(torch.cat(received).isfinite().all())
    env.close()


def test_actions_arrive_as_they_are_whatever_they_come_in():
    env = make()
    env.reset(seed=0)
    expected = torch.linspace(-1, 1, 14).reshape(7, 2)
    for given in (expected, expected.double(), expected.numpy(), expected.tolist()):
        env.step(given)
        assert torch.allclose(torch.cat([tensors[-1] for tensors in env.call("received_actions")]), expected)
    with pytest.raises(ValueError, match=r"shape \(6, 2\), expected \(7, 2\)"):
        env.step(expected[:6])
    with pytest.raises(ValueError, match="must be numbers"):
        env.step("left")
    env.step(expected)  # a refused step is no step
    env.close()


def test_bad_seeds_and_masks_are_refused_and_change_nothing():
    env = make()
    env.reset(seed=0)
    for seed in (-1, 1.5, True, "1", 1 << 64):
        with pytest.raises(ValueError, match="seed"):
            env.reset(seed=seed)
    with pytest.raises(ValueError, match="6 seeds for 7"):
        env.reset(seed=[0] * 6)
    with pytest.raises(ValueError, match="reset_mask"):
        env.reset(options={"reset_mask": [0, 1]})
    with pytest.raises(ValueError, match="reset_mask"):
        env.reset(options={"reset_mask": np.zeros(6, dtype=bool)})
    assert env.step(actions(7))[0][:, 2].tolist() == [1.0] * 7
    env.close()


def test_b04_unseeded_environments_differ_between_workers_and_from_run_to_run():
    env, again = make(dict_obs=True), make(dict_obs=True)
    first, second = env.reset()[0]["noise"], again.reset()[0]["noise"]
    assert len({tuple(row) for row in torch.cat([first, second]).tolist()}) == 14
    assert not torch.equal(env.reset()[0]["noise"], first)
    env.close()
    again.close()


def test_b13_one_environment_keeps_its_batch_axis_and_none_is_refused():
    env = make(num_envs=1, devices="cpu:1")
    assert env.reset(seed=0)[0].shape == (1, 3)
    obs, reward, terminated, truncated, _ = env.step(actions(1))
    assert (obs.shape, reward.shape, terminated.shape, truncated.shape) == ((1, 3), (1,), (1,), (1,))
    env.close()
    with pytest.raises(ValueError, match="num_envs"):
        make(num_envs=0)


def test_too_few_environments_start_fewer_workers_and_say_so():
    with pytest.warns(UserWarning, match="too few for 4 workers"):
        env = make(num_envs=5, devices="cpu:4")
    assert [worker.plan.scenes for worker in env.workers] == [[(0, 2)], [(2, 3)]]
    env.close()


def test_wrappers_take_it_as_any_environment():
    env = RecordEpisodeStatistics(NormalizeObservation(make(limit=3)))
    env.reset(seed=0)
    for _ in range(3):
        _, _, _, truncated, info = env.step(actions(7))
    assert truncated.tolist() == [True] * 7
    assert info["episode"]["l"].tolist() == [3] * 7
    assert info["episode"]["r"].tolist() == [6.0] * 7
    env.close()


def test_closing_twice_is_fine_and_stepping_afterwards_is_not():
    env = make()
    env.reset(seed=0)
    processes = [worker.process for worker in env.workers]
    env.close()
    env.close()
    assert [process.returncode for process in processes] == [0, 0]
    for call in (lambda: env.step(actions(7)), env.reset, env.step_wait, lambda: env.call("report")):
        with pytest.raises(ClosedEnvironmentError):
            call()


def test_an_environment_that_is_forgotten_takes_its_workers_along():
    env = make()
    processes = [worker.process for worker in env.workers]
    del env
    assert [process.wait(10) for process in processes] == [0, 0]


def test_several_at_once_do_not_get_in_each_others_way():
    envs = [make(num_envs=4, limit=limit) for limit in (2, 3)]
    for env in envs:
        env.reset(seed=0)
    for env in envs:
        env.step_async(actions(4))
    assert [env.step_wait()[1].tolist() for env in envs] == [[1.0] * 4] * 2
    envs[0].close()
    assert envs[1].step(actions(4))[1].tolist() == [2.0] * 4
    envs[1].close()


def test_methods_of_every_scene_can_be_called():
    env = make(num_envs=8, envs_per_scene=2)
    env.reset(seed=0)
    assert [report["pid"] for report in env.call("report")] == [
        env.workers[0].process.pid, env.workers[0].process.pid, env.workers[1].process.pid, env.workers[1].process.pid
    ]  # fmt: skip
    assert env.call("first_env_index") == (0, 2, 4, 6)
    with pytest.raises(WorkerError, match="no_such_thing"):
        env.call("no_such_thing")
    assert env.step(actions(8))[1].tolist() == [1.0] * 8, "a wrong name harms nothing"


def test_a_message_larger_than_a_connection_holds_arrives():
    env = make(num_envs=4)
    env.reset(seed=0)
    answer = env.call("echo", "x" * 1_000_000)
    assert [len(text) for text in answer] == [1_000_000] * len(answer)


def test_an_environment_of_a_function_s_making_has_no_state_and_none_can_be_copied():
    env = make(num_envs=4)
    env.reset(seed=0)
    with pytest.raises(StateUnavailableError, match="a function makes cannot save or restore"):
        env.state_dict()
    for copied in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="cannot be copied or pickled"):
            copied(env)
    assert env.step(actions(4))[1].tolist() == [1.0] * 4


def test_settings_out_of_range_are_refused_at_once():
    for name, value in (
        ("envs_per_scene", 1),
        ("envs_per_scene", 2.5),
        ("timeout", 0),
        ("timeout", "60"),
        ("timeout", True),
        ("start_timeout", -1),
        ("on_worker_failure", "pray"),
        ("max_restarts", -1),
        ("egl_device_ids", [1]),
        ("egl_device_ids", [0, -1]),
    ):
        with pytest.raises(ValueError, match=re.escape(f"{name}={value!r}")):
            MultiDeviceVectorEnv(same_step(), 4, devices="cpu:2", **{name: value})
    with pytest.raises(DeviceNotFoundError, match="cuda"):
        make(device="cuda:3")
    with pytest.raises(ValueError, match="teapot"):
        make(device="teapot")
    with pytest.raises(ValueError, match="devices"):
        make(devices="cpu:0")


# ------------------------------------------------------------------------------------------------- devices (B03, B11)


@pytest.mark.parametrize(
    ("visible", "devices", "expected"),
    [
        ("2,3", [0, 1], ["2", "3"]),
        ("2,3", ["cuda:1", "cuda:0"], ["3", "2"]),
        ("7,GPU-abc,MIG-1/2", "cuda:1,2", ["GPU-abc", "MIG-1/2"]),
        ("5", "cuda:0,0", ["5", "5"]),
    ],
)
def test_b03_b11_workers_are_pinned_before_anything_is_imported(monkeypatch, visible, devices, expected):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    for name in ("QD_VISIBLE_DEVICE", "EGL_DEVICE_ID"):
        monkeypatch.delenv(name, raising=False)
    before = dict(os.environ)
    env = MultiDeviceVectorEnv(same_step(), 4, devices=devices, device="cpu", egl_device_ids=[4, 0])
    env.reset(seed=0)
    reports = env.call("report")
    for worker, name in zip(env.workers, expected, strict=True):
        # As the process was started: before anything at all could be imported.
        initial = Path(f"/proc/{worker.process.pid}/environ").read_text().split("\0")
        assert f"CUDA_VISIBLE_DEVICES={name}" in initial
    assert [report["EGL_DEVICE_ID"] for report in reports] == ["4", "0"]
    assert [report["CUDA_VISIBLE_DEVICES"] for report in reports] == expected
    assert [report["QD_VISIBLE_DEVICE"] for report in reports] == [
        name if name.isdecimal() else None for name in expected
    ]
    assert [worker.plan.device.local_name for worker in env.workers] == ["cuda:0", "cuda:0"]
    assert dict(os.environ) == before
    env.close()


def test_b32_a_gpu_that_is_not_there_is_an_error(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(DeviceNotFoundError, match="CUDA_VISIBLE_DEVICES=''"):
        make(devices="cuda")


# ------------------------------------------------------------------------------------------ how processes start (B30)


def test_b17_the_global_start_method_stays_as_it_is():
    before = multiprocessing.get_start_method(allow_none=True)  # which TorchRL sets where another test imported it
    env = make()
    assert multiprocessing.get_start_method(allow_none=True) == before
    env.close()
    code = "import multiprocessing as m; from tests.multi_device.test_client import make; make().close(); "
    code += "assert m.get_start_method(allow_none=True) is None"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, cwd=Path(__file__).parents[2])


def test_b30_a_script_without_a_main_guard_just_works(tmp_path):
    script = tmp_path / "guardless.py"
    script.write_text(
        textwrap.dedent(
            """
            import torch
            from genesis_vec import MultiDeviceVectorEnv
            from tests.fakes import CounterEnv

            class Mine(CounterEnv):  # lives in __main__, which no worker imports
                def __init__(self, num_envs):
                    super().__init__(num_envs, limit=LIMIT)

            LIMIT = 2
            env = MultiDeviceVectorEnv(lambda num_envs, device, first_env_index: Mine(num_envs), 4, devices="cpu:2")
            env.reset(seed=0)
            env.step(torch.zeros(4, 2))
            print(env.step(torch.zeros(4, 2))[3].tolist())
            """
        )
    )
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=60,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )  # fmt: skip
    assert (done.returncode, done.stdout.strip()) == (0, str([True] * 4)), done.stderr


def test_b30_a_module_that_makes_one_at_its_top_level_gets_a_short_error(tmp_path):
    (tmp_path / "careless.py").write_text(
        textwrap.dedent(
            """
            from genesis_vec import MultiDeviceVectorEnv
            from tests.multi_device.fakes import PartOfCounterEnv

            def make(num_envs, device, first_env_index):
                return PartOfCounterEnv(num_envs, device, first_env_index)

            MultiDeviceVectorEnv(make, 4, devices="cpu:2")
            """
        )
    )
    done = subprocess.run(
        [sys.executable, "-c", "import careless"], capture_output=True, text=True, timeout=60, cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[2]}"},
    )  # fmt: skip
    assert done.returncode == 1
    assert "if __name__ == '__main__':" in done.stderr


def test_a_worker_does_not_make_workers_of_its_own():
    def nested(num_envs: int, device: str, first_env_index: int) -> MultiDeviceVectorEnv:
        return MultiDeviceVectorEnv(same_step(), num_envs, devices="cpu:2")

    with pytest.raises(GenesisVecError, match="__main__"):
        MultiDeviceVectorEnv(nested, 4, devices="cpu:2")


def test_scenes_that_do_not_give_the_same_are_refused():
    def differing(num_envs: int, device: str, first_env_index: int) -> PartOfCounterEnv:
        return PartOfCounterEnv(num_envs, device, first_env_index, dict_obs=first_env_index > 0)

    with pytest.raises(ValueError, match="differ"):
        MultiDeviceVectorEnv(differing, 4, devices="cpu:2")


def test_what_is_no_tensor_in_the_info_is_refused_by_name():
    class Chatty(PartOfCounterEnv):
        def step(self, actions):
            *result, info = super().step(actions)
            return *result, {**info, "note": "hello"}

    with pytest.raises(TypeError, match="info / note is str"):
        MultiDeviceVectorEnv(
            lambda num_envs, device, first_env_index: Chatty(num_envs, device, first_env_index), 4, devices="cpu:2"
        )
