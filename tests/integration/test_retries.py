"""RetryLater on a real broker: through a shard, in transactions, and over kills of the consumer."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaProducer, TopicPartition
from tests.harness import reader, retrying_consumer
from tests.harness.shared_broker import SharedBroker
from tests.harness.sparkless_shard import SparklessShard, until

from duewheel.client import DelayProducer, Retry, RetryEnd, RetryLater, RetryPolicy
from duewheel.config.settings import load
from duewheel.errors import ConfigError, InvalidTimer
from duewheel.kafka.admin import KafkaAdmin
from duewheel.testing import ManualClock

pytestmark = pytest.mark.kafka

ANSWER_S = 60.0
MESSAGES = 10


@dataclass(frozen=True)
class RetryTopics:
    """Topics of one test's own, with a partition each."""

    servers: str
    orders: str
    timers: str
    dead: str
    outputs: str

    def values(self, topic: str) -> list[bytes]:
        return [record.value for record in reader.read_topic(self.servers, topic)]


@pytest.fixture
def topics(broker: SharedBroker, unique_name: Callable[[str], str]) -> RetryTopics:
    names = [unique_name(purpose) for purpose in ("orders", "timers", "dead", "outputs")]
    with KafkaAdmin({"bootstrap_servers": [broker.bootstrap_servers]}) as admin:
        for name in names:
            admin.create_topic(name, 1)
    return RetryTopics(broker.bootstrap_servers, *names)


@pytest.fixture
def transactional(topics: RetryTopics) -> Iterator[KafkaProducer]:
    made = KafkaProducer(bootstrap_servers=topics.servers, transactional_id=topics.orders)
    made.init_transactions()
    yield made
    made.close()


def send_all(servers: str, topic: str, count: int) -> None:
    with closing(KafkaProducer(bootstrap_servers=servers)) as producer:
        for n in range(count):
            producer.send(topic, b"%d" % n)


# ---- through a shard -----------------------------------------------------------------------------


def test_a_message_returns_until_its_attempts_end(config: Path) -> None:
    """With headers that a producer has forged: none of them is obeyed."""
    attempts: list[Any] = []
    own = [("x", b"1"), ("x", b"\xff"), ("empty", b"")]
    forged = [("REAL_TOPIC", b"elsewhere"), ("TIMER_DEL_UNIQKEY", b"7"), ("RETRY_ATTEMPT", b"0")]
    with (
        closing(SparklessShard(load(config), 1)) as shard,
        DelayProducer(shard.timers, bootstrap_servers=shard.servers) as producer,
        reader.consumer(shard.servers) as consumer,
    ):
        dead = f"{shard.target}.failed"
        with shard.admin() as admin:
            admin.create_topic(dead, 1)
        policy = RetryPolicy(attempts=3, first="20ms", longest="30ms", deadline="1h")
        retry_later = RetryLater(producer, shard.timers, dead_letter_topic=dead, policy=policy)

        @retry_later
        def handle(record: Any) -> None:
            attempts.append(record)
            raise OSError("no login at kafka://ann:pw@host")

        consumer.assign(reader.partitions_of(consumer, shard.target))
        with closing(KafkaProducer(bootstrap_servers=shard.servers)) as stranger:
            stranger.send(shard.target, b"bad", b"abc", own + forged, 1)
        outcomes: list[Any] = []

        def ended() -> bool:
            outcomes.extend(handle(record) for record in reader.poll(consumer, 20))
            return len(outcomes) == 3

        until(shard, ended)
        (letter,) = reader.read_topic(shard.servers, dead)
    assert [(o.attempt, o.end) for o in outcomes] == [(1, None), (2, None), (3, RetryEnd.ATTEMPTS)]
    assert all(0 <= o.wait_ms <= 30 for o in outcomes[:2])
    assert {(r.key, r.value, r.partition) for r in attempts} == {(b"abc", b"bad", 1)}
    assert [r.headers[:3] for r in (*attempts, letter)] == [own] * 4
    assert [dict(r.headers).get("RETRY_ATTEMPT") for r in attempts] == [b"0", b"2", b"3"]
    first = f"{shard.target}-1@{attempts[0].offset}"
    assert [dict(r.headers)["UNIQ_KEY"] for r in attempts[1:]] == [
        f"{first}/{n}".encode() for n in (2, 3)
    ]
    added = dict(letter.headers[3:])
    history = json.loads(added.pop("RETRY_HISTORY"))
    assert int(added.pop("RETRY_DEADLINE_MS")) > attempts[0].timestamp
    assert added == {
        "RETRY_ATTEMPT": b"3",
        "RETRY_FIRST": first.encode(),
        "RETRY_REASON": b"attempts",
        "RETRY_ERROR": b"OSError",
        "RETRY_ERROR_TEXT": b"no login at kafka://***@host",
    }
    assert [(entry["attempt"], entry["error"]) for entry in history] == [
        (n, "OSError") for n in (1, 2, 3)
    ]
    assert (letter.key, letter.value) == (b"abc", b"bad")


class LongestWaits(random.Random):
    """Draws the upper bound."""

    def randint(self, a: int, b: int) -> int:
        return b


# ---- plain calls ---------------------------------------------------------------------------------


def test_deadlines_and_refusals(topics: RetryTopics) -> None:
    clock = ManualClock(1_800_000_000_000)
    send_all(topics.servers, topics.orders, 1)
    (record,) = reader.read_topic(topics.servers, topics.orders)
    with DelayProducer(
        topics.timers, bootstrap_servers=topics.servers, value_serializer=str.encode
    ) as producer:
        retry_later = RetryLater(
            *(producer, topics.timers),
            dead_letter_topic=topics.dead,
            policy=RetryPolicy(attempts=9, first="10s", deadline="30s"),
            target=topics.outputs,
            chance=LongestWaits(),
            clock=clock,
        )
        assert retry_later.send(record, ValueError()) == Retry(1, 10_000, None)
        (timer,) = reader.read_topic(topics.servers, topics.timers)
        assert dict(timer.headers)["REAL_TOPIC"] == topics.outputs.encode()
        assert "REAL_QID" not in dict(timer.headers)
        clock.sleep(10.001)
        assert retry_later.send(timer, ValueError()) == Retry(2, None, RetryEnd.DEADLINE)
        assert retry_later.send(timer, ValueError(), 1) == Retry(2, None, RetryEnd.DEADLINE)
        later_ms = clock.now_ms() + 20_000
        assert retry_later.send(timer, ValueError(), later_ms) == Retry(2, 20_000, None)
        assert retry_later.dead_letter(timer, KeyError("x")) == Retry(2, None, RetryEnd.REFUSED)
        nothing = record._replace(key=None, value=None, headers=[("y", None)])
        assert retry_later.dead_letter(nothing, KeyError("x")).end is RetryEnd.REFUSED
        with pytest.raises(InvalidTimer, match="value_deserializer"):
            retry_later.send(record._replace(value={}), ValueError())
        with pytest.raises(ConfigError, match="transactional_id"):
            retry_later.in_transactions(None)
        with pytest.raises(ConfigError, match="is one of the timer topic"):
            RetryLater(producer, "another", dead_letter_topic=topics.dead)
    letters = reader.read_topic(topics.servers, topics.dead)
    reasons = [dict(letter.headers)["RETRY_REASON"] for letter in letters]
    assert reasons == [b"deadline", b"deadline", b"refused", b"refused"]
    assert [letter.value for letter in letters] == [b"0", b"0", b"0", b""]
    assert not any("REAL_TOPIC" in dict(letter.headers) for letter in letters)


# ---- transactions --------------------------------------------------------------------------------


def test_a_retry_and_the_offset_are_one_transaction(
    topics: RetryTopics, transactional: KafkaProducer
) -> None:
    send_all(topics.servers, topics.orders, 4)
    settings = {"group_id": topics.orders, "enable_auto_commit": False}
    retry_later = RetryLater(transactional, topics.timers, dead_letter_topic=topics.dead)
    partition = TopicPartition(topics.orders, 0)
    with reader.consumer(topics.servers, **settings) as consumer:

        @retry_later.in_transactions(consumer)
        def handle(record: Any) -> str:
            transactional.send(topics.outputs, record.value)
            if record.value == b"2":
                raise ValueError
            return f"{int(record.value)}"

        consumer.assign([partition])
        outcomes: list[Any] = []
        while len(outcomes) < 4:
            outcomes += [handle(record) for record in reader.poll(consumer, 100)]
        assert consumer.committed(partition) == 4
    assert [outcomes[n] for n in (0, 1, 3)] == ["0", "1", "3"]
    assert outcomes[2].attempt == 1
    assert topics.values(topics.outputs) == [b"0", b"1", b"3"]
    assert topics.values(topics.timers) == [b"2"]
    for wrong in ({"enable_auto_commit": True}, {"isolation_level": "read_uncommitted"}):
        with (
            reader.consumer(topics.servers, **settings | wrong) as consumer,
            pytest.raises(ConfigError, match=next(iter(wrong))),
        ):
            retry_later.in_transactions(consumer)


def test_an_aborted_transaction_leaves_neither_retry_nor_offset(
    topics: RetryTopics, transactional: KafkaProducer
) -> None:
    """The plain call writes into the transaction that the consumer has begun."""
    send_all(topics.servers, topics.orders, 1)
    (record,) = reader.read_topic(topics.servers, topics.orders)
    retry_later = RetryLater(transactional, topics.timers, dead_letter_topic=topics.dead)
    for end in (transactional.abort_transaction, transactional.commit_transaction):
        assert topics.values(topics.timers) == []
        transactional.begin_transaction()
        retry_later.send(record, ValueError())
        transactional.flush()
        end()
    assert topics.values(topics.timers) == [b"0"]


@pytest.mark.crash_matrix
@pytest.mark.parametrize("step", ["retry", "offset", "commit"])
def test_a_killed_consumer_handles_each_message_once(topics: RetryTopics, step: str) -> None:
    send_all(topics.servers, topics.orders, MESSAGES)
    child = [sys.executable, "-P", retrying_consumer.__file__, topics.servers]
    child += [topics.orders, topics.timers, topics.outputs]
    killed = subprocess.run([*child, step], timeout=ANSWER_S, check=False)
    assert killed.returncode == -9
    subprocess.run([*child, "none"], timeout=ANSWER_S, check=True)
    numbers = range(MESSAGES)
    assert topics.values(topics.outputs) == [b"%d" % n for n in numbers if n % 2 == 0]
    assert topics.values(topics.timers) == [b"%d" % n for n in numbers if n % 2]
    everything = reader.everything_in(topics.servers, topics.timers, 1)
    assert len(everything) == MESSAGES // 2 + (step != "commit"), "the kill came too early"
