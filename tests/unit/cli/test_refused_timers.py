"""Timers that `send` and the client refuse before anything is written; there is no broker here.

Also of api/model.py.
"""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest

from duewheel.api.due_time import DueTime
from duewheel.api.requests import NamedTimers, NewTimer, Replacement
from duewheel.cli.main import cli
from duewheel.client.producer import DelayProducer
from duewheel.client.request_headers import target, timer_headers
from duewheel.config.settings import Settings, load
from duewheel.errors import ConfigError, InvalidTimer
from duewheel.factory import contract
from duewheel.ops.changes import requests as changes
from duewheel.ops.changes.acceptance import require_accepted
from duewheel.ops.changes.timer_writer import TimerWriter
from duewheel.schemas.request.preview import Rejection, rejection_of
from duewheel.testing import ManualClock

NOW_MS = 1_800_000_000_000
DAY_MS = 86_400_000


@pytest.fixture
def settings() -> Settings:
    timer = {
        "topics": "orders.delayed",
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


def test_reschedule_refuses_the_same(writer: TimerWriter) -> None:
    named = NamedTimers(id="7", key="k")
    for given, reason in (
        ({"topic": "bills", "delay": "1s"}, "target_not_allowed"),
        ({"topic": "orders", "delay": "3d"}, "the longest delay"),
    ):
        with pytest.raises(ConfigError, match=reason):
            changes.reschedule(writer, named, Replacement.of({"value": "v", **given}), reply=False)


@pytest.mark.parametrize(
    ("times", "reason"),
    [
        ([], "give exactly one of --deliver-at, --delay and --level"),
        (
            ["--delay", "1s", "--level", "3"],
            "give exactly one of --deliver-at, --delay and --level",
        ),
        (["--deliver-at", "soon"], "--deliver-at: 'soon' is no due time"),
        (["--deliver-at", "2027-01-15T08:00"], "--deliver-at: 2027-01-15 08:00:00 has no zone"),
        (["--delay", "90"], "--delay: "),
    ],
)
def test_commands_name_their_options(times: list[str], reason: str) -> None:
    for command in (["send", "--topic", "orders", "--value", "v"], ["reschedule", "--handle", "h"]):
        with pytest.raises(ConfigError, match=f"^{re.escape(reason)}"):
            cli([*command, *times], standalone_mode=False)


def test_what_ingest_accepts_passes(settings: Settings) -> None:
    when = DueTime.of(delay="2d")
    headers = timer_headers("orders", when, "orders.delayed", headers=[("x", b"1")], id="7")
    require_accepted(settings, "orders.delayed", b"key", b"value", headers, NOW_MS)
    require_accepted(settings, "orders.delayed", None, None, headers, NOW_MS)


def test_a_refusal_has_the_words_of_the_dead_letter(settings: Settings) -> None:
    headers = [("REAL_TOPIC", b"orders"), ("TIMER_DELAY_MS", b"172800001")]
    refused = rejection_of(contract(settings), "orders.delayed", None, b"", headers, NOW_MS)
    reason = (
        "due 172800001 ms after the record's timestamp, window included: timer.max_delay allows "
        "172800000 ms"
    )
    assert refused == Rejection("delay_too_long", reason)


@pytest.mark.parametrize(
    ("asked", "refused"),
    [
        ({"delay": timedelta(days=40)}, None),
        ({"delay": timedelta(days=40, milliseconds=1)}, "the longest delay"),
        ({"deliver_at": NOW_MS + 40 * DAY_MS}, None),
        ({"deliver_at": NOW_MS + 40 * DAY_MS + 1}, "the longest delay"),
        ({"deliver_at": 0}, None),
        ({"level": 2}, None),
        ({"level": 3}, "no level 3"),
    ],
)
def test_due_times_beyond_a_maximum(asked: dict[str, Any], refused: str | None) -> None:
    due = DueTime.of(**asked)
    if refused is None:
        due.require_within([1_000, 5_000], 40 * DAY_MS, NOW_MS)
        return
    with pytest.raises(InvalidTimer, match=refused):
        due.require_within([1_000, 5_000], 40 * DAY_MS, NOW_MS)


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "a/b", "ä", "x" * 250])
def test_names_that_no_topic_has(name: str) -> None:
    with pytest.raises(InvalidTimer, match="is no topic name"):
        target(name, None, "orders.delayed")
    with pytest.raises(ConfigError, match="is no topic name"):
        DelayProducer(name)
