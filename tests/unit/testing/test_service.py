"""The service in a test: what it delivers, when, and how the clients are connected to it.

Also of client/futures.py, client/message_reader.py, testing/local_shard.py,
testing/memory_cluster.py, testing/memory_publisher.py, testing/received.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from kafka.errors import IllegalStateError, MessageSizeTooLargeError

from duewheel.client import AsyncDelayProducer, DelayProducer, RetryLater, RetryPolicy
from duewheel.clock import SystemClock
from duewheel.errors import ConfigError, InvalidTimer
from duewheel.schemas.header_names import NAME_OF, Request
from duewheel.testing.service import LocalService
from duewheel.testing.service_start import SLOT_MS, START

DAY_MS = 86_400_000


@pytest.fixture
def service() -> Iterator[LocalService]:
    with LocalService.started() as started:
        yield started


def values(service: LocalService, topic: str) -> list[bytes | None]:
    return [message.value for message in service.delivered(topic)]


# ---- deliveries ---------------------------------------------------------------------------------


def test_a_timer_arrives_at_its_instant_with_its_message(service: LocalService) -> None:
    headers = [("trace", b"\xff\0"), ("trace", b"2")]
    future = service.producer().schedule(
        "orders", b"pay", key=b"42", headers=headers, delay="15m", id="order 42"
    )
    timer = future.result(timeout=10)
    assert timer.due_ms == service.now_ms() + 900_000
    service.advance("14m 59s")
    assert service.delivered("orders") == []
    service.advance("1s")
    (message,) = service.delivered("orders")
    assert (message.key, message.value, message.id) == (b"42", b"pay", "order 42")
    assert message.headers[:2] == tuple(headers)
    assert message.delivered_ms == message.due_ms == timer.due_ms
    assert service.pending() == []


def test_no_timer_is_early_and_none_later_than_a_slot(service: LocalService) -> None:
    producer, begun_ms = service.producer(), service.now_ms()
    for delay_ms in (0, 1, 99, 100, 101, 12_345, DAY_MS + 1):
        producer.schedule("orders", b"%d" % delay_ms, delay=timedelta(milliseconds=delay_ms))
    service.advance("2d")
    late_ms = {
        message.value: message.delivered_ms - begun_ms - int(message.value or b"")
        for message in service.delivered("orders")
    }
    assert len(late_ms) == 7
    assert all(0 <= late <= SLOT_MS for late in late_ms.values()), late_ms


def test_forty_days_roll_and_keep_their_instant(service: LocalService) -> None:
    timer = service.producer().schedule("orders", b"late", delay="40d").result(timeout=10)
    service.advance_to(timer.due_ms - 1)
    assert service.delivered("orders") == []
    assert [each.due_ms for each in service.pending()] == [timer.due_ms]
    service.advance("1ms")
    (message,) = service.delivered("orders")
    assert message.delivered_ms == timer.due_ms
    assert int(message.header("TIMER_ROLL_TIMES") or 0) > 100


def test_deliveries_leave_in_the_order_of_their_due_times(service: LocalService) -> None:
    producer = service.producer()
    for minutes in (7, 3, 9, 1, 5):
        producer.schedule("orders", b"%d" % minutes, delay=timedelta(minutes=minutes))
    service.advance("1h")
    assert values(service, "orders") == [b"1", b"3", b"5", b"7", b"9"]


def test_levels_windows_and_partitions_are_the_service_s(service: LocalService) -> None:
    producer = service.producer()
    at_ms = service.now_ms()
    producer.schedule("a", b"", level=3, partition=2)
    producer.schedule("b", b"", key=b"42", delay="1h", window="1h")
    service.advance("3h")
    (by_level,), (in_window,) = service.delivered("a"), service.delivered("b")
    assert (by_level.delivered_ms - at_ms, by_level.partition) == (10_000, 2)
    assert at_ms + 3_600_000 < in_window.delivered_ms < at_ms + 7_200_000


def test_a_message_that_cannot_be_accepted_is_a_dead_letter() -> None:
    settings = {"timer": {"topics": ["timers"], "targets": ["orders"]}}
    with LocalService.started(settings) as service:
        producer = service.producer()
        producer.schedule("bills", b"closed", delay="1h")
        header = (NAME_OF[Request.DELAY_MS], b"soon")
        producer.send("orders", b"unreadable", headers=[header])
        service.advance("1s")
        letters = {letter.value: letter.error_code for letter in service.dead_letters()}
        assert letters == {b"closed": "target_not_allowed", b"unreadable": "bad_header"}
        assert all(letter.error for letter in service.dead_letters())


def test_a_message_that_is_too_large_for_its_producer_is_refused(service: LocalService) -> None:
    producer = service.producer(max_request_size=1_000)
    with pytest.raises(MessageSizeTooLargeError):
        producer.schedule("orders", b"x" * 1_000, delay="1h")
    producer.schedule("orders", b"x" * 500, delay="1h")
    assert len(service.pending()) == 1


def test_a_timer_without_key_and_value_is_refused(service: LocalService) -> None:
    """kafka-python cannot write it; with a serializer that makes a value of None it can."""
    producer = service.producer()
    with pytest.raises(InvalidTimer, match="give a value, or a key"):
        producer.schedule("orders", None, delay="1s")
    with pytest.raises(InvalidTimer, match="give a value, or a key"):
        producer.reschedule("7", topic="orders", value=None, partition=1, delay="1s")
    service.producer(value_serializer=lambda _: b"null").schedule("orders", None, delay="1s")
    assert len(service.pending()) == 1


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ({"delay": "1h", "partition": 2**31}, "not a whole number from 0 to 2147483647"),
        ({"delay": "9h", "window": "40d"}, "at the latest, the longest delay"),
        ({"deliver_at": START + timedelta(days=40), "window": "1s"}, "the longest delay"),
        ({"level": 1, "window": "40d"}, "the longest delay"),
        ({"delay": "1h", "id": 7}, "the id 7 is no text"),
        ({"delay": "1h", "id": b"7"}, "the id b'7' is no text"),
        ({"delay": "1h", "id": "\ud800"}, "is no text"),
        ({"every": "1h", "id": 7}, "needs an id"),
        ({"every": "1h", "id": "\ud800"}, "is no text"),
    ],
)
def test_what_ingest_would_refuse_is_not_written(
    service: LocalService, asked: dict[str, Any], reason: str
) -> None:
    with pytest.raises(InvalidTimer, match=reason):
        service.producer().schedule("orders", b"v", **asked)
    new = {"topic": "orders", "value": b"v", "key": b"42"} | asked
    with pytest.raises(InvalidTimer, match=reason):
        service.producer().reschedule(new.pop("id", "7"), **new)
    service.advance("1s")
    assert (service.pending(), service.dead_letters()) == ([], [])


@pytest.mark.parametrize("timer", [7, b"7", "\ud800", None])
def test_a_cancel_of_what_is_no_id_is_refused(service: LocalService, timer: Any) -> None:
    with pytest.raises(InvalidTimer, match="is no text"):
        service.producer().cancel(timer, key=b"42")


def test_a_window_may_end_at_the_longest_delay(service: LocalService) -> None:
    for number in (0, 2**31 - 1):
        service.producer().schedule("orders", b"v", delay="9h", window="39d15h", partition=number)
    service.advance("1s")
    assert len(service.pending()) == 2 and service.dead_letters() == []


@pytest.mark.parametrize("due", [{"delay": "1m"}, {"deliver_at": START + timedelta(minutes=1)}])
def test_a_timer_that_could_only_expire_is_refused(
    service: LocalService, due: dict[str, Any]
) -> None:
    expires_at = START + timedelta(seconds=59)
    both = r"expires at 2027-\S+:59\.000Z, before it is due at 2027-\S+:00\.000Z"
    with pytest.raises(InvalidTimer, match=both):
        service.producer().schedule("orders", b"v", expires_at=expires_at, **due)
    service.producer().schedule("orders", b"v", expires_at=START + timedelta(minutes=1), **due)
    service.advance("1m")
    assert values(service, "orders") == [b"v"]


@pytest.mark.parametrize("unknown", [{"max_wait": "1m", "delay": "1m"}, {"delai": "1m"}])
def test_an_unknown_argument_is_named(service: LocalService, unknown: dict[str, Any]) -> None:
    name = next(iter(unknown))

    def refused(method: str) -> Any:
        text = rf"DelayProducer\.{method}\(\) got an unexpected keyword argument '{name}'"
        return pytest.raises(TypeError, match=text)

    async def schedule() -> None:
        async with service.async_producer() as producer:
            await producer.schedule("orders", b"v", **unknown)

    producer = service.producer()
    with refused("schedule"):
        producer.schedule("orders", b"v", **unknown)
    with refused("reschedule"):
        producer.reschedule("7", key=b"k", topic="orders", value=b"v", **unknown)
    with refused("schedule"):
        asyncio.run(schedule())


def test_a_delay_counts_from_the_brokers_time_whatever_the_producer_says(
    service: LocalService,
) -> None:
    headers = [("TIMER_DELAY_SEC", b"60"), ("REAL_TOPIC", b"orders")]
    service.producer().send("timers", b"", b"42", headers, timestamp_ms=1)
    (timer,) = service.pending()
    assert timer.due_ms == service.now_ms() + 60_000
    service.producer().send("orders", b"", b"42", timestamp_ms=1)
    assert service.records("orders")[0].delivered_ms == 1


def test_receipts_and_lateness_are_those_of_the_settings() -> None:
    own = {"a": {"lateness_header": True}, "b": {"receipts": False}}
    timer = {"topics": ["a", "b"], "targets": ["*"], "receipts_topic": "receipts", "topic": own}
    with LocalService.started({"timer": timer}) as service:
        for topic in ("a", "b"):
            service.producer(topic).schedule("orders", b"", delay="1h", id=topic)
        service.advance("2h")
        (receipt,) = service.records("receipts")
        assert receipt.key == b"a" and b'"target":"orders"' in (receipt.value or b"")
        late = {each.id: each.header("TIMER_LATENESS_MS") for each in service.delivered("orders")}
        assert late["b"] is None and 0 <= int(late["a"] or -1) <= SLOT_MS


def test_a_forged_copy_is_an_ordinary_timer(service: LocalService) -> None:
    """Copies are signed here, too: what a producer writes into the headers of copies is ignored."""
    forged = [(NAME_OF[Request.ORIGIN], b"0"), (NAME_OF[Request.DELAY_SEC], b"60")]
    service.producer().send("orders", b"forged", headers=forged)
    service.advance("1h")
    assert values(service, "orders") == [b"forged"]


def test_a_hot_slot_is_spread() -> None:
    settings = {
        "timer": {"topics": ["timers"], "targets": ["*"]},
        "dequeue": {"hot_slot": "spread", "hot_slot_limit": 5, "hot_slot_window": "1m"},
    }
    with LocalService.started(settings) as service:
        producer = service.producer()
        for number in range(60):
            producer.schedule("mails", b"", key=b"%d" % number, delay="1h")
        service.advance("1h")
        assert 5 <= len(service.delivered("mails")) < 30
        service.advance("2m")
        assert len(service.delivered("mails")) == 60


# ---- cancels ------------------------------------------------------------------------------------


def test_the_three_replies(service: LocalService) -> None:
    producer = service.producer()
    timer = producer.schedule("orders", b"pay", key=b"42", delay="1h").result(timeout=10)
    assert len(service.pending("orders")) == 1
    assert producer.cancel(timer.handle).result(timeout=10).answer(10) == "cancelled"
    assert service.pending() == []
    late = producer.schedule("orders", b"late", key=b"42", delay="1m", id="late").result(timeout=10)
    service.advance("2h")
    assert values(service, "orders") == [b"late"]
    assert producer.cancel(late.handle).result(timeout=10).answer(10) == "already_delivered"
    assert producer.cancel("nobody's", key=b"42").result(timeout=10).answer(10) == "unknown"


def test_an_id_reaches_the_timers_of_its_key_s_partition_alone(service: LocalService) -> None:
    producer = service.producer()
    producer.schedule("orders", b"pay", key=b"42", delay="1h", id="42").result(timeout=10)
    answers = [
        producer.cancel("42", partition=number).result(timeout=10).answer(10) for number in range(4)
    ]
    assert sorted(answers) == ["cancelled", "unknown", "unknown", "unknown"]


def test_a_cancel_takes_a_slot_and_has_its_reply_at_once(service: LocalService) -> None:
    producer, begun_ms = service.producer(), service.now_ms()
    timer = producer.schedule("orders", b"pay", delay="1h").result(timeout=10)
    cancel = producer.cancel(timer.handle).result(timeout=10)
    assert service.now_ms() == begun_ms + SLOT_MS
    assert cancel.answer(10) == "cancelled"
    assert service.now_ms() == begun_ms + SLOT_MS


def test_a_rolled_timer_is_cancelled(service: LocalService) -> None:
    producer = service.producer()
    timer = producer.schedule("orders", b"pay", delay="30d").result(timeout=10)
    service.advance("20d")
    assert producer.cancel(timer.handle).result(timeout=10).answer(10) == "cancelled"
    service.advance("20d")
    assert service.delivered("orders") == []


@pytest.mark.parametrize(
    ("mode", "due"),
    [
        ("etf1", "scheduler-epoch"),
        ("karafka", "schedule_target_epoch"),
        ("eifinger", "kafka-scheduler-when"),
    ],
)
def test_a_reschedule_that_would_keep_the_old_due_time_is_refused(mode: str, due: str) -> None:
    """In a topic of that mode the service's own header counts before the native one."""
    topic = {"headers": mode}
    settings = {"timer": {"topics": ["timers"], "targets": ["*"], "topic": {"timers": topic}}}
    with LocalService.started(settings) as service:
        producer = service.producer()
        timer = producer.schedule("orders", b"", id="a", delay="1h", headers=[(due, b"1")])
        with pytest.raises(InvalidTimer, match=f"{due}.*give the message again"):
            producer.reschedule(timer.result(timeout=10).handle, delay="2h")


def test_a_reschedule_reads_its_message_again(service: LocalService) -> None:
    producer = service.producer()
    timer = producer.schedule("orders", b"pay", key=b"42", delay="1h").result(timeout=10)
    later = producer.reschedule(timer.handle, delay="2h").result(timeout=10)
    assert later.answer(10) == "cancelled"
    service.advance("1h 30m")
    assert service.delivered("orders") == []
    service.advance("1h")
    (message,) = service.delivered("orders")
    assert (message.key, message.value, message.delivered_ms) == (b"42", b"pay", later.due_ms)


def test_without_a_reply_topic_a_cancel_takes_no_time() -> None:
    with LocalService.started({"timer": {"topics": ["timers"], "targets": ["*"]}}) as service:
        producer, begun_ms = service.producer(), service.now_ms()
        timer = producer.schedule("orders", b"pay", delay="1h").result(timeout=10)
        producer.cancel(timer.handle).result(timeout=10)
        assert service.now_ms() == begun_ms
        service.advance("2h")
        assert service.delivered("orders") == []


# ---- consumers ----------------------------------------------------------------------------------


def test_a_consumer_sees_the_instant_of_each_record(service: LocalService) -> None:
    producer, seen = service.producer(), list[datetime]()

    @service.consumer("ticks")
    def again(record: Any) -> None:
        seen.append(service.now())
        producer.schedule("ticks", record.value, delay="1d")

    producer.send("ticks", b"begin")
    service.advance("3d")
    assert seen == [START + timedelta(days=day) for day in range(4)]


def test_a_consumer_that_raises_gets_its_record_again(service: LocalService) -> None:
    producer, calls = service.producer(), list[bytes]()

    @service.consumer("orders")
    def once_broken(record: Any) -> None:
        calls.append(record.value)
        if len(calls) == 1:
            raise OSError("down")

    for value in (b"a", b"b"):
        producer.schedule("orders", value, key=b"42", delay="1m")
    with pytest.raises(OSError, match="down"):
        service.advance("1h")
    assert service.now() == START + timedelta(minutes=1)
    service.advance("1h")
    assert calls == [b"a", b"a", b"b"]


def test_a_consumer_that_writes_for_itself_without_end_is_stopped(service: LocalService) -> None:
    producer = service.producer()

    @service.consumer("orders")
    def again(record: Any) -> None:
        producer.send("orders", record.value)

    producer.send("orders", b"oops")
    with pytest.raises(RuntimeError, match="written for consumers"):
        service.advance("1s")


def test_a_consumer_may_cancel_and_await_the_reply(service: LocalService) -> None:
    producer = service.producer()
    timer = producer.schedule("orders", b"pay", key=b"42", delay="2h").result(timeout=10)
    answers = []

    @service.consumer("paid")
    def paid(record: Any) -> None:
        answers.append(producer.cancel(timer.handle).result(timeout=10).answer(10))

    producer.schedule("paid", b"", delay="1h")
    service.advance("1d")
    assert answers == ["cancelled"]
    assert service.delivered("orders") == []


def test_retries_loop_until_the_dead_letter(service: LocalService) -> None:
    producer, attempts = service.producer(), list[datetime]()
    policy = RetryPolicy(attempts=4, first="1h", longest="1d")
    retry_later = RetryLater(producer, "timers", dead_letter_topic="failed", policy=policy)

    @service.consumer("orders")
    @retry_later
    def fail(record: Any) -> None:
        attempts.append(service.now())
        raise ValueError(f"attempt {len(attempts)}")

    producer.send("orders", b"oops", key=b"42", headers=[("trace", b"1")])
    service.advance("7d")
    assert len(attempts) == 4
    assert attempts[0] == START
    assert attempts == sorted(attempts)
    (letter,) = service.records("failed")
    assert (letter.value, letter.key, letter.header("trace")) == (b"oops", b"42", b"1")
    assert letter.header("RETRY_REASON") == b"attempts"


def test_a_deadline_counts_on_the_clock_of_the_test(service: LocalService) -> None:
    producer = service.producer()
    policy = RetryPolicy(attempts=100, first="1h", longest="1h", deadline="2h")
    retry_later = RetryLater(producer, "timers", dead_letter_topic="failed", policy=policy)

    @service.consumer("orders")
    @retry_later
    def fail(record: Any) -> None:
        raise ValueError

    producer.send("orders", b"oops")
    service.advance("7d")
    (letter,) = service.records("failed")
    assert letter.header("RETRY_REASON") == b"deadline"
    assert START.timestamp() * 1000 < letter.delivered_ms <= START.timestamp() * 1000 + 7_300_000


# ---- clients and clocks -------------------------------------------------------------------------


def test_the_asyncio_client_is_connected(service: LocalService) -> None:
    async def program() -> list[str]:
        async with AsyncDelayProducer("timers", reply_topic="timers.replies") as producer:
            sent = [producer.schedule("orders", b"%d" % n, delay="1h") for n in range(20)]
            timers = await asyncio.gather(*sent)
            cancels = [await producer.cancel(timer.handle) for timer in timers[:2]]
            return [await cancel.answer_async(10) for cancel in cancels]

    assert asyncio.run(program()) == ["cancelled", "cancelled"]
    service.advance("1h")
    assert len(service.delivered("orders")) == 18


def test_a_consumer_may_use_the_asyncio_client(service: LocalService) -> None:
    @service.consumer("orders")
    def handle(record: Any) -> None:
        async def program() -> None:
            async with service.async_producer() as producer:
                await producer.schedule("bills", record.value, delay="1h")

        asyncio.run(program())

    service.producer().schedule("orders", b"42", delay="1h")
    service.advance("3h")
    assert values(service, "bills") == [b"42"]


def test_a_producer_of_the_program_s_own_is_connected(service: LocalService) -> None:
    with DelayProducer("timers", bootstrap_servers="kafka:9092") as producer:
        at = service.now() + timedelta(hours=1)
        producer.schedule("orders", b"near", deliver_at=at).result(timeout=10)
        with pytest.raises(InvalidTimer, match="longest delay"):
            producer.schedule("orders", b"too far", deliver_at=at + timedelta(days=40))
    service.advance("1h")
    assert values(service, "orders") == [b"near"]


def test_a_timer_topic_that_the_settings_lack_is_refused(service: LocalService) -> None:
    with pytest.raises(ConfigError, match="none of the timer topics"):
        service.producer("orders.delayd")
    with (
        DelayProducer("orders.delayd", bootstrap_servers="kafka:9092") as producer,
        pytest.raises(ConfigError, match="none of the timer topics"),
    ):
        producer.schedule("orders", b"", delay="1h")


def test_after_its_end_clients_raise_and_the_clock_is_the_host_s() -> None:
    with LocalService.started() as service:
        own = service.producer()
        other = DelayProducer("timers", bootstrap_servers="kafka:9092")
        assert SystemClock().now_ms() == service.now_ms()
    for producer in (own, other):
        with pytest.raises(IllegalStateError):
            producer.schedule("orders", b"", delay="1h")
    assert SystemClock().now_ms() != service.now_ms()


def test_a_serializer_of_the_program_s_is_used(service: LocalService) -> None:
    producer = service.producer(value_serializer=str.encode)
    timer = producer.schedule("orders", "pay", delay="1h").result(timeout=10)
    producer.reschedule(timer.handle, delay="2h").result(timeout=10)
    service.advance("2h")
    assert values(service, "orders") == [b"pay"]
    with pytest.raises(ValueError, match="a value, or a key"):
        service.producer().schedule("orders", None, delay="1h")


def test_time_never_falls(service: LocalService) -> None:
    service.advance_to(START + timedelta(days=1))
    with pytest.raises(ValueError, match="would fall by 3600000 ms"):
        service.advance_to(START + timedelta(hours=23))
    with pytest.raises(InvalidTimer, match="time 5 has no unit"):
        service.advance(5)  # type: ignore[arg-type]


def test_it_starts_when_the_test_wants() -> None:
    with LocalService.started(start=datetime(2031, 2, 3, 4, 5, 6, 789_000, UTC)) as service:
        service.producer().schedule("orders", b"", delay="1s")
        service.advance("2s")
        (message,) = service.delivered("orders")
        assert message.due_ms == message.delivered_ms - 11  # the end of the slot


# ---- settings -----------------------------------------------------------------------------------


def test_the_settings_may_be_the_file_that_is_deployed(tmp_path: Path) -> None:
    file = tmp_path / "duewheel.toml"
    file.write_text(
        """
[kafka]
bootstrap_servers = "kafka-1:9093"
[timer]
topics = ["orders.delayed", "schedules"]
mapping = { "orders.delayed" = "orders" }
max_delay = "2d"
[timer.topic.schedules]
headers = "karafka"
targets = ["bills"]
"""
    )
    with LocalService.started(file) as service:
        producer = service.producer()
        assert producer.timer_topic == "orders.delayed"
        with pytest.raises(InvalidTimer, match="longest delay"):
            producer.schedule("orders", b"", delay="3d")
        due_s = service.now_ms() // 1000 + 60
        karafka = {
            "schedule_schema_version": "1.0.0",
            "schedule_source_type": "schedule",
            "schedule_target_epoch": str(due_s),
            "schedule_target_topic": "bills",
            "schedule_target_key": "42",
        }
        headers = [(name, value.encode()) for name, value in karafka.items()]
        producer.send("schedules", b"bill", b"id", headers)
        service.advance("1m")
        assert [(m.key, m.value) for m in service.delivered("bills")] == [(b"42", b"bill")]


@pytest.mark.parametrize(
    ("timer", "reason"),
    [
        ({"topics": ["timers"], "target": ["*"]}, "target"),
        ({"topics": []}, "at least one"),
        ({"topics_pattern": "orders-.*"}, "topics_pattern"),
    ],
)
def test_settings_that_cannot_be_used_are_refused(timer: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason), LocalService.started({"timer": timer}):
        pass
