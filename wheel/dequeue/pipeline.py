"""Prepares chunks for their transactions: two stages, each in a thread of its own, and two queues.

    scan ──► queue ──► read, decode, postpone, drop, prepare ──► queue ──► the loop publishes

    scan       finds the closed slots' rows in the log and cuts them into chunks     (slot_scan.py)
    read       reads a chunk's messages and verifies them                        (message_store.py)
    decode     decodes them as deliveries                                               (decode.py)
    postpone   asks the policies of delivery                                   (policies/policy.py)
    drop       drops rows that are cancelled, or out already             (checkpoints/delivered.py)
    split      firings of recurring timers from their next copies                   (successors.py)
    leave out  drops rows that a policy drops; a firing, not the copy that follows it
    prepare    encodes the rows before the transaction                      (publisher_protocol.py)

Invariant: at most CHUNKS_IN_MEMORY chunks have their messages in memory. Each queue has at most the
records and stored bytes of one chunk; a stage that runs ahead waits. Messages are read only when
the second queue has room for the result.

A range of one chunk, the usual case, passes through both stages in the caller's thread. A chunk
whose transaction exceeded its deadline is split, and so are the chunks after it. A transaction
that takes a quarter of the deadline or less lets the next one be twice as large. A chunk with too
many partitions is split where their number exceeds the bound: equal parts of rows in any order have
nearly all of its partitions each.

An error of a stage reaches the caller in order, after the chunks before it. A range that has
failed fails at every later call: the stages have moved on, so its next chunk would be the wrong
one.

Threads: the scanning thread uses log and wheel, the reading thread messages and topic names; the
caller uses all of them between the end of a range and the first `next` of another.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np

from duewheel.checkpoints.delivered import is_out
from duewheel.schemas.arrays import Bool, Int64
from duewheel.schemas.batches import DROPPED, Deliveries, TopicPartition, topic_numbers
from duewheel.threads import Worker
from duewheel.wheel.dequeue.bounded_queue import BoundedQueue, QueueClosed
from duewheel.wheel.dequeue.decode import DecodedChunk, decode_chunk
from duewheel.wheel.dequeue.slot_ranks import RankCounter
from duewheel.wheel.dequeue.slot_scan import ScannedChunk, SlotScan
from duewheel.wheel.dequeue.successors import with_successors
from duewheel.wheel.dequeue_config import DequeueConfig
from duewheel.wheel.policies.policy import DueRows, RateQueue, postponed
from duewheel.wheel.publisher_protocol import Prepared
from duewheel.wheel.storage.byte_layouts import is_cancelled
from duewheel.wheel.storage.data_directory import DataDirectory

QUEUES = 2  # one after each stage
# One is published, the next is prepared or waits. With a third, memory was close to 200 MB.
CHUNKS_IN_MEMORY = 2


@dataclass(frozen=True, slots=True)
class PreparedChunk:
    """The rows of one transaction, and the position after it.

    Attributes:
        prepared: the rows that are not delivered yet.
        cancelled: how many rows were dropped because they are cancelled.
        dropped: how many rows were dropped by a policy.
        missed: how many rows of recurring timers did not fire, being late.
        decoded: all rows of the chunk, including cancelled ones and those that are out already.
        rank: each row's place in its slot (slot_ranks.py).
        ends: if the slot after it is half delivered, the offset after its last row, by source
            partition of this chunk; else None.
        half_rows: how many rows of that slot are out then, by timer topic of this chunk.
    """

    prepared: Prepared
    cancelled: int
    dropped: int
    missed: int
    decoded: DecodedChunk
    rank: Int64
    ends: Mapping[TopicPartition, int] | None
    half_rows: Mapping[str, int]

    @property
    def rows(self) -> int:
        """The number of rows of the chunk."""
        return len(self.decoded.chunk)

    @property
    def stored_bytes(self) -> int:
        """The bytes of their stored messages."""
        return self.decoded.chunk.stored_bytes

    @property
    def delivered_after(self) -> int:
        """The last slot delivered in full after this chunk."""
        return self.decoded.chunk.delivered_after

    @property
    def last(self) -> bool:
        """Whether the range ends with this chunk."""
        return self.decoded.chunk.last


@dataclass(frozen=True, slots=True)
class _Range:
    """Closed slots; a predecessor may have half delivered the first.

    Attributes:
        scan: over them.
        half_slot: the first slot.
        end: the last slot.
        below: D: per source partition, the offset below which its rows are out.
        ranks: counts the rows of each slot.
        now_ms: when it was closed.
    """

    scan: SlotScan
    half_slot: int
    end: int
    below: Mapping[TopicPartition, int]
    ranks: RankCounter
    now_ms: int


class Threads:
    """Makes the thread of each stage of a pipeline, and the queue after it."""

    def worker(self, name: str, work: Callable[[], object]) -> Worker:
        """Makes the thread of a stage; the pipeline starts it."""
        return Worker(name, work)

    def queue(self, records_max: int, bytes_max: int) -> BoundedQueue[Any]:
        """Makes the queue after a stage."""
        return BoundedQueue(records_max, bytes_max)


THREADS = Threads()


class Pipeline:
    """Prepares the chunks of one closed range after another. Not thread-safe: one loop owns it."""

    def __init__(
        self,
        directory: DataDirectory,
        prepare: Callable[[Deliveries], Prepared],
        config: DequeueConfig,
        threads: Threads = THREADS,
        charged_ms: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        """`charged_ms`: of the progress."""
        self._directory = directory
        self._prepare = prepare
        self._bounds = (config.chunk_records, config.chunk_bytes)
        self._config = config
        self._threads = threads
        self._queues = {t: RateQueue(charged * 1_000) for t, charged in charged_ms.items()}
        self._range: _Range | None = None
        self._stages: _Stages | None = None
        # Chunks that were made in this thread: of a range with a single chunk, or split ones.
        self._ready: deque[PreparedChunk] = deque()
        self._rows_max = config.chunk_records  # of one transaction, for now
        self._too_long_ms = 0  # duration of the last transaction that exceeded its deadline
        self._failure: BaseException | None = None

    def begin(
        self,
        after: int,
        until: int,
        below: Mapping[TopicPartition, int],
        half_rows: Mapping[tuple[str, int], int],
        now_ms: int,
    ) -> None:
        """Starts the range of slots after < s ≤ until, after the end of the earlier range.

        Args:
            after, until: bounds of closed slots.
            below: D of slot after + 1 if that is half delivered, else empty.
            half_rows: the number of rows that are out, by timer topic and half-delivered slot.
            now_ms: when the range was closed, for policies and recurring timers.
        """
        assert self._stages is None and not self._ready, "chunks were made and not used"
        bounds = self._config.span_records, self._config.chunk_recurring
        scan = SlotScan(self._directory, after, until, *bounds)
        self._range = _Range(scan, after + 1, until, below, RankCounter(half_rows), now_ms)

    @property
    def charged_ms(self) -> dict[str, int]:
        """The last turn in the queue of each target with a rate, of the chunks made so far."""
        return {target: queue.last_ms for target, queue in self._queues.copy().items()}

    @property
    def end(self) -> int:
        """The last slot of the newest range."""
        assert self._range is not None, "no range was begun"
        return self._range.end

    def next(self) -> PreparedChunk | None:
        """Returns the next chunk, or None at the end of the range.

        Raises:
            CorruptFile: a pending timer is damaged; every chunk before it has been returned.
        """
        if self._failure is not None:
            raise self._failure
        try:
            return self._next()
        except BaseException as error:
            self._failure = error
            raise

    def divide(self, ready: PreparedChunk, took_ms: int) -> None:
        """Splits a chunk whose transaction exceeded its deadline, and was aborted: `next` returns
        its rows again, in smaller chunks.
        """
        self._rows_max, self._too_long_ms = max(1, ready.rows // 2), took_ms
        self._ready.appendleft(ready)

    def split(self, ready: PreparedChunk, cuts: Iterable[int]) -> None:
        """Splits a chunk that has not left, before each of these rows: `next` returns its parts."""
        slots, whole, rank = self._range, ready.decoded, ready.rank
        assert slots is not None
        parts = list(itertools.pairwise([0, *cuts, ready.rows]))
        self._ready.extendleft(
            self._prepared(slots, whole.part(first, end), rank[first:end])
            for first, end in reversed(parts)
        )

    def note_commit(self, took_ms: int) -> None:
        """Lets the next transaction be larger after a short one, up to a whole chunk."""
        if 4 * took_ms <= self._too_long_ms:
            self._rows_max = min(2 * self._rows_max, self._bounds[0])

    def _next(self) -> PreparedChunk | None:
        ready = self._next_whole()
        if ready is None or ready.rows <= self._rows_max:
            return ready
        self.split(ready, range(self._rows_max, ready.rows, self._rows_max))
        return self._ready.popleft()

    def _next_whole(self) -> PreparedChunk | None:
        assert self._range is not None
        if self._ready:
            return self._ready.popleft()
        if self._stages is None:
            chunk = self._range.scan.next_chunk(*self._bounds)
            if chunk is None:
                return None
            if chunk.last:
                return self._make(self._range, chunk)
            self._stages = self._start(self._range, chunk)
        ready = self._stages.made.get()
        if ready is None or ready.last:
            self._stages.join()
            self._stages = None
        return ready

    def close(self) -> None:
        """Ends the stages and waits for them; the files may be closed afterwards."""
        if self._stages is not None:
            self._stages.close()

    def _start(self, slots: _Range, first: ScannedChunk) -> _Stages:
        scanned: BoundedQueue[ScannedChunk] = self._threads.queue(*self._bounds)
        made: BoundedQueue[PreparedChunk] = self._threads.queue(*self._bounds)

        def scan() -> None:
            chunk: ScannedChunk | None = first
            while chunk is not None:
                scanned.put(chunk, len(chunk), chunk.stored_bytes)
                chunk = None if chunk.last else slots.scan.next_chunk(*self._bounds)

        def read() -> None:
            while (chunk := scanned.get()) is not None:
                made.wait_for_room(len(chunk), chunk.stored_bytes)
                made.put(self._make(slots, chunk), len(chunk), chunk.stored_bytes)

        return _Stages(self._threads, scan, scanned, read, made)

    def _make(self, slots: _Range, chunk: ScannedChunk) -> PreparedChunk:
        """Runs the second stage for one chunk of the first."""
        store, topics = self._directory.messages, self._directory.topics
        whole = decode_chunk(chunk, store.read(chunk.hour, chunk.records), topics)
        # A cancelled row has a rank, too: in another owner's files it may have been delivered.
        delivered = _delivered(slots, whole)
        rank = slots.ranks.of(chunk.slot, *_timer_topics(whole), ~delivered)
        if policies := self._config.policies:
            geometry = self._directory.config
            rows = DueRows(
                whole.deliveries,
                chunk.slot,
                rank,
                precision_ms=geometry.precision_ms,
                window_ms=geometry.window_ms,
                now_ms=slots.now_ms,
                pending=~(delivered | is_cancelled(chunk.records) | whole.seed),
                queues=self._queues,
            )
            whole = replace(whole, deliveries=postponed(rows, policies))
        return self._prepared(slots, whole, rank)

    def _prepared(self, slots: _Range, decoded: DecodedChunk, rank: Int64) -> PreparedChunk:
        """Drops rows that are cancelled, out, or dropped by a policy, and prepares the others."""
        deliveries = decoded.deliveries
        pending = ~_delivered(slots, decoded)
        cancelled = is_cancelled(decoded.chunk.records) & pending
        leaves = pending & ~cancelled
        row: Int64 = np.flatnonzero(leaves)
        offset, recurring = decoded.offset, decoded.recurring(self._directory.config.precision_ms)
        if not leaves.all():
            deliveries, offset = deliveries.take(row), offset[leaves]
            recurring = recurring.within(leaves)
        deliveries, of, missed = with_successors(deliveries, recurring, offset, slots.now_ms)
        kept: Int64 = np.flatnonzero(deliveries.not_before_ms != DROPPED)
        dropped = len(deliveries) - len(kept)
        if dropped:
            deliveries, of = deliveries.take(kept), of[kept]
        return PreparedChunk(
            replace(self._prepare(deliveries), row=row[of]),
            int(cancelled.sum()),
            dropped,
            missed,
            decoded,
            rank,
            _ends(decoded),
            _half_rows(decoded, rank, pending),
        )


class _Stages:
    """The two threads of a range, the queue between them, and the one after them."""

    def __init__(
        self,
        threads: Threads,
        scan: Callable[[], None],
        scanned: BoundedQueue[ScannedChunk],
        read: Callable[[], None],
        made: BoundedQueue[PreparedChunk],
    ) -> None:
        self.made = made
        self._scanned = scanned
        self._threads = [
            threads.worker(name, partial(_run, stage, queue))
            for name, stage, queue in (("scan", scan, scanned), ("read", read, made))
        ]
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        for thread in self._threads:
            thread.join()

    def close(self) -> None:
        self._scanned.close()
        self.made.close()
        self.join()


def _run(
    stage: Callable[[], None], queue: BoundedQueue[ScannedChunk] | BoundedQueue[PreparedChunk]
) -> None:
    """Runs a stage in its thread, then ends its queue, perhaps with an error."""
    try:
        stage()
    except QueueClosed:
        return
    except BaseException as error:  # noqa: BLE001 - handed on to the caller
        queue.end(error)
    else:
        queue.end()


def _delivered(slots: _Range, decoded: DecodedChunk) -> Bool:
    """Selects rows of a slot that was half delivered at the start, below D of their partition."""
    if not slots.below:
        return np.zeros(len(decoded.offset), np.bool_)
    d = np.array([slots.below.get(p, 0) for p in decoded.sources], np.int64)[decoded.source]
    return is_out(decoded.chunk.slot, decoded.offset, slots.half_slot - 1, d)


def _timer_topics(decoded: DecodedChunk) -> tuple[list[str], Int64]:
    """Returns the timer topics of a chunk, and each row's index among them."""
    topics, of_source = topic_numbers(decoded.sources)
    return topics, of_source[decoded.source]


def _half_rows(decoded: DecodedChunk, rank: Int64, pending: Bool) -> dict[str, int]:
    """Counts the rows of the last slot that are out once the chunk is, if that is half delivered:
    by timer topic, of those that have rows of it.
    """
    chunk = decoded.chunk
    if not chunk.slot_open:
        return {}
    topics, topic = _timer_topics(decoded)
    out = np.full(len(topics), -1)
    rows = chunk.slot == chunk.slot[-1]
    np.maximum.at(out, topic[rows], rank[rows] + pending[rows])
    return {name: count for name, count in zip(topics, out.tolist(), strict=True) if count >= 0}


def _ends(decoded: DecodedChunk) -> dict[TopicPartition, int] | None:
    """Returns the offsets after the rows of the last slot, if these leave it half delivered."""
    chunk = decoded.chunk
    if not chunk.slot_open:
        return None
    rows = chunk.slot == chunk.slot[-1]
    ends = np.zeros(len(decoded.sources), np.int64)
    np.maximum.at(ends, decoded.source[rows], decoded.offset[rows] + 1)
    return dict(zip(decoded.sources, ends.tolist(), strict=True))
