"""The Store of the scheduler in Kafka: one transactional id, one producer, one reader.

The transactional id makes one instance the only one that can write: `open` ends a former one's
transaction before it reads. The `owner` record, which each transaction writes and which lies beside
the positions, only keeps an instance from opening while another one is alive: it is then a standby.
"""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Collection, Iterator
from concurrent.futures import Future
from typing import Any

import structlog

from duewheel.client import DelayProducer
from duewheel.config.settings import Settings
from duewheel.config.values import as_millis
from duewheel.errors import ConfigError, DuewheelError, PublishDoubt
from duewheel.factory import StoppableClock
from duewheel.kafka.connect.clients import ClientSettings
from duewheel.kafka.connect.deadline import Deadline
from duewheel.kafka.ledger.transactional_producer import (
    TransactionalProducer,
    doubt_of,
)
from duewheel.kafka.log.newest import newest_record
from duewheel.kafka.progress.state_topic import broker_now_ms, place_of
from duewheel.kafka.shard_settings import publisher_limits
from duewheel.kafka.topic_follower import TopicFollower
from duewheel.kafka.topics.admin import KafkaAdmin
from duewheel.recurring.firing_records import (
    Row,
    batches_of,
    cancelled_instants,
    firing_batches,
    firing_partition,
    position_row,
)
from duewheel.recurring.records import (
    OWNER_KEY,
    owner_of,
    read_changes,
    read_table,
    schedules_topic,
    transactional_id,
)
from duewheel.recurring.schedule import Schedule
from duewheel.recurring.scheduler import ScheduleCommit, Table
from duewheel.recurring.steps import FiringCancels
from duewheel.schemas.batches import TopicPartition
from duewheel.schemas.wire.record_batch import Batch
from duewheel.schemas.wire.single_record import single
from duewheel.threads import beside
from duewheel.wheel.dequeue.clock_guard import ClockGuard

_BEATS = 5  # while another instance would wait
_REPLIES_S = 60.0  # then the cancels are sent again

log = structlog.get_logger(__name__)


class KafkaStore:
    """See Store (scheduler.py). One thread."""

    def __init__(self, settings: Settings, clock: StoppableClock) -> None:
        """Connects nothing.

        Raises:
            ConfigError: the settings name no topic for schedules.
        """
        self._topic = schedules_topic(settings)
        self._settings, self._clock = settings, clock
        self._client = ClientSettings(settings.kafka.client_options("producer"))
        self._limits = publisher_limits(settings)
        self._place = place_of(self._topic, 0)
        self._producer = TransactionalProducer(
            self._client, transactional_id(settings), self._limits, clock.stopping
        )
        self._guard = ClockGuard(clock, as_millis(settings.dequeue.clock_skew_max))
        self._own = secrets.token_hex(8)
        self._silence_ms = as_millis(settings.shard.take_over_after)
        self._follower: TopicFollower | None = None
        self._lock = threading.Lock()  # guards the next one
        self._cancelling: DelayProducer | None = None
        self._partitions: dict[str, int] = {}
        self._beat_ms = 0

    # ---- Store -----------------------------------------------------------------------------------

    def open(self) -> Table:
        """See Store. While another instance is alive it waits.

        Raises:
            ConfigError: the topic is missing.
            KafkaUnavailable: no answer in time, or a signal came while it waited.
        """
        self.drop()
        self._require_topic()
        self._await_silence()
        deadline = self._deadline()
        self._producer.open([self._topic], deadline)
        self._follower = TopicFollower(self._client, self._place)
        table = read_table(self._follower.read_to_end(deadline))
        self.write([])
        log.info("schedules opened", schedules=len(table.schedules), owner=self._own)
        return table

    def now_ms(self) -> int | None:
        """See Store."""
        return self._guard.check(0)

    def changes(self) -> Iterator[tuple[str, Schedule | None, bool]]:
        """See Store. Writes the heartbeat, too."""
        if self._clock.boottime_ms() - self._beat_ms >= self._silence_ms // _BEATS:
            self.write([])
        assert self._follower is not None, "call `open` first"
        yield from read_changes(self._follower.poll(self._deadline()))

    def partition(self, schedule: Schedule) -> int:
        """See Store: that of the message's key, or else of the name.

        Raises:
            ConfigError: there is no such timer topic.
        """
        topic = schedule.timer_topic
        if topic not in self._partitions:
            with KafkaAdmin(self._admin_options(), stopping=self._clock.stopping) as admin:
                self._partitions |= admin.describe_partitions([topic])
        if topic not in self._partitions:
            raise ConfigError(f"there is no timer topic {topic!r}")
        return firing_partition(schedule, self._partitions[topic])

    def write(self, written: Collection[ScheduleCommit]) -> None:
        """See Store.

        Raises:
            Displaced: another instance has taken over.
            PublishDoubt: the outcome is unknown, or Kafka refuses.
        """
        batches = list(firing_batches(written))
        names = {topic for (topic, _), _ in batches}
        own: Row = (OWNER_KEY, json.dumps({"owner": self._own}).encode(), [])
        batches += batches_of(self._place, [*map(position_row, written), own])
        self._transact(batches, names)

    def cancel(self, cancels: FiringCancels) -> Future[frozenset[int]]:
        """See Store. It waits in a thread of its own: replies need ingest and dequeue."""
        return beside("cancel firings", lambda: self._cancelled(cancels))

    # ---- the rest --------------------------------------------------------------------------------

    def drop(self) -> None:
        """Drop the clients; an open transaction is left to the next `open`."""
        self._producer.stop()
        follower, self._follower = self._follower, None
        if follower is not None:
            follower.close()
        self._partitions.clear()

    def close(self) -> None:
        """Leave, so that the next instance need not wait."""
        try:
            if self._producer.is_open:
                self._transact([(self._place, single(OWNER_KEY, None))], set())
        except DuewheelError as error:
            log.info("stopped without Kafka's answer", reason=str(error))
        self.drop()
        if self._cancelling is not None:
            self._cancelling.close(1)

    def _transact(self, batches: list[tuple[TopicPartition, Batch]], topics: set[str]) -> None:
        self._beat_ms = self._clock.boottime_ms()
        try:
            if not self._producer.is_open:
                raise PublishDoubt("the producer is not open")
            deadline = Deadline(self._limits.publish_deadline_s, self._clock.stopping)
            self._producer.warm_metadata(topics, deadline)
            # The last batch is the one of the schedules topic, which is stamped by its broker.
            stamp_ms = self._producer.transact("recur", batches, self._clock.now_ms())
            self._guard.read(stamp_ms, self._beat_ms)
        except Exception as error:  # noqa: BLE001 - kafka-python raises what it likes
            self._producer.stop()
            raise doubt_of(error, f"firings: {self._client.explain(error)}") from None

    def _cancelled(self, cancels: FiringCancels) -> frozenset[int]:
        """The instants whose reply is `cancelled`.

        Raises:
            DuewheelError: a cancel was not acknowledged or not answered in time.
        """
        deadline = Deadline(_REPLIES_S)
        try:
            return cancelled_instants(self._canceller(cancels.timer_topic), cancels, deadline)
        except TimeoutError as error:
            raise PublishDoubt("no reply to a cancel: do ingest and dequeue run?") from error
        except Exception as error:
            raise PublishDoubt(f"cancel firings: {self._client.explain(error)}") from error

    def _canceller(self, timer_topic: str) -> DelayProducer:
        """The producer of all cancels; several threads use it."""
        with self._lock:
            if self._cancelling is None:
                self._cancelling = DelayProducer(
                    timer_topic,
                    reply_topic=self._settings.timer.reply_topic,
                    **self._settings.kafka.client_options("producer"),
                )
            return self._cancelling

    def _await_silence(self) -> None:
        announced = False
        while (left_ms := self._owner_left_ms()) > 0:
            if not announced:
                log.info(
                    "another scheduler is alive: standing by", take_over_after_ms=self._silence_ms
                )
                announced = True
            self._clock.sleep(left_ms / 1000)

    def _owner_left_ms(self) -> int:
        """How long another instance has to be silent still; 0: there is none."""
        if self._clock.stopping.is_set():
            raise PublishDoubt("stopped while another scheduler was alive")
        deadline = self._deadline()
        found = newest_record(self._client, self._place, OWNER_KEY, deadline, past_open=False)
        if found is None or owner_of(found.value) in {None, self._own}:
            return 0
        now_ms = broker_now_ms(self._client, self._place, deadline)
        return max(0, found.timestamp_ms + self._silence_ms - now_ms)

    def _require_topic(self) -> None:
        with KafkaAdmin(self._admin_options(), stopping=self._clock.stopping) as admin:
            findings = admin.topic_findings(self._settings)
        for each in findings:
            if each.topic == self._topic and each.state in {"missing", "differs"}:
                raise ConfigError(
                    f"the schedules topic {self._topic!r} is missing or not as it must be: "
                    "`duewheel init` creates it, and says what differs"
                )

    def _admin_options(self) -> dict[str, Any]:
        return self._settings.kafka.client_options("admin")

    def _deadline(self) -> Deadline:
        return Deadline(self._limits.start_deadline_s, self._clock.stopping)
