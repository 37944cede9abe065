"""The records of changes, and the persons in them whom a proxy names."""

from __future__ import annotations

import importlib
import json
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from structlog.testing import capture_logs
from tests.harness.local_world import NOW_MS, LocalWorld
from tests.harness.served import (
    COUNT,
    READ_TOKEN,
    TOKEN,
    RecordingProducer,
    bearer,
    fill,
    served,
    settings_of,
    without_log_ends,
)

import duewheel.api
from duewheel.api.change_records import EndedChange
from duewheel.api.dead_letters import Replay, Replayed
from duewheel.api.model import DryRunFields, RequestFields
from duewheel.api.requests import (
    BulkCancel,
    DueTimeFields,
    MessageFields,
    NewTimer,
    SelectivePause,
)
from duewheel.api.schedules import NewSchedule, Pause
from duewheel.client.handle import RecallHandle
from duewheel.errors import ConfigError
from duewheel.ops.dead_letters import replay
from duewheel.ops.timers.pending import SEARCH_S
from duewheel.serve import record_writer
from duewheel.serve.access import Access, Caller
from duewheel.serve.gate import REQUESTS_MAX
from duewheel.serve.service import KAFKA_MAX, Service

PAGE = Path(__file__).resolve().parents[3] / "docs/http.md"
TOPIC = "changes"
PROXY = {"proxy": "X-Forwarded-User"}
SECRET = "body-of-the-message"
NEW: dict[str, Any] = {"topic": "orders", "value": SECRET, "delay": "1m", "id": "a", "tag": "t"}


@pytest.fixture
def producer() -> RecordingProducer:
    return RecordingProducer()


@pytest.fixture
def client(tmp_path: Path, producer: RecordingProducer) -> Iterator[TestClient]:
    settings = settings_of(tmp_path, changes_topic=TOPIC)
    fill(settings)
    tokens = {TOKEN.encode(): Caller("ana"), READ_TOKEN.encode(): Caller("proxy")}
    with served(settings, Access(tokens, user_headers=PROXY), producer) as client:
        client.headers.update(bearer(TOKEN))
        yield client


@pytest.fixture
def handle(client: TestClient) -> str:
    """Of a timer that leaves last."""
    listed: str = client.get("/v1/timers").json()["timers"][-1]["handle"]
    return listed


def records(producer: RecordingProducer) -> list[dict[str, Any]]:
    return [json.loads(value or b"") for topic, value in producer.sent if topic == TOPIC]


def test_a_change_has_a_record_before_it_and_one_with_its_outcome(
    client: TestClient, producer: RecordingProducer, handle: str
) -> None:
    timer = RecallHandle.decode(handle)
    answer = client.post(f"/v1/timers/{handle}/reschedule", json={"delay": "2m"}).json()
    begun, ended = records(producer)
    assert begun == {
        "change": begun["change"],
        "state": "begun",
        "begun_ms": NOW_MS,
        "shard": 0,
        "operation": "reschedule_timer",
        "client": "testclient",
        "by": "ana",
        "arguments": {
            "handle": handle,
            "id": timer.id,
            "source": timer.place,
            "former_due_ms": timer.due_ms,
            "delay": "2m",
        },
    }
    added = {"state": "ended", "ended_ms": NOW_MS, "status": 200, "result": answer}
    assert ended == begun | added
    assert ended["result"]["former_due_ms"] == timer.due_ms
    without_reply = client.delete(f"/v1/timers/{handle}?wait=0").json()
    assert without_reply["answer"] is None
    assert records(producer)[-1]["result"] == without_reply
    client.post("/v1/timers", json=NEW)
    *_, created = records(producer)
    assert (created["status"], created["change"] == begun["change"]) == (201, False)


def test_the_page_names_each_field_of_a_record() -> None:
    _, _, section = PAGE.read_text("utf-8").partition("### Who has changed what")
    cells = re.findall(r"^\| (`.*?) \|", section.partition("\n#")[0], re.MULTILINE)
    documented = [name for cell in cells for name in re.findall(r"`(\w+)`", cell)]
    assert sorted(documented) == sorted(EndedChange.model_fields)


def test_a_change_without_a_record_is_refused(
    client: TestClient, producer: RecordingProducer, handle: str
) -> None:
    producer.closed = {TOPIC}
    for answer in (
        client.post("/v1/timers", json=NEW),
        client.delete(f"/v1/timers/{handle}"),
        client.post("/v1/pause/dequeue"),
        client.put("/v1/schedules/x", json={"every": "1h", "target": "orders", "value": "v"}),
    ):
        assert (answer.status_code, answer.json()["code"]) == (503, "not_recorded")
        assert answer.headers["retry-after"]
    assert (producer.calls, producer.sent) == ([], [])
    assert client.get("/v1/status").json()["dequeue"]["state"] != "paused"


def test_a_change_whose_outcome_has_no_record_is_answered(
    client: TestClient, producer: RecordingProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedule = producer.schedule

    def closing(*args: Any, **named: Any) -> Any:
        producer.closed = {TOPIC}
        return schedule(*args, **named)

    monkeypatch.setattr(producer, "schedule", closing)
    with capture_logs() as log:
        assert client.post("/v1/timers", json=NEW).status_code == 201
    assert [each["state"] for each in records(producer)] == ["begun"]
    (warned,) = (each for each in log if each["log_level"] == "warning")
    assert warned["event"] == "a change has no outcome in its topic"


def test_the_record_of_a_failure_has_its_code(
    client: TestClient, producer: RecordingProducer
) -> None:
    missing = RecallHandle("timers", 0, 999, NOW_MS, "x").encode()
    client.post(f"/v1/timers/{missing}/fire")
    producer.refused = {0}
    client.post("/v1/timers", json=NEW)
    search = {"filter": {"topic": "none"}, "dry_run": False}
    client.post("/v1/cancel", json=search | {"at_most": 1})
    producer.refused = {1}
    answer = client.post("/v1/cancel", json=search | {"filter": {"topic": "orders"}}).json()
    ended = [each for each in records(producer) if each["state"] == "ended"]
    found = [(each["status"], each.get("code")) for each in ended]
    assert found == [
        (404, "not_pending"),
        (504, "unacknowledged"),
        (200, None),
        (504, "unacknowledged"),
    ]
    counts = {"matched": COUNT, "written": COUNT - 1, "in_doubt": 1}
    assert answer.items() >= counts.items() and ended[-1].items() >= counts.items()


def test_what_only_counts_or_is_refused_before_has_no_record(
    client: TestClient, producer: RecordingProducer
) -> None:
    search = {"filter": {"topic": "orders"}, "dry_run": True}
    assert client.post("/v1/cancel", json=search).status_code == 200
    assert client.post("/v1/timers", json=NEW | {"delay": "x"}).status_code == 422
    assert client.delete("/v1/timers/no-handle").status_code == 422
    assert client.post("/v1/timers", json=NEW, headers=bearer("x" * 20)).status_code == 401
    assert producer.sent == []


def test_a_replay_has_records_unless_it_only_counts(
    client: TestClient, producer: RecordingProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def replayed(*_: Any, dry_run: bool, within_s: float) -> Replayed:
        assert within_s == SEARCH_S
        return Replayed(dry_run=dry_run, replayed=0, topics={}, refused={})

    monkeypatch.setattr(replay, "replay", replayed)
    for dry_run, count in ((True, 0), (False, 2)):
        answer = client.post("/v1/dead-letters/replay", json={"dry_run": dry_run})
        assert (answer.status_code, len(records(producer))) == (200, count)


def test_each_request_with_a_dry_run_declares_it() -> None:
    """One that does not would have records of changes that are none."""
    for module in pkgutil.iter_modules(duewheel.api.__path__, "duewheel.api."):
        importlib.import_module(module.name)
    kinds, counting = [RequestFields], set[type[RequestFields]]()
    while kinds:
        kind = kinds.pop()
        kinds += kind.__subclasses__()
        counting |= {kind} if "dry_run" in kind.model_fields else set()
    assert counting >= {BulkCancel, Replay}
    assert all(issubclass(kind, DryRunFields) for kind in counting)


def test_records_have_no_message_and_no_token(
    client: TestClient, producer: RecordingProducer, handle: str
) -> None:
    headers = [{"name": "h", "value": SECRET}]
    message = {"value": SECRET, "key": SECRET, "headers": headers}
    client.post(f"/v1/timers?token={TOKEN}", json=NEW | message | {"timer_topic": "timers"})
    daily = {"every": "1h", "target": "orders", **message}
    client.put("/v1/schedules/x?wait=0&timer_topic=timers", json=daily)
    client.post(f"/v1/timers/{handle}/fire")
    found = records(producer)
    assert len(found) == 6
    assert SECRET not in str(found) and TOKEN not in str(found)
    assert found[0]["arguments"] == {
        name: NEW[name] for name in ("topic", "delay", "id", "tag")
    } | {"timer_topic": "timers"}
    expected = {"name": "x", "timer_topic": "timers", "every": "1h", "target": "orders"}
    assert found[2]["arguments"] == expected


def test_a_filter_is_recorded_as_it_was_given(
    client: TestClient, producer: RecordingProducer
) -> None:
    given = {"filter": {"topic": "none", "from": str(NOW_MS)}, "dry_run": False, "at_most": 7}
    assert client.post("/v1/cancel", json=given).status_code == 200
    assert records(producer)[0]["arguments"] == given


def test_each_field_of_a_change_is_recorded_or_of_the_message(client: TestClient) -> None:
    """A field is in the topic only if its model names it: a new one may have what nobody is to
    read there.
    """
    app: Any = client.app
    described = [each for path in app.openapi()["paths"].values() for each in path.values()]
    given = re.findall(r"schemas/(\w+)", str([each.get("requestBody") for each in described]))
    bodies = (NewTimer, NewSchedule, DueTimeFields, BulkCancel, Replay, SelectivePause, Pause)
    assert {each.__name__ for each in bodies} == set(given)
    message = {"value", "value_base64", "key", "key_base64", "headers"}
    for body in bodies:
        named = set(body._of_bases("in_records"))  # noqa: SLF001 - the names alone
        unnamed = body.model_fields.keys() - named
        assert unnamed == (message if issubclass(body, MessageFields) else set()), body


def test_records_have_nothing_that_the_operation_does_not_read(
    client: TestClient,
    producer: RecordingProducer,
    handle: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    without_log_ends(monkeypatch)
    url = f"/v1/timers/{handle}?wait=0&timer_topic=others"
    bodies = (b'{"topic": "others"}', b"no json", b"[1]", b"\xff")
    for body in bodies:
        assert client.request("DELETE", url, content=body).status_code == 202
    assert client.post("/v1/schedules/x/resume", content=b"null").status_code == 404
    found = records(producer)
    assert len(found) == 2 * len(bodies) + 2
    assert {str(sorted(each["arguments"])) for each in found} == {
        str(sorted(["former_due_ms", "handle", "id", "source"])),
        str(["name"]),
    }


def test_without_the_setting_there_are_no_records(
    tmp_path: Path, producer: RecordingProducer
) -> None:
    settings = settings_of(tmp_path)
    with served(settings, Access({TOKEN.encode(): Caller()}), producer) as client:
        assert client.post("/v1/timers", json=NEW, headers=bearer(TOKEN)).status_code == 201
    assert producer.sent == []


def test_the_person_of_a_proxy_is_in_log_and_records(
    client: TestClient, producer: RecordingProducer
) -> None:
    named = bearer(READ_TOKEN) | {"x-forwarded-user": "Zoë"}
    with capture_logs() as log:
        encoded = {name.encode(): value.encode() for name, value in named.items()}
        assert client.post("/v1/timers", json=NEW, headers=encoded).status_code == 201
    (logged,) = (each for each in log if each["event"] == "change")
    for each in (logged, *records(producer)):
        assert (each["by"], each["user"]) == ("proxy", "Zoë")


def test_only_the_token_of_the_proxy_names_a_person(
    client: TestClient, producer: RecordingProducer
) -> None:
    forged = {"X-Forwarded-User": "root"}
    assert client.post("/v1/timers", json=NEW, headers=forged).status_code == 201
    assert [each.get("user") for each in records(producer)] == [None, None]


@pytest.mark.parametrize(
    "given",
    [
        [],
        [b""],
        [b"  "],
        [b"x" * 257],
        ["ana\x9b2J".encode()],  # for a terminal
        [b"ana", b"ben"],  # the first one is the client's, perhaps
    ],
)
def test_a_proxy_must_name_one_person(
    client: TestClient, producer: RecordingProducer, given: list[bytes]
) -> None:
    headers = [(b"authorization", b"Bearer " + READ_TOKEN.encode())]
    headers += [(b"x-forwarded-user", each) for each in given]
    answer = client.post("/v1/timers", json=NEW, headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (403, "no_user")
    assert (producer.calls, producer.sent) == ([], [])
    assert client.get("/v1/timers", headers=bearer(READ_TOKEN)).status_code == 200


def test_the_headers_of_persons_need_a_named_token(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text(f"ana {TOKEN}\nproxy {READ_TOKEN} orders.*\n")
    access = Access.load(settings_of(tmp_path, token_file=path, user_headers=PROXY).serve)
    assert access.user_headers == PROXY
    unknown = settings_of(tmp_path, token_file=path, user_headers={"prox": "X-User"})
    with pytest.raises(ConfigError, match=r"user_headers: serve.token_file has no token named"):
        Access.load(unknown.serve)
    for header in ("", "a b", "Authorization", "cookie", "X-User:", "X-Ü"):
        with pytest.raises(ConfigError, match=r"serve\.user_headers"):
            settings_of(tmp_path, token_file=path, user_headers={"proxy": header})


def test_the_topic_of_changes_is_no_other_topic(tmp_path: Path) -> None:
    for other in ("timers", "duewheel.state", "duewheel.dead-letter"):
        with pytest.raises(ConfigError, match=r"serve\.changes_topic"):
            settings_of(tmp_path, changes_topic=other)


def test_a_topic_that_timers_may_have_as_target_takes_no_records(
    client: TestClient, producer: RecordingProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shard has begun without it: a producer could let duewheel write there."""
    monkeypatch.setattr(record_writer, "is_open_to_producers", lambda *_: True)
    answer = client.post("/v1/timers", json=NEW)
    assert (answer.status_code, answer.json()["code"]) == (503, "not_recorded")
    assert "duewheel reconfigure" in answer.json()["detail"]
    assert producer.calls == []
    monkeypatch.setattr(record_writer, "is_open_to_producers", lambda *_: False)
    assert client.post("/v1/timers", json=NEW).status_code == 201
    monkeypatch.setattr(record_writer, "is_open_to_producers", lambda *_: True)
    assert client.post("/v1/timers", json=NEW).status_code == 201, "none opens it again"


def test_a_topic_is_examined_until_the_shard_has_closed_it(
    tmp_path: Path, producer: RecordingProducer
) -> None:
    settings = settings_of(tmp_path, changes_topic=TOPIC)
    data_dir = settings.storage.data_dir
    with served(settings, Access({TOKEN.encode(): Caller("ana")}), producer) as client:
        client.headers.update(bearer(TOKEN))
        assert client.post("/v1/timers", json=NEW).status_code == 201, "no shard has begun here"
        LocalWorld(
            data_dir, settings.wheel, slot_config={"parameters": {"forbidden_targets": []}}
        ).stop()
        for reason in ("duewheel reconfigure", "a file is damaged"):
            answer = client.post("/v1/timers", json=NEW)
            assert (answer.status_code, answer.json()["code"]) == (503, "not_recorded")
            assert reason in answer.json()["detail"]
            (data_dir / "state").write_bytes(b"cut")
    assert len(producer.calls) == 1


def test_changes_that_wait_for_their_records_leave_room_for_others(client: TestClient) -> None:
    """While Kafka hangs; those that have begun may all write that they have ended."""
    service: Service = client.app.state.service  # type: ignore[attr-defined]
    at_once = service.record.bulkhead.waiting_max + KAFKA_MAX
    assert at_once < REQUESTS_MAX // 1.5
    assert service.record_end.bulkhead.waiting_max >= at_once
