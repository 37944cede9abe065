"""Metadata from answers about topics, including answers that no single broker gives.

Also of kafka/topics/transaction_settings.py.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from kafka.errors import InvalidRecordError, MessageSizeTooLargeError
from structlog.testing import capture_logs
from tests.harness.deliveries import rows

from duewheel.deadline import Deadline
from duewheel.errors import KafkaUnavailable
from duewheel.kafka.connect.clients import KafkaClients
from duewheel.kafka.targets import unavailable_partitions
from duewheel.kafka.targets.catalog import LOOKUPS_MAX, TargetCatalog
from duewheel.kafka.targets.refusal_limits import RefusalLimits
from duewheel.kafka.targets.target_cache import TargetCache
from duewheel.kafka.targets.unavailable_partitions import UnavailablePartitions
from duewheel.kafka.transaction_limits import TransactionLimits
from duewheel.schemas.columns import binary
from duewheel.schemas.wire.batch_header import HEADER_BYTES
from duewheel.schemas.wire.record_batch import Batch
from duewheel.wheel.encoded import Part
from duewheel.wheel.target_rules import Reason, Target


def partition(number: int, leader: int = 1, replicas: int = 3, in_sync: int = 3) -> dict[str, Any]:
    return {
        "partition_index": number,
        "error_code": 0 if leader >= 0 else 5,
        "leader_id": leader,
        "replica_nodes": list(range(1, replicas + 1)),
        "isr_nodes": list(range(1, in_sync + 1)),
    }


def topic(*partitions: dict[str, Any], **others: Any) -> dict[str, Any]:
    always = {"error_code": 0, "is_internal": False, "topic_id": uuid.UUID(int=1)}
    return {**always, "partitions": list(partitions), **others}


class MetadataClient:
    """Answers as KafkaAdminClient gives them."""

    def __init__(self, topics: Mapping[str, dict[str, Any]], config: Mapping[str, str]) -> None:
        self.topics, self.config = dict(topics), config
        self.asked = 0

    def describe_topics(self, names: Sequence[str]) -> list[dict[str, Any]]:
        self.asked += 1
        return [{"name": name, **self.topics[name]} for name in names if name in self.topics]

    def describe_configs(self, resources: Sequence[Any], **_: Any) -> dict[str, Any]:
        config = {name: {"value": value} for name, value in self.config.items()}
        return {"topic": {resource.name: config for resource in resources}}


LIMITS = TransactionLimits(batch_bytes=8_000, batch_bytes_max=90_000)


def catalog(
    limits: TransactionLimits = LIMITS,
    unavailable: UnavailablePartitions | None = None,
    refusals: RefusalLimits | None = None,
    now_s: Callable[[], float] = lambda: 0.0,
) -> TargetCatalog:
    cache = TargetCache(KafkaClients({}), limits, refusals or RefusalLimits(), now_s=now_s)
    return TargetCatalog(cache, unavailable or UnavailablePartitions(), now_s)


def look_up(asked: TargetCatalog, cluster: MetadataClient, *names: str) -> dict[str, Target]:
    return asked.resolve(cluster, names, Deadline(10))


@pytest.mark.parametrize(
    ("in_sync_min", "answer", "takes_writes"),
    [
        ("1", partition(0), True),
        ("1", partition(0, leader=-1), False),
        ("2", partition(0, in_sync=2), True),
        ("2", partition(0, in_sync=1), False),
        ("2", partition(0, replicas=1, in_sync=1), True),  # Kafka asks for no more than there are
    ],
)
def test_which_partitions_take_writes(
    in_sync_min: str, answer: dict[str, Any], takes_writes: bool
) -> None:
    other = partition(1)
    cluster = MetadataClient({"t": topic(answer, other)}, {"min.insync.replicas": in_sync_min})
    target = look_up(catalog(), cluster, "t")["t"]
    assert (target.partitions, target.refusal) == (2, Reason.NONE)
    assert target.unavailable == (frozenset() if takes_writes else {0})


def test_without_the_right_to_read_settings_only_leaders_count() -> None:
    cluster = MetadataClient({"t": topic(partition(0, in_sync=1), partition(1, leader=-1))}, {})
    assert look_up(catalog(), cluster, "t")["t"].unavailable == {1}


def test_an_outage_is_believed_for_a_shorter_time() -> None:
    cluster = MetadataClient(
        {"down": topic(partition(0, leader=-1)), "up": topic(partition(0))}, {}
    )
    now_s = 0.0
    asked = catalog(now_s=lambda: now_s)
    assert look_up(asked, cluster, "down", "up")["down"].unavailable == {0}
    now_s = LIMITS.unavailable_target_age_s
    look_up(asked, cluster, "up")
    assert cluster.asked == 1
    cluster.topics["down"] = topic(partition(0))
    assert look_up(asked, cluster, "down")["down"].unavailable == frozenset()
    assert cluster.asked == 2


def test_what_is_missing_or_not_allowed_is_refused_and_not_waited_for() -> None:
    cluster = MetadataClient(
        {
            "forbidden": topic(error_code=29),
            "read only": topic(partition(0)),
            "read.only": topic(partition(0), authorized_operations=["READ", "DESCRIBE"]),
            "internal": topic(partition(0), is_internal=True),
        },
        {},
    )
    found = look_up(catalog(), cluster, "forbidden", "read only", "read.only", "internal", "gone")
    assert {name: target.refusal for name, target in found.items()} == {
        "forbidden": Reason.TARGET_NOT_AUTHORIZED,
        "read only": Reason.UNKNOWN_TARGET_TOPIC,
        "read.only": Reason.TARGET_NOT_AUTHORIZED,
        "internal": Reason.UNKNOWN_TARGET_TOPIC,
        "gone": Reason.UNKNOWN_TARGET_TOPIC,
    }
    cluster.topics["new"] = topic(error_code=5)
    with pytest.raises(KafkaUnavailable):
        look_up(catalog(), cluster, "new")


def sent(partition: int, size: int, source: bytes | None = None) -> Part:
    return Part("t", partition, Batch(memoryview(bytes(size - HEADER_BYTES)), 1), source)


def test_a_failed_partition_takes_no_writes_until_rows_for_it_are_published() -> None:
    cluster = MetadataClient({"t": topic(partition(0), partition(1))}, {})
    failures = UnavailablePartitions()
    asked = catalog(unavailable=failures)
    size = look_up(asked, cluster, "t")["t"].batch_bytes
    failures.note_failures([(("t", 1), "NotEnoughReplicasError")])
    assert look_up(asked, cluster, "t")["t"].unavailable == {1}
    assert asked.recall(["t"])["t"].unavailable == {1}
    assert asked.recall(["t"])["t"].batch_bytes == size, "batches stay as large"
    failures.note_success([("t", 1)])
    assert look_up(asked, cluster, "t")["t"].unavailable == frozenset()


def test_a_partition_recovers_also_if_the_log_has_dropped_its_topic(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(unavailable_partitions, "_LOGGED_MAX", 1)
    failures = UnavailablePartitions()
    failures.note_failures([(("a", 0), "no answer"), (("b", 0), "no answer")])
    failures.note_success([("b", 0)])
    assert failures.has_failed(("a", 0))
    failures.note_success([("a", 0)])
    assert not failures.has_failed(("a", 0)), "its next failure would count as a second one"


def test_only_the_catalog_of_deliveries_logs_the_fate_of_timers() -> None:
    """Commands describe timer topics, too: nothing of theirs is parked."""

    class Flushing(MetadataClient):
        def describe_configs(self, resources: Sequence[Any], **_: Any) -> dict[str, Any]:
            flush = {"value": "1", "config_source": "DYNAMIC_TOPIC_CONFIG"}
            return {"topic": {each.name: {"flush.messages": flush} for each in resources}}

    cluster: Any = Flushing({"t": topic(partition(0, leader=-1))}, {})
    cache = TargetCache(KafkaClients({}), LIMITS, RefusalLimits())
    with capture_logs() as lines:
        assert cache.resolve(cluster, ["t"], Deadline(10))["t"].unavailable == {0}
    assert lines == []
    with capture_logs() as lines:
        look_up(catalog(), cluster, "t")
    assert [line["event"].split(":")[0] for line in lines] == [
        "settings make appends slow",
        "target takes no writes",
    ]


def test_a_closed_topic_takes_no_writes_until_it_is_closed_no_more() -> None:
    cluster = MetadataClient({"t": topic(partition(0), partition(1))}, {})
    failures = UnavailablePartitions()
    asked = catalog(unavailable=failures)
    failures.close_topics({"t": "it refuses a marker"})
    closed = look_up(asked, cluster, "t")["t"]
    assert (closed.unavailable, closed.closed_by) == (frozenset({0, 1}), "it refuses a marker")
    failures.close_topics({})
    assert look_up(asked, cluster, "t")["t"].unavailable == frozenset()
    assert cluster.asked == 1


def test_refusals_narrow_down_to_the_bad_record() -> None:
    client: Any = MetadataClient({"t": topic(partition(0)), "other": topic(partition(0))}, {})
    refusals = RefusalLimits()
    asked = catalog(refusals=refusals)
    error = InvalidRecordError("bad")
    sizes = []
    while (size := look_up(asked, client, "t")["t"].batch_bytes) > 100:
        sizes.append(size)
        refusals.note_refusal(sent(0, size), error)
    assert sizes == [8_000, 4_000, 2_000, 1_000, 500, 250, 125]
    assert look_up(asked, client, "other")["other"].batch_bytes == 8_000
    refusals.note_refusal(sent(0, 100, b"orders.delayed-0@7"), error)
    refusals.note_success(rows(["t", "t"], [0, 0]))
    assert refusals.refused == {b"orders.delayed-0@7"}
    refusals.note_success(replace(rows(["t"], [0]), source=binary([b"orders.delayed-0@7"])))
    assert refusals.refused == set()


def test_the_size_of_a_record_that_was_too_large_bounds_the_next_ones() -> None:
    cluster, refusals = MetadataClient({"t": topic(partition(0))}, {}), RefusalLimits()
    asked = catalog(refusals=refusals)
    assert look_up(asked, cluster, "t")["t"].batch_bytes_max == 90_000
    refusals.note_refusal(sent(0, 500, b"orders.delayed-0@7"), MessageSizeTooLargeError("large"))
    asked.forget()  # as after each failed transaction
    assert look_up(asked, cluster, "t")["t"].batch_bytes_max == 499
    assert refusals.refused == set()


@pytest.mark.parametrize(
    ("config", "closed_by"),
    [
        ({"message.timestamp.before.max.ms": "0"}, "message.timestamp.before.max.ms=0"),
        ({"message.timestamp.after.max.ms": "4999"}, "message.timestamp.after.max.ms=4999"),
        ({"message.timestamp.difference.max.ms": "1"}, "message.timestamp.difference.max.ms=1"),
        ({"message.timestamp.before.max.ms": "5000"}, ""),
        (
            {"message.timestamp.type": "LogAppendTime", "message.timestamp.before.max.ms": "0"},
            "",
        ),
    ],
)
def test_a_topic_whose_settings_no_transaction_survives_takes_no_writes(
    config: Mapping[str, str], closed_by: str
) -> None:
    client: Any = MetadataClient({"a": topic(partition(0), partition(1))}, config)
    asked = catalog(TransactionLimits())
    found = asked.resolve(client, ["a"], Deadline(10))["a"]
    assert found.closed_by == closed_by
    assert found.unavailable == (frozenset([0, 1]) if closed_by else frozenset())


def test_invented_names_neither_displace_topics_nor_hold_up_each_transaction() -> None:
    now_s, slow_s = 0.0, 30.0

    class Slow(MetadataClient):
        def describe_topics(self, names: Sequence[str]) -> list[dict[str, Any]]:
            nonlocal now_s
            now_s += slow_s if "known" in names else 0.0  # a transaction waits for these
            return super().describe_topics(names)

    client: Any = Slow({"known": topic(partition(0))}, {})
    asked = catalog(now_s=lambda: now_s)
    asked.resolve(client, ["known"], Deadline(10))
    began_s, waits = now_s, 0
    for turn in range(20):
        now_s += 30.0  # the metadata expires
        invented = [f"no.such.{turn}.{number}" for number in range(1_000)]
        found = asked.resolve(client, [*invented, "known"], Deadline(10), [])
        assert found["known"].partitions == 1, "it is looked up before others, or has its old entry"
        waits += not all(found[name].is_unknown for name in invented)
    assert 0 < waits <= 1 + (now_s - began_s) / (10 * slow_s)
    lookup = asked._background._running  # noqa: SLF001
    assert lookup is not None
    lookup.exception(timeout=60)


def test_after_a_failed_transaction_topics_are_awaited_again() -> None:
    """All metadata expires then: otherwise the rows of every topic would be parked."""

    class Slow(MetadataClient):
        def describe_topics(self, names: Sequence[str]) -> list[dict[str, Any]]:
            time.sleep(0.1)
            return super().describe_topics(names)

    client: Any = Slow({"orders": topic(partition(0))}, {})
    asked = catalog(TransactionLimits())
    for _ in range(2):
        assert not asked.resolve(client, ["orders"], Deadline(10), [])["orders"].is_unknown
        asked.forget()


def test_after_a_failed_transaction_no_known_topic_waits_behind_invented_names() -> None:
    now_s = 1_000.0

    class Slow(MetadataClient):
        def describe_topics(self, names: Sequence[str]) -> list[dict[str, Any]]:
            nonlocal now_s
            now_s += 1.0
            return super().describe_topics(names)

    client: Any = Slow({"orders": topic(partition(0))}, {})
    asked = catalog(now_s=lambda: now_s)
    asked.resolve(client, ["orders"], Deadline(10), [])
    asked.forget()
    asked.resolve(client, ["no.such"], Deadline(10), [])
    found = asked.resolve(client, ["orders", "no.such.2"], Deadline(10), [])
    assert {name: target.is_unknown for name, target in found.items()} == {
        "orders": False,
        "no.such.2": True,
    }


def test_invented_names_are_answered_before_their_rows_come_again_often() -> None:
    names = [f"no.such.{number}" for number in range(5_000)]
    client: Any = MetadataClient({}, {})
    asked = catalog(TransactionLimits())
    asked.resolve(client, names, Deadline(10), [])
    lookup = asked._background._running  # noqa: SLF001
    assert lookup is not None
    lookup.exception(timeout=60)
    again = asked.resolve(client, names, Deadline(10), [])
    assert not any(target.is_unknown for target in again.values())


def test_names_beyond_the_bound_are_looked_up_beside_the_transaction() -> None:
    names = [f"t{number}" for number in range(3 * LOOKUPS_MAX)]
    client: Any = MetadataClient({name: topic(partition(0)) for name in names}, {})
    asked = catalog(TransactionLimits())
    needed = names[-1]
    found = asked.resolve(client, names, Deadline(10), [needed])
    known = {name for name, target in found.items() if not target.is_unknown}
    assert known == {*names[:LOOKUPS_MAX], needed}
    lookup = asked._background._running  # noqa: SLF001
    assert lookup is not None
    lookup.exception(timeout=60)
    again = asked.resolve(client, names, Deadline(10), [needed])
    assert not any(target.is_unknown for target in again.values())
    assert client.asked == 2
