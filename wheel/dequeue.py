"""The dequeue loop: closes slots as time passes, and publishes what was in them.

    1. when everything closed is delivered: under engine.lock, floor = floor(now / p), C = the marks
    2. the closed slots' records are found, their messages read and encoded, a bounded chunk at a
       time, ahead of the transactions (pipeline.py)
    3. one transaction per chunk: the messages and the progress
    4. the progress is mirrored locally

- One closed range at a time, with one vector C for all its slots. A range without rows counts as
  delivered without a commit; the next commit tells.
- A kill between 3 and 4, or an unknown outcome of 3: the progress in Kafka says what is delivered.
- Nothing is published before its slot is closed, and a slot is closed when its last due time is
  past: never early.

Not thread-safe; the loop is the only user of its publisher and of the wheel's closed half.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import structlog

from duewheel.checkpoints.files import boot_id
from duewheel.checkpoints.progress import PartitionProgress, Progress
from duewheel.checkpoints.recovery import RecoveryRecord, Resumption, require_ours, resume
from duewheel.checkpoints.state import DEQUEUE, Close
from duewheel.clock import Clock
from duewheel.errors import Fenced, KafkaUnavailable, PublishDoubt, RecoveryRefused
from duewheel.schemas.timers import TopicPartition
from duewheel.wheel.data_directory import DataDirectory
from duewheel.wheel.dequeue_statistics import Statistics
from duewheel.wheel.layout import closable_slot
from duewheel.wheel.pipeline import Pipeline, Ready
from duewheel.wheel.publisher import Prepared, Publisher

log = structlog.get_logger()

_BACKOFF_MS = (50, 5_000)  # first and longest wait between attempts to reach Kafka
_BEAT_MS = 500
_COLLECT_MS = 60_000  # between looks for hours that can go


@dataclass(frozen=True, slots=True)
class DequeueConfig:
    """Bounds and identity of the loop.

    Attributes:
        shard, shards: this shard's index and how many there are.
        slot_config: the settings that decide a row's slot, kept in the progress.
        chunk_records: rows of one transaction, at most.
        chunk_bytes: stored bytes of one transaction, at most (one message may be larger).
        progress_interval_ms: the progress is committed this often even when nothing is due.
    """

    shard: int
    shards: int
    slot_config: Mapping[str, Any]
    chunk_records: int = 20_000
    chunk_bytes: int = 6 << 20
    progress_interval_ms: int = 5_000


class Dequeue:
    """One shard's loop; see the module's head."""

    def __init__(
        self,
        directory: DataDirectory,
        publisher: Publisher,
        clock: Clock,
        config: DequeueConfig,
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self._directory = directory
        self._publisher = publisher
        self._clock = clock
        self._config = config
        self._stopping = stopping
        self._statistics = Statistics()
        self._chunks = Pipeline(
            directory, publisher.prepare, config.chunk_records, config.chunk_bytes
        )
        self._epoch = 1
        self._beat_at_ms = 0
        self._collected_at_ms = 0
        self._was_paused = False

    def start(self, first: Progress | None = None) -> None:
        """Take the shard, find out where delivery goes on, and tell ingest.

        Args:
            first: progress of a shard that never had any; None where that is not known to be so.

        Raises:
            RecoveryRefused: Kafka's progress and the local files do not fit; nothing has changed.
            KafkaUnavailable: no answer in time.
        """
        state = self._directory.state
        progress = self._publisher.start()
        if progress is None and first is not None and state.mirror() is None:
            self._publisher.publish(None, first)
            progress = first
        if progress is None:
            raise RecoveryRefused(
                "Kafka has no progress for this shard, and it is not a new one: run "
                "`duewheel init` if nothing was ever scheduled with these topics"
            )
        self._require_ours(progress)
        with self._directory.locked() as commit:
            mirror = state.mirror()
            mirrored = Progress.decode(mirror[2]) if mirror else None
            resumption = resume(progress, state.close(), commit, mirrored)
            if resumption.case == "new":
                state.write_close(resumption.close)
            pending = self._directory.wheel.count_later_than(resumption.r)
            self._delivered = commit.placed - pending
        self._resume(resumption, progress)
        RecoveryRecord(resumption.case, boot_id(), state.dequeue_starts).write(self._directory.path)
        log.info(
            "dequeue started",
            case=resumption.case,
            delivered_slot=self._r,
            floor=resumption.close.floor,
            half=bool(resumption.delivered_below),
            pending=pending,
        )

    def _resume(self, resumption: Resumption, progress: Progress) -> None:
        self._close = resumption.close
        self._r = resumption.r
        self._below: dict[TopicPartition, int] = dict(resumption.delivered_below)
        self._chunks.begin(self._r, self._close.floor, self._below)
        self._committed = progress
        self._committed_at_ms = self._clock.now_ms()
        self._directory.state.write_mirror(
            progress_slot(progress), self._delivered, progress.encode()
        )

    @property
    def statistics(self) -> Statistics:
        """A frozen copy of the counters."""
        return self._statistics

    @property
    def delivered_slot(self) -> int:
        """R: the last slot delivered in full. May be asked from any thread."""
        return self._r

    # ---- the loop --------------------------------------------------------------------------

    def close(self) -> None:
        """Let go of the files; the directory may be stopped then."""
        self._chunks.close()

    def run(self) -> None:
        """Tick until told to stop."""
        while not self._stopping():
            if not self.tick():
                self._clock.sleep(self._until_next_slot_ms() / 1000)

    def tick(self) -> bool:
        """Close what may be closed, deliver one chunk; returns whether there was one.

        While dequeue is paused it only says that it lives, here and in Kafka.

        Raises:
            Fenced: another instance has the shard.
            RecoveryRefused: Kafka's progress is not what this loop wrote.
            CorruptFile: a pending timer is damaged; it has not been delivered.
        """
        self._beat()
        if self._paused():
            self._commit_when_stale(self._committed)
            return False
        if self._r == self._close.floor:
            self._close_slots()
        ready = self._chunks.next()
        if ready is None:
            self._r = self._close.floor
            self._commit_when_stale(self._progress(self._r, None))
            return False
        self._deliver(ready)
        return True

    def _close_slots(self) -> None:
        """1. of the module's head."""
        now_ms = self._clock.now_ms()
        if abs(now_ms - self._collected_at_ms) >= _COLLECT_MS:
            self._directory.collect(progress_slot(self._committed))
            self._collected_at_ms = now_ms
        floor = closable_slot(now_ms, self._directory.config.precision_ms)
        if floor <= self._close.floor:
            return
        with self._directory.locked() as commit:
            c = {**self._close.c, **commit.marks}
            self._close = Close(self._close.floor, self._close.c, floor, c)
            self._directory.state.write_close(self._close)
        self._chunks.begin(self._r, floor, {})

    def _deliver(self, ready: Ready) -> None:
        """3. and 4. of the module's head, for one chunk."""
        below = self._below_after(ready)
        self._commit(ready.prepared, self._progress(ready.r_after, below), ready.rows)
        self._r, self._below = ready.r_after, below or {}

    def _below_after(self, ready: Ready) -> dict[TopicPartition, int] | None:
        """D after this chunk if it leaves its last slot half delivered, else None."""
        if ready.ends is None:
            return None
        before = self._below if self._r == ready.r_after else {}
        partitions = ready.ends.keys() | before.keys()
        return {p: max(ready.ends.get(p, 0), before.get(p, 0)) for p in partitions}

    # ---- progress --------------------------------------------------------------------------

    def _progress(self, r: int, below: Mapping[TopicPartition, int] | None) -> Progress:
        """The progress once slot `r` is delivered in full and, given D, slot r + 1 up to there."""
        closed = self._close
        c = closed.c_before if r == closed.lower else closed.c
        partitions = {}
        for partition in closed.c:
            half = None if below is None else (closed.c[partition], below.get(partition, 0))
            partitions[partition] = PartitionProgress(
                r, c.get(partition, 0), *(half or (None, None))
            )
        return Progress(
            self._config.shard,
            self._config.shards,
            self._directory.state.uuid,
            self._epoch,
            self._config.slot_config,
            partitions,
        )

    def _commit_when_stale(self, progress: Progress) -> None:
        """Nothing is to be delivered: still say now and then how far that is known."""
        age_ms = self._clock.now_ms() - self._committed_at_ms
        if abs(age_ms) >= self._config.progress_interval_ms:
            self._commit(None, progress, 0)

    def _paused(self) -> bool:
        paused = self._directory.state.paused(DEQUEUE)
        if paused != self._was_paused:
            self._was_paused = paused
            log.warning("paused: nothing is delivered" if paused else "goes on delivering")
        return paused

    def _commit(self, prepared: Prepared | None, progress: Progress, rows: int) -> None:
        """3. and 4.: publish until it is certain that it happened exactly once.

        Args:
            prepared: what of the chunk is not delivered yet.
            progress: how far the shard is afterwards.
            rows: of the chunk. A slot found half delivered was counted as pending in full.
        """
        begun_ms = self._clock.now_ms()
        while True:
            try:
                self._publisher.publish(prepared, progress)
                break
            except PublishDoubt as doubt:
                log.warning("transaction in doubt", reason=str(doubt))
                self._statistics = self._statistics.after_doubt()
                if self._happened(progress):
                    break
        self._committed, self._committed_at_ms = progress, self._clock.now_ms()
        now_ms = self._committed_at_ms
        deliveries = None if prepared is None else prepared.deliveries
        self._statistics = self._statistics.after_commit(deliveries, now_ms, now_ms - begun_ms)
        self._delivered += rows
        self._directory.state.write_mirror(
            progress_slot(progress), self._delivered, progress.encode()
        )

    def _happened(self, attempted: Progress) -> bool:
        """After a doubt: start anew and read whether the transaction was committed."""
        found = self._start_publisher()
        if found is None:
            raise RecoveryRefused("the progress of this shard has vanished from the state topic")
        if (found.owner, found.epoch) != (self._directory.state.uuid, self._epoch):
            raise Fenced(f"shard {self._config.shard} now belongs to data directory {found.owner}")
        if found.encode() == attempted.encode():
            return True
        if found.encode() == self._committed.encode():
            return False
        raise RecoveryRefused("the progress in Kafka is neither the last one written nor the next")

    def _start_publisher(self) -> Progress | None:
        """Start the publisher again, for as long as it takes Kafka to come back.

        Raises:
            KafkaUnavailable: told to stop meanwhile; the next start of the process looks again.
        """
        wait_ms = _BACKOFF_MS[0]
        while not self._stopping():
            try:
                return self._publisher.start()
            except (KafkaUnavailable, PublishDoubt) as error:
                log.warning("kafka is away", reason=str(error), next_try_ms=wait_ms)
                self._beat()
                self._clock.sleep(wait_ms / 1000)
                wait_ms = min(2 * wait_ms, _BACKOFF_MS[1])
        raise KafkaUnavailable("stopped while waiting for Kafka")

    def _require_ours(self, progress: Progress) -> None:
        require_ours(
            progress,
            uuid=self._directory.state.uuid,
            shard=self._config.shard,
            shards=self._config.shards,
            slot_config=self._config.slot_config,
        )
        self._epoch = progress.epoch

    # ---- time and counters -----------------------------------------------------------------

    def _until_next_slot_ms(self) -> int:
        precision_ms = self._directory.config.precision_ms
        return precision_ms - self._clock.now_ms() % precision_ms

    def _beat(self) -> None:
        now_ms = self._clock.now_ms()
        if abs(now_ms - self._beat_at_ms) >= _BEAT_MS:
            behind_ms = max(0, now_ms - self._r * self._directory.config.precision_ms)
            self._directory.state.beat(DEQUEUE, os.getpid(), now_ms, behind_ms)
            self._beat_at_ms = now_ms


def progress_slot(progress: Progress) -> int:
    """R of a shard whose partitions have gone the same way so far."""
    return min((p.r for p in progress.partitions.values()), default=0)


def first_progress(
    directory: DataDirectory,
    config: DequeueConfig,
    starts: Mapping[TopicPartition, int],
    now_ms: int,
) -> Progress:
    """The progress of a shard that never had any: R is now, and nothing below `starts` counts."""
    r = closable_slot(now_ms, directory.config.precision_ms)
    partitions = {partition: PartitionProgress(r, offset) for partition, offset in starts.items()}
    return Progress(
        config.shard, config.shards, directory.state.uuid, 1, config.slot_config, partitions
    )
