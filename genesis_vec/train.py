"""``python -m genesis_vec.train ID …``: the same as ``genesis-vec train ID …``, for launchers that start modules.

torchrun --standalone --nproc_per_node=2 -m genesis_vec.train GenesisRigid-v0 --num-envs 4096
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

from genesis_vec.cli import run_command, train

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Trains with the process's arguments."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        # torchrun's agent stops its ranks when it ends, but cannot where it is killed itself.
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    run_command(_train_and_record)


def _train_and_record() -> None:
    try:
        train(sys.argv[1:], "python -m genesis_vec.train")
    except Exception as error:
        if "TORCHELASTIC_ERROR_FILE" in os.environ:
            # torch.distributed.elastic's decorator "record" does this too, but would import torch before the devices
            # are chosen.
            from torch.distributed.elastic.multiprocessing.errors import get_error_handler

            handler = get_error_handler()
            handler.initialize()
            handler.record_exception(error)
        raise


if __name__ == "__main__":
    main()
