"""Optional libraries: where one is missing, the extra that brings it is named."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from genesis_vec.errors import LibraryNotFoundError


@contextlib.contextmanager
def library(name: str, extra: str) -> Iterator[None]:
    """A context for the imports from a library that may be missing.

    Args:
        name: The library's import name.
        extra: The extra of this package that brings it.

    Raises:
        LibraryNotFoundError: If it is missing.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != name:
            raise
        raise LibraryNotFoundError(f"{name} is not installed: pip install 'genesis-vec[{extra}]'", name=name) from error
