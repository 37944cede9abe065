"""The service in one process, on a clock that only the test moves: no Kafka, no Spark, no waiting.

    with LocalService.started() as duewheel:
        producer = duewheel.producer()
        producer.schedule("orders", b"pay your order", key=b"order-42", delay="15m")
        duewheel.advance("15m")
        [message] = duewheel.delivered("orders")

Everything between the client's classes and the topics is the product: the request headers and their
parser, the engine on real files, the loop that closes slots, the routing and encoding of
deliveries. In place of Kafka there are topics in memory (memory_cluster.py), and in place of the
two processes, turns:

    take      records of producers are parsed and placed, as ingest does
    deliver   closed slots leave, as in the loop, until nothing is left to do at this instant
    consume   the test's consumers get the new records of their topics

`advance` moves the clock from one slot with timers to the next, with these turns at each: so
each delivery, and each consumer, sees its own instant. While the `with` block lasts, each
DelayProducer and AsyncDelayProducer of this process is connected here, and reads this clock.

A timer leaves at the end of its slot, SLOT_MS long, and rolls after WINDOW_MS. With these a start
takes some ten milliseconds, and 40 days with a timer at their end a second or two. One thread moves
the clock; producers may be used from any.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self

import numpy as np

from duewheel.api.due_time import DueTime, span_ms
from duewheel.checkpoints.process_role import Role
from duewheel.client import AsyncDelayProducer, DelayProducer
from duewheel.client.producer import has_due_time
from duewheel.config.settings import Settings
from duewheel.errors import ConfigError
from duewheel.kafka.log.columns import committed_records
from duewheel.schemas.batches import TimerBatch
from duewheel.schemas.header_names import NAME_OF, Request
from duewheel.streaming.epoch_parser import parser
from duewheel.testing.clock import ManualClock
from duewheel.testing.local_consumer import LocalConsumer
from duewheel.testing.local_schedules import LocalSchedules
from duewheel.testing.local_shard import LocalShard
from duewheel.testing.memory_cluster import MemoryCluster
from duewheel.testing.memory_transactions import MemoryTransactionalProducer
from duewheel.testing.received import ReceivedMessage
from duewheel.testing.service_start import (
    SETTINGS,
    SLOT_MS,
    START,
    WINDOW_MS,
    clients_of,
    epochs_of,
    load_settings,
    started_shard,
    timer_partitions,
    without_log_lines,
)
from duewheel.wheel.inspect.listing import Filter, PendingTimer, list_pending
from duewheel.wheel.roll_rule import requested_slots
from duewheel.wheel.slots import slot_of

_SERVERS = "memory:9092"
_GROUP_BYTES_MAX = 1 << 40  # all that is taken at once is one batch
_BEYOND_ALL = 1 << 62
_ROUNDS_MAX = 1_000  # of consumers that write for consumers, at one instant
_CANCELS = {NAME_OF[each] for each in (Request.CANCEL, Request.RESCHEDULE, Request.IF_PENDING)}


class LocalService:
    """The service; see the module's head.

    Attributes:
        settings: those of `duewheel.toml`, as the service reads them.
        clock: the only one there is; `advance` moves it.
        schedules: the recurring schedules, in timer topics that are open for them.
    """

    def __init__(
        self, settings: Settings, clock: ManualClock, cluster: MemoryCluster, shard: LocalShard
    ) -> None:
        """
        Args:
            settings, clock: the attributes.
            cluster: has the topics.
            shard: both of its processes are started.
        """
        self.settings = settings
        self.clock = clock
        self._cluster = cluster
        self._shard = shard
        self._parse = parser(epochs_of(shard), settings.dead_letter_topic)
        self._consumers: list[LocalConsumer] = []
        self._slots: list[int] = []  # a heap: those with rows, or with replies
        self._of_keeps: set[int] = set()  # slots of timers that may be dropped
        self._producers = ExitStack()
        cluster.after_send = self._on_sent
        self.schedules = LocalSchedules(settings, self.pending, self.producer, clock.now_ms)
        self._deliver(clock.now_ms())  # a start decides no cancel before its first close

    @classmethod
    @contextmanager
    def started(
        cls,
        settings: Mapping[str, Any] | Path | str | None = None,
        *,
        start: datetime | int = START,
    ) -> Iterator[Self]:
        """Starts one, and ends it with the `with` block.

        Args:
            settings: the sections of `duewheel.toml`, or the path of such a file. Geometry, Kafka
                and processes have no effect here. By default SETTINGS.
            start: the time at which it starts: a datetime with a zone, or epoch ms.

        Raises:
            ConfigError: the settings cannot be used.
        """
        read = load_settings(SETTINGS if settings is None else settings)
        clock = ManualClock(DueTime.of(deliver_at=start).number)
        cluster = MemoryCluster(clock, append_time=read.timer.topics)
        with (
            without_log_lines(),
            started_shard(read, clock, cluster) as shard,
            clients_of(cluster, clock),
            closing(cls(read, clock, cluster, shard)) as service,
        ):
            yield service

    # ---- for the test ----------------------------------------------------------------------

    def now_ms(self) -> int:
        """Returns the time, epoch ms."""
        return self.clock.now_ms()

    def now(self) -> datetime:
        """Returns the time, in UTC."""
        return datetime.fromtimestamp(self.now_ms() / 1000, UTC)

    def producer(self, timer_topic: str | None = None, **options: Any) -> DelayProducer:
        """Makes a DelayProducer with the service's levels, longest delay and reply topic; it is
        closed with the service.

        Args:
            timer_topic: by default the first one.
            options: passed to DelayProducer.
        """
        made = DelayProducer(**self._options(timer_topic, options))
        self._producers.callback(made.close)
        return made

    def async_producer(self, timer_topic: str | None = None, **options: Any) -> AsyncDelayProducer:
        """Makes an AsyncDelayProducer, as `producer`; it is not started."""
        return AsyncDelayProducer(**self._options(timer_topic, options))

    def transactional_producer(self, transactional_id: str) -> MemoryTransactionalProducer:
        """Makes the double of `KafkaProducer(transactional_id=…)`: call its `init_transactions`
        before its first transaction, as in a program.
        """
        return MemoryTransactionalProducer(self._cluster, transactional_id)

    def consumer(self, topic: str, *, group: str | None = None) -> LocalConsumer:
        """Decorates a function that `advance` calls with each record in a topic, from its first on.

        It gets records of kafka-python, with key and value as bytes. An exception ends `advance`,
        and the next one hands it the same record again.

        Args:
            topic: where the records come from.
            group: for a function that commits its offsets in transactions: it begins after them.
        """
        consumer = LocalConsumer(self._cluster, topic, group)
        self._consumers.append(consumer)
        return consumer

    @contextmanager
    def without_leader(self, topic: str) -> Iterator[None]:
        """Lets records of producers for a topic expire while the block lasts, as if none of its
        partitions had a leader for `delivery_timeout_ms`: the record is not written, and its future
        fails with KafkaTimeoutError. An open transaction does not notice, as with kafka-python.
        The service itself can still write there.
        """
        self._cluster.leaderless.add(topic)
        try:
            yield
        finally:
            self._cluster.leaderless.discard(topic)

    def advance(self, time: timedelta | str) -> None:
        """Lets time pass, and delivers the timers due meanwhile, each at its own instant.

        Args:
            time: a timedelta, or text such as "90s", "15m" or "40d".

        Raises:
            InvalidTimer: the time cannot be read.
            ValueError: it is below 0.
        """
        self._run_until(self.now_ms() + span_ms(time, "time"))

    def advance_to(self, instant: datetime | int) -> None:
        """Lets time pass as `advance`, until an instant: a datetime with a zone, or epoch ms.

        Raises:
            InvalidTimer, ValueError: as `advance`.
        """
        self._run_until(DueTime.of(deliver_at=instant).number)

    def delivered(self, topic: str) -> list[ReceivedMessage]:
        """Lists the timers that were delivered to a topic, in their order."""
        return [each for each in self.records(topic) if each.is_delivery]

    def records(self, topic: str) -> list[ReceivedMessage]:
        """Lists all messages of a topic, also those that no timer has delivered."""
        return [ReceivedMessage.of(record) for record in self._cluster.records(topic)]

    def dead_letters(self) -> list[ReceivedMessage]:
        """Lists the service's dead letters; each has an `error_code`."""
        return self.records(self.settings.dead_letter_topic)

    def pending(self, topic: str | None = None) -> list[PendingTimer]:
        """Lists the timers that wait, in the order of their slots; a cancelled one does not.

        Args:
            topic: only those with this target.
        """
        with self._cluster.changed:
            self._take()
            listed = list_pending(self._shard.directory(Role.INGEST), Filter(topic), _BEYOND_ALL)
            return [timer for timer in listed if not timer.cancelled]

    def close(self) -> None:
        """Closes its producers; others raise from here on."""
        self._cluster.close()
        self._producers.close()

    # ---- turns -----------------------------------------------------------------------------

    def _run_until(self, end_ms: int) -> None:
        if end_ms < self.now_ms():
            raise ValueError(f"the time would fall by {self.now_ms() - end_ms} ms")
        self._consume()
        while (next_ms := min(slot_ms := self._next_slot_ms(), self._timeout_ms())) <= end_ms:
            self._deliver(next_ms)
            if self._floor * SLOT_MS < slot_ms <= next_ms:
                # All of its timers were dropped for earlier ones: the loop has no work there.
                assert slot_ms // SLOT_MS in self._of_keeps, f"{slot_ms}: a slot is not closed"
                heapq.heappop(self._slots)
            self._consume()
        self._deliver(end_ms)
        self._consume()

    def _next_slot_ms(self) -> int:
        """Returns the end of the next slot with rows or replies; a time beyond all without one."""
        with self._cluster.changed:
            self._take()
            while self._slots and self._slots[0] <= self._floor:
                heapq.heappop(self._slots)
            return self._slots[0] * SLOT_MS if self._slots else _BEYOND_ALL

    def _timeout_ms(self) -> int:
        """When a transaction has been open for too long; a time beyond all without one."""
        timeout_ms = self._cluster.next_timeout_ms
        return _BEYOND_ALL if timeout_ms is None else timeout_ms

    def _consume(self) -> None:
        """Hands records to their consumers, until no consumer has written another one.

        Raises:
            RuntimeError: they write records for each other without end, and no time passes.
        """
        rounds = 0
        while sum(each.run() for each in self._consumers):
            rounds += 1
            if rounds > _ROUNDS_MAX:
                raise RuntimeError(f"consumers have written for consumers, {rounds} times in a row")

    def _deliver(self, now_ms: int) -> None:
        """Sets the clock, and turns the loop until it has nothing to do."""
        with self._cluster.changed:
            self.clock.set(max(now_ms, self.now_ms()))
            self._cluster.end_timed_out()
            assert self._shard.dequeue is not None
            while self._shard.dequeue.tick():
                pass

    def _take(self) -> bool:
        """Places new records; returns whether there are requests to cancel."""
        engine = self._shard.ingest
        assert engine is not None
        marks = engine.marks
        ranges = {
            p: (marks.get(p, 0), self._cluster.end(p)) for p in timer_partitions(self.settings)
        }
        ranges = {p: (begin, end) for p, (begin, end) in ranges.items() if begin < end}
        fetched = [self._cluster.fetched(p, begin) for p, (begin, _) in ranges.items()]
        cancels = False
        for records in committed_records(fetched, ranges, _GROUP_BYTES_MAX):
            batch = self._parse(records)
            self._note_slots(batch)
            engine.append(batch, {p: end for p, (_, end) in ranges.items()})
            cancels |= bool((batch.cancels | batch.keeps).any())
        return cancels

    def _note_slots(self, batch: TimerBatch) -> None:
        """Notes when the loop has something to do for these rows."""
        rows = batch.take(np.flatnonzero(batch.timer))
        requested, _ = requested_slots(rows, SLOT_MS, WINDOW_MS)
        of_keeps = np.maximum(requested[rows.keeps], self._floor + 1)
        self._of_keeps = {slot for slot in self._of_keeps if slot > self._floor}
        self._of_keeps |= set(of_keeps.tolist())
        if (batch.cancels | batch.keeps).any():
            requested = np.append(requested, self._floor + 1)
        for slot in np.unique(np.maximum(requested, self._floor + 1)).tolist():
            heapq.heappush(self._slots, slot)

    def _on_sent(self, record: Any) -> None:
        """Lets the service reply to a request to cancel before `send` returns: at the end of the
        slot, as in the service. A reply that was awaited would not come otherwise.
        """
        topics = self.settings.timer.topics
        if record.topic not in topics:
            if has_due_time(record.headers):
                raise ConfigError(f'"{record.topic}" is none of the timer topics {list(topics)}')
            return
        is_cancel = not _CANCELS.isdisjoint(name for name, _ in record.headers)
        if is_cancel and self.settings.timer.reply_topic is not None:
            with self._cluster.changed:
                while self._take():  # its chase, too
                    self._deliver(slot_of(self.now_ms() + 1, SLOT_MS) * SLOT_MS)

    @property
    def _floor(self) -> int:
        """The last closed slot."""
        close = self._shard.directory(Role.DEQUEUE).state.close()
        assert close is not None, "written by the start"
        return close.floor

    def _options(self, timer_topic: str | None, options: Mapping[str, Any]) -> dict[str, Any]:
        timer = self.settings.timer
        if timer_topic is not None and timer_topic not in timer.topics:
            raise ConfigError(f'"{timer_topic}" is none of the timer topics {list(timer.topics)}')
        return {
            "timer_topic": timer_topic or timer.topics[0],
            "levels_ms": timer.levels_ms,
            "max_delay": timer.max_delay,
            "reply_topic": timer.reply_topic,
            "bootstrap_servers": _SERVERS,
            **options,
        }
