"""The doctor's findings, on this machine and where something is missing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from genesis_vec import doctor


def verdict(report: dict[str, Any], capability: str) -> dict[str, Any]:
    (found,) = [v for v in report["verdicts"] if v["capability"] == capability]
    return found


def test_what_it_finds_here_is_so():
    ended = subprocess.run(
        [sys.executable, "-c", "from genesis_vec.cli import main; main(['doctor', '--json'])"],
        capture_output=True, text=True, timeout=300, check=False, env={**os.environ, "CUDA_VISIBLE_DEVICES": "5"},
    )  # fmt: skip
    report = json.loads(ended.stdout)
    assert ended.returncode == 0, ended.stderr
    assert report["schema"] == 1
    assert report["packages"]["genesis-world"] == "1.4.5"
    assert report["variables"]["CUDA_VISIBLE_DEVICES"] == "5" and report["visible_gpus"] == ["5"]
    assert verdict(report, "simulate on the CPU")["works"] is True
    assert report["engine"]["kernel_cache"]["files"] > 0
    gpu = verdict(report, "simulate on a GPU")
    assert gpu["works"] is False and "sees no GPU" in gpu["reason"]
    assert verdict(report, "train on several ranks on the CPU (gloo)")["works"] is True
    assert verdict(report, "train with stable_baselines3")["works"] is True
    tried = [v["capability"] for v in report["verdicts"] if v["is_tried"]]
    assert tried in (["simulate on the CPU"], ["simulate on the CPU", "draw pictures"])


def test_failing_probes_become_verdicts_with_a_remedy(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture):
    answers = {
        "simulate": {"error": "exit code 1: no engine"},
        "draw": {"error": "RenderingUnavailableError: no EGL"},
        "distributed": {"backends": {"gloo": True, "nccl": False}},
    }
    monkeypatch.setattr(doctor, "_probe", lambda what, device: answers[what])
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(doctor.shutil, "which", lambda name: None)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    report = doctor.examine()
    assert [v["works"] for v in report["verdicts"]] == [False, False, False, True] + [False] * 8
    assert "libegl1" in verdict(report, "draw pictures")["remedy"]
    assert verdict(report, "train with rsl_rl")["remedy"] == "pip install 'genesis-vec[rsl-rl]'"
    assert verdict(report, "export to ONNX")["remedy"] == "pip install 'genesis-vec[export]'"
    assert "g++" in verdict(report, "compile the learner on the CPU (--compile)")["remedy"]
    assert doctor.doctor() is False
    printed = "".join(character for character in capsys.readouterr().out if character.isalnum() or character in "[]-")
    assert "[skrl]" in printed, "brackets are no markup"


def test_gpus_that_a_variable_hides_are_told_apart_from_none(monkeypatch: pytest.MonkeyPatch):
    gpus = {"driver": "1", "devices": [{"index": 0}], "reason": ""}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    hidden = doctor._gpu_verdict(gpus, [], None)
    assert (
        "CUDA_VISIBLE_DEVICES='' hides the 1 GPUs" in hidden.reason
        and hidden.remedy == "unset it, or list some of them"
    )
    assert (
        "driver does not answer"
        in doctor._gpu_verdict({"driver": None, "devices": [], "reason": "the driver does not answer"}, [], None).reason
    )


def test_a_probe_that_dies_is_told_by_its_end(monkeypatch: pytest.MonkeyPatch):
    assert "KeyError" in doctor._probe("nothing", "cpu")["error"]
    monkeypatch.setattr(doctor, "_PROBE_TIMEOUT_S", 0.05)
    assert doctor._probe("distributed", "cpu")["error"] == "no answer within 0 s"
