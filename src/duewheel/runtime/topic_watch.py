"""The timer topics as ingest reads them: found before every query, looked at again beside it.

A topic that has come, or gone, or become right, lets the running query end and another one begin,
at the engine's marks, a new topic at its beginning. Which topics are read: topic_discovery.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

import structlog

from duewheel.checkpoints.page_codec import Marks
from duewheel.checkpoints.state_file import State
from duewheel.checkpoints.topic_set import TopicSet
from duewheel.clock import Clock, Interval
from duewheel.config.settings import Settings
from duewheel.config.values import as_millis
from duewheel.errors import ConfigError, KafkaUnavailable, RecoveryPending, RecoveryRefused
from duewheel.kafka import shard_settings
from duewheel.kafka.admin import KafkaAdmin
from duewheel.kafka.topic_discovery import TakenTopics, discover, require_some
from duewheel.schemas.batches import TopicPartition
from duewheel.streaming.source import EARLIEST
from duewheel.wheel.append.engine import require_same_topics

_POLL_DEADLINE_S = 3.0
_REMIND_MS = 60_000

_log = structlog.get_logger(__name__)


class TopicWatch:
    """Not thread-safe.

    Attributes:
        topic_set: the timer topics of the query that runs, or is to begin.
    """

    def __init__(
        self, settings: Settings, state: State, clock: Clock, marks: Callable[[], Marks]
    ) -> None:
        """
        Args:
            settings: name the topics.
            state: of the data directory.
            clock: says when it is time to look.
            marks: asked for the engine's.
        """
        self._settings = settings
        self._state = state
        self._clock = clock
        self._marks = marks
        self._poll_interval = Interval(clock, as_millis(settings.ingest.topics_interval))
        self._logged: TopicSet | None = None
        self._errors: dict[str, Interval] = {}  # by topic
        self._ids: dict[str, str] = {}
        self._partitions: frozenset[TopicPartition] = frozenset()
        self.topic_set = TopicSet(())

    @property
    def left_out(self) -> int:
        """How many topics that match are not read, as far as is known."""
        return len(self._logged.left_out) if self._logged else 0

    # ---- before a query ------------------------------------------------------------------------

    def find(self, admin: KafkaAdmin) -> Mapping[str, str]:
        """Which topics the next query reads, and what Kafka calls them: ids by name.

        Raises:
            ConfigError: a listed topic does not exist.
            RecoveryPending: there is none at all.
        """
        self._poll_interval.begin()
        self.topic_set = discover(self._settings, admin, TakenTopics.of(self._state))
        self._log_changes(self.topic_set)
        try:
            topics = require_some(self._settings, self.topic_set)
        except ConfigError as error:
            raise RecoveryPending(f"nothing to read yet: {error}") from error
        self._ids = _ids(admin, topics)
        missing = set(self._settings.timer.topics) - self._ids.keys()
        if missing:
            names = ", ".join(sorted(missing))
            raise ConfigError(f"timer topic {names} does not exist: `duewheel init` creates it")
        return self._ids

    def starts(self, admin: KafkaAdmin) -> dict[TopicPartition, int]:
        """Where a query without a checkpoint begins, for every partition of the shard.

        Raises:
            RecoveryRefused: a partition ends below what was taken from it; or messages have to be
                read again that are no more.
        """
        marks, close = self._marks(), self._state.close()
        ends = shard_settings.own(self._settings, admin.end_offsets(self.topic_set.topics))
        require_not_below(close.marks if close else {}, ends)
        require_not_below(marks, ends)
        missing = close.missing(marks) if close else {}
        _require_readable([p for p in missing if p not in ends])
        self._partitions = frozenset(ends)
        return {partition: marks.get(partition, EARLIEST) for partition in ends}

    # ---- beside a query ------------------------------------------------------------------------

    def poll(self) -> bool:
        """Look, if it is time to; whether another query is to be begun.

        Raises:
            RecoveryRefused: a topic was recreated, or has lost its end: its messages would be
                taken for old ones.
            RecoveryPending: a partition has come that the query does not find by itself.
        """
        if not self._poll_interval.is_over():
            return False
        with suppress(KafkaUnavailable), self._admin() as admin:
            if self._has_changed(admin):
                return True
            require_same_topics(self._ids, _ids(admin, self.topic_set.topics))
            marks = self._marks()  # before the ends: those never fall, unless messages are lost
            ends = shard_settings.own(self._settings, admin.end_offsets(self.topic_set.topics))
            require_not_below(marks, ends)
            self._require_no_new_partitions(ends)
        return False

    def has_changed(self) -> bool:
        """Whether a query that has failed read other topics than there are now."""
        with suppress(KafkaUnavailable), self._admin() as admin:
            return self._has_changed(admin)
        return False

    def _has_changed(self, admin: KafkaAdmin) -> bool:
        topic_set = discover(self._settings, admin, TakenTopics.of(self._state))
        self._log_changes(topic_set)
        return topic_set.topics != self.topic_set.topics

    def _admin(self) -> KafkaAdmin:
        """A client of its own: the other one is the sink's, and the heartbeat must not wait."""
        return KafkaAdmin(self._settings.kafka.client_options("admin"), _POLL_DEADLINE_S)

    def _require_no_new_partitions(self, partitions: Iterable[TopicPartition]) -> None:
        if self._settings.shard.count > 1:
            added = [f"{p[0]}-{p[1]}" for p in partitions if p not in self._partitions]
            if added:
                raise RecoveryPending(f"{', '.join(added)} was added: starting anew to read it too")

    def _log_changes(self, topic_set: TopicSet) -> None:
        """Say what is new, and every minute what is wrong."""
        if topic_set != self._logged:
            topic_set.write(self._state.path.parent)
            _log.info("timer topics", read=list(topic_set.topics))
        problems = {
            topic: (text, reason)
            for text, reasons in (
                ("a timer topic is not read", topic_set.left_out),
                ("a timer topic is read that is not right", topic_set.faulty),
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


def _ids(admin: KafkaAdmin, topics: Iterable[str]) -> dict[str, str]:
    return {topic: str(topic_id) for topic, topic_id in admin.topic_ids(list(topics)).items()}


def require_not_below(marks: Marks, ends: Marks) -> None:
    """Refuse partitions that end below what was taken from them.

    Raises:
        RecoveryRefused: naming the partition and both offsets.
    """
    for partition in ends.keys() & marks.keys():
        if ends[partition] < marks[partition]:
            raise RecoveryRefused(
                f"{partition[0]}-{partition[1]} ends at offset {ends[partition]}, but messages up "
                f"to {marks[partition]} were taken from it: the topic was made anew or has lost "
                "its end, and new messages would be taken for old ones. `duewheel reconfigure "
                f"--accept-loss {partition[0]}-{partition[1]}` lets the shard go on without"
            )


def _require_readable(lost: Iterable[TopicPartition]) -> None:
    """Refuse to wait for messages that nobody can read again.

    Raises:
        RecoveryRefused: naming their partitions.
    """
    flags = " ".join(f"--accept-loss {topic}-{number}" for topic, number in sorted(lost))
    if flags:
        raise RecoveryRefused(
            "messages have to be read again of timer topics that are gone, or were made anew: "
            f"`duewheel reconfigure {flags}` lets the shard go on without. If they are only no "
            "longer configured: configure them again"
        )
