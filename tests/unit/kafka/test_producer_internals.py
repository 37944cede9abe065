"""The internals of kafka-python on which the publisher depends; without a broker."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import kafka
import pytest
from kafka import KafkaProducer, TopicPartition
from kafka.errors import (
    InvalidRecordError,
    KafkaError,
    MessageSizeTooLargeError,
)
from kafka.record import MemoryRecords

from duewheel.errors import ConfigError
from duewheel.kafka.connect.deadline import Deadline, DeadlineExceeded
from duewheel.kafka.ledger import producer_internals as internals
from duewheel.schemas.wire.record_batch import Batch
from duewheel.schemas.wire.varint import varint

PARTITION = TopicPartition("orders", 2)


def body(*values: bytes) -> Batch:
    records = b""
    for delta, value in enumerate(values):
        record = b"\0\0" + varint(delta) + varint(-1) + varint(len(value)) + value + varint(0)
        records += varint(len(record)) + record
    return Batch(memoryview(records), len(values))


@pytest.fixture
def producer() -> Iterator[KafkaProducer]:
    """A producer that never reaches a broker: a given api_version needs none."""
    producer = KafkaProducer(
        bootstrap_servers="127.0.0.1:1",
        api_version=(4, 3),
        transactional_id="t",
        linger_ms=0,
        metrics_enabled=False,
    )
    yield producer
    assert internals.stop(producer, 30)


def test_this_version_has_all_that_is_touched(producer: KafkaProducer) -> None:
    internals.check_internals(producer)


def test_another_version_is_refused(
    producer: KafkaProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka, "__version__", "3.999.0")
    with pytest.raises(ConfigError, match=f"3.999.0.*exactly {internals.SUPPORTED_VERSION}"):
        internals.check_internals(producer)


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        ("", "_unregister_cleanup"),
        ("_accumulator", "_tp_lock"),
        ("_metadata", "set_topics"),
        ("_sender", "force_close"),
        ("_transaction_manager", "begin_commit"),
    ],
)
def test_a_missing_part_is_named(
    producer: KafkaProducer, monkeypatch: pytest.MonkeyPatch, owner: str, name: str
) -> None:
    part = getattr(producer, owner) if owner else producer
    with monkeypatch.context() as patched:
        patched.delattr(type(part), name)
        with pytest.raises(ConfigError, match=name):
            internals.check_internals(producer)


def test_a_broker_that_fences_badly_is_refused(producer: KafkaProducer) -> None:
    producer.config["api_version"] = (2, 6)
    with pytest.raises(ConfigError, match=r"2\.6.*2\.7"):
        internals.check_internals(producer)


def test_stopping_ends_the_thread_and_the_producer_for_good(producer: KafkaProducer) -> None:
    threads = {t.name for t in threading.enumerate()}
    assert any(t.startswith("kafka-python-producer") for t in threads)
    assert internals.stop(producer, 30)
    assert not producer._sender.is_alive()
    assert internals.stop(producer, 0), "again is harmless"
    producer.close()
    with pytest.raises(DeadlineExceeded, match="closed"):
        internals.enqueue(producer, [(PARTITION, body(b"x"))], 0)


def test_nothing_is_queued_outside_a_transaction(producer: KafkaProducer) -> None:
    with pytest.raises(KafkaError):
        internals.enqueue(producer, [(PARTITION, body(b"x"))], 0)
    assert not producer._accumulator.has_incomplete


def test_ready_records_are_read_by_kafka_python() -> None:
    records = internals.ReadyRecords(body(b"one", b"two"), 1_800_000_000_000)
    records.set_producer_state(7, 3, 40, is_transactional=True)
    records.close()
    sealed = records.buffer()
    assert records.buffer() is sealed, "sealed once"
    assert records.size_in_bytes() == len(sealed)
    assert records.next_offset() == 2

    batch = MemoryRecords(bytes(sealed)).next_batch()
    assert batch.validate_crc()
    assert batch.is_transactional
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (7, 3, 40)
    read = [(r.offset, r.timestamp, r.key, r.value) for r in batch]
    assert read == [
        (0, 1_800_000_000_000, None, b"one"),
        (1, 1_800_000_000_000, None, b"two"),
    ]

    records.set_producer_state(7, 4, 0, is_transactional=True)
    assert MemoryRecords(bytes(records.buffer())).next_batch().producer_epoch == 4


def test_ready_batches_are_never_split(producer: KafkaProducer) -> None:
    batch = internals.WholeBatch(PARTITION, internals.ReadyRecords(body(b"1", b"2"), 0))
    assert batch.records.next_offset() == 2, "sequence numbers count the records"
    assert not producer._sender._can_split(batch, MessageSizeTooLargeError)


def test_topics_are_announced_together_and_the_old_ones_kept(producer: KafkaProducer) -> None:
    internals.announce(producer, ["a", "b"])
    internals.announce(producer, ["b", "c"])
    assert producer._metadata._topics == {"a", "b", "c"}


def test_outcomes_tell_refused_from_fallen() -> None:
    good, stamped, refused, fallen, waiting = (
        internals.WholeBatch(PARTITION, internals.ReadyRecords(body(b"x"), 0)) for _ in range(5)
    )
    error = InvalidRecordError("no key")
    good.complete(5, -1)
    stamped.complete(6, 1_800_000_000_000)
    refused.complete_exceptionally(error, lambda _: error)
    fallen.abort(error)
    outcomes = internals.await_outcomes([good, stamped, refused, fallen], Deadline(1))
    assert outcomes == [
        internals.Outcome(None, failed_itself=False),
        internals.Outcome(None, failed_itself=False, stamp_ms=1_800_000_000_000),
        internals.Outcome(error, failed_itself=True),
        internals.Outcome(error, failed_itself=False),
    ]
    with pytest.raises(DeadlineExceeded, match="orders-2"):
        internals.await_outcomes([good, waiting], Deadline(0))
