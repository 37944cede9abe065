"""What the leaders of partitions answer, with a client whose answers are the test's."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from kafka import errors
from kafka.record.legacy_records import LegacyRecordBatchBuilder

from duewheel.errors import DuewheelError
from duewheel.kafka.log.leader_requests import LeaderRequests

PARTITION = ("timers", 3)


def requests(leader: int | None, records: bytes = b"") -> LeaderRequests:
    """To a cluster with this leader, whose log has these bytes."""
    answer = SimpleNamespace(
        partition_index=3, error_code=0, records=records, aborted_transactions=None
    )
    response = SimpleNamespace(responses=[SimpleNamespace(topic="timers", partitions=[answer])])

    async def send(request: Any, node: int) -> Any:
        return response

    cluster = SimpleNamespace(
        leader_for_partition=lambda _: leader, broker_metadata=lambda node: node >= 0
    )
    return LeaderRequests(SimpleNamespace(cluster=cluster, _manager=SimpleNamespace(send=send)))


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


def test_messages_of_old_brokers_are_refused_with_their_place() -> None:
    """One that is shorter than a batch's header would be asked for again and again."""
    built = LegacyRecordBatchBuilder(1, 0, 1 << 20)
    built.append(7, 1_800_000_000_000, None, b"old")
    with pytest.raises(
        DuewheelError, match=r"timers-3: message format 1 at offset 7: .*delete the log"
    ):
        asyncio.run(requests(1, bytes(built.build())).fetch({PARTITION: 0}, 1 << 20, True))
