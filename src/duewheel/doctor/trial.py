"""Tries real transactions, on which exactly-once delivery rests, under the scratch names.

    committed    a record in a transaction that is committed
    offsets      a record, and a group's offset with metadata, in a committed transaction
    zombie       a record in a transaction that is open when a second producer takes the id; its
                 producer then tries to commit
    aborted      a record in a transaction that is aborted

A reader of committed records must see the first two and never the others. Each step opens the id,
as a start does, which aborts a transaction that was not really committed. A step that fails skips
the steps that depend on it.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable

from kafka import KafkaProducer
from kafka.errors import UnsupportedVersionError
from kafka.structs import OffsetAndMetadata
from kafka.structs import TopicPartition as KafkaPartition

from duewheel.api.examination import DoctorFinding
from duewheel.doctor.apis import OLDEST_KAFKA
from duewheel.doctor.cluster import Cluster
from duewheel.doctor.findings import Check, Findings
from duewheel.doctor.remedies import BROKERS_LOG
from duewheel.doctor.scratch import POLL_S, ScratchTopic
from duewheel.errors import DuewheelError
from duewheel.kafka import shard_settings
from duewheel.kafka.ledger import producer_internals as internals
from duewheel.kafka.ledger.transactional_producer import open_producer
from duewheel.kafka.progress.newest import newest_records

COMMITTED, OFFSETS, ZOMBIE, ABORTED = b"committed", b"offsets", b"zombie", b"aborted"
_OFFSET = 7
_STOP_S = 1.0
_UNNEEDED = "duewheel does not depend on it: its progress is a record"
_REMEDY = f"exactly once needs transactions as Apache Kafka {OLDEST_KAFKA} and newer have them"
_FAILED = f"{BROKERS_LOG}; {_REMEDY}"


def examine(cluster: Cluster, scratch: ScratchTopic) -> Findings:
    """Runs the trial; it takes a second or two on a healthy cluster."""
    with contextlib.closing(_Trial(cluster, scratch)) as trial:
        yield from trial.run()


def check_seen(topic: str, seen: set[bytes], wanted: set[bytes]) -> Findings:
    """Checks the keys that a reader of committed records has `seen`: those that are `wanted`."""
    subject, missing = f"topic {topic}", wanted - seen
    found = f"of {len(wanted)} committed transactions {len(wanted - missing)} can be read"
    yield Check("committed_seen", subject).of("error" if missing else "ok", found, _REMEDY)
    check, found = Check("fencing", subject), "the transaction of a fenced producer"
    if ZOMBIE in seen:
        yield check.error(f"{found} was committed nevertheless", _REMEDY)
    else:
        yield check.ok(f"{found} cannot be read")
    check = Check("read_committed", subject)
    if ABORTED in seen:
        yield check.error("an aborted transaction is visible", _REMEDY)
    else:
        yield check.ok("an aborted transaction is not visible")


class _Trial:
    """One trial. Not thread-safe."""

    def __init__(self, cluster: Cluster, scratch: ScratchTopic) -> None:
        self._cluster, self._scratch = cluster, scratch
        self._partition = KafkaPartition(scratch.topic, 0)
        self._name = scratch.topic
        self._subject = f"transactional id {self._name}"
        self._run = uuid.uuid4().bytes  # a topic that stays has records of earlier trials
        self._metadata = f"of run {self._run.hex()}"  # likewise, of a group
        self._producers: list[KafkaProducer] = []
        self._committed = {COMMITTED}  # keys that a reader must see

    def run(self) -> Findings:
        check, clock = Check("transactions", self._subject), self._cluster.clock
        began_ms = clock.boottime_ms()
        try:
            producer = self._begun(COMMITTED)
            self._call("commit", producer.commit_transaction)
            took_ms = clock.boottime_ms() - began_ms
            yield check.ok(f"a producer was opened, and a transaction committed, in {took_ms} ms")
            yield self._try_offsets()
            check = Check("fencing", self._subject)
            self._try_fencing()
            seen = self._read()
        except DuewheelError as error:
            yield check.error(str(error), self._scratch.grant(error, _FAILED))
            return
        yield from check_seen(self._partition.topic, seen, self._committed)

    def close(self) -> None:
        """Stops the producers."""
        for producer in self._producers:
            internals.stop(producer, _STOP_S)

    def _try_offsets(self) -> DoctorFinding:
        """Commits an offset with metadata beside a record, and reads it back."""
        check = Check("group_offsets", f"group {self._name}")
        offsets = {self._partition: OffsetAndMetadata(_OFFSET, self._metadata, -1)}
        try:
            producer = self._begun(OFFSETS)
            self._call(
                "send offsets", lambda: producer.send_offsets_to_transaction(offsets, self._name)
            )
            self._call("commit", producer.commit_transaction)
            self._committed.add(OFFSETS)
            read = self._read_offset()
        except DuewheelError as error:
            if isinstance(error.kafka_error, UnsupportedVersionError):
                return check.ok(f"not offered by the brokers; {_UNNEEDED}")
            granted = self._scratch.grant(error, BROKERS_LOG)
            return check.warning(str(error), f"{_UNNEEDED}; {granted}")
        written = f"offset {_OFFSET} and {len(self._metadata)} characters of metadata"
        if read is None:
            return check.warning(f"{written} did not come back", _UNNEEDED)
        if (read.offset, read.metadata) == (_OFFSET, self._metadata):
            return check.ok(f"{written} came back")
        return check.warning(f"{written} came back as {read}", _UNNEEDED)

    def _read_offset(self) -> OffsetAndMetadata | None:
        """Reads the group's offset, which appears a moment after the commit, with its marker."""
        reader = self._cluster.reader
        deadline = reader.deadline()
        while True:
            found = reader.call(
                "read the group's offset", lambda client: client.list_group_offsets(self._name)
            )
            read = found[self._name].get(self._partition)
            is_own = read is not None and read.metadata == self._metadata
            if is_own or not deadline.remaining_s():
                return read
            self._cluster.clock.sleep(POLL_S)

    def _try_fencing(self) -> None:
        """Fences a producer with an open transaction, and aborts another transaction."""
        older = self._begun(ZOMBIE)
        self._open()
        with contextlib.suppress(DuewheelError):  # the records that can be read show whether it was
            self._call("commit", older.commit_transaction)
        # Once more: a broker that does not fence may have let the older one take the id back.
        successor = self._begun(ABORTED)
        self._call("abort", successor.abort_transaction)

    def _read(self) -> set[bytes]:
        deadline = self._cluster.reader.deadline()
        found = newest_records(self._cluster.clients, self._partition.topic, deadline)
        return {key for key, record in found.items() if record.value == self._run}

    def _open(self) -> KafkaProducer:
        """A producer that owns the id; all are kept until the trial ends."""
        limits = shard_settings.publisher_limits(self._cluster.settings)
        clients, deadline = self._cluster.clients, limits.starting()
        self._producers.append(open_producer(clients, self._name, limits, deadline))
        return self._producers[-1]

    def _begun(self, key: bytes) -> KafkaProducer:
        """A new producer, with a record of this key in an open transaction."""
        producer, (topic, number) = self._open(), self._partition
        self._call("begin a transaction", producer.begin_transaction)
        self._call(
            "write a record",
            lambda: producer.send(topic, self._run, key, partition=number).get(),
        )
        return producer

    def _call(self, what: str, call: Callable[[], object]) -> None:
        cluster = self._cluster
        cluster.clients.call(cluster.reader.deadline(), f"{self._subject}: {what}", call)
