"""The statements by which applications insert timers; integration/relay/test_relay.py runs them."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import pytest

from duewheel.adapters import outbox
from duewheel.clock import SystemClock
from duewheel.errors import InvalidTimer

INSERT = (
    "INSERT INTO duewheel_outbox (key, value, target, due_ms) "
    "VALUES (%(key)s, %(value)s, %(target)s, %(due_ms)s)"
)
Ran = list[tuple[str, dict[str, Any]]]


def run(function: Any, *args: Any, **named: Any) -> tuple[str, dict[str, Any]]:
    ran: Ran = []
    function(lambda *statement: ran.append(statement), *args, **named)
    (statement,) = ran
    return statement


def test_only_the_columns_that_are_given() -> None:
    due = datetime.fromisoformat("2027-01-15T08:00Z")
    assert run(outbox.schedule, "orders", b"pay", deliver_at=due, key="k") == (
        INSERT,
        {"key": "k", "value": b"pay", "target": "orders", "due_ms": 1_800_000_000_000},
    )
    _, cancel = run(outbox.cancel, "r-42", key="k", timer_topic="a.delayed")
    assert cancel == {"timer_topic": "a.delayed", "key": "k", "timer_id": "r-42", "cancels": True}


def test_a_delay_counts_from_now_on() -> None:
    before_ms = SystemClock().now_ms()
    more = {"id": "r-42", "tag": "sale", "headers": {"own": "ü"}, "timer_topic": "a.delayed"}
    _, row = run(outbox.schedule, "orders", None, delay="15m", key="k", **more)
    assert before_ms <= row.pop("due_ms") - 900_000 <= SystemClock().now_ms()
    assert row == {
        "timer_topic": "a.delayed",
        "key": "k",
        "target": "orders",
        "timer_id": "r-42",
        "tag": "sale",
        "headers": '{"own": "\\u00fc"}',
    }


def test_a_key_of_bytes_is_the_text_that_it_encodes() -> None:
    key = "ordér-42".encode()
    _, timer = run(outbox.schedule, "orders", b"pay", delay="15m", key=key)
    _, cancel = run(outbox.cancel, "r-42", key=key)
    assert timer["key"] == cancel["key"] == "ordér-42"


@pytest.mark.parametrize("key", [b"\xff", 42])
def test_a_key_that_is_no_text_is_refused(key: Any) -> None:
    refused = "the key is neither text nor bytes of UTF-8"
    with pytest.raises(InvalidTimer, match=refused):
        run(outbox.schedule, "orders", b"pay", delay="15m", key=key)
    with pytest.raises(InvalidTimer, match=refused):
        run(outbox.cancel, "r-42", key=key)


@pytest.mark.parametrize(
    "headers",
    [
        {"trace": "ü", "a": "1"},
        {"trace": "ü".encode(), "a": b"1"},
        [("trace", "ü".encode()), ("a", b"1")],
        (pair for pair in [("trace", "ü"), ("a", b"1")]),
    ],
)
def test_headers_are_a_mapping_or_the_pairs_of_the_client(headers: Any) -> None:
    _, row = run(outbox.schedule, "orders", b"pay", delay="15m", headers=headers)
    assert list(json.loads(row["headers"]).items()) == [("trace", "ü"), ("a", "1")]


@pytest.mark.parametrize(
    ("headers", "reason"),
    [
        ({"a": 1}, "the header a is neither text nor bytes of UTF-8"),
        ({"a": None}, "the header a is neither text nor bytes of UTF-8"),
        ([("a", b"\xff")], "the header a is neither text nor bytes of UTF-8"),
        ({b"a": b"1"}, "a mapping, or pairs of a name and a value"),
        (["ab"], "a mapping, or pairs of a name and a value"),
        ([("a", b"1"), ("a", b"2")], "each name once"),
    ],
)
def test_headers_that_a_row_cannot_have_are_refused(headers: Any, reason: str) -> None:
    with pytest.raises(InvalidTimer, match=reason):
        run(outbox.schedule, "orders", b"pay", delay="15m", headers=headers)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({}, "give exactly one of deliver_at and delay$"),
        ({"delay": "1m", "deliver_at": 1}, "give exactly one of deliver_at and delay$"),
        (
            {"delay": "1m", "headers": {"TIMER_IF_PENDING": "keep"}},
            "TIMER_IF_PENDING is reserved: a row of an outbox requests by its columns",
        ),
    ],
)
def test_a_refusal_names_only_what_an_outbox_has(given: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidTimer, match=reason):
        run(outbox.schedule, "orders", b"pay", **given)


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"delay": "15m", "deliver_at": 1},
        {"delay": "15m", "value": None},
        {"delay": "15m", "target": "no topic!"},
        {"delay": "15m", "target": "a.delayed", "timer_topic": "a.delayed"},
        {"delay": "15m", "tag": ""},
        {"delay": "15m", "id": ""},
        {"delay": "15m", "headers": {"UNIQ_KEY": "x"}},
    ],
)
def test_an_impossible_timer_is_not_inserted(wrong: dict[str, Any]) -> None:
    given: dict[str, Any] = {"target": "orders", "value": b"pay"} | wrong
    ran: Ran = []
    with pytest.raises(InvalidTimer):
        outbox.schedule(lambda *statement: ran.append(statement), **given)
    assert ran == []
