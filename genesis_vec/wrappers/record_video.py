"""Films chosen environments for a while."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv

from genesis_vec.video import tile, write_video
from genesis_vec.wrappers.base import StepResult, TorchVectorWrapper


class RecordVideo(TorchVectorWrapper):
    """Films chosen environments, from :meth:`start` on for a number of steps.

    While nothing is filmed a step costs nothing more, and environments that are not in the wrapped one's
    ``render_envs`` are never drawn. Files are written by a thread, while the simulation goes on. In SAME_STEP an
    episode's last state is not seen, since the next one has begun in the same step.

    Gymnasium's recorder films all environments, from the start of an episode of the first.

    Args:
        env: The environment to wrap, made with ``render_mode="rgb_array"``.
        folder: Where the .mp4 files go.
        envs: Which environments.
        length: Steps to film.
        tiled: All in one video side by side, or each in its own.

    Raises:
        ValueError: Without a render mode, for environments that there are not, or a length below 1.
    """

    def __init__(
        self, env: VectorEnv, folder: Path | str, envs: Sequence[int] = (0,), length: int = 200, tiled: bool = True
    ) -> None:
        super().__init__(env)
        if env.render_mode != "rgb_array":
            raise ValueError(f"RecordVideo needs render_mode='rgb_array', and the environment has {env.render_mode!r}")
        if not envs or len(set(envs)) < len(envs) or not all(0 <= index < env.num_envs for index in envs):
            raise ValueError(f"envs={list(envs)!r}: give different indices from 0 to {env.num_envs - 1}")
        if length < 1:
            raise ValueError(f"length={length!r} must be at least 1")
        self._folder, self._envs, self._length, self._tiled = Path(folder), list(envs), length, tiled
        self._name: str | None = None
        self._frames: list[list[np.ndarray]] = []
        self._writer: ThreadPoolExecutor | None = None
        self._writing: list[Future[None]] = []

    @property
    def is_recording(self) -> bool:
        """Whether the next step will be filmed."""
        return self._name is not None

    def start(self, name: str) -> None:
        """Films from now on; a video under way ends here.

        Args:
            name: Of the file, without its suffix.
        """
        self.stop()
        self._name = name

    def step(self, actions: Any) -> StepResult:
        """Step, and film what it came to while recording."""
        result = self.env.step(actions)
        if self._name is not None:
            frames: Any = self.env.render()
            self._frames.append([frames[index] for index in self._envs])
            if len(self._frames) >= self._length:
                self.stop()
        return result

    def stop(self) -> None:
        """Ends the video under way, if there is one; its file is complete after :meth:`wait`.

        Raises:
            OSError: If an earlier video could not be written.
        """
        for future in [future for future in self._writing if future.done()]:
            self._writing.remove(future)
            future.result()
        name, frames = self._name, self._frames
        self._name, self._frames = None, []
        if name is None or not frames:
            return
        if self._tiled:
            videos = {name: [tile(pictures) for pictures in frames]}
        else:
            videos = {f"{name}-env-{index}": [row[k] for row in frames] for k, index in enumerate(self._envs)}
        self._writer = self._writer or ThreadPoolExecutor(max_workers=1, thread_name_prefix="video")
        fps = self.metadata["render_fps"]
        for stem, pictures in videos.items():
            self._writing.append(self._writer.submit(write_video, self._folder / f"{stem}.mp4", pictures, fps))

    def wait(self) -> None:
        """Waits until the files are written.

        Raises:
            OSError: If one could not be.
        """
        while self._writing:
            self._writing.pop(0).result()

    def close(self, **kwargs: Any) -> None:
        """Writes what is filmed so far, and closes the wrapped environment."""
        try:
            self.stop()
            self.wait()
        finally:
            if self._writer is not None:
                self._writer.shutdown()
            super().close(**kwargs)
