"""`duewheel reshard`: changes the number of shards, from any host, whether the old ones run or not.

checkpoints/reshard_records.py has the records. Before the steps, the command adds the missing
partitions of the state topic, one for each new shard.

    1. takes the transactional id `<app>.reshard`, which fences an earlier run of this command
    2. for every shard, old or new: writes a notice; takes the shard's transactional id, which
       fences its owner; reads the newest record and writes it back sealed, under that same id. A
       fenced owner reads the notice and ends. If the owner took the id back first, repeats
    3. with `<app>.reshard`, writes the records of the new and of the removed shards in one
       transaction

A kill before 3 leaves everything unchanged but sealed. A new run finishes, or undoes (`--to` the
old number). An undo only removes the seals, so no content of the records can make it fail: not
even settings that a `reconfigure` changed between two seals, or a lack of room.

Before sealing a record, a run proves that it still holds `<app>.reshard`: it writes the notice once
more. A later run takes `<app>.reshard` first, and then each shard's id: it fences this run, or
reads the records that this one wrote.
"""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from functools import partial
from typing import Protocol

import structlog

from duewheel import factory
from duewheel.api.reshard import NewShard, Resharded
from duewheel.backoff import Backoff
from duewheel.checkpoints.config_epochs import PRECISION
from duewheel.checkpoints.progress import Progress, record_key, shard_of
from duewheel.checkpoints.reshard_records import (
    NOTICE_KEY,
    nothing,
    notice,
    reassigned,
    sealed,
    unsealed,
)
from duewheel.config.settings import Settings
from duewheel.errors import Displaced, Fenced, PublishDoubt, RecoveryRefused
from duewheel.kafka import shard_settings
from duewheel.kafka.ledger.transactional_producer import TransactionalProducer
from duewheel.kafka.progress.all_shards import all_shards
from duewheel.kafka.progress.state_topic import state_partition
from duewheel.kafka.transaction_errors import doubt_of
from duewheel.osutil.signals import stop_signals
from duewheel.schemas.partition_names import by_name
from duewheel.schemas.wire.single_record import single
from duewheel.wheel.doubt_resolution import CommitOutcome, Ledger
from duewheel.wheel.publisher_protocol import Publisher, Seen, publish_progress

_ATTEMPTS = 20
BACKOFF_MS = 50, 1_000  # between attempts; random, because two equal rhythms would fence for ever

log = structlog.get_logger(__name__)


def reassign_partitions(settings: Settings, to: int, *, dry_run: bool) -> Resharded:
    """Reassigns the partitions of all shards to `to` shards; [shard] of the settings is ignored.

    Changes nothing if there are as many and none is sealed, whether each has begun or not, or if
    none has begun: then the result's `from_shards` is 0. So the chart may run it before each
    upgrade.

    Raises:
        RecoveryRefused: the partitions cannot be assigned to so many shards; nothing has changed,
            unless the text says that shards are sealed.
        Fenced: another run of this command has begun.
        KafkaUnavailable, Unacknowledged: no answer in time.
        PublishDoubt: a transaction's outcome is unknown, or the owner of a shard took its id back
            at every attempt. After either, as after no answer, a new run finishes the reassignment.
    """
    begun_s = time.monotonic()
    with ExitStack() as stack:
        clock = factory.StoppableClock(stack.enter_context(stop_signals()))
        kafka = _Kafka(settings, clock)
        stack.callback(kafka.close)
        result = Reassignment(kafka, to, Backoff(clock, random.Random(), *BACKOFF_MS)).run(
            dry_run=dry_run
        )
    return result.model_copy(update={"took_s": round(time.monotonic() - begun_s, 3)})


class ReshardCluster(Protocol):
    """The cluster, as resharding needs it. Not thread-safe."""

    def shards(self, *, past_open: bool) -> Mapping[int, Seen]:
        """Reads the newest record of every shard, removed ones included. `past_open`: waits for
        open transactions, which may hold newer records.
        """
        ...

    def take_lock(self) -> None:
        """Takes `<app>.reshard`."""
        ...

    def make_room(self, shards: int) -> None:
        """Adds partitions to the state topic until each of `shards` shards has one."""
        ...

    def write(self, values: Mapping[int, Mapping[bytes, bytes]]) -> None:
        """Writes these records, by shard and key, in one transaction.

        Raises:
            Fenced: another run has begun.
            PublishDoubt: the outcome is unknown.
        """
        ...

    def publisher(self, shard: int) -> Publisher:
        """Makes a publisher of the shard, not started."""
        ...


class Reassignment:
    """One run: the steps of the module's head. Not thread-safe."""

    def __init__(
        self,
        cluster: ReshardCluster,
        to: int,
        backoff: Backoff,
        random_bits: Callable[[int], int] = secrets.randbits,
    ) -> None:
        """During a pause of `backoff` the owner of a shard reads the notice; `random_bits` draws
        incarnations.
        """
        self._cluster, self._to, self._backoff = cluster, to, backoff
        self._random_bits = random_bits

    def run(self, *, dry_run: bool) -> Resharded:
        """Runs all steps; none in a dry run or without a change. See `reassign_partitions`."""
        existing = self._existing(past_open=False)
        begun = [*existing.values()]
        sealed_shards = [each.shard for each in begun if each.sealed_for is not None]
        report = partial(_report, self._to, sealed_shards, dry_run=dry_run)
        if not sealed_shards and all(each.shards == self._to for each in begun):
            return report(self._to if begun else 0, begun)
        old = _complete(existing)
        planned = report(len(old), self._reassigned(old))
        if dry_run:
            return planned
        self._cluster.make_room(self._to)
        self._cluster.take_lock()
        like, count = old[0], len(_complete(self._existing(past_open=True)))
        all_sealed = [self._seal(shard, count, like) for shard in range(max(count, self._to))]
        records = self._reassigned(all_sealed[:count])
        removed = [
            nothing(like, shard, self._to, self._new_incarnation())
            for shard in range(self._to, count)
        ]
        done = notice(count, self._to, done=True)
        self._cluster.write(
            {
                record.shard: {record_key(record.shard): record.encode(), NOTICE_KEY: done}
                for record in [*records, *removed]
            }
        )
        log.info("partitions are reassigned", from_shards=count, to_shards=self._to)
        return report(count, records)

    def _reassigned(self, records: Sequence[Progress]) -> list[Progress]:
        """Builds the records of the new shards; an undo returns the old ones."""
        if len(records) == self._to:
            return unsealed(records, self._new_incarnation)
        try:
            return reassigned(records, self._to, self._new_incarnation)
        except RecoveryRefused as error:
            shut = [str(record.shard) for record in records if record.sealed_for is not None]
            if not shut:
                raise
            raise RecoveryRefused(
                f"{error}. Sealed by now: shards {', '.join(shut)}. `duewheel reshard --to "
                f"{len(records)}` gives each shard back as it was"
            ) from error

    def _new_incarnation(self) -> int:
        return self._random_bits(62)

    def _existing(self, *, past_open: bool) -> dict[int, Progress]:
        """Reads the records of the shards that have begun and are not removed, sealed or not."""
        seen = self._cluster.shards(past_open=past_open)
        records = {shard: each.progress for shard, each in seen.items()}
        return {shard: record for shard, record in records.items() if record.partitions}

    def _seal(self, shard: int, count: int, like: Progress) -> Progress:
        """Seals one shard, and returns its sealed record. There are `count` shards: an index from
        there on is a new shard's, which gets its settings from `like`.
        """
        self._backoff.succeeded()
        with ExitStack() as stack:
            notice_bytes = notice(count, self._to, done=False)
            owner = _Owner(self._cluster, shard, notice_bytes, self._backoff, stack)
            ledger: Ledger[None, Progress] = Ledger(owner.take, owner.publish)
            record = ledger.open()
            for _ in range(_ATTEMPTS):
                self._require_expected(shard, count, record)
                if record is None:
                    wanted = nothing(like, shard, self._to, self._new_incarnation())
                else:
                    wanted = sealed(record, self._to, self._new_incarnation())
                result = ledger.commit(None, wanted)
                if result.outcome is CommitOutcome.COMMITTED:
                    log.info("sealed", shard=shard, to_shards=self._to)
                    return wanted
                record = result.position
        raise PublishDoubt(
            f"the owner of shard {shard} has taken it back {_ATTEMPTS} times: run it again"
        )

    def _require_expected(self, shard: int, count: int, record: Progress | None) -> None:
        """Refuses a record that only another run of this command or a new shard can write."""
        if shard < count:
            if record is None or not record.partitions or record.shards != count:
                why = f"shard {shard} is no longer one of {count}"
                raise Fenced(f"another `duewheel reshard` has begun: {why}")
        elif record is not None and record.partitions:
            raise RecoveryRefused(
                f"shard {shard} of {record.shards} has begun, though there are {count}: it may "
                "have delivered timers of another shard"
            )


class _Owner:
    """Takes one shard from its owner, and writes its record. Not thread-safe."""

    def __init__(
        self,
        cluster: ReshardCluster,
        shard: int,
        notice_bytes: bytes,
        backoff: Backoff,
        stack: ExitStack,
    ) -> None:
        """`notice_bytes` is the notice to the owner; `stack` closes the publishers."""
        self._cluster, self._shard, self._backoff, self._stack = cluster, shard, backoff, stack
        self._notices = {shard: {NOTICE_KEY: notice_bytes}}
        self._publishers: list[Publisher] = []

    def take(self, doubt: PublishDoubt | None) -> Progress | None:
        """Takes the shard; by another publisher: the one before would yield to the notice."""
        if doubt is not None:
            self._backoff.wait(self._backoff.next_ms())
        publisher = self._stack.enter_context(closing(self._cluster.publisher(self._shard)))
        self._publishers.append(publisher)
        self._cluster.write(self._notices)
        found = publisher.start()
        self._cluster.write(self._notices)
        return found

    def publish(self, _: None, wanted: Progress) -> int | None:
        """Writes the record, as the last publisher."""
        return publish_progress(self._publishers[-1], wanted)


class _Kafka:
    """The ReshardCluster of real brokers."""

    def __init__(self, settings: Settings, clock: factory.StoppableClock) -> None:
        self._settings, self._clock = settings, clock
        self._client = factory.kafka_clients(settings, "producer")
        self._limits = shard_settings.publisher_limits(settings)
        self._producer = TransactionalProducer(
            self._client, f"{settings.app.id}.reshard", self._limits, clock.stopping
        )

    def close(self) -> None:
        """Drops the client."""
        self._producer.stop()

    def shards(self, *, past_open: bool) -> Mapping[int, Seen]:
        """See ReshardCluster."""
        topic, stopping = self._settings.state_topic, self._clock.stopping
        with factory.kafka_admin(self._settings, stopping=stopping) as admin:
            if topic not in admin.existing([topic]):
                return {}
        return all_shards(self._settings, stopping, past_open=past_open)

    def take_lock(self) -> None:
        """See ReshardCluster."""
        deadline = self._limits.starting(self._clock.stopping)
        self._producer.open([self._settings.state_topic], deadline)

    def make_room(self, shards: int) -> None:
        """See ReshardCluster."""
        stopping = self._clock.stopping
        with factory.kafka_admin(self._settings, stopping=stopping) as admin:
            admin.have_partitions(self._settings.state_topic, shards)

    def write(self, values: Mapping[int, Mapping[bytes, bytes]]) -> None:
        """See ReshardCluster."""
        batches = [
            (state_partition(self._settings.state_topic, shard), single(key, value))
            for shard, records in values.items()
            for key, value in records.items()
        ]
        try:
            self._producer.transact(batches, self._clock.now_ms())
        except Exception as error:
            reason = self._client.explain(error)
            doubt = doubt_of(error, f"{reason}: run it again, it continues where this run ended")
            if isinstance(doubt, Displaced):
                raise Fenced(f"another `duewheel reshard` has begun: {reason}") from error
            raise doubt from error

    def publisher(self, shard: int) -> Publisher:
        """See ReshardCluster."""
        return factory.publisher(self._settings, self._clock, shard)


def _complete(records: Mapping[int, Progress]) -> list[Progress]:
    """The records of all shards, in order; RecoveryRefused if one of them has not begun."""
    count = next(iter(records.values())).shards
    for shard in range(count):
        if shard not in records:
            raise RecoveryRefused(
                f"shard {shard} of {count} has no progress: `duewheel init` begins it"
            )
    return [records[shard] for shard in range(count)]


def _report(
    to: int, sealed: list[int], count: int, records: Sequence[Progress], *, dry_run: bool
) -> Resharded:
    moved = sum(
        shard_of(partition, count) != record.shard
        for record in records
        for partition in record.partitions
    )
    return Resharded(
        dry_run=dry_run,
        from_shards=count,
        to_shards=to,
        moved=moved,
        sealed=sealed,
        shards=[_new_shard(record) for record in records],
    )


def _new_shard(record: Progress) -> NewShard:
    precision_ms = int(record.epochs.newest.values[PRECISION])
    newest = max(part.delivered_slot for part in record.partitions.values())
    return NewShard(
        shard=record.shard,
        partitions=[*by_name(record.partitions)],
        delivered_until_ms=record.delivered_slot * precision_ms,
        apart_ms=(newest - record.delivered_slot) * precision_ms,
    )
