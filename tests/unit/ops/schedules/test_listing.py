"""The memory that a list of schedules needs."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

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
from duewheel.wheel.inspect.listing import PendingTimer


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
    warm = listing.list_schedules(settings, SystemClock())  # imports, and caches
    assert len(warm.schedules) == count
    tracemalloc.start()
    try:
        found = listing.list_schedules(settings, SystemClock())
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
    assert listing.list_schedules(settings, SystemClock(), timer_topic="timers").schedules
    assert sum(read) == 3
    with pytest.raises(NoSuchSchedule, match="timers has no schedule 'none'"):
        listing.require_schedule(settings, "none", None)
