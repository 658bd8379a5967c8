"""Makes the small pictures that move on the tasks' pages: python docs/tasks/film.py RUN OUT.gif [SECONDS]."""

import subprocess
import sys
import tempfile
from pathlib import Path

import imageio_ffmpeg

from genesis_vec.training.play import play

run, out, seconds = Path(sys.argv[1]), Path(sys.argv[2]), (sys.argv[3:] or ["4"])[0]

with tempfile.TemporaryDirectory() as folder:
    video = Path(folder) / "film.mp4"
    play(run, episodes=2, device="cpu", video=video)
    # Twelve frames a second of one palette, so that a page with all of them stays light.
    palette = "fps=12,scale=240:-1,split[a][b];[a]palettegen=max_colors=64[p];[b][p]paletteuse=dither=none"
    subprocess.run(
        [imageio_ffmpeg.get_ffmpeg_exe(), "-y", "-loglevel", "error", "-i", video, "-t", seconds, "-vf", palette, out],
        check=True,
    )
print(f"{out}: {out.stat().st_size / 1024:.0f} KB")
