"""Expiry: a timer topic's own limit, to the millisecond, and what it does not concern."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from tests.harness.deliveries import NOW_MS, ROOM, judged, routed, rows, topics

from duewheel.schemas.batches import NEVER, Deliveries
from duewheel.wheel.dequeue.dead_letter_rows import reason_text
from duewheel.wheel.encoded import Reason, Target
from duewheel.wheel.policies.expiry import Expiry

EXPIRY = Expiry({"mails": 60_000, "pushes": 0})


def due(late_ms: Sequence[int], topic: str = "mails") -> Deliveries:
    count = len(late_ms)
    return replace(
        rows(["a"] * count, [0] * count),
        due_ms=NOW_MS - np.array(late_ms),
        source_partitions=[("orders", 0), (topic, 3)],
        source_partition=np.ones(count, np.int32),
    )


def forbidden(sent: Deliveries) -> list[bool]:
    found = judged(sent, EXPIRY)
    forbids: list[bool] = (found.not_before_ms == NEVER).tolist()
    return forbids


def test_a_timer_expires_a_millisecond_after_its_topics_limit() -> None:
    assert forbidden(due([0, 59_999, 60_000, 60_001])) == [False, False, False, True]
    assert forbidden(due([0, 1], "pushes")) == [False, True]


def test_other_topics_have_no_limit() -> None:
    assert forbidden(due([10**9] * 2, "others")) == [False, False]
    mixed = replace(due([10**9] * 2), source_partition=np.array([0, 1], np.int32))
    assert forbidden(mixed) == [False, True]


def test_copies_on_their_way_and_dead_letters_do_not_expire() -> None:
    sent = replace(
        due([10**9] * 3),
        is_copy=np.array([True, False, False]),
        dead_letter=np.array([False, True, False]),
    )
    assert forbidden(sent) == [False, False, True]


def test_an_expired_timer_is_a_dead_letter_that_says_so_and_can_be_replayed() -> None:
    sent = replace(due([60_001, 5]), source_partitions=[("timers", 0), ("mails", 3)])
    found = routed(judged(sent, EXPIRY), {"a": ROOM, "mails": ROOM})
    assert (topics(found), found.aside.reasons) == (["dead", "a"], {"expired": 1})
    headers = found.deliveries.headers[0].as_py()
    assert reason_text(Reason.EXPIRED, "a", Target(1, 1)).encode() in headers
    assert b"REAL_TOPIC" in headers
