"""What ``make demo`` runs: trains GenesisRigid-v0 on whatever device there is, and films the result if it can."""

from __future__ import annotations

from genesis_vec.errors import RenderingUnavailableError
from genesis_vec.training.play import play
from genesis_vec.training.presets import preset
from genesis_vec.training.run import train


def main() -> None:
    result = train(preset("GenesisRigid-v0"))
    try:
        play(result.run_dir, episodes=8, video=result.run_dir / "video.gif")
    except RenderingUnavailableError as error:
        print(f"no video: {error}")


if __name__ == "__main__":
    main()
