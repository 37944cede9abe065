"""Schedules of one name in two timer topics, and copies on their way: what a team that may write to
one topic does to the schedules of others.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from fastapi.testclient import TestClient
from tests.harness.schedule_shard import HOURLY, OTHERS, put, rows, squat

from duewheel.cli.schedules import schedule
from duewheel.errors import NoSuchSchedule
from duewheel.ops.schedules import listing
from duewheel.serve import schedules
from duewheel.testing.service import LocalService

READ_PAUSES_S = listing.READ_PAUSES_S  # the fixture makes them shorter


def test_a_name_belongs_to_its_timer_topic(client: TestClient, service: LocalService) -> None:
    squat(service)
    put(client, "daily", **HOURLY)
    both = [("daily", "others", "active"), ("daily", "timers", "active")]
    assert rows(client) == both
    paused = client.post("/v1/schedules/daily/pause")
    assert (paused.status_code, paused.json()["timer_topic"]) == (200, "timers")
    assert rows(client) == [both[0], ("daily", "timers", "paused")]
    assert client.post("/v1/schedules/daily/resume").status_code == 200
    assert client.post("/v1/schedules/daily/trigger").json()["timer_topic"] == "timers"
    for given, topic in (({}, "timers"), (OTHERS, "others")):
        for path in ("", "/next"):
            assert client.get(f"/v1/schedules/daily{path}", params=given).status_code == 200
        shown = client.get("/v1/schedules/daily", params=given).json()
        assert shown["timer_topic"] == topic
    stopped = client.delete("/v1/schedules/daily").json()
    assert (stopped["state"], stopped["timer_topic"]) == ("stopped", "timers")
    assert rows(client) == both[:1]
    assert client.delete("/v1/schedules/daily", params=OTHERS).status_code == 200
    assert rows(client) == []


def test_a_name_that_another_topic_has_is_not_taken_for_it(
    client: TestClient, service: LocalService, config: Path
) -> None:
    squat(service)
    for method, path in (("GET", ""), ("POST", "/pause"), ("POST", "/trigger"), ("DELETE", "")):
        response = client.request(method, f"/v1/schedules/daily{path}")
        assert response.status_code == 404
        assert (
            "timers has no schedule 'daily' in this shard (one that has just fired appears once "
            "ingest has read its next timer); there is one in others" in (response.json()["detail"])
        )
    command = ["next", "daily", "--config", str(config)]
    assert "one in others" in str(CliRunner().invoke(schedule, command).exception)
    found = CliRunner().invoke(schedule, [*command, "--timer-topic", "others"])
    assert len(found.stdout.splitlines()) == 10
    put(client, "daily", **HOURLY)
    assert rows(client) == [("daily", "others", "active"), ("daily", "timers", "active")]
    unknown = client.get("/v1/schedules/daily", params={"timer_topic": "timer"})
    assert (unknown.status_code, unknown.json()["code"]) == (422, "invalid_request")


def test_the_url_of_a_new_schedule_names_its_timer_topic(client: TestClient) -> None:
    path = "/v1/schedules/daily?timer_topic=others"
    assert client.put(path, json=HOURLY | {"timer_topic": "timers"}).status_code == 422
    assert client.put(path, json=HOURLY).status_code == 200
    assert client.put(path, json=HOURLY | OTHERS).status_code == 200
    assert rows(client) == [("daily", "others", "active")]


def test_the_test_kit_tells_them_apart(service: LocalService) -> None:
    for topic in ("timers", "others"):
        service.schedules.set("daily", **HOURLY, timer_topic=topic)
    service.schedules.pause("daily", timer_topic="others")
    service.advance("1h")
    assert len(service.delivered("reports")) == 1
    service.schedules.stop("daily")
    with pytest.raises(NoSuchSchedule, match="timers has no schedule 'daily'"):
        service.schedules.trigger("daily")
    service.schedules.trigger("daily", timer_topic="others")
    service.schedules.resume("daily", timer_topic="others")
    service.advance("1s")
    assert len(service.delivered("reports")) == 2


@pytest.mark.parametrize("call", [("GET", ""), ("GET", "/next"), ("DELETE", ""), ("PUT", "")])
def test_a_copy_on_its_way_is_awaited_outside_of_the_threads(
    client: TestClient,
    service: LocalService,
    monkeypatch: pytest.MonkeyPatch,
    call: tuple[str, str],
) -> None:
    """Ingest has taken the record of another topic, not yet the one that is meant."""
    squat(service)
    service.producer().schedule("orders", b"1", id="daily", every="1h", partition=3)

    async def taken(_: float) -> None:
        assert threading.current_thread().name == loop
        service.pending()

    def asleep(_: float) -> None:  # in other threads, too: Spark's of another test
        assert "AnyIO" not in threading.current_thread().name, "a thread of reads or changes waits"

    async def thread_name() -> str:
        return threading.current_thread().name

    assert client.portal is not None
    loop = client.portal.call(thread_name)
    monkeypatch.setattr(schedules, "sleep", taken)
    monkeypatch.setattr(time, "sleep", asleep)
    method, path = call
    body = HOURLY if method == "PUT" else None
    assert client.request(method, f"/v1/schedules/daily{path}", json=body).status_code == 200
    service.advance("1s")
    ours = [] if method == "DELETE" else [("daily", "timers", "active")]
    assert rows(client) == [("daily", "others", "active"), *ours]


def test_a_read_of_none_is_a_few_short_looks(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, slept = list[str](), list[float]()

    def looked(*_: Any) -> Any:
        looks.append(threading.current_thread().name)
        return iter(())

    async def sleep(pause_s: float) -> None:
        slept.append(pause_s)

    monkeypatch.setattr(listing, "pending_copies", looked)
    monkeypatch.setattr(listing, "READ_PAUSES_S", READ_PAUSES_S)
    monkeypatch.setattr(schedules, "sleep", sleep)
    assert client.get("/v1/schedules/daily").status_code == 404
    assert len(looks) == len(slept) + 1 <= 4 and sum(slept) <= 1
