"""The text of `status`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.harness.config_file import small_settings
from tests.harness.local_world import NOW_MS, LocalWorld
from tests.harness.timer_rows import P0, TimerRow

from duewheel.api.shard import ShardView
from duewheel.checkpoints.live_fields import Lag
from duewheel.checkpoints.process_role import Role
from duewheel.checkpoints.state_file import State
from duewheel.cli.main import cli
from duewheel.cli.output import Printer, printable
from duewheel.cli.status_text import status_lines
from duewheel.clock import SystemClock
from duewheel.config.settings import Settings
from duewheel.dev.listeners import HOST, free_ports
from duewheel.ops.shard.status import read_status


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return small_settings(tmp_path / "data")


def test_status_begins_with_what_matters_and_has_no_bounds(settings: Settings) -> None:
    world = LocalWorld(settings.storage.data_dir, settings.wheel, starts={P0: 0})
    world.append(TimerRow(0, 1, NOW_MS + 5_000))
    world.stop()
    found = read_status(settings, SystemClock())
    lines = list(status_lines(found, NOW_MS))
    assert lines[0].split() == ["ready", "no"]
    assert "ingest is stopped (ingest_not_running)" in lines[1]
    named = dict(line.split(maxsplit=1) for line in lines if not line.startswith(" "))
    assert named["pending"] == "1, cancelled ones included"
    assert named["ingest"] == "stopped; lag not known yet"
    assert named["dequeue"] == "stopped"
    assert len(lines) < 15
    assert not set(found.bounds) & set("\n".join(lines).split())


def test_status_of_a_stopped_shard_without_kafka_says_what_is_not_known(
    settings: Settings, tmp_path: Path
) -> None:
    world = LocalWorld(settings.storage.data_dir, settings.wheel, starts={P0: 0})
    now_ms = SystemClock().now_ms()
    with State.open(settings.storage.data_dir) as state:
        state.live.note_lag(Lag(now_ms - 69_000, 0, now_ms, now_ms, 0))
        state.live.beat(Role.DEQUEUE, 1, now_ms - 69_000, 0)
    world.stop()
    (nobody,) = free_ports(1)
    config = tmp_path / "duewheel.toml"
    timer = settings.timer
    config.write_text(
        f'[kafka]\nbootstrap_servers = "{HOST}:{nobody}"\n[timer]\ntopics = ["timers"]\n'
        f'slots = {timer.slots}\nroll_window = "1h"\nmargin = "1m"\n'
        f'[storage]\ndata_dir = "{settings.storage.data_dir}"\n'
    )
    ended = CliRunner().invoke(cli, ["status", "--config", str(config)], standalone_mode=False)
    assert ended.exception is None
    said = re.sub(r"\d+ s\b|1m\d+s", "69 s", ended.output)
    assert "topics for 69 s: dequeue, which asks, is stopped (ends_unknown)" in said
    assert f"Kafka answers no client: {HOST}:{nobody}: Connection refused" in said
    assert "stopped; lag not known, 0 messages 69 s ago" in said
    assert "delivery is 69 s behind: timers due since then, if any, wait (dequeue_behind)" in said


def a_shard_at_work() -> ShardView:
    process: dict[str, object] = {"pid": 7, "state": "running"}
    ingest: dict[str, object] = {
        **process,
        "lag": 12,
        "lag_ms": 61_000,
        "batch_age_ms": 0,
        "lag_polled_ms": NOW_MS,
        "open_messages": 0,
    }
    ingest["high_water"] = {}
    dequeue = {
        **process,
        "behind_ms": 2_000,
        "delivered": 5,
        "dead_letters": 1,
        "dead_letters_wait": True,
        "copies_held": 3,
        "paused_timers": {
            "target mails": "until `resume` (no provider)",
            "tag sale": "until 9 (a\nb)",
        },
        "targets_closed": {"bills": "partitions [0]: no leader"},
        "timer_topics_resting": {"later": "mails refused a record"},
        "closing_blocked": True,
        "clock_skew_ms": 1_500,
        "floor_ms": NOW_MS,
        "floor_ahead_ms": 0,
    }
    found = {
        "ready": False,
        "not_ready": {
            "recovering": "7 offsets are read again; nothing is delivered until then",
        },
        "shard": 0,
        "role": "standby",
        "data_dir": "/d",
        "pending": 4,
        "delivered": 5,
        "ingest": ingest,
        "dequeue": dequeue,
        "timer_topics": {
            "read": ["a", "b"],
            "left_out": {"c": "no right"},
            "faulty": {},
            "far_ahead": {"a-1": 7},
        },
        "quotas": {
            "a": {"per_second": 100, "waiting": 360_000},
            "b": {"per_second": 5, "waiting": 0},
            "d": {"per_second": 5, "waiting": 10},
        },
        "rates": {
            "mails": {"rate": "20/m", "waiting": 3, "wait_ms": 9_000},
            "orders": {"rate": "500/s", "waiting": 0, "wait_ms": 0},
        },
        "disk": {"free_bytes": 3 << 30, "min_free_bytes": 1 << 28, "rows_without_room": 2},
        "standby": {
            "missing": {"a-0": 3},
            "behind_ms": 1_000,
            "followed_slot": None,
            "promotion_wanted": False,
        },
        "copies_signed": False,
        "run": None,
        "open_targets": {},
        "bounds": {},
        "recovering": None,
    }
    return ShardView.model_validate(found)


def test_status_of_a_shard_at_work() -> None:
    assert list(map(printable, status_lines(a_shard_at_work(), NOW_MS))) == [
        "ready         no",
        "              7 offsets are read again; nothing is delivered until then (recovering)",
        "shard         0, standby, in /d",
        "pending       4, cancelled ones included",
        "delivered     5",
        "ingest        running, process 7; lag 12 messages, the oldest seen 1m1s ago",
        (
            "dequeue       running, process 7; 2s behind; since its start 5 delivered, "
            "1 dead letters; "
            "dead letters wait for their topic; 3 copies wait for their partition; closes no slot: "
            "this clock is too far ahead of Kafka's, or Kafka's is unknown"
        ),
        "parked for    bills: partitions [0]: no leader",
        "parked from   later: mails refused a record",
        "paused        target mails: until `resume` (no provider)",
        "              tag sale: until 9 (a\\nb)",
        "timer topics  a, b",
        "              c: no right",
        "              a-1: waits at offset 7: its records lead to too many hours far ahead",
        "quotas        a: 360000 messages wait, 1h at 100 per second",
        "              d: 10 messages wait, 2s at 5 per second",
        "rates         mails: 3 timers wait, 9s at 20/m",
        "disk          3.0 GiB free, 0.2 GiB of them reserved; 2 rows wait",
        "standby       1s behind its owner; reads 3 offsets again",
        (
            "copies        have no MAC, so producers can forge them: stop the shard, then "
            "`duewheel reconfigure --rotate-key`"
        ),
    ]


def test_fields_that_differ_in_their_unit_have_two_names(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Printer(is_json=False).show(a_shard_at_work().ingest)
    rows = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert (rows["lag"], rows["lag_ms"], rows["batch_age"]) == ("12", "1m1s", "0ms")
