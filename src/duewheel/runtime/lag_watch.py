"""How far ingest is behind the timer topics, as somebody else sees it: the dequeue process.

What ingest says of itself is worth nothing when it matters: a JVM that stands still, workers of
Spark's that are dead, a fetch that never comes back have nothing new to say. So a thread of dequeue
asks Kafka where the logs end, with a client and time-outs of its own, and compares that with the
marks of the commit page. What it finds lies in `state`, for `status` and the metrics of both.

The age of what is not taken is found without reading a message: each look notes the ends, and the
oldest of them that the marks have not reached were there at that time.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Self

import structlog

from duewheel.checkpoints.live_fields import Lag
from duewheel.checkpoints.page_codec import Marks
from duewheel.checkpoints.state_file import State
from duewheel.checkpoints.topic_set import TopicSet
from duewheel.clock import Clock, Interval
from duewheel.config.settings import Settings
from duewheel.errors import DuewheelError
from duewheel.kafka import shard_settings
from duewheel.kafka.admin import KafkaAdmin
from duewheel.schemas.batches import TopicPartition
from duewheel.threads import Worker

_INTERVAL_S = 1.0
_SHARE = 20  # a look may take a twentieth of the time: many partitions are asked for less often
_CALL_S = 10.0
_STOP_S = 1.0  # it holds nothing that must be given back
_REMIND_MS = 60_000
_NOTES_MAX = 8  # so the age is told too low by a seventh of it, at most about

_log = structlog.get_logger(__name__)


class LagNotes:
    """What earlier looks have seen. Not thread-safe."""

    def __init__(self) -> None:
        self._notes: list[tuple[int, dict[TopicPartition, int]]] = []
        self._batch = -1
        self._stuck_since_ms: int | None = None

    def measure(self, now_ms: int, batch: int, marks: Marks, ends: Marks) -> tuple[int, int, int]:
        """One look.

        Args:
            now_ms: boottime.
            batch: the newest that ingest has committed.
            marks: how far it has come, of every partition that is to be judged.
            ends: of the same partitions, where what can be taken ends.

        Returns:
            How many offsets are not taken; for how long the oldest of them has been known to be
            there, in ms; for how long no batch has been committed with something to take.
        """
        behind = {p: end for p, end in ends.items() if end > marks[p]}
        # What ended further on once has been cut: then there is no more to be taken than now.
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
    """The note between whose neighbours is the least time; neither the oldest nor the newest."""
    return min(range(1, len(notes) - 1), key=lambda i: notes[i + 1][0] - notes[i - 1][0])


class LagWatch:
    """Looks about once a second, in a thread, for the length of a with block."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        """Nothing runs yet.

        Args:
            settings: of the shard, whose data directory must be there.
            clock: this host's.
        """
        self._settings = settings
        self._clock = clock
        self._notes = LagNotes()
        self._stop = threading.Event()
        self._thread = Worker("lag watch", self._run, again_after_s=_CALL_S)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(_STOP_S)

    def _run(self) -> None:
        options = self._settings.kafka.client_options("admin")
        with KafkaAdmin(options, _CALL_S, self._stop) as admin:
            took_ms, warning = 0, Interval(self._clock, _REMIND_MS)
            while not self._stop.wait(max(_INTERVAL_S, _SHARE * took_ms / 1000)):
                begun_ms = self._clock.boottime_ms()
                try:
                    self._poll(admin)
                except (DuewheelError, OSError) as error:
                    if warning.is_over():
                        _log.warning(
                            "it is not known where the timer topics end", reason=str(error)
                        )
                else:
                    warning = Interval(self._clock, _REMIND_MS)
                took_ms = self._clock.boottime_ms() - begun_ms

    def _poll(self, admin: KafkaAdmin) -> None:
        settings, requested_ms = self._settings, self._clock.now_ms()
        found = TopicSet.read(settings.storage.data_dir)
        topics = sorted({*settings.timer.topics, *(found.topics if found else ())})
        stable = shard_settings.own(settings, admin.stable_offsets(topics))
        ends = shard_settings.own(settings, admin.end_offsets(topics))
        with State.open(settings.storage.data_dir) as state:
            commit, close = state.commit(), state.close()
            committed = {**(close.marks if close else {}), **commit.marks}
            marks = self._marks(admin, committed, stable, topics)
            now_ms = self._clock.boottime_ms()
            count, oldest_ms, stuck_ms = self._notes.measure(now_ms, commit.batch, marks, stable)
            held = sum(max(0, ends.get(p, end) - end) for p, end in stable.items())
            wall_ms = self._clock.now_ms()
            lag = Lag(requested_ms, count, wall_ms - oldest_ms, wall_ms - stuck_ms, held)
            state.live.note_lag(lag)

    def _marks(
        self, admin: KafkaAdmin, committed: Marks, ends: Marks, topics: list[str]
    ) -> Mapping[TopicPartition, int]:
        """Of a partition from which nothing was taken yet, where its log begins."""
        new = [partition for partition in ends if partition not in committed]
        starts = admin.log_start_offsets(topics) if new else {}
        return {p: committed.get(p, starts.get(p, 0)) for p in ends}
