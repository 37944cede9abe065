"""Due times beyond a maximum."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from duewheel.api.due_time import DueTime
from duewheel.errors import InvalidTimer

NOW_MS = 1_800_000_000_000


DAY_MS = 86_400_000


@pytest.mark.parametrize(
    ("asked", "refused"),
    [
        ({"delay": timedelta(days=40)}, None),
        ({"delay": timedelta(days=40, milliseconds=1)}, "the longest delay"),
        ({"deliver_at": NOW_MS + 40 * DAY_MS}, None),
        ({"deliver_at": NOW_MS + 40 * DAY_MS + 1}, "the longest delay"),
        ({"deliver_at": 0}, None),
        ({"level": 2}, None),
        ({"level": 3}, "no level 3"),
    ],
)
def test_due_times_beyond_a_maximum(asked: dict[str, Any], refused: str | None) -> None:
    due = DueTime.of(**asked)
    if refused is None:
        due.require_within([1_000, 5_000], 40 * DAY_MS, NOW_MS)
        return
    with pytest.raises(InvalidTimer, match=refused):
        due.require_within([1_000, 5_000], 40 * DAY_MS, NOW_MS)
