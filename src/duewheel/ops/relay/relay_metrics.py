"""The metrics of a relay: the rows that it has sent and refused, and its delay."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from prometheus_client.core import Metric

from duewheel.clock import Clock
from duewheel.osutil.metrics_server import counters, gauge


class RelayMetrics:
    """The families of one relay; they outlast a connection. `note` is called by one thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._rows = Counter({"sent": 0, "refused": 0})
        self._up_to_date_ms = clock.boottime_ms()

    def note(self, *, sent: int, refused: int, has_more: bool) -> None:
        """Notes a part. With `has_more`, rows waited that it had no room for."""
        self._rows.update(sent=sent, refused=refused)
        if not has_more:
            self._up_to_date_ms = self._clock.boottime_ms()

    def families(self) -> Iterator[Metric]:
        """See metrics_server.Source."""
        yield counters("relay_rows", "Rows by outcome: sent, refused.", "outcome", dict(self._rows))
        text = (
            "Time since the relay last had sent all rows, also while Kafka or PostgreSQL is away."
        )
        behind_s = (self._clock.boottime_ms() - self._up_to_date_ms) / 1000
        yield gauge("relay_behind_seconds", text, max(behind_s, 0.0))
