"""Ingest without Spark, and dequeue, in the test's own process; Kafka is real."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from kafka.errors import KafkaError
from tests.harness.launcher import wait_until
from tests.harness.reader import await_markers, read_topic

from duewheel import factory
from duewheel.api.dead_letters import ReplayFilter
from duewheel.checkpoints.local_state import RecoveryRecord
from duewheel.checkpoints.pauses import PausedTimers
from duewheel.checkpoints.process_role import Role
from duewheel.clock import SystemClock
from duewheel.config.settings import Settings, load
from duewheel.deadline import Deadline, DeadlineExceeded
from duewheel.errors import KafkaUnavailable, RecoveryRefused
from duewheel.kafka.connect.clients import KafkaClients
from duewheel.kafka.ledger import producer_internals as internals
from duewheel.kafka.ledger.transactional_producer import (
    TransactionalProducer,
    commit_all,
    open_producer,
)
from duewheel.kafka.log.columns import committed_records
from duewheel.kafka.log.reader import LogReader
from duewheel.kafka.publish.publisher import PublisherHooks
from duewheel.kafka.topics.admin import KafkaAdmin
from duewheel.kafka.transaction_limits import TransactionLimits
from duewheel.ops.dead_letters import replay
from duewheel.runtime.dequeue_process import init_progress
from duewheel.runtime.pause_watch import PauseWatch
from duewheel.schemas.batches import OffsetRanges, TimerBatch
from duewheel.schemas.request.parser import Contract, parse
from duewheel.schemas.wire.record_batch import Batch
from duewheel.schemas.wire.single_record import Header, encode
from duewheel.streaming.epoch_parser import parser
from duewheel.wheel.append.engine import Engine
from duewheel.wheel.dequeue.lifecycle import Dequeue
from duewheel.wheel.dequeue.statistics import Statistics
from duewheel.wheel.recovery.rebuild import apply_recovery
from duewheel.wheel.storage.data_directory import DataDirectory

Message = tuple[bytes | None, bytes | None, list[Header]]


class SparklessShard:
    """Ingest without Spark, and dequeue, in this process; Kafka is real."""

    def __init__(self, settings: Settings, dead_letter_partitions: int) -> None:
        self.settings = settings
        self.servers = settings.kafka.servers
        self.timers = settings.timer.topics[0]
        self.target = f"{settings.app.id}.orders"
        with self.admin() as admin:
            admin.create_topic(settings.dead_letter_topic, dead_letter_partitions)
            admin.init_topics(settings, partitions=2)
            admin.create_topic(self.target, 2)
        init_progress(settings)
        self._clock = factory.StoppableClock(threading.Event())
        self._directories = [
            DataDirectory.start(settings.storage.data_dir, settings.wheel, role)
            for role in (Role.DEQUEUE, Role.INGEST)
        ]
        self._pauses = PauseWatch(settings, self._clock)
        self._pauses.__enter__()
        self._pauses.wait(self._clock.stopping)
        hooks = PublisherHooks(paused=self._pauses.now)
        self._publisher = factory.publisher(settings, self._clock, hooks=hooks)
        self._dequeue = Dequeue(
            self._directories[0], self._publisher, self._clock, factory.dequeue_config(settings)
        )
        self._dequeue.start()
        record = RecoveryRecord.read(settings.storage.data_dir)
        assert record is not None
        apply_recovery(self._directories[1], record, lambda _: {})
        with self.admin() as admin:
            ids = admin.topic_ids([self.timers])
        self._engine = Engine(self._directories[1], self._clock, ids)

    def admin(self) -> KafkaAdmin:
        return KafkaAdmin(self.settings.kafka.client_options("admin"))

    def paused(self) -> PausedTimers:
        """The topics whose timers wait, as dequeue knows them."""
        return self._pauses.now()

    def close(self) -> None:
        self._pauses.__exit__()
        self._dequeue.close()
        self._publisher.close()
        for directory in self._directories:
            directory.stop()

    def leave_dequeue(self) -> None:
        """To another process."""
        self._dequeue.close()
        self._publisher.close()
        self._directories.pop(0).stop()

    @property
    def engine(self) -> Engine:
        return self._engine

    def send(self, topic: str, partition: int, *messages: Message) -> None:
        """Write records as they are, nulls wherever they may be."""
        body = b"".join(encode(place, *message) for place, message in enumerate(messages))
        self.send_batch(topic, partition, Batch(memoryview(body), len(messages)))

    def send_batch(
        self, topic: str, partition: int, batch: Batch, timestamp_ms: int | None = None
    ) -> None:
        """Write a record batch of any bytes, as any producer may."""
        client = KafkaClients({"bootstrap_servers": self.servers})
        deadline = Deadline(60)
        limits = TransactionLimits(publish_deadline_s=30, transaction_timeout_ms=60_000)
        producer = TransactionalProducer(client, f"{topic}.test", limits)
        producer.open([topic], deadline)
        now_ms = self._clock.now_ms() if timestamp_ms is None else timestamp_ms
        producer.transact([((topic, partition), batch)], now_ms)
        producer.stop()
        await_markers(self.servers, topic)  # else `take` may miss it

    def take(self, contract: Contract | None = None) -> None:
        """Take what is new in the timer topic."""
        marks = self._engine.marks
        with self.admin() as admin:
            ends = admin.ends([self.timers], committed=True)
        parsed = self.read({p: (marks.get(p, 0), end) for p, end in ends.items()}, contract)
        batch = TimerBatch.none().extended_by(*parsed)
        self._engine.append(batch, {**marks, **ends})

    def read(self, ranges: OffsetRanges, contract: Contract | None = None) -> list[TimerBatch]:
        """The timers of ranges, as a task of Spark reads them."""
        epochs = self._engine.epochs
        if contract is None:
            parse_records = parser(epochs, self.settings.dead_letter_topic)
        else:
            parse_records = partial(parse, contract=contract)
        client = KafkaClients(self.settings.kafka.client_options("consumer"))
        with closing(LogReader(client, [self.timers])) as reader:
            return [
                parse_records(records)
                for part in reader.read(ranges, 1 << 20)
                for records in committed_records(part, ranges, skipped=epochs.skipped)
            ]

    def pump(self, contract: Contract | None = None) -> None:
        """Take what is new in the timer topic, deliver what is due."""
        self.take(contract)
        time.sleep(2 * self.settings.timer.precision_ms / 1000)
        letters = self.statistics.dead_letters
        while self._dequeue.tick():
            pass
        if self.statistics.dead_letters != letters:
            await_markers(self.servers, self.settings.dead_letter_topic)  # else a list may miss one

    def forget_targets(self) -> None:
        """As once the metadata that dequeue has read of them has expired."""
        self._publisher._catalog.forget()  # noqa: SLF001

    @property
    def statistics(self) -> Statistics:
        return self._dequeue.statistics

    @property
    def left(self) -> int:
        """How many timers and dead letters have left."""
        counted = self.statistics
        return counted.delivered + sum(counted.dead_letters.values())

    def letters(self) -> list[Any]:
        return read_topic(self.servers, self.settings.dead_letter_topic)

    def replay(
        self, *, dry_run: bool = False, chunk_records: int = 1_000, **selection: Any
    ) -> dict[str, Any]:
        chosen = ReplayFilter(**selection)
        return replay.replay(
            self.settings, SystemClock(), chosen, dry_run=dry_run, chunk_records=chunk_records
        ).as_json()

    def outcomes(self, *, dry_run: bool = False, **selection: Any) -> tuple[int, dict[str, int]]:
        """Of a replay: how many went out, and the refusals by code."""
        result = self.replay(dry_run=dry_run, **selection)
        return result["replayed"], result["refused"]


class Pumped:
    """A shard whose ingest and dequeue work in a thread until it is closed."""

    def __init__(self, shard: SparklessShard) -> None:
        self.shard = shard
        self._ending = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._pump, daemon=True)
        self._thread.start()

    def _pump(self) -> None:
        try:
            while not self._ending.is_set():
                self.shard.pump()
        except BaseException as error:
            self._failure = error
            raise

    def delivered(self) -> list[Any]:
        assert self._failure is None
        return read_topic(self.shard.servers, self.shard.target)

    def close(self) -> None:
        self._ending.set()
        self._thread.join()
        self.shard.close()


def failing_third(*, committed: bool) -> Callable[..., Any]:
    """A `commit_all` whose third transaction fails, before or after it is committed."""
    calls = 0

    def fails_once(producer: Any, batches: Any, now_ms: int, deadline: Deadline, **_: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls != 3:
            return commit_all(producer, batches, now_ms, deadline)
        if committed:
            commit_all(producer, batches, now_ms, deadline)
        else:
            producer.begin_transaction()
            queued = internals.enqueue(producer, batches, now_ms)
            internals.await_outcomes(producer, queued, deadline)
        raise KafkaError("the connection is gone")

    return fails_once


def too_slow_above(records_max: int) -> Callable[..., Any]:
    """A `commit_all` that runs out of time with more records than that, beside the position."""

    def timed(producer: Any, batches: Any, now_ms: int, deadline: Deadline, **_: Any) -> Any:
        if sum(batch.count for _, batch in batches) > records_max + 1:
            raise DeadlineExceeded("no answer")
        return commit_all(producer, batches, now_ms, deadline)

    return timed


def opening(times: int) -> Callable[..., Any]:
    """An `open_producer` for which Kafka is away after so many calls."""
    calls = 0

    def opened(*given: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > times:
            raise KafkaUnavailable("no answer")
        return open_producer(*given)

    return opened


def until(shard: SparklessShard, reached: Callable[[], bool], within_s: float = 60) -> None:
    """Pump, until something is so."""
    give_up = time.monotonic() + within_s
    while not reached():
        assert time.monotonic() < give_up
        shard.pump()


class Restartable(SparklessShard):
    """Lets go of everything if it may not start."""

    def __init__(self, path: Path) -> None:
        try:
            super().__init__(load(path), 1)
        except RecoveryRefused:
            self.close()
            raise

    def pump_until(self, wanted: list[bytes]) -> None:
        def reached() -> bool:
            self.pump()
            return self.delivered() == wanted

        wait_until(reached, f"never delivered: {wanted}", every_s=0.1)

    def delivered(self) -> list[bytes]:
        return sorted(record.value for record in read_topic(self.servers, self.target))


@contextmanager
def running(path: Path) -> Iterator[Restartable]:
    with closing(Restartable(path)) as shard:
        yield shard


def timer(shard: SparklessShard, value: bytes, *due: tuple[str, bytes]) -> Any:
    return None, value, [("REAL_TOPIC", shard.target.encode()), *due]
