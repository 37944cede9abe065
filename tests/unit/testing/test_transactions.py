"""Transactions in the test kit: what a program sees of them, and that of kafka-python's errors."""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kafka.errors import (
    IllegalStateError,
    KafkaError,
    KafkaTimeoutError,
    MessageSizeTooLargeError,
    ProducerFencedError,
)
from kafka.structs import OffsetAndMetadata, TopicPartition
from tests.harness.killed import Killed

from duewheel.client import Retry, RetryEnd, RetryLater, RetryPolicy, transaction
from duewheel.errors import ConfigError
from duewheel.testing.local_consumer import LocalConsumer
from duewheel.testing.memory_transactions import MemoryTransactionalProducer
from duewheel.testing.service import LocalService

IN_A_MINUTE = [("TIMER_DELAY_SEC", b"60"), ("REAL_TOPIC", b"orders")]


@pytest.fixture
def service() -> Iterator[LocalService]:
    with LocalService.started() as started:
        yield started


@pytest.fixture
def producer(service: LocalService) -> MemoryTransactionalProducer:
    return begun(service)


def begun(service: LocalService) -> MemoryTransactionalProducer:
    producer = service.transactional_producer("billing-1")
    producer.init_transactions()
    return producer


def values(service: LocalService, topic: str) -> list[bytes | None]:
    return [message.value for message in service.records(topic)]


# ---- records ------------------------------------------------------------------------------------


@pytest.mark.parametrize("commit", [True, False])
def test_a_transaction_is_seen_whole_or_never(
    service: LocalService, producer: MemoryTransactionalProducer, commit: bool
) -> None:
    producer.begin_transaction()
    offsets = [producer.send("bills", value, partition=1).get().offset for value in (b"a", b"b")]
    producer.send("timers", b"due", b"42", IN_A_MINUTE)
    assert offsets == [0, 1]
    service.advance("50s")
    assert values(service, "bills") == values(service, "orders") == []
    (producer.commit_transaction if commit else producer.abort_transaction)()
    service.advance("2m")
    assert values(service, "bills") == ([b"a", b"b"] if commit else [])
    assert values(service, "orders") == ([b"due"] if commit else [])
    service.producer().send("bills", b"c", partition=1)
    assert service.records("bills")[-1].offset == 2


def test_timers_behind_an_open_transaction_wait_for_its_end(
    service: LocalService, producer: MemoryTransactionalProducer
) -> None:
    """As in Kafka: readers of committed records stop at the first open one of a partition."""
    producer.begin_transaction()
    producer.send("timers", b"first", b"42", IN_A_MINUTE)
    other = service.producer()
    other.schedule("orders", b"behind", key=b"42", delay="30s")
    service.advance("50s")
    assert service.pending() == []
    producer.abort_transaction()
    service.advance("1s")
    assert values(service, "orders") == [b"behind"]
    handle = other.schedule("orders", b"later", key=b"42", delay="1h").result(timeout=10).handle
    assert other.cancel(handle).result(timeout=10).answer(10) == "cancelled"


@pytest.mark.parametrize("commit", [True, False])
def test_what_lies_behind_an_open_transaction_is_seen_after_it_and_once(
    service: LocalService, producer: MemoryTransactionalProducer, commit: bool
) -> None:
    """Or a group whose offset is behind both would never get the first one."""
    other, consumer = service.transactional_producer("other"), service.consumer("bills", group="g")
    other.init_transactions()
    seen = list[bytes]()

    @consumer
    def handle(record: Any) -> None:
        seen.append(record.value)
        other.begin_transaction()
        place = TopicPartition(record.topic, record.partition)
        offsets = {place: OffsetAndMetadata(record.offset + 1, "", -1)}
        other.send_offsets_to_transaction(offsets, consumer.group_metadata())
        other.commit_transaction()

    producer.begin_transaction()
    producer.send("bills", b"first", b"42")
    service.producer().send("bills", b"behind", key=b"42")
    service.producer().schedule("bills", b"timer", key=b"42", delay="10s")
    service.advance("20s")
    assert seen == values(service, "bills") == []
    (producer.commit_transaction if commit else producer.abort_transaction)()
    service.advance("1s")
    assert seen == values(service, "bills") == [b"first"] * commit + [b"behind", b"timer"]


def test_a_transaction_that_stays_open_is_aborted_after_a_minute(
    service: LocalService, producer: MemoryTransactionalProducer
) -> None:
    """Its process has ended, and nobody begins again."""
    producer.begin_transaction()
    service.advance("1h")  # counts from what is sent first, as in Kafka
    producer.send("timers", b"never", b"42", IN_A_MINUTE)
    service.producer().schedule("orders", b"behind", key=b"42", delay="30s")
    service.advance("59s 999ms")
    assert values(service, "orders") == []
    service.advance("1s")
    (delivered,) = service.delivered("orders")
    assert delivered.value == b"behind" and delivered.due_ms is not None
    assert 30_000 <= delivered.delivered_ms - delivered.due_ms <= 30_200
    with pytest.raises(ProducerFencedError):
        producer.commit_transaction()
    begun(service).begin_transaction()
    service.advance("40d")
    assert values(service, "orders") == [b"behind"]


def test_an_aborted_cancel_cancels_nothing_and_a_committed_one_has_its_reply(
    service: LocalService, producer: MemoryTransactionalProducer
) -> None:
    for number in range(2):
        timer_id = b"order %d" % number
        service.producer().schedule("orders", timer_id, key=b"42", delay="1h", id=timer_id.decode())
        producer.begin_transaction()
        producer.send("timers", b"", b"42", [("TIMER_DEL_UNIQKEY", timer_id)])
        (producer.commit_transaction if number else producer.abort_transaction)()
    assert [timer.value for timer in service.pending()] == [b"order 0"]
    (reply,) = service.records("timers.replies")
    assert reply.header("TIMER_ANSWER") == b"cancelled"


# ---- what kafka-python refuses ------------------------------------------------------------------


def test_a_producer_that_was_replaced_is_fenced_and_its_transaction_aborted(
    service: LocalService, producer: MemoryTransactionalProducer
) -> None:
    producer.begin_transaction()
    producer.send("bills", b"lost")
    second = begun(service)
    for refused in (producer.commit_transaction, producer.abort_transaction):
        with pytest.raises(ProducerFencedError):
            refused()
    second.begin_transaction()
    second.send("bills", b"kept")
    second.commit_transaction()
    assert values(service, "bills") == [b"kept"]


@pytest.mark.parametrize(
    "misuse",
    [
        lambda one: one.send("bills", b""),
        lambda one: one.commit_transaction(),
        lambda one: one.send_offsets_to_transaction({}, "billing"),
        lambda one: (one.begin_transaction(), one.begin_transaction()),
        lambda one: one.init_transactions(),
        lambda one: (one.begin_transaction(), one.close(), one.send("bills", b"")),
        lambda one: (one.begin_transaction(), one.send("bills", b"x" * (1 << 20))),
    ],
    ids=["send", "commit", "offsets", "begin twice", "init twice", "closed", "too large"],
)
def test_misuse_is_refused(
    producer: MemoryTransactionalProducer, misuse: Callable[[Any], object]
) -> None:
    with pytest.raises(KafkaError):
        misuse(producer)


def test_a_transaction_without_init_is_refused(service: LocalService) -> None:
    with pytest.raises(IllegalStateError, match="init_transactions"):
        service.transactional_producer("billing-1").begin_transaction()


def test_a_consumer_of_transactions_needs_a_group(service: LocalService) -> None:
    with pytest.raises(ConfigError, match="has no group"):
        service.consumer("orders").group_metadata()


def send_in_transaction(producer: MemoryTransactionalProducer, *records: tuple[str, bytes]) -> None:
    with transaction(producer):
        for topic, value in records:
            producer.send(topic, value)


# ---- records that expire ------------------------------------------------------------------------


def test_a_record_that_expires_fails_its_future_and_not_the_transaction(
    service: LocalService, producer: MemoryTransactionalProducer
) -> None:
    """As kafka-python: `transaction` makes an error of it."""
    with service.without_leader("bills"):
        producer.begin_transaction()
        with pytest.raises(KafkaTimeoutError):
            producer.send("bills", b"lost").get()
        producer.send("orders", b"kept")
        producer.commit_transaction()
        with pytest.raises(KafkaTimeoutError):
            send_in_transaction(producer, ("bills", b"lost"), ("orders", b"aborted"))
        with pytest.raises(KafkaTimeoutError):
            service.producer().send("bills", b"lost").get()
    send_in_transaction(producer, ("bills", b"written"))
    assert values(service, "bills") == [b"written"]
    assert values(service, "orders") == [b"kept"]


@pytest.mark.parametrize("topic", ["timers", "failed", "bills"])
def test_no_message_is_skipped_if_its_retry_dead_letter_or_output_expires(
    service: LocalService, topic: str
) -> None:
    attempts = 1 if topic == "failed" else 2
    consumer = service.consumer("orders", group="billing")
    error = None if topic == "bills" else ValueError("the bank does not answer")

    def start() -> None:
        producer = begun(service)
        retry_later = RetryLater(
            *(producer, "timers"),
            dead_letter_topic="failed",
            policy=RetryPolicy(attempts=attempts),
        )

        @consumer
        @retry_later.in_transactions(consumer)
        def handle(record: Any) -> None:
            producer.send("bills", record.value)
            if error is not None:
                raise error

    start()
    service.producer().send("orders", b"first", key=b"42")
    service.producer().send("orders", b"second", key=b"42")
    with service.without_leader(topic):
        with pytest.raises(KafkaTimeoutError):
            service.advance("1s")
        with pytest.raises(IllegalStateError, match="begin again at the committed offsets"):
            service.advance("1s")
    start()
    service.advance("1d")
    ends = values(service, "bills" if topic == "bills" else "failed")
    assert sorted(ends, key=str) == [b"first", b"second"]


# ---- consumers ----------------------------------------------------------------------------------


def bill(
    service: LocalService, charge: Callable[[bytes], None]
) -> tuple[MemoryTransactionalProducer, LocalConsumer]:
    """A program's process: it bills each order in a transaction of its own."""
    producer, consumer = begun(service), service.consumer("orders", group="billing")
    consumer(billing(producer, consumer, charge))
    return producer, consumer


def billing(
    producer: MemoryTransactionalProducer, consumer: LocalConsumer, charge: Callable[[bytes], None]
) -> Callable[[Any], Any]:
    policy = RetryPolicy(attempts=3, first="10s")
    retry_later = RetryLater(producer, "timers", dead_letter_topic="failed", policy=policy)

    @retry_later.in_transactions(consumer)
    def handle(record: Any) -> None:
        producer.send("bills", record.value, record.key)
        charge(record.value)

    return handle


def test_a_failed_attempt_leaves_its_retry_alone(service: LocalService) -> None:
    attempts = list[bytes]()

    def charge(value: bytes) -> None:
        attempts.append(value)
        if attempts.count(value) < 3:
            raise ConnectionError("the bank does not answer")

    bill(service, charge)
    for value in (b"a", b"b"):
        service.producer().send("orders", value, key=value)
    service.advance("1h")
    assert sorted(values(service, "bills"), key=str) == [b"a", b"b"]
    assert len(attempts) == 6 and values(service, "failed") == []


def test_the_last_failure_is_a_dead_letter(service: LocalService) -> None:
    def charge(value: bytes) -> None:
        raise ConnectionError("the bank does not answer")

    bill(service, charge)
    service.producer().send("orders", b"a", key=b"a")
    service.advance("1h")
    assert values(service, "bills") == []
    (letter,) = service.records("failed")
    assert (letter.value, letter.header("RETRY_ATTEMPT")) == (b"a", b"3")


def test_a_process_that_is_killed_begins_again_at_its_group_s_offsets(
    service: LocalService,
) -> None:
    charged = list[bytes]()

    def charge(value: bytes) -> None:
        charged.append(value)
        if charged.count(b"b") == 1 and value == b"b":
            raise Killed

    _, consumer = bill(service, charge)
    for value in (b"a", b"b", b"c"):
        service.producer().send("orders", value, key=b"42")
    with pytest.raises(Killed):
        service.advance("1s")
    consumer.close()
    assert values(service, "bills") == [b"a"]
    bill(service, charge)
    service.advance("1s")
    assert charged == [b"a", b"b", b"b", b"c"]
    assert values(service, "bills") == [b"a", b"b", b"c"]


@pytest.mark.parametrize("attempts", [1, 3])
@pytest.mark.parametrize("in_transactions", [True, False])
def test_a_message_too_large_for_a_retry_is_a_dead_letter_without_its_content(
    service: LocalService, attempts: int, in_transactions: bool
) -> None:
    """Otherwise the same message would come again for ever."""
    consumer = service.consumer("orders", group="billing")
    producer: Any = begun(service) if in_transactions else service.producer()
    retry_later = RetryLater(
        *(producer, "timers"), dead_letter_topic="failed", policy=RetryPolicy(attempts=attempts)
    )
    decorate = retry_later.in_transactions(consumer) if in_transactions else retry_later
    outcomes = list[Any]()

    @decorate
    def handle(record: Any) -> None:
        if len(record.value) > 1:
            raise ValueError("the order is too long")

    consumer(lambda record: outcomes.append(handle(record)))
    for value in (bytes((1 << 20) - 200), b"1"):
        service.producer().send("orders", value, key=b"42")
    service.advance("1d")
    assert outcomes == [Retry(1, None, RetryEnd.TOO_LARGE), None]
    (letter,) = service.records("failed")
    assert (letter.key, letter.value) == (None, b"")
    (large, _) = service.records("orders")
    expected = {
        "RETRY_ATTEMPT": b"1",
        "RETRY_FIRST": f"orders-{large.partition}@{large.offset}".encode(),
        "RETRY_REASON": b"too_large",
        "RETRY_ERROR_TEXT": b"the order is too long",
    }
    assert {name: letter.header(name) for name in expected} == expected


def test_a_transaction_of_ones_own_ends_with_a_dead_letter_without_content(
    service: LocalService, producer: MemoryTransactionalProducer
) -> None:
    retry_later = RetryLater(producer, "timers", dead_letter_topic="failed")
    service.producer().send("orders", bytes((1 << 20) - 200))
    (large,) = service.records("orders")

    def settle(write: Callable[..., Retry], **options: Any) -> Retry:
        with transaction(producer):
            return write(large, ValueError("the order is too long"), **options)

    for write in (retry_later.send, retry_later.dead_letter):
        with pytest.raises(MessageSizeTooLargeError):
            settle(write)
    assert settle(retry_later.dead_letter, content=False).end is RetryEnd.TOO_LARGE
    (letter,) = service.records("failed")
    assert (letter.value, letter.header("RETRY_FIRST")) == (b"", b"orders-0@0")


@pytest.mark.parametrize("ends", [KeyboardInterrupt, SystemExit, CancelledError])
def test_no_message_is_skipped_if_the_program_goes_on_after_what_should_end_it(
    service: LocalService, ends: type[BaseException]
) -> None:
    """A loop that survives a Ctrl-C would commit the offset after the next message."""
    handled = list[bytes]()

    def charge(value: bytes) -> None:
        handled.append(value)
        if handled == [b"a"]:
            raise ends

    for value in (b"a", b"b"):
        service.producer().send("orders", value, key=b"42")
    first, second = service.records("orders")
    handle = billing(begun(service), service.consumer("orders", group="billing"), charge)
    with pytest.raises(ends):
        handle(first)
    with pytest.raises(IllegalStateError, match="begin again at the committed offsets"):
        handle(second)
    bill(service, charge)
    service.advance("1s")
    assert handled == [b"a", b"a", b"b"]
    assert values(service, "bills") == [b"a", b"b"]


def test_a_transaction_over_many_messages_is_repeated_as_a_whole(service: LocalService) -> None:
    producer, consumer = begun(service), service.consumer("orders", group="billing")
    seen = list[bytes]()

    @consumer
    def handle(record: Any) -> None:
        seen.append(record.value)
        if record.offset == 0:
            producer.begin_transaction()
        producer.send("bills", record.value)
        if len(seen) == 2:
            producer.abort_transaction()
            raise ConnectionError("the bank does not answer")
        if record.offset == 2:
            place = TopicPartition(record.topic, record.partition)
            offsets = {place: OffsetAndMetadata(record.offset + 1, "", -1)}
            producer.send_offsets_to_transaction(offsets, consumer.group_metadata())
            producer.commit_transaction()

    for value in (b"a", b"b", b"c"):
        service.producer().send("orders", value, key=b"42")
    with pytest.raises(ConnectionError):
        service.advance("1s")
    service.advance("1s")
    assert seen == [b"a", b"b", b"a", b"b", b"c"]
    assert values(service, "bills") == [b"a", b"b", b"c"]
