"""Requests that are refused before anything is written; there is no broker here."""

from __future__ import annotations

from typing import Any

import pytest

from duewheel.api.requests import KeyedTimers, NamedTimers, NewTimer, Replacement
from duewheel.client.handle import RecallHandle
from duewheel.config.settings import Settings, load
from duewheel.errors import ConfigError
from duewheel.ops.changes import requests as changes
from duewheel.ops.changes.timer_writer import TimerWriter
from duewheel.testing import ManualClock

NOW_MS = 1_800_000_000_000


@pytest.fixture
def settings() -> Settings:
    timer = {
        "topics": "orders.delayed orders.later",
        "targets": "orders*",
        "max_delay": "2d",
        "levels": "1s 5s",
        "topic": {"orders.delayed": {"past_due": "dead-letter"}},
    }
    return load(None, {"timer": timer, "kafka": {"bootstrap_servers": "127.0.0.1:1"}})


@pytest.fixture
def writer(settings: Settings) -> TimerWriter:
    return TimerWriter(settings, ManualClock(NOW_MS))


SEND: dict[str, Any] = {
    "topic": "orders",
    "value": "v",
    "delay": "1s",
}


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"topic": "or ders"}, "'or ders' is no topic name"),
        ({"value": None}, "give a value, or a key"),
        ({"topic": "bills"}, r"\(target_not_allowed\); orders.delayed is open for orders"),
        ({"topic": "duewheel.state"}, r"\(forbidden_target\)"),
        ({"topic": "orders.delayed"}, "is the timer topic itself"),
        ({"timer_topic": "order.delayed"}, 'is no timer topic .*did you mean "orders.delayed"'),
        ({"delay": "49h"}, r"due in 2d1h, the longest delay \(timer\.max_delay\) is 2d"),
        ({"delay": "0s"}, r"\(past_due\)"),
        ({"delay": None, "level": 3}, "there is no level 3: the last of timer.levels is 2"),
        ({"delay": None, "deliver_at": "2126-01-01T00:00Z"}, "the longest delay"),
        ({"id": "ü" * 128}, "256 bytes"),
        (
            {"expires_at": NOW_MS + 999},
            r"expires at 2027-01-15T08:00:00\.999Z, before it is due at 2027-01-15T08:00:01\.000Z",
        ),
        ({"delay": None, "level": 2, "expires_at": NOW_MS + 4_999}, "before it is due"),
        ({"delay": None, "deliver_at": NOW_MS + 2, "expires_at": NOW_MS + 1}, "before it is due"),
    ],
)
def test_send_refuses_what_would_become_a_dead_letter(
    writer: TimerWriter, given: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        changes.send(writer, NewTimer.of({**SEND, **given}))


def test_a_damaged_handle_is_no_id(writer: TimerWriter) -> None:
    """A replacement of it would leave the timer, and add another."""
    whole = RecallHandle("orders.delayed", 0, 7, NOW_MS, "x").encode()
    new = Replacement.of({"topic": "orders", "value": "v", "delay": "1s"})
    for handle, reason in ((whole[:-2], "handle"), (whole, "names the timer topic orders.delayed")):
        topic = "orders.delayed" if handle != whole else "orders.later"
        named = KeyedTimers(handle=handle, key="k", timer_topic=topic)
        with pytest.raises(ConfigError, match=reason):
            changes.reschedule(writer, named, new, reply=False)


def test_reschedule_refuses_the_same(writer: TimerWriter) -> None:
    named = NamedTimers(id="7", key="k")
    for given, reason in (
        ({"topic": "bills", "delay": "1s"}, "target_not_allowed"),
        ({"topic": "orders", "delay": "3d"}, "the longest delay"),
    ):
        with pytest.raises(ConfigError, match=reason):
            changes.reschedule(writer, named, Replacement.of({"value": "v", **given}), reply=False)
