"""Reports messages that retention deleted before ingest read them.

Between a partition's mark and the first row of a batch there may be transaction markers and aborted
records: a harmless gap. If the log now starts above the mark, retention has deleted unread records.
The watch counts and logs this loss.

The log start is fetched after the gap was seen, because an older one could hide a loss. One fetch
per LOG_START_INTERVAL_MS covers all gaps until then; it only feeds a report, so it may wait.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence

import structlog

from duewheel.clock import Clock, Interval
from duewheel.errors import KafkaUnavailable
from duewheel.schemas.batches import TopicPartition
from duewheel.wheel.inspect.counts_by_topic import with_rows

LOG_START_INTERVAL_MS = 1_000

_log = structlog.get_logger(__name__)

LogStarts = Callable[[Sequence[str]], Mapping[TopicPartition, int]]


class GapWatch:
    """Collects gaps and classifies them. One thread notes them, the sink's; any may settle.
    `log_starts` returns the lowest offset of each partition of some topics, and may raise
    KafkaUnavailable: a later call then retries the gaps.
    """

    def __init__(self, log_starts: LogStarts, clock: Clock) -> None:
        self._log_starts = log_starts
        self._interval = Interval(clock, LOG_START_INTERVAL_MS)
        self._asking = threading.Lock()
        self._gaps: list[tuple[TopicPartition, int, int]] = []
        self._noted: dict[TopicPartition, int] = {}  # ends of the gaps noted so far
        self._rows_lost: Mapping[str, int] = {}

    @property
    def rows_lost(self) -> Mapping[str, int]:
        """Offsets that retention deleted before they were read, by topic; markers among them count
        too.
        """
        return self._rows_lost

    def note(self, partition: TopicPartition, mark: int, first: int) -> None:
        """Notes that Spark has delivered no rows for the offsets mark … first − 1. There may be
        none, and they may be noted already: a batch that was not taken is read again.
        """
        mark = max(mark, self._noted.get(partition, 0))
        if first > mark:
            self._gaps.append((partition, mark, first))
            self._noted[partition] = first

    def settle(self) -> None:
        """Classifies the gaps noted so far, if the interval is over and no other thread does it."""
        if not self._asking.acquire(blocking=False):
            return
        try:
            gaps = list(self._gaps)
            if not gaps or not self._interval.is_over():
                return
            starts = self._log_starts(sorted({topic for (topic, _), _, _ in gaps}))
        except KafkaUnavailable as error:
            _log.warning("cannot read the log start", error=str(error))
        else:
            del self._gaps[: len(gaps)]
            for partition, mark, first in gaps:
                self._report_loss(partition, mark, min(first, starts.get(partition, 0)))
        finally:
            self._asking.release()

    def _report_loss(self, partition: TopicPartition, mark: int, end: int) -> None:
        if end <= mark:
            return
        self._rows_lost = with_rows(self._rows_lost, {partition[0]: end - mark})
        _log.error(
            "retention deleted messages that were never read",
            topic=partition[0],
            partition=partition[1],
            first_offset=mark,
            next_offset=end,
            rows_max=end - mark,
        )
