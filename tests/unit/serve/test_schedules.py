"""Schedules by the HTTP API: a shard on real files, whose clock only the test moves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from fastapi.testclient import TestClient
from tests.harness.schedule_shard import DAILY, listed, put

from duewheel.cli.main import cli
from duewheel.config.settings import Settings
from duewheel.ops.schedules import listing
from duewheel.serve.service import Service
from duewheel.testing.memory_cluster import MemoryCluster
from duewheel.testing.service import LocalService

DAY_MS = 86_400_000


def test_it_is_set_listed_changed_and_stopped(client: TestClient, service: LocalService) -> None:
    row = put(client, "daily", **DAILY, missed="one", jitter="10m")
    assert (row["state"], row["applied"], row["missed"]) == ("active", True, "one")
    assert 0 <= row["next_due_ms"] - (service.now_ms() + DAY_MS - 30 * 60_000) <= 600_000
    assert listed(client) == [row]  # its record is pending
    service.advance("1s")
    assert listed(client) == [row]  # its first copy is
    assert client.get("/v1/schedules/daily").json() == row
    upcoming = client.get("/v1/schedules/daily/next").json()
    first = row["next_due_ms"]
    assert upcoming["due_ms"] == list(range(first, first + 10 * DAY_MS, DAY_MS))
    assert (upcoming["zone"], upcoming["paused"]) == ("Europe/Berlin", False)
    put(client, "daily", every="1h", target="orders", value="hourly", key="k")
    service.advance("1h")
    (changed,) = listed(client)
    assert (changed["every_ms"], changed["cron"], changed["zone"]) == (3_600_000, None, None)
    assert [m.value for m in service.delivered("orders")] == [b"hourly"]
    assert service.delivered("reports") == []
    stopped = client.delete("/v1/schedules/daily")
    assert (stopped.status_code, stopped.json()["state"]) == (200, "stopped")
    service.advance("1d")
    assert (listed(client), service.pending()) == ([], [])


def test_the_schedules_of_one_timer_topic_are_listed_whatever_others_have(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list has a bound, and begins with those that fire first: another team's, perhaps."""
    monkeypatch.setattr(listing, "SERVED_MAX", 2)
    for number in range(3):
        put(client, f"theirs-{number}", every="1h", target="orders", value="v")
    put(client, "ours", **DAILY, timer_topic="others")
    whole = client.get("/v1/schedules").json()
    assert ({row["timer_topic"] for row in whole["schedules"]}, whole["more"]) == ({"timers"}, True)
    part = client.get("/v1/schedules", params={"timer_topic": "others"}).json()
    assert ([row["name"] for row in part["schedules"]], part["more"]) == (["ours"], False)
    assert client.get("/v1/schedules", params={"timer_topic": "other"}).status_code == 422


def test_a_pause_with_a_note_is_listed_and_ended(client: TestClient, service: LocalService) -> None:
    before = put(client, "daily", **DAILY)
    service.advance("1s")
    row = client.post("/v1/schedules/daily/pause", json={"note": "until the audit"}).json()
    assert (row["state"], row["note"], row["next_due_ms"]) == ("paused", "until the audit", None)
    service.advance("2d")
    assert listed(client) == [row]
    upcoming = client.get("/v1/schedules/daily/next").json()
    assert upcoming["paused"] and upcoming["due_ms"][0] == before["next_due_ms"] + 2 * DAY_MS
    row = client.post("/v1/schedules/daily/resume").json()
    assert (row["state"], row["next_due_ms"]) == ("active", upcoming["due_ms"][0])
    assert service.delivered("reports") == []
    assert client.post("/v1/schedules/daily/pause").json()["note"] is None
    assert client.post("/v1/schedules/daily/pause", json={"not": 1}).status_code == 422


def test_the_timer_of_a_paused_schedule_has_no_due_time(
    client: TestClient, service: LocalService, config: Path
) -> None:
    for name in ("daily", "poll"):
        put(client, name, **DAILY)
    client.post("/v1/schedules/daily/pause")
    service.advance("1s")
    lines = CliRunner().invoke(cli, ["list", "--config", str(config)]).output.splitlines()
    (of_daily,) = (line for line in lines if "id daily" in line)
    assert of_daily.endswith("  5 bytes  paused")
    assert [line for line in lines if "paused" in line] == [of_daily]
    shown = CliRunner().invoke(cli, ["show", "--id", "daily", "--config", str(config)]).output
    assert ["due", "paused"] in [line.split() for line in shown.splitlines()]
    timers = client.get("/v1/timers").json()["timers"]
    assert {row["id"]: row["paused"] for row in timers} == {"daily": True, "poll": False}


def test_it_is_triggered(client: TestClient, service: LocalService) -> None:
    put(client, "daily", **DAILY)
    service.advance("1s")
    response = client.post("/v1/schedules/daily/trigger")
    assert response.status_code == 201
    service.advance("1s")
    (message,) = service.delivered("reports")
    assert (message.value, message.id) == (b"daily", response.json()["id"])
    assert len(listed(client)) == 1


def test_a_record_that_another_client_has_written_spoils_no_list(
    client: TestClient, service: LocalService, cluster: MemoryCluster
) -> None:
    """A null header, a note and a user's header of any bytes: it can be stopped, not rewritten."""
    put(client, "daily", **DAILY)
    own = [("UNIQ_KEY", b"other"), ("TIMER_EVERY", b"1h"), ("REAL_TOPIC", b"orders")]
    cluster.append(("timers", 0), b"k", None, [*own, ("a", None), ("TIMER_PAUSED", b"\xff")])
    service.advance("1s")
    (_, other) = listed(client)
    assert (other["name"], other["state"], other["note"]) == ("other", "paused", "\ufffd")
    for change in ("pause", "resume", "trigger"):
        response = client.post(f"/v1/schedules/other/{change}")
        assert response.status_code == 422 and "null header" in response.text
    assert client.delete("/v1/schedules/other").status_code == 200
    service.advance("1s")
    assert [row["name"] for row in listed(client)] == ["daily"]


def test_a_note_has_255_bytes(client: TestClient, service: LocalService) -> None:
    put(client, "daily", **DAILY)
    for note, status in (("é" * 127, 200), ("é" * 128, 422), ("e" * 256, 422)):
        response = client.post("/v1/schedules/daily/pause", json={"note": note})
        assert response.status_code == status, response.text
        service.advance("1s")
    assert listed(client)[0]["note"] == "é" * 127


def test_a_change_that_is_written_is_no_busy_one(client: TestClient) -> None:
    """Reads take all places: `busy` would claim that nothing was written."""
    service: Service = client.app.state.service  # type: ignore[attr-defined]
    peek = service.peek
    service.peek = replace(peek, bulkhead=replace(peek.bulkhead, waiting_max=0))
    response = client.put("/v1/schedules/daily", json=DAILY, params={"wait": 0.1})
    assert (response.status_code, response.json()["applied"]) == (202, False)
    service.peek = peek
    assert [row["name"] for row in listed(client)] == ["daily"]


def test_a_name_that_is_pending_nowhere_is_missing(client: TestClient) -> None:
    for method, path in (
        ("GET", "/next"),
        ("POST", "/pause"),
        ("POST", "/trigger"),
        ("DELETE", ""),
    ):
        response = client.request(method, f"/v1/schedules/nobody{path}")
        assert (response.status_code, response.json()["code"]) == (404, "no_such_schedule")


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"zone": "Nowhere/City"}, "no time zone"),
        ({"cron": "0 8 32 * *"}, "no cron expression: Bad day-of-month"),
        ({"cron": "0 8 31 2 *"}, "has no instant: none of its months has such a day"),
        ({"cron": None}, "either cron or every"),
        ({"every": "90s"}, "either cron or every"),
        ({"cron": None, "zone": None, "every": "999ms"}, "below a second"),
        ({"cron": None, "every": "90s"}, "zone belongs to cron"),
        ({"ends": 1_000}, "no instant to come: `ends`, 1970-01-01T00:00:01.000Z, is past"),
        ({"starts": 10**13, "ends": 10**13 + 1}, "no instant to come until `ends`, 2286-11-20T"),
        ({"cron": None, "zone": None, "every": "1h", "ends": 1}, "the interval has no instant to"),
        ({"jitter": "2d"}, "TIMER_JITTER_MS"),
        ({"target": "bills"}, "timers is open for reports, orders"),
        ({"target": "timers"}, "the timer topic itself"),
        (
            {"timer_topic": "closed"},
            '; set recurring = true in [timer.topic.\\"closed\\"], then run `duewheel reconfigure`',
        ),
        ({"value": None}, "give a value, or a key"),
        ({"headers": [{"name": "TIMER_CRON", "value": "x"}]}, "is reserved"),
        ({"evry": "90s"}, "Extra inputs"),
    ],
)
def test_what_ingest_would_refuse_is_refused_before_it_is_written(
    client: TestClient, service: LocalService, wrong: dict[str, Any], reason: str
) -> None:
    fields = {name: value for name, value in (DAILY | wrong).items() if value is not None}
    response = client.put("/v1/schedules/daily", json=fields)
    assert (response.status_code, response.json()["code"]) == (422, "invalid_request")
    assert reason in response.text
    assert service.records("timers") == service.records("closed") == []


def test_a_name_has_200_bytes(client: TestClient, settings: Settings) -> None:
    response = client.put(f"/v1/schedules/{'é' * 101}", json=DAILY)
    assert response.status_code == 422 and "200 bytes at most" in response.text
    put(client, "é" * 100, **DAILY)
    assert listed(client)[0]["name"] == "é" * 100


@pytest.mark.parametrize(("quoted", "name"), [("eu%2Fdaily", "eu/daily"), ("eu%0A", "eu\n")])
def test_a_name_may_have_slashes_and_line_breaks(
    client: TestClient, quoted: str, name: str
) -> None:
    """As in the header of any producer; such a schedule was in the list, and nowhere else."""
    put(client, quoted, **DAILY)
    (row,) = listed(client)
    url = f"/v1/schedules/{quoted}"
    assert row["name"] == client.get(url).json()["name"] == name
    assert len(client.get(f"{url}/next").json()["due_ms"]) == 10
    assert client.post(f"{url}/pause", json={}).status_code == 200
    assert client.delete(url).status_code == 200
    assert listed(client) == []


def test_a_name_that_ends_as_the_path_of_an_operation_is_a_name(client: TestClient) -> None:
    """The name's slash is sent as `%2F`: it was read as the separator of the operation."""
    put(client, "a%2Fnext", **DAILY)
    assert client.get("/v1/schedules/a%2Fnext").json()["name"] == "a/next"
    assert len(client.get("/v1/schedules/a%2Fnext/next").json()["due_ms"]) == 10
    assert client.get("/v1/schedules/a/next").status_code == 404
    put(client, "a", **DAILY)
    assert len(client.get("/v1/schedules/a/next").json()["due_ms"]) == 10
    assert client.post("/v1/schedules/a%2Fpause").status_code == 405
    assert {row["state"] for row in listed(client)} == {"active"}
    assert client.get("/v1/schedules/").json() == client.get("/v1/schedules").json()
