"""The seam of policies: the latest instant wins, each hop fits the window, none ends too early."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from hypothesis import assume, example, given
from hypothesis import strategies as st
from tests.harness.deliveries import (
    NOW_MS,
    PRECISION_MS,
    ROOM,
    WINDOW_MS,
    due,
    judged,
    read_back,
    routed,
    topics,
)
from tests.simulation.contract_check import decoded

from duewheel.config.settings import load
from duewheel.schemas.arrays import Int64
from duewheel.schemas.batches import ANY_TIME, NEVER, NO_POLICY
from duewheel.wheel.policies.policy import DueRows, Policy, PolicySettings, returning
from duewheel.wheel.policies.table import configured
from duewheel.wheel.roll_rule import requested_slots
from duewheel.wheel.slots import slot_of

LATER_MS = NOW_MS + 10 * WINDOW_MS


@dataclass(frozen=True)
class Until(Policy):
    """Lets each row leave at an instant of its own."""

    instants: Sequence[int] | None
    name: str = "until"
    refusal: str = "until forbids it"

    @classmethod
    def configured(cls, settings: PolicySettings) -> Self | None:
        return None

    def not_before_ms(self, rows: DueRows) -> Int64 | None:
        return None if self.instants is None else np.array(self.instants)


def test_the_latest_instant_of_all_policies_holds_with_its_policy() -> None:
    first = Until([ANY_TIME, LATER_MS, LATER_MS, NEVER], "first")
    second = Until([ANY_TIME, LATER_MS + 9, LATER_MS - 9, LATER_MS], "second")
    found = judged(due([0] * 4), first, Until(None, "silent"), second, window_ms=20 * WINDOW_MS)
    assert found.not_before_ms.tolist() == [ANY_TIME, LATER_MS + 9, LATER_MS, NEVER]
    assert found.policy.tolist() == [NO_POLICY, 2, 0, 0]
    assert [each.name for each in found.policies] == ["first", "silent", "second"]
    assert returning(found).tolist() == [False, True, True, False], "a dead letter does not return"


def test_a_rate_charges_what_all_others_let_leave() -> None:
    words = {"dequeue": {"hot_slot": "spread"}, "target": {"mails": {"rate": "5/s"}}}
    found = configured(load(None, {"timer": {"topics": "timers"}, **words}))
    assert [policy.name for policy in found] == ["expired", "hot_slot", "rate"]


def test_a_row_that_would_return_to_its_own_slot_leaves() -> None:
    end_ms = slot_of(NOW_MS, PRECISION_MS) * PRECISION_MS
    found = judged(due([0] * 3), Until([end_ms - 1, end_ms, end_ms + 1]))
    assert found.not_before_ms.tolist() == [ANY_TIME, ANY_TIME, end_ms + 1]


def test_copies_and_dead_letters_are_not_postponed() -> None:
    sent = replace(
        due([0] * 3),
        is_copy=np.array([True, False, False]),
        dead_letter=np.array([False, True, False]),
    )
    assert returning(judged(sent, Until([LATER_MS] * 3))).tolist() == [False, False, True]


def test_no_policy_changes_nothing() -> None:
    sent = due([0] * 2)
    assert judged(sent) is sent
    assert judged(sent, Until(None)) is sent


def test_an_instant_beyond_the_window_is_reached_in_hops_that_are_no_failures() -> None:
    sent, now_ms, hops = due([0]), NOW_MS, 0
    while now_ms < LATER_MS:
        slot = slot_of(now_ms, PRECISION_MS)
        found = routed(judged(sent, Until([LATER_MS]), slot=slot, now_ms=now_ms), {"a": ROOM})
        assert (topics(found), found.aside.postponed.tolist()) == (["timers"], [0])
        copy = found.deliveries
        batch = read_back(decoded(copy.headers[0].as_py(), int(copy.header_count[0])))
        batch = replace(batch, timestamp_ms=np.array([now_ms]))
        slots, rolled = requested_slots(batch, PRECISION_MS, WINDOW_MS)
        assert not rolled.any() and batch.not_before_ms[0] == now_ms + WINDOW_MS
        assert batch.retries[0] == 1, (
            "hops are no failures: the first wait for a target stays short"
        )
        now_ms, hops = int(slots[0]) * PRECISION_MS, hops + 1
        sent = replace(due([0]), retries=batch.retries)
    assert (now_ms, hops) == (LATER_MS, 10)


def test_a_forbidden_row_has_its_policys_code_and_sentence_and_can_be_replayed() -> None:
    asked = [
        Until([NEVER, ANY_TIME, ANY_TIME], "first", "1 forbids it"),
        Until([ANY_TIME, NEVER, ANY_TIME], "second", "2 forbids it"),
    ]
    found = routed(judged(due([0] * 3), *asked), {"a": ROOM})
    assert (topics(found), found.aside.reasons) == (
        ["dead", "dead", "a"],
        {"first": 1, "second": 1},
    )
    for row, sentence in enumerate([b"1 forbids it", b"2 forbids it"]):
        headers = found.deliveries.headers[row].as_py()
        assert sentence in headers and b"REAL_TOPIC" in headers


@given(
    due_slots=st.lists(st.integers(1, 39), min_size=2, max_size=12).map(sorted),
    window=st.integers(2, 9),
)
@example(due_slots=[1, 36], window=9)
def test_rows_that_wait_for_one_instant_leave_in_their_order_over_all_hops(
    due_slots: list[int], window: int
) -> None:
    instant_slot, slot, left = 40, 0, list[int]()
    assume(all((instant_slot - due_slot) % window for due_slot in due_slots))
    wheel: dict[int, list[tuple[int, int]]] = {}  # by slot: offset and number of each row
    for row, due_slot in enumerate(due_slots):
        wheel.setdefault(due_slot, []).append((row, row))
    offset = len(due_slots)
    until, window_ms = Until([instant_slot * PRECISION_MS]), window * PRECISION_MS
    while len(left) < len(due_slots):
        slot += 1
        for _, row in sorted(wheel.pop(slot, [])):
            at_ms = slot * PRECISION_MS
            found = judged(due([0]), until, slot=slot, window_ms=window_ms, now_ms=at_ms)
            if not returning(found).any():
                left.append(row)
                continue
            hop_slot = slot_of(int(found.not_before_ms[0]), PRECISION_MS)
            assert slot < hop_slot <= min(slot + window, instant_slot)
            wheel.setdefault(hop_slot, []).append((offset, row))
            offset += 1
    assert left == sorted(left)
