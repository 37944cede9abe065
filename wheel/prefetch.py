"""Prepares the next chunk while the one before is being published.

Finding a chunk's records, reading and verifying its messages and restoring them takes about as long
as a transaction, and a transaction mostly waits for the brokers. One chunk is in flight and one is
prepared, never more: that bounds the memory. A range of one chunk, which is the usual case, needs
no second thread.

Log, messages and topic names are not thread-safe: while a chunk is being prepared, the other thread
leaves them alone.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

from duewheel.wheel.restoring import Restored, restore
from duewheel.wheel.slot_scan import SlotScan
from duewheel.wheel.topic_names import TopicNames


class Prefetch:
    """The chunks of one closed range after another."""

    def __init__(self, topics: TopicNames, records_max: int, bytes_max: int) -> None:
        """
        Args:
            topics: of the data directory.
            records_max, bytes_max: of one chunk.
        """
        self._topics = topics
        self._bounds = (records_max, bytes_max)
        self._scan: SlotScan | None = None
        self._next: Future[Restored | None] | None = None
        self._thread = ThreadPoolExecutor(1, "prefetch")

    def begin(self, scan: SlotScan) -> None:
        """Go on with another range; the one before has been used up."""
        assert self._next is None, "chunks of a range are prepared and not used"
        self._scan = scan

    def next(self) -> Restored | None:
        """The next chunk, or None at the end of the range.

        Raises:
            CorruptFile: see SlotScan.
        """
        prepared, self._next = self._next, None
        restored = prepared.result() if prepared is not None else self._prepare()
        if restored is not None and not restored.chunk.last:
            self._next = self._thread.submit(self._prepare)
        return restored

    def _prepare(self) -> Restored | None:
        assert self._scan is not None
        chunk = self._scan.next_chunk(*self._bounds)
        return None if chunk is None else restore(chunk, self._topics)

    def close(self) -> None:
        """Wait for what is being prepared; the files may be closed then."""
        self._thread.shutdown(wait=True)
