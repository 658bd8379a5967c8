"""Which configurations are measured and recommended; measuring in processes that fail; the command."""

from __future__ import annotations

import dataclasses
import io
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from genesis_vec import cli
from genesis_vec.benchmark.point import Measurement, Point, Subject, measure_in_process
from genesis_vec.benchmark.size import SizeConfig, command, size
from genesis_vec.benchmark.sizing import BudgetSpent, Machine, Sweep, memory_model, recommend
from genesis_vec.errors import BenchmarkError
from genesis_vec.training.config import PPOConfig
from tests.benchmark.fakes import rate
from tests.multi_device.processes import children_of

GIB = 1024**3
PPO = dataclasses.asdict(PPOConfig(rollout_steps=4, minibatches=2, epochs=1, hidden_sizes=(8,)))
COSTLY = "tests.benchmark.fakes:Costly-v0"


def known(point: Point) -> Measurement:
    """What the known curve says, without measuring."""
    value = rate(point.num_envs, point.workers or 1, point.envs_per_scene)
    memory = int(0.3 * GIB + 300_000 * point.num_envs)
    return Measurement(
        point=point, start_s=1.0, step_rate=value, inference_rate=value, training_rate=value, memory_bytes=memory
    )


def sweep(machine: Machine, measure: Any = known) -> Sweep:
    made = Sweep(measure, machine)
    made.run()
    return made


@pytest.mark.parametrize("cores", [1, 2, 8])
def test_what_is_recommended_is_within_a_tenth_of_the_best_of_a_whole_grid(cores: int):
    machine = Machine(cores=cores, memory_bytes=3 * GIB)
    chosen = recommend(sweep(machine).measurements, machine)
    assert chosen is not None
    grid = [
        known(Point(num_envs=num_envs, workers=workers, envs_per_scene=scene))
        for num_envs, workers, scene in itertools.product(
            range(128, 20_000, 128), range(1, cores + 1), (32, 64, 128, 256, 512, 1024)
        )
    ]
    fitting = [m for m in grid if (m.memory_bytes or 0) <= 0.9 * machine.memory_bytes]
    best = max(m.training_rate or 0.0 for m in fitting)
    assert chosen.best.training_rate >= 0.9 * best  # type: ignore[operator]
    assert chosen.best.memory_bytes <= 0.9 * machine.memory_bytes  # type: ignore[operator]
    assert chosen.best.point.workers == cores
    assert chosen.best.point.envs_per_scene == 256
    assert chosen.knee.training_rate >= 0.95 * chosen.best.training_rate  # type: ignore[operator]
    assert chosen.knee.point.num_envs <= chosen.best.point.num_envs


def test_memory_is_extrapolated_and_the_extrapolation_checked():
    machine = Machine(cores=2, memory_bytes=3 * GIB)
    chosen = recommend(sweep(machine).measurements, machine)
    assert chosen is not None and chosen.memory is not None
    assert chosen.memory.per_env_bytes == pytest.approx(300_000, rel=1e-3)
    assert chosen.largest == pytest.approx((0.9 * 3 - 0.3) * GIB / 300_000, rel=1e-3)
    assert chosen.prediction_error == pytest.approx(0.0, abs=1e-3)
    assert memory_model([known(Point(num_envs=128))], Point(num_envs=128)) is None, "one size makes no line"


def test_on_a_gpu_one_scene_grows_until_memory_ends():
    machine = Machine(cores=0, memory_bytes=2 * GIB)
    seen = sweep(machine, lambda point: dataclasses.replace(known(point), training_rate=float(point.num_envs)))
    assert {(m.point.workers, m.point.envs_per_scene) for m in seen.measurements} == {(0, None)}
    chosen = recommend(seen.measurements, machine)
    assert chosen is not None and chosen.best.point.num_envs == 4096


def test_failures_end_the_growth_and_not_the_sweep():
    def failing(point: Point) -> Measurement:
        if point.num_envs >= 1000:
            return Measurement(point=point, failure="out of memory")
        return known(point)

    machine = Machine(cores=1, memory_bytes=30 * GIB)
    seen = sweep(machine, failing)
    failed = [m.point.num_envs for m in seen.measurements if m.failure]
    assert failed[0] == 1024 and len(seen.measurements) > len(failed) + 3
    chosen = recommend(seen.measurements, machine)
    assert chosen is not None and 512 <= chosen.best.point.num_envs < 1000
    assert recommend([Measurement(point=Point(num_envs=2), failure="x")], machine) is None


def test_a_spent_budget_ends_the_sweep_with_what_there_is():
    left = iter(range(3))

    def measure(point: Point) -> Measurement:
        if next(left, None) is None:
            raise BudgetSpent
        return known(point)

    points = [m.point for m in sweep(Machine(cores=1, memory_bytes=GIB), measure).measurements]
    assert [(point.num_envs, point.envs_per_scene) for point in points] == [(512, 128), (512, 256), (512, 512)]


# ------------------------------------------------------------------------------------------------------------ measuring


def subject(**env: Any) -> Subject:
    return Subject(env_id=COSTLY, env=env, ppo=PPO, device="cpu", seconds=0.3)


def test_a_process_measures_the_three_rates_and_memory():
    result = measure_in_process(subject(), Point(num_envs=200, workers=1, envs_per_scene=256), 60.0)
    assert result.failure is None
    expected = rate(200, 1, 256)
    assert 0.6 * expected < result.step_rate < 1.05 * expected  # type: ignore[operator]
    assert 0.3 * expected < result.training_rate <= 1.05 * expected  # type: ignore[operator]
    assert 0.05 * GIB < result.memory_bytes < 3 * GIB  # type: ignore[operator]


def test_a_process_that_crashes_runs_out_of_memory_or_of_time_is_told_and_leaves_nothing():
    point = Point(num_envs=8, workers=1)
    assert "signal SIGABRT" in (measure_in_process(subject(crash_at=8), point, 60.0).failure or "")
    limited = dataclasses.replace(subject(exhaust_at=8), address_space_bytes=8 * GIB)
    assert "memory" in (measure_in_process(limited, point, 60.0).failure or "").lower()
    start = time.monotonic()
    assert measure_in_process(subject(), point, 1.0).failure == "took longer than 1 s"
    assert time.monotonic() - start < 10.0
    unknown = dataclasses.replace(subject(), env_id="tests.benchmark.fakes:Nope-v0")
    assert "NameNotFound" in (measure_in_process(unknown, point, 60.0).failure or "")
    assert not [
        pid for pid in children_of(os.getpid()) if "benchmark.point" in Path(f"/proc/{pid}/cmdline").read_text()
    ]


# ---------------------------------------------------------------------------------------------------------- the command


def config(out: Path, **kwargs: Any) -> SizeConfig:
    return SizeConfig(env_id=COSTLY, device="cpu", out=out, seconds=0.2, **kwargs)


def test_the_command_reports_failures_and_ends_in_time_with_a_line_to_paste(tmp_path: Path):
    console = Console(file=io.StringIO(), highlight=False, soft_wrap=True, width=200)
    env = ("crash_at=1024", "exhaust_at=192")
    start = time.monotonic()
    chosen = size(config(tmp_path, budget=45.0, env=env), console)
    assert time.monotonic() - start < 55.0
    printed: str = console.file.getvalue()  # type: ignore[attr-defined]
    assert chosen is not None
    assert "1024 environments in scenes of" in printed and "signal SIGABRT" in printed
    record = json.loads((tmp_path / "sizing.json").read_text())
    assert record["schema"] == 1 and record["versions"]["torch"]
    assert record["recommendation"]["best"]["point"]["num_envs"] == chosen.best.point.num_envs
    assert (tmp_path / "sizing.png").read_bytes()[:4] == b"\x89PNG"
    assert printed.strip().endswith(command(config(tmp_path, env=env), chosen.best))
    assert f"genesis-vec train {COSTLY} --num-envs {chosen.best.point.num_envs} --devices cpu:" in printed
    assert "--env crash_at=1024" in printed


@pytest.mark.parametrize("id", ["Nope-v0", "CartPole-v1", "no_such_module:Nope-v0"])
def test_an_id_that_runs_at_no_size_ends_the_sweep_at_once_and_leaves_nothing(tmp_path: Path, id: str):
    console = Console(file=io.StringIO(), soft_wrap=True, width=200)
    with pytest.raises(BenchmarkError, match=f"{id} does not run at any size"):
        size(SizeConfig(env_id=id, device="cpu", budget=60.0, out=tmp_path / "out"), console)
    assert not (tmp_path / "out").exists()


def test_sizes_that_fail_alike_for_want_of_something_do_not_end_the_sweep(tmp_path: Path):
    console = Console(file=io.StringIO(), soft_wrap=True, width=200)
    chosen = size(config(tmp_path, budget=30.0, env=("crash_above=300",)), console)
    assert chosen is not None and chosen.best.point.num_envs <= 300
    assert console.file.getvalue().count("signal SIGABRT") >= 2  # type: ignore[attr-defined]


def test_where_the_result_cannot_be_written_nothing_is_measured(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError):
        size(config(tmp_path / "file"), Console(file=io.StringIO()))


def test_an_interrupt_reports_what_was_measured(tmp_path: Path):
    script = (
        "from genesis_vec.cli import main; main(['size', "
        f"{COSTLY!r}, '--device', 'cpu', '--seconds', '0.2', '--budget', '300', '--out', {str(tmp_path)!r}])"
    )
    process = subprocess.Popen(
        [sys.executable, "-u", "-c", script], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    assert process.stdout is not None
    first = process.stdout.readline()
    assert " environments" in first
    process.send_signal(signal.SIGINT)
    rest = process.stdout.read()
    assert process.wait(30) == 130
    assert "sizing.json" in rest and "Traceback" not in rest
    assert json.loads((tmp_path / "sizing.json").read_text())["measurements"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--budget", "0"], "budget=0.0 must be a number of seconds above 0"),
        (["--device", "tpu"], "device='tpu': use 'auto', 'cpu' or 'cuda'"),
        (["--memory-gib", "-1"], "memory_gib=-1.0 must be above 0"),
        (["--env", "nonsense"], "env='nonsense' must be NAME=VALUE"),
    ],
)
def test_settings_out_of_range_are_refused(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as error:
        cli.main(["size", "GenesisCartPole-v0", *arguments])
    assert message in f"{error.value} {capsys.readouterr().err}"
