"""`duewheel schedule move`: schedules of a former `duewheel recur` become recurring timers.

For each schedule, in one Kafka transaction:

1. Its firings that `recur` would have written by now, as ordinary timers: missed instants by the
   policy, and those of the next minute. Without the minute an instant could pass before the seed
   has its timestamp, which no instant of a seed precedes.
2. A seed, whose first instant is the one after these.
3. Records without a value for the schedule and its position: the next run does not find it.

So no instant is written twice, and none is left out, whatever is killed and however often the
command runs. Where the firings are too many for a transaction, the ones before write the position
after them, as `recur` did. The transactional id is `recur`'s: the command fences it.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field

from duewheel import factory
from duewheel.api.schedule_move import MovedSchedule
from duewheel.clock import Clock
from duewheel.config.settings import Settings
from duewheel.config.values import as_millis
from duewheel.errors import ConfigError, PublishDoubt
from duewheel.kafka import shard_settings
from duewheel.kafka.connect.deadline import Deadline
from duewheel.kafka.ledger.command_ledger import BytesPosition, CommandLedger, LedgerSpec
from duewheel.kafka.ledger.new_records import NewRecord
from duewheel.kafka.log.reader import LogReader
from duewheel.kafka.progress.broker_clock import broker_now_ms
from duewheel.kafka.progress.newest import NewestRecord, newest_by_key
from duewheel.ops.changes.acceptance import require_accepted, to_open_for_recurring
from duewheel.ops.schedule_move.former_schedules import (
    POSITION,
    SCHEDULE,
    FormerSchedule,
    is_alive,
    read_schedules,
)
from duewheel.schemas.columns import binary
from duewheel.schemas.hashing import key_hashes

AHEAD_MS = 60_000
_IN_TIME_MS = AHEAD_MS - 15_000  # of the instants ahead, until the transaction is committed
_RECORDS_MAX = 1_000  # of a transaction
_BYTES_MAX = 4 << 20  # likewise; one record may exceed it
_RECORD_BYTES = 500  # of headers, about


@dataclass(frozen=True, slots=True)
class _Plan:
    """The records for one schedule; `now_ms` is the brokers' time at which it holds."""

    schedule: FormerSchedule
    partition: int
    firings: tuple[int, ...]
    next_ms: int
    now_ms: int


@dataclass
class _Transaction:
    """The records of one transaction, and the schedules that it finishes."""

    records: list[NewRecord] = field(default_factory=list)
    rows: list[MovedSchedule] = field(default_factory=list)
    size: int = 0
    now_ms: int = 0  # of its first plan

    def add(self, record: NewRecord, now_ms: int) -> None:
        self.now_ms = self.now_ms or now_ms
        self.records.append(record)
        self.size += _RECORD_BYTES + len(record.value or b"")

    @property
    def is_full(self) -> bool:
        return self.size >= _BYTES_MAX or len(self.records) >= _RECORDS_MAX


def move(settings: Settings, clock: Clock, topic: str, *, dry_run: bool) -> Iterator[MovedSchedule]:
    """Moves the schedules of the topic; yields each once it is moved, or with the reason for which
    it stays.

    Raises:
        ConfigError: there is no such topic, `recur` runs, or a timer topic is not open for
            recurring timers; nothing is written.
        KafkaUnavailable: no answer in time.
        PublishDoubt: a transaction's outcome is unknown; a new run reads it, and writes nothing
            twice.
    """
    with closing(_Move(settings, clock, topic)) as run:
        yield from run.run(dry_run=dry_run)


class _Move:
    """One run. Not thread-safe."""

    def __init__(self, settings: Settings, clock: Clock, topic: str) -> None:
        self._settings, self._topic = settings, topic
        self._clock = clock
        self._client = factory.kafka_clients(settings, "consumer")
        self._limits = shard_settings.publisher_limits(settings)
        self._partition = (topic, 0)
        spec = LedgerSpec(
            "schedule move", "recur", b"move", lambda value: BytesPosition(value or b""), topic
        )
        self._ledger = CommandLedger(settings, spec, self._clock)
        self._boot_ms = 0  # when boottime began, by the brokers' clock

    def close(self) -> None:
        self._ledger.close()

    def run(self, *, dry_run: bool) -> Iterator[MovedSchedule]:
        deadline = self._limits.starting()
        schedules = self._checked(self._clock.now_ms(), deadline, past_open=False)
        if not schedules:
            return
        self._ledger.open(dry_run=dry_run)
        if not dry_run:  # once more: from here on `recur` cannot write
            now_ms = broker_now_ms(self._client, self._partition, deadline)
            schedules = self._checked(now_ms, deadline, past_open=True)
        for transaction in self._transactions(schedules):
            if transaction.records and not dry_run:
                self._write(transaction)
            yield from transaction.rows

    def _write(self, transaction: _Transaction) -> None:
        def in_time(_: object) -> None:
            if self._now_ms() - transaction.now_ms > _IN_TIME_MS:
                raise PublishDoubt(
                    "Kafka is too slow: an instant of the next minute may have passed"
                )

        mark = BytesPosition(secrets.token_hex(8).encode())
        while self._ledger.write(transaction.records, mark, in_time) != mark:
            # A broker has refused a batch. The next attempt has smaller ones.
            names = {each.name for each in transaction.records}
            if refused := sorted(names.intersection(self._ledger.refused)):
                text = f"a broker refuses a record of {b', '.join(refused).decode()}"
                raise PublishDoubt(f"{text}: nothing of it is written")

    def _checked(
        self, now_ms: int, deadline: Deadline, *, past_open: bool
    ) -> Mapping[str, FormerSchedule | str]:
        """Reads all schedules; raises a ConfigError as `move`."""
        with LogReader(self._client, [self._topic], lambda: deadline) as reader:
            reader.existing()
            newest = newest_by_key(reader, reader.bounds(committed=not past_open))
        self._boot_ms = now_ms - self._clock.boottime_ms()
        self._require_silence(newest, now_ms)
        schedules = read_schedules(newest)
        self._require_open(schedules)
        return schedules

    def _require_silence(self, newest: Mapping[bytes, NewestRecord], now_ms: int) -> None:
        silence_ms = as_millis(self._settings.shard.take_over_after)
        if is_alive(newest, now_ms, silence_ms):
            raise ConfigError(
                "`duewheel recur` runs: stop every instance of it. One that was killed counts as "
                f"running for {silence_ms / 1000:g} s (shard.take_over_after)"
            )

    def _require_open(self, schedules: Mapping[str, FormerSchedule | str]) -> None:
        timer = self._settings.timer
        readable = [each for each in schedules.values() if not isinstance(each, str)]
        for topic in sorted({each.fields.timer_topic for each in readable}):
            if topic not in self._settings.timer_topics:
                raise ConfigError(f'schedules fire by "{topic}", no timer topic of these settings')
            if not timer.contracts.get(topic, timer.default_contract).recurring:
                remedy = to_open_for_recurring(topic)
                raise ConfigError(f"{topic} is not open for recurring timers: {remedy}")

    def _now_ms(self) -> int:
        """Returns the brokers' time."""
        return self._boot_ms + self._clock.boottime_ms()

    # ---- plans ---------------------------------------------------------------------------------

    def _transactions(
        self, schedules: Mapping[str, FormerSchedule | str]
    ) -> Iterator[_Transaction]:
        """Yields the transactions, one after the other."""
        transaction = _Transaction()
        for name, schedule in schedules.items():
            try:
                if isinstance(schedule, str):
                    raise ConfigError(schedule)
                plan = self._plan(schedule)
            except ConfigError as error:
                transaction.rows.append(MovedSchedule(name=name, state="stays", error=str(error)))
                continue
            for due_ms in plan.firings:
                transaction.add(self._timer(plan, schedule.firing(due_ms)), plan.now_ms)
                if transaction.is_full:
                    transaction.add(self._own(schedule, POSITION, due_ms), plan.now_ms)
                    yield transaction
                    transaction = _Transaction()
            transaction.add(self._timer(plan, schedule.seed(plan.next_ms)), plan.now_ms)
            for prefix in (SCHEDULE, POSITION):
                transaction.add(self._own(schedule, prefix), plan.now_ms)
            transaction.rows.append(_row(plan))
            if transaction.is_full:
                yield transaction
                transaction = _Transaction()
        yield transaction

    def _plan(self, schedule: FormerSchedule) -> _Plan:
        """Raises a ConfigError if the schedule cannot be moved."""
        now_ms, to = self._now_ms(), schedule.fields.timer_topic
        firings, next_ms = schedule.instants(now_ms, now_ms + AHEAD_MS)
        seed = schedule.seed(next_ms)
        require_accepted(self._settings, to, schedule.key, schedule.value, seed, now_ms)
        target = self._ledger.existing([to])[to]
        hashed = schedule.name.encode() if schedule.key is None else schedule.key
        partition = target.partition_of(int(key_hashes(binary([hashed]))[0]), 0)
        return _Plan(schedule, partition, tuple(firings), next_ms, now_ms)

    def _timer(self, plan: _Plan, headers: list[tuple[str, bytes]]) -> NewRecord:
        schedule = plan.schedule
        place = schedule.fields.timer_topic, plan.partition
        name = schedule.name.encode()
        return NewRecord(name, *place, schedule.key, schedule.value, headers)

    def _own(
        self, schedule: FormerSchedule, prefix: bytes, done_ms: int | None = None
    ) -> NewRecord:
        """Makes a record of the schedules topic."""
        name = schedule.name.encode()
        value = None if done_ms is None else schedule.position(done_ms)
        return NewRecord(name, self._topic, 0, prefix + name, value, [])


def _row(plan: _Plan) -> MovedSchedule:
    fields = plan.schedule.fields
    return MovedSchedule(
        name=plan.schedule.name,
        state="paused" if fields.paused else "active",
        timer_topic=fields.timer_topic,
        next_due_ms=None if fields.paused else plan.next_ms,
        firings=len(plan.firings),
    )
