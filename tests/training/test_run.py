"""Whole runs on the real engine: files, resuming, interrupts, playing, the command line."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from genesis_vec import cli
from genesis_vec.errors import CheckpointError, DivergedError, RenderingUnavailableError
from genesis_vec.training import run as run_module
from genesis_vec.training.checkpoint import load_checkpoint, save_checkpoint
from genesis_vec.training.config import PPOConfig, TrainConfig
from genesis_vec.training.evaluate import evaluate
from genesis_vec.training.log import RunLog
from genesis_vec.training.play import play
from genesis_vec.training.ppo import PPO
from genesis_vec.training.run import load_policy, train
from tests.training.torchrun import iteration_of, same_training, wait_until

SMALL = PPOConfig(rollout_steps=8, minibatches=2, epochs=1, hidden_sizes=(8,))


def config(run_dir: Path, iterations: int = 3, **kwargs: Any) -> TrainConfig:
    return TrainConfig(
        env_id="GenesisCartPole-v0", num_envs=16, iterations=iterations, device="cpu", run_dir=run_dir, ppo=SMALL,
        checkpoint_every=2, **{"env": ("max_episode_steps=6",), **kwargs},
    )  # fmt: skip


def silent() -> Console:
    return Console(file=io.StringIO(), highlight=False, soft_wrap=True)


def rows(run_dir: Path) -> list[dict[str, str]]:
    with (run_dir / "progress.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    run_dir = tmp_path_factory.mktemp("runs") / "run"
    console = silent()
    train(config(run_dir), console)
    return run_dir, console.file.getvalue()  # type: ignore[attr-defined]


def test_a_run_leaves_config_versions_progress_curves_events_and_checkpoints(finished_run: tuple[Path, str]):
    run_dir, _ = finished_run
    assert json.loads((run_dir / "config.json").read_text())["env"] == ["max_episode_steps=6"]
    assert json.loads((run_dir / "versions.json").read_text())["genesis-world"] == "1.4.5"
    assert [row["iteration"] for row in rows(run_dir)] == ["1", "2", "3"]
    assert [row["env_steps"] for row in rows(run_dir)] == ["128", "256", "384"]
    assert float(rows(run_dir)[-1]["mean_length"]) == 6.0
    assert (run_dir / "curves.png").read_bytes()[:4] == b"\x89PNG"
    assert list((run_dir / "tensorboard").glob("events.out.tfevents.*"))
    state = load_checkpoint(run_dir)
    assert state["iteration"] == 3
    assert not any("module." in name for name in state["policy"])


def test_the_run_s_last_words_are_where_its_files_are_and_the_improvement(finished_run: tuple[Path, str]):
    run_dir, output = finished_run
    for name in ("curves.png", "progress.csv", "checkpoints/iteration-000003.pt"):
        assert str(run_dir / name) in output
    assert "untrained   mean return" in output
    assert "trained     mean return" in output
    assert "improvement +0.00 in mean return" in output  # six steps are survived by an untrained policy


def test_playing_a_checkpoint_reproduces_and_needs_nothing_of_the_training(finished_run: tuple[Path, str]):
    run_dir, _ = finished_run
    first = play(run_dir, episodes=10, device="cpu", console=silent())
    again = play(run_dir / "checkpoints" / "best.pt", episodes=10, device="cpu", console=silent())
    assert first == again, "untrained enough for the best and the newest to last as long"
    assert (first.episodes, first.mean_length) == (10, 6.0)


def test_a_folder_with_a_run_in_it_is_not_overwritten(finished_run: tuple[Path, str]):
    run_dir, _ = finished_run
    with pytest.raises(CheckpointError, match="holds a run already: give another run_dir, or resume"):
        train(config(run_dir), silent())
    assert len(rows(run_dir)) == 3


def test_resuming_goes_on_where_the_checkpoint_is_and_another_setting_is_refused(tmp_path: Path):
    train(config(tmp_path / "run", iterations=2), silent())
    train(config(tmp_path / "run", iterations=4, resume=True), silent())
    assert [row["iteration"] for row in rows(tmp_path / "run")] == ["1", "2", "3", "4"]
    assert load_checkpoint(tmp_path / "run")["env_steps"] == 512
    other = TrainConfig(
        env_id="GenesisCartPole-v0", num_envs=8, device="cpu", run_dir=tmp_path / "run", resume=True, ppo=SMALL
    )
    with pytest.raises(CheckpointError, match=r"was run with env=\['max_episode_steps=6'\], not \[\]"):
        train(other, silent())


def test_resume_without_an_earlier_run_starts_one(tmp_path: Path):
    result = train(config(tmp_path / "run", iterations=1, resume=True), silent())
    assert result.before is not None
    assert load_checkpoint(tmp_path / "run")["iteration"] == 1


def test_an_interrupt_keeps_what_was_learnt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    original = PPO.iterate

    def interrupted(self: PPO) -> dict[str, float]:
        if self.iteration == 1:
            raise KeyboardInterrupt
        return original(self)

    monkeypatch.setattr(PPO, "iterate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train(config(tmp_path / "run"), silent())
    assert load_checkpoint(tmp_path / "run")["iteration"] == 1
    assert (tmp_path / "run" / "curves.png").is_file()


def test_a_run_that_diverges_ends_with_what_is_not_finite_and_keeps_the_checkpoint_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    original = PPO.iterate

    def breaking(self: PPO) -> dict[str, float]:
        if self.iteration == 2:
            self.policy.log_std.data.fill_(float("nan"))
        return original(self)

    monkeypatch.setattr(PPO, "iterate", breaking)
    with pytest.raises(DivergedError, match=r"diverged in iteration 3: .*policy_loss.* not finite.*learning_rate"):
        train(config(tmp_path / "run", 9), silent())
    assert load_checkpoint(tmp_path / "run")["iteration"] == 2


def test_a_run_that_cannot_begin_leaves_no_folder(tmp_path: Path):
    with pytest.raises(TypeError, match="unknown arguments"):
        train(config(tmp_path / "run", env=("speed=2",)), silent())
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"learning_rate": float("inf")}, "ppo.learning_rate=inf must be above 0, and finite"),
        ({"entropy_coefficient": float("nan")}, "ppo.entropy_coefficient=nan must be 0 or more, and finite"),
        ({"hidden_sizes": (64, -3)}, r"ppo.hidden_sizes=\(64, -3\) must be one size of 1 or more for each layer"),
    ],
)
def test_settings_that_cannot_train_are_refused(settings: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        PPOConfig(**settings)


@pytest.mark.slow
def test_compiled_training_learns_the_same_but_for_the_order_of_sums(tmp_path: Path, finished_run: tuple[Path, str]):
    # In a process of its own: torch's compiler and setuptools disagree about distutils where pytest has imported both.
    code = (
        "from tests.training.test_run import config, silent, train; from pathlib import Path; "
        f"train(config(Path({str(tmp_path / 'run')!r}), compile=True), silent())"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=500, cwd=Path(__file__).parents[2])
    ours, theirs = load_checkpoint(tmp_path / "run")["policy"], load_checkpoint(finished_run[0])["policy"]
    assert ours.keys() == theirs.keys(), "and under the same names"
    for name, value in theirs.items():
        torch.testing.assert_close(ours[name], value, rtol=1e-3, atol=1e-4)


def resumed(run_dir: Path, iterations: int, **kwargs: Any) -> str:
    """What a run says that goes on."""
    console = silent()
    train(config(run_dir, iterations, resume=True, **kwargs), console)
    return console.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "settings",
    [{}, {"devices": "cpu:2", "env": ("max_episode_steps=6", "on_worker_failure=restart")}],
    ids=["one scene", "workers that can be restarted"],
)
def test_a_resumed_run_equals_the_uninterrupted_one_bit_for_bit(settings: dict[str, Any], tmp_path: Path):
    train(config(tmp_path / "whole", 8, **settings), silent())
    train(config(tmp_path / "stopped", 5, **settings), silent())
    assert "going on from iteration 5, where it stopped" in resumed(tmp_path / "stopped", 8, **settings)
    assert same_training(tmp_path / "whole", tmp_path / "stopped")


def test_without_its_environments_a_resumed_run_starts_new_episodes_and_says_so(tmp_path: Path):
    train(config(tmp_path / "run", 2, checkpoint_envs=False), silent())
    told = resumed(tmp_path / "run", 3)
    assert "going on from iteration 2, with new episodes, as the checkpoint is without them" in told


def test_other_scenes_than_the_checkpoint_s_start_new_episodes_and_say_so(tmp_path: Path):
    train(config(tmp_path / "run", 2, devices="cpu:1"), silent())
    told = resumed(tmp_path / "run", 3, devices="cpu:2")
    assert "with new episodes, as the state is of scenes of [16] environments, these are of [8, 8]" in told


def test_a_run_films_chosen_environments_and_learns_the_same(tmp_path: Path, finished_run: tuple[Path, str]):
    try:
        train(config(tmp_path / "run", video_every=2, video_envs="1,3", video_length=4), silent())
    except RenderingUnavailableError as error:
        pytest.skip(f"this machine cannot draw: {error}")
    videos = tmp_path / "run" / "videos"
    assert sorted(path.name for path in videos.iterdir()) == ["iteration-000000.mp4", "iteration-000002.mp4"]
    plain, filmed = load_checkpoint(finished_run[0])["policy"], load_checkpoint(tmp_path / "run")["policy"]
    assert all(torch.equal(plain[name], filmed[name]) for name in plain)


def test_a_played_policy_leaves_its_episodes_as_data(tmp_path: Path, finished_run: tuple[Path, str]):
    minari = pytest.importorskip("minari")
    result = play(finished_run[0], episodes=3, num_envs=3, device="cpu", dataset=tmp_path / "data", console=silent())
    dataset = minari.MinariDataset(tmp_path / "data" / "data")
    first = {}
    for episode, about in zip(
        dataset.iterate_episodes(), dataset.storage.get_episode_metadata(range(dataset.total_episodes)), strict=True
    ):
        first.setdefault(int(about["env_index"]), sum(episode.rewards))
    assert sum(first.values()) / 3 == pytest.approx(result.mean_return, rel=1e-5)


def test_a_run_ends_once_it_is_good_enough(tmp_path: Path):
    train(config(tmp_path / "run", 50, stop_at_return=5.0), silent())
    assert load_checkpoint(tmp_path / "run")["iteration"] == 1
    assert float(rows(tmp_path / "run")[-1]["mean_return"]) >= 5.0


def test_a_terminated_run_finishes_its_iteration_saves_and_tells_the_signal(tmp_path: Path):
    run_dir = tmp_path / "run"
    process = subprocess.Popen(
        [sys.executable, "-m", "genesis_vec.train", "GenesisCartPole-v0", "--num-envs", "4", "--iterations", "100000",
         "--device", "cpu", "--run-dir", str(run_dir), "--checkpoint-every", "1"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    wait_until(lambda: iteration_of(run_dir) >= 1, 60)
    process.terminate()
    output, errors = process.communicate(timeout=30)
    assert process.returncode == 128 + signal.SIGTERM, errors
    state = load_checkpoint(run_dir)
    assert f"stopped by SIGTERM after iteration {state['iteration']}" in output
    assert rows(run_dir)[-1]["iteration"] == str(state["iteration"])
    assert (run_dir / "curves.png").is_file()


def test_a_request_that_comes_twice_does_not_cost_the_curves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    iterate, draw = PPO.iterate, RunLog.draw

    def interrupted(self: PPO) -> dict[str, float]:
        signal.raise_signal(signal.SIGINT)
        return iterate(self)

    def interrupted_again(self: RunLog) -> Path:
        # As torchrun passes on a terminal's Ctrl-C that every rank has already had.
        signal.raise_signal(signal.SIGINT)
        return draw(self)

    monkeypatch.setattr(PPO, "iterate", interrupted)
    monkeypatch.setattr(RunLog, "draw", interrupted_again)
    with pytest.raises(KeyboardInterrupt):
        train(config(tmp_path / "run", 5), silent())
    assert (tmp_path / "run" / "curves.png").is_file()
    assert load_checkpoint(tmp_path / "run")["iteration"] == 1


def test_without_evaluation_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(run_module, "evaluate", lambda *args, **kwargs: pytest.fail("evaluated"))
    result = train(config(tmp_path / "run", 1, evaluate=False), silent())
    assert (result.before, result.after) == (None, None)
    assert load_checkpoint(tmp_path / "run")["iteration"] == 1


def test_an_interrupt_in_the_final_evaluation_ends_it_at_once_and_the_run_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    evaluations = 0

    def interrupted(*args: Any, **kwargs: Any) -> None:
        nonlocal evaluations
        evaluations += 1
        if evaluations == 2:
            signal.raise_signal(signal.SIGINT)
            pytest.fail("the interrupt was swallowed")

    monkeypatch.setattr(run_module, "evaluate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train(config(tmp_path / "run", 2), silent())
    assert load_checkpoint(tmp_path / "run")["iteration"] == 2


def test_a_policy_without_its_statistics_is_refused(tmp_path: Path, finished_run: tuple[Path, str]):
    state = load_checkpoint(finished_run[0])
    del state["policy"]["observation_mean"]
    save_checkpoint(tmp_path / "old.pt", {name: value for name, value in state.items() if name != "format"})
    with pytest.raises(CheckpointError, match="observation_mean"):
        play(tmp_path / "old.pt", episodes=2, device="cpu", console=silent())


def test_a_fresh_process_acts_as_the_learner_did_and_evaluation_leaves_the_statistics(
    finished_run: tuple[Path, str], make_env: Any
):
    state = load_checkpoint(finished_run[0])
    env = make_env(num_envs=4)
    policy = load_policy(state, env)
    count = state["observation_moments"]["count"].clone()
    before = {name: value.clone() for name, value in policy.state_dict().items()}
    evaluate(env, policy.act, 4, seed=0, max_steps=600)
    assert all(torch.equal(value, before[name]) for name, value in policy.state_dict().items())
    assert load_checkpoint(finished_run[0])["observation_moments"]["count"] == count
    observations = torch.linspace(-2, 2, 12).reshape(3, 4)
    script = (
        "import sys, torch; from pathlib import Path; from genesis_vec.training.checkpoint import load_checkpoint\n"
        "from genesis_vec.training.model import ActorCritic\n"
        "state = load_checkpoint(Path(sys.argv[1]))\n"
        "policy = ActorCritic(4, 1, (8,), 1.0, 5); policy.load_state_dict(state['policy'])\n"
        "print(policy.act(torch.linspace(-2, 2, 12).reshape(3, 4)).flatten().tolist())"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(finished_run[0])], capture_output=True, text=True, check=True, timeout=60
    )
    assert json.loads(done.stdout) == policy.act(observations).flatten().tolist()


def test_two_runs_from_one_seed_end_with_the_same_parameters(tmp_path: Path, finished_run: tuple[Path, str]):
    train(config(tmp_path / "run"), silent())
    first, second = load_checkpoint(finished_run[0])["policy"], load_checkpoint(tmp_path / "run")["policy"]
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "GenesisCartPol-v0"], "`genesis-vec list` shows the ids"),
        (["train", "GenesisCartPole-v0", "--num-envs", "0"], "num_envs=0 must be at least 1"),
        (["train", "GenesisCartPole-v0", "--resume"], "used with run_dir"),
        (["train", "GenesisCartPole-v0", "--env", "nonsense"], "env='nonsense' must be NAME=VALUE"),
        (["train", "GenesisCartPole-v0", "--device", "cpu", "--env", "speed=2"], "unknown arguments ['speed']"),
        (["train", "GenesisCartPole-v0", "--devices", "tpu:2"], "is not understood"),
        (["train"], "required"),
        (
            ["train", "GenesisCartPole-v0", "--video-every", "1", "--video-envs", "a"],
            "video_envs='a' must be different",
        ),
        (["train", "GenesisCartPole-v0", "--video-envs", "2"], "video_envs='2' must be used with video_every"),
        (
            ["train", "GenesisCartPole-v0", "--env", "observation=rgb"],
            "observation='rgb' must be 'state' for",
        ),
        (
            ["train", "GenesisCartPole-v0", "--video-every", "1", "--device", "cpu", "--env", "render_envs=[1]"],
            "video_every films video_envs='0': leave --env render_envs=… out",
        ),
        (["train", "no_such_module:Task-v0", "--device", "cpu"], "there is no module 'no_such_module' here: start in"),
        (["train", "GenesisCartPole-v0", "--video-every", "0"], "video_every=0 must be at least 1"),
        (["play", "nowhere"], "there is no checkpoint nowhere"),
        (["play", "nowhere", "--video", "a.txt"], "must end in .mp4 or .gif"),
        (["dance"], "there is no command 'dance'; use one of train, play, export, size, bench, doctor, launch, list"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_on_the_command_line_ends_with_what_is_wrong_and_no_traceback(
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as error:
        cli.main(arguments)
    told = f"{error.value} {capsys.readouterr().err}"
    assert message in told
    assert "Traceback" not in told
    assert error.value.code != 0


def test_options_start_from_the_id_s_preset_and_reach_the_run(monkeypatch: pytest.MonkeyPatch):
    seen: list[TrainConfig] = []
    monkeypatch.setattr(run_module, "train", lambda config, job: seen.append(config))
    cli.main(["train", "genesis_vec:GenesisRigid-v0", "--seed", "5", "--ppo.gamma", "0.8", "--env", "control=torque"])
    assert (seen[0].seed, seen[0].ppo.gamma, seen[0].num_envs) == (5, 0.8, 128)
    assert seen[0].ppo.learning_rate == 2e-3
    assert seen[0].env_kwargs() == {"device": "auto", "control": "torque"}


def test_the_list_shows_every_shipped_id(capsys: pytest.CaptureFixture[str]):
    cli.main(["list"])
    output = capsys.readouterr().out
    assert "GenesisRigid-v0" in output and "GenesisCartPole-v0" in output


def test_the_module_form_trains_without_a_terminal_and_prints_plain_lines(tmp_path: Path):
    done = subprocess.run(
        [sys.executable, "-m", "genesis_vec.train", "GenesisCartPole-v0", "--num-envs", "4", "--iterations", "2",
         "--device", "cpu", "--run-dir", str(tmp_path / "run"), "--ppo.rollout-steps", "4"],
        capture_output=True, text=True, timeout=300, env={**os.environ, "WORLD_SIZE": "1"}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "iteration 2/2" in done.stdout
    assert "\x1b" not in done.stdout
    assert "Traceback" not in done.stderr and "Warning" not in done.stderr
    assert load_checkpoint(tmp_path / "run")["iteration"] == 2


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_cart_pole_is_learnt_with_the_preset(seed: int, tmp_path: Path):
    from genesis_vec.training.presets import preset

    base = preset("GenesisCartPole-v0")
    result = train(
        TrainConfig(
            env_id=base.env_id, num_envs=base.num_envs, iterations=base.iterations, seed=seed, device="cpu",
            run_dir=tmp_path / "run", ppo=base.ppo,
        ),
        silent(),
    )  # fmt: skip
    assert result.after is not None and result.after.mean_length >= 475
