"""What `duewheel doctor` says of the rights of its principal."""

from __future__ import annotations

import pytest
from tests.harness.findings import severities, topic

from duewheel.doctor import rights
from duewheel.doctor.remedies import Remedies
from duewheel.kafka.topics.description import Topic

REMEDIES = Remedies("kafka:9092", "User:x")


NEEDED = ({"READ", "WRITE"}, {"DESCRIBE_CONFIGS"})


@pytest.mark.parametrize(
    ("allowed", "expected"),
    [
        ({"READ", "WRITE", "DESCRIBE_CONFIGS", "ALTER"}, ["ok"]),
        ({"READ", "WRITE"}, ["warning"]),
        ({"WRITE"}, ["error", "warning"]),
        (None, ["ok"]),
    ],
)
def test_what_a_principal_lacks(allowed: set[str] | None, expected: list[str]) -> None:
    told = topic(rights=None if allowed is None else frozenset(allowed))
    found = list(rights.check_topic(told, NEEDED, REMEDIES))
    assert severities(found) == expected
    assert ["--operation Read --topic t" in f.remedy for f in found if f.severity == "error"] in (
        [],
        [True],
    )


def test_a_topic_that_may_not_be_seen_lacks_every_right() -> None:
    found = list(rights.check_topic(Topic("t", 29), NEEDED, REMEDIES))
    assert "User:x lacks READ, WRITE" in found[0].found
    assert "--operation DescribeConfigs" in found[1].remedy
