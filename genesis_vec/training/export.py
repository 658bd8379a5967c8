"""Writes a trained policy as an ONNX model, for whoever runs it without torch."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from torch import nn

from genesis_vec.errors import ExportError
from genesis_vec.extras import library
from genesis_vec.training.checkpoint import load_checkpoint
from genesis_vec.training.model import ActorCritic
from genesis_vec.training.run import policy_of

_CHECKED = 1000
_TOLERANCE = 1e-5


class _Act(nn.Module):
    """The policy without noise, as a forward pass."""

    def __init__(self, policy: ActorCritic) -> None:
        super().__init__()
        self.policy = policy

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        return self.policy.act(observations)


def export(checkpoint: Path, out: Path | None = None, console: Console | None = None) -> Path:
    """Writes a checkpoint's policy as an ONNX model, and runs it in onnxruntime to see that it does the same.

    The model takes "observations", float32 (batch, observation size), as the environment gives them (of a dict with
    "policy" and "critic" the former): the normalisation is part of it. It gives "actions", float32 (batch, action
    size), without noise; the environment clips them to its bounds, and who runs the model elsewhere must do so too.

    Args:
        checkpoint: A checkpoint file, or a run's folder.
        out: The file; policy.onnx beside the checkpoint by default.
        console: Where to say what was written.

    Returns:
        The file.

    Raises:
        CheckpointError: If the checkpoint cannot be used.
        LibraryNotFoundError: If the extra "export" is missing.
        ExportError: If the model gives other actions than the policy.
    """
    with library("onnx", "export"), library("onnxscript", "export"), library("onnxruntime", "export"):
        import onnx
        import onnxruntime
        import onnxscript  # noqa: F401 - torch's exporter imports it, and would not name the extra

    state = load_checkpoint(checkpoint)
    policy = policy_of(state)
    if out is None:
        out = (checkpoint if checkpoint.is_dir() else checkpoint.parent) / "policy.onnx"
    out.parent.mkdir(parents=True, exist_ok=True)
    observations = _observations(policy)
    with _quiet(), torch.no_grad():
        program = torch.onnx.export(
            _Act(policy), (observations[:2],), dynamo=True, verbose=False, input_names=["observations"],
            output_names=["actions"], dynamic_shapes={"observations": {0: torch.export.Dim("batch")}},
        )  # fmt: skip
        expected = policy.act(observations).numpy()
    assert program is not None
    model = program.model_proto
    onnx.helper.set_model_props(
        model, {"env_id": state["config"]["env_id"], "iteration": str(state["iteration"]), "made_by": "genesis_vec"}
    )
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (actions,) = session.run(["actions"], {"observations": observations.numpy()})
    difference = float(np.abs(actions - expected).max())
    # Rounding is in proportion to the actions, which are not clipped here.
    tolerance = _TOLERANCE * max(1.0, float(np.abs(expected).max()))
    if not difference <= tolerance:
        raise ExportError(
            f"the exported model's actions differ from the policy's by up to {difference:g} on {_CHECKED} "
            f"observations, more than {tolerance:g}: nothing was written"
        )
    onnx.save(model, str(out))
    if console is not None:
        console.print(
            f"{state['config']['env_id']} after {state['iteration']} iterations: observations "
            f"{observations.shape[1]}, actions {expected.shape[1]}; onnxruntime differs by at most {difference:.1e}"
        )
        console.print(f"model       {out}")
    return out


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without torch's warnings of its own deprecations, and of libraries that a perceptron does not need."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _observations(policy: ActorCritic) -> torch.Tensor:
    """Observations (1000, size) of the kind that the policy was trained on, and beyond where they are clipped."""
    size = policy.actor_size
    drawn = 4.0 * torch.randn(_CHECKED, size, generator=torch.Generator().manual_seed(0))
    return policy.observation_mean[-size:] + drawn / policy.observation_inverse_std[-size:]
