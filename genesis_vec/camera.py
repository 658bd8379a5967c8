"""What a task's camera sees of each environment: frames for people, and pixels as observations."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from gymnasium import spaces

from genesis_vec.drawn_meshes import simplify_drawn_meshes

_DEFAULT_FAR = 20.0  # metres; the engine's own

ObservationKind = Literal["state", "rgb", "depth"]
OBSERVATION_KINDS = ("state", "rgb", "depth")


def read_rows_without_padding(scene: Any) -> None:
    """Makes pictures of every width whole, once a scene that draws is built.

    OpenGL pads the rows of what is read to multiples of 4 bytes unless told not to. The engine does not, and makes no
    room for it: pictures in colours of a width that is no multiple of 4 are askew, and their end is written over
    whatever lies behind them in memory.
    """
    # None where the engine has nothing to draw with OpenGL.
    renderer = scene.visualizer.rasterizer._renderer
    if renderer is None:
        return
    from OpenGL.GL import GL_PACK_ALIGNMENT, glPixelStorei

    # It is a setting of the context, of which each scene has its own.
    renderer.make_current()
    try:
        glPixelStorei(GL_PACK_ALIGNMENT, 1)
    finally:
        renderer.make_uncurrent()


class EnvCamera:
    """The task's camera, which sees each of some environments on its own.

    Args:
        settings: Where it stands, as in :attr:`genesis_vec.Task.camera`.
        envs: Indices of the environments that it sees.
        device: Where pixels as observations are wanted.
        size: Height and width of its pictures in place of the task's own, in pixels.
    """

    def __init__(
        self, settings: dict[str, Any], envs: Sequence[int], device: torch.device, size: tuple[int, int] | None = None
    ) -> None:
        self._envs = list(envs)
        self._settings = settings if size is None else {**settings, "res": (size[1], size[0])}
        self._device = device

    def with_scene_options(self, gs: Any, options: dict[str, Any]) -> dict[str, Any]:
        """A scene's options with which it can be drawn environment by environment.

        Args:
            gs: The engine.
            options: What the task gives for the scene.
        """
        looks = options.get("vis_options") or gs.options.VisOptions()
        apart = looks.model_copy(update={"split_envs": True, "rendered_envs_idx": tuple(self._envs)})
        options = {**options, "vis_options": apart}
        if self._device.type == "cuda" and importlib.util.find_spec("gs_madrona") is not None:
            options.setdefault("renderer", gs.options.renderers.BatchRenderer())
        return options

    def add_to(self, scene: Any) -> None:
        """Adds it to a scene that is not built yet."""
        self._camera = scene.add_camera(GUI=False, **self._settings)

    def lighten(self, scene: Any) -> None:
        """Takes detail that its pictures do not show out of what a scene draws, once that is built.

        Not where the task has cameras of its own, which may be close to what this one sees from afar.
        """
        if len(scene.visualizer.cameras) == 1:
            width, height = self._settings["res"]
            simplify_drawn_meshes(scene, height, width)

    def space(self, kind: ObservationKind) -> spaces.Box:
        """The space of one environment's pixels."""
        width, height = self._settings["res"]
        if kind == "rgb":
            return spaces.Box(0, 255, (height, width, 3), np.uint8)
        return spaces.Box(0.0, self._far, (height, width, 1), np.float32)

    def observe(self, kind: ObservationKind) -> torch.Tensor:
        """The present pixels of every environment that it sees, on the device.

        Returns:
            For "rgb" uint8 (envs, height, width, 3); for "depth" float32 (envs, height, width, 1), metres along the
            camera's axis, where nothing is the farthest that it sees.
        """
        if kind == "rgb":
            return self._as_tensor(self._draw(rgb=True)[0], 3).to(self._device)
        depth = self._as_tensor(self._draw(rgb=False, depth=True)[1], 1).to(self._device, torch.float32)
        # The rasteriser gives 0 where it sees nothing.
        return depth.masked_fill(depth <= 0.0, self._far).clamp(max=self._far)

    def frames(self) -> dict[int, np.ndarray]:
        """The present pictures by environment: uint8 (height, width, 3)."""
        drawn = self._as_tensor(self._draw(rgb=True)[0], 3).cpu().numpy()
        return dict(zip(self._envs, drawn, strict=True))

    @property
    def _far(self) -> float:
        return float(self._settings.get("far", _DEFAULT_FAR))

    def _draw(self, **kinds: bool) -> Any:
        return self._camera.render(**kinds, force_render=True)

    def _as_tensor(self, drawn: Any, channels: int) -> torch.Tensor:
        # Copied, since a renderer may draw the next picture in the same memory.
        pixels = torch.tensor(np.ascontiguousarray(drawn)) if isinstance(drawn, np.ndarray) else drawn.clone()
        width, height = self._settings["res"]
        # Where it draws one environment, the engine leaves out the axis of environments.
        return pixels.reshape(len(self._envs), height, width, channels).contiguous()
