"""DelayProducer and `duewheel send` on a real broker: the records in each topic afterwards."""

from __future__ import annotations

import asyncio
import itertools
import json
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from kafka.errors import IllegalStateError, KafkaError, KafkaTimeoutError
from tests.harness import launcher
from tests.harness.fault_proxy import ALWAYS, Action, Fault, FaultProxy
from tests.harness.launcher import wait_until
from tests.harness.reader import everything_in, read_topic
from tests.harness.shared_broker import SharedBroker
from tests.harness.sparkless_shard import SparklessShard

from duewheel.client import AsyncDelayProducer, DelayProducer, Timer
from duewheel.client.handle import RecallHandle
from duewheel.config.settings import load
from duewheel.errors import ConfigError, InvalidTimer
from duewheel.kafka.topics.admin import KafkaAdmin
from duewheel.schemas.header_names import LEVELS_MS

pytestmark = pytest.mark.kafka

TIMER_PARTITIONS = 3
ORDER_PARTITIONS = 5
ANSWER_S = 60.0
MASK = 0x7FFFFFFF
LATER = ("TIMER_DELAY_SEC", b"3600")

# What Kafka's Java client computes, as signed 32-bit numbers.
MURMUR2 = {b"21": -973932308, b"foobar": -790332482, b"abc": 479470107}


@dataclass(frozen=True)
class ClientTopics:
    """A timer topic and a target of one test's own."""

    servers: str
    timers: str
    orders: str

    def records(self, topic: str) -> list[Any]:
        """Everything in a topic now."""
        count = TIMER_PARTITIONS if topic == self.timers else ORDER_PARTITIONS
        return everything_in(self.servers, topic, count)


@pytest.fixture
def shard(config: Path) -> Iterator[SparklessShard]:
    with closing(SparklessShard(load(config), 1)) as shard:
        yield shard


@pytest.fixture
def topics(broker: SharedBroker, unique_name: Callable[[str], str]) -> ClientTopics:
    made = ClientTopics(broker.bootstrap_servers, unique_name("timers"), unique_name("orders"))
    with KafkaAdmin({"bootstrap_servers": [made.servers]}) as admin:
        admin.create_topic(made.timers, TIMER_PARTITIONS)
        admin.create_topic(made.orders, ORDER_PARTITIONS)
    return made


@pytest.fixture
def producer(topics: ClientTopics) -> Iterator[DelayProducer]:
    options: dict[str, Any] = {"bootstrap_servers": topics.servers, "linger_ms": 20}
    with DelayProducer(topics.timers, max_delay="9000d", **options) as made:
        yield made


def test_a_timer_is_a_record_that_says_when_and_where_to(
    topics: ClientTopics, producer: DelayProducer
) -> None:
    at = datetime(2030, 1, 1, tzinfo=UTC)
    own = [("x", b"1"), ("x", b"")]
    delivered = [*own, ("TIMER_SOURCE", b"earlier-0@7"), ("TIMER_ROLL_TIMES", b"2")]
    timers: list[Timer] = [
        asked.result(ANSWER_S)
        for asked in (
            producer.schedule(topics.orders, b"a", key=b"abc", headers=delivered, deliver_at=at),
            producer.schedule(topics.orders, b"b", key=b"abc", delay="15m", id="order-7"),
            producer.schedule(topics.orders, b"c", key=b"abc", delay=timedelta(seconds=1)),
            producer.schedule(topics.orders, None, key=b"abc", level=len(LEVELS_MS)),
        )
    ]
    records = topics.records(topics.timers)
    target = ("REAL_TOPIC", topics.orders.encode())
    assert [(r.key, r.value, r.headers) for r in records] == [
        (b"abc", b"a", [*own, ("TIMER_DELIVER_MS", b"1893456000000"), target]),
        (b"abc", b"b", [("TIMER_DELAY_MS", b"900000"), ("UNIQ_KEY", b"order-7"), target]),
        (b"abc", b"c", [("TIMER_DELAY_MS", b"1000"), target]),
        (b"abc", None, [("DELAY", b"18"), target]),
    ]
    places = [(r.topic, r.partition, r.offset) for r in records]
    assert [(t.timer_topic, t.partition, t.offset) for t in timers] == places
    ids = [f"{topic}-{partition}@{offset}" for topic, partition, offset in places]
    assert [t.id for t in timers] == [ids[0], "order-7", *ids[2:]]
    waits_ms = [900_000, 1_000, LEVELS_MS[-1]]
    after = [r.timestamp + wait_ms for r, wait_ms in zip(records[1:], waits_ms, strict=True)]
    assert [t.due_ms for t in timers] == [1_893_456_000_000, *after]


def test_where_a_timer_lies(topics: ClientTopics, producer: DelayProducer) -> None:
    for key, hashed in MURMUR2.items():
        timer = producer.schedule(topics.orders, b"", key=key, delay="1s").result(ANSWER_S)
        assert timer.partition == (hashed & MASK) % TIMER_PARTITIONS
    asked = producer.schedule(topics.orders, b"asked", key=b"abc", delay="1s", partition=4)
    assert asked.result(ANSWER_S).partition == 4 % TIMER_PARTITIONS
    records = topics.records(topics.timers)
    numbers = [(r.value, v) for r in records for k, v in r.headers if k == "REAL_QID"]
    assert numbers == [(b"asked", b"4")]


def test_timers_without_a_key_share_a_partition_until_the_batch_is_full(
    topics: ClientTopics,
) -> None:
    with DelayProducer(
        topics.timers, bootstrap_servers=topics.servers, linger_ms=60_000, batch_size=8_000
    ) as producer:
        asked = [producer.schedule(topics.orders, bytes(500), delay="1s") for _ in range(100)]
        producer.flush(ANSWER_S)
        assert all(timer.done() for timer in asked)
    partitions = [timer.result(0).partition for timer in asked]
    changes = sum(a != b for a, b in itertools.pairwise(partitions))
    assert 0 < changes < 20  # at random it would be two of three


def test_send_is_the_put_hook(topics: ClientTopics, producer: DelayProducer) -> None:
    switched = [("DELAY", b"3"), ("REAL_TOPIC", topics.orders.encode()), ("REAL_QID", b"1")]
    written = [
        producer.send(topics.orders, b"now", b"abc", [("x", b"1")]).get(ANSWER_S),
        producer.send(topics.orders, b"no level", headers=[("DELAY", b"0")]).get(ANSWER_S),
        producer.send(topics.orders, b"placed", partition=4).get(ANSWER_S),
        producer.send(topics.orders, b"later", b"abc", [("DELAY", b"3"), ("x", b"1")]).get(
            ANSWER_S
        ),
        producer.send(topics.orders, b"there", None, [("DELAY", b"3")], 1).get(ANSWER_S),
        producer.send(topics.timers, b"switched", headers=switched).get(ANSWER_S),
    ]
    straight, timers = topics.records(topics.orders), topics.records(topics.timers)
    assert {r.value: r.headers for r in straight} == {
        b"now": [("x", b"1")],
        b"no level": [("DELAY", b"0")],
        b"placed": [],
    }
    target = ("REAL_TOPIC", topics.orders.encode())
    assert {r.value: r.headers for r in timers} == {
        b"later": [("DELAY", b"3"), ("x", b"1"), target],
        b"there": [("DELAY", b"3"), target, ("REAL_QID", b"1")],
        b"switched": switched,
    }
    expected = (MURMUR2[b"abc"] & MASK) % ORDER_PARTITIONS
    assert [(w.topic, w.partition) for w in written[:3:2]] == [
        (topics.orders, expected),
        (topics.orders, 4),
    ]
    assert [w.topic for w in written[3:]] == [topics.timers] * 3
    assert written[4].partition == 1


def test_what_is_refused_is_not_written(topics: ClientTopics, producer: DelayProducer) -> None:
    for name in ("DELAY", "TIMER_DELIVER_MS", "REAL_TOPIC", "UNIQ_KEY", "TIMER_DEL_UNIQKEY"):
        with pytest.raises(InvalidTimer, match=name):
            producer.schedule(topics.orders, b"", headers=[(name, b"1")], delay="1s")
    for name in ("REAL_TOPIC", "REAL_QID"):
        with pytest.raises(InvalidTimer, match=name):
            producer.send(topics.orders, b"", headers=[("DELAY", b"1"), (name, b"1")])
    with pytest.raises(InvalidTimer, match="exactly one"):
        producer.schedule(topics.orders, b"")
    with pytest.raises(InvalidTimer, match="timer topic itself"):
        producer.schedule(topics.timers, b"", delay="1s")
    with pytest.raises(InvalidTimer, match="partition -1"):
        producer.schedule(topics.orders, b"", delay="1s", partition=-1)
    assert topics.records(topics.timers) == topics.records(topics.orders) == []


def test_headers_of_a_delivered_message_are_given_as_they_came(
    config: Path,
    shard: SparklessShard,
) -> None:
    """As a consumer does that has a message delivered to it once more."""
    own = [("x", b"1"), ("x", b"\xff"), ("empty", b"")]
    arrived: list[Any] = []
    timer_id: str | None = "first"
    headers = own
    with DelayProducer(shard.timers, bootstrap_servers=shard.servers) as producer:
        for value in (b"once", b"twice", b"thrice"):
            timer = producer.schedule(
                shard.target, value, headers=headers, delay="0ms", id=timer_id
            )
            timer.result(ANSWER_S)
            while not (found := [r for r in everything(shard) if r.value == value]):
                shard.pump()
            arrived += found
            headers, timer_id = found[0].headers, "third" if value == b"twice" else None
    assert [r.headers[: len(own)] for r in arrived] == [own] * 3
    added = [r.headers[len(own) :] for r in arrived]
    names = ["TIMER_SOURCE", "TIMER_DUE_MS", "UNIQ_KEY"]
    assert [[name for name, _ in each] for each in added] == [names] * 3
    assert [dict(each)["UNIQ_KEY"] for each in added] == [
        b"first",
        dict(added[1])["TIMER_SOURCE"],
        b"third",
    ]


def everything(shard: SparklessShard) -> list[Any]:
    return read_topic(shard.servers, shard.target)


def test_a_future_fails_if_what_it_holds_cannot_be_told(topics: ClientTopics) -> None:
    levels: Any = ("soon",)
    with DelayProducer(
        topics.timers, bootstrap_servers=topics.servers, levels_ms=levels
    ) as producer:
        asked = producer.schedule(topics.orders, b"", level=1)
        assert isinstance(asked.exception(ANSWER_S), TypeError), "no due time can be computed"
    assert len(topics.records(topics.timers)) == 1


def test_a_timer_that_kafka_refuses(topics: ClientTopics) -> None:
    with DelayProducer(
        topics.timers, bootstrap_servers=topics.servers, max_request_size=4 << 20
    ) as producer:
        asked = producer.schedule(topics.orders, bytes(2 << 20), delay="1s")
        assert asked.cancel() is False
        assert isinstance(asked.exception(ANSWER_S), KafkaError)


def sending(topics: ClientTopics, folder: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    path = folder / "duewheel.toml"
    path.write_text(
        f'[kafka]\nbootstrap_servers = "{topics.servers}"\n[timer]\ntopics = ["{topics.timers}"]\n'
        'max_delay = "9000d"\ntargets = ["*"]\n'
    )
    words = ["--target", topics.orders, "--key", "abc", "--value", "pay", "--header", "x=1"]
    return partial(launcher.run, path, "send", *words)


def test_send_command(topics: ClientTopics, tmp_path: Path) -> None:
    run = sending(topics, tmp_path)
    sent = run("--deliver-at", "2030-01-01T01:00+01:00", "--id", "7", "--output", "json")
    assert sent.returncode == 0, sent.stderr
    (record,) = topics.records(topics.timers)
    told = json.loads(sent.stdout)
    assert RecallHandle.decode(told.pop("handle")).place == f"{topics.timers}-{record.partition}@0"
    assert told == {
        "id": "7",
        "timer_topic": topics.timers,
        "partition": record.partition,
        "offset": record.offset,
        "due_ms": 1_893_456_000_000,
    }
    assert (record.key, record.value) == (b"abc", b"pay")
    for refused in (["--delay", "soon"], [], ["--delay", "1s", "--target", topics.timers]):
        assert run(*refused).returncode == 2
    assert len(topics.records(topics.timers)) == 1


def test_send_says_that_a_timer_to_keep_may_be_dropped(
    topics: ClientTopics, tmp_path: Path
) -> None:
    run = sending(topics, tmp_path)
    new = ["--delay", "1h", "--id", "7"]
    keep = [*new, "--if-pending", "keep"]
    silent = run(*keep)
    assert "timer.reply_topic names no topic" in silent.stderr
    told = run(*keep, "--set", "timer.reply_topic=app.replies")
    assert "this one is dropped (`kept`)" in told.stderr
    assert "the reply in app.replies says which" in told.stderr
    assert (silent.returncode, told.returncode) == (0, 0)
    for plain in (new, [*new, "--if-pending", "replace"]):
        assert "dropped" not in run(*plain).stderr


# ---- asyncio -------------------------------------------------------------------------------------


def test_async_calls_write_what_the_others_write_in_their_order(topics: ClientTopics) -> None:
    async def run() -> tuple[list[Timer], Any]:
        async with AsyncDelayProducer(topics.timers, bootstrap_servers=topics.servers) as producer:
            asked = [
                producer.schedule(topics.orders, b"%d" % n, key=b"abc", delay="1h", id=f"{n}")
                for n in range(2_000)
            ]
            timers = await asyncio.gather(*asked)
            later = producer.send(topics.orders, b"later", b"abc", [("DELAY", b"3")])
            first, *_ = await asyncio.gather(
                *(producer.send(topics.orders, b"%d" % n, b"abc") for n in range(50)), later
            )
            with pytest.raises(InvalidTimer, match="exactly one"):
                await producer.schedule(topics.orders, b"")
            return timers, first

    timers, first = asyncio.run(run())
    values = [b"%d" % n for n in range(2_000)]
    records = topics.records(topics.timers)
    assert [r.value for r in records] == [*values, b"later"]
    assert [(t.partition, t.offset) for t in timers] == [
        (r.partition, r.offset) for r in records[:-1]
    ]
    target = ("REAL_TOPIC", topics.orders.encode())
    assert records[1].headers == [("TIMER_DELAY_MS", b"3600000"), ("UNIQ_KEY", b"1"), target]
    assert records[-1].headers == [("DELAY", b"3"), target]
    assert [r.value for r in topics.records(topics.orders)] == values[:50]
    assert (first.topic, first.offset) == (topics.orders, 0)


def test_an_async_cancel_has_its_answer(
    topics: ClientTopics, unique_name: Callable[[str], str]
) -> None:
    """The reply topic gets its reply from the test, as dequeue would write it."""
    replies = unique_name("replies")
    with KafkaAdmin({"bootstrap_servers": [topics.servers]}) as admin:
        admin.create_topic(replies, 1)

    async def run(dequeue: DelayProducer) -> str:
        async with AsyncDelayProducer(
            topics.timers, reply_topic=replies, bootstrap_servers=topics.servers
        ) as producer:
            timer = await producer.schedule(topics.orders, b"pay", key=b"abc", delay="1h")
            again = await producer.reschedule(timer.handle, delay="2h")
            cancel = await producer.cancel(timer.handle)
            with pytest.raises(TimeoutError, match=r"no reply to .*@\d+ within 0.05 s"):
                await cancel.answer_async(0.05)
            source = f"{cancel.timer_topic}-{cancel.partition}@{cancel.offset}".encode()
            reply = [("TIMER_SOURCE", source), ("TIMER_ANSWER", b"cancelled")]
            dequeue.send(replies, b"", headers=reply).get(ANSWER_S)
            assert again.id == timer.id
            return await cancel.answer_async(ANSWER_S)

    with DelayProducer(topics.timers, bootstrap_servers=topics.servers) as dequeue:
        assert asyncio.run(run(dequeue)) == "cancelled"
    assert [r.value for r in topics.records(topics.timers)] == [b"pay", b"pay", b""]


@pytest.mark.slow
def test_a_timer_topic_that_is_missing_is_named_at_once(
    topics: ClientTopics, producer: DelayProducer
) -> None:
    """kafka-python alone would wait for `max_block_ms`, here three hours, and name nothing."""
    missing = f"{topics.timers}.missing"
    named = pytest.raises(ConfigError, match=f'no timer topic "{missing}"')
    options: dict[str, Any] = {"bootstrap_servers": topics.servers, "max_block_ms": 10_000_000}
    with DelayProducer(missing, **options) as wrong:
        with named:
            wrong.schedule(topics.orders, b"", delay="1h")
        with named:
            wrong.send(topics.orders, b"", headers=[LATER])
        with named:
            wrong.reschedule("7", key=b"k", topic=topics.orders, value=b"", delay="1h")
    with named:
        producer.cancel("7", key=b"k", timer_topic=missing)


def test_a_record_without_an_acknowledgement_is_named_by_its_time_out(
    topics: ClientTopics, proxy: FaultProxy
) -> None:
    with DelayProducer(topics.timers, bootstrap_servers=proxy.bootstrap_servers) as producer:
        proxy.inject(Fault("Produce", Action.HOLD, seconds=30, times=ALWAYS))
        timer = producer.schedule(topics.orders, b"", delay="1h", id="7")
        cancel = producer.cancel("7", key=b"k")
        futures: dict[str, Future[Any]] = {'timer "7" for "': timer, "cancel of '7'": cancel}
        for what, future in futures.items():
            for wait in (future.result, future.exception):
                with pytest.raises(TimeoutError, match=f"{what}.* within 0.01 s; it may still"):
                    wait(0.01)
        proxy.clear()
        assert timer.result(ANSWER_S).id == cancel.result(ANSWER_S).id == "7"


def test_an_async_cancel_that_waits_for_the_reader_delays_no_other_call(
    topics: ClientTopics, proxy: FaultProxy, unique_name: Callable[[str], str]
) -> None:
    """But for those with its id: a timer that is begun after a cancel is not cancelled by it."""
    replies = unique_name("replies")
    with KafkaAdmin({"bootstrap_servers": [topics.servers]}) as admin:
        admin.create_topic(replies, 1)

    async def run() -> None:
        async with AsyncDelayProducer(
            topics.timers, reply_topic=replies, bootstrap_servers=proxy.bootstrap_servers
        ) as producer:
            held = proxy.inject(Fault("ListOffsets", Action.HOLD, seconds=30, times=ALWAYS))
            cancels = [asyncio.create_task(producer.cancel("7", key=b"k")) for _ in range(9)]
            await asyncio.sleep(0)
            later = asyncio.create_task(
                producer.schedule(topics.orders, b"later", key=b"k", id="7", delay="1h")
            )
            await producer.schedule(topics.orders, b"other", key=b"k", id="8", delay="1h")
            assert not any(task.done() for task in (*cancels, later))
            await asyncio.to_thread(wait_until, lambda: held.hits, "no reader connects", ANSWER_S)
            cancels[0].cancel()
            proxy.clear()
            await asyncio.gather(*cancels[1:], later)

    asyncio.run(run())
    values = [record.value for record in topics.records(topics.timers)]
    assert (values[0], values[-1], len(values)) == (b"other", b"later", 10)


def test_a_topic_that_is_missing_delays_no_other_call(topics: ClientTopics) -> None:
    async def run() -> None:
        async with AsyncDelayProducer(
            topics.timers, bootstrap_servers=topics.servers, max_block_ms=2_000
        ) as producer:
            missing = [
                asyncio.create_task(producer.send(f"{topics.orders}.missing", b""))
                for _ in range(2)
            ]
            await asyncio.sleep(0)
            await producer.schedule(topics.orders, b"", delay="1h")
            await producer.send(topics.orders, b"")
            assert not any(task.done() for task in missing)
            missing[1].cancel()
            with pytest.raises(KafkaTimeoutError):
                await missing[0]

    asyncio.run(run())


def test_a_start_that_is_cancelled_leaves_nothing(topics: ClientTopics) -> None:
    before = set(threading.enumerate())

    async def run() -> None:
        producer = AsyncDelayProducer(topics.timers, bootstrap_servers=topics.servers)
        starting = asyncio.create_task(producer.start())
        await asyncio.sleep(0.001)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        with pytest.raises(IllegalStateError):
            await producer.start()
        await producer.close()

    asyncio.run(run())
    wait_until(lambda: set(threading.enumerate()) <= before, "a thread has stayed", ANSWER_S)


def test_a_cancelled_task_and_a_close_lose_no_record(topics: ClientTopics) -> None:
    async def run() -> list[Any]:
        producer = AsyncDelayProducer(
            topics.timers, bootstrap_servers=topics.servers, linger_ms=60_000
        )
        with pytest.raises(IllegalStateError):
            await producer.schedule(topics.orders, b"early", delay="1h")
        async with producer:
            asked = [
                asyncio.create_task(producer.schedule(topics.orders, b"%d" % n, delay="1h"))
                for n in range(100)
            ]
            await asyncio.sleep(0)
            await producer.flush(ANSWER_S)
            assert not (await asyncio.wait(asked, timeout=ANSWER_S))[1]
            asked += [
                asyncio.create_task(producer.schedule(topics.orders, b"in flight", delay="1h"))
                for _ in range(10)
            ]
            await asyncio.sleep(0)  # the tasks begin
            with pytest.raises(InvalidTimer):  # those before it are handed over then
                await producer.schedule(topics.orders, b"")
            assert not any(task.done() for task in asked[100:])
            asked[-1].cancel()
        with pytest.raises(IllegalStateError):
            await producer.schedule(topics.orders, b"late", delay="1h")
        return await asyncio.gather(*asked, return_exceptions=True)

    *timers, cancelled = asyncio.run(run())
    assert isinstance(cancelled, asyncio.CancelledError)
    assert all(isinstance(timer, Timer) for timer in timers)
    assert len(topics.records(topics.timers)) == 110
