"""Answers of brokers about topics and their settings."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

import pytest

from duewheel.kafka.topics.description import Partition, Topic, describe, read_settings

ROW = {
    "name": "t",
    "error_code": 0,
    "topic_id": uuid.UUID(int=1),
    "is_internal": False,
    "partitions": [
        {
            "partition_index": 4,
            "leader_id": -1,
            "replica_nodes": [1, 2, 3],
            "isr_nodes": [2, 3],
        }
    ],
}


class FakeAdmin:
    """Gives its answers whatever it is asked; refuses a request for no topic in particular."""

    def __init__(self, *rows: dict[str, Any], settings: dict[str, Any] | None = None) -> None:
        self.rows, self.settings = rows, settings or {}

    def describe_topics(self, names: Sequence[str]) -> Sequence[dict[str, Any]]:
        assert names, "a broker would describe all topics"
        return self.rows

    def describe_configs(self, resources: Sequence[Any], **_: Any) -> dict[str, Any]:
        assert resources
        return {resources[0].resource_type.name.lower(): self.settings}


def only(**changed: Any) -> Topic:
    return describe(FakeAdmin({**ROW, **changed}), ["t"])["t"]


def test_a_topic_has_its_id_partitions_and_rights() -> None:
    topic = only(authorized_operations=["READ", "WRITE"])
    assert topic.id == str(uuid.UUID(int=1))
    assert topic.partitions == [Partition(number=4, leader=-1, replicas=3, in_sync=2)]
    assert topic.rights == frozenset(["READ", "WRITE"])
    assert only(authorized_operations=None).rights is None


def test_a_right_to_all_operations_is_one_to_each() -> None:
    """Apache's brokers list each; another vendor's need not."""
    rights = only(authorized_operations=["ALL"]).rights
    assert rights is not None and rights > {"READ", "WRITE", "DESCRIBE", "DESCRIBE_CONFIGS"}


@pytest.mark.parametrize(
    ("code", "exists", "is_absent", "is_forbidden"),
    [
        (0, True, False, False),
        (3, False, True, False),  # unknown
        (17, False, True, False),  # no name for a topic
        (29, False, False, True),
        (5, False, False, False),  # no leader at the moment: neither there nor gone
    ],
)
def test_a_missing_topic_differs_from_one_that_may_not_be_seen(
    code: int, exists: bool, is_absent: bool, is_forbidden: bool
) -> None:
    topic = only(error_code=code, partitions=None)
    assert (topic.exists, topic.is_absent, topic.is_forbidden) == (exists, is_absent, is_forbidden)
    assert topic.partitions == []


def test_settings_that_a_broker_hides_are_left_out() -> None:
    rows = {"t": {"a": {"value": "1"}, "hidden": {"value": None}}, "forbidden": {}}
    admin = FakeAdmin(settings=rows)
    assert read_settings(admin, ["t", "forbidden"]) == {"t": {"a": "1"}}
    assert read_settings(admin, ["1"], kind="BROKER") == {"t": {"a": "1"}}


def test_no_topic_costs_no_request() -> None:
    assert describe(FakeAdmin(ROW), []) == {}
    assert read_settings(FakeAdmin(settings={"t": {}}), []) == {}
