"""What the leaders of partitions answer, with a client whose answers are the test's."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from kafka import errors
from kafka.cluster import ClusterMetadata
from kafka.future import Future
from kafka.record.legacy_records import LegacyRecordBatchBuilder
from tests.harness.record_batches import batch, plain

from duewheel.errors import DuewheelError
from duewheel.kafka.log.leader_requests import Fetched, LeaderRequests
from duewheel.kafka.log.list_offsets_times import LATEST
from duewheel.schemas.batches import TopicPartition

PARTITION = ("timers", 3)


sent: list[Any] = []


async def at_once(future: Future, _: int) -> Any:
    return await future


def requests(leader: int | None, records: bytes = b"") -> LeaderRequests:
    """To a cluster with this leader, whose log has these bytes."""
    answer = SimpleNamespace(
        partition_index=3, error_code=0, records=records, aborted_transactions=None
    )
    response = SimpleNamespace(responses=[SimpleNamespace(topic="timers", partitions=[answer])])

    def send(request: Any, node: int) -> Future:
        sent.append(request)
        return Future().success(response)

    cluster = SimpleNamespace(
        leader_for_partition=lambda _: leader, broker_metadata=lambda node: node >= 0
    )
    manager = SimpleNamespace(send=send, wait_for=at_once)
    return LeaderRequests(SimpleNamespace(cluster=cluster, _manager=manager))


@pytest.mark.parametrize(
    ("leader", "error"),
    [
        (-1, errors.LeaderNotAvailableError("no leader of timers-3, timers-5")),
        (None, errors.UnknownTopicOrPartitionError("timers-3, timers-5")),
    ],
)
def test_partitions_without_leader_are_named(leader: int | None, error: Exception) -> None:
    answers = asyncio.run(requests(leader).fetch({PARTITION: 0, ("timers", 5): 0}, 1 << 20, True))
    assert {p: repr(answer) for p, answer in answers.items()} == dict.fromkeys(
        (PARTITION, ("timers", 5)), repr(error)
    )


def test_a_leader_without_answer_is_waited_for_while_no_other_one_leads() -> None:
    hangs, answered, leaders = Future(), Future(), iter([1, 1, 1, 2])
    waits = 0

    async def wait_for(future: Future, _: int) -> Any:
        nonlocal waits
        waits += 1
        if waits == 3 and future is answered:
            answered.success(SimpleNamespace(topics=[]))
        if future.is_done:
            return await future
        raise errors.KafkaTimeoutError

    def answers(sent: Future) -> dict[TopicPartition, int | Exception]:
        cluster = SimpleNamespace(
            leader_for_partition=lambda _: next(leaders), broker_metadata=lambda _: True
        )
        manager = SimpleNamespace(send=lambda *_: sent, wait_for=wait_for)
        of_leader = LeaderRequests(SimpleNamespace(cluster=cluster, _manager=manager))
        return asyncio.run(of_leader.list_offsets([PARTITION], LATEST, True))

    (moved,) = answers(hangs).values()
    assert isinstance(moved, errors.NotLeaderForPartitionError)
    assert waits == 3
    leaders, waits = iter([1] * 3), 0
    assert answers(answered) == {}
    failed = Future().failure(errors.KafkaTimeoutError("its own"))
    leaders = iter([1])
    (own,) = answers(failed).values()
    assert "its own" in str(own)


def test_messages_of_old_brokers_are_refused_with_their_place() -> None:
    """One that is shorter than a batch's header would be asked for again and again."""
    built = LegacyRecordBatchBuilder(1, 0, 1 << 20)
    built.append(7, 1_800_000_000_000, None, b"old")
    with pytest.raises(
        DuewheelError, match=r"timers-3: message format 1 at offset 7: .*the log is deleted"
    ):
        asyncio.run(requests(1, bytes(built.build())).fetch({PARTITION: 0}, 1 << 20, True))


def test_partitions_share_an_answer() -> None:
    """A broker would fill it with the first one that has a backlog, again for each of the others,
    though a batch of ingest needs some kilobytes of each.
    """
    sizes = list[int]()
    for count in (1, 4, 100):
        positions = {("timers", 3 + number): 0 for number in range(count)}
        asyncio.run(requests(1).fetch(positions, 8 << 20, True))
        sizes += {p.partition_max_bytes for t in sent.pop().topics for p in t.partitions}
    assert sizes == [8 << 20, 2 << 20, 1 << 20]


def test_what_is_behind_a_range_is_not_looked_at() -> None:
    """A part of an answer, of thousands of batches."""
    batches = [bytes(batch([plain(n)], 10 * n)) for n in range(5)]
    for until, count, end in ((11, 3, 11), (15, 3, 15), (20, 3, 20), (21, 4, 21), (99, 5, 41)):
        octets = b"".join(batches[:count]) + bytes(61 if count < 5 else 0)  # of no format
        fetch = requests(1, octets).fetch({PARTITION: 0}, 1 << 20, True, {PARTITION: until})
        found = asyncio.run(fetch)[PARTITION]
        assert isinstance(found, Fetched)
        assert found.end == end


def waited(*answers: Any) -> bool:
    """Whether a wait brings news, of a leader for each answer: None if it has none yet."""

    def send(_: Any, node: int) -> Future:
        answer, sent = answers[node], Future()
        if isinstance(answer, Exception):
            return sent.failure(answer)
        return sent if answer is None else sent.success(answer)

    cluster = SimpleNamespace(
        leader_for_partition=lambda partition: partition.partition, broker_metadata=lambda _: True
    )
    manager = SimpleNamespace(send=send, wait_for=at_once)
    client = SimpleNamespace(cluster=cluster, _manager=manager)
    positions = {("timers", number): 7 for number in range(len(answers))}
    return asyncio.run(LeaderRequests(client).await_news(positions, True, 500))


def news(records: bytes | None, error_code: int = 0) -> Any:
    answer = SimpleNamespace(error_code=error_code, records=records)
    return SimpleNamespace(responses=[SimpleNamespace(topic="timers", partitions=[answer])])


@pytest.mark.parametrize(
    ("answers", "is_news"),
    [
        ((None, news(b"x"), None), True),
        ((None, news(b"")), False),
        ((news(None),), False),
        ((news(b"", error_code=6), None), True),
        ((None, errors.KafkaConnectionError("gone")), True),
    ],
    ids=["records", "none", "null", "error", "connection"],
)
def test_the_first_leader_that_answers_ends_a_wait(answers: list[Any], *, is_news: bool) -> None:
    assert waited(*answers) is is_news


def test_a_partition_without_a_leader_is_not_waited_for() -> None:
    assert asyncio.run(requests(-1).await_news({PARTITION: 0}, True, 500))
    assert asyncio.run(requests(None).await_news({PARTITION: 0}, True, 500))


def test_topics_that_are_left_out_are_asked_for_no_more() -> None:
    """kafka-python keeps the topics that it has if it gets only some of them."""
    cluster = ClusterMetadata()
    of_client = LeaderRequests(SimpleNamespace(cluster=cluster, _manager=None))
    of_client.set_topics(["timers", "deleted"])
    of_client.set_topics(["timers"])
    assert [topic.name for topic in cluster.metadata_request().topics] == ["timers"]
    of_client.set_topics([])
    assert not cluster.metadata_request().topics
