"""What people send: lines of `send --file`, bodies and paths of HTTP requests, handles."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st
from tests.harness.served import TOKEN, RecordingProducer, bearer, fill, served, settings_of

from duewheel.client.handle import RecallHandle
from duewheel.config.settings import Settings
from duewheel.errors import ConfigError, InvalidTimer
from duewheel.ops.timer_lines import fields_of, record_of
from duewheel.serve.access import Access

Change = Callable[[st.DataObject, bytes], bytes]

TIMER: dict[str, Any] = {
    "topic": "orders",
    "value": "pay",
    "key_base64": "/w==",
    "headers": [{"name": "a", "value": "1"}, {"name": "b", "value_base64": "/w=="}],
    "delay": "15m",
    "id": "7",
    "window": "10m",
    "partition": 3,
}
COPY: dict[str, Any] = {
    "record": {
        "key_base64": "/w==",
        "value_base64": "AA==",
        "headers": [{"name": "DELAY", "value_base64": "OQ=="}],
        "partition": 1,
        "partitions": 2,
    }
}
HANDLE = RecallHandle("timers", 0, 17, 1_800_000_000_000, "order 8821")
BODIES: dict[str, dict[str, Any]] = {
    "/v1/timers": TIMER,
    f"/v1/timers/{HANDLE.encode()}/reschedule": {"delay": "2m"},
    "/v1/cancel": {"filter": {"topic": "orders", "key": "k", "from": "5"}, "dry_run": True},
}


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    settings = settings_of(Path(tmp_path_factory.mktemp("fuzz")))
    fill(settings)
    return settings


@pytest.fixture(scope="module")
def client(settings: Settings) -> Iterator[TestClient]:
    with served(settings, Access(TOKEN.encode()), RecordingProducer()) as client:
        client.headers.update(bearer(TOKEN))
        yield client


@given(data=st.data(), line=st.sampled_from([TIMER, COPY]))
def test_any_line_of_a_file(
    settings: Settings, damage: Change, alter: Change, data: st.DataObject, line: dict[str, Any]
) -> None:
    changed = data.draw(st.sampled_from([damage, alter]))(data, json.dumps(line).encode())
    try:
        record = record_of(settings, fields_of(changed, {"delay": "1m"}), "line 1")
    except ConfigError:
        return
    assert record.timer_topic == "timers"
    assert 0 <= record.partition_of(4, 17) < 4
    assert all(name.encode(errors="surrogateescape") for name, _ in record.headers if name)


@given(data=st.data(), path=st.sampled_from(sorted(BODIES)))
def test_any_body_of_a_request(
    client: TestClient, damage: Change, alter: Change, data: st.DataObject, path: str
) -> None:
    """An answer with a reason: 5xx would be a failure of the server's own."""
    body = data.draw(st.sampled_from([damage, alter]))(data, json.dumps(BODIES[path]).encode())
    response = client.post(path, content=body, headers={"content-type": "application/json"})
    assert response.status_code < 500, response.text
    assert response.json()


@given(data=st.data())
def test_any_handle(damage: Change, data: st.DataObject) -> None:
    text = damage(data, HANDLE.encode().encode()).decode(errors="surrogateescape")
    with suppress(InvalidTimer):
        assert RecallHandle.decode(text) == HANDLE, "its checksum finds a change"
