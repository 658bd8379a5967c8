"""Policies as ONNX models, run by onnxruntime itself."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from genesis_vec.errors import CheckpointError, ExportError
from genesis_vec.training import export as export_module
from genesis_vec.training.checkpoint import save_checkpoint
from genesis_vec.training.config import PPOConfig
from genesis_vec.training.export import export
from genesis_vec.training.model import ActorCritic

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")


def saved(folder: Path) -> tuple[Path, ActorCritic]:
    """A checkpoint of a policy whose normalisation matters."""
    ppo = PPOConfig(hidden_sizes=(32, 16))
    policy = ActorCritic(5, 3, ppo.hidden_sizes, ppo.initial_std, seed=1)
    policy.observation_mean.copy_(torch.tensor([0.0, 100.0, -3.0, 0.01, 5.0]))
    policy.observation_inverse_std.copy_(torch.tensor([1.0, 0.1, 4.0, 300.0, 1.0]))
    config = {"env_id": "GenesisRigid-v0", "ppo": dataclasses.asdict(ppo)}
    path = folder / "iteration-000007.pt"
    save_checkpoint(path, {"policy": policy.state_dict(), "config": config, "iteration": 7})
    return path, policy


def test_the_model_acts_as_the_policy_does_on_batches_of_any_size(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    path, policy = saved(tmp_path)
    out = export(path)
    assert not [record for record in caplog.records if record.levelname == "WARNING"], "of what torch does not need"
    assert out == tmp_path / "policy.onnx"
    model = onnx.load(out)
    properties = {prop.key: prop.value for prop in model.metadata_props}
    assert (properties["env_id"], properties["iteration"]) == ("GenesisRigid-v0", "7")
    session = onnxruntime.InferenceSession(str(out), providers=["CPUExecutionProvider"])
    for count in (1, 1000):
        observations = policy.observation_mean + 20.0 * torch.randn(count, 5) / policy.observation_inverse_std
        (actions,) = session.run(["actions"], {"observations": observations.numpy()})
        np.testing.assert_allclose(actions, policy.act(observations).detach().numpy(), rtol=0, atol=1e-5)


def test_the_model_of_a_policy_with_a_privileged_critic_takes_what_the_policy_sees(tmp_path: Path):
    ppo = PPOConfig(hidden_sizes=(8,))
    policy = ActorCritic(5, 2, ppo.hidden_sizes, ppo.initial_std, seed=1, actor_size=3)
    path = tmp_path / "iteration-000001.pt"
    config = {"env_id": "GenesisRigid-v0", "ppo": dataclasses.asdict(ppo)}
    save_checkpoint(path, {"policy": policy.state_dict(), "config": config, "iteration": 1})
    session = onnxruntime.InferenceSession(str(export(path)), providers=["CPUExecutionProvider"])
    observations = torch.randn(7, 5)
    (actions,) = session.run(["actions"], {"observations": observations[:, 2:].numpy()})
    np.testing.assert_allclose(actions, policy.act(observations).detach().numpy(), rtol=0, atol=1e-5)


def test_large_actions_are_compared_by_their_size(tmp_path: Path):
    ppo = PPOConfig(hidden_sizes=(256, 128))
    policy = ActorCritic(5, 3, ppo.hidden_sizes, ppo.initial_std, seed=1)
    with torch.no_grad():
        for layer in policy.actor:
            if isinstance(layer, torch.nn.Linear):
                layer.weight *= 30.0
    config = {"env_id": "GenesisRigid-v0", "ppo": dataclasses.asdict(ppo)}
    save_checkpoint(tmp_path / "large.pt", {"policy": policy.state_dict(), "config": config, "iteration": 1})
    session = onnxruntime.InferenceSession(str(export(tmp_path / "large.pt")), providers=["CPUExecutionProvider"])
    observations = torch.randn(1000, 5)
    (actions,) = session.run(["actions"], {"observations": observations.numpy()})
    expected = policy.act(observations).detach().numpy()
    largest = np.abs(expected).max()
    assert largest > 100.0
    np.testing.assert_allclose(actions, expected, rtol=0, atol=1e-5 * largest)


def test_a_model_that_acts_otherwise_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path, _ = saved(tmp_path)

    class Other(export_module._Act):
        def forward(self, observations: torch.Tensor) -> torch.Tensor:
            return super().forward(observations) + 1e-3

    monkeypatch.setattr(export_module, "_Act", Other)
    with pytest.raises(ExportError, match=r"differ from the policy's by up to 0\.001"):
        export(path)
    assert not (tmp_path / "policy.onnx").exists()


@pytest.mark.parametrize("library", ["onnx", "onnxscript", "onnxruntime"])
def test_the_command_says_what_is_missing(library: str, tmp_path: Path):
    path, _ = saved(tmp_path)
    script = (
        f"import sys; sys.modules[{library!r}] = None\n"
        f"from genesis_vec.cli import main; main(['export', {str(path)!r}])"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert f"{library} is not installed: pip install 'genesis-vec[export]'" in ended.stderr


def test_a_checkpoint_without_its_statistics_is_refused(tmp_path: Path):
    path, _ = saved(tmp_path)
    state: dict[str, Any] = torch.load(path, weights_only=True)
    del state["policy"]["observation_mean"]
    save_checkpoint(path, {name: value for name, value in state.items() if name != "format"})
    with pytest.raises(CheckpointError, match="without observation_mean"):
        export(path)
