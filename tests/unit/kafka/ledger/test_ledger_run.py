"""A run over a ledger: parts that are planned again or halved, dry runs, errors that say what was
written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from duewheel.errors import KafkaUnavailable, PublishDoubt, TransactionTooSlow
from duewheel.kafka.ledger.command_ledger import CommandLedger
from duewheel.kafka.ledger.ledger_run import LedgerRun
from duewheel.kafka.ledger.new_records import NewRecord
from duewheel.kafka.ledger.producer_internals import NotInKafka
from duewheel.wheel.doubt_resolution import CommitOutcome, CommitResult


@dataclass(frozen=True)
class At:
    """A position: the records before it."""

    count: int
    spelling: str = field(default="", compare=False)

    def encode(self) -> bytes:
        return b"%d" % self.count


@dataclass
class Scripted:
    """Stands for the ledger: each write finds the next of these positions, or raises an error; then
    all are committed that have no more records than `most`: the others are too slow.
    """

    found: list[At | Exception] = field(default_factory=list)
    most: int = 1_000
    written: list[tuple[int, At]] = field(default_factory=list)
    opened_dry: bool | None = None
    position: At = At(3)
    leaderless: bool = False

    def takes_writes(self, _: Sequence[NewRecord]) -> bool:
        return not self.leaderless

    def open(self, *, dry_run: bool) -> At:
        self.opened_dry = dry_run
        return self.position

    def write(self, records: Sequence[NewRecord], position: At) -> CommitResult[At]:
        self.written.append((len(records), position))
        found = self.found.pop(0) if self.found else At(position.count, "as read")
        if isinstance(found, Exception):
            raise found
        if len(records) > self.most:
            doubt = TransactionTooSlow("too slow")
            return CommitResult(CommitOutcome.ABORTED, self.position, doubt=doubt)
        outcome = CommitOutcome.COMMITTED if found == position else CommitOutcome.ABORTED
        self.position = found
        return CommitResult(outcome, found)


def run_over(ledger: Scripted, *, dry_run: bool = False, alone: str = "") -> LedgerRun[At]:
    return LedgerRun(cast("CommandLedger[At]", ledger), dry_run=dry_run, alone=alone)


@dataclass
class PartPlan:
    """Plans one record for each number that the position does not have; notes the positions that it
    was given.
    """

    asked: list[int] = field(default_factory=list)

    def __call__(
        self, position: At, numbers: Sequence[int]
    ) -> tuple[list[NewRecord] | None, At, list[int]]:
        self.asked.append(position.count)
        part = [number for number in numbers if number >= position.count]
        records = [NewRecord(b"%d" % n, "t", 0, None, None, []) for n in part]
        return records or None, At(numbers[-1] + 1), part


def test_a_part_is_written_once_and_returned() -> None:
    ledger, plan = Scripted(), PartPlan()
    run = run_over(ledger)
    assert run.write([3, 4], plan) == ([3, 4], [])
    assert (ledger.opened_dry, ledger.written, plan.asked) == (False, [(2, At(5))], [3])
    assert run.position == At(5)


@pytest.mark.parametrize(
    ("found", "asked", "part"),
    [
        ([At(3)], [3, 3], [3, 4, 5, 6]),  # aborted
        ([At(3), At(3)], [3, 3, 3], [3, 4, 5, 6]),
        ([At(5)], [3, 5], [5, 6]),  # another run has written two of them
        ([At(7)], [3], [3, 4, 5, 6]),
    ],
)
def test_a_part_is_planned_again_by_the_position_that_kafka_has(
    found: list[At | Exception], asked: list[int], part: list[int]
) -> None:
    ledger, plan = Scripted(found), PartPlan()
    assert run_over(ledger).write([3, 4, 5, 6], plan) == (part, [])
    assert plan.asked == asked


def test_a_run_that_is_to_be_alone_ends_once_another_has_committed() -> None:
    plan = PartPlan()
    with pytest.raises(PublishDoubt, match="another run"):
        run_over(Scripted([At(3), At(5)]), alone="another run").write([3, 4, 5, 6], plan)
    assert plan.asked == [3, 3], "an abort is tried again"


def test_a_part_that_takes_too_long_is_halved_and_nothing_is_left_out_or_doubled() -> None:
    ledger, plan = Scripted(most=3), PartPlan()
    run, parts = run_over(ledger, alone="another run"), list[list[int]]()
    left: Sequence[int] = range(3, 13)
    while left:
        part, left = run.write(left, plan)
        parts.append(part)
    assert parts == [[3, 4], [5, 6], [7, 8, 9], [10, 11, 12]]
    assert [count for count, _ in ledger.written][:3] == [10, 5, 2], "then each commit lets it grow"


def test_one_record_that_takes_too_long_ends_the_run() -> None:
    ledger = Scripted(most=0)
    with pytest.raises(TransactionTooSlow):
        run_over(ledger).write([3, 4, 5], PartPlan())
    assert [count for count, _ in ledger.written] == [3, 1]


@pytest.mark.parametrize("over", [True, False])
def test_no_halves_once_the_run_is_over_or_a_partition_takes_no_writes(over: bool) -> None:
    """Ten of them would each take a deadline."""
    ledger = Scripted(most=0, leaderless=not over)
    run = LedgerRun(cast("CommandLedger[At]", ledger), dry_run=False, is_over=lambda: over)
    with pytest.raises(TransactionTooSlow):
        run.write([3, 4, 5], PartPlan())
    assert [count for count, _ in ledger.written] == [3]


def test_without_the_outcome_nothing_is_tried_again() -> None:
    ledger = Scripted([TransactionTooSlow("no answer")])
    with pytest.raises(TransactionTooSlow):
        run_over(ledger).write([3, 4, 5], PartPlan())
    assert len(ledger.written) == 1


def test_a_position_without_records_leaves_with_a_later_transaction() -> None:
    ledger = Scripted()
    run = run_over(ledger)
    assert run.write([8], lambda *_: (None, At(9), "skipped")) == ("skipped", [])
    assert (ledger.written, run.position) == ([], At(9))
    run.write([9], PartPlan())
    assert ledger.written == [(1, At(10))]


def test_a_position_may_leave_alone() -> None:
    ledger = Scripted()
    run_over(ledger).write([], lambda *_: ([], At(9), None))
    assert ledger.written == [(0, At(9))]


def test_a_dry_run_plans_everything_and_writes_nothing() -> None:
    ledger, plan = Scripted(), PartPlan()
    run = run_over(ledger, dry_run=True)
    assert run.write([3, 4], plan) == ([3, 4], [])
    assert (ledger.opened_dry, ledger.written, run.position) == (True, [], At(5))


@pytest.mark.parametrize("kind", [PublishDoubt, KafkaUnavailable])
@pytest.mark.parametrize("dry_run", [False, True])
def test_an_error_begins_with_what_was_written_before_it(kind: Any, dry_run: bool) -> None:
    run = run_over(Scripted(), dry_run=dry_run)
    with pytest.raises(kind) as raised, run.after(lambda: "2 before"):
        raise kind("no answer")
    assert str(raised.value) == ("no answer" if dry_run else "2 before: no answer")


@pytest.mark.parametrize(
    "error", [NotInKafka(["t"], ["t-0"]), TransactionTooSlow("too slow", was_begun=False)]
)
def test_an_error_with_fields_of_its_own_keeps_them(error: Exception) -> None:
    text, fields = str(error), dict(vars(error))
    with pytest.raises(type(error)) as raised, run_over(Scripted()).after(lambda: "2 before"):
        raise error
    assert (str(raised.value), vars(raised.value)) == (f"2 before: {text}", fields)
