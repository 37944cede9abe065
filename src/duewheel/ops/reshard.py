"""`duewheel reshard`: another number of shards, from anywhere, whether the old ones run or not.

The records are those of checkpoints/reshard_records.py. First of all the state topic gets the
partitions that it lacks, one for each new shard.

    1. `<app>.reshard` is taken: an earlier run of this command can finish nothing any more
    2. for every shard, old or new: a notice is written, the shard's transactional id taken, which
       fences whoever serves it, the newest record read, and written back sealed, with that same
       id. Whoever was fenced reads the notice, and ends; or took the id back before: then again
    3. with `<app>.reshard`, one transaction: the records of the new shards, and of those that are
       no more

Killed before 3, all is as it was, but sealed: run again it finishes, or undoes (`--to` the old
number). An undo only takes the seals off, so no content of the records can make it fail: not
settings that a `reconfigure` has changed between two seals, not want of room.

Before a record is sealed, its writer makes sure that it still holds `<app>.reshard`, by writing the
notice with it once more. A later run takes `<app>.reshard` first, and then each shard's id: it
fences this run, or finds what this one wrote.
"""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Protocol

import structlog

from duewheel import factory
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
from duewheel.errors import (
    ConfigError,
    Fenced,
    KafkaUnavailable,
    PublishDoubt,
    RecoveryRefused,
)
from duewheel.kafka import shard_settings
from duewheel.kafka.admin import KafkaAdmin
from duewheel.kafka.clients import ClientSettings
from duewheel.kafka.deadline import Deadline
from duewheel.kafka.shard_records import ShardRecord, all_shards
from duewheel.kafka.state_topic import place_of
from duewheel.kafka.transactions import TransactionalProducer, is_fenced
from duewheel.osutil.signals import stop_signals
from duewheel.schemas.wire.single_record import single
from duewheel.wheel.publisher import Publisher

_ATTEMPTS = 20
BACKOFF_MS = 50, 1_000  # between them: chance decides who is quicker

log = structlog.get_logger(__name__)


def reshard(settings: Settings, to: int, *, dry_run: bool) -> dict[str, Any]:
    """Deal the partitions of all shards to `to` shards.

    Args:
        settings: name the application and its Kafka; [shard] does not matter.
        to: how many there will be.
        dry_run: only say what would be done.

    Returns:
        dry_run; from_shards, to_shards; moved: how many partitions change their shard; shards: for
        each new one its partitions, until when they are delivered, by how much they stand apart;
        took_s.

    Raises:
        ConfigError: there is no record, so nothing that could be reassigned.
        RecoveryRefused: they cannot be reassigned so; nothing has changed, unless the text says
            that the shards are sealed.
        Fenced: another run of this command has begun.
        KafkaUnavailable: no answer in time; a new run finishes it.
        PublishDoubt: whoever serves a shard takes it back every time.
    """
    begun_s = time.monotonic()
    with ExitStack() as stack:
        clock = factory.StoppableClock(stack.enter_context(stop_signals()))
        kafka = _Kafka(settings, clock)
        stack.callback(kafka.close)
        result = Dealing(kafka, to, Backoff(clock, random.Random(), *BACKOFF_MS)).run(
            dry_run=dry_run
        )
    return {"dry_run": dry_run, **result, "took_s": round(time.monotonic() - begun_s, 3)}


class ReshardCluster(Protocol):
    """What dealing asks of Kafka. Not thread-safe."""

    def shards(self, *, past_open: bool) -> Mapping[int, ShardRecord]:
        """The newest record of every shard that there is or was.

        Args:
            past_open: wait for open transactions, in which there may be newer ones.

        Raises:
            ConfigError: there is no first shard.
        """
        ...

    def take_lock(self) -> None:
        """Take `<app>.reshard`."""
        ...

    def make_room(self, shards: int) -> None:
        """Have the state topic hold a partition for each of so many shards."""
        ...

    def write(self, values: Mapping[int, Mapping[bytes, bytes]]) -> int:
        """One transaction of these records, by shard and key.

        Returns:
            The brokers' clock then.

        Raises:
            Fenced: another run has begun.
            KafkaUnavailable: the outcome is unknown.
        """
        ...

    def publisher(self, shard: int) -> Publisher:
        """One of a shard, that is not started."""
        ...


class Dealing:
    """One run: the steps of the module's head. Not thread-safe."""

    def __init__(self, cluster: ReshardCluster, to: int, backoff: Backoff) -> None:
        """
        Args:
            cluster: where the records are.
            to: how many there will be.
            backoff: lets whoever serves a shard find out that it is sealed.
        """
        self._cluster, self._to, self._backoff = cluster, to, backoff

    def run(self, *, dry_run: bool) -> dict[str, Any]:
        """All of them, unless there is nothing to do, or it is not to be; see `reshard`."""
        old = self._look(past_open=False)
        told = _told(len(old), self._reassigned(old))
        begun = any(written.progress.sealed_for is not None for written in old)
        if dry_run or (len(old) == self._to and not begun):
            return told
        self._cluster.make_room(self._to)
        self._cluster.take_lock()
        like, count = old[0].progress, len(self._look(past_open=True))
        all_sealed = [self._seal(shard, count, like) for shard in range(max(count, self._to))]
        records = self._reassigned(all_sealed[:count])
        gone = [nothing(like, shard, self._to, _incarnation()) for shard in range(self._to, count)]
        done = notice(count, self._to, done=True)
        self._cluster.write(
            {
                record.shard: {record_key(record.shard): record.encode(), NOTICE_KEY: done}
                for record in [*records, *gone]
            }
        )
        log.info("partitions are reassigned", from_shards=count, to_shards=self._to)
        return _told(count, records)

    def _reassigned(self, old: Sequence[ShardRecord]) -> list[Progress]:
        """The records of the new shards; those of before, if as many are wanted."""
        records = [written.progress for written in old]
        if len(records) == self._to:
            return unsealed(records, _incarnation)
        try:
            return reassigned(records, self._to, _incarnation)
        except RecoveryRefused as error:
            shut = [str(record.shard) for record in records if record.sealed_for is not None]
            if not shut:
                raise
            raise RecoveryRefused(
                f"{error}. Sealed by now: shards {', '.join(shut)}. `duewheel reshard --to "
                f"{len(records)}` gives each shard back as it was"
            ) from error

    def _look(self, *, past_open: bool) -> list[ShardRecord]:
        """The records of all shards that there are, sealed or not."""
        shards = self._cluster.shards(past_open=past_open)
        count = shards[0].progress.shards
        for shard in range(count):
            if shard not in shards or not shards[shard].progress.partitions:
                raise RecoveryRefused(
                    f"shard {shard} of {count} has no progress: `duewheel init` begins it"
                )
        return [shards[shard] for shard in range(count)]

    def _seal(self, shard: int, count: int, like: Progress) -> ShardRecord:
        """Seal one shard; returns what its record is from then on.

        Args:
            shard: its index.
            count: of the shards that there are: those above it are new.
            like: any record of theirs.
        """
        told = {shard: {NOTICE_KEY: notice(count, self._to, done=False)}}
        wanted: Progress | None = None
        self._backoff.succeeded()
        for _ in range(_ATTEMPTS):
            publisher = self._cluster.publisher(shard)
            try:
                self._cluster.write(told)
                found = publisher.start()
                at_ms = self._cluster.write(told)
                if found is None or wanted is None or found.encode() != wanted.encode():
                    self._require_expected(shard, count, found)
                    if found is None:
                        wanted = nothing(like, shard, self._to, _incarnation())
                    else:
                        wanted = sealed(found, self._to, _incarnation())
                    publisher.publish(None, wanted)
                log.info("sealed", shard=shard, to_shards=self._to)
                return ShardRecord(wanted, at_ms)
            except PublishDoubt as doubt:
                log.warning("sealing again", shard=shard, reason=str(doubt))
                self._backoff.wait(self._backoff.next_ms())
            finally:
                publisher.close()
        raise PublishDoubt(f"whoever serves shard {shard} was quicker {_ATTEMPTS} times: try again")

    def _require_expected(self, shard: int, count: int, found: Progress | None) -> None:
        """Refuse what only another run of this command, or a start of a new shard, explains."""
        if shard < count:
            if found is None or not found.partitions or found.shards != count:
                raise Fenced(f"shard {shard} is not one of {count} any more: run it again")
        elif found is not None and found.partitions:
            raise RecoveryRefused(
                f"shard {shard} of {found.shards} has begun, though there are {count}: it cannot "
                "be told what it has delivered that another one had"
            )


class _Kafka:
    """The ReshardCluster of real brokers."""

    def __init__(self, settings: Settings, clock: factory.StoppableClock) -> None:
        self._settings, self._clock = settings, clock
        self._client = ClientSettings(settings.kafka.client_options("producer"))
        self._limits = shard_settings.publisher_limits(settings)
        self._producer = TransactionalProducer(
            self._client, f"{settings.app.id}.reshard", self._limits, clock.stopping
        )

    def close(self) -> None:
        """Drop the client."""
        self._producer.stop()

    def shards(self, *, past_open: bool) -> Mapping[int, ShardRecord]:
        """See ReshardCluster."""
        shards = all_shards(self._settings, self._clock.stopping, past_open=past_open)
        if 0 not in shards:
            raise ConfigError(f"{self._settings.state_topic} has no progress: nothing to reassign")
        return shards

    def take_lock(self) -> None:
        """See ReshardCluster."""
        deadline = Deadline(self._limits.start_deadline_s, self._clock.stopping)
        self._producer.open([self._settings.state_topic], deadline)

    def make_room(self, shards: int) -> None:
        """See ReshardCluster."""
        stopping = self._clock.stopping
        with KafkaAdmin(self._settings.kafka.client_options("admin"), stopping=stopping) as admin:
            admin.have_partitions(self._settings.state_topic, shards)

    def write(self, values: Mapping[int, Mapping[bytes, bytes]]) -> int:
        """See ReshardCluster."""
        batches = [
            (place_of(self._settings.state_topic, shard), single(key, value))
            for shard, records in values.items()
            for key, value in records.items()
        ]
        try:
            outcomes = self._producer.transact("reshard", batches, self._clock.now_ms())
            errors = [outcome.error for outcome in outcomes if outcome.error is not None]
            if errors:
                raise errors[0]
            return outcomes[-1].stamp_ms or self._clock.now_ms()
        except Exception as error:
            reason = self._client.explain(error)
            if is_fenced(error):
                raise Fenced(f"another `duewheel reshard` has begun: {reason}") from error
            raise KafkaUnavailable(
                f"{reason}: run it again, it goes on where this ended"
            ) from error

    def publisher(self, shard: int) -> Publisher:
        """See ReshardCluster."""
        return factory.publisher(self._settings, self._clock, shard)


def _incarnation() -> int:
    return secrets.randbits(62)


def _told(count: int, records: Sequence[Progress]) -> dict[str, Any]:
    """What the command prints, but for the time that it took."""
    moved = sum(
        shard_of(partition, count) != record.shard
        for record in records
        for partition in record.partitions
    )
    return {
        "from_shards": count,
        "to_shards": len(records),
        "moved": moved,
        "shards": [_shard_told(record) for record in records],
    }


def _shard_told(record: Progress) -> dict[str, Any]:
    precision_ms = int(record.epochs.newest.values[PRECISION])
    newest = max(part.delivered_slot for part in record.partitions.values())
    return {
        "shard": record.shard,
        "partitions": [f"{topic}-{number}" for topic, number in sorted(record.partitions)],
        "delivered_until_ms": record.delivered_slot * precision_ms,
        "apart_ms": (newest - record.delivered_slot) * precision_ms,
    }
