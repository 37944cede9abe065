"""The fate of each row, and why a row can never be published."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.harness.deliveries import DOWN, NOW_MS, ROOM, rows
from tests.simulation.timers import encoded

from duewheel.checkpoints.pauses import NONE_PAUSED, PausedTimers
from duewheel.schemas.batches import ANY_TIME, NEVER, NO_KEY, PolicyLabel
from duewheel.schemas.columns import binary
from duewheel.wheel.dequeue.fate import Fate, decide, why_not
from duewheel.wheel.target_rules import Reason, Target

WAIT_MS = (1_000, 1_000, 1_000)
TOPICS = frozenset({"orders", "timers"})
FAR_MS = NOW_MS + 90_000
SMALL = Target(4, 90, batch_bytes=90)  # takes a message, and no copy of it
GONE = Target(0, 1_000, refusal=Reason.UNKNOWN_TARGET_TOPIC, batch_bytes=1_000)
TO_DOWN = {"target_partition": 1}
POSTPONED = {
    "not_before_ms": FAR_MS,
    "policies": [PolicyLabel("hot_slot", "too many")],
    "policy": 0,
}
FORBIDDEN = POSTPONED | {"not_before_ms": NEVER}

# One row to partition 0 of `orders`; its changes, other topics than with room, and its fate.
TABLE: dict[str, tuple[dict[str, Any], dict[str, Target], Fate, Reason]] = {
    "plain": ({}, {}, Fate.DELIVER, Reason.NONE),
    "of a partition with writes": ({}, {"orders": DOWN}, Fate.DELIVER, Reason.NONE),
    "of one without": (TO_DOWN, {"orders": DOWN}, Fate.PARK, Reason.NONE),
    "without a place for its receipt": ({"header_count": 7}, {}, Fate.PARK, Reason.NONE),
    "whose copy is refused, too": (
        TO_DOWN,
        {"orders": DOWN, "timers": SMALL},
        Fate.DEAD_LETTER,
        Reason.TARGET_UNAVAILABLE,
    ),
    "reply": (
        TO_DOWN | {"answer": True},
        {"orders": DOWN},
        Fate.DEAD_LETTER,
        Reason.TARGET_UNAVAILABLE,
    ),
    "rolled copy": (TO_DOWN | {"is_copy": True}, {"orders": DOWN}, Fate.DELIVER, Reason.NONE),
    "postponed": (POSTPONED, {}, Fate.POSTPONE, Reason.NONE),
    "postponed and parked": (POSTPONED | TO_DOWN, {"orders": DOWN}, Fate.PARK, Reason.NONE),
    "postponed, copy refused": (POSTPONED, {"timers": SMALL}, Fate.DELIVER, Reason.NONE),
    "postponed, never to be published": (
        POSTPONED | {"target_partition": 9},
        {},
        Fate.DEAD_LETTER,
        Reason.BAD_TARGET_PARTITION,
    ),
    "forbidden": (FORBIDDEN, {}, Fate.DEAD_LETTER, Reason.FORBIDDEN),
    "rejected by ingest": ({"dead_letter": True}, {}, Fate.DEAD_LETTER, Reason.NONE),
    "rejected, no room for it": (
        {"dead_letter": True},
        {"dead": GONE},
        Fate.KEEP,
        Reason.NONE,
    ),
    "forbidden, no room for it": (FORBIDDEN, {"dead": GONE}, Fate.KEEP, Reason.FORBIDDEN),
    "without any place": (
        FORBIDDEN,
        {"dead": GONE, "timers": GONE},
        Fate.DEAD_LETTER,
        Reason.FORBIDDEN,
    ),
}


@pytest.mark.parametrize("name", TABLE)
def test_the_fate_of_a_row(name: str) -> None:
    changes, known, fate, reason = TABLE[name]
    targets = {"orders": ROOM, "timers": ROOM, "dead": ROOM} | known
    asked: list[str] = []

    def fetch(topics: Iterable[str]) -> Mapping[str, Target]:
        asked.extend(topics)
        return {topic: targets[topic] for topic in asked}

    one = rows(["orders"], [0])
    columns: dict[str, Any] = {
        field: value if isinstance(value, list) else np.array([value], getattr(one, field).dtype)
        for field, value in changes.items()
    }
    one = replace(one, **columns)
    found = decide(
        *(one, fetch, frozenset(), "dead", NOW_MS, WAIT_MS),
        lambda deliveries, _: deliveries.header_count == 7,
        NONE_PAUSED,
    )
    assert (Fate(found.fate[0]), Reason(found.reason[0])) == (fate, reason)
    if fate in {Fate.PARK, Fate.POSTPONE}:
        wait_ms = found.not_before_ms[0] - NOW_MS
        assert wait_ms == 90_000 if "policy" in changes else 750 <= wait_ms <= 1_000
    if fate is Fate.DELIVER and "policy" not in changes:
        assert found.not_before_ms[0] == ANY_TIME
        assert asked == ["orders"], "no topic is looked up that the row does not need"


@pytest.mark.parametrize(
    "paused",
    [
        PausedTimers(targets=TOPICS),
        PausedTimers(timer_topics=TOPICS),
        PausedTimers(tags=frozenset({"other", "campaign"})),
    ],
)
def test_of_a_paused_topic_only_timers_wait(paused: PausedTimers) -> None:
    given = rows(["orders"] * 5, [0] * 5)
    letter, answer, copy = (np.arange(5) == n for n in range(3))
    given = replace(
        given,
        dead_letter=letter,
        answer=answer,
        is_copy=copy,
        target_partition=np.array([0, 0, 0, 9, 0], np.int32),
        headers=binary([encoded([(b"a", b"1"), (b"TIMER_TAG", b"campaign")])] * 5),
    )
    found = decide(
        *(given, lambda topics: dict.fromkeys(topics, ROOM), frozenset(), "dead", NOW_MS, WAIT_MS),
        lambda deliveries, _: np.zeros(len(deliveries), np.bool_),
        paused,
    )
    never = Fate.DEAD_LETTER  # the fourth row can never be published
    assert found.fate.tolist() == [never, Fate.DELIVER, Fate.DELIVER, never, Fate.PARK]
    assert 750 <= found.not_before_ms[4] - NOW_MS <= 1_000


def test_reasons() -> None:
    targets = {
        "orders": Target(5, 200, key_required=True),
        "bills": Target(0, 0, refusal=Reason.UNKNOWN_TARGET_TOPIC),
    }
    given = rows([*["orders", "bills"] * 3, "orders"], [0, 0, 0, 0, 5, 0, 0])
    given = replace(given, key_hash=np.array([1, 1, NO_KEY, 1, 1, 1, 1], np.int32))
    assert why_not(given, targets, [b"timers-0@6"]).tolist() == [
        Reason.NONE,
        Reason.UNKNOWN_TARGET_TOPIC,
        Reason.KEY_REQUIRED,
        Reason.UNKNOWN_TARGET_TOPIC,
        Reason.BAD_TARGET_PARTITION,
        Reason.UNKNOWN_TARGET_TOPIC,
        Reason.RECORD_REFUSED,
    ]
