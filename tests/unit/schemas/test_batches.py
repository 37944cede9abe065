"""Batches of timers: the rows of two joined batches."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from tests.harness.timer_rows import TimerRow, timer_batch

from duewheel.schemas.batches import ACCEPTED


def test_rows_keep_their_codes_where_epochs_with_other_rules_merge() -> None:
    old = replace(
        timer_batch([TimerRow(0, 1, 0, rejected=True), TimerRow(0, 2, 0)]),
        codes=["bad_header", "waited"],
    )
    new = replace(
        timer_batch([TimerRow(0, offset, 0, rejected=True) for offset in (3, 4, 5)]),
        codes=["no_due_time", "bad_header", "no_due_time", "waited"],
        code=np.array([1, 0, 2], np.int32),
    )
    assert new.rejections() == {"bad_header": 1, "no_due_time": 2}
    both = old.extended_by(new)
    assert both.code.tolist()[1] == ACCEPTED
    assert both.rejected.tolist() == [True, False, True, True, True]
    assert both.rejections() == {"bad_header": 2, "no_due_time": 2}
    assert both.take(np.array([1, 0])).rejections() == {"bad_header": 1}
