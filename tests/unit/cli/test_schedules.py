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
from tests.harness.newest_progress import NewestProgress, removed, taken_by_others, taken_over
from tests.harness.schedule_shard import DAILY, put

from duewheel.checkpoints.progress import NOBODY, Progress
from duewheel.checkpoints.reshard_records import sealed
from duewheel.cli.schedules import schedule
from duewheel.errors import Fenced, NoSuchSchedule, Reassigned
from duewheel.tables import schedules_table
from duewheel.testing.service import LocalService

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


def test_a_command_waits_for_a_copy_on_its_way(
    config: Path, service: LocalService, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.producer().schedule("reports", b"1", id="daily", every="1h")
    monkeypatch.setattr(time, "sleep", lambda _: service.pending())
    found = CliRunner().invoke(schedule, ["next", "daily", "--config", str(config)])
    assert len(found.stdout.splitlines()) == 10
