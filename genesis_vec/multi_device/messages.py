"""Messages between processes: tuples that begin with a word, pickled."""

from __future__ import annotations

import pickle
from multiprocessing.connection import Connection
from typing import Any


def send_message(connection: Connection, *message: Any) -> None:
    """Sends a message.

    Raises:
        OSError: If the other side is gone.
    """
    # Not connection.send: torch has it put tensors into named shared memory, which the receiver has to fetch.
    connection.send_bytes(pickle.dumps(message))


def receive_message(connection: Connection) -> tuple[Any, ...]:
    """Receives a message.

    Raises:
        EOFError, OSError: If the other side is gone.
    """
    return pickle.loads(connection.recv_bytes())
