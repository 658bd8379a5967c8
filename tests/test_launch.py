"""Launching independent programs: real processes, real signals. The programs import neither torch nor Genesis."""

from __future__ import annotations

import csv
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

import genesis_vec
from genesis_vec import LaunchContext, LaunchResult, launch, launch_context
from genesis_vec.errors import DeviceNotFoundError, LaunchError
from genesis_vec.launcher import program_seed
from genesis_vec.program_output import ProgramOutput

ROOT = Path(__file__).parent.parent
# With Ctrl-C in force, which a test runner that was started in the background has not.
CLI = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from genesis_vec.cli import main; main()"
)
REPORT = """
    import json, os, sys
    names = ("CUDA_VISIBLE_DEVICES", "QD_VISIBLE_DEVICE")
    pins = {name: os.environ.get(name) for name in names}
    offered = {name: value for name, value in os.environ.items() if name.startswith("GENESIS_VEC_")}
    imported = [name for name in ("torch", "genesis", "numpy") if name in sys.modules]
    report = {"pins": pins, "offered": offered, "imported": imported, "name": __name__, "argv": sys.argv[1:]}
    json.dump(report, open(f"report{os.environ['GENESIS_VEC_INDEX']}.json", "w"))
"""
# Leaves its process's number and never ends.
HANG = """
    import os, signal, sys, time
    {extra}
    open(f"pid{{os.environ['GENESIS_VEC_INDEX']}}.new", "w").write(str(os.getpid()))
    os.rename(f"pid{{os.environ['GENESIS_VEC_INDEX']}}.new", f"pid{{os.environ['GENESIS_VEC_INDEX']}}")
    time.sleep(1000)
"""
IGNORES_SIGTERM = "signal.signal(signal.SIGTERM, signal.SIG_IGN)"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(name: str, text: str, **values: str) -> str:
    text = textwrap.dedent(text)
    Path(name).write_text(text.format(**values) if values else text)
    return name


def reports(count: int) -> list[dict]:
    return [json.loads(Path(f"report{index}.json").read_text()) for index in range(count)]


def values(results: list[LaunchResult]) -> list:
    return [result.value for result in results]


def run_cli(*arguments: str, **kwargs) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", CLI, "launch", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, **kwargs)


def wait_for_pids(count: int, timeout_s: float = 30.0) -> list[int]:
    deadline = time.monotonic() + timeout_s
    while not all(Path(f"pid{index}").exists() for index in range(count)):
        assert time.monotonic() < deadline, "the programs did not start"
        time.sleep(0.02)
    return [int(Path(f"pid{index}").read_text()) for index in range(count)]


def is_gone(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state == "Z"  # what nobody has waited for


def assert_gone_within(pids: list[int], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while not all(is_gone(pid) for pid in pids):
        assert time.monotonic() < deadline, "programs are still there"
        time.sleep(0.02)


# ----------------------------------------------------------------------------------------- pinning, kinds


def test_each_program_is_pinned_before_anything_is_imported(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,GPU-abc")
    before = dict(os.environ)
    results = launch(write("report.py", REPORT), devices=["cuda:0", "cuda:1"])
    first, second = reports(2)
    assert first["pins"] == {"CUDA_VISIBLE_DEVICES": "5", "QD_VISIBLE_DEVICE": "5"}
    assert second["pins"] == {"CUDA_VISIBLE_DEVICES": "GPU-abc", "QD_VISIBLE_DEVICE": None}
    assert first["imported"] == second["imported"] == []
    # Each sees one GPU, so its name in there is always the same.
    assert first["offered"]["GENESIS_VEC_DEVICE"] == second["offered"]["GENESIS_VEC_DEVICE"] == "cuda:0"
    assert [result.device for result in results] == ["cuda:0", "cuda:1"]
    assert dict(os.environ) == before


def test_a_function_is_pinned_before_what_it_needs_is_imported(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,GPU-abc")

    def look():
        return os.environ["CUDA_VISIBLE_DEVICES"], "torch" in sys.modules

    assert values(launch(look, devices="cuda")) == [("5", False), ("GPU-abc", False)]


def test_a_gpu_that_is_not_there_is_refused_and_nothing_started(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(DeviceNotFoundError):
        launch(write("report.py", REPORT), devices="cuda:0")
    assert not Path("report0.json").exists()


def test_a_script_is_the_main_program_with_its_arguments():
    results = launch(
        write("report.py", REPORT), devices="cpu:2", args=[["--lr", 0.1], ["--out", "{index}.{seed}", "{x}"]]
    )
    first, second = reports(2)
    assert first["name"] == "__main__"
    assert first["argv"] == ["--lr", "0.1"]
    assert second["argv"] == ["--out", f"1.{program_seed(0, 1)}", "{x}"]
    assert [(result.index, result.item, result.exit_code, result.attempts) for result in results] == [
        (0, ["--lr", 0.1], 0, 1),
        (1, ["--out", "{index}.{seed}", "{x}"], 0, 1),
    ]
    assert all(0 < result.seconds < 60 and result.value is None for result in results)


def test_a_module_runs_as_the_main_program():
    Path("package").mkdir()
    write("package/__init__.py", "")
    write("package/report.py", REPORT)
    launch("package.report", devices="cpu", args=[["-x"]])
    assert reports(1)[0]["name"] == "__main__"
    assert reports(1)[0]["argv"] == ["-x"]


def test_a_named_function_returns_its_value():
    write("mine.py", "class A:\n    @staticmethod\n    def double(x, plus=''):\n        return 2 * x + plus\n")
    results = launch("mine:A.double", devices="cpu:2", args=[("a{index}",), {"x": "b", "plus": "{count}{device}{"}])
    assert values(results) == ["a0a0", "bb2cpu{"]


def test_lambdas_and_closures_return_values_in_order_with_more_items_than_devices():
    offset = 100
    items = [(0.3,), (0.0,), {"wait_s": 0.1}, (0.0,), (0.0,)]
    results = launch(
        lambda wait_s: (time.sleep(wait_s), offset + launch_context().index)[1], devices="cpu:2", args=items
    )
    assert values(results) == [100, 101, 102, 103, 104]
    assert [result.item for result in results] == items


def test_a_device_runs_one_program_at_a_time():
    def interval():
        start = time.monotonic()
        time.sleep(0.05)
        return start, time.monotonic()

    ordered = sorted(values(launch(interval, devices="cpu", args=[()] * 3)))
    assert all(end < start for (_, end), (start, _) in itertools.pairwise(ordered))


def test_b30_functions_of_a_main_script_without_a_guard():
    write(
        "unguarded.py",
        """
        import genesis_vec
        print("main script runs")
        factor = 3
        def times(x):
            return Number(factor * x)
        class Number(int):
            pass
        results = genesis_vec.launch(times, devices="cpu:2", args=[(1,), (2,)])
        print([result.value for result in results], type(results[0].value) is Number)
        """,
    )
    done = subprocess.run([sys.executable, "unguarded.py"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "main script runs\n[3, 6] True\n"), done.stderr


def test_launch_is_the_function_also_after_its_first_use():
    assert genesis_vec.launch is launch
    assert callable(genesis_vec.launch)


# ---------------------------------------------------------------------------------------- seeds, context


def test_seeds_are_distinct_stable_and_take_31_bits():
    seeds = [program_seed(seed, index) for seed in (0, 1) for index in range(20_000)]
    assert all(0 <= seed < 1 << 31 for seed in seeds)
    assert len(set(seeds[:20_000])) == len(set(seeds[20_000:])) == 20_000
    # Whoever changes these changes everyone's sweeps.
    assert seeds[:3] == [1451869922, 2098430740, 1947585457]


def test_each_program_can_ask_for_its_place_and_seed_whatever_its_device():
    contexts = values(launch(launch_context, devices="cpu:2", args=[()] * 3, seed=7))
    assert contexts == [LaunchContext(index, 3, program_seed(7, index), "cpu") for index in range(3)]
    assert contexts == values(launch(launch_context, devices="cpu", args=[()] * 3, seed=7))


def test_a_program_started_by_itself_is_the_only_one():
    assert launch_context() == LaunchContext(index=0, count=1, seed=0, device="auto")


# ------------------------------------------------------------------------------------------------- output


def test_lines_come_whole_behind_a_prefix_and_progress_bars_and_brackets_survive(capfd):
    write(
        "talk.py",
        r"""
        import os, sys, time
        index = os.environ["GENESIS_VEC_INDEX"]
        for line in range(50):
            sys.stdout.write(f"half{index} ")
            sys.stderr.write("\r 10%")
            time.sleep(0.002)
            sys.stdout.write("[red]line[/red]\n")
            sys.stderr.write("\r100%\n")
        sys.stdout.buffer.write(b"\xff no newline")
        """,
    )
    launch("talk.py", devices="cpu:2")
    captured = capfd.readouterr()
    for index in (0, 1):
        lines = [line for line in captured.out.splitlines() if line.startswith(f"[{index} cpu] ")]
        assert lines == [f"[{index} cpu] half{index} [red]line[/red]"] * 50 + [f"[{index} cpu] \ufffd no newline"]
    assert sorted(captured.err.splitlines()) == ["[0 cpu] 100%"] * 50 + ["[1 cpu] 100%"] * 50


def test_lines_appear_when_they_are_printed(monkeypatch):
    arrived: dict[str, float] = {}

    class Stamped:
        encoding = "ascii"  # which has no é

        def write(self, text):
            arrived.setdefault(text, time.time())

        def flush(self): ...
        def isatty(self):
            return False

    monkeypatch.setattr(sys, "stdout", Stamped())
    launch(write("slow.py", "import time\nprint('\u00e9', time.time())\ntime.sleep(1)"), devices="cpu")
    [(text, seen)] = arrived.items()
    assert text.startswith("[0 cpu] ? ")
    assert seen - float(text.split()[-1]) < 0.5


def test_of_an_unfinished_progress_bar_the_newest_state_is_shown_now_and_then(capsys, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("genesis_vec.program_output.time.monotonic", lambda: now[0])
    reader, writer = os.pipe()
    output = ProgramOutput(os.fdopen(reader, "rb"), "stdout", "[0 cpu]", 0)
    shown = []
    for now[0], data in (
        (1, b"\r1%\r2%"),
        (6, b"\r3%"),
        (7, b"\r4%\r"),
        (12, b"5%"),
        (13, b"\r\r\n"),
        (14, b"crlf\r"),
        (15, b"\nx"),
    ):
        os.write(writer, data)
        assert output.read()
        shown.append(capsys.readouterr().out)
    assert shown == ["", "[0 cpu] 2%\n", "", "[0 cpu] 4%\n", "[0 cpu] 5%\n", "", "[0 cpu] crlf\n"]
    os.close(writer)
    output.close()
    assert capsys.readouterr().out == "[0 cpu] x\n"


def test_prefixes_are_coloured_on_a_terminal_only(monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    leader, follower = os.openpty()
    with os.fdopen(follower, "w") as terminal:
        monkeypatch.setattr(sys, "stdout", terminal)
        launch(write("hello.py", "print('hello')"), devices="cpu")
    assert os.read(leader, 100) == b"\x1b[36m[0 cpu]\x1b[0m hello\r\n"
    os.close(leader)


# ----------------------------------------------------------------------------------------------- failures


def test_a_failing_function_is_reported_with_its_traceback_and_stops_the_others(capfd):
    def work(x):
        if x == 1:
            raise ValueError("boom")
        if x == 2:
            time.sleep(1000)
        return x

    start = time.monotonic()
    with pytest.raises(LaunchError) as raised:
        launch(work, devices="cpu:2", args=[(0,), (2,), (1,), (3,)])
    assert time.monotonic() - start < 5
    error = raised.value
    report = str(error).splitlines()
    assert re.fullmatch(r"program 2, .*work\(1\), on cpu: exit code 1", report[0])
    assert report[1] == "Traceback (most recent call last):"
    assert report[2].endswith("in work")
    assert Path(__file__).name in report[2]
    assert report[-3:-1] == ['    raise ValueError("boom")', "ValueError: boom"]
    assert report[-1] == "(1 of 4 programs finished, 2 stopped or not started)"
    assert [result and result.value for result in error.results] == [0, None, None, None]
    assert [(failure.index, failure.exit_code) for failure in error.failures] == [(2, 1)]
    assert "[2 cpu] ValueError: boom" in capfd.readouterr().err


def test_a_failing_script_is_reported_with_exit_code_and_traceback():
    write(
        "fail.py",
        "import sys\nprint('noise', file=sys.stderr)\n"
        "try:\n    1 / 0\nexcept Exception as e:\n    raise KeyError from e",
    )
    with pytest.raises(LaunchError, match=r"^program 0, fail.py --a, on cpu: exit code 1\nTraceback") as raised:
        launch("fail.py", devices="cpu", args=[["--a"]])
    assert "ZeroDivisionError" in str(raised.value)
    assert "KeyError" in str(raised.value)
    assert "noise" not in str(raised.value)
    write("exit.py", "import sys\nsys.exit('no licence')")
    with pytest.raises(LaunchError, match=r"exit code 1\nno licence\n"):
        launch("exit.py", devices="cpu")


def test_a_killed_program_is_reported_as_killed():
    with pytest.raises(LaunchError, match=r"on cpu: signal SIGKILL \(which the system sends when memory") as raised:
        launch(lambda: os.kill(os.getpid(), signal.SIGKILL), devices="cpu")
    assert raised.value.failures[0].exit_code == -signal.SIGKILL


def test_a_function_that_ends_its_process_without_returning_has_failed():
    with pytest.raises(LaunchError, match="it ended before it returned"):
        launch(lambda: os._exit(0), devices="cpu")
    assert values(launch(lambda: sys.exit(), devices="cpu")) == [None]
    with pytest.raises(LaunchError, match="exit code 3"):
        launch(lambda: sys.exit(3), devices="cpu")


def test_a_value_that_cannot_be_sent_is_a_failure_that_says_so():
    with pytest.raises(LaunchError, match=r"cannot pickle .*lock"):
        launch(lambda: threading.Lock(), devices="cpu")


def test_all_run_and_all_failures_are_held_if_told_to_continue():
    def work(x):
        return 1 / x

    with pytest.raises(LaunchError) as raised:
        launch(work, devices="cpu:2", args=[(0,), (1,), (0,), (2,)], on_failure="continue")
    assert [result and result.value for result in raised.value.results] == [None, 1.0, None, 0.5]
    assert sorted(failure.index for failure in raised.value.failures) == [0, 2]
    assert all("ZeroDivisionError" in failure.failure for failure in raised.value.failures)
    assert str(raised.value).endswith("(2 of 4 programs finished, 2 failed)")


def test_a_retry_starts_the_program_anew_with_the_same_seed(folder, capfd):
    def work():
        with open(folder / "seeds", "a") as file:
            file.write(f"{launch_context().seed}\n")
        if len((folder / "seeds").read_text().splitlines()) < 2:
            raise RuntimeError("not yet")
        return "done"

    [result] = launch(work, devices="cpu", retries=2)
    assert (result.value, result.attempts, result.failure) == ("done", 2, None)
    assert (folder / "seeds").read_text() == f"{program_seed(0, 0)}\n" * 2
    assert "[0 cpu] failed: exit code 1, attempt 1 of 3\n" in capfd.readouterr().err
    with pytest.raises(LaunchError, match="exit code 1, attempt 2 of 2"):
        launch(write("fail.py", "raise SystemExit(1)"), devices="cpu", retries=1)


@pytest.mark.parametrize("extra", ["pass", IGNORES_SIGTERM], ids=["ordinary", "ignores SIGTERM"])
def test_a_program_that_takes_too_long_is_stopped(monkeypatch, extra):
    monkeypatch.setattr("genesis_vec.launcher._GRACE_S", 0.3)
    write("hang.py", HANG, extra=extra)
    start = time.monotonic()
    with pytest.raises(LaunchError, match=r"it took longer than timeout=1.5 seconds and was stopped"):
        launch("hang.py", devices="cpu", timeout=1.5)
    assert 1.5 <= time.monotonic() - start < 6
    assert_gone_within(wait_for_pids(1), 0.5)


def test_what_a_program_leaves_running_ends_with_it():
    write("hang.py", HANG, extra="pass")
    write(
        "parent.py",
        "import os, subprocess, sys, time\n"
        "subprocess.Popen([sys.executable, 'hang.py'])\n"
        "while not os.path.exists('pid0'):\n    time.sleep(0.01)\n",
    )
    start = time.monotonic()
    launch("parent.py", devices="cpu")
    assert time.monotonic() - start < 10
    assert_gone_within(wait_for_pids(1), 2)


# ------------------------------------------------------------------------------------------ interruptions


def test_b27_ctrl_c_ends_all_and_is_raised(monkeypatch):
    write("hang.py", HANG, extra="pass")
    monkeypatch.setattr("genesis_vec.launcher._GRACE_S", 0.3)
    old = signal.signal(signal.SIGINT, signal.default_int_handler)

    def interrupt():
        wait_for_pids(2)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            launch("hang.py", devices="cpu:2", args=[[]] * 3)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        thread.join()
        signal.signal(signal.SIGINT, old)
    assert_gone_within(wait_for_pids(2), 0.5)
    assert not Path("pid2").exists()


@pytest.mark.parametrize("extra", ["pass", IGNORES_SIGTERM], ids=["ordinary", "ignores SIGTERM"])
def test_b27_ctrl_c_in_the_terminal_ends_the_command_and_its_programs(extra):
    write("hang.py", HANG, extra=extra)
    command = [sys.executable, "-c", CLI, "launch", "--devices", "cpu:2", "hang.py"]
    process = subprocess.Popen(command, process_group=0, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    pids = wait_for_pids(2)
    os.killpg(process.pid, signal.SIGINT)
    output, _ = process.communicate(timeout=10)
    assert (process.returncode, output) == (130, "")
    assert all(is_gone(pid) for pid in pids)


@pytest.mark.parametrize("program", ["hang.py", "hang:run"])
def test_programs_die_with_a_launcher_that_is_killed(program):
    write("hang.py", HANG, extra=IGNORES_SIGTERM)
    if ":" in program:
        text = textwrap.indent(Path("hang.py").read_text(), "    ")
        Path("hang.py").write_text(f"def run():\n{text}")
    process = subprocess.Popen([sys.executable, "-c", CLI, "launch", "--devices", "cpu:2", program])
    pids = wait_for_pids(2)
    process.kill()
    process.wait()
    assert_gone_within(pids, 5)


# -------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("program", "arguments", "error", "message"),
    [
        ("missing.py", {}, FileNotFoundError, r"program='missing.py': there is no such script \(working directory"),
        (Path("missing"), {}, FileNotFoundError, "there is no such script"),
        ("no_such_module", {}, ValueError, "there is no module 'no_such_module'; a script's name ends in .py"),
        ("no_such_module:f", {}, ValueError, "there is no module 'no_such_module'"),
        ("two words", {}, ValueError, "is neither a script"),
        (3, {}, TypeError, "program=3 must be a script's path"),
        ("json", {"args": "abc"}, TypeError, "args='abc' must be a list with one item per program"),
        ("json", {"args": {"a": 1}}, TypeError, "must be a list with one item per program"),
        ("json", {"args": []}, ValueError, "args is empty"),
        ("json", {"args": [["a"], "--lr 1"]}, TypeError, r"args\[1\]='--lr 1' must be a list of command-line"),
        ("json", {"args": [[None]]}, TypeError, r"args\[0\]=\[None\] must be a list of command-line"),
        (abs, {"args": [1]}, TypeError, r"args\[0\]=1 must be a tuple .* a single one is \(1,\)"),
        (lambda x: x, {"args": [(1,), (1, 2)]}, TypeError, r"with args\[1\]=\(1, 2\): too many positional"),
        (lambda x: x, {}, TypeError, "cannot be called without args: missing a required argument: 'x'"),
        (threading.Lock().acquire, {}, TypeError, "the function .*acquire cannot be sent to another process"),
        (abs, {"args": [(threading.Lock(),)]}, TypeError, r"args\[0\]=.* cannot be sent to another process"),
        ("json", {"retries": -1}, ValueError, "retries must be a non-negative integer, got -1"),
        ("json", {"retries": 1.0}, ValueError, "retries must be a non-negative integer"),
        ("json", {"seed": 1 << 64}, ValueError, r"seed must be a non-negative integer below 2\*\*64"),
        ("json", {"seed": -1}, ValueError, "seed must be"),
        ("json", {"timeout": 0}, ValueError, "timeout must be a positive number of seconds"),
        ("json", {"on_failure": "retry"}, ValueError, "on_failure must be 'stop' or 'continue', got 'retry'"),
        ("json", {"devices": "gpu"}, ValueError, "devices='gpu' is not understood"),
    ],
    ids=lambda value: str(value)[:30] if isinstance(value, (str, dict)) else "",
)
def test_bad_input_is_refused_before_anything_starts(monkeypatch, program, arguments, error, message):
    monkeypatch.setattr("genesis_vec.launcher.start_process", lambda *_args, **_kwargs: pytest.fail("started"))
    with pytest.raises(error, match=message):
        launch(program, **{"devices": "cpu", **arguments})


# ------------------------------------------------------------------------------------------- command line


def test_the_command_fills_in_a_sweep_and_leaves_the_rest_to_the_program():
    write("report.py", REPORT)
    done = run_cli(
        *["--devices=cpu:2", "--seed", "3", "--sweep", "lr=1e-3,1e-4", "--sweep", "n=1,2", "report.py"],
        *["--lr={lr}", "-n", "{n}", "--tag", '{"at":{index}/{count}}', "--devices", "x", "--", "-h"],
    )
    assert (done.returncode, done.stderr) == (0, "")
    found = reports(4)
    assert [report["argv"] for report in found] == [
        [f"--lr={lr}", "-n", n, "--tag", f'{{"at":{index}/4}}', "--devices", "x", "--", "-h"]
        for index, (lr, n) in enumerate([("1e-3", "1"), ("1e-3", "2"), ("1e-4", "1"), ("1e-4", "2")])
    ]
    assert [report["offered"]["GENESIS_VEC_SEED"] for report in found] == [str(program_seed(3, i)) for i in range(4)]


@pytest.mark.parametrize(
    ("program", "exit_code", "said"),
    [
        ("import sys; sys.exit(7)", 7, "genesis-vec: program 0, fail.py, on cpu: exit code 7"),
        ("import os; os.kill(os.getpid(), 9)", 137, "signal SIGKILL"),
        ("import signal, time; signal.signal(15, lambda *_: exit(0)); time.sleep(9)", 1, "longer than timeout=1.5"),
    ],
    ids=["exit code", "signal", "timeout"],
)
def test_the_command_ends_with_the_first_failures_exit_code(program, exit_code, said):
    done = run_cli("--devices", "cpu", "--timeout", "1.5", write("fail.py", program))
    assert done.returncode == exit_code
    assert said in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["missing.py"], "genesis-vec: program='missing.py': there is no such script"),
        (["--sweep", "a=1", "json"], "genesis-vec: --sweep a=1: no argument of the program contains {a}"),
        (["--sweep", "a", "json", "{a}"], "genesis-vec: --sweep a: use NAME=VALUE,VALUE,…"),
        (["--sweep", "seed=1", "json", "{seed}"], "genesis-vec: --sweep seed=1: {seed} stands for something else"),
    ],
)
def test_the_command_refuses_mistakes_in_one_line(arguments, said):
    done = run_cli("--devices", "cpu", *arguments)
    assert done.returncode == 1
    assert done.stderr.startswith(said)
    assert len(done.stderr.splitlines()) == 1


# ------------------------------------------------------------------------------------------------ example


@pytest.mark.slow
def test_the_example_gathers_a_sweep_in_one_file(folder):
    example = str(ROOT / "examples" / "launch_sweep.py")
    subprocess.run([sys.executable, example, "--devices", "cpu:2"], check=True, timeout=600)
    with open(folder / "gains.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    steps = {(float(row["kp"]), float(row["kd"])): float(row["steps"]) for row in rows}
    assert len(rows) == 4
    assert len({row["seed"] for row in rows}) == 4
    # The stiff controller keeps all poles up, the soft one without damping hardly any.
    assert steps[2.0, 0.0] > 2 * steps[0.5, 0.0]
