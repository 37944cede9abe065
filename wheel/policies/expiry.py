"""The policy of expiry: a timer that is late by more than its timer topic permits is not delivered.

It becomes a dead letter with the code `expired`. So after an outage of a day no reminder of
yesterday is delivered, and the messages are still there.

The lateness is that of the range in which the timer's slot was closed: a backlog is judged when its
delivery begins, and a timer that waited for its target each time it returns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from duewheel.schemas.arrays import Int64
from duewheel.schemas.batches import ANY_TIME, NEVER
from duewheel.wheel.policies.policy import DueRows


@dataclass(frozen=True, slots=True)
class Expiry:
    """The policy of expiry."""

    after_ms: Mapping[str, int]  # the greatest lateness, by timer topic

    @property
    def name(self) -> str:
        """As in Reason."""
        return "expired"

    def not_before_ms(self, rows: DueRows) -> Int64 | None:
        """Forbids each row that is late by more than its timer topic permits."""
        deliveries = rows.deliveries
        topics = [topic for topic, _ in deliveries.source_partitions]
        if self.after_ms.keys().isdisjoint(topics):
            return None
        # A due time is below 2**62: NEVER is later than any lateness.
        limits = np.array([self.after_ms.get(topic, NEVER) for topic in topics], np.int64)
        late_ms = rows.now_ms - deliveries.due_ms
        return np.where(late_ms > limits[deliveries.source_partition], NEVER, ANY_TIME)
