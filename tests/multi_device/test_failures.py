"""Workers that raise, die or hang, callers that are killed or interrupted: real processes, real signals."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from genesis_vec import MultiDeviceVectorEnv
from genesis_vec.errors import ClosedEnvironmentError, WorkerError, WorkerTimeoutError
from genesis_vec.processes import start_process
from tests.multi_device.fakes import actions, failing, same_step
from tests.multi_device.processes import GONE_WITHIN_S, assert_all_gone, children_of

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    start_process("builtins:id", ["the first makes the lifeline's pipe, which stays"]).wait()
    files, descriptors = set(os.listdir("/dev/shm")), len(os.listdir("/proc/self/fd"))
    # Libraries that other tests have imported may have a helper of multiprocessing's running.
    children = children_of(os.getpid())
    yield
    gc.collect()  # a caught exception's frames have held the environment
    assert set(os.listdir("/dev/shm")) <= files
    assert len(os.listdir("/proc/self/fd")) <= descriptors
    assert set(children_of(os.getpid())) <= set(children), "no child is there, not even as a zombie"


@pytest.mark.parametrize(
    ("how", "error", "match"),
    [
        ("raise", WorkerError, r"worker 1 \(cpu, environments 3 to 6\) raised .*stepping.*told to fail"),
        ("kill", WorkerError, r"worker 1 \(cpu, environments 3 to 6\) ended with signal SIGKILL .*while stepping"),
        ("exit", WorkerError, r"worker 1 .* ended with exit code 7 while stepping"),
        ("hang", WorkerTimeoutError, r"(?s)worker 1 .* did not answer within 1.0 s while stepping.*in _fail"),
    ],
)
def test_b06_a_failing_worker_is_named_and_the_others_are_stopped(how, error, match):
    env = MultiDeviceVectorEnv(failing(how=how, at=3, row=5), 7, devices="cpu:2", timeout=1.0)
    pids = [worker.process.pid for worker in env.workers]
    env.reset(seed=0)
    for _ in range(2):
        env.step(actions(7))
    start = time.monotonic()
    with pytest.raises(error, match=f"(?s){match}") as caught:
        env.step(actions(7))
    assert time.monotonic() - start < 5.0
    assert caught.value.worker == 1
    assert caught.value.exit_code == {"kill": -9, "exit": 7}.get(how)
    assert isinstance(caught.value.__cause__, ZeroDivisionError if how == "raise" else None.__class__)
    assert_all_gone(pids)
    with pytest.raises(ClosedEnvironmentError):
        env.step(actions(7))
    env.close()
    env.close()


@pytest.mark.parametrize(
    ("how", "error", "match"),
    [
        ("raise", WorkerError, "raised an exception while starting.*told to fail"),
        ("kill", WorkerError, "ended with signal SIGKILL .*while starting"),
        ("hang", WorkerTimeoutError, "did not answer within 6 s while starting"),
    ],
)
def test_b06_a_worker_that_fails_while_it_is_made_is_named(how, error, match):
    with pytest.raises(error, match=f"(?s)worker 0 .*{match}"):
        MultiDeviceVectorEnv(failing(how=how, at=0, row=0), 7, devices="cpu:2", start_timeout=6)


def test_a_worker_that_dies_between_steps_is_noticed_in_the_next():
    env = MultiDeviceVectorEnv(same_step(), 4, devices="cpu:2")
    env.reset(seed=0)
    env.step(actions(4))
    env.workers[0].process.kill()
    with pytest.raises(WorkerError, match=r"worker 0 .*SIGKILL"):
        env.step(actions(4))


def test_a_worker_that_dies_before_a_reset_is_noticed_in_it():
    env = MultiDeviceVectorEnv(same_step(), 4, devices="cpu:2")
    env.workers[1].process.kill()
    with pytest.raises(WorkerError, match=r"worker 1 .*SIGKILL .*while resetting"):
        env.reset(seed=0)


def test_closing_while_a_step_hangs_takes_seconds_not_for_ever():
    env = MultiDeviceVectorEnv(failing(how="hang", at=1, row=0), 4, devices="cpu:2")
    pids = [worker.process.pid for worker in env.workers]
    env.reset(seed=0)
    env.step_async(actions(4))
    env.close()
    assert_all_gone(pids)


# ----------------------------------------------------------------------------------------- the caller's end (B27)

CALLER = """
import os, signal, sys, time

# A shell that starts something in the background has it ignore Ctrl-C, and so would this.
signal.signal(signal.SIGINT, signal.default_int_handler)

from genesis_vec import MultiDeviceVectorEnv
from tests.multi_device.fakes import actions, failing, same_step
from tests.multi_device.processes import children_of

how = sys.argv[1]
if how == "build":
    import threading
    threading.Timer(1.5, lambda: print("ready", *children_of(os.getpid()), flush=True)).start()
    MultiDeviceVectorEnv(failing(how="hang", at=0, row=0), 4, devices="cpu:2")
env = MultiDeviceVectorEnv(failing(how="hang" if how == "step" else "no", at=2, row=0), 4, devices="cpu:2")
env.reset(seed=0)
env.step(actions(4))
print("ready", *children_of(os.getpid()), flush=True)
if how == "step":
    env.step(actions(4))
elif how == "raise":
    raise RuntimeError("the caller's own mistake")
elif how == "exit":
    sys.exit(3)
while True:
    time.sleep(0.1)
"""


@pytest.fixture
def start_caller(tmp_path: Path) -> Iterator[Callable[[str], tuple[subprocess.Popen[str], list[int]]]]:
    """Starts a caller and waits until it is where it is wanted; gives it and its workers' numbers."""
    started = []

    def start(how: str) -> tuple[subprocess.Popen[str], list[int]]:
        script = tmp_path / "caller.py"
        script.write_text(CALLER)
        caller = subprocess.Popen(
            [sys.executable, str(script), how], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)}, start_new_session=True,
        )  # fmt: skip
        started.append(caller)
        assert caller.stdout is not None
        line = caller.stdout.readline().split()
        assert line[:1] == ["ready"], caller.communicate()
        pids = [int(pid) for pid in line[1:]]
        assert len(pids) == 2
        return caller, pids

    yield start
    for caller in started:
        caller.kill()
        caller.communicate()


@pytest.mark.parametrize("how", ["step", "build", "idle"])
def test_b27_ctrl_c_ends_everything_with_one_traceback(start_caller, how):
    caller, pids = start_caller(how)
    os.killpg(caller.pid, signal.SIGINT)
    _, errors = caller.communicate(timeout=GONE_WITHIN_S)
    assert_all_gone(pids)
    assert caller.returncode in (-signal.SIGINT, 130, 1)
    assert errors.count("KeyboardInterrupt") == 1
    assert errors.count("Traceback") == 1


@pytest.mark.parametrize("how", ["step", "build", "idle"])
def test_b27_a_caller_that_is_killed_takes_its_workers_along(start_caller, how):
    caller, pids = start_caller(how)
    caller.kill()
    assert_all_gone(pids)
    caller.communicate()


@pytest.mark.parametrize(("how", "code"), [("raise", 1), ("exit", 3)])
def test_b27_a_caller_that_ends_without_closing_leaves_nothing(start_caller, how, code):
    caller, pids = start_caller(how)
    _, errors = caller.communicate(timeout=GONE_WITHIN_S)
    assert caller.returncode == code
    assert_all_gone(pids)
    assert errors.count("Traceback") == (1 if how == "raise" else 0)


def test_a_forked_copy_of_the_caller_does_not_stop_its_workers():
    env = MultiDeviceVectorEnv(same_step(), 4, devices="cpu:2")
    env.reset(seed=0)
    pid = os.fork()
    if pid == 0:
        env.close()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    assert env.step(actions(4))[1].tolist() == [1.0] * 4
    env.close()


def test_an_interrupted_wait_can_be_taken_up_again():
    env = MultiDeviceVectorEnv(failing(how="no", at=0, row=0), 4, devices="cpu:2")
    env.reset(seed=0)
    os.kill(env.workers[1].process.pid, signal.SIGSTOP)
    env.step_async(actions(4))
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    with pytest.raises(KeyboardInterrupt):
        env.step_wait()
    with pytest.raises(ValueError, match="step_wait"):
        env.step(actions(4))
    os.kill(env.workers[1].process.pid, signal.SIGCONT)
    assert env.step_wait()[1].tolist() == [1.0] * 4
    assert env.step(actions(4))[1].tolist() == [2.0] * 4
    env.close()
