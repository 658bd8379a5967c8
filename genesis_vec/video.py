"""Frames as video files."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

# Of a video; what has more steps a second shows every second, third, … of them. Drawing is what costs.
MAX_FPS = 30.0


def check_video_file(path: Path) -> None:
    """Raises ValueError for a file of a kind that cannot be written."""
    if path.suffix not in (".mp4", ".gif"):
        raise ValueError(f"video={str(path)!r} must end in .mp4 or .gif")


def frame_stride(fps: float, max_fps: float = MAX_FPS) -> int:
    """Of how many steps one is a frame, where there are ``fps`` steps a second and may be ``max_fps`` frames."""
    return max(1, math.ceil(fps / max_fps))


def write_video(path: Path, frames: Sequence[np.ndarray], fps: float) -> None:
    """Writes a video.

    Args:
        path: An .mp4 or .gif; its folder is made.
        frames: uint8 (height, width, 3) each.
        fps: Frames per second.

    Raises:
        OSError: If it could not be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".gif":
        _write_gif(path, frames, fps)
        return
    from moviepy import ImageSequenceClip

    # Half a frame more than they last: rounding would otherwise lose the last one now and then.
    clip = ImageSequenceClip([_even(frame) for frame in frames], fps=fps).with_duration((len(frames) + 0.5) / fps)
    clip.write_videofile(str(path), logger=None)
    # What ffmpeg fails at after it took the last frame is told to nobody.
    if not path.is_file() or path.stat().st_size == 0:
        raise OSError(f"ffmpeg did not write {path}")


def tile(pictures: Sequence[np.ndarray]) -> np.ndarray:
    """Pictures (height, width, 3) side by side in rows of a near square, black where there are none left."""
    columns = math.ceil(math.sqrt(len(pictures)))
    rows = math.ceil(len(pictures) / columns)
    blanks = [np.zeros_like(pictures[0])] * (rows * columns - len(pictures))
    grid = np.stack([*pictures, *blanks]).reshape(rows, columns, *pictures[0].shape)
    return np.ascontiguousarray(grid.swapaxes(1, 2).reshape(rows * grid.shape[2], columns * grid.shape[3], 3))


def _write_gif(path: Path, frames: Sequence[np.ndarray], fps: float) -> None:
    from PIL import Image

    # Hundredths of a second are all that a GIF knows. Rounding when each frame ends, and not how long it lasts, keeps
    # the whole at its speed; moviepy would round every frame alike.
    ends = [round(100 * index / fps) for index in range(len(frames) + 1)]
    durations = [10 * (end - start) for start, end in itertools.pairwise(ends)]
    first, *others = [Image.fromarray(frame) for frame in frames]
    first.save(path, save_all=True, append_images=others, duration=durations, loop=0)


def _even(frame: np.ndarray) -> np.ndarray:
    """With an even height and width, its last row or column doubled: few players show what is compressed otherwise."""
    height, width, _ = frame.shape
    return np.pad(frame, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")
