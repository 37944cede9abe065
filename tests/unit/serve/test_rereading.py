"""Reads of pending timers while the shard reads its timer topics again, by the API and commands."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from fastapi.testclient import TestClient
from tests.harness.browser import listening
from tests.harness.config_file import write_config
from tests.harness.local_world import NOW_MS, PRECISION_MS
from tests.harness.recovery_world import RecoveryWorld, rereading, settings_of_files
from tests.harness.served import CHANGING, TOKEN, bearer, served, without_log_ends

from duewheel.cli.main import cli
from duewheel.config.settings import Settings
from duewheel.errors import NoSuchSchedule, RecoveryPending
from duewheel.ops import connection
from duewheel.ops.schedules import listing
from duewheel.serve.access import Access
from duewheel.serve.app import make_app
from duewheel.testing import ManualClock

ALL = 20  # timers of each partition
DAILY = {"every": "1d", "target": "orders", "value": "v"}


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RecoveryWorld:
    world = RecoveryWorld(tmp_path, monkeypatch)
    rereading(world, ALL)
    return world


@pytest.fixture
def settings(world: RecoveryWorld) -> Settings:
    return settings_of_files(world)


def answers(client: TestClient) -> list[dict[str, Any]]:
    body = {"filter": {"from": str(NOW_MS)}, "dry_run": True}
    found = [client.post("/v1/cancel", json=body)]
    reads = ("schedules", "timers", "histogram", "stats")
    found += [client.get(f"/v1/{path}") for path in reads]
    assert {each.status_code for each in found} == {200}, [each.text for each in found]
    return [each.json() for each in found]


def test_what_is_there_already_is_marked_as_a_part(
    world: RecoveryWorld, settings: Settings
) -> None:
    with served(settings, Access(CHANGING)) as client:
        client.headers |= bearer(TOKEN)
        for rows, is_rereading in ((7, True), (ALL, False)):
            world.ingest(rows)
            found = answers(client)
            assert [each["recovering"] for each in found] == [is_rereading] * 5
            cancel, _, listed, *counts = found
            assert cancel["matched"] == len(listed["timers"]) == min(2 * ALL, 2 * rows)
            assert [each["pending"] for each in counts] == [len(listed["timers"])] * 2
            status = client.get("/v1/status").json()
            assert (status["recovering"] is not None) is is_rereading
    world.kill()


def test_commands_warn_that_timers_may_be_missing(
    world: RecoveryWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "require_kafka", lambda _: nullcontext())
    timer = {"precision_ms": PRECISION_MS, "slots": 4096, "margin": "0s", "roll_window": "40s"}
    config = str(write_config(tmp_path, "127.0.0.1:1", "app", timer=timer))
    for rows, is_rereading in ((7, True), (ALL, False)):
        world.ingest(rows)
        for line in (
            *("list", "show --id none", "stats", "cancel-matching --id none --dry-run"),
            *("schedule list", "schedule next none"),
        ):
            ended = CliRunner().invoke(cli, [*line.split(), "--config", config])
            assert ended.exit_code in {0, 1}, ended.stderr
            assert ("pending timers may be missing" in ended.stderr) is is_rereading, line
    world.kill()


def test_no_schedule_is_changed_by_a_copy_that_may_be_old(
    world: RecoveryWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its newer copies are read later; nor is one set beside a copy that is still to come."""
    monkeypatch.setattr(connection, "require_kafka", lambda _: nullcontext())
    monkeypatch.setattr(listing, "CHANGE_PAUSES_S", ())
    timer: dict[str, Any] = {"precision_ms": PRECISION_MS, "slots": 4096, "margin": "0s"}
    timer |= {"roll_window": "40s", "topic": {"app.timers": {"recurring": True}}}
    config = str(write_config(tmp_path, "127.0.0.1:1", "app", timer=timer))
    file = tmp_path / "schedules.toml"
    file.write_text('[daily]\nevery = "1d"\ntarget = "orders"\nvalue = "v"\n')
    named = [f"schedule {change} daily" for change in ("pause", "resume", "stop", "trigger")]
    others = ["schedule set daily --every 1d --target orders --value v"]
    others += [f"schedule apply -f {file}{options}" for options in ("", " --dry-run", " --prune")]
    world.ingest(7)
    for line in named + others:
        ended = CliRunner().invoke(cli, [*line.split(), "--config", config])
        assert isinstance(ended.exception, RecoveryPending), (line, ended.exception)
    with served(settings_of_files(world), Access(CHANGING)) as client:
        client.headers |= bearer(TOKEN)
        url = "/v1/schedules/daily"
        for refused in (client.post(f"{url}/pause"), client.put(url, json=DAILY)):
            assert (refused.status_code, refused.json()["code"]) == (503, "recovering")
    world.ingest()
    without_log_ends(monkeypatch)
    for line in named:
        ended = CliRunner().invoke(cli, [*line.split(), "--config", config])
        assert isinstance(ended.exception, NoSuchSchedule), (line, ended.exception)
    world.kill()


def test_no_timer_is_replaced_before_its_cancel_is_read_again(
    world: RecoveryWorld, settings: Settings
) -> None:
    """It may have one, and a timer that was cancelled must not fire."""
    world.ingest(7)
    with served(settings, Access(CHANGING)) as client:
        client.headers |= bearer(TOKEN)
        (first, *_) = client.get("/v1/timers").json()["timers"]
        url = f"/v1/timers/{first['handle']}"
        for refused in (
            client.post(f"{url}/fire"),
            client.post(f"{url}/reschedule", json={"delay": "1h"}),
        ):
            assert (refused.status_code, refused.json()["code"]) == (503, "recovering")
    world.kill()


def test_a_fleet_names_the_shards_that_read_again(world: RecoveryWorld, settings: Settings) -> None:
    app = make_app(settings, ManualClock(NOW_MS), Access())
    with listening(app) as url:
        asking = settings.serve.model_copy(update={"shards": (url.rstrip("/"),)})
        for own in (settings, settings.model_copy(update={"serve": asking})):
            with served(own) as client:
                found = client.get("/v1/fleet/timers").json()
            assert (found["recovering"], found["timers"], found["absent"]) == ([0], [], [])
        world.ingest()
        with served(settings) as client:
            assert client.get("/v1/fleet/timers").json()["recovering"] == []
    world.kill()
