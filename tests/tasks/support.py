"""What tests of several tasks need."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from tests.wrappers.support import tensors_in


def assert_rows_do_not_depend_on_how_many_there_are(few: Any, many: Any, actions: Iterable[torch.Tensor]) -> None:
    """The rows of a smaller environment are those of a larger one, bit for bit, also after episodes have ended.

    Args:
        few: An environment.
        many: One of the same task with more rows.
        actions: The larger one's.
    """
    count = few.num_envs
    results = [few.reset(seed=4)], [many.reset(seed=4)]
    for action in actions:
        results[0].append(few.step(action[:count]))
        results[1].append(many.step(action))
    ended = 0
    for one, other in zip(*results, strict=True):
        for info in (one[-1], other[-1]):
            ended += int(info.get("_episode", torch.zeros(1)).sum())
            for part in (info, info.get("final_info", {})):
                part.pop("episode", None)
        for few_rows, many_rows in zip(tensors_in(one), tensors_in(other), strict=True):
            torch.testing.assert_close(few_rows, many_rows[:count], rtol=0, atol=0)
    assert ended >= 2 * (count + many.num_envs)
