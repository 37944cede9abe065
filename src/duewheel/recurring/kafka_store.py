"""The Store of the scheduler in Kafka: one transactional id, one producer, one reader.

The transactional id makes one instance the only one that can write: `open` ends a former one's
transaction before it reads. The `owner` record, which each transaction writes and which lies beside
the positions, only keeps an instance from opening while another one is alive: it is then a standby.
"""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any

import structlog

from duewheel.client import Answer, DelayProducer
from duewheel.client.due_time import DueTime
from duewheel.client.request_headers import timer_headers
from duewheel.config.settings import Settings
from duewheel.config.values import as_millis
from duewheel.errors import ConfigError, Displaced, DuewheelError, PublishDoubt
from duewheel.factory import StoppableClock
from duewheel.kafka.admin import KafkaAdmin
from duewheel.kafka.clients import ClientSettings
from duewheel.kafka.deadline import Deadline
from duewheel.kafka.shard_settings import publisher_limits
from duewheel.kafka.state_topic import broker_now_ms, newest_of, place_of
from duewheel.kafka.topic_follower import TopicFollower
from duewheel.kafka.transactional_producer import TransactionalProducer, is_fenced
from duewheel.recurring.records import (
    OWNER_KEY,
    name_of,
    read_schedule,
    read_table,
    schedules_topic,
    transactional_id,
)
from duewheel.recurring.schedule import POSITION_PREFIX, SCHEDULE_PREFIX, Schedule
from duewheel.recurring.scheduler import ScheduleCommit, Table
from duewheel.recurring.steps import FiringCancels
from duewheel.schemas.batches import TopicPartition
from duewheel.schemas.columns import binary
from duewheel.schemas.hashing import key_hashes
from duewheel.schemas.wire.record_batch import Batch
from duewheel.schemas.wire.single_record import Header, encode, single
from duewheel.threads import beside

_BEATS = 5  # while another instance would wait
_REPLIES_S = 60.0  # then the cancels are sent again
_BATCH_BYTES = 512 * 1024

log = structlog.get_logger(__name__)

Row = tuple[bytes | None, bytes | None, Sequence[Header]]  # key, value, headers


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
        self._follower = TopicFollower(self._client, self._place, deadline)
        table = read_table(self._follower.read_to_end(deadline))
        self.write([])
        log.info("schedules opened", schedules=len(table.schedules), owner=self._own)
        return table

    def changes(self) -> Iterator[tuple[str, Schedule | None, bool]]:
        """See Store. Writes the heartbeat, too."""
        if self._clock.boottime_ms() - self._beat_ms >= self._silence_ms // _BEATS:
            self.write([])
        assert self._follower is not None, "call `open` first"
        for record in self._follower.poll(self._deadline()):
            name = name_of(record.key, SCHEDULE_PREFIX)
            if name is None:
                continue
            if record.value is None:
                yield name, None, True
            else:
                schedule = read_schedule(name, record.value, record.timestamp_ms)
                yield name, schedule, schedule is not None

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
        key = schedule.name.encode() if schedule.key is None else schedule.key
        return int(key_hashes(binary([key]))[0]) % self._partitions[topic]

    def write(self, written: Collection[ScheduleCommit]) -> None:
        """See Store.

        Raises:
            Displaced: another instance has taken over.
            PublishDoubt: the outcome is unknown, or Kafka refuses.
        """
        batches = list(_batches(written))
        names = {topic for (topic, _), _ in batches}
        positions = [_position_record(each) for each in written]
        own = (OWNER_KEY, json.dumps({"owner": self._own}).encode())
        batches += _cut(self._place, [(key, value, []) for key, value in [*positions, own]])
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
            outcomes = self._producer.transact("recur", batches, self._clock.now_ms())
            errors = [outcome.error for outcome in outcomes if outcome.error is not None]
            if errors:
                raise errors[0]
        except Exception as error:  # noqa: BLE001 - kafka-python raises what it likes
            self._producer.stop()
            if is_fenced(error):
                raise Displaced("another scheduler has taken over") from None
            raise PublishDoubt(f"firings: {self._client.explain(error)}") from None

    def _cancelled(self, cancels: FiringCancels) -> frozenset[int]:
        """The instants whose reply is `cancelled`.

        Raises:
            DuewheelError: a cancel was not acknowledged or not answered in time.
        """
        deadline = Deadline(_REPLIES_S)
        try:
            producer = self._canceller(cancels.timer_topic)
            sent = [
                (at, producer.cancel(timer, partition=number, timer_topic=cancels.timer_topic))
                for at, number, timer in cancels.timers
            ]
            answers = [(at, one.result(deadline.remaining_s())) for at, one in sent]
            return frozenset(
                at for at, one in answers if one.answer(deadline.remaining_s()) is Answer.CANCELLED
            )
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
        found = newest_of(self._client, self._place, OWNER_KEY, deadline, past_open=False)
        # `found.value` is None after a clean stop.
        if found is None or not found.value or json.loads(found.value).get("owner") == self._own:
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


def _position_record(written: ScheduleCommit) -> tuple[bytes, bytes | None]:
    key = POSITION_PREFIX + written.name.encode()
    return key, None if written.position is None else written.position.encode()


def _batches(written: Iterable[ScheduleCommit]) -> Iterator[tuple[TopicPartition, Batch]]:
    """The firings: the records of each timer partition in the order of their instants."""
    rows: dict[TopicPartition, list[tuple[int, Row]]] = {}
    for each in written:
        schedule = each.schedule
        if schedule is None:
            continue
        for instant, number in each.firings:
            headers = timer_headers(
                schedule.target,
                DueTime.of(instant),
                schedule.timer_topic,
                headers=schedule.headers,
                id=schedule.timer_id(instant),
            )
            row = (instant, (schedule.key, schedule.value, headers))
            rows.setdefault((schedule.timer_topic, number), []).append(row)
    for place, group in rows.items():
        yield from _cut(place, [row for _, row in sorted(group, key=lambda each: each[0])])


def _cut(place: TopicPartition, rows: Iterable[Row]) -> Iterator[tuple[TopicPartition, Batch]]:
    """Batches of about _BATCH_BYTES."""
    body, count = bytearray(), 0
    for key, value, headers in rows:
        if len(body) >= _BATCH_BYTES:
            yield place, Batch(memoryview(bytes(body)), count)
            body, count = bytearray(), 0
        body += encode(count, key, value, headers)
        count += 1
    if count:
        yield place, Batch(memoryview(bytes(body)), count)
