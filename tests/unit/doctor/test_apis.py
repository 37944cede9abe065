"""What `duewheel doctor` says of the APIs that each broker offers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.harness.findings import severities

from duewheel.doctor import apis

DOCS = Path(__file__).resolve().parents[3] / "docs"


WHOLE = {api.key: (0, api.version_max) for api in (*apis.NEEDED, *apis.OPTIONAL)}


def test_a_whole_offer_is_one_line() -> None:
    (finding,) = apis.check_apis({"broker 1": WHOLE, "broker 2": WHOLE})
    assert (finding.severity, finding.subject) == ("ok", "broker 1, broker 2")


@pytest.mark.parametrize(
    ("offer", "said", "remedy"),
    [
        (None, "not offered", "upgrade the brokers"),
        ((0, 3), "offered up to version 3, 4 is required", "upgrade the brokers"),
        ((5, 9), "offered from version 5 on, the clients support up to 4", "upgrade duewheel"),
    ],
)
def test_what_a_broker_lacks(offer: tuple[int, int] | None, said: str, remedy: str) -> None:
    init_producer_id = 22
    lacking = {key: value for key, value in WHOLE.items() if key != init_producer_id}
    if offer:
        lacking[init_producer_id] = offer
    found = list(apis.check_apis({"broker 1": WHOLE, "broker 2": lacking}))
    assert [(f.severity, f.subject) for f in found] == [("error", "broker 2")]
    assert f"InitProducerId (key 22) is {said}; dequeue would lose: fencing" in found[0].found
    assert remedy in found[0].remedy


def test_what_is_not_needed_is_no_error() -> None:
    for api in apis.OPTIONAL:
        lacking = {key: value for key, value in WHOLE.items() if key != api.key}
        assert severities(apis.check_apis({"broker 1": lacking})) == ["ok"]


def test_the_list_is_one_of_kafka() -> None:
    """Names and versions as kafka-python's own schemas have them."""
    from kafka.protocol.api_key import ApiKey

    for api in (*apis.NEEDED, *apis.OPTIONAL):
        assert ApiKey(api.key).name == api.name
        assert api.version_min <= api.version_max
    keys = [api.key for api in (*apis.NEEDED, *apis.OPTIONAL)]
    assert len(keys) == len(set(keys))


def test_the_documentation_lists_the_same_apis() -> None:
    text = (DOCS / "kafka-apis.md").read_text()
    table = re.findall(r"^\| ([0-9, ]+) \| ([\w, ]+) \| ([0-9, ]+) \|", text, re.MULTILINE)
    documented = {
        (int(key), name, int(lowest))
        for row in table
        for key, name, lowest in zip(*(column.split(", ") for column in row), strict=True)
    }
    listed = {(api.key, api.name, api.version_min) for api in (*apis.NEEDED, *apis.OPTIONAL)}
    assert documented == listed


def test_the_documentation_has_the_same_oldest_kafka() -> None:
    assert f"- Kafka {apis.OLDEST_KAFKA} or newer" in (DOCS.parent / "README.md").read_text()
    assert f"needs {apis.OLDEST_KAFKA} or newer" in (DOCS / "kafka.md").read_text()
    text = (DOCS / "kafka-apis.md").read_text()
    assert f"a broker counts as {apis.OLDEST_KAFKA} or newer" in text
