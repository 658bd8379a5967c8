"""Records of the benchmark suite: what is compared and what is called a regression; the suite with little scripts."""

from __future__ import annotations

import copy
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

from genesis_vec.benchmark import bench as bench_module
from genesis_vec.benchmark.bench import BenchConfig, bench
from genesis_vec.benchmark.compare import Comparison, compare
from genesis_vec.benchmark.counting import CountOperations
from genesis_vec.benchmark.record import SCHEMA, Metric, read_record
from genesis_vec.errors import BenchmarkError
from tests.multi_device.processes import children_of

SCRIPT = """
import dataclasses, pathlib, sys, time
import tyro
from genesis_vec.benchmark.record import Metric, Physics, write_record

@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    num_envs: tuple[int, ...] = (1,)
    pairs: int = 1
    out: pathlib.Path = pathlib.Path("x.json")

settings = tyro.cli(Settings)
folder = pathlib.Path(__file__).parent
with (folder / "order.txt").open("a") as file:
    file.write(pathlib.Path(__file__).stem + "\\n")
{extra}
physics = Physics(robot="a.urdf", dt=0.01, substeps=1, self_collision=False, actions="none")
metrics = [Metric("one", "ratio", "higher", [0.9, 1.0, 1.1]), Metric("operations", "count", "lower", [{count}])]
write_record(settings.out, "little", settings, {{}}, device="cpu", physics=physics, metrics=metrics)
"""


def record(repeats: list[float], kind: str = "ratio", better: str = "higher", **entry: Any) -> dict[str, Any]:
    """A suite's record of one metric."""
    metric = {"kind": kind, "better": better, "repeats": [{"median": value} for value in repeats]}
    of_benchmark = {"settings": {"num_envs": 64}, "physics": {"dt": 0.02}, "metrics": {"m": metric}, **entry}
    return {"schema": SCHEMA, "hardware": {}, "benchmarks": {"b": of_benchmark}, "failures": {}}


def verdict(comparison: Comparison) -> str:
    (change,) = comparison.changes
    return change.verdict


@pytest.mark.parametrize(
    ("old", "new", "kind", "better", "expected"),
    [
        ([0.95, 0.96, 0.94], [0.95, 0.93, 0.96], "ratio", "higher", "same"),
        ([0.95, 0.96, 0.94], [0.79, 0.80, 0.78], "ratio", "higher", "REGRESSION"),
        ([0.95, 0.96, 0.94], [0.79, 0.80, 0.78], "ratio", "lower", "better"),
        ([0.25, 0.26, 0.24], [0.30, 0.31, 0.29], "ratio", "lower", "REGRESSION"),
        ([0.95, 0.96, 0.94], [0.90, 0.91, 0.89], "ratio", "higher", "same"),  # 5 % worse: within the tolerance
        ([0.95, 0.60, 1.30], [0.79, 0.50, 1.10], "ratio", "higher", "unclear"),
        ([0.95], [0.50], "ratio", "higher", "unclear"),  # one repeat tells nothing of noise
        ([100.0], [111.0], "count", "lower", "REGRESSION"),
        ([100.0], [109.0], "count", "lower", "same"),
        ([0.0], [3.0], "count", "lower", "REGRESSION"),
        ([0.0], [0.0], "count", "lower", "same"),
        ([9000.0, 9100.0, 8900.0], [100.0, 101.0, 99.0], "rate", "higher", "same"),  # the machine's mood
    ],
)
def test_a_regression_is_what_is_worse_by_more_than_the_tolerance_and_the_noise(old, new, kind, better, expected):
    assert verdict(compare(record(old, kind, better), record(new, kind, better))) == expected


def test_noise_is_hardly_ever_called_a_regression_and_a_fifth_nearly_always():
    # Three repeats whose medians scatter by 3 %, as those of whole processes do.
    random = np.random.default_rng(0)
    false, found = 0, 0
    for _ in range(2000):
        old, new = (0.95 * np.exp(random.normal(0.0, 0.03, (2, 3)))).tolist()
        false += verdict(compare(record(old), record(new))) == "REGRESSION"
        found += verdict(compare(record(old), record([value / 1.2 for value in new]))) == "REGRESSION"
    assert false <= 4
    assert found >= 1900


@pytest.mark.parametrize("part", ["settings", "physics"])
def test_figures_of_different_settings_are_not_compared(part):
    old, new = record([1.0, 1.0]), record([0.5, 0.5], **{part: {"num_envs": 64, "dt": 0.01}})
    comparison = compare(old, new)
    assert comparison.changes == []
    assert "dt was" in comparison.not_compared["b"] and part in comparison.not_compared["b"]


def test_what_only_one_of_the_records_has_is_named():
    old, new = record([1.0, 1.0]), record([1.0, 1.0])
    new["benchmarks"]["fresh"] = new["benchmarks"]["b"]
    old["benchmarks"]["b"]["metrics"]["gone"] = old["benchmarks"]["b"]["metrics"]["m"]
    old["benchmarks"]["broken"], new["failures"] = old["benchmarks"]["b"], {"broken": "exit code 1"}
    assert compare(old, new).not_compared == {
        "fresh": "not in the older record", "b": "no longer measured: gone", "broken": "failed in the newer run"
    }  # fmt: skip


# ---------------------------------------------------------------------------------------------------------- the suite


@pytest.fixture
def scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A suite of two little benchmarks."""
    monkeypatch.setattr(bench_module, "SUITE", {"counts": [], "step_overhead": ["--num-envs", "2", "3"]})
    folder = tmp_path / "scripts"
    folder.mkdir()
    for name in ("counts", "step_overhead"):
        write_script(folder, name)
    return folder


def write_script(folder: Path, name: str, count: int = 100, extra: str = "") -> None:
    (folder / f"{name}.py").write_text(SCRIPT.format(count=count, extra=extra))


def run(scripts: Path, **settings: Any) -> tuple[bool, str]:
    output = io.StringIO()
    config = BenchConfig(**{"repeats": 2, "out": scripts.parent / "bench.json", **settings})
    return bench(config, Console(file=output, width=200), scripts), output.getvalue()


def test_benchmarks_take_turns_and_their_repeats_end_up_side_by_side(scripts):
    good, _ = run(scripts)
    assert good
    assert (scripts / "order.txt").read_text().split() == ["counts", "step_overhead"] * 2
    written = read_record(scripts.parent / "bench.json", "benchmarks")
    entry = written["benchmarks"]["step_overhead"]
    assert entry["settings"] == {"num_envs": [2, 3], "pairs": 1}
    assert entry["physics"]["robot"] == "a.urdf" and entry["versions"]["torch"] == torch.__version__
    assert entry["metrics"]["one"]["repeats"] == [{"median": 1.0, "quartiles": [0.9, 1.1], "rounds": 3}] * 2
    assert written["hardware"]["cores"] == len(os.sched_getaffinity(0))


def test_full_leaves_the_scripts_own_settings(scripts):
    run(scripts, full=True, only=("step_overhead",), repeats=1)
    written = read_record(scripts.parent / "bench.json", "benchmarks")
    assert written["benchmarks"]["step_overhead"]["settings"]["num_envs"] == [1]
    assert list(written["benchmarks"]) == ["step_overhead"]


def test_more_operations_than_before_fail_the_command_and_as_many_do_not(scripts):
    old = scripts.parent / "old.json"
    run(scripts, out=old, only=("counts",), repeats=1)
    good, output = run(scripts, compare=old, only=("counts",), repeats=1)
    assert good and "no regression beyond noise" in output
    write_script(scripts, "counts", count=120)
    good, output = run(scripts, compare=old, only=("counts",), repeats=1)
    assert not good and "1 regressions" in output and "1.200" in output


def test_a_benchmark_that_fails_is_reported_with_its_last_words_and_the_others_go_on(scripts):
    write_script(scripts, "counts", extra="raise SystemExit('no [red] library')")
    good, output = run(scripts)
    assert not good
    written = read_record(scripts.parent / "bench.json", "benchmarks")
    assert written["failures"] == {"counts": "exit code 1: no [red] library"}
    assert list(written["benchmarks"]) == ["step_overhead"]
    assert "no [red] library" in output
    assert (scripts / "order.txt").read_text().split().count("counts") == 1, "it is not tried again"


def test_a_benchmark_that_is_killed_is_reported(scripts):
    write_script(scripts, "counts", extra="import os; os.kill(os.getpid(), 11)")
    run(scripts, repeats=1)
    assert "SIGSEGV" in read_record(scripts.parent / "bench.json", "benchmarks")["failures"]["counts"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("no json", "is not JSON"),
        ("[]", "schema None, not 1"),
        (json.dumps({"schema": 0}), "schema 0, not 1"),
        (json.dumps({"schema": SCHEMA, "measurements": []}), "has no 'benchmarks'"),
        (json.dumps({"schema": SCHEMA, "settings": {"full": True}, "benchmarks": {}}), "is of full=True"),
    ],
)
def test_a_file_that_is_no_record_is_refused_before_anything_runs(scripts, content, words):
    path = scripts.parent / "old.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=words):
        run(scripts, compare=path)
    assert not (scripts / "order.txt").exists()


def test_the_file_to_compare_with_is_not_written_over(scripts):
    with pytest.raises(ValueError, match="is the file to compare with"):
        BenchConfig(compare=scripts / "a.json", out=scripts / "." / "a.json")


def test_where_the_result_cannot_be_written_nothing_is_measured(scripts):
    (scripts.parent / "file").write_text("")
    with pytest.raises(OSError):
        run(scripts, out=scripts.parent / "file" / "bench.json")
    assert not (scripts / "order.txt").exists()


def test_ratios_of_one_repeat_each_cannot_be_judged():
    assert compare(record([1.0]), record([2.0])).judged == []
    assert compare(record([1.0]), record([2.0, 2.0])).judged != []


@pytest.mark.parametrize(
    ("settings", "words"), [({"only": ("nothing",)}, r"only=\['nothing'\]"), ({"repeats": 0}, "repeats=0")]
)
def test_settings_out_of_range_are_refused(scripts, settings, words):
    with pytest.raises(ValueError, match=words):
        run(scripts, **settings)


def test_without_a_checkout_the_command_says_where_the_benchmarks_are(monkeypatch):
    monkeypatch.setattr(bench_module, "__file__", "/nowhere/genesis_vec/benchmark/bench.py")
    with pytest.raises(BenchmarkError, match="scripts of the repository"):
        bench(BenchConfig())


@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_running_benchmark_and_keeps_what_was_measured(scripts, number, exit_code):
    write_script(scripts, "step_overhead", extra="(folder / 'sleeping').touch(); time.sleep(100)")
    program = (
        "import pathlib\nfrom genesis_vec.benchmark import bench as b\nfrom genesis_vec.cli import run_command\n"
        "b.SUITE = {'counts': [], 'step_overhead': []}\n"
        f"folder = pathlib.Path({str(scripts)!r})\n"
        "run_command(lambda: b.bench(b.BenchConfig(out=folder.parent / 'bench.json'), scripts=folder))\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while not (scripts / "sleeping").exists():
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.05)
    children = children_of(process.pid)
    assert children
    process.send_signal(number)
    output, _ = process.communicate(timeout=30)
    assert process.returncode == exit_code
    written = read_record(scripts.parent / "bench.json", "benchmarks")
    assert list(written["benchmarks"]) == ["counts"] and written["interrupted"]
    assert "record" in output
    assert not any(Path(f"/proc/{child}").exists() for child in children)


# ------------------------------------------------------------------------------------------------------------- counts


def test_operations_allocations_and_copied_bytes_are_counted():
    one, other = torch.ones(4), torch.zeros(4)
    with CountOperations() as counting:
        view = one[1:]  # an operation, no memory
        total = view + 1.0  # 12 bytes
        other.copy_(one)  # 16 bytes copied into memory that is there
        total.clone()  # 12 bytes, new and copied
    counts = copy.copy(counting.counts)
    assert counts.operations == 4
    assert (counts.allocations, counts.allocated_bytes, counts.copied_bytes) == (2, 24, 28)


def test_a_count_has_no_spread_and_a_ratio_has_one():
    assert Metric("c", "count", "lower", [7]).as_record() == {
        "kind": "count", "better": "lower", "median": 7, "rounds": 1
    }  # fmt: skip
    assert Metric("r", "ratio", "lower", [1.0, 2.0, 3.0]).as_record()["quartiles"] == [1.0, 3.0]
