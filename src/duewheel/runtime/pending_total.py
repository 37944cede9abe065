"""How many timers are pending and delivered in all: by subtraction, without a look at the log.

wheel/inspect/pending_counts.py counts pending timers by topic, level and time, from the log.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from duewheel.checkpoints.progress_mirror import UNCOUNTED, Mirror

if TYPE_CHECKING:  # it imports numpy
    from duewheel.checkpoints.state_file import State


class TimerTotals(NamedTuple):
    """The timers of a shard."""

    pending: int | None  # cancelled ones included; None: not known before the files are whole
    delivered: int


def totals_of(
    state: State, mirror: Mirror | None, count: Callable[[], int | None] | None
) -> TimerTotals:
    """Counts the timers of a data directory.

    Args:
        state: the directory's.
        mirror: read before `state` is: a row that is placed later counts as pending, at worst.
        count: counts the timers in the files, for a standby, which counts no deliveries of its
            owner, and for a start that does not have all timers yet.
    """
    placed, delivered = state.commit().placed, mirror.delivered_rows if mirror else 0
    if state.standby or delivered == UNCOUNTED:
        pending = count() if count and not state.needs_recovery else None
        return TimerTotals(pending, max(0, placed - (pending or 0)))
    return TimerTotals(None if state.needs_recovery else placed - delivered, delivered)
