"""Optional libraries: where one is missing, the extra that brings it is named."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from genesis_vec.errors import LibraryNotFoundError


@contextlib.contextmanager
def library(name: str, extra: str, *dependencies: str) -> Iterator[None]:
    """A context for the imports from a library that may be missing.

    Args:
        name: The library's import name.
        extra: The extra of this package that brings it.
        *dependencies: Import names of others that the extra brings along.

    Raises:
        LibraryNotFoundError: If it is missing.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in (name, *dependencies):
            raise
        raise LibraryNotFoundError(
            f"{missing} is not installed: pip install 'genesis-vec[{extra}]'", name=missing
        ) from error
