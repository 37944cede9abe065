"""Expiry: a timer topic's own limit, to the millisecond, and what it does not concern."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from tests.harness.deliveries import NOW_MS, due, judged, of_topics

from duewheel.schemas.batches import DROPPED, NEVER, Deliveries
from duewheel.schemas.columns import binary
from duewheel.schemas.header_names import EXPIRES_MS
from duewheel.schemas.wire.single_record import header
from duewheel.wheel.policies.expiry import Expiry

EXPIRY = Expiry({"timers": 60_000, "pushes": 0})


def expires(value: bytes | None) -> bytes:
    return header(EXPIRES_MS, value)


def forbidden(sent: Deliveries) -> list[bool]:
    found = judged(sent, EXPIRY)
    forbids: list[bool] = (found.not_before_ms == NEVER).tolist()
    return forbids


def test_a_timer_expires_a_millisecond_after_its_topics_limit() -> None:
    assert forbidden(due([0, 59_999, 60_000, 60_001])) == [False, False, False, True]
    assert forbidden(due([0, 1], "pushes")) == [False, True]


def test_timers_of_some_topics_are_dropped() -> None:
    some = of_topics(due([10**9] * 2), ["orders", "timers"])
    both = {"orders": 5, "timers": 5}
    found = judged(some, Expiry(both, frozenset({"timers"})))
    assert found.not_before_ms.tolist() == [NEVER, DROPPED]


def test_other_topics_have_no_limit() -> None:
    assert forbidden(due([10**9] * 2, "others")) == [False, False]
    mixed = of_topics(due([10**9] * 2), ["orders", "timers"])
    assert forbidden(mixed) == [False, True]


def with_headers(*headers: Sequence[bytes]) -> Deliveries:
    """Timers with these headers each, encoded."""
    return replace(
        due([0] * len(headers), "others"),
        headers=binary(b"".join(each) for each in headers),
        header_count=np.array([len(each) for each in headers], np.int32),
    )


def test_a_timer_expires_a_millisecond_after_its_own_instant() -> None:
    at = [NOW_MS + 1, NOW_MS, NOW_MS - 1]
    own = [expires(b"%d" % ms) for ms in at]
    assert forbidden(with_headers(*([each] for each in own), [])) == [False, False, True, False]
    assert forbidden(with_headers([expires(b"2001-01-01T00:00Z")])) == [True]


@pytest.mark.parametrize(
    "value", [None, b"", b"soon", b"1.5", b"\xff", b"x" * 64, b"1" * 99 + b"."]
)
def test_what_is_no_instant_expires_visibly(value: bytes | None) -> None:
    assert forbidden(with_headers([expires(value)], [])) == [True, False]


def test_beside_very_many_headers_it_is_not_read_and_expires() -> None:
    """To read them would take a second, beside everybody's timers."""
    ahead = expires(b"%d" % (NOW_MS + 1))
    many = [header("a", b"")] * 1_000
    found = with_headers([*many, ahead], [*many[1:], ahead], [*many, *many])
    assert forbidden(found) == [True, False, False]


def test_a_name_within_a_value_is_text_and_the_first_header_counts() -> None:
    past, ahead = expires(b"1"), expires(b"%d" % (NOW_MS + 1))
    note, own = header("note", b"the TIMER_EXPIRES_MS of this mail"), header("a", past)
    found = with_headers([note], [own, note], [note, ahead, past], [own, past], [past, ahead])
    assert forbidden(found) == [False, False, False, True, True]


def test_an_instant_behind_many_headers_costs_no_column_of_them() -> None:
    """Of 2,000 rows, so side by side, and of two, so one by one."""
    ahead, past = expires(b"%d" % (NOW_MS + 1)), expires(b"1")
    for rows in (2_000, 2):
        many = with_headers(*[[header("a", b"")] * 300 + [ahead], [ahead] * 300 + [past]] * rows)
        tracemalloc.start()
        try:
            found = forbidden(many)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert found == [False] * 2 * rows
        assert peak < 4 * many.headers.nbytes + 1_000_000
