"""Measures the lag of ingest in the timer topics, from the dequeue process.

Ingest cannot report its own lag when it matters: a JVM that stands still, dead Spark workers, or a
fetch that never returns write nothing. So a thread of dequeue polls Kafka for the logs' ends, with
a client and time-outs of its own, and compares them with the marks of the commit page. The result
is in `state`, for `status` and the metrics of both processes.

The age of the oldest offset is measured without reading a message: each poll notes the ends; the
oldest note that the marks have not reached shows since when its offsets exist. Messages that wait
because of their topic's quota, or at a record that leads too far ahead, are no lag: their topic
waits alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

import structlog

from duewheel.checkpoints.commit_and_close_pages import Marks
from duewheel.checkpoints.live_fields import Lag
from duewheel.checkpoints.quota_waiting import QuotaWaiting
from duewheel.checkpoints.state_file import State
from duewheel.checkpoints.timer_topics_file import TopicSet
from duewheel.clock import Clock, Interval
from duewheel.config.settings import Settings
from duewheel.errors import DuewheelError, KafkaUnavailable
from duewheel.kafka import shard_settings
from duewheel.kafka.topics.admin import KafkaAdmin
from duewheel.runtime.watch import Watch
from duewheel.schemas.batches import TopicPartition
from duewheel.streaming.batch_attempt import SPARK_DIR
from duewheel.streaming.early_ends import waiting_far_ahead

_INTERVAL_S = 2.0  # a poll is six requests, twice as much as all other reads of an idle dequeue
_SHARE = 20  # a poll may take a twentieth of the time: many partitions are polled less often,
_INTERVAL_MAX_S = 20.0  # but so often: after an outage of Kafka, too
_CALL_S = 10.0
_REMIND_MS = 60_000
_NOTES_MAX = 8  # so the age is at most about a seventh too low

_log = structlog.get_logger(__name__)


class LagNotes:
    """The ends that earlier polls have seen. Not thread-safe."""

    def __init__(self) -> None:
        self._notes: list[tuple[int, dict[TopicPartition, int]]] = []
        self._batch = -1
        self._stuck_since_ms: int | None = None

    def measure(self, now_ms: int, batch: int, marks: Marks, ends: Marks) -> tuple[int, int, int]:
        """Notes one poll, at a boottime: the newest committed batch, the next offset to take of
        each partition, and the last stable offsets.

        Returns how many offsets are not taken; for how long the oldest of them has existed, in ms;
        for how long no batch has been committed although there were offsets to take, in ms.
        """
        behind = {p: end for p, end in ends.items() if end > marks[p]}
        # A log that ended further on was cut: the offsets beyond its end are no longer to be taken.
        notes = [
            (at_ms, {p: e for p, e in were.items() if p in ends and min(e, ends[p]) > marks[p]})
            for at_ms, were in self._notes
        ]
        self._notes = [(at_ms, left) for at_ms, left in notes if left]
        if behind:
            self._notes.append((now_ms, behind))
            if len(self._notes) > _NOTES_MAX:
                del self._notes[_least(self._notes)]
        if not behind:
            self._stuck_since_ms = None
        elif self._stuck_since_ms is None or batch != self._batch:
            self._stuck_since_ms = now_ms
        self._batch = batch
        count = sum(end - marks[p] for p, end in behind.items())
        oldest_ms = self._notes[0][0] if self._notes else now_ms
        stuck_ms = 0 if self._stuck_since_ms is None else now_ms - self._stuck_since_ms
        return count, now_ms - oldest_ms, stuck_ms


def _least(notes: list[tuple[int, dict[TopicPartition, int]]]) -> int:
    """The inner note whose neighbours are closest in time: its loss costs the least accuracy."""
    return min(range(1, len(notes) - 1), key=lambda i: notes[i + 1][0] - notes[i - 1][0])


def _wait_s(took_ms: int) -> float:
    """How long to wait after a poll that took so long."""
    return min(max(_INTERVAL_S, _SHARE * took_ms / 1000), _INTERVAL_MAX_S)


class LagWatch(Watch):
    """Polls every other second, in a thread, for the length of a with block."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        """Nothing runs yet. The data directory must exist."""
        super().__init__("lag watch", _CALL_S)
        self._settings = settings
        self._clock = clock
        self._notes = LagNotes()

    def _run(self) -> None:
        options = self._settings.kafka.client_options("admin")
        with KafkaAdmin(options, _CALL_S, self._stop) as admin:
            took_ms, warning = 0, Interval(self._clock, _REMIND_MS)
            while not self._stop.wait(_wait_s(took_ms)):
                begun_ms = self._clock.boottime_ms()
                try:
                    self._poll(admin)
                except (DuewheelError, OSError) as error:
                    if isinstance(error, KafkaUnavailable) and not self._stop.is_set():
                        self._note_no_answer()
                    if warning.is_over():
                        _log.warning(
                            "the ends of the timer topics cannot be read", reason=str(error)
                        )
                else:
                    warning = Interval(self._clock, _REMIND_MS)
                took_ms = self._clock.boottime_ms() - begun_ms

    def _note_no_answer(self) -> None:
        with suppress(DuewheelError, OSError), State.open(self._settings.storage.data_dir) as state:
            state.live.note_no_answer(self._clock.now_ms())

    def _poll(self, admin: KafkaAdmin) -> None:
        settings, requested_ms = self._settings, self._clock.now_ms()
        found = TopicSet.read(settings.storage.data_dir)
        topics = sorted(found.topics if found else settings.timer.topics)
        stable = shard_settings.own(settings, admin.ends(topics, committed=True))
        ends = shard_settings.own(settings, admin.ends(topics, committed=False))
        with State.open(settings.storage.data_dir) as state:
            commit = state.commit()
            marks = self._marks(admin, commit.high_water(state.close()), stable, topics)
            now_ms, wall_ms = self._clock.boottime_ms(), self._clock.now_ms()
            due = QuotaWaiting.read_valid(settings.storage.data_dir, wall_ms).below(stable)
            far = waiting_far_ahead(settings.storage.data_dir / SPARK_DIR)
            due = {p: min(end, far.get(p, end)) for p, end in due.items()}
            count, age_ms, stuck_ms = self._notes.measure(now_ms, commit.batch, marks, due)
            held = sum(max(0, ends.get(p, end) - end) for p, end in stable.items())
            # As instants: a reader of `state` sees the ages grow even if this thread has died.
            lag = Lag(requested_ms, count, wall_ms - age_ms, wall_ms - stuck_ms, held)
            state.live.note_lag(lag)

    def _marks(
        self, admin: KafkaAdmin, committed: Marks, ends: Marks, topics: list[str]
    ) -> Mapping[TopicPartition, int]:
        """The marks; for a partition without one, where its log begins."""
        new = [partition for partition in ends if partition not in committed]
        starts = admin.starts(topics) if new else {}
        return {p: committed.get(p, starts.get(p, 0)) for p in ends}
