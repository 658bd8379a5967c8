"""Runs with each library's own PPO on the real engine: files, ends, refusals."""

from __future__ import annotations

import csv
import importlib
import io
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from stable_baselines3.common.torch_layers import NatureCNN

from genesis_vec.adapters.sb3 import TorchPPO
from genesis_vec.errors import CheckpointError, RenderingUnavailableError
from genesis_vec.library_training.run import train_with_library
from genesis_vec.training.checkpoint import load_checkpoint
from genesis_vec.training.config import PPOConfig, TrainConfig
from genesis_vec.training.job import Job
from genesis_vec.training.log import RunLog
from genesis_vec.training.presets import preset
from tests.training import torchrun

LIBRARIES = ("sb3", "rsl_rl", "skrl", "rl_games", "torchrl")
SMALL = PPOConfig(rollout_steps=4, minibatches=2, epochs=1, hidden_sizes=(8,))
EACH = pytest.mark.parametrize("library", LIBRARIES)


def config(library: Any, run_dir: Path, **kwargs: Any) -> TrainConfig:
    settings = {"num_envs": 5, "iterations": 4, "ppo": SMALL, "env": ("max_episode_steps=6",), **kwargs}
    return TrainConfig(env_id="GenesisCartPole-v0", library=library, device="cpu", run_dir=run_dir, **settings)


def run(settings: TrainConfig) -> tuple[Any, str]:
    """The result, and what was printed."""
    console = Console(file=io.StringIO(), highlight=False, soft_wrap=True)
    return train_with_library(settings, console), console.file.getvalue()  # type: ignore[attr-defined]


def rows(run_dir: Path) -> list[dict[str, str]]:
    with (run_dir / "progress.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@EACH
def test_a_run_leaves_what_the_package_s_own_leave_and_the_library_s_model(
    library: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    threads = torch.get_num_threads(), torch.get_float32_matmul_precision()
    result, printed = run(config(library, tmp_path / "run"))
    assert (torch.get_num_threads(), torch.get_float32_matmul_precision()) == threads, "for the whole process"
    assert json.loads((tmp_path / "run" / "config.json").read_text())["library"] == library
    assert (tmp_path / "run" / "versions.json").is_file()
    assert [(row["iteration"], row["env_steps"]) for row in rows(tmp_path / "run")] == [
        ("1", "20"), ("2", "40"), ("3", "60"), ("4", "80"),
    ]  # fmt: skip
    ended = [row for row in rows(tmp_path / "run") if row["episodes"] != "0"]
    assert [(row["episodes"], row["mean_length"], row["mean_return"]) for row in ended] == [("5", "6", "6")] * 2
    assert (tmp_path / "run" / "curves.png").read_bytes()[:4] == b"\x89PNG"
    assert result.checkpoint.is_file() and result.checkpoint.parent == tmp_path / "run" / "checkpoints"
    assert f"trained with {library}" in printed
    assert "trained     mean return 6.00" in printed
    assert result.after.episodes == 5
    assert capsys.readouterr().out == "", "the library's own words are in library.log"


@pytest.mark.parametrize("kind", ["rgb", "depth"])
def test_sb3_learns_from_pixels(kind: str, tmp_path: Path):
    settings = config("sb3", tmp_path / "run", env=("max_episode_steps=6", f"observation={kind}", "image_size=[40,48]"))
    try:
        result, _ = run(settings)
    except RenderingUnavailableError as error:
        pytest.skip(f"this machine cannot draw: {error}")
    assert result.after.mean_length == 6.0
    model = TorchPPO.load(result.checkpoint, device="cpu")
    channels = {"rgb": 3, "depth": 1}[kind]
    assert model.observation_space.shape == (channels, 40, 48)
    assert isinstance(model.policy.features_extractor, NatureCNN)
    with pytest.raises(ValueError, match="observation='rgb' must be 'state' for library='rl_games'"):
        config("rl_games", tmp_path / "other", env=("observation=rgb",))


@EACH
def test_the_policy_that_is_evaluated_is_the_one_that_was_trained(library: str, tmp_path: Path):
    """An untrained one falls within 30 steps; 12 iterations make a difference that no noise makes."""
    settings = preset("GenesisCartPole-v0")
    result, _ = run(
        TrainConfig(
            env_id="GenesisCartPole-v0", library=library, device="cpu", run_dir=tmp_path, num_envs=64,  # type: ignore[arg-type]
            iterations=12, ppo=settings.ppo,
        )
    )  # fmt: skip
    assert result.after.mean_length > 60


@EACH
def test_it_ends_once_it_is_good_enough(library: str, tmp_path: Path):
    result, _ = run(config(library, tmp_path / "run", stop_at_return=5.0))
    assert [row["iteration"] for row in rows(tmp_path / "run")] == ["1", "2"]
    assert result.checkpoint.is_file()


@EACH
def test_an_interrupt_finishes_the_iteration_and_keeps_the_model(
    library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    original = RunLog.iteration

    def interrupting(self: RunLog, iteration: int, *args: Any) -> None:
        original(self, iteration, *args)
        if iteration == 1:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(RunLog, "iteration", interrupting)
    with pytest.raises(KeyboardInterrupt):
        run(config(library, tmp_path / "run"))
    assert [row["iteration"] for row in rows(tmp_path / "run")] == ["1"]
    assert list((tmp_path / "run" / "checkpoints").glob(f"{library}.*"))
    assert (tmp_path / "run" / "curves.png").is_file()


@pytest.mark.slow
def test_workers_train_as_one_scene_does(tmp_path: Path):
    one, _ = run(config("sb3", tmp_path / "one"))
    workers, printed = run(config("sb3", tmp_path / "workers", devices="cpu:1"))
    assert "simulated in 1 scenes by workers on cpu" in printed
    assert one.after == workers.after


def test_two_ranks_train_with_stable_baselines3(tmp_path: Path):
    arguments = [
        "-m", "genesis_vec.train", torchrun.TOY, "--library", "sb3", "--num-envs", "8", "--iterations", "3",
        "--device", "cpu", "--run-dir", str(tmp_path / "run"), *torchrun.SMALL,
    ]  # fmt: skip
    code, output = torchrun.run(arguments)
    assert code == 0, output
    assert output.count("trained     mean return") == 1
    assert [row["env_steps"] for row in rows(tmp_path / "run")] == ["64", "128", "192"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"resume": True}, "resume=True with library='sb3': that is for 'genesis_vec' only"),
        ({"compile": True}, "compile=True with library='sb3'"),
        ({"keep_checkpoints": 9}, "keep_checkpoints=9 with"),
    ],
)
def test_what_only_the_own_learner_does_is_refused(settings: dict[str, Any], message: str, tmp_path: Path):
    with pytest.raises(ValueError, match=message):
        run(config("sb3", tmp_path / "run", **settings))
    assert not (tmp_path / "run").exists()


def test_a_folder_with_a_run_in_it_and_several_ranks_of_libraries_for_one_are_refused(tmp_path: Path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match="holds a run already"):
        run(config("sb3", tmp_path))
    with pytest.raises(ValueError, match=r"library='skrl' with 2 ranks: use 'genesis_vec' or 'sb3'"):
        train_with_library(config("skrl", tmp_path / "run"), job=Job(rank=0, size=2, local_size=2))


@pytest.mark.parametrize(
    ("library", "module", "extra"),
    [
        ("sb3", "stable_baselines3", "sb3"), ("rsl_rl", "rsl_rl", "rsl-rl"), ("skrl", "skrl", "skrl"),
        ("rl_games", "rl_games", "rl-games"), ("torchrl", "torchrl", "torchrl"),
    ],
)  # fmt: skip
def test_a_missing_library_is_told_with_the_extra_that_brings_it(library: str, module: str, extra: str):
    script = (
        f"import sys; sys.modules[{module!r}] = None\n"
        f"from genesis_vec.cli import main; main(['train', 'GenesisCartPole-v0', '--library', {library!r}])"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert f"genesis-vec: {module} is not installed: pip install 'genesis-vec[{extra}]'" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_the_package_of_adapters_imports_no_library_and_the_package_no_adapter():
    script = (
        "import sys, genesis_vec, genesis_vec.adapters\n"
        "print([name for name in ('torch', 'stable_baselines3', 'rsl_rl', 'skrl', 'rl_games', 'torchrl') "
        "if name in sys.modules])"
    )
    variables = {"WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29655"}
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True,
        env={**__import__("os").environ, **variables},
    )  # fmt: skip
    assert ended.stdout.strip() == "[]"


# ------------------------------------------------------------------------------------------------------------- learning


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sb3", "rsl_rl", "skrl", "rl_games", "torchrl", "cleanrl"])
def test_each_library_s_example_learns_to_balance(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)  # for what it writes
    monkeypatch.syspath_prepend(str(torchrun.ROOT / "examples"))
    example = importlib.import_module(f"{name}_ppo")
    assert example.main(example.Settings()) >= 400.0


@pytest.mark.slow
@EACH
def test_each_library_improves_the_arm(library: str, tmp_path: Path):
    settings = preset("GenesisRigid-v0")
    run(
        TrainConfig(
            env_id="GenesisRigid-v0", library=library, device="cpu", run_dir=tmp_path, iterations=60,  # type: ignore[arg-type]
            num_envs=settings.num_envs, ppo=settings.ppo,
        )
    )  # fmt: skip
    returns = [float(row["mean_return"]) for row in rows(tmp_path) if row["mean_return"]]
    first, last = sum(returns[:3]) / 3, sum(returns[-3:]) / 3
    assert last > first + 0.1 * abs(first)


@EACH
def test_a_mode_of_autoreset_that_the_library_would_not_train_in_is_refused(library: str, tmp_path: Path):
    with pytest.raises(ValueError, match=r"autoreset_mode='NextStep' with library=.*leave it out"):
        run(config(library, tmp_path / "run", env=("autoreset_mode=NextStep",)))
    assert not (tmp_path / "run").exists()


def test_pictures_that_its_network_leaves_nothing_of_are_refused(tmp_path: Path):
    try:
        with pytest.raises(ValueError, match="learns from pictures of 36 pixels or more to a side, not 35 x 48"):
            run(config("sb3", tmp_path / "run", env=("observation=rgb", "image_size=[35,48]")))
    except RenderingUnavailableError as error:
        pytest.skip(f"this machine cannot draw: {error}")


def test_minibatches_of_less_than_two_samples_are_refused(tmp_path: Path):
    with pytest.raises(ValueError, match="rollout_steps=4 times num_envs=1 is less than two samples"):
        run(config("sb3", tmp_path / "run", num_envs=1, ppo=PPOConfig(rollout_steps=4, minibatches=4)))


def test_an_environment_of_arrays_is_refused_by_name(tmp_path: Path):
    with pytest.raises(ValueError, match="CartPole-v1 takes no device: it is no vector environment of torch tensors"):
        run(TrainConfig(env_id="CartPole-v1", library="sb3", device="cpu", run_dir=tmp_path / "run", num_envs=2))


def test_a_library_s_run_cannot_be_played_and_it_is_said_why(tmp_path: Path):
    (tmp_path / "config.json").write_text('{"library": "sb3"}')
    with pytest.raises(CheckpointError, match="trained with sb3, whose model only sb3 can load"):
        load_checkpoint(tmp_path)
