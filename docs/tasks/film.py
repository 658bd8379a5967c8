"""Makes the small pictures that move on the tasks' pages: python docs/tasks/film.py RUN OUT.gif [SECONDS]."""

import subprocess
import sys
import tempfile
from pathlib import Path

import imageio_ffmpeg
import torch

from genesis_vec.training.checkpoint import load_checkpoint
from genesis_vec.training.config import TrainConfig
from genesis_vec.training.run import load_policy, make_env
from genesis_vec.wrappers import RecordVideo

run, out = Path(sys.argv[1]), Path(sys.argv[2])
seconds = float(sys.argv[3]) if len(sys.argv) > 3 else 4.0

state = load_checkpoint(run)
config = state["config"]
kwargs = TrainConfig(env_id=config["env_id"], env=tuple(config["env"]), device="cpu").env_kwargs()
env = make_env(config["env_id"], 2, {**kwargs, "render_mode": "rgb_array", "render_envs": [0]})
policy = load_policy(state, env)
with tempfile.TemporaryDirectory() as folder, torch.no_grad():
    recorder = RecordVideo(env, folder, length=round(seconds * env.metadata["render_fps"]))
    observations, _ = recorder.reset(seed=0)
    recorder.start("film")
    while recorder.is_recording:
        observations, *_ = recorder.step(policy.act(observations))
    recorder.close()
    # Twelve frames a second of one palette, so that a page with all of them stays light.
    palette = "fps=12,scale=240:-1,split[a][b];[a]palettegen=max_colors=64[p];[b][p]paletteuse=dither=none"
    subprocess.run(
        [imageio_ffmpeg.get_ffmpeg_exe(), "-y", "-loglevel", "error", "-i", f"{folder}/film.mp4", "-vf", palette, out],
        check=True,
    )
print(f"{out}: {out.stat().st_size / 1024:.0f} KB")
