"""Offsets that never came: tells the harmless ones from messages that retention has deleted.

Between a partition's mark and the first row of a batch there may be transaction markers and
aborted records, which are nobody's messages. If the log now starts above the mark, retention has
deleted records that were never read: a loss, which is reported and counted.

The log start is asked for after the gap was seen: an older answer could hide a loss. It is asked
for once a second at most, for all gaps seen until then; the answer only reports, so it may wait.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import structlog

from duewheel.clock import Clock, Interval
from duewheel.errors import KafkaUnavailable
from duewheel.schemas.batches import TopicPartition

ASK_INTERVAL_MS = 1_000

_log = structlog.get_logger(__name__)

LogStart = Callable[[str, int], int]


class GapWatch:
    """Collects gaps and settles them. Thread-safe: the sink notes, anybody may settle.

    Args:
        log_start: (topic, partition) → lowest offset that the partition still holds. May raise
            KafkaUnavailable; the gap is then looked at again later.
        clock: for the interval.
    """

    def __init__(self, log_start: LogStart, clock: Clock) -> None:
        self._log_start = log_start
        self._asking = Interval(clock, ASK_INTERVAL_MS)
        self._lock = threading.Lock()
        self._gaps: list[tuple[TopicPartition, int, int]] = []
        self._rows_lost = 0

    @property
    def rows_lost(self) -> int:
        """Offsets that retention deleted before they were read; markers among them count too."""
        return self._rows_lost

    def note(self, partition: TopicPartition, mark: int, first: int) -> None:
        """Nothing came for the offsets mark … first − 1."""
        assert first > mark
        with self._lock:
            self._gaps.append((partition, mark, first))

    def settle(self) -> None:
        """Judge the gaps noted so far, if it is time to ask again."""
        with self._lock:
            if not self._gaps or not self._asking.is_over():
                return
            try:
                starts = {
                    p: self._log_start(*p) for p in {partition for partition, _, _ in self._gaps}
                }
            except KafkaUnavailable as error:
                _log.warning("cannot ask where the log starts", error=str(error))
                return
            for partition, mark, first in self._gaps:
                self._judge(partition, mark, min(first, starts[partition]))
            self._gaps.clear()

    def _judge(self, partition: TopicPartition, mark: int, end: int) -> None:
        if end <= mark:
            return
        self._rows_lost += end - mark
        _log.error(
            "retention deleted messages that were never read",
            topic=partition[0],
            partition=partition[1],
            first_offset=mark,
            next_offset=end,
            rows_max=end - mark,
        )
