"""The policy of expiry: a timer that is late by more than its timer topic permits, or later than
its own TIMER_EXPIRES_MS, is not delivered.

It becomes a dead letter with the code `expired`: after an outage of a day no reminder of yesterday
is delivered, and the messages are still there. Timers of some topics are dropped instead.

The lateness is that of the range in which the timer's slot was closed: a backlog is judged when its
delivery begins, and a timer that waited for its target each time it returns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np

from duewheel.schemas.arrays import Int64
from duewheel.schemas.batches import ANY_TIME, DROPPED, NEVER
from duewheel.schemas.header_names import EXPIRES_MS
from duewheel.schemas.request.header_values import parse_instants
from duewheel.schemas.wire.record_reader import header_values
from duewheel.wheel.policies.policy import DueRows, Policy, PolicySettings

# A thousand headers take 30 microseconds, beside everybody's timers: a row with more that has the
# name of the header anywhere counts as expired.
_HEADERS_MAX = 1_000


@dataclass(frozen=True, slots=True)
class Expiry(Policy):
    """The policy of expiry."""

    after_ms: Mapping[str, int]  # the greatest lateness, by timer topics that have one
    drop: frozenset[str] = frozenset()  # timer topics whose expired timers become no dead letters
    name = "expired"
    refusal = (
        "its TIMER_EXPIRES_MS is past, or is no instant; or it is late by more than "
        "`expires_after` of its timer topic permits"
    )

    @classmethod
    def configured(cls, settings: PolicySettings) -> Self:
        """Always: timers may have a last instant of their own."""
        return cls(settings.by_topic("expires_after"), frozenset(settings.by_topic("expired")))

    def not_before_ms(self, rows: DueRows) -> Int64 | None:
        """Forbids or drops each row that has expired."""
        deliveries, expired = rows.deliveries, np.zeros(len(rows.slot), np.bool_)
        own, texts = header_values(
            deliveries.headers, deliveries.header_count, EXPIRES_MS, _HEADERS_MAX
        )
        if len(own):
            last_ms, well_formed = parse_instants(texts)
            expired[own] = (rows.now_ms > last_ms) | ~well_formed
        if self.after_ms:
            # A due time is below 2**62: NEVER is later than any lateness.
            limits_ms = rows.by_topic(self.after_ms, NEVER)
            expired |= rows.now_ms - deliveries.due_ms > limits_ms
        if not expired.any():
            return None
        dropped = rows.by_topic(dict.fromkeys(self.drop, DROPPED), NEVER)
        return np.where(expired, dropped, ANY_TIME)
