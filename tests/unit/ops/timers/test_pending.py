"""Pages of pending timers and single ones, of a shard whose processes do not run."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.harness.cancel_world import cancel, count_messages_read
from tests.harness.config_file import small_settings
from tests.harness.local_world import NOW_MS, LocalWorld
from tests.harness.timer_rows import P0, P1, TimerRow

from duewheel.api.requests import TimerFilter, TimerQuery
from duewheel.client.handle import RecallHandle
from duewheel.config.settings import Settings
from duewheel.errors import ConfigError, InvalidTimer, TooMuch
from duewheel.ops.files import open_files
from duewheel.ops.timers import pending as timers
from duewheel.ops.timers.pending import handle_of
from duewheel.wheel.inspect.listing import Filter, PendingTimer, list_pending

COUNT = 60


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return small_settings(tmp_path / "data")


@pytest.fixture
def shard(settings: Settings) -> Settings:
    """One timer per second for a minute, in each of two partitions, in a shard that was stopped."""
    world = LocalWorld(settings.storage.data_dir, settings.wheel, starts={P0: 0, P1: 0})
    for partition in (0, 1):
        world.append(*(TimerRow(partition, n, NOW_MS + 1000 * n) for n in range(1, COUNT + 1)))
    world.stop()
    return settings


def pending(settings: Settings) -> list[PendingTimer]:
    with open_files(settings) as directory:
        return list(list_pending(directory, Filter(), 1_000))


def test_pages_continue_behind_each_other(shard: Settings) -> None:
    listed = []
    pages, after = 0, None
    while True:
        page = timers.page_of(shard, TimerQuery(topic="orders", limit=7, page=after))
        listed += [row.source for row in page.timers]
        pages += 1
        if page.next is None:
            break
        assert len(page.timers) == 7
        after = page.next
    assert listed == [timer.source for timer in pending(shard) if timer.target == "orders"]
    assert pages == 9
    assert page.next is None


def test_a_full_last_page_has_no_next(shard: Settings) -> None:
    page = timers.page_of(shard, TimerQuery(limit=2 * COUNT), 60.0)
    assert (len(page.timers), page.next) == (2 * COUNT, None)


def test_tags_select(settings: Settings) -> None:
    """One of several, among rows with and without it; and no part of a tag."""
    tags = {1: (b"spring", b"mails"), 2: (b"mails-2",), 3: (b"mails",), 4: ()}
    world = LocalWorld(settings.storage.data_dir, settings.wheel, starts={P0: 0})
    world.append(*(TimerRow(0, n, NOW_MS + 1000 * n, tags=tags[n]) for n in tags))
    world.stop()
    for tag, offsets in (("mails", [1, 3]), ("spring", [1]), ("mail", [])):
        rows = timers.page_of(settings, TimerQuery(tag=tag)).timers
        assert [row.source for row in rows] == [f"timers-0@{n}" for n in offsets]


def test_a_page_that_takes_too_long_ends(shard: Settings) -> None:
    """It has what it has read, and its `next` leads on."""
    page = timers.page_of(shard, TimerQuery(key="key", limit=1), within_s=-1)
    assert page.next is not None
    rest = timers.page_of(shard, TimerQuery(key="key", limit=1_000, page=page.next))
    every = [timer.source for timer in pending(shard) if timer.key == b"key"]
    assert [row.source for row in (*page.timers, *rest.timers)] == every


@pytest.mark.parametrize("key", [b"key", b""])
def test_a_key_selects(shard: Settings, key: bytes) -> None:
    rows = timers.page_of(shard, TimerQuery(key=key.decode(), limit=1_000)).timers
    assert [row.source for row in rows] == [t.source for t in pending(shard) if t.key == key]
    assert len(rows) > 10


def test_an_id_selects(shard: Settings) -> None:
    """A given one, and the default one."""
    for timer in pending(shard)[:4]:
        (row,) = timers.page_of(shard, TimerQuery(id=timer.id.decode())).timers
        assert row.source == timer.source
    assert timers.page_of(shard, TimerQuery(id="none")).timers == []


def test_a_timer_is_shown_by_its_handle(shard: Settings) -> None:
    for timer in pending(shard):
        handle = handle_of(timer)
        assert handle is not None
        row = timers.by_handle(shard, handle, body=True)
        assert row is not None
        assert (row.source, row.handle) == (timer.source, handle)
        assert row.value == (None if timer.value is None else timer.value.decode())
        offset = int(timer.source.partition("@")[2])
        assert row.partition == (offset % 4 if offset % 5 == 0 else None)
        shown = [header.as_json() for header in row.headers or ()]
        assert shown == [{"name": "h", "value_base64": "/wA="}] * (offset % 3)
        (by_id,) = timers.matching_timers(shard, TimerFilter(id=row.id), 100, body=False)
        assert by_id.source == timer.source
        assert not by_id.as_json().keys() & {"value", "headers"}
        assert by_id.header_names == ["h"] * (offset % 3)


def test_what_is_not_pending_is_not_shown(shard: Settings) -> None:
    missing = RecallHandle("timers", 0, 999, NOW_MS, "timers-0@999").encode()
    assert timers.by_handle(shard, missing, body=True) is None
    with pytest.raises(InvalidTimer, match="no recall handle"):
        timers.by_handle(shard, "x", body=True)
    other = RecallHandle("others", 0, 9, NOW_MS, "a").encode()
    with pytest.raises(InvalidTimer, match="no timer topic"):
        timers.by_handle(shard, other, body=True)


def test_a_search_that_takes_too_long_ends(shard: Settings) -> None:
    """A producer could otherwise hold the threads of reads, with millions of timers of an id."""
    timer = pending(shard)[0]
    missing = RecallHandle("timers", 0, 999, NOW_MS, timer.id.decode()).encode()
    with pytest.raises(TooMuch, match="too many timers have the id"):
        timers.pending_by_handle(shard, missing, within_s=-1)


def test_a_handle_is_not_searched_among_timers_of_other_topics(shard: Settings) -> None:
    topics = {"topics": ("timers", "others")}
    settings = shard.model_copy(update={"timer": shard.timer.model_copy(update=topics)})
    timer_id = pending(shard)[0].id.decode()
    missing = RecallHandle("others", 0, 0, NOW_MS, timer_id).encode()
    assert timers.pending_by_handle(settings, missing, within_s=-1) is None


def test_timers_of_one_id_are_shown_one_by_one(settings: Settings) -> None:
    world = LocalWorld(settings.storage.data_dir, settings.wheel, starts={P0: 0})
    world.append(*(TimerRow(0, n, NOW_MS + 1000 * n, timer_id=b"a") for n in (1, 2, 3)))
    world.append(cancel(4, timer_id=b"a"))
    world.append(TimerRow(0, 5, NOW_MS + 5000, timer_id=b"a"))
    world.stop()
    rows = list(timers.matching_timers(settings, TimerFilter(id="a"), 100, body=False))
    assert [row.cancelled for row in rows] == [True, True, True, False]
    shown = [timers.by_handle(settings, row.handle or "", body=False) for row in rows]
    assert shown == rows


def test_a_reader_cannot_change_the_files(shard: Settings) -> None:
    with open_files(shard) as directory, pytest.raises(TypeError):
        directory.state.live.pause(1, on=True)  # type: ignore[arg-type]


def test_without_a_data_directory(settings: Settings) -> None:
    with pytest.raises(ConfigError, match="there is no data directory"):
        timers.page_of(settings, TimerQuery())


def test_a_handle_reads_one_message_among_all_of_its_id(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = LocalWorld(settings.storage.data_dir, settings.wheel, starts={P0: 0, P1: 0})
    far_ms = NOW_MS + 2 * settings.wheel.window_ms
    for partition in (0, 1):
        rows = [TimerRow(partition, n, NOW_MS + 5_000, timer_id=b"a") for n in range(300)]
        world.append(*rows, TimerRow(partition, 300, far_ms, timer_id=b"a"))
    world.stop()
    read = count_messages_read(monkeypatch, "read")
    for partition, offset, due_ms in ((1, 7, NOW_MS + 5_000), (0, 299, NOW_MS), (1, 300, far_ms)):
        read.clear()
        handle = RecallHandle("timers", partition, offset, due_ms, "a").encode()
        row = timers.by_handle(settings, handle, body=False)
        assert row is not None
        assert row.source == f"timers-{partition}@{offset}"
        assert sum(read) <= 2, "one in each partition has this offset"
