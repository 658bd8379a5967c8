"""``python -m genesis_vec.train ID …``: the same as ``genesis-vec train ID …``, for launchers that start modules."""

from __future__ import annotations

import sys

from genesis_vec.cli import run_command, train


def main() -> None:
    """Trains with the process's arguments."""
    run_command(lambda: train(sys.argv[1:], "python -m genesis_vec.train"))


if __name__ == "__main__":
    main()
