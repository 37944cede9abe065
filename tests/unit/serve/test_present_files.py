"""The files of an earlier assignment, and those of a former owner, are not served."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from tests.harness.browser import listening
from tests.harness.launcher import wait_until
from tests.harness.local_world import NOW_MS
from tests.harness.newest_progress import NewestProgress, removed, taken_by_others, taken_over
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

from duewheel.checkpoints.progress import Progress
from duewheel.checkpoints.reshard_records import sealed, unsealed
from duewheel.ops.shard import present_files
from duewheel.serve.access import Access
from duewheel.serve.app import make_app
from duewheel.testing import ManualClock

FILTERED = {"filter": {"topic": "orders"}, "dry_run": True}


@pytest.fixture
def kafka(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NewestProgress:
    settings = settings_of(tmp_path)
    fill(settings)
    monkeypatch.setattr(present_files, "_INTERVAL_S", 0.01)
    return NewestProgress.of_files(settings.storage.data_dir, monkeypatch)


@pytest.fixture
def client(tmp_path: Path, kafka: NewestProgress) -> Iterator[TestClient]:
    with served(settings_of(tmp_path), Access(CHANGING), RecordingProducer()) as client:
        client.headers |= bearer(TOKEN)
        yield client


def undone(progress: Progress) -> Progress:
    (only,) = unsealed([sealed(progress, 2, 1)], lambda: 2)
    return only


def of_files(client: TestClient) -> list[Any]:
    reads = [client.get(f"/v1/{path}") for path in ("timers", "histogram", "stats", "status")]
    paused = client.post("/v1/pause/dequeue")
    return [*reads, client.post("/v1/cancel", json=FILTERED), paused]


@pytest.mark.parametrize(
    ("after", "code"),
    [
        (removed, "resharded"),
        (taken_by_others, "resharded"),
        (undone, "resharded"),
        (taken_over, "taken_over"),
    ],
)
def test_outdated_files_are_not_served(
    client: TestClient, kafka: NewestProgress, after: Callable[[Progress], Progress], code: str
) -> None:
    assert kafka.progress is not None
    before = kafka.progress
    kafka.becomes(after(before))
    for response in of_files(client):
        assert (response.status_code, response.json()["code"]) == (503, code), response.text
    found = client.get("/v1/fleet").json()
    assert (found["members"][0]["status"], found["absent"]) == (None, [0])
    kafka.becomes(None)
    assert client.get("/v1/stats").json()["code"] == code, "Kafka's silence changes nothing"
    kafka.becomes(before)
    assert [response.status_code for response in of_files(client)] == [200] * 6


def test_no_file_is_served_before_its_assignment_is_known(
    tmp_path: Path, kafka: NewestProgress
) -> None:
    assert kafka.progress is not None
    kafka.progress = taken_by_others(kafka.progress)
    kafka.may_answer.clear()
    with served(settings_of(tmp_path)) as client, ThreadPoolExecutor() as pool:
        wait_until(lambda: kafka.reads == 1, "Kafka is asked")
        paths = ("timers", "stats", "fleet")
        asked = [pool.submit(client.get, f"/v1/{path}") for path in paths]
        assert client.get("/livez").status_code == 200
        kafka.may_answer.set()
        *lists, fleet = [each.result() for each in asked]
    assert {each.json()["code"] for each in lists} == {"resharded"}
    assert fleet.json()["absent"] == [0]


def test_files_are_served_if_kafka_is_silent_from_the_start(
    tmp_path: Path, kafka: NewestProgress, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(present_files, "_FIRST_S", 0.01)
    kafka.may_answer.clear()
    with served(settings_of(tmp_path), Access(CHANGING), RecordingProducer()) as client:
        client.headers |= bearer(TOKEN)
        (timer,) = client.get("/v1/timers", params={"limit": 1}).json()["timers"]
        assert client.post("/v1/cancel", json=FILTERED).json()["matched"] == COUNT
        # A former owner's may have a timer that has left.
        for changed in (
            client.post(f"/v1/timers/{timer['handle']}/fire"),
            client.post("/v1/cancel", json=FILTERED | {"dry_run": False}),
        ):
            assert (changed.status_code, changed.json()["code"]) == (503, "kafka_unavailable")
        kafka.may_answer.set()


def test_a_removed_shard_has_one_reason_and_no_metric_of_its_files(
    client: TestClient, kafka: NewestProgress
) -> None:
    assert kafka.progress is not None
    before = kafka.progress
    kafka.becomes(replace(removed(before), sealed_for=2))
    found = client.get("/readyz").json()
    assert found["reasons"].keys() == {"resharded"}
    assert [each["name"] for each in found["conditions"]] == ["resharded"]
    text = client.get("/metrics").text
    assert re.findall("^duewheel_(?!http|build|thread).*", text, re.MULTILINE) == [
        "duewheel_ready 0.0",
        'duewheel_not_ready{reason="resharded"} 1.0',
    ]
    kafka.becomes(taken_by_others(before))
    assert "dequeue_not_running" in client.get("/readyz").json()["reasons"], "it can be started"
    assert 'not_ready{reason="dequeue_not_running"} 1.0' in client.get("/metrics").text


def test_the_files_of_a_sealed_shard_are_its_own_until_it_is_reassigned(
    client: TestClient, kafka: NewestProgress
) -> None:
    assert kafka.progress is not None
    kafka.becomes(sealed(kafka.progress, 2, 1))
    assert [response.status_code for response in of_files(client)] == [200] * 6


def test_one_timer_is_cancelled_by_a_server_of_any_shard(
    client: TestClient, kafka: NewestProgress
) -> None:
    (timer,) = client.get("/v1/timers", params={"limit": 1}).json()["timers"]
    assert kafka.progress is not None
    kafka.becomes(removed(kafka.progress))
    assert client.delete(f"/v1/timers/{timer['handle']}").status_code == 200


def test_the_fleet_does_not_count_a_removed_shard(tmp_path: Path, kafka: NewestProgress) -> None:
    app = make_app(settings_of(tmp_path), ManualClock(NOW_MS), Access())
    with listening(app) as address:
        asking = settings_of(tmp_path / "asking", shards=(address.rstrip("/"),))
        with served(asking) as client:
            (member,) = client.get("/v1/fleet").json()["members"]
            assert member["status"]["pending"] == 2 * COUNT
            assert kafka.progress is not None
            kafka.becomes(replace(removed(kafka.progress), sealed_for=2))
            (member,) = client.get("/v1/fleet").json()["members"]
    assert member["status"] is None
    assert member["error"].startswith("503: there is no shard 0: `duewheel reshard` has made 2")
