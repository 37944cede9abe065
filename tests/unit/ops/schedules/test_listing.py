"""The memory that a list of schedules needs."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest
from fastapi.testclient import TestClient
from tests.harness.cancel_world import count_messages_read
from tests.harness.schedule_shard import DAILY, put

from duewheel.clock import SystemClock
from duewheel.config.settings import Settings
from duewheel.errors import NoSuchSchedule
from duewheel.ops.schedules import listing
from duewheel.testing.service import LocalService
from duewheel.wheel.inspect import listing as wheel_listing
from duewheel.wheel.inspect.listing import PendingTimer, _RecordFilter


def test_lists_keep_and_decode_no_message(
    client: TestClient,
    settings: Settings,
    service: LocalService,
    applied: Callable[..., list[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    count, size = 64, 32 << 10
    for topic in ("timers", "others"):
        for n in range(count // 2):
            headers = [("a", b"x" * 1_000)] * 20
            service.producer(topic).schedule(
                "reports", b"v" * size, id=f"large-{n}", every="1h", headers=headers, key=b"k" * 99
            )
    service.pending()
    monkeypatch.setattr(wheel_listing, "_MESSAGE_BYTES", size)

    def decoded(_: PendingTimer) -> None:
        pytest.fail("a message is decoded")

    for name in ("value", "headers"):
        monkeypatch.setattr(PendingTimer, name, property(decoded))
    warm = listing.list_schedules(settings, SystemClock(), 10_000)  # imports, and caches
    assert len(warm.schedules) == count
    tracemalloc.start()
    try:
        found = listing.list_schedules(settings, SystemClock(), 10_000)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < count * size / 4
    assert len(found.schedules) == count and not found.more
    fewer = listing.list_schedules(settings, SystemClock(), count - 1)
    assert len(fewer.schedules) == count - 1 and fewer.more
    other = "[poll]\nevery = '1h'\ntarget = 'reports'\nvalue = '1'\n"
    assert applied(other, prune=True) == ["added poll"] + [
        f"removed large-{n}" for n in range(count // 2)
    ]
    assert len(client.get("/v1/schedules").json()["schedules"]) == count // 2 + 1


def test_copies_of_the_same_name_in_other_timer_topics_are_not_read(
    client: TestClient, service: LocalService, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their writer may have any number of them, and each change looks several times."""
    put(client, "report", **DAILY)
    for _ in range(200):
        service.producer("others").schedule("reports", b"theirs", id="report", every="1h")
    service.pending()
    read = count_messages_read(monkeypatch, "read")
    timer = listing.require_schedule(settings, "report", None)
    assert listing.find_schedules(settings, {"report": "timers"}, {}) == {"report": timer}
    assert listing.list_schedules(settings, SystemClock(), 10_000, "timers").schedules
    assert sum(read) == 3
    with pytest.raises(NoSuchSchedule, match="timers has no schedule 'none'"):
        listing.require_schedule(settings, "none", None)


def test_copies_that_were_replaced_are_not_read(
    client: TestClient, service: LocalService, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each set leaves one until its slot, and its writer may set a schedule any number of times."""
    for _ in range(200):
        service.producer("timers").reschedule("report", topic="reports", value=b"1", every="1h")
    service.pending()
    put(client, "daily", **DAILY)
    read = count_messages_read(monkeypatch, "read")
    found = listing.list_schedules(settings, SystemClock(), 10_000).schedules
    assert [row.name for row in found] == ["daily", "report"]
    assert sum(read) == 2
    assert listing.require_schedule(settings, "report", None).id == b"report"
    with pytest.raises(NoSuchSchedule, match="there is one in timers"):
        listing.require_schedule(settings, "report", "others")
    assert sum(read) == 4
    # Some are cancelled between the pass over the logs and the read.
    monkeypatch.setattr(wheel_listing, "is_cancelled", lambda records: np.ones(len(records), bool))
    monkeypatch.setattr(_RecordFilter, "narrow", lambda *_: None)
    assert listing.list_schedules(settings, SystemClock(), 10_000).schedules == []


@pytest.fixture
def many(service: LocalService, monkeypatch: pytest.MonkeyPatch) -> int:
    """Schedules of one name in one timer topic, whose messages are read one by one."""
    count = 50
    for _ in range(count):
        service.producer("timers").schedule("reports", b"1", id="report", every="1h")
    service.pending()
    monkeypatch.setattr(wheel_listing, "_MESSAGES_MAX", 1)
    return count


def test_a_list_that_takes_too_long_ends_and_says_so(
    many: int, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = count_messages_read(monkeypatch, "read")
    some = listing.list_schedules(settings, SystemClock(), many, within_s=-1)
    assert (len(some.schedules), some.more, sum(read)) == (1, True, 1)
    every = listing.list_schedules(settings, SystemClock(), many)
    assert (len(every.schedules), every.more) == (many, False)


def test_a_search_for_one_name_that_takes_too_long_is_refused(
    many: int, client: TestClient, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the copies that were read, none need be the newest: a change of it would undo others."""
    newest = listing.require_schedule(settings, "report", None)
    wanted = {f"other-{n}": "timers" for n in range(2)} | {"report": "timers"}
    monkeypatch.setattr(listing, "SEARCH_S", -1)
    read = count_messages_read(monkeypatch, "read")
    for call in ("", "/next", "/pause", "/trigger"):
        method = "POST" if call in {"/pause", "/trigger"} else "GET"
        answer = client.request(method, f"/v1/schedules/report{call}")
        assert answer.status_code == 422
        assert "too many schedules have the name 'report'" in answer.json()["detail"]
    assert client.put("/v1/schedules/report", json=DAILY).status_code == 422
    assert sum(read) == 5
    # Several names are those of a file, which a command applies: it may take its time.
    assert listing.find_schedules(settings, wanted, {}) == {"report": newest}


def test_a_hint_at_other_timer_topics_is_worth_no_long_search(
    many: int, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "HINTS_S", -1)
    read = count_messages_read(monkeypatch, "read")
    with pytest.raises(NoSuchSchedule, match="there is one in timers"):
        listing.require_schedule(settings, "report", "others")
    assert sum(read) == 1 < many
