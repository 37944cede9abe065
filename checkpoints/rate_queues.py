"""The queues of targets with a rate (wheel/policies/rate.py), as the progress record has them.

A queue is in the transaction with the copies that it has counted: it commits or aborts with them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from duewheel.checkpoints.json_fields import integer, name
from duewheel.schemas.arrays import Int64


@dataclass(frozen=True, slots=True)
class RateQueue:
    """The queue of one target in one shard."""

    charged_us: int = 0  # when all that were charged would have left, one after the other
    tail_ms: int = 0  # the last turn that was given, by the queue's clock
    shift_ms: int = 0  # by how much the queue's clock lags the host's
    seen_ms: int = 0  # its clock is right until then, by the host's clock: so it may stand still
    left_ms: int = 0  # the last turn that has left, by the queue's clock
    # By bucket of the key's hash the last turn that was given. It is not in the record; None:
    # unknown.
    tails_ms: Int64 | None = field(default=None, compare=False, repr=False)

    def wait_ms(self, now_ms: int) -> int:
        """Computes how long the last timer in it waits yet."""
        return max(0, self.tail_ms + self.shift_ms - now_ms)


Queues = Mapping[str, RateQueue]  # by target


def queues_json(queues: Queues) -> dict[str, list[int]]:
    """Returns the queues as a record has them."""
    return {
        target: [queue.charged_us, queue.tail_ms, queue.shift_ms, queue.seen_ms, queue.left_ms]
        for target, queue in queues.items()
    }


def queues_from(raw: Mapping[str, list[object]]) -> dict[str, RateQueue]:
    """Reads the queues in a record. Raises the errors of json_fields.MISSHAPEN."""
    found = {}
    for target, numbers in raw.items():
        charged_us, tail_ms, shift_ms, seen_ms, left_ms = map(integer, numbers)
        found[name(target)] = RateQueue(charged_us, tail_ms, shift_ms, seen_ms, left_ms)
    return found
