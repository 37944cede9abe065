"""The commands of the group `schedule`: those that need no Kafka, and files that are outdated."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from fastapi.testclient import TestClient
from pyarrow.ipc import open_stream
from tests.harness.cancel_world import count_messages_read
from tests.harness.newest_progress import NewestProgress, removed, taken_by_others, taken_over
from tests.harness.schedule_shard import DAILY, put

from duewheel.api.schedules import ScheduleSummary
from duewheel.checkpoints.progress import NOBODY, Progress
from duewheel.checkpoints.reshard_records import sealed
from duewheel.cli.schedules import schedule
from duewheel.errors import Fenced, NoSuchSchedule, Reassigned
from duewheel.ops.schedules import listing
from duewheel.tables import schedules_table
from duewheel.testing.service import LocalService
from duewheel.wheel.inspect import listing as wheel_listing

SET = ("set", "daily", "--every", "1h", "--target", "reports", "--value", "v")


@pytest.mark.parametrize(
    ("after", "error", "reason"),
    [
        (removed, Reassigned, "`duewheel reshard` has made 2"),
        (taken_by_others, Reassigned, "an earlier assignment of partitions"),
        (taken_over, Fenced, "the data directory another"),
    ],
)
@pytest.mark.parametrize(
    "words",
    [SET, ("pause", "daily"), ("resume", "daily"), ("stop", "daily"), ("trigger", "daily"), ()],
)
def test_outdated_files_change_no_schedule(
    config: Path,
    kafka: NewestProgress,
    words: tuple[str, ...],
    after: Callable[[Progress], Progress],
    error: type[Exception],
    reason: str,
) -> None:
    assert kafka.progress is not None
    kafka.progress = after(kafka.progress)
    words = words or ("apply", "--file", str(config.with_name("none.toml")))
    found = CliRunner().invoke(schedule, [*words, "--config", str(config)])
    assert isinstance(found.exception, error), found.output
    assert reason in str(found.exception)
    assert kafka.reads == 1


def test_present_files_are_those_to_change(config: Path, kafka: NewestProgress) -> None:
    before = kafka.progress
    assert before is not None
    for progress in (before, replace(before, owner=NOBODY), sealed(before, 2, 1)):
        kafka.progress = progress
        found = CliRunner().invoke(schedule, ["pause", "nobody", "--config", str(config)])
        assert isinstance(found.exception, NoSuchSchedule), found.output


def test_the_instants_of_a_zone_have_milliseconds(
    client: TestClient, service: LocalService, config: Path
) -> None:
    put(client, "daily", **DAILY, jitter="10m")
    service.advance("1s")
    found = CliRunner().invoke(schedule, ["next", "daily", "--config", str(config)])
    for line in found.stdout.splitlines():
        of_utc, of_zone = map(datetime.fromisoformat, line.split())
        assert of_utc == of_zone and of_zone.microsecond


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


def test_a_list_of_any_length_is_printed_while_it_is_read(
    config: Path, service: LocalService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer of one timer topic decides how many there are."""
    for n in range(1, 6):
        service.producer().schedule("reports", b"1", id=f"s{n}", every=f"{20 - n}s")
    service.advance("1s")
    monkeypatch.setattr(wheel_listing, "_MESSAGES_MAX", 2)
    monkeypatch.setattr(listing, "SERVED_MAX", 2)
    read, shown = count_messages_read(monkeypatch, "read"), list[tuple[str, int]]()
    as_json = ScheduleSummary.as_json

    def noted(row: ScheduleSummary) -> dict[str, Any]:
        shown.append((row.name, sum(read)))
        return as_json(row)

    monkeypatch.setattr(ScheduleSummary, "as_json", noted)
    words = ["list", "--config", str(config), "--output", "json"]
    assert CliRunner().invoke(schedule, words).exit_code == 0
    assert shown == [("s4", 2), ("s5", 2), ("s2", 4), ("s3", 4), ("s1", 5)]
    rows = schedules_table(config, limit=3).to_pylist()
    assert [row["name"] for row in rows] == ["s4", "s5", "s3"], "those that fire first"


def test_a_command_waits_for_a_copy_on_its_way(
    config: Path, service: LocalService, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.producer().schedule("reports", b"1", id="daily", every="1h")
    monkeypatch.setattr(time, "sleep", lambda _: service.pending())
    found = CliRunner().invoke(schedule, ["next", "daily", "--config", str(config)])
    assert len(found.stdout.splitlines()) == 10
