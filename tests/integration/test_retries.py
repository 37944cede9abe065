"""RetryLater on a real broker: through a shard, in transactions, and over kills of the consumer."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaProducer, TopicPartition
from kafka.errors import (
    IllegalStateError,
    KafkaError,
    KafkaTimeoutError,
    MessageSizeTooLargeError,
    NotLeaderForPartitionError,
)
from tests.harness import reader, retrying_consumer
from tests.harness.fault_proxy import ALWAYS, Action, Fault, FaultProxy
from tests.harness.shared_broker import SharedBroker
from tests.harness.sparkless_shard import SparklessShard, until
from tests.harness.topics import alter

from duewheel.client import (
    DelayProducer,
    Retry,
    RetryEnd,
    RetryLater,
    RetryPolicy,
    transaction,
)
from duewheel.config.settings import load
from duewheel.errors import ConfigError, InvalidTimer
from duewheel.kafka.topics.admin import KafkaAdmin
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
    with opened(topics) as made:
        yield made


@contextmanager
def opened(topics: RetryTopics) -> Iterator[KafkaProducer]:
    made = KafkaProducer(bootstrap_servers=topics.servers, transactional_id=topics.orders)
    made.init_transactions()
    with closing(made):
        yield made


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
        f"{shard.target}-1@{failed.offset}/{n}".encode() for n, failed in enumerate(attempts[:2], 2)
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


def test_a_message_that_brokers_refuse_for_its_size_ends_in_transactions(
    topics: RetryTopics, transactional: KafkaProducer
) -> None:
    """Its producer need not know the topics' limit."""
    for topic in (topics.timers, topics.dead):
        alter(topics.servers, topic, {"max.message.bytes": "9000"})
    with closing(KafkaProducer(bootstrap_servers=topics.servers)) as producer:
        producer.send(topics.orders, bytes(10_000), b"abc")
    settings = {"group_id": topics.orders, "enable_auto_commit": False}
    retry_later = RetryLater(transactional, topics.timers, dead_letter_topic=topics.dead)
    partition = TopicPartition(topics.orders, 0)
    with reader.consumer(topics.servers, **settings) as consumer:

        @retry_later.in_transactions(consumer)
        def handle(record: Any) -> None:
            raise ValueError

        consumer.assign([partition])
        outcomes: list[Any] = []
        while not outcomes:
            outcomes += [handle(record) for record in reader.poll(consumer, 100)]
        assert consumer.committed(partition) == 1
    assert outcomes == [Retry(1, None, RetryEnd.TOO_LARGE)]
    assert topics.values(topics.timers) == []
    (letter,) = reader.read_topic(topics.servers, topics.dead)
    assert (letter.key, letter.value) == (None, b"")
    assert dict(letter.headers)["RETRY_FIRST"] == f"{topics.orders}-0@0".encode()


def test_a_message_above_the_producers_limit_ends(topics: RetryTopics) -> None:
    """And the next one has its retry."""
    with closing(KafkaProducer(bootstrap_servers=topics.servers)) as producer:
        for value in (bytes(10_000), b"1"):
            producer.send(topics.orders, value, b"abc")
    with DelayProducer(
        topics.timers, bootstrap_servers=topics.servers, max_request_size=9_000
    ) as delaying:
        retry_later = RetryLater(delaying, topics.timers, dead_letter_topic=topics.dead)
        large, small = reader.read_topic(topics.servers, topics.orders)
        outcome = retry_later.send(large, ValueError())
        assert outcome == Retry(1, None, RetryEnd.TOO_LARGE)
        assert retry_later.send(small, ValueError()).end is None
    assert topics.values(topics.timers) == [b"1"]
    assert topics.values(topics.dead) == [b""]


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


# ---- a partition that takes no writes ------------------------------------------------------------


def without_writes(topic: str, action: Action) -> Fault:
    """A topic that takes no writes: without a leader, or refused on each try."""
    if action is Action.LEADERLESS:
        return Fault("Metadata", action, topic=topic, times=ALWAYS)
    return Fault("Produce", action, NotLeaderForPartitionError.errno, topic=topic, times=ALWAYS)


@pytest.fixture
def impatient(topics: RetryTopics, proxy: FaultProxy) -> Iterator[KafkaProducer]:
    """A transactional producer behind the proxy, whose records expire within a second."""
    made = KafkaProducer(
        bootstrap_servers=proxy.bootstrap_servers,
        transactional_id=topics.orders,
        request_timeout_ms=1_000,
        delivery_timeout_ms=1_000,
    )
    made.init_transactions()
    yield made
    made.close()


def send_both(producer: KafkaProducer, topics: RetryTopics, value: bytes) -> None:
    """A transaction of a program, whose futures it does not read."""
    with transaction(producer):
        producer.send(topics.timers, value)
        producer.send(topics.outputs, value)


@dataclass
class Consumer:
    """Bills each order in a transaction of its own, and begins again after an error.

    Attributes:
        fails: whether its handler does, after the bill is sent.
        attempts: of the policy.
    """

    topics: RetryTopics
    fails: bool
    attempts: int

    def run(self, producer: KafkaProducer, orders: int) -> KafkaError | None:
        """Until all orders are committed, or an error."""
        place, policy = TopicPartition(self.topics.orders, 0), RetryPolicy(attempts=self.attempts)
        retry_later = RetryLater(
            *(producer, self.topics.timers), dead_letter_topic=self.topics.dead, policy=policy
        )
        settings = {"group_id": self.topics.orders, "enable_auto_commit": False}
        with reader.consumer(self.topics.servers, **settings) as consumer:

            @retry_later.in_transactions(consumer)
            def handle(record: Any) -> None:
                producer.send(self.topics.outputs, record.value)  # reads no future
                if self.fails:
                    raise ValueError

            consumer.assign([place])
            while (consumer.committed(place) or 0) < orders:
                for record in reader.poll(consumer, 100):
                    try:
                        handle(record)
                    except KafkaError as error:
                        with pytest.raises(IllegalStateError, match="begin again"):
                            handle(record)
                        assert consumer.committed(place) is None
                        return error
        return None


@pytest.mark.parametrize(
    "action", [Action.LEADERLESS, Action.REFUSE], ids=["leaderless", "refused"]
)
@pytest.mark.parametrize("expires", ["timers", "dead", "outputs"])
def test_a_record_that_expires_keeps_the_offset_back(
    topics: RetryTopics,
    proxy: FaultProxy,
    impatient: KafkaProducer,
    expires: str,
    action: Action,
) -> None:
    """The retry, its dead letter, or what the handler has sent: none of the three is lost."""
    send_all(topics.servers, topics.orders, 2)
    consumer = Consumer(topics, expires != "outputs", 1 if expires == "dead" else 5)
    fault = proxy.inject(without_writes(getattr(topics, expires), action))
    assert isinstance(consumer.run(impatient, 2), KafkaTimeoutError) and fault.hits
    with opened(topics) as successor:  # as documented: the process begins again
        assert consumer.run(successor, 2) is None
    found = {name: topics.values(getattr(topics, name)) for name in ("timers", "dead", "outputs")}
    assert found.pop(expires) == [b"0", b"1"]
    assert not any(found.values())


def test_an_own_transaction_is_aborted_if_a_record_expires(
    topics: RetryTopics, proxy: FaultProxy, impatient: KafkaProducer
) -> None:
    """`send` itself reads its future, so that also a plain commit cannot lose the retry."""
    send_all(topics.servers, topics.orders, 1)
    (record,) = reader.read_topic(topics.servers, topics.orders)
    retry_later = RetryLater(impatient, topics.timers, dead_letter_topic=topics.dead)
    proxy.inject(without_writes(topics.timers, Action.LEADERLESS))
    impatient.begin_transaction()
    with pytest.raises(KafkaTimeoutError):
        retry_later.send(record, ValueError())
    impatient.abort_transaction()
    with pytest.raises(KafkaTimeoutError):
        send_both(impatient, topics, b"aborted")
    proxy.clear()
    with opened(topics) as successor:
        send_both(successor, topics, b"committed")
    assert topics.values(topics.outputs) == [b"committed"]


def test_a_send_that_raises_aborts_even_if_its_error_is_handled(
    topics: RetryTopics, transactional: KafkaProducer
) -> None:
    def send_too_large() -> None:
        with transaction(transactional):
            transactional.send(topics.outputs, b"1")
            with suppress(MessageSizeTooLargeError):
                transactional.send(topics.timers, bytes(2_000_000))

    with pytest.raises(MessageSizeTooLargeError):
        send_too_large()
    assert topics.values(topics.outputs) == []


@pytest.mark.parametrize("ends", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_what_ends_a_program_aborts_its_transaction(
    topics: RetryTopics, transactional: KafkaProducer, ends: type[BaseException]
) -> None:
    """An open one would hold up the readers of its topics until it times out."""

    def interrupted() -> None:
        with transaction(transactional):
            transactional.send(topics.outputs, b"1").get(ANSWER_S)
            raise ends

    with pytest.raises(ends):
        interrupted()
    send_both(transactional, topics, b"2")
    assert topics.values(topics.outputs) == [b"2"]


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
