"""Arguments of tasks that are ranges to draw from."""

from __future__ import annotations

import math
from collections.abc import Sequence


def check_range(name: str, value: Sequence[float], unit: str) -> tuple[float, float]:
    """A range as two floats.

    Args:
        name: The argument's name.
        value: What was given for it.
        unit: Its unit, for the message.

    Raises:
        ValueError: If it is not two finite numbers, the lower one first.
    """
    try:
        low, high = (float(bound) for bound in value)
    except (TypeError, ValueError):
        low, high = math.nan, math.nan
    if not -math.inf < low <= high < math.inf:
        raise ValueError(f"{name}={value!r}: give two finite numbers ({unit}), the lower one first: (0.0, 0.5)")
    return low, high
