"""Tries real transactions, on which exactly-once delivery rests, under the scratch names.

    committed    a record in a transaction that is committed
    offsets      a record, and a group's offset with metadata, in a committed transaction
    zombie       a record in a transaction that is open when a second producer takes the id; its
                 producer then tries to commit
    aborted      a record in a transaction that is aborted

A reader of committed records must see the first two and never the others. Producers, batches and
reads are those of delivery. A step that fails skips the steps that depend on it.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TypeVar

from kafka import KafkaProducer
from kafka.structs import OffsetAndMetadata, TopicPartition

from duewheel.doctor.cluster import Cluster
from duewheel.doctor.findings import Diagnosis, diagnose
from duewheel.doctor.scratch import ScratchTopic, name_of
from duewheel.errors import DuewheelError, KafkaUnavailable
from duewheel.kafka import shard_settings
from duewheel.kafka.ledger import producer_internals as internals
from duewheel.kafka.ledger.transactional_producer import open_producer, warm_metadata
from duewheel.kafka.progress.state_topic import newest_records
from duewheel.schemas.wire.single_record import single

T = TypeVar("T")

COMMITTED, OFFSETS, ZOMBIE, ABORTED = b"committed", b"offsets", b"zombie", b"aborted"
_METADATA = "stored with the offset"
_OFFSET = 7
_STOP_S = 1.0
_POLL_S = 0.05
_REMEDY = "exactly once needs transactions as Apache Kafka 2.7 and newer have them"


def examine(cluster: Cluster, scratch: ScratchTopic) -> Iterator[Diagnosis]:
    """Runs the trial; it takes a second or two on a healthy cluster."""
    with contextlib.closing(_Trial(cluster, scratch)) as trial:
        yield from trial.run()


def check_seen(topic: str, seen: set[bytes], wanted: set[bytes]) -> Iterator[Diagnosis]:
    """Checks the keys that a reader of committed records has `seen`: those that are `wanted`."""
    subject, missing = f"topic {topic}", wanted - seen
    yield diagnose(
        "committed_seen",
        subject,
        f"of {len(wanted)} committed transactions {len(wanted - missing)} can be read",
        error=bool(missing),
        remedy=_REMEDY,
    )
    yield diagnose(
        "fencing",
        subject,
        "the transaction of a fenced producer "
        + ("was committed nevertheless" if ZOMBIE in seen else "cannot be read"),
        error=ZOMBIE in seen,
        remedy=_REMEDY,
    )
    yield diagnose(
        "read_committed",
        subject,
        f"an aborted transaction is {'visible' if ABORTED in seen else 'not visible'}",
        error=ABORTED in seen,
        remedy=_REMEDY,
    )


class _Trial:
    """One trial. Not thread-safe."""

    def __init__(self, cluster: Cluster, scratch: ScratchTopic) -> None:
        self._cluster = cluster
        self._partition = TopicPartition(scratch.topic, 0)
        self._name = name_of(cluster)
        self._subject = f"transactional id {self._name}"
        self._run = uuid.uuid4().bytes  # a topic that stays has records of earlier trials
        self._limits = shard_settings.publisher_limits(cluster.settings)
        self._producers: list[KafkaProducer] = []

    def run(self) -> Iterator[Diagnosis]:
        began_ms = self._cluster.clock.boottime_ms()
        try:
            producer = self._open()
            self._write(producer, COMMITTED)
            self._commit(producer)
        except DuewheelError as error:
            yield Diagnosis("transactions", "error", self._subject, str(error), _rights(self._name))
            return
        took_ms = self._cluster.clock.boottime_ms() - began_ms
        found = f"a producer was opened, and a transaction committed, in {took_ms} ms"
        yield Diagnosis("transactions", "ok", self._subject, found)
        offsets = self._try_offsets()
        yield offsets
        try:
            self._try_fencing()
            seen = self._read()
        except DuewheelError as error:
            yield Diagnosis("fencing", "error", self._subject, str(error), _REMEDY)
            return
        wanted = {COMMITTED} | ({OFFSETS} if offsets.severity == "ok" else set())
        yield from check_seen(self._partition.topic, seen, wanted)

    def close(self) -> None:
        """Stops the producers, and deletes the group."""
        for producer in self._producers:
            internals.stop(producer, _STOP_S)
        with contextlib.suppress(DuewheelError):
            self._cluster.ask("delete the trial's group", lambda a: a.delete_groups([self._name]))

    def _try_offsets(self) -> Diagnosis:
        """Commits an offset with metadata beside a record, and reads it back. Opens a new producer,
        which aborts what the earlier one has not really committed.
        """
        subject, kept = f"group {self._name}", OffsetAndMetadata(_OFFSET, _METADATA, -1)
        offsets = {self._partition: kept}
        try:
            producer = self._open()
            self._write(producer, OFFSETS)
            self._call(
                "commit a group's offset in a transaction",
                lambda: producer.send_offsets_to_transaction(offsets, self._name),
            )
            self._commit(producer)
            read = self._read_offset()
        except DuewheelError as error:
            remedy = "duewheel does not depend on it: its progress is a record; " + _rights(
                self._name
            )
            return Diagnosis("group_offsets", "warning", subject, str(error), remedy)
        same = read is not None and (read.offset, read.metadata) == (_OFFSET, _METADATA)
        return diagnose(
            "group_offsets",
            subject,
            f"offset {_OFFSET} and {len(_METADATA)} characters of metadata "
            + ("came back" if same else f"came back as {read}"),
            warning=not same,
            remedy="duewheel does not depend on it: its progress is a record",
        )

    def _read_offset(self) -> OffsetAndMetadata | None:
        """Reads the group's offset, which appears a moment after the commit, with its marker."""
        deadline = self._cluster.deadline()
        while True:
            found = self._cluster.ask(
                "read the group's offset", lambda admin: admin.list_group_offsets(self._name)
            )
            read = found[self._name].get(self._partition)
            if read is not None or not deadline.remaining_s():
                return read
            self._cluster.clock.sleep(_POLL_S)

    def _try_fencing(self) -> None:
        """Fences a producer with an open transaction, and aborts another transaction."""
        older = self._open()
        self._write(older, ZOMBIE)
        successor = self._open()
        with contextlib.suppress(Exception):  # the outcome shows in what can be read
            self._commit(older)
        self._write(successor, ABORTED)
        self._call("abort a transaction", successor.abort_transaction)

    def _read(self) -> set[bytes]:
        found = newest_records(
            self._cluster.client, self._partition.topic, self._cluster.deadline()
        )
        return {key for key, record in found.items() if record.value == self._run}

    # ---- steps -----------------------------------------------------------------------------

    def _open(self) -> KafkaProducer:
        deadline = self._cluster.deadline()
        producer = open_producer(
            self._cluster.client,
            self._name,
            replace(self._limits, stop_s=_STOP_S),
            deadline,
        )
        self._producers.append(producer)
        warm_metadata(self._cluster.client, producer, [self._partition.topic], deadline)
        return producer

    def _write(self, producer: KafkaProducer, key: bytes) -> None:
        """Begins a transaction with one record."""
        deadline, now_ms = self._cluster.deadline(), self._cluster.clock.now_ms()

        def write() -> Exception | None:
            producer.begin_transaction()
            batches = [(self._partition, single(key, self._run))]
            queued = internals.enqueue(producer, batches, now_ms)
            return internals.await_outcomes(queued, deadline)[0].error

        error = self._call(f"write {key.decode()!r} in a transaction", write)
        if error is not None:
            raise KafkaUnavailable(f"{self._name}: {self._cluster.client.explain(error)}")

    def _commit(self, producer: KafkaProducer) -> None:
        deadline = self._cluster.deadline()
        self._call("commit a transaction", lambda: internals.commit(producer, deadline))

    def _call(self, what: str, call: Callable[[], T]) -> T:
        return self._cluster.client.call(self._cluster.deadline(), what, call)


def _rights(name: str) -> str:
    return f"Write and Describe on transactional id, Read on group {name}"
