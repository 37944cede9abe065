"""How many timers are pending and delivered in all: by subtraction, without a look at the log.

wheel/inspect/pending_counts.py counts pending timers by topic, level and time, from the log.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:  # they import numpy
    from duewheel.checkpoints.progress_mirror import Mirror
    from duewheel.checkpoints.state_file import State


class TimerTotals(NamedTuple):
    """The timers of a shard."""

    pending: int  # cancelled ones included
    delivered: int


def totals_of(state: State, mirror: Mirror | None, count: Callable[[], int] | None) -> TimerTotals:
    """Counts the timers of a data directory.

    Args:
        state: the directory's.
        mirror: read before `state` is: a row that is placed later counts as pending, at worst.
        count: counts the timers in the files, for a standby: no process of it counts the deliveries
            of its owner.
    """
    if state.standby:
        pending = count() if count and not state.needs_recovery else 0
        return TimerTotals(pending, max(0, state.commit().placed - pending))
    placed, delivered = state.commit().placed, mirror.delivered_rows if mirror else 0
    return TimerTotals(placed - delivered, max(0, delivered))
