"""Rows of an outbox as records of a timer topic, and as Debezium's router makes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.harness.local_world import NOW_MS
from tests.harness.outbox_row import outbox_row, relay_settings

from duewheel import factory
from duewheel.config.settings import Settings
from duewheel.errors import ConfigError
from duewheel.ops.relay.outbox_rows import record_of_row
from duewheel.ops.source_records import TimerRecord
from duewheel.schemas.request.preview import Preview, previews_of

DEBEZIUM = Path(__file__).resolve().parents[4] / "deploy/debezium/outbox.json"


@pytest.fixture
def settings() -> Settings:
    return relay_settings()


def preview(settings: Settings, record: TimerRecord) -> Preview:
    requests = [(record.key, record.value, record.headers)]
    return previews_of(factory.contract(settings), record.timer_topic, requests, NOW_MS)[0]


def test_a_timer(settings: Settings) -> None:
    own = json.dumps({"trace": "ü"})
    record = record_of_row(
        settings, outbox_row(timer_topic="mails.delayed", tag="sale", headers=own), NOW_MS
    )
    assert record == TimerRecord(
        "mails.delayed",
        b"order-42",
        b"pay\xff",
        [
            ("trace", "ü".encode()),
            ("TIMER_TAG", b"sale"),
            ("TIMER_DELIVER_MS", b"1800000900000"),
            ("UNIQ_KEY", b"reminder-42"),
            ("REAL_TOPIC", b"orders"),
        ],
        None,
        None,
        b"order-42",
    )
    assert preview(settings, record) == Preview(None, NOW_MS + 900_000, "orders")


def test_a_timer_and_its_cancel_without_a_key_have_one_partition(settings: Settings) -> None:
    timer = record_of_row(settings, outbox_row(key=None), NOW_MS)
    cancel = record_of_row(
        settings, outbox_row(key=None, cancels=True, target=None, due_ms=None), NOW_MS
    )
    assert (timer.key, timer.route) == (cancel.key, cancel.route) == (None, b"reminder-42")


def test_a_row_expires_by_a_header(settings: Settings) -> None:
    own = json.dumps({"TIMER_EXPIRES_MS": str(NOW_MS + 1_000_000)})
    record = record_of_row(settings, outbox_row(headers=own), NOW_MS)
    assert ("TIMER_EXPIRES_MS", b"1800001000000") in record.headers
    assert preview(settings, record) == Preview(None, NOW_MS + 900_000, "orders")


def test_a_cancel(settings: Settings) -> None:
    record = record_of_row(settings, outbox_row(cancels=True, target=None, due_ms=None), NOW_MS)
    assert (record.key, record.value) == (b"order-42", None)
    assert record.headers == [("TIMER_DEL_UNIQKEY", b"reminder-42")]
    assert preview(settings, record) == Preview(None, None, None)


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"timer_topic": "orders"}, "is no timer topic"),
        ({"timer_topic": "orders", "cancels": True}, "is no timer topic"),
        ({"target": None}, "topic"),
        ({"target": "no topic!"}, "no topic name"),
        ({"target": "orders.delayed"}, "is the timer topic itself"),
        ({"due_ms": None}, "exactly one of"),
        ({"due_ms": 2**63 - 1}, "deliver_at|longest delay"),
        ({"key": None, "value": None}, "give a value, or a key"),
        ({"timer_id": ""}, "id"),
        ({"timer_id": "x" * 256, "cancels": True}, "1 to 255 bytes"),
        ({"tag": "x" * 65}, "tag"),
        ({"headers": "[1]"}, "no JSON object"),
        ({"headers": '{"a": 1}'}, "headers"),
        ({"headers": '{"a": null}'}, "has no value"),
        ({"headers": '{"REAL_TOPIC": "mails"}'}, "a row of an outbox requests by its columns"),
        ({"headers": "[" * 100_000}, "no JSON"),
    ],
)
def test_a_row_without_a_record_has_a_reason(
    settings: Settings, columns: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        record_of_row(settings, outbox_row(**columns), NOW_MS)


@pytest.mark.parametrize("key", ["order-42", None])
def test_ingest_accepts_what_the_event_router_makes(settings: Settings, key: str | None) -> None:
    """The placement of deploy/debezium, as EventRouterDelegate.apply has it: the header `id`,
    then one for each field of the placement, in text as SimpleHeaderConverter writes it.
    """
    connector = json.loads(DEBEZIUM.read_text("utf-8"))
    router = {name.removeprefix("transforms.outbox."): value for name, value in connector.items()}
    columns = outbox_row(key=key)._asdict()
    headers = [("id", str(columns[router["table.field.event.id"]]).encode())]
    for placement in router["table.fields.additional.placement"].split(","):
        field, where, name = placement.split(":")
        assert where == "header"
        headers.append((name, str(columns[field]).encode()))
    topic = columns[router["route.by.field"]]
    assert router["route.topic.replacement"] == "${routedByValue}"
    routed = TimerRecord(
        topic,
        None if key is None else columns[router["table.field.event.key"]].encode(),
        columns[router["table.field.event.payload"]],
        headers,
        None,
        None,
        b"",
    )
    relayed = record_of_row(settings, outbox_row(key=key), NOW_MS)
    assert preview(settings, routed) == preview(settings, relayed)
    assert (routed.key, routed.value) == (relayed.key, relayed.value)
    assert set(relayed.headers) < set(routed.headers)
