"""What people send: lines of files, bodies and paths of HTTP requests, handles."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st
from tests.harness.local_world import NOW_MS
from tests.harness.outbox_row import outbox_row, relay_settings
from tests.harness.served import (
    CHANGING,
    TOKEN,
    RecordingProducer,
    bearer,
    fill,
    served,
    settings_of,
    without_log_ends,
    without_progress,
)

from duewheel import factory
from duewheel.api.dead_letters import Replayed, ReplayFilter
from duewheel.api.requests import TimerFields
from duewheel.api.schedules import NewSchedule
from duewheel.client.handle import RecallHandle
from duewheel.clock import Clock
from duewheel.config.settings import Settings
from duewheel.errors import ConfigError, InvalidTimer
from duewheel.ops.changes.timer_writer import TimerWriter
from duewheel.ops.dead_letters import replay
from duewheel.ops.file_import.line_records import fields_of, record_of
from duewheel.ops.relay.outbox_rows import record_of_row
from duewheel.ops.schedules import changes
from duewheel.ops.schedules.changes import WrittenSchedule
from duewheel.ops.schedules.read_before_change import LogEnds
from duewheel.ops.schedules.schedule_record import ScheduleRecord, requested
from duewheel.schemas.request.preview import previews_of
from duewheel.serve.access import Access
from duewheel.wheel.target_rules import Target

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
TAKEN: Any = SimpleNamespace(topic="timers", partition=0, offset=0, timestamp=NOW_MS)
JSON = {"content-type": "application/json"}
HANDLE = RecallHandle("timers", 0, 17, 1_800_000_000_000, "order 8821")
BODIES: dict[str, dict[str, Any]] = {
    "/v1/timers": TIMER,
    f"/v1/timers/{HANDLE.encode()}/reschedule": {"delay": "2m"},
    "/v1/cancel": {"filter": {"topic": "orders", "key": "k", "from": "5"}, "dry_run": True},
}
SCHEDULE: dict[str, Any] = {
    "cron": "0 9 * * 1-5",
    "zone": "Europe/Berlin",
    "missed": "one",
    "starts": "2027-01-15T08:00Z",
    "jitter": "30s",
    "target": "orders",
    "value": "report",
    "key_base64": "/w==",
    "headers": [{"name": "a", "value": "1"}, {"name": "b", "value_base64": "/w=="}],
}
EVERY = {
    "every": "90s",
    "ends": 4_000_000_000_000,
    "target": "orders",
    "value_base64": "AA==",
    "timer_topic": "timers",
}
REPLAY = {"code": "bad_due_time", "to_topic": "orders", "limit": 10, "dry_run": True}
ROW = outbox_row(tag="sale", headers='{"trace": "1"}')
# What a column of the database may hold in the place of its own.
COLUMNS: dict[str, st.SearchStrategy[Any]] = {
    "timer_topic": st.text(max_size=5) | st.sampled_from(["orders", "orders.delayed\n", "x" * 300]),
    "key": st.none() | st.text(max_size=5),
    "value": st.none() | st.binary(max_size=5),
    "target": st.none() | st.text(max_size=5) | st.just("orders.delayed"),
    "due_ms": st.none() | st.integers(-(2**63), 2**63 - 1),
    "timer_id": st.text(max_size=5) | st.just("ü" * 40_000),
    "tag": st.none() | st.text(max_size=5) | st.just("x" * 300),
    "cancels": st.booleans(),
}


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    settings = settings_of(Path(tmp_path_factory.mktemp("fuzz")))
    fill(settings)
    return settings


@pytest.fixture(scope="module")
def client(settings: Settings) -> Iterator[TestClient]:
    with pytest.MonkeyPatch.context() as patch:
        without_progress(patch)
        without_log_ends(patch)
        with served(settings, Access(CHANGING), RecordingProducer()) as client:
            client.headers.update(bearer(TOKEN))
            yield client


@given(data=st.data(), line=st.sampled_from([TIMER, COPY]))
def test_any_line_of_a_file(
    settings: Settings, damage: Change, alter: Change, data: st.DataObject, line: dict[str, Any]
) -> None:
    changed = data.draw(st.sampled_from([damage, alter]))(data, json.dumps(line).encode())
    try:
        record = record_of(settings, fields_of(changed, TimerFields(delay="1m")), "line 1", NOW_MS)
    except ConfigError:
        return
    assert record.timer_topic == "timers"
    assert 0 <= record.partition_of(Target(4, 1), 17) < 4
    assert all(name.encode(errors="surrogateescape") for name, _ in record.headers if name)


@given(data=st.data(), path=st.sampled_from(sorted(BODIES)))
def test_any_body_of_a_request(
    client: TestClient, damage: Change, alter: Change, data: st.DataObject, path: str
) -> None:
    """An answer with a reason: 5xx would be a failure of the server's own."""
    body = data.draw(st.sampled_from([damage, alter]))(data, json.dumps(BODIES[path]).encode())
    response = client.post(path, content=body, headers=JSON)
    assert response.status_code < 500, response.text
    assert response.json()


@given(data=st.data(), body=st.sampled_from([SCHEDULE, EVERY]))
def test_any_body_of_a_schedule(
    client: TestClient,
    settings: Settings,
    damage: Change,
    alter: Change,
    data: st.DataObject,
    body: dict[str, Any],
) -> None:
    """Refused before Kafka is asked, or a record that ingest accepts and that has an instant."""
    changed = data.draw(st.sampled_from([damage, alter]))(data, json.dumps(body).encode())
    made: list[ScheduleRecord] = []

    def put(
        _: TimerWriter, name: str, new: NewSchedule, __: LogEnds, *, may_add: bool
    ) -> WrittenSchedule:
        assert not may_add
        made.append(requested(settings, name, new, NOW_MS))
        return WrittenSchedule(made[0].summary(NOW_MS), TAKEN)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(changes, "put", put)  # the rest of it needs Kafka
        response = client.put("/v1/schedules/daily", content=changed, headers=JSON)
    assert response.status_code < 500, response.text
    assert (response.status_code == 200) == bool(made) and response.json()
    for record in made:
        assert next(record.coming_instants(NOW_MS)) > 0


@given(data=st.data())
def test_any_body_of_a_replay(
    client: TestClient, damage: Change, alter: Change, data: st.DataObject
) -> None:
    changed = data.draw(st.sampled_from([damage, alter]))(data, json.dumps(REPLAY).encode())
    made: list[ReplayFilter] = []

    def noted(
        _: Settings, __: Clock, selection: ReplayFilter, *, dry_run: bool, within_s: float
    ) -> Replayed:
        assert type(dry_run) is bool
        assert within_s > 0
        made.append(selection)
        return Replayed(dry_run=dry_run, replayed=0, topics={}, refused={})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replay, "replay", noted)  # it needs Kafka
        response = client.post("/v1/dead-letters/replay", content=changed, headers=JSON)
    assert response.status_code < 500, response.text
    assert (response.status_code == 200) == bool(made) and response.json()
    for selection in made:
        assert selection.limit is not None and 1 <= selection.limit <= 10_000
        assert all((t or "").encode() is not None for t in (selection.code, selection.to_topic))


@given(data=st.data())
def test_any_handle(damage: Change, data: st.DataObject) -> None:
    text = damage(data, HANDLE.encode().encode()).decode(errors="surrogateescape")
    with suppress(InvalidTimer):
        assert RecallHandle.decode(text) == HANDLE, "its checksum finds a change"


@pytest.fixture(scope="module")
def relaying() -> Settings:
    return relay_settings()


@given(data=st.data())
def test_any_row_of_an_outbox(
    relaying: Settings, damage: Change, alter: Change, data: st.DataObject
) -> None:
    """Refused, or a record of its timer topic that ingest accepts or refuses."""
    names = data.draw(st.sets(st.sampled_from(sorted(COLUMNS)), max_size=3))
    row = ROW._replace(**{name: data.draw(COLUMNS[name]) for name in sorted(names)})
    if data.draw(st.booleans()):
        changed = data.draw(st.sampled_from([damage, alter]))(data, (row.headers or "").encode())
        row = row._replace(headers=changed.decode(errors="replace").replace("\0", ""))
    try:
        record = record_of_row(relaying, row, NOW_MS)
    except ConfigError:
        return
    assert record.timer_topic == "orders.delayed"
    request = [(record.key, record.value, record.headers)]
    (seen,) = previews_of(factory.contract(relaying), record.timer_topic, request, NOW_MS)
    assert seen is not None
