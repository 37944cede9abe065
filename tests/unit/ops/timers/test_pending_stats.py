"""`stats` and `list` for a shard whose processes do not run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.harness.cancel_world import cancel
from tests.harness.config_file import small_settings
from tests.harness.local_world import NOW_MS, LocalWorld
from tests.harness.timer_rows import P0, TimerRow

from duewheel.api.messages import octets_shown
from duewheel.api.requests import TimerFilter
from duewheel.api.shard import Paused
from duewheel.api.timers import TimerSummary
from duewheel.checkpoints.process_role import Role
from duewheel.client.handle import RecallHandle
from duewheel.clock import SystemClock
from duewheel.config.settings import Settings
from duewheel.errors import ConfigError
from duewheel.ops.files import open_files
from duewheel.ops.shard.pause import set_paused
from duewheel.ops.shard.status import read_status
from duewheel.ops.timers import pending, pending_stats
from duewheel.testing import ManualClock

CLOCK = ManualClock(NOW_MS)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return small_settings(tmp_path / "data")


@pytest.fixture
def shard(settings: Settings) -> Settings:
    """One timer per second for a minute, in a shard that was stopped."""
    world = LocalWorld(settings.storage.data_dir, settings.wheel, starts={P0: 0})
    world.append(*(TimerRow(0, second, NOW_MS + 1000 * second) for second in range(1, 61)))
    world.stop()
    return settings


def listed(
    settings: Settings, limit: int = 100, page: str | None = None, **wanted: Any
) -> list[TimerSummary]:
    return list(pending.list_timers(settings, TimerFilter.of(wanted), limit, page))


def test_status_tells_what_the_disk_must_keep_free(shard: Settings) -> None:
    found = read_status(shard, SystemClock()).disk
    assert found.min_free_bytes == 256 << 20
    assert found.free_bytes > 0
    assert found.rows_without_room == 0, "nobody waits where nothing runs"


def test_stats_of_a_stopped_shard(shard: Settings) -> None:
    found = pending_stats.stats(shard, CLOCK)
    assert (found.pending, found.slot_max) == (60, 1)
    assert found.by_topic == {"bills": 30, "orders": 30}
    assert found.oldest_ms == NOW_MS + 1000
    assert found.within_s.items() >= {"1": 1, "10": 10, "60": 60, "+Inf": 60}.items()


def test_a_range_of_time_includes_both_ends(shard: Settings) -> None:
    since = "2027-01-15T09:00:10+01:00"
    span: dict[str, Any] = {"from": since, "to": str(NOW_MS + 20_000)}
    found = listed(shard, **span, topic="orders")
    assert [row.due_ms for row in found] == [NOW_MS + s * 1000 for s in range(10, 21, 2)]
    assert {row.topic for row in found} == {"orders"}
    assert RecallHandle.decode(found[0].handle or "").due_ms == NOW_MS + 10_000
    first, second = found[:2]
    assert listed(shard, topic="orders", page=first.page, limit=1) == [second]


def test_a_range_between_two_slots_has_only_what_leaves_within_it(shard: Settings) -> None:
    span: dict[str, Any] = {"from": str(NOW_MS + 9_999), "to": str(NOW_MS + 11_999)}
    found = listed(shard, **span)
    assert [row.leaves_ms - NOW_MS for row in found] == [10_000, 11_000]


def test_a_cancelled_timer_is_listed_with_a_mark(settings: Settings) -> None:
    world = LocalWorld(settings.storage.data_dir, settings.wheel, starts={P0: 0})
    due_ms = NOW_MS + 5_000
    world.append(*(TimerRow(0, n, due_ms, timer_id=b"%d" % n) for n in range(3)))
    world.append(cancel(3, timer_id=b"1"))
    world.stop()
    assert [(row.id, row.cancelled) for row in listed(settings)] == [
        ("0", False),
        ("1", True),
        ("2", False),
    ]


def test_a_time_without_a_zone_is_refused(shard: Settings) -> None:
    with pytest.raises(ConfigError, match="has no zone"):
        TimerFilter.of({"from": "2027-01-15T09:00:10"})


def test_a_pause_is_kept_for_the_next_start(shard: Settings) -> None:
    paused = Paused(process="dequeue", paused=True, was_paused=False)
    assert set_paused(shard, "dequeue", on=True) == paused
    assert read_status(shard, SystemClock()).dequeue.state == "stopped"
    with open_files(shard) as directory:
        assert [directory.state.live.paused(role) for role in Role] == [False, True]
    set_paused(shard, "dequeue", on=False)
    with open_files(shard) as directory:
        assert not directory.state.live.paused(Role.DEQUEUE)


def test_without_a_data_directory_there_is_nothing_to_look_into(settings: Settings) -> None:
    with pytest.raises(ConfigError, match="there is no data directory"):
        pending_stats.stats(settings, CLOCK)


@pytest.mark.parametrize(
    ("key", "shown"),
    [
        (None, {"key": None}),
        (b"", {"key": ""}),
        ("Käse".encode(), {"key": "Käse"}),
        (b"\xff\0", {"key_base64": "/wA="}),
    ],
)
def test_keys_are_text_or_say_that_they_are_not(
    key: bytes | None, shown: dict[str, str | None]
) -> None:
    assert octets_shown("key", key) == shown
