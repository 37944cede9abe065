"""How far a batch may read a topic with a quota: never beyond its rate, and at no other's cost."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duewheel.checkpoints.commit_and_close_pages import Close
from duewheel.checkpoints.quota_waiting import VALID_MS, QuotaWaiting
from duewheel.checkpoints.state_file import State
from duewheel.schemas.batches import TopicPartition
from duewheel.streaming.batch_plan import Offsets, batch_ends
from duewheel.streaming.topic_quotas import TopicQuotas
from duewheel.testing import ManualClock

A, B, FREE = ("a", 0), ("a", 1), ("free", 0)
RATE = 10


class Planner:
    """What a source does at each look, over logs that begin at 0.

    Attributes:
        marks: how far batches have come.
        starts: of the logs, if not 0.
    """

    def __init__(self, path: Path, rate: int = RATE) -> None:
        self.clock, self.path = ManualClock(), path
        self.quotas = TopicQuotas({"a": rate}, path, self.clock)
        self.marks: Offsets = {}
        self.starts: Offsets = {}

    def plan(self, ends: Offsets, passed_ms: int = 0, rows_max: int = 10**9) -> Offsets:
        """Plans a batch; returns the rows of each partition."""
        self.clock.sleep(passed_ms / 1000)
        firsts = {p: self.marks.get(p, 0) for p in ends}
        permitted = self.quotas.permitted(firsts, ends, self.log_starts)
        found = batch_ends(firsts, permitted, rows_max)
        self.quotas.planned(found)
        self.marks |= found
        return {p: found[p] - firsts[p] for p in ends}

    def log_starts(self, partitions: Iterable[TopicPartition]) -> Offsets:
        return {p: self.starts.get(p, 0) for p in partitions}

    @property
    def waiting(self) -> dict[str, int]:
        return QuotaWaiting.read_valid(self.path, self.clock.now_ms()).by_topic


@pytest.fixture
def planner(tmp_path: Path) -> Planner:
    State.create(tmp_path, 50, 1_000).release()
    return Planner(tmp_path)


def test_a_restart_permits_nothing_more(planner: Planner) -> None:
    assert planner.plan({A: 100, FREE: 100}) == {A: 0, FREE: 100}
    assert planner.plan({A: 100, FREE: 100}, 500) == {A: 5, FREE: 0}
    planner.quotas = TopicQuotas({"a": RATE}, planner.path, planner.clock)
    assert planner.plan({A: 100, FREE: 100}) == {A: 0, FREE: 0}


def test_a_topic_below_its_quota_does_not_notice_it(planner: Planner) -> None:
    ends = {A: 0, B: 0}
    for number in range(1, 50):
        ends[A if number % 3 else B] += 1
        assert sum(planner.plan(ends, 100).values()) == 1
    assert planner.waiting == {}


def test_below_its_quota_no_marks_are_read(
    planner: Planner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of 20,000 partitions take 70 ms."""
    monkeypatch.setattr(State, "close", lambda _: pytest.fail("the marks are read"))
    for number in range(1, 30):
        assert planner.plan({A: number}, 200) == {A: 1}


@pytest.mark.parametrize("passed_ms", [100, 30_000])
def test_the_rate_holds_however_long_a_batch_takes(planner: Planner, passed_ms: int) -> None:
    """Also a batch that takes longer than the second for which the bucket has room."""
    taken = sum(planner.plan({A: 10**6}, passed_ms)[A] for _ in range(300))
    assert taken == RATE * 300 * passed_ms // 1000


def test_what_nobody_takes_is_kept_for_a_second(planner: Planner) -> None:
    planner.plan({A: 0}, 60_000)
    assert planner.plan({A: 0}, 100) == {A: 0}
    assert planner.plan({A: 1_000}, 100) == {A: RATE + 1}


def test_partitions_with_little_do_not_wait_for_those_with_much(planner: Planner) -> None:
    assert planner.plan({A: 3, B: 1_000, FREE: 7}, 1_000) == {A: 3, B: 7, FREE: 7}
    single = {("a", number): 1 for number in range(2, 22)}
    taken = planner.plan({B: 1_000, **single}, 1_000)
    assert set(taken.values()) == {1}, "a row of each"
    assert sum(planner.plan({B: 1_000}, 1_000).values()) == 0, "for which the next ones wait"
    assert sum(planner.plan({B: 1_000}, 200).values()) == 1


def test_partitions_with_much_take_turns(planner: Planner) -> None:
    """So that few batches end within a record batch: each is decoded again for the next one."""
    backlog = {("a", number): 1_000 for number in range(4)}
    taken = [planner.plan(backlog, 500) for _ in range(16)]
    assert {sum(rows.values()) for rows in taken} == {RATE // 2}
    turns = [[p[1] for p, rows in each.items() if rows] for each in taken]
    assert turns == [[number] for number in (0, 0, 1, 1, 2, 2, 3, 3)] * 2
    # The turn ends with the messages.
    assert planner.plan({A: 25, B: 1_000, ("a", 2): 1_000}, 1_000) == {A: 5, B: 5, ("a", 2): 0}


def test_a_standby_plans_what_its_owner_has_taken_and_no_more(planner: Planner) -> None:
    """A batch with later rows waits for the owner, and with it the rows of all other topics: with
    buckets of its own a standby was 1,700 s behind after an hour.
    """
    with State.open(planner.path) as state:
        state.set_standby(on=True)
        state.restart_close(Close(1, {A: 40, FREE: 10}, 1, {A: 40, FREE: 10}))
    ends = {A: 1_000, B: 5, FREE: 50}
    assert planner.plan(ends, 60_000) == {A: 40, B: 0, FREE: 50}
    assert planner.plan({**ends, FREE: 60}, 60_000) == {A: 0, B: 0, FREE: 10}
    with State.open(planner.path) as state:
        state.restart_close(Close(2, {A: 47, B: 5}, 2, {A: 47, B: 5}))
    assert planner.plan(ends, 100) == {A: 7, B: 5, FREE: -10}, "no second later"
    with State.open(planner.path) as state:
        state.set_standby(on=False)
    assert planner.plan({A: 1_000}, 100) == {A: 1}, "its bucket was empty"
    assert planner.plan({A: 1_000}, 1_000) == {A: RATE}


def test_a_quota_cuts_one_record_batch_of_a_topic_at_a_time(planner: Planner) -> None:
    """64 partitions, each with one batch of 999 messages, at 500 messages a second."""
    planner.quotas = TopicQuotas({"a": 500}, planner.path, planner.clock)
    backlog = {("a", number): 999 for number in range(64)}
    decoded = planned = 0
    while any(planner.marks.get(p, 0) < 999 for p in backlog):
        decoded += sum(rows > 0 for rows in planner.plan(backlog, 200).values())
        planned += 1
    assert planned == 1 + 64 * 999 // 100
    assert decoded <= planned + 64


def test_a_log_that_has_lost_its_end_is_not_hidden(planner: Planner) -> None:
    planner.marks = {A: 50}
    assert planner.plan({A: 30, B: 100}, 1_000) == {A: -20, B: 10}


def test_what_was_taken_before_is_free(planner: Planner) -> None:
    """As in a recovery without the data directory: the close page is there, the rows are not."""
    with State.open(planner.path) as state:
        state.write_close(Close(7, {A: 900}, 9, {A: 1_000}))
    assert planner.plan({A: 5_000, B: 5_000}, 1_000) == {A: 1_000 + RATE, B: 0}
    assert planner.plan({A: 5_000, B: 5_000}, 1_000) == {A: 0, B: RATE}


def test_what_was_taken_before_is_free_in_all_its_batches(planner: Planner) -> None:
    with State.open(planner.path) as state:
        state.write_close(Close(7, {A: 1_000}, 9, {A: 1_000}))
    taken = [planner.plan({A: 5_000}, 0, rows_max=300)[A] for _ in range(5)]
    assert taken == [300, 300, 300, 100, 0]


def test_what_retention_has_deleted_is_free(planner: Planner) -> None:
    planner.starts = {A: 4_000}
    assert planner.plan({A: 5_000}, 1_000) == {A: 4_010}


def test_what_waits_is_noted_until_nothing_does(planner: Planner) -> None:
    planner.plan({A: 100, B: 50, FREE: 10**6}, 1_000, rows_max=100)
    assert planner.waiting == {"a": 140}, "what only the size of a batch excludes is not in it"
    planner.plan({A: 100, B: 50, FREE: 10**6}, 500)
    assert planner.waiting == {"a": 140}, "not more often than once a second"
    planner.plan({A: 100, B: 50, FREE: 10**6}, 30_000)
    assert planner.waiting == {}


def test_a_note_ends_the_lag_and_its_age_ends_the_note(planner: Planner) -> None:
    planner.plan({A: 100, B: 5, FREE: 9}, 1_000)
    now_ms = planner.clock.now_ms()
    noted = QuotaWaiting.read_valid(planner.path, now_ms)
    assert noted.below({A: 120, B: 5, FREE: 9}) == {A: 5, B: 5, FREE: 9}
    assert noted.below({A: 3}) == {A: 3}
    assert QuotaWaiting.read_valid(planner.path, now_ms + VALID_MS) == noted
    assert QuotaWaiting.read_valid(planner.path, now_ms + VALID_MS + 1).below({A: 120}) == {A: 120}


@pytest.mark.parametrize("text", [b"", b"00000000 {}\n", b"\xff"])
def test_a_damaged_note_says_nothing(planner: Planner, text: bytes) -> None:
    (planner.path / "quota-waiting").write_bytes(text)
    assert planner.waiting == {}


def test_a_full_disk_ends_no_planning(planner: Planner, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(QuotaWaiting, "write", full)
    assert planner.plan({A: 100}, 1_000) == {A: 10}


LOOKS = st.lists(
    st.tuples(st.integers(0, 5_000), st.lists(st.integers(0, 60), min_size=4, max_size=4)),
    min_size=1,
    max_size=25,
)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("quota")
    State.create(path, 50, 1_000).release()
    return path


@given(looks=LOOKS, rate=st.integers(1, 40), rows_max=st.integers(1, 200))
def test_no_interval_has_more_than_its_share(
    directory: Path,
    looks: list[tuple[int, list[int]]],
    rate: int,
    rows_max: int,
) -> None:
    """Between any two looks: what the rate gives from the look before them on, a second's worth,
    and a row of each partition. Others have at least what they would have without a quota.
    """
    planner = Planner(directory, rate)
    ends, at_ms = {("a", 0): 0, ("a", 1): 0, ("a", 2): 0, FREE: 0}, [0]
    rows = list[int]()
    for passed_ms, new in looks:
        ends = {p: end + more for (p, end), more in zip(ends.items(), new, strict=True)}
        firsts = {p: planner.marks.get(p, 0) for p in ends}
        alone = batch_ends(firsts, ends, rows_max)
        taken = planner.plan(ends, passed_ms, rows_max)
        assert taken[FREE] >= alone[FREE] - firsts[FREE]
        at_ms.append(at_ms[-1] + passed_ms)
        rows.append(sum(taken.values()) - taken[FREE])
    total = [0, *accumulate(rows)]
    for first in range(len(rows)):
        for last in range(first, len(rows)):
            most = rate * (1 + (at_ms[last + 1] - at_ms[first]) / 1000) + 3
            assert total[last + 1] - total[first] <= most + 1e-6


def test_bytes_are_paid_after_the_batch_and_once(planner: Planner) -> None:
    ends = {A: 1_000, FREE: 1_000}
    assert planner.plan(ends, 1_000) == {A: 10, FREE: 1_000}
    for _ in range(3):  # a look at the logs without anything to read
        planner.quotas.settle({}, {"a": 25, "free": 9_000})
        assert planner.plan(ends) == {A: 0, FREE: 0}
    assert planner.plan(ends, 2_400) == {A: 0, FREE: 0}
    assert planner.plan(ends, 200) == {A: 1, FREE: 0}


def test_bytes_of_a_batch_that_another_process_has_planned_cost_nothing(planner: Planner) -> None:
    planner.quotas.settle({}, {"a": 25})
    assert planner.plan({A: 1_000}, 1_000) == {A: 10}


def test_bytes_that_were_taken_before_are_free(planner: Planner) -> None:
    with State.open(planner.path) as state:
        state.write_close(Close(7, {A: 900}, 9, {A: 1_000}))
    assert planner.plan({A: 5_000}, 1_000) == {A: 1_010}
    planner.quotas.settle({}, {"a": 25})
    assert planner.plan({A: 5_000}, 1_000) == {A: 10}
