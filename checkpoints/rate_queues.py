"""The queues of targets with a rate (wheel/policies/rate.py), as the progress record has them.

A queue is in the transaction with the copies that it has counted: it commits or aborts with them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from duewheel.checkpoints.json_fields import integer, name


class RateQueue(NamedTuple):
    """The queue of one target in one shard."""

    tail_us: int  # the turn of the last timer in it
    in_tail: int  # timers with a turn in the slot of that one that have not left
    shift: int  # slots by which a timer leaves later than its turn: the queue has stood still
    charged_us: int  # when all that has left would have left, one after the other at the rate

    def wait_ms(self, now_ms: int, precision_ms: int) -> int:
        """Computes how long the last timer in it waits yet."""
        return max(0, self.tail_us // 1_000 + self.shift * precision_ms - now_ms)


Queues = Mapping[str, RateQueue]  # by target


def queues_from(raw: Mapping[str, list[object]]) -> dict[str, RateQueue]:
    """Reads the queues in a record. Raises the errors of json_fields.MISSHAPEN."""
    return {name(target): RateQueue(*map(integer, each)) for target, each in raw.items()}
