"""The schedules of a file."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from tests.harness.schedule_shard import HOURLY, OTHERS, listed, put, rows, squat
from tests.harness.served import KitWriter, RecordingProducer, recording_writer

from duewheel.config.settings import Settings
from duewheel.errors import ConfigError, Unacknowledged
from duewheel.ops.schedules import apply_file
from duewheel.ops.schedules.changes import write_record
from duewheel.testing.service import LocalService

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
        apply_file.apply(writer, path, prune=False, dry_run=False, wait_s=0)


def test_an_apply_is_written_whatever_becomes_of_the_files(
    service: LocalService,
    settings: Settings,
    config: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    writer, state = KitWriter(settings, service), settings.storage.data_dir / "state"
    path = config.with_name("schedules.toml")
    path.write_text(FILE)

    def last_before_a_recovery(*args: Any, **named: Any) -> Any:
        written = write_record(*args, **named)
        if args[2].name == b"poll":
            state.rename(state.with_name("moved"))
        return written

    monkeypatch.setattr(apply_file, "write_record", last_before_a_recovery)
    monkeypatch.setattr(service, "pending", lambda: None)  # it would need the file
    rows = apply_file.apply(writer, path, prune=False, dry_run=False, wait_s=0)
    assert [(row.change, row.applied) for row in rows] == [("added", False)] * 2
    state.with_name("moved").rename(state)


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
        "changed poll every 90s -> 2m value poll -> - headers.0.value b -> c key - -> k",
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


def test_the_last_firing_of_an_unchanged_schedule_stays(
    applied: Callable[..., list[str]], service: LocalService, client: TestClient
) -> None:
    """A record of now would have its first instant behind the end."""
    ends_ms = service.clock.now_ms() + 3 * 3_600_000
    file = f'[rare]\nevery = "2h"\ntarget = "orders"\nvalue = "v"\nends = {ends_ms}\n'
    assert applied(file) == ["added rare"]
    service.advance("90m")

    assert applied(file) == ["unchanged rare"]
    assert [row["name"] for row in listed(client)] == ["rare"]
    assert applied(file.replace('"v"', '"w"')) == ["removed rare"]


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


def test_a_file_concerns_the_timer_topics_of_its_schedules(
    applied: Callable[..., list[str]], client: TestClient, service: LocalService
) -> None:
    squat(service)
    ours = "[daily]\nevery = '1h'\ntarget = 'reports'\nvalue = 'ours'\n"
    assert applied(ours) == ["added daily"]
    assert applied(ours, prune=True) == ["unchanged daily"]
    other = "[poll]\nevery = '1h'\ntarget = 'reports'\nvalue = '1'\ntimer_topic = 'others'\n"
    assert applied(ours + other, prune=True) == ["unchanged daily", "added poll", "removed daily"]
    assert rows(client) == [("daily", "timers", "active"), ("poll", "others", "active")]
    moved = ours + "timer_topic = 'others'\n"
    assert applied(moved, prune=True) == ["added daily", "removed poll"]


@pytest.mark.parametrize("text", ["", "# [daily]\n"])
def test_a_file_without_schedules_stops_none(
    applied: Callable[..., list[str]], client: TestClient, text: str
) -> None:
    """A template that was cut off, or rendered nothing."""
    put(client, "daily", **HOURLY)
    put(client, "daily", **HOURLY, **OTHERS)
    for dry_run in (True, False):
        with pytest.raises(ConfigError, match=r"schedules\.toml has no schedule.* --prune"):
            applied(text, prune=True, dry_run=dry_run)
    assert applied(text) == []
    assert rows(client) == [("daily", "others", "active"), ("daily", "timers", "active")]


def test_a_prune_looks_again_for_a_copy_on_its_way(
    applied: Callable[..., list[str]], service: LocalService, monkeypatch: pytest.MonkeyPatch
) -> None:
    poll = "[poll]\nevery = '1h'\ntarget = 'reports'\nvalue = '1'\n"
    assert applied(poll) == ["added poll"]
    service.producer().schedule("reports", b"1", id="daily", every="1h")
    monkeypatch.setattr(apply_file, "READ_PAUSES_S", (0.3, 0.3))
    monkeypatch.setattr(time, "sleep", lambda pause_s: pause_s and service.pending())
    assert applied(poll, prune=True) == ["unchanged poll", "removed daily"]


def test_octets_of_a_header_are_not_the_text_of_their_base64(
    applied: Callable[..., list[str]], service: LocalService
) -> None:
    text, octets = 'value = "/w=="', 'value_base64 = "/w=="'
    assert applied(FILE.replace('value = "b"', text)) == ["added daily", "added poll"]
    service.advance("1s")
    assert applied(FILE.replace('value = "b"', octets)) == [
        "unchanged daily",
        "changed poll headers.0.value /w== -> - headers.0.value_base64 - -> /w==",
    ]


def test_of_two_shards_one_sets_a_schedule(
    service: LocalService, settings: Settings, client: TestClient, config: Path
) -> None:
    """A new key, or more partitions, may move it: a copy that stayed would fire, too."""
    with service.producer() as producer:
        natural = producer.partition_of(b"poll")
        moved = producer.schedule("orders", b"poll", id="poll", every="90s", partition=natural ^ 1)
    service.advance("1s")
    assert moved.result().partition == natural ^ 1
    path = config.with_name("schedules.toml")
    path.write_text(FILE[FILE.index("[poll]") :])

    def applied_on(index: int) -> list[tuple[str, bool]]:
        shard = settings.shard.model_copy(update={"index": index, "count": 2})
        writer = KitWriter(settings.model_copy(update={"shard": shard}), service)
        found = apply_file.apply(writer, path, prune=False, dry_run=False, wait_s=0)
        service.advance("1s")
        return [(each.change, each.applied) for each in found]

    for _ in range(2):
        assert applied_on(1 - natural % 2) == [("elsewhere", False)]
        assert listed(client) == []
    assert applied_on(natural % 2)[0][0] == "added"
    assert [row["name"] for row in listed(client)] == ["poll"]
