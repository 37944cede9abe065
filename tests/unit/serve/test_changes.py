"""Changes by the HTTP API: what is written, and what is answered.

Also of ops/changes/reschedule_pending.py and cancel_matching.py.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from kafka.errors import KafkaError
from tests.harness.cancel_world import cancel
from tests.harness.launcher import wait_until
from tests.harness.local_world import NOW_MS, LocalWorld
from tests.harness.publishing import where_they_are
from tests.harness.served import (
    CHANGING,
    COUNT,
    TOKEN,
    RecordingProducer,
    bearer,
    fill,
    served,
    settings_of,
)
from tests.harness.timer_rows import P0, P1, TimerRow

from duewheel.checkpoints.process_role import Role
from duewheel.checkpoints.state_file import Damage, State
from duewheel.client import Answer
from duewheel.client.handle import RecallHandle
from duewheel.config.settings import Settings
from duewheel.errors import KafkaUnavailable, Unacknowledged
from duewheel.ops.changes import cancel_matching
from duewheel.ops.changes.timer_writer import TimerWriter
from duewheel.ops.files import open_files
from duewheel.serve.access import Access
from duewheel.testing import ManualClock
from duewheel.threads import beside

NEW: dict[str, Any] = {"topic": "orders", "value": "v", "delay": "1m"}


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    settings = settings_of(tmp_path)
    fill(settings)
    return settings


@pytest.fixture
def producer() -> RecordingProducer:
    return RecordingProducer()


@pytest.fixture
def client(settings: Settings, producer: RecordingProducer) -> Iterator[TestClient]:
    with served(settings, Access(CHANGING), producer) as client:
        client.headers.update(bearer(TOKEN))
        yield client


def timers(client: TestClient, **wanted: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = client.get("/v1/timers", params=wanted).json()["timers"]
    return found


def test_a_timer_is_scheduled(client: TestClient, producer: RecordingProducer) -> None:
    new = {
        **NEW,
        "key_base64": "/w==",
        "headers": [{"name": "a", "value": "1"}, {"name": "b", "value_base64": "/w=="}],
        "id": "7",
        "partition": 3,
        "window": "10m",
        "tag": "spring",
    }
    response = client.post("/v1/timers", json=new)
    assert response.status_code == 201
    assert (
        response.json().items() >= {"timer_topic": "timers", "partition": 0, "offset": 70}.items()
    )
    assert RecallHandle.decode(response.json()["handle"]).offset == 70
    ((name, args, named),) = producer.calls
    assert (name, args) == ("schedule", ("orders", b"v"))
    assert named == {
        "expires_at": None,
        "if_pending": None,
        "key": b"\xff",
        "headers": [("a", b"1"), ("b", b"\xff")],
        "id": "7",
        "partition": 3,
        "window": "10m",
        "tag": "spring",
        "delay": timedelta(minutes=1),
    }


def test_a_body_with_very_many_errors_has_a_short_answer(client: TestClient) -> None:
    response = client.post("/v1/timers", json={**NEW, **{f"k{n}": 1 for n in range(10_000)}})
    assert (response.status_code, len(response.json()["errors"])) == (422, 20)


@pytest.mark.parametrize(
    "wrong",
    [
        {"topic": None},
        {"topic": "a b"},
        {"topic": "timers"},
        {"delay": None},
        {"delay": "soon"},
        {"delay": "99d"},
        {"delay": 7},
        {"level": 2},
        {"value_base64": "AA=="},
        {"value": None},
        {"value": None, "value_base64": "*"},
        {"headers": [{"name": "a"}]},
        {"headers": [{"name": "TIMER_DELAY_SEC", "value": "1"}]},
        {"id": "é" * 200},
        {"other": 1},
        {"partition": -1},
        {"timer_topic": "nothing"},
        {"expires_at": NOW_MS},
    ],
)
def test_an_impossible_timer_is_refused(
    client: TestClient, producer: RecordingProducer, wrong: dict[str, Any]
) -> None:
    given = {name: value for name, value in {**NEW, **wrong}.items() if value is not None}
    response = client.post("/v1/timers", json=given)
    assert (response.status_code, response.json()["code"]) == (422, "invalid_request")
    assert producer.calls == []


@pytest.mark.parametrize("tag", ["", "a" * 65, "ü" * 33])
def test_a_tag_has_a_bound_in_bytes(client: TestClient, tag: str) -> None:
    of_timer = client.post("/v1/timers", json={**NEW, "tag": tag})
    of_filter = client.post("/v1/cancel", json={"filter": {"tag": tag}, "dry_run": True})
    for response, place in ((of_timer, "body.tag"), (of_filter, "body.filter.tag")):
        (problem,) = response.json()["errors"]
        assert response.status_code == 422
        assert problem == {"in": place, "detail": "a tag has 1 to 64 bytes of UTF-8"}
    assert client.post("/v1/timers", json={**NEW, "tag": "ü" * 32}).status_code == 201


def test_a_timer_is_cancelled(client: TestClient, producer: RecordingProducer) -> None:
    handle = timers(client, limit=1)[0]["handle"]
    response = client.delete(f"/v1/timers/{handle}")
    assert (response.status_code, response.json()["answer"]) == (200, "cancelled")
    assert producer.calls == [
        ("cancel", (handle,), {"key": None, "partition": None, "reply": True})
    ]
    producer.answer = None
    response = client.delete(f"/v1/timers/{handle}", params={"wait": 0.01})
    assert (response.status_code, response.json()["answer"]) == (202, None)


def test_without_a_wait_the_reply_topic_is_not_read(
    client: TestClient, producer: RecordingProducer
) -> None:
    """Where it cannot be read, a call that awaits a reply takes 30 s to say so."""
    handle = timers(client, limit=100)[-1]["handle"]
    none = {"wait": 0}
    for call in (
        client.delete(f"/v1/timers/{handle}", params=none),
        client.post(f"/v1/timers/{handle}/fire", params=none),
        client.post(f"/v1/timers/{handle}/reschedule", json={"delay": "1h"}, params=none),
    ):
        assert (call.status_code, call.json()["answer"]) == (202, None)
    body = {"filter": {"topic": "orders"}, "dry_run": False}
    result = client.post("/v1/cancel", json=body, params=none).json()
    assert (result["written"], result["answers"]) == (COUNT, {})
    assert [named["reply"] for _, _, named in producer.calls] == [False] * (3 + COUNT)


def test_a_timer_keeps_its_message(client: TestClient, producer: RecordingProducer) -> None:
    timer = timers(client, limit=20)[-1]
    response = client.post(f"/v1/timers/{timer['handle']}/reschedule", json={"delay": "2h"})
    assert (response.status_code, response.json()["answer"]) == (200, "cancelled")
    ((_, args, named),) = producer.calls
    assert args == (timer["handle"],)
    source = timer["source"]
    offset = int(source.partition("@")[2])
    assert named == {
        "topic": timer["topic"],
        "value": source.encode() * (offset % 13),
        "key": (None, b"", b"key")[offset % 3],
        "headers": [("h", b"\xff\0")] * (offset % 3),
        "partition": offset % 4 if offset % 5 == 0 else None,
        "timer_topic": "timers",
        "reply": True,
        "delay": timedelta(hours=2),
    }


def test_a_timer_is_fired(client: TestClient, producer: RecordingProducer) -> None:
    timer = timers(client, limit=100)[-1]
    response = client.post(f"/v1/timers/{timer['handle']}/fire")
    assert response.status_code == 200
    assert producer.calls[0][2]["delay"] == timedelta(milliseconds=1)
    producer.answer = Answer.ALREADY_DELIVERED
    assert client.post(f"/v1/timers/{timer['handle']}/fire").json()["answer"] == "already_delivered"


def test_a_timer_that_leaves_soon_is_not_fired(
    client: TestClient, producer: RecordingProducer
) -> None:
    handle = timers(client, limit=1)[0]["handle"]
    response = client.post(f"/v1/timers/{handle}/fire")
    assert (response.status_code, response.json()["code"]) == (409, "conflict")
    assert producer.calls == []


def test_what_is_not_pending_cannot_be_moved(
    client: TestClient, producer: RecordingProducer
) -> None:
    handle = RecallHandle("timers", 0, 999, NOW_MS, "x").encode()
    for path, body in (("fire", None), ("reschedule", {"delay": "1h"})):
        response = client.post(f"/v1/timers/{handle}/{path}", json=body)
        assert (response.status_code, response.json()["code"]) == (404, "not_pending")
    assert producer.calls == []


def test_a_dry_run_counts(client: TestClient, producer: RecordingProducer) -> None:
    body = {"filter": {"topic": "orders"}, "dry_run": True}
    result = client.post("/v1/cancel", json=body).json()
    assert (result["matched"], result["written"], len(result["sample"])) == (COUNT, COUNT, 10)
    assert producer.calls == []


def test_all_that_match_are_cancelled(client: TestClient, producer: RecordingProducer) -> None:
    span = {"topic": "orders", "from": str(NOW_MS + 10_000), "to": str(NOW_MS + 20_000)}
    expected = [timer["handle"] for timer in timers(client, **span)]
    result = client.post("/v1/cancel", json={"filter": span, "dry_run": False}).json()
    assert (result["matched"], result["written"]) == (len(expected), len(expected)) == (12, 12)
    assert result["answers"] == {"cancelled": 12}
    assert [args for _, args, _ in producer.calls] == [(handle,) for handle in expected]


def test_more_than_meant_are_not_cancelled(client: TestClient, producer: RecordingProducer) -> None:
    body = {"filter": {"topic": "orders"}, "dry_run": False, "at_most": COUNT - 1}
    response = client.post("/v1/cancel", json=body)
    assert (response.status_code, response.json()["code"]) == (409, "conflict")
    for invalid in ({"filter": {}, "dry_run": False}, {"filter": {"topic": "orders"}}):
        assert client.post("/v1/cancel", json=invalid).status_code == 422
    assert producer.calls == []


def test_cancelled_timers_are_left_out(tmp_path: Path, producer: RecordingProducer) -> None:
    settings = settings_of(tmp_path)
    world = LocalWorld(settings.storage.data_dir, settings.wheel, starts={P0: 0, P1: 0})
    world.append(*(TimerRow(0, n, NOW_MS + 30_000, timer_id=b"%d" % n) for n in range(3)))
    world.append(cancel(3, timer_id=b"1"))
    world.stop()
    with served(settings, Access(CHANGING), producer) as client:
        client.headers.update(bearer(TOKEN))
        first, second, _ = timers(client)
        result = client.post("/v1/cancel", json={"filter": {"level": 1}, "dry_run": True}).json()
        assert result["matched"] == 0
        body = {"filter": {"to": str(NOW_MS + 60_000)}, "dry_run": True}
        assert client.post("/v1/cancel", json=body).json()["matched"] == 2
        assert client.post(f"/v1/timers/{second['handle']}/fire").json()["code"] == "conflict"
        assert client.post(f"/v1/timers/{first['handle']}/fire").status_code == 200


def test_timers_whose_id_is_no_text_are_counted(
    tmp_path: Path, producer: RecordingProducer
) -> None:
    settings = settings_of(tmp_path)
    world = LocalWorld(settings.storage.data_dir, settings.wheel, starts={P0: 0, P1: 0})
    ids = (b"a", b"\xff", b"\xfe")
    world.append(*(TimerRow(0, n, NOW_MS + 30_000, timer_id=each) for n, each in enumerate(ids)))
    world.stop()
    with served(settings, Access(CHANGING), producer) as client:
        client.headers.update(bearer(TOKEN))
        body = {"filter": {"to": str(NOW_MS + 60_000)}, "dry_run": True}
        result = client.post("/v1/cancel", json=body).json()
        assert (result["matched"], result["unreachable"]) == (1, 2)


def test_long_searches_hold_no_change(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, may_end = threading.Semaphore(0), threading.Event()

    def slow(*_: Any) -> Iterator[Any]:
        begun.release()
        may_end.wait()
        yield from ()

    monkeypatch.setattr(cancel_matching, "list_chunks", slow)
    body = {"filter": {"topic": "orders"}, "dry_run": True}
    with ThreadPoolExecutor(16) as pool:
        searches = [pool.submit(client.post, "/v1/cancel", json=body) for _ in range(16)]
        begun.acquire()
        assert client.post("/v1/timers", json=NEW).status_code == 201
        assert len(timers(client)) == 100
        assert not any(each.done() for each in searches)
        may_end.set()
    assert {each.result().json()["matched"] for each in searches} == {0}


def test_a_part_that_is_written_is_counted(client: TestClient, producer: RecordingProducer) -> None:
    # The records behind the one that is refused are acknowledged, too.
    producer.refused = {3}
    body = {"filter": {"topic": "orders"}, "dry_run": False}
    response = client.post("/v1/cancel", json=body)
    problem = response.json()
    assert (response.status_code, problem["code"]) == (504, "unacknowledged")
    assert (problem["matched"], problem["written"], problem["in_doubt"]) == (COUNT, COUNT - 1, 1)
    assert f"{COUNT - 1} of {COUNT} cancels are written, 1 may be" in problem["detail"]


def test_no_one_is_invited_to_write_twice(client: TestClient, producer: RecordingProducer) -> None:
    producer.refused = {0, 1}
    handle = timers(client, limit=100)[-1]["handle"]
    for path, body in (("", NEW), (f"/{handle}/fire", None)):
        response = client.post(f"/v1/timers{path}", json=body)
        assert (response.status_code, response.json()["code"]) == (504, "unacknowledged")
        assert "may or may not be written" in response.json()["detail"]
        assert "retry-after" not in response.headers


def test_a_reply_that_cannot_be_read_fails_no_change(
    client: TestClient, producer: RecordingProducer
) -> None:
    producer.reply_error = KafkaUnavailable("the reply topic has no leader")
    handle = timers(client, limit=100)[-1]["handle"]
    for call in (
        client.delete(f"/v1/timers/{handle}"),
        client.post(f"/v1/timers/{handle}/fire"),
        client.post(f"/v1/timers/{handle}/reschedule", json={"delay": "1h"}),
    ):
        assert (call.status_code, call.json()["answer"]) == (202, None)
    body = {"filter": {"topic": "orders"}, "dry_run": False}
    result = client.post("/v1/cancel", json=body).json()
    assert (result["written"], result["answers"]) == (COUNT, {"none_in_time": COUNT})


def test_a_failed_producer_is_closed_once(settings: Settings) -> None:
    first: Any = RecordingProducer()
    second: Any = RecordingProducer()
    unopened = [first, second]
    writer = TimerWriter(settings, ManualClock(NOW_MS), lambda *_: unopened.pop(0))
    with suppress(Unacknowledged), writer.producer("timers"):
        with suppress(Unacknowledged), writer.producer("timers") as shared:
            assert shared is first
            raise KafkaError("the first request fails")
        with writer.producer("timers") as later:
            assert later is second
        raise KafkaError("another one, with the first producer, fails later")
    with writer.producer("timers") as still:
        assert still is second


def test_requests_that_wait_for_a_producer_fail_with_it(settings: Settings) -> None:
    """With a silent Kafka the last of them would fail after as many attempts as there are."""
    attempts, is_over = [], threading.Event()

    def fail(*_: object) -> Any:
        attempts.append(threading.current_thread())
        is_over.wait()
        raise KafkaUnavailable("no answer")

    def use() -> None:
        with writer.producer("timers"):
            raise AssertionError("nothing is open")

    writer = TimerWriter(settings, ManualClock(NOW_MS), fail)
    opening = beside("opening", use)
    wait_until(lambda: attempts, "nobody connected")
    waiting = [beside("waiting", use) for _ in range(3)]
    threads = {thread for thread in threading.enumerate() if thread.name == "waiting"}
    wait_until(lambda: where_they_are(threads).count("in wait\n") == 3, "some do not wait")
    is_over.set()
    for request in (opening, *waiting):
        assert isinstance(request.exception(), KafkaUnavailable)
    assert len(attempts) == 1
    with pytest.raises(KafkaUnavailable):
        use()
    assert len(attempts) == 2, "a later one connects anew"


def test_half_of_a_character_is_a_problem(client: TestClient) -> None:
    for name in ("delay", "deliver_at", "window", "value"):
        raw = json.dumps({"topic": "orders", "value": "v", "delay": "1m", name: "\ud800"})
        headers = {"Content-Type": "application/json"}
        response = client.post("/v1/timers", content=raw, headers=headers)
        assert (response.status_code, response.json()["code"]) == (422, "invalid_request")
        assert name in response.json()["detail"]


def test_an_instant_that_is_none_is_named(client: TestClient) -> None:
    wrong = {"from": str(NOW_MS), "to": "tomorrow"}
    assert (
        client.get("/v1/timers", params=wrong).json()["detail"].startswith("query.to: 'tomorrow'")
    )
    response = client.post("/v1/cancel", json={"filter": wrong, "dry_run": True})
    assert response.json()["detail"].startswith("body.filter.to: 'tomorrow'")
    new = {**NEW, "delay": None, "deliver_at": "tomorrow"}
    assert client.post("/v1/timers", json=new).json()["detail"].startswith("body.deliver_at: ")


def test_without_kafka_reads_are_served(client: TestClient, producer: RecordingProducer) -> None:
    producer.is_down = True
    response = client.post("/v1/timers", json=NEW)
    assert (response.status_code, response.json()["code"]) == (503, "kafka_unavailable")
    assert response.headers["retry-after"]
    assert len(timers(client)) == 100
    assert client.get("/livez").status_code == 200


def test_a_process_is_resumed_during_a_recovery(client: TestClient, settings: Settings) -> None:
    with State.open(settings.storage.data_dir) as state:
        state.note_damage(Damage.CACHE_LOST)
    resumed = {"process": "ingest", "paused": False, "was_paused": False}
    assert client.post("/v1/resume/ingest").json() == resumed


def test_a_process_is_paused(client: TestClient, settings: Settings) -> None:
    for was_paused in (False, True):
        paused = {"process": "dequeue", "paused": True, "was_paused": was_paused}
        assert client.post("/v1/pause/dequeue").json() == paused
    with open_files(settings) as directory:
        assert directory.state.live.paused(Role.DEQUEUE)
    resumed = {"process": "dequeue", "paused": False, "was_paused": True}
    assert client.post("/v1/resume/dequeue").json() == resumed
    assert client.post("/v1/pause/both").status_code == 422
