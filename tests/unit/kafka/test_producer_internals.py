"""What the publisher relies on inside kafka-python, and the parts around it that need no broker."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from dataclasses import replace

import kafka
import numpy as np
import pyarrow as pa
import pytest
from kafka import KafkaProducer, TopicPartition
from kafka.errors import (
    InvalidRecordError,
    KafkaError,
    MessageSizeTooLargeError,
    NotLeaderForPartitionError,
)
from kafka.record import MemoryRecords

from duewheel.errors import ConfigError
from duewheel.kafka import partitioner, unpublishable_rows
from duewheel.kafka import producer_internals as internals
from duewheel.kafka.clients import ClientSettings
from duewheel.kafka.deadline import Deadline, DeadlineExceeded, within
from duewheel.kafka.publisher_limits import PublisherLimits
from duewheel.kafka.target_metadata import SentBatch, TargetCatalog
from duewheel.kafka.ttl_cache import TtlCache
from duewheel.schemas.batches import ANY_TIME, NO_KEY, NO_PARTITION, Deliveries
from duewheel.schemas.wire.record_batch import Batch
from duewheel.schemas.wire.varint import varint
from duewheel.wheel.encoded import Reason, Target

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
    monkeypatch.setattr(kafka, "__version__", "3.1.0")
    with pytest.raises(ConfigError, match=r"3\.1\.0.*exactly 3\.0\.12"):
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


# ---- deadlines ----------------------------------------------------------------------------------


def test_calls_within_a_deadline() -> None:
    assert within(Deadline(60), "add", lambda: 1 + 1) == 2

    def time_out() -> None:
        raise TimeoutError("the call's own")

    with pytest.raises(TimeoutError, match="the call's own"):
        within(Deadline(60), "fail", time_out)

    release = threading.Event()
    with pytest.raises(DeadlineExceeded, match=r"wait for ever.*0\.01 s"):
        within(Deadline(0.01), "wait for ever", release.wait)
    release.set()


# ---- settings -----------------------------------------------------------------------------------


def test_client_settings() -> None:
    with pytest.raises(ConfigError, match=r"unknown.*'sasl_plain_pasword'") as caught:
        ClientSettings({"sasl_plain_pasword": "hunter2"})
    assert "hunter2" not in str(caught.value)
    with pytest.raises(ConfigError, match="'linger_ms' is decided"):
        ClientSettings({"linger_ms": 5})

    settings = ClientSettings({"bootstrap_servers": ["a:1", "b:2"], "sasl_plain_password": "hu2"})
    assert repr(settings) == "ClientSettings(a:1,b:2)"
    assert settings.explain(KafkaError("refused: hu2\nagain")) == "KafkaError: refused: *** again"


def test_a_publish_must_be_shorter_than_its_transaction() -> None:
    with pytest.raises(ConfigError, match="transaction_timeout_ms = 5000"):
        PublisherLimits(publish_deadline_s=5, transaction_timeout_ms=5_000)


# ---- routing ------------------------------------------------------------------------------------


def rows(key_hash: list[int], target_partition: list[int] | None = None) -> Deliveries:
    n = len(key_hash)
    source = pa.array([b"%d" % i for i in range(n)], pa.large_binary())
    return Deliveries(
        targets=["orders", "bills"],
        target=np.arange(n, dtype=np.int32) % 2,
        target_partition=np.array(target_partition or [NO_PARTITION] * n, np.int32),
        key_hash=np.array(key_hash, np.int32),
        due_ms=np.zeros(n, np.int64),
        source_partitions=[("timers", 0)],
        source_partition=np.zeros(n, np.int32),
        origin_offset=np.arange(n),
        source=source,
        timer_id=source,
        key_value=pa.array([varint(-1) * 2] * n, pa.large_binary()),
        headers=pa.array([b""] * n, pa.large_binary()),
        header_count=np.zeros(n, np.int32),
        roll_times=np.zeros(n, np.int32),
        retries=np.zeros(n, np.int32),
        level=np.zeros(n, np.int32),
        dead_letter=np.zeros(n, np.bool_),
        rolled=np.zeros(n, np.bool_),
        not_before_ms=np.full(n, ANY_TIME),
        answer=np.zeros(n, np.bool_),
    )


TARGETS = {"orders": Target(5, 10_000), "bills": Target(3, 10_000)}


def numbers(deliveries: Deliveries) -> list[int]:
    """The rows as `rows` numbered them."""
    return [int(row) for row in deliveries.source.to_pylist() if row is not None]


def test_groups_hold_every_row_once_in_order() -> None:
    chance = random.Random(1)
    hashes = [chance.choice([NO_KEY, chance.randrange(2**31)]) for _ in range(1_000)]
    asked = [chance.choice([NO_PARTITION, NO_PARTITION, 0, 2]) for _ in hashes]
    given = rows(hashes, asked)
    routed, groups = partitioner.grouped(given, TARGETS, chance)

    assert sorted(numbers(routed)) == list(range(1_000))
    assert [g.first for g in groups] == [0, *[g.end for g in groups[:-1]]]
    assert len({(g.topic, g.partition) for g in groups}) == len(groups)
    without_key = set()
    for group in groups:
        members = numbers(routed.slice(group.first, group.end))
        assert members == sorted(members)
        for row in members:
            assert ["orders", "bills"][row % 2] == group.topic
            if asked[row] != NO_PARTITION:
                assert group.partition == asked[row]
            elif hashes[row] != NO_KEY:
                assert group.partition == hashes[row] % TARGETS[group.topic].partitions
            else:
                without_key.add((group.topic, group.partition))
    assert len(without_key) == 2, "one partition for all free rows of a topic"


def test_reasons() -> None:
    targets = {
        "orders": Target(5, 200, key_required=True),
        "bills": Target(0, 0, refusal=Reason.UNKNOWN_TARGET_TOPIC),
    }
    given = rows([1, 1, NO_KEY, 1, 1, 1, 1], [0, 0, 0, 0, 5, 0, 0])
    assert unpublishable_rows.why_not(given, targets, [b"6"]).tolist() == [
        Reason.NONE,
        Reason.UNKNOWN_TARGET_TOPIC,
        Reason.KEY_REQUIRED,
        Reason.UNKNOWN_TARGET_TOPIC,
        Reason.BAD_TARGET_PARTITION,
        Reason.UNKNOWN_TARGET_TOPIC,
        Reason.RECORD_REFUSED,
    ]


def test_refusals_narrow_down_to_the_bad_record() -> None:
    catalog = TargetCatalog(
        ClientSettings({}),
        PublisherLimits(batch_bytes=8_000, batch_bytes_max=90_000, target_age_s=60),
    )
    target = Target(1, 90_000)
    error = InvalidRecordError("bad")
    assert not catalog.note_refusal(
        SentBatch("t", 0, 8_000, None), NotLeaderForPartitionError("moved")
    )
    sizes = []
    while (size := catalog.batch_bytes("t", target)) > 100:
        sizes.append(size)
        assert catalog.note_refusal(SentBatch("t", 0, size, None), error)
    assert sizes == [8_000, 4_000, 2_000, 1_000, 500, 250, 125]
    assert catalog.batch_bytes("other", target) == 8_000
    assert catalog.note_refusal(SentBatch("t", 0, 60, b"orders.delayed-0@7"), error)
    catalog.settle(rows([1, 2]), [])
    assert catalog.refused == {b"orders.delayed-0@7"}
    catalog.settle(
        replace(rows([1]), source=pa.array([b"orders.delayed-0@7"], pa.large_binary())), []
    )
    assert catalog.refused == set()


def test_what_is_known_of_topics_is_bounded() -> None:
    known: TtlCache[str, int] = TtlCache(entries_max=10)
    for number in range(100):
        known.put(f"t{number}", number, 60)
    assert len(known) == 10
    assert known.get("t89") is None
    assert known.get("t90") == 90
    known.put("old", 1, -1)
    assert known.get("old") is None
    known.drop_expired()
    assert len(known) == 9
