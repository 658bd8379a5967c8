"""Films chosen environments for a while."""

from __future__ import annotations

import signal
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv

from genesis_vec.batches import check_rows
from genesis_vec.video import MAX_FPS, frame_stride, tile, write_video
from genesis_vec.wrappers.base import StepResult, TorchVectorWrapper


class RecordVideo(TorchVectorWrapper):
    """Films chosen environments, from :meth:`start` on for a number of steps.

    While nothing is filmed a step costs nothing more, and environments that are not in the wrapped one's
    ``render_envs`` are never drawn. Of an environment with more steps a second than ``max_fps``, every second, third, …
    is filmed, so that a video lasts as long as what it shows. Files are written by a thread, while the simulation goes
    on. In SAME_STEP an episode's last state is not seen, since the next one has begun in the same step.

    A video that cannot be written is a warning, for what is being filmed matters more.

    Gymnasium's recorder films all environments, from the start of an episode of the first.

    Args:
        env: The environment to wrap, made with ``render_mode="rgb_array"``.
        folder: Where the .mp4 files go; it is made.
        envs: Which environments, of those that the wrapped one draws.
        length: Steps to film.
        tiled: All in one video side by side, or each in its own.
        max_fps: Frames per second at most. Drawing one can take longer than a step of hundreds of environments.

    Raises:
        ValueError: Without a render mode, for environments that are not drawn, or a length or max_fps below 1.
        OSError: If the folder cannot be made.
    """

    def __init__(
        self,
        env: VectorEnv,
        folder: Path | str,
        envs: Sequence[int] = (0,),
        length: int = 200,
        tiled: bool = True,
        max_fps: float = MAX_FPS,
    ) -> None:
        super().__init__(env)
        if env.render_mode != "rgb_array":
            raise ValueError(f"RecordVideo needs render_mode='rgb_array', and the environment has {env.render_mode!r}")
        drawn: Sequence[int] = getattr(env.unwrapped, "render_envs", range(env.num_envs))
        chosen = check_rows("envs", envs, drawn, f"of those that are drawn, {list(drawn)}")
        if not isinstance(length, int) or length < 1:
            raise ValueError(f"length={length!r} must be an integer of at least 1")
        if not isinstance(max_fps, (int, float)) or not max_fps >= 1:
            raise ValueError(f"max_fps={max_fps!r} must be a number of at least 1")
        self._folder, self._envs, self._length, self._tiled = Path(folder), chosen, length, tiled
        self._folder.mkdir(parents=True, exist_ok=True)
        self._stride = frame_stride(self.metadata["render_fps"], max_fps)
        self._steps = 0  # since the video's start
        self._name: str | None = None
        self._frames: list[list[np.ndarray]] = []
        self._writer: ThreadPoolExecutor | None = None

    @property
    def is_recording(self) -> bool:
        """Whether a video is under way."""
        return self._name is not None

    def start(self, name: str) -> None:
        """Films from now on; a video under way ends here.

        Args:
            name: Of the file, without its suffix.
        """
        self.stop()
        self._name, self._steps = name, 0

    def step(self, actions: Any) -> StepResult:
        """Step, and film what it came to while recording."""
        result = self.env.step(actions)
        if self._name is not None:
            if self._steps % self._stride == 0:
                frames: Any = self.env.render()
                self._frames.append([frames[index] for index in self._envs])
            self._steps += 1
            if self._steps >= self._length:
                self.stop()
        return result

    def stop(self) -> None:
        """Ends the video under way, if there is one; its file is complete after :meth:`wait`."""
        name, frames = self._name, self._frames
        self._name, self._frames = None, []
        if name is None or not frames:
            return
        if self._tiled:
            videos = {name: [tile(pictures) for pictures in frames]}
        else:
            videos = {f"{name}-env-{index}": [row[k] for row in frames] for k, index in enumerate(self._envs)}
        if self._writer is None:
            # ffmpeg inherits what its thread ignores: Ctrl-C in a terminal would end it in the midst of a file.
            block = (signal.SIG_BLOCK, {signal.SIGINT})
            self._writer = ThreadPoolExecutor(1, "video", initializer=signal.pthread_sigmask, initargs=block)
        fps = self.metadata["render_fps"] / self._stride
        for stem, pictures in videos.items():
            self._writer.submit(_write, self._folder / f"{stem}.mp4", pictures, fps)

    def wait(self) -> None:
        """Waits until the files are written."""
        if self._writer is not None:
            self._writer.shutdown()
            self._writer = None

    def close(self, **kwargs: Any) -> None:
        """Writes what is filmed so far, and closes the wrapped environment."""
        try:
            self.stop()
            self.wait()
        finally:
            super().close(**kwargs)


def _write(path: Path, frames: list[np.ndarray], fps: float) -> None:
    try:
        write_video(path, frames, fps)
    except Exception as error:
        warnings.warn(f"{path} could not be written: {error}", RuntimeWarning, stacklevel=2)
