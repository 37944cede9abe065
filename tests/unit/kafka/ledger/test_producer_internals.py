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
    TopicAuthorizationFailedError,
)
from kafka.future import Future
from kafka.record import MemoryRecords

from duewheel.deadline import Deadline, DeadlineExceeded
from duewheel.errors import ConfigError, KafkaUnavailable
from duewheel.kafka.connect.clients import KafkaClients
from duewheel.kafka.ledger import producer_internals as internals
from duewheel.kafka.ledger.transactional_producer import TransactionalProducer
from duewheel.kafka.transaction_limits import TransactionLimits
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


def test_a_broker_without_topic_ids_is_refused(producer: KafkaProducer) -> None:
    producer.config["api_version"] = (2, 7)
    with pytest.raises(ConfigError, match=r"2\.7.*2\.8"):
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


def test_outcomes_tell_refused_from_fallen(producer: KafkaProducer) -> None:
    good, stamped, refused, fallen, waiting = (
        internals.WholeBatch(PARTITION, internals.ReadyRecords(body(b"x"), 0)) for _ in range(5)
    )
    error = InvalidRecordError("no key")
    good.complete(5, -1)
    stamped.complete(6, 1_800_000_000_000)
    refused.complete_exceptionally(error, lambda _: error)
    fallen.abort(error)
    outcomes = internals.await_outcomes(producer, [good, stamped, refused, fallen], Deadline(1))
    assert outcomes == [
        internals.Outcome(None, failed_itself=False),
        internals.Outcome(None, failed_itself=False, stamp_ms=1_800_000_000_000),
        internals.Outcome(error, failed_itself=True),
        internals.Outcome(error, failed_itself=False),
    ]
    with pytest.raises(DeadlineExceeded, match="orders-2"):
        internals.await_outcomes(producer, [good, waiting], Deadline(0))


def test_a_topic_without_the_right_to_write_has_caused_the_abort_of_all(
    producer: KafkaProducer,
) -> None:
    """No batch is sent: the coordinator refuses to add the topic to the transaction."""
    batches = unsent(GONE, SHRUNK, PARTITION)
    for batch in batches:
        batch.abort(TopicAuthorizationFailedError({"gone", "shrunk"}))
    outcomes = internals.await_outcomes(producer, batches, Deadline(1))
    assert [each.failed_itself for each in outcomes] == [True, True, False]


def test_a_batch_is_no_cause_because_its_topic_is_in_anothers_name(producer: KafkaProducer) -> None:
    refused, aborted = unsent(TopicPartition("orders.new", 0), PARTITION)
    error = TopicAuthorizationFailedError("orders.new")
    refused.complete_exceptionally(error, lambda _: error)
    aborted.abort(error)
    outcomes = internals.await_outcomes(producer, [refused, aborted], Deadline(1))
    assert [each.failed_itself for each in outcomes] == [True, False]


class Answers:
    """Stands in for the producer's metadata: each request gets the next of these answers, topics
    with their partitions, or an error; the last one is repeated.
    """

    def __init__(self, *answers: dict[str, set[int]] | None) -> None:
        self._answers = [*answers]
        self._known: dict[str, set[int]] = {}
        self.requests = 0
        self._topics: set[str] = set()
        self.set_topics = self._topics.update
        self.partitions_for_topic = lambda topic: self._known.get(topic)  # noqa: PLW0108 - replaced as a whole

    def request_update(self) -> Future:
        self.requests += 1
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if answer is None:
            return Future().failure(KafkaError("no broker"))
        self._known = answer
        return Future().success(self)


GONE, SHRUNK = TopicPartition("gone", 0), TopicPartition("shrunk", 1)
THERE: dict[str, set[int]] = {"orders": {0, 1, 2}, "gone": {0}, "shrunk": {0, 1}}
AFTER: dict[str, set[int]] = {"orders": {0, 1, 2}, "shrunk": {0}}


def unsent(*partitions: TopicPartition) -> list[internals.WholeBatch]:
    records = internals.ReadyRecords(body(b"x"), 0)
    return [internals.WholeBatch(partition, records) for partition in partitions]


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(internals, "_MISSING_AFTER_S", 0.01)


@pytest.mark.usefixtures("impatient")
def test_batches_for_partitions_that_have_gone_are_not_awaited(producer: KafkaProducer) -> None:
    producer._metadata = answers = Answers(THERE, None, AFTER)
    with pytest.raises(KafkaUnavailable, match=r"^gone-0, shrunk-1: not in Kafka"):
        internals.await_outcomes(producer, unsent(PARTITION, GONE, SHRUNK), Deadline(600))
    assert answers.requests == 3, "neither a request without answer nor old knowledge counts"


@pytest.mark.usefixtures("impatient")
def test_results_count_for_more_than_metadata(producer: KafkaProducer) -> None:
    """A batch that was taken is in the transaction, whatever became of its topic since."""
    producer._metadata = Answers(AFTER)
    batches = unsent(GONE, PARTITION)
    batches[0].complete(5, -1)
    with pytest.raises(DeadlineExceeded, match=r"^orders-2: no answer"):
        internals.await_outcomes(producer, batches, Deadline(0.2))


@pytest.mark.usefixtures("impatient")
def test_one_that_leaves_others_waiting_is_told_from_one_that_has_gone(
    producer: KafkaProducer,
) -> None:
    producer._metadata = Answers(THERE)
    batches = unsent(GONE, PARTITION)
    batches[1].complete(5, -1)
    with pytest.raises(internals.NoAnswer, match=r"^gone-0: no answer"):
        internals.await_outcomes(producer, batches, Deadline(600), quiet_s=0.05)


@pytest.mark.usefixtures("impatient")
def test_after_a_refusal_those_without_a_result_are_awaited_once(producer: KafkaProducer) -> None:
    producer._metadata = answers = Answers(THERE)
    batches = unsent(*[PARTITION] * 20)
    batches[0].complete_exceptionally(KafkaError("refused"), lambda _: KafkaError("refused"))
    outcomes = internals.await_outcomes(producer, batches, Deadline(600), quiet_s=0.05)
    assert [outcome.failed_itself for outcome in outcomes] == [True, *[False] * 19]
    assert answers.requests <= 6, "one for each 10 ms"


@pytest.mark.usefixtures("impatient")
def test_partitions_of_one_late_response_are_not_blamed(producer: KafkaProducer) -> None:
    """It comes between two looks at them, the result of the progress with it."""
    batches = unsent(GONE, PARTITION)
    answers = Answers(THERE)

    def respond() -> Future:
        if answers.requests >= 20:  # long after `quiet_s`
            for batch in reversed(batches):
                batch.complete(5, -1)
        return Answers.request_update(answers)

    producer._metadata = answers
    answers.request_update = respond  # type: ignore[method-assign]
    outcomes = internals.await_outcomes(producer, batches, Deadline(600), quiet_s=0.05)
    assert [outcome.error for outcome in outcomes] == [None, None]


def test_an_answer_from_before_the_announcement_does_not_count(
    producer: KafkaProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(internals, "_MISSING_AFTER_S", 0)
    producer._metadata = Answers({}, THERE)
    internals.load(producer, ["orders"], Deadline(600))


@pytest.mark.usefixtures("impatient")
def test_topics_are_loaded_until_metadata_goes_on_without_them(producer: KafkaProducer) -> None:
    producer._metadata = Answers(None, {}, THERE)
    internals.load(producer, ["orders", "gone"], Deadline(600))
    producer._metadata = Answers(AFTER)
    with pytest.raises(KafkaUnavailable, match=r"^gone: not in Kafka"):
        internals.load(producer, ["orders", "gone"], Deadline(600))
    producer._metadata = Answers(None)
    with pytest.raises(DeadlineExceeded, match="look up gone, orders"):
        internals.load(producer, ["orders", "gone"], Deadline(0.1))


def test_kafka_is_asked_once_whether_the_transaction_before_has_ended() -> None:
    """An answer may take seconds, in which a stop is not noticed."""
    asked = list[str]()

    def is_ending() -> bool:
        asked.append("")
        return False

    fenced = TransactionalProducer(KafkaClients({}), "t", TransactionLimits(), None, is_ending)
    not_begun = KafkaProducer(
        bootstrap_servers="127.0.0.1:1", api_version=(4, 3), transactional_id="t"
    )
    later, over = (fenced._begun_check(not_begun, Deadline(s)) for s in (3600, 0))
    for _ in range(3):
        later()
        assert asked == []
    for _ in range(3):
        over()
        assert asked == [""]
    assert internals.stop(not_begun, 30)
