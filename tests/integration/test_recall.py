"""Cancelling and rescheduling from outside, on a real broker: what lies in the timer topic, and how
answers are found. Who answers here is the test, in the form in which the dequeue process does, but
for the tests at the end.
"""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaProducer, TopicPartition
from kafka.serializer import Serializer
from tests.harness.reader import TopicReader, everything_in, read_topic
from tests.harness.shared_broker import SharedBroker
from tests.harness.sparkless_shard import SparklessShard, until

from duewheel.api.requests import NamedTimers, Replacement
from duewheel.client import Answer, Cancel, DelayProducer, Timer, transaction
from duewheel.client.replies import ReplyReader
from duewheel.clock import SystemClock
from duewheel.config.settings import load
from duewheel.errors import ConfigError, DuewheelError, InvalidTimer
from duewheel.kafka.connect.clients import KafkaClients
from duewheel.kafka.topics.admin import KafkaAdmin
from duewheel.ops.changes import requests as changes
from duewheel.ops.changes.timer_writer import TimerWriter
from duewheel.schemas.header_names import IfPending

pytestmark = pytest.mark.kafka

TIMER_PARTITIONS = 3
REPLY_PARTITIONS = 2
WITHIN_S = 60.0
MASK = 0x7FFFFFFF
MURMUR2_ABC = 479470107  # of b"abc", as Kafka's Java client computes it

Headers = list[tuple[str, bytes]]


@dataclass(frozen=True)
class RecallTopics:
    """A timer topic, a target and a reply topic of one test's own."""

    servers: str
    timers: str
    orders: str
    replies: str

    def records(self) -> list[Any]:
        """Everything in the timer topic now."""
        return everything_in(self.servers, self.timers, TIMER_PARTITIONS)

    def producer(self, **options: Any) -> DelayProducer:
        return DelayProducer(self.timers, bootstrap_servers=self.servers, **options)


@pytest.fixture
def topics(broker: SharedBroker, unique_name: Callable[[str], str]) -> RecallTopics:
    made = RecallTopics(
        broker.bootstrap_servers, *(unique_name(p) for p in ("timers", "orders", "replies"))
    )
    with KafkaAdmin({"bootstrap_servers": [made.servers]}) as admin:
        admin.create_topic(made.timers, TIMER_PARTITIONS)
        admin.create_topic(made.replies, REPLY_PARTITIONS)
    return made


@pytest.fixture
def producer(topics: RecallTopics) -> Iterator[DelayProducer]:
    with topics.producer() as made:
        yield made


@pytest.fixture
def asking(topics: RecallTopics) -> Iterator[DelayProducer]:
    """A producer that is told the answers."""
    with topics.producer(reply_topic=topics.replies) as made:
        yield made


class Answerer:
    """Writes answers as the dequeue process does."""

    def __init__(self, topics: RecallTopics) -> None:
        self._topics = topics
        self._producer = KafkaProducer(bootstrap_servers=topics.servers)

    def answer(
        self, source: str, word: str, headers: Headers | None = None, partition: int | None = None
    ) -> None:
        value = {"answer": word, "id": "7", "source": source, "request": "cancel"}
        added = [
            ("TIMER_ANSWER", word.encode()),
            ("UNIQ_KEY", b"7"),
            ("TIMER_SOURCE", source.encode()),
        ]
        self._producer.send(
            self._topics.replies,
            json.dumps(value).encode(),
            headers=[*(headers or []), *added],
            partition=partition,
        ).get(WITHIN_S)

    def close(self) -> None:
        self._producer.close()


@pytest.fixture
def answerer(topics: RecallTopics) -> Iterator[Answerer]:
    made = Answerer(topics)
    yield made
    made.close()


def source(written: Cancel | Timer) -> str:
    return f"{written.timer_topic}-{written.partition}@{written.offset}"


def bracketed(text: str) -> bytes:
    """Shows how often it was applied."""
    return f"<{text}>".encode()


class Brackets(Serializer):  # type: ignore[misc]  # kafka-python brings no types
    """The other form that KafkaProducer takes."""

    def serialize(self, topic: str, headers: Headers, data: str | None) -> bytes | None:
        return None if data is None else bracketed(data)


# ---- where requests lie, and what they hold ------------------------------------------------------


def test_a_cancel_lies_where_its_timer_lies(topics: RecallTopics) -> None:
    with topics.producer(key_serializer=Brackets(), value_serializer=bracketed) as producer:
        by_key = producer.schedule(topics.orders, "v", key="k", delay="1h", id="7")
        by_partition = producer.schedule(topics.orders, "v", delay="1h", id="8", partition=4)
        by_handle = producer.schedule(topics.orders, "v", delay="1h").result(WITHIN_S)
        elsewhere = [
            producer.schedule(topics.orders, "v", delay="1h", partition=n).result(WITHIN_S)
            for n in range(TIMER_PARTITIONS)
        ]
        own: Headers = [("x", b"1"), ("TIMER_ANSWER", b"an earlier one")]
        cancels = [
            producer.cancel("7", key="k", headers=own),
            producer.cancel("8", partition=4),
            producer.cancel("8", partition=by_partition.result(WITHIN_S).partition),
            producer.cancel(by_handle.handle),
        ]
        written = [asked.result(WITHIN_S) for asked in cancels]
        handles = [producer.cancel(timer.handle).result(WITHIN_S) for timer in elsewhere]
    assert [c.partition for c in handles] == list(range(TIMER_PARTITIONS))
    timers = [by_key.result(0), by_partition.result(0), by_partition.result(0), by_handle]
    assert [c.partition for c in written] == [t.partition for t in timers]
    assert [c.id for c in written] == ["7", "8", "8", source(by_handle)]
    records = {f"{r.topic}-{r.partition}@{r.offset}": r for r in topics.records()}
    found = [records[source(c)] for c in written]
    assert [(r.key, r.value, r.headers) for r in found] == [
        (b"<k>", b"", [*own, ("TIMER_DEL_UNIQKEY", b"7")]),
        (None, b"", [("TIMER_DEL_UNIQKEY", b"8")]),
        (None, b"", [("TIMER_DEL_UNIQKEY", b"8")]),
        (
            None,
            b"",
            [
                ("TIMER_DEL_UNIQKEY", source(by_handle).encode()),
                ("TIMER_CANCEL_OFFSET", b"%d" % by_handle.offset),
            ],
        ),
    ]


def test_keys_are_placed_as_those_of_timers(topics: RecallTopics, producer: DelayProducer) -> None:
    asked = producer.cancel("7", key=b"abc").result(WITHIN_S)
    assert asked.partition == (MURMUR2_ABC & MASK) % TIMER_PARTITIONS


def test_a_message_is_read_back_byte_for_byte(topics: RecallTopics) -> None:
    own: Headers = [("x", b"1"), ("x", b"\xff"), ("empty", b"")]
    with topics.producer(key_serializer=Brackets(), value_serializer=bracketed) as producer:
        first = producer.schedule(
            *(topics.orders, "pay"), key="k", headers=own, delay="1h", window="2m", partition=4
        ).result(WITHIN_S)
        again = producer.reschedule(first.handle, delay="2h").result(WITHIN_S)
        third = producer.reschedule(again.handle, deliver_at=first.due_ms, value="new")
        last = producer.reschedule(
            third.result(WITHIN_S).handle, level=3, window=timedelta(seconds=5)
        ).result(WITHIN_S)
    target = [("REAL_TOPIC", topics.orders.encode()), ("REAL_QID", b"4")]
    request = [("UNIQ_KEY", source(first).encode()), ("TIMER_RESCHEDULE", b"true")]
    records = topics.records()
    named = [[("TIMER_CANCEL_OFFSET", b"%d" % r.offset)] for r in records]
    assert {r.partition for r in records} == {first.partition}
    assert [(r.key, r.value, r.headers) for r in records] == [
        (
            *(b"<k>", b"<pay>"),
            [*own, ("TIMER_DELAY_MS", b"3600000"), ("TIMER_WINDOW_MS", b"120000"), *target],
        ),
        (b"<k>", b"<pay>", [*own, *target, ("TIMER_DELAY_MS", b"7200000"), *request, *named[0]]),
        (
            *(b"<k>", b"<new>"),
            [*own, *target, ("TIMER_DELIVER_MS", b"%d" % first.due_ms), *request, *named[1]],
        ),
        (
            *(b"<k>", b"<new>"),
            [*own, *target, ("DELAY", b"3"), ("TIMER_WINDOW_MS", b"5000"), *request, *named[2]],
        ),
    ]
    assert {t.id for t in (again, last)} == {source(first)}
    assert [again.due_ms, last.due_ms] == [
        records[1].timestamp + 7_200_000,
        records[3].timestamp + 10_000,
    ]


def test_a_message_given_again(topics: RecallTopics, producer: DelayProducer) -> None:
    timer = producer.schedule(topics.orders, b"old", delay="1h").result(WITHIN_S)
    own: Headers = [("x", b"1")]
    written = [
        producer.reschedule(
            timer.handle, delay="1s", topic=topics.orders, value=b"new", key=b"k", headers=own
        ).result(WITHIN_S),
        producer.reschedule("7", delay="1s", topic=topics.orders, value=None, key=b"abc").result(
            WITHIN_S
        ),
        producer.reschedule("7", delay="1s", topic=topics.orders, value=b"", partition=4).result(
            WITHIN_S
        ),
    ]
    partitions = [timer.partition, (MURMUR2_ABC & MASK) % TIMER_PARTITIONS, 4 % TIMER_PARTITIONS]
    assert [t.partition for t in written] == partitions
    records = {f"{r.topic}-{r.partition}@{r.offset}": r for r in topics.records()}
    target, when = ("REAL_TOPIC", topics.orders.encode()), ("TIMER_DELAY_MS", b"1000")
    first, seven = ("UNIQ_KEY", source(timer).encode()), ("UNIQ_KEY", b"7")
    mark, only = ("TIMER_RESCHEDULE", b"true"), ("TIMER_CANCEL_OFFSET", b"%d" % timer.offset)
    found = [records[source(t)] for t in written]
    assert [(r.key, r.value, r.headers) for r in found] == [
        (b"k", b"new", [*own, target, when, first, mark, only]),
        (b"abc", None, [target, when, seven, mark]),
        (None, b"", [target, ("REAL_QID", b"4"), when, seven, mark]),
    ]


def test_what_is_refused_is_not_written(topics: RecallTopics, producer: DelayProducer) -> None:
    here = Timer("7", topics.timers, 0, 0, 0).handle
    for asked, reason in (
        ({"timer": "7"}, "needs the timer's key or partition"),
        ({"timer": here[:-1]}, "no recall handle, or was changed or cut short"),
        ({"timer": here, "key": b"k"}, "give neither key nor partition"),
        ({"timer": here, "partition": 0}, "give neither key nor partition"),
        ({"timer": Timer("7", "other", 0, 0, 0).handle}, 'names the timer topic "other", not "'),
        ({"timer": Timer("7", topics.timers, 3, 0, 0).handle}, "has no partition 3"),
        ({"timer": "", "key": b"k"}, "0 bytes, not 1 to 255"),
        ({"timer": "7", "partition": -1}, "partition -1"),
        ({"timer": "7", "key": b"k", "headers": [("DELAY", b"1")]}, "DELAY is reserved"),
    ):
        with pytest.raises(InvalidTimer, match=reason):
            producer.cancel(**asked)
    message = {"topic": topics.orders, "value": b""}
    for asked, reason in (
        ({"timer": here}, "exactly one"),
        ({"timer": "7", "delay": "1s", **message}, "needs the timer's key or partition"),
        ({"timer": "7", "delay": "1s", "key": b"k"}, r"give target \(topic\) and value"),
        ({"timer": here, "delay": "1s", "topic": topics.orders}, "give the value, too"),
        ({"timer": here, "delay": "1s", "key": b"k"}, "at most a value"),
        ({"timer": here, "delay": "1s", "topic": topics.timers, "value": b""}, "topic itself"),
        ({"timer": here, "delay": "1s"}, "is no longer in Kafka"),
    ):
        with pytest.raises(InvalidTimer, match=reason):
            producer.reschedule(**asked)
    assert topics.records() == []


def test_a_message_that_is_gone_or_another_timers(
    topics: RecallTopics, producer: DelayProducer
) -> None:
    timers = [
        producer.schedule(topics.orders, b"", delay="1h", partition=0, id=timer_id).result(WITHIN_S)
        for timer_id in ("1", "2", "3")
    ]
    client = KafkaAdminClient(bootstrap_servers=topics.servers)
    client.delete_records({TopicPartition(topics.timers, 0): 1})
    client.close()
    refused = [
        (timers[0], "is no longer in Kafka .the topic has offsets 1 to 2"),
        (Timer("2", topics.timers, 0, 2, timers[2].due_ms), "not the timer of the recall handle"),
        (Timer("2", topics.timers, 0, 1, timers[2].due_ms + 1), "not the timer of the recall"),
    ]
    for timer, reason in refused:
        with pytest.raises(InvalidTimer, match=reason):
            producer.reschedule(timer.handle, delay="1s")
    assert producer.reschedule(timers[1].handle, delay="1s").result(WITHIN_S).id == "2"


def test_a_recurring_timer_is_not_rescheduled_by_its_handle(
    topics: RecallTopics, producer: DelayProducer
) -> None:
    """Its new record would have a due time beside the recurrence: ingest rejects that."""
    headers: list[tuple[str, bytes]] = [("UNIQ_KEY", b"daily"), ("TIMER_EVERY", b"1d")]
    with closing(KafkaProducer(bootstrap_servers=topics.servers)) as plain:
        place = plain.send(topics.timers, b"v", headers=headers, partition=0).get(WITHIN_S)
    timer = Timer("daily", topics.timers, 0, place.offset, place.timestamp)
    with pytest.raises(InvalidTimer, match=r"a recurring one: .* with TIMER_RESCHEDULE: true"):
        producer.reschedule(timer.handle, delay="1s")


# ---- answers -------------------------------------------------------------------------------------


def test_each_request_finds_its_own_answer(
    topics: RecallTopics, asking: DelayProducer, answerer: Answerer
) -> None:
    first = asking.cancel("7", key=b"k").result(WITHIN_S)
    with pytest.raises(TimeoutError):
        first.answer(0.01)
    assert first.reply is not None
    assert not first.reply.cancel(), "the reader could not answer it"
    answerer.answer("elsewhere-0@1", "cancelled")
    answerer.answer(source(first), "not a word of ours")
    again = [("TIMER_SOURCE", b"of what the user had delivered before"), ("TIMER_ANSWER", b"x")]
    answerer.answer(source(first), "already_delivered", again)
    assert first.answer(WITHIN_S) is Answer.ALREADY_DELIVERED
    # Many at a time, one of them a reschedule: one reader, whatever order the answers come in.
    asked: list[Future[Any]] = [asking.cancel("7", key=b"%d" % n) for n in range(40)]
    asked.append(asking.reschedule("7", key=b"k", delay="1h", topic=topics.orders, value=b""))
    written = [each.result(WITHIN_S) for each in asked]
    words = [list(Answer)[n % 3] for n in range(len(written))]
    for each, word in reversed(list(zip(written, words, strict=True))):
        answerer.answer(source(each), word)
    assert [each.answer(WITHIN_S) for each in written] == words
    assert [t.name for t in threading.enumerate()].count("replies") == 1


def test_an_answer_in_a_transaction_counts_once_that_is_committed(
    topics: RecallTopics, asking: DelayProducer
) -> None:
    cancel = asking.cancel("7", key=b"k").result(WITHIN_S)
    headers = [("TIMER_ANSWER", b"unknown"), ("TIMER_SOURCE", source(cancel).encode())]
    aborted = [("TIMER_ANSWER", b"cancelled"), headers[1]]
    writer = KafkaProducer(bootstrap_servers=topics.servers, transactional_id=topics.replies)
    writer.init_transactions()
    writer.begin_transaction()
    writer.send(topics.replies, b"", headers=aborted).get(WITHIN_S)
    writer.abort_transaction()
    with transaction(writer):
        writer.send(topics.replies, b"", headers=headers).get(WITHIN_S)
        with pytest.raises(TimeoutError):
            cancel.answer(0.5)
    assert cancel.answer(WITHIN_S) is Answer.UNKNOWN
    writer.close()


def test_an_answer_may_come_before_the_acknowledgement(
    topics: RecallTopics, answerer: Answerer
) -> None:
    """And what is kept for that is bounded by the requests that are open."""
    client = KafkaClients({"bootstrap_servers": topics.servers})
    reader = ReplyReader(client, topics.replies, early_max=20, fetch_bytes=1)

    def answer(number: int, word: str = "unknown") -> None:
        """In one partition, so that they are read in this order."""
        answerer.answer(f"t-0@{number}", word, partition=0)

    answer(1)  # before anything was expected: never read
    older, open_, reads = (reader.expect("t") for _ in range(3))
    answer(1, "cancelled")
    answer(100)
    assert reader.written(reads, "t-0@100").result(WITHIN_S) is Answer.UNKNOWN
    newer, newest, last = (reader.expect("t") for _ in range(3))
    for number in range(2, 42):
        answer(number)
    time.sleep(0.5)  # in which all of them could be read
    waited = reader.written(last, "t-0@41")
    assert not waited.done(), "reading pauses at twenty that nobody has claimed"
    reader.failed(older)
    assert reader.written(open_, "t-0@1").result(0) is Answer.CANCELLED
    # The first answer could have been theirs only.
    assert not reader.written(newest, "t-0@1").done()
    assert reader.written(newer, "t-0@2").result(0) is Answer.UNKNOWN
    assert waited.result(WITHIN_S) is Answer.UNKNOWN
    assert not reader.written(reader.expect("t"), "t-0@3").done(), "forgotten with the last request"
    del waited
    gc.collect()
    time.sleep(1)  # ten polls, and nobody asks any more: nothing is read
    answer(77)
    asked = reader.expect("t")
    answer(77, "cancelled")
    assert reader.written(asked, "t-0@77").result(WITHIN_S) is Answer.CANCELLED
    reader.close()


def test_answers_to_others_do_not_stop_the_reader(topics: RecallTopics, answerer: Answerer) -> None:
    """Though a request is open that Kafka does not acknowledge."""
    client = KafkaClients({"bootstrap_servers": topics.servers})
    reader = ReplyReader(client, topics.replies, early_max=20, fetch_bytes=1)
    stuck, written = reader.expect("t-1"), reader.expect("t")
    for number in range(40):
        answerer.answer(f"t-2-0@{number}", "unknown", partition=0)
    answerer.answer("t-1-0@7", "unknown", partition=0)
    answerer.answer("t-0@5", "cancelled", partition=0)
    assert reader.written(written, "t-0@5").result(WITHIN_S) is Answer.CANCELLED
    assert reader.written(stuck, "t-1-0@7").result(0) is Answer.UNKNOWN
    reader.close()


def test_answers_that_nobody_waits_for_are_forgotten(
    topics: RecallTopics, asking: DelayProducer, answerer: Answerer
) -> None:
    cancels = [asking.cancel("7", key=b"%d" % n).result(WITHIN_S) for n in range(3)]
    replies = [weakref.ref(cancel.reply) for cancel in cancels if cancel.reply is not None]
    kept = cancels.pop()
    cancels.clear()
    gc.collect()
    assert [reply() for reply in replies] == [None, None, kept.reply]
    asking.close()
    with pytest.raises(DuewheelError, match="closed before the reply came"):
        kept.answer(0)


def test_without_answers(topics: RecallTopics, producer: DelayProducer) -> None:
    with pytest.raises(ConfigError, match="made without reply_topic"):
        producer.cancel("7", key=b"k").result(WITHIN_S).answer(1)
    with topics.producer(reply_topic=f"{topics.replies}.none") as asking:
        for _ in range(2):
            with pytest.raises(ConfigError, match="has no reply topic"):
                asking.cancel("7", key=b"k")
    assert len(topics.records()) == 1


# ---- the command line ----------------------------------------------------------------------------


class AnswersAll(TopicReader):
    """Answers every request in the timer topic: cancels come too late, reschedules in time."""

    def __init__(self, topics: RecallTopics, answerer: Answerer) -> None:
        super().__init__(topics.servers, [topics.timers], self._answer)
        self._answerer = answerer

    def _answer(self, records: Sequence[Any]) -> None:
        for record in records:
            where = f"{record.topic}-{record.partition}@{record.offset}"
            request = dict(record.headers)
            if "TIMER_DEL_UNIQKEY" in request:
                self._answerer.answer(where, "already_delivered")
            elif "TIMER_RESCHEDULE" in request:
                self._answerer.answer(where, "cancelled")


def test_commands(
    topics: RecallTopics, producer: DelayProducer, answerer: Answerer, tmp_path: Path
) -> None:
    path = tmp_path / "duewheel.toml"
    path.write_text(
        f'[kafka]\nbootstrap_servers = "{topics.servers}"\n'
        f'[timer]\ntopics = ["{topics.timers}"]\nreply_topic = "{topics.replies}"\n'
        'targets = ["*"]\n'
    )
    timer = producer.schedule(topics.orders, b"pay", key=b"abc", delay="1h", id="7").result(
        WITHIN_S
    )
    line = [sys.executable, "-P", "-m", "duewheel", "--config", str(path), "--output", "json"]
    answering = AnswersAll(topics, answerer)
    answering.start()
    try:
        started = [
            subprocess.Popen(
                [*line[:4], *words, "--handle", timer.handle, *line[4:]], stdout=subprocess.PIPE
            )
            for words in (["cancel"], ["reschedule", "--delay", "2h"])
        ]
        told = [json.loads(each.communicate(timeout=WITHIN_S)[0]) for each in started]
        assert [each.returncode for each in started] == [1, 0]
        writer = TimerWriter(load(path), SystemClock())
        by_id = NamedTimers(id="7", key="abc")
        new = Replacement(topic=topics.orders, value="", delay="1h")
        told.append(changes.reschedule(writer, by_id, new, reply=True).after(WITHIN_S).as_json())
        told.append(changes.cancel(writer, by_id, reply=False).after(0).as_json())  # does not wait
    finally:
        answering.stop()
    told.append(
        changes.cancel(writer, by_id, reply=True).after(0.1).as_json()
    )  # and here nobody answers
    writer.close()
    words = ["already_delivered", "cancelled", "cancelled", None, None]
    assert [each["answer"] for each in told] == words
    assert {(each["id"], each["partition"]) for each in told} == {("7", timer.partition)}
    records = {record.offset: record for record in topics.records()}
    again = records[told[1]["offset"]]
    assert (again.key, again.value) == (b"abc", b"pay")
    assert told[1]["due_ms"] == again.timestamp + 7_200_000
    assert producer.cancel(told[1]["handle"]).result(WITHIN_S).id == "7"


# ---- answered by a shard -------------------------------------------------------------------------


def test_a_handle_cancels_the_one_of_two_timers_of_an_id(config: Path) -> None:
    """And says so again; the other one is delivered, and is found by its own handle only."""
    replies = f"{load(config).app.id}.replies"
    config.write_text(
        config.read_text().replace("[timer]\n", f'[timer]\nreply_topic = "{replies}"\n')
    )
    with closing(SparklessShard(load(config), 1)) as shard:
        own = DelayProducer(shard.timers, bootstrap_servers=shard.servers, reply_topic=replies)
        with own as client:

            def told(handle: str) -> Answer:
                asked = client.cancel(handle).result(WITHIN_S)
                until(shard, lambda: asked.reply is not None and asked.reply.done())
                return asked.answer(0)

            first, second = (
                client.schedule(shard.target, value, key=b"k", delay="4s", id="7").result(WITHIN_S)
                for value in (b"first", b"second")
            )
            assert (first.partition, first.id) == (second.partition, second.id)
            assert told(first.handle) is Answer.CANCELLED
            until(shard, lambda: len(read_topic(shard.servers, shard.target)) == 1)
            assert told(first.handle) is Answer.CANCELLED
            assert told(second.handle) is Answer.ALREADY_DELIVERED
        delivered = [record.value for record in read_topic(shard.servers, shard.target)]
        assert delivered == [b"second"]
        assert len(read_topic(shard.servers, replies)) == 3
        assert shard.letters() == []


def test_the_first_timer_of_an_id_stays_until_it_is_replaced(config: Path) -> None:
    """By the header of any client's record; the pending one is in an earlier batch."""
    replies = f"{load(config).app.id}.replies"
    config.write_text(
        config.read_text().replace("[timer]\n", f'[timer]\nreply_topic = "{replies}"\n')
    )
    with closing(SparklessShard(load(config), 1)) as shard:
        with DelayProducer(shard.timers, bootstrap_servers=shard.servers) as client:

            def written(value: bytes, delay: str, word: IfPending, timer_id: str = "7") -> Timer:
                return client.schedule(
                    shard.target, value, key=b"k", id=timer_id, delay=delay, if_pending=word
                ).result(WITHIN_S)

            timers = [written(b"first", "1h", "keep")]
            until(shard, lambda: len(read_topic(shard.servers, replies)) == 1)
            timers += [written(b"dropped", "1s", "keep"), written(b"other", "1s", "keep", "8")]
            until(shard, lambda: len(read_topic(shard.servers, replies)) == 3)
            timers += [written(b"second", "4s", "replace"), written(b"dropped, too", "1s", "keep")]
            until(shard, lambda: len(read_topic(shard.servers, shard.target)) == 2)
        delivered = {record.value for record in read_topic(shard.servers, shard.target)}
        assert delivered == {b"other", b"second"}
        said = [json.loads(record.value) for record in read_topic(shard.servers, replies)]
        source = "{0.timer_topic}-{0.partition}@{0.offset}".format
        words = {each["source"]: (each["request"], each["answer"]) for each in said}
        assert [words[source(timer)] for timer in timers] == [
            ("keep", "taken"),
            ("keep", "kept"),
            ("keep", "taken"),
            ("reschedule", "cancelled"),
            ("keep", "kept"),
        ]
        assert shard.letters() == []
