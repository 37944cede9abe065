"""Watches the timer topics for ingest: discovers them before every query, polls them beside it.

A topic that was created, deleted or corrected ends the running query; the next one begins at the
engine's marks, a new topic at its beginning. Which topics are read: kafka/topics/discovery.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

import structlog

from duewheel.checkpoints.commit_and_close_pages import Marks
from duewheel.checkpoints.state_file import State
from duewheel.checkpoints.taken_topics import TakenTopics
from duewheel.checkpoints.timer_topics_file import TopicSet
from duewheel.clock import Clock, Interval
from duewheel.config.settings import Settings
from duewheel.config.values import as_millis
from duewheel.errors import ConfigError, KafkaUnavailable, RecoveryPending, RecoveryRefused
from duewheel.kafka import shard_settings
from duewheel.kafka.log.list_offsets_times import EARLIEST
from duewheel.kafka.topics.admin import KafkaAdmin
from duewheel.kafka.topics.discovery import discover, require_some
from duewheel.schemas.batches import TopicPartition
from duewheel.schemas.partition_names import partition_name
from duewheel.wheel.append.engine import require_same_topics

_POLL_DEADLINE_S = 3.0
_REMIND_MS = 60_000

_log = structlog.get_logger(__name__)


class TopicWatch:
    """The timer topics of ingest's queries. Not thread-safe."""

    def __init__(
        self, settings: Settings, state: State, clock: Clock, marks: Callable[[], Marks]
    ) -> None:
        self._settings = settings
        self._state = state
        self._clock = clock
        self._marks = marks
        self._poll_interval = Interval(clock, as_millis(settings.ingest.topics_interval))
        self._logged: TopicSet | None = None
        self._errors: dict[str, Interval] = {}  # by topic
        self._ids: dict[str, str] = {}
        self._partitions: frozenset[TopicPartition] = frozenset()
        self.topic_set = TopicSet(())  # of the running query, or of the next one

    # ---- before a query ------------------------------------------------------------------------

    def find(self, admin: KafkaAdmin) -> Mapping[str, str]:
        """Discover the topics that the next query reads: their ids by name.

        Raises:
            RecoveryPending: none can be read yet.
        """
        self._poll_interval.begin()
        self.topic_set = discover(self._settings, admin, TakenTopics.of(self._state))
        self._log_changes(self.topic_set)
        try:
            topics = require_some(self._settings, self.topic_set)
        except ConfigError as error:
            raise RecoveryPending(f"no timer topic yet: {error}") from error
        self._ids = admin.topic_ids(topics)
        return self._ids

    def starts(self, admin: KafkaAdmin) -> dict[TopicPartition, int]:
        """Where a query without a checkpoint begins, for every partition of the shard.

        Raises:
            RecoveryRefused: a partition ends below its mark; or messages that must be read again
                are deleted.
        """
        marks, close = self._marks(), self._state.close()
        ends = self._ends(admin)
        require_not_below(close.marks if close else {}, ends)
        require_not_below(marks, ends)
        missing = close.missing(marks) if close else {}
        _require_readable([p for p in missing if p not in ends])
        self._partitions = frozenset(ends)
        return {partition: marks.get(partition, EARLIEST) for partition in ends}

    # ---- beside a query ------------------------------------------------------------------------

    def poll(self) -> bool:
        """Poll the topics if it is time; whether the query must be replaced.

        Raises:
            RecoveryRefused: a topic was recreated, or has lost its end: new messages would be
                dropped as replayed ones.
        """
        if not self._poll_interval.is_over():
            return False
        with suppress(KafkaUnavailable), self._admin() as admin:
            if self._has_changed(admin):
                return True
            marks = self._marks()  # before the ends, or new messages look like a lost end
            ends = self._ends(admin)
            require_not_below(marks, ends)
            return self._has_new_partitions(ends)
        return False

    def has_changed(self) -> bool:
        """Whether the topics of a failed query have changed since; logs and writes a change.

        Raises:
            RecoveryRefused: one was recreated; the query may only have seen that its end is lower.
        """
        with suppress(KafkaUnavailable), self._admin() as admin:
            return self._has_changed(admin)
        return False

    def _ends(self, admin: KafkaAdmin) -> dict[TopicPartition, int]:
        """The ends of this shard's partitions of the topics that are read."""
        return shard_settings.own(
            self._settings, admin.ends(self.topic_set.topics, committed=False)
        )

    def _has_changed(self, admin: KafkaAdmin) -> bool:
        topic_set = discover(self._settings, admin, TakenTopics.of(self._state))
        self._log_changes(topic_set)
        if topic_set.topics == self.topic_set.topics:
            require_same_topics(self._ids, admin.topic_ids(self.topic_set.topics))
            return False
        return True

    def _admin(self) -> KafkaAdmin:
        """A client of its own, with a short deadline: the sink's would delay the heartbeat."""
        return KafkaAdmin(self._settings.kafka.client_options("admin"), _POLL_DEADLINE_S)

    def _has_new_partitions(self, partitions: Iterable[TopicPartition]) -> bool:
        """Whether there are some that the query does not notice by itself."""
        added = [partition_name(p) for p in partitions if p not in self._partitions]
        if self._settings.shard.count == 1 or not added:
            return False
        _log.info("partitions were added: another query follows", added=added)
        return True

    def _log_changes(self, topic_set: TopicSet) -> None:
        """When the topics change, log them and write them to their file (timer_topics_file.py),
        which `status` and the lag watch read. Log each problem every minute.
        """
        if topic_set != self._logged:
            topic_set.write(self._state.path.parent)
            _log.info("timer topics", read=list(topic_set.topics))
        problems = {
            topic: (text, reason)
            for text, reasons in (
                ("a timer topic is not read", topic_set.left_out),
                (
                    "a timer topic is read although its settings are wrong or unknown",
                    topic_set.faulty,
                ),
            )
            for topic, reason in reasons.items()
        }
        self._errors = {
            t: self._errors.get(t) or Interval(self._clock, _REMIND_MS) for t in problems
        }
        for topic, problem in problems.items():
            if self._errors[topic].is_over(problem):
                _log.error(problem[0], topic=topic, reason=problem[1])
        self._logged = topic_set


def require_not_below(marks: Marks, ends: Marks) -> None:
    """Refuse partitions that end below their marks.

    Raises:
        RecoveryRefused: naming the partition and both offsets.
    """
    for partition in ends.keys() & marks.keys():
        if ends[partition] < marks[partition]:
            name = partition_name(partition)
            raise RecoveryRefused(
                f"{name} ends at offset {ends[partition]}, but messages up to {marks[partition]} "
                "were taken from it: the topic was recreated or lost its end, and new messages "
                f"would be dropped as replayed. `duewheel reconfigure --accept-loss {name}` "
                "accepts that"
            )


def _require_readable(lost: Iterable[TopicPartition]) -> None:
    """Refuse to wait for messages that are deleted.

    Raises:
        RecoveryRefused: naming their partitions.
    """
    flags = " ".join(f"--accept-loss {partition_name(each)}" for each in sorted(lost))
    if flags:
        raise RecoveryRefused(
            "messages must be read again from timer topics that were deleted or recreated: "
            f"`duewheel reconfigure {flags}` accepts the loss. If the topics are only "
            "no longer configured: configure them again"
        )
