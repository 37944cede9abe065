"""Schedules by the HTTP API and by the commands that need no Kafka: a shard on real files, whose
clock only the test moves.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from fastapi.testclient import TestClient
from pyarrow.ipc import open_stream
from tests.harness.served import KitWriter, RecordingProducer, recording_writer

from duewheel.api.schedules import NewSchedule
from duewheel.cli.main import cli
from duewheel.cli.schedules import schedule
from duewheel.config.settings import Settings
from duewheel.errors import ConfigError, NoSuchSchedule, Unacknowledged
from duewheel.ops.schedules import apply, changes, listing
from duewheel.ops.schedules.schedule_record import requested
from duewheel.serve.service import Service
from duewheel.tables import schedules_table
from duewheel.testing.memory_cluster import MemoryCluster
from duewheel.testing.service import LocalService

DAILY = {"cron": "30 8 * * *", "zone": "Europe/Berlin", "target": "reports", "value": "daily"}
DAY_MS = 86_400_000


def put(client: TestClient, name: str, **fields: Any) -> dict[str, Any]:
    response = client.put(f"/v1/schedules/{name}", json=fields)
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


def listed(client: TestClient) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = client.get("/v1/schedules").json()["schedules"]
    return rows


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


def test_the_instants_of_a_zone_have_milliseconds(
    client: TestClient, service: LocalService, config: Path
) -> None:
    put(client, "daily", **DAILY, jitter="10m")
    service.advance("1s")
    found = CliRunner().invoke(schedule, ["next", "daily", "--config", str(config)])
    for line in found.stdout.splitlines():
        of_utc, of_zone = map(datetime.fromisoformat, line.split())
        assert of_utc == of_zone and of_zone.microsecond


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
    service.peek = replace(peek, waiting_max=0)
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


def test_a_name_in_two_partitions_is_refused_with_the_remedy(
    client: TestClient, service: LocalService, settings: Settings
) -> None:
    for partition in (1, 2):
        service.producer().schedule("orders", b"v", id="twice", every="1h", partition=partition)
    service.advance("1s")
    assert [row["name"] for row in listed(client)] == ["twice", "twice"]
    with pytest.raises(ConfigError, match="timers-1 and timers-2: cancel all but one"):
        changes.stop(KitWriter(settings, service), "twice", None)


def test_commands_that_need_no_kafka(
    client: TestClient, service: LocalService, config: Path
) -> None:
    def command(*words: str) -> Any:
        return CliRunner().invoke(schedule, [*words, "--config", str(config)])

    assert "no schedules" in command("list").stderr
    put(client, "daily", **DAILY)
    service.advance("1s")
    when = "30 8 * * * Europe/Berlin  timers to reports  next 2027-01-16T07:30:00.000Z"
    assert command("list").stdout == f"daily  active  {when}\n"
    row = json.loads(command("list", "--output", "json").stdout)
    assert (row["name"], row["every_ms"]) == ("daily", None)
    with open_stream(command("list", "--output", "arrow").stdout_bytes) as stream:
        assert stream.read_all() == schedules_table(config)
    (in_table,) = schedules_table(config, timer_topic="timers").to_pylist()
    assert (in_table["name"], in_table["state"]) == ("daily", "active")
    assert in_table["next_due"] == datetime.fromisoformat("2027-01-16T07:30Z")
    assert len(schedules_table(config, timer_topic="others")) == 0
    lines = command("next", "daily").stdout.splitlines()
    assert len(lines) == 10 and all("T08:30:00.000+0" in each for each in lines)
    client.post("/v1/schedules/daily/pause", json={"note": "audit"})
    assert command("list").stdout.endswith("to reports  audit\n")
    assert "daily is paused" in command("next", "daily").stderr
    assert isinstance(command("next", "nobody").exception, NoSuchSchedule)


FILE = """
[daily]
cron = "30 8 * * *"
zone = "Europe/Berlin"
target = "reports"
value = "daily"

[poll]
every = "90s"
target = "orders"
value = "poll"
jitter = "1m"
ends = 2030-01-01T00:00:00Z
headers = [{ name = "a", value = "b" }]
"""


def test_an_apply_that_fails_on_its_way_tells_how_far_it_came(
    service: LocalService, settings: Settings, config: Path
) -> None:
    writer = recording_writer(settings, RecordingProducer(closed={"others"}), service.clock)
    path = config.with_name("schedules.toml")
    path.write_text(FILE + 'timer_topic = "others"\n')
    with pytest.raises(Unacknowledged, match="written before: 1 of 2 changes"):
        apply.apply(writer, path, prune=False, dry_run=False, wait_s=0)


def test_a_file_is_applied_by_its_differences(
    applied: Callable[..., list[str]], service: LocalService, client: TestClient
) -> None:
    assert applied(FILE, dry_run=True) == ["added daily", "added poll"]
    assert service.records("timers") == []
    assert applied(FILE) == ["added daily", "added poll"]
    service.advance("7s")
    before = {row["name"]: row["next_due_ms"] for row in listed(client)}
    same = FILE.replace("90s", "90000ms").replace("1m", "60s").replace("01-01T00", "01-01T01")
    same = same.replace("00:00Z", "00:00+01:00")
    assert applied(same) == ["unchanged daily", "unchanged poll"]
    assert {row["name"]: row["next_due_ms"] for row in listed(client)} == before
    client.post("/v1/schedules/poll/pause", json={"note": "audit"})
    assert applied(FILE) == ["unchanged daily", "unchanged poll"]
    changed = (
        FILE.replace("90s", "2m").replace('"b"', '"c"').replace('value = "poll"\n', "key = 'k'\n")
    )
    assert applied(changed) == [
        "unchanged daily",
        "changed poll every 90s -> 2m value poll -> - headers.0 a=b -> a=c key - -> k",
    ]
    assert [(row["every_ms"], row["note"]) for row in listed(client)][1] == (120_000, "audit")
    only_daily = FILE[: FILE.index("[poll]")]
    assert applied(only_daily) == ["unchanged daily"]
    assert applied(only_daily, prune=True, dry_run=True) == ["unchanged daily", "removed poll"]
    assert applied(only_daily, prune=True) == ["unchanged daily", "removed poll"]
    assert [row["name"] for row in listed(client)] == ["daily"]
    ended = only_daily + "ends = 1_000\n"
    assert applied(ended) == ["removed daily"]
    assert applied(ended) == ["unchanged daily"]
    assert listed(client) == []


def test_a_defect_anywhere_writes_nothing(
    applied: Callable[..., list[str]], service: LocalService
) -> None:
    wrong = FILE + '[c]\nevery = "1ms"\ntarget = "orders"\n[d]\nevry = "1h"\n[e]\ntarget = "x"\n'
    with pytest.raises(ConfigError) as refused:
        applied(wrong + "f = 1\n")
    text = str(refused.value)
    assert "c: every '1ms' is below a second" in text
    assert 'd: there is no key "evry"; did you mean "every"?' in text
    assert 'e: there is no key "f"' in text
    for name, reason in (("Nowhere/City", "daily: .*no time zone"), ("", "cannot be read")):
        text = FILE.replace("Europe/Berlin", name) if name else "["
        with pytest.raises(ConfigError, match=reason):
            applied(text)
    reason = r"schedules\.toml .*\n  poll: it would become a dead letter: TIMER_JITTER_MS"
    with pytest.raises(ConfigError, match=reason):
        applied(FILE.replace("1m", "9d"))
    assert service.records("timers") == []


def test_the_schedules_of_another_shard_are_left_to_it(
    client: TestClient, settings: Settings, service: LocalService
) -> None:
    producer = service.producer()
    owner = producer.partition_of(b"daily") % 2
    of_other = settings.model_copy(
        update={"shard": settings.shard.model_copy(update={"index": 1 - owner, "count": 2})}
    )
    writer = KitWriter(of_other, service)
    with pytest.raises(ConfigError, match=f"belongs to shard {owner}, this is {1 - owner}"):
        changes.put(writer, "daily", NewSchedule.of(DAILY), may_add=True)
    with pytest.raises(NoSuchSchedule):
        changes.put(writer, "daily", NewSchedule.of(DAILY))
    now_ms = service.clock.now_ms()
    record = requested(settings, "daily", NewSchedule.of(DAILY), now_ms)
    step = apply._step(writer, "daily", record, None, now_ms)  # noqa: SLF001
    assert step.change == "elsewhere" and not step.writes
