"""A run over a ledger: parts that are planned again, dry runs, errors that say what was written."""

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
    all are committed.
    """

    found: list[At | Exception] = field(default_factory=list)
    written: list[tuple[int, At]] = field(default_factory=list)
    opened_dry: bool | None = None

    def open(self, *, dry_run: bool) -> At:
        self.opened_dry = dry_run
        return At(3)

    def write(self, records: Sequence[NewRecord], position: At) -> At:
        self.written.append((len(records), position))
        found = self.found.pop(0) if self.found else At(position.count, "as read")
        if isinstance(found, Exception):
            raise found
        return found


def run_over(ledger: Scripted, *, dry_run: bool = False, alone: str = "") -> LedgerRun[At]:
    return LedgerRun(cast("CommandLedger[At]", ledger), dry_run=dry_run, alone=alone)


@dataclass
class PartPlan:
    """Plans one record for each number up to `until`; notes the positions that it was given."""

    until: int
    asked: list[int] = field(default_factory=list)

    def __call__(self, position: At) -> tuple[list[NewRecord] | None, At, list[int]]:
        self.asked.append(position.count)
        part = list(range(position.count, self.until))
        records = [NewRecord(b"%d" % n, "t", 0, None, None, []) for n in part]
        return records or None, At(self.until), part


def test_a_part_is_written_once_and_returned() -> None:
    ledger, plan = Scripted(), PartPlan(5)
    run = run_over(ledger)
    assert run.write(plan) == [3, 4]
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
    ledger, plan = Scripted(found), PartPlan(7)
    assert run_over(ledger).write(plan) == part
    assert plan.asked == asked


def test_a_run_that_is_to_be_alone_ends_once_another_has_committed() -> None:
    plan = PartPlan(7)
    with pytest.raises(PublishDoubt, match="another run"):
        run_over(Scripted([At(3), At(5)]), alone="another run").write(plan)
    assert plan.asked == [3, 3], "an abort is tried again"


def test_a_position_without_records_leaves_with_a_later_transaction() -> None:
    ledger = Scripted()
    run = run_over(ledger)
    assert run.write(lambda _: (None, At(9), "skipped")) == "skipped"
    assert (ledger.written, run.position) == ([], At(9))
    run.write(PartPlan(10))
    assert ledger.written == [(1, At(10))]


def test_a_position_may_leave_alone() -> None:
    ledger = Scripted()
    run_over(ledger).write(lambda _: ([], At(9), None))
    assert ledger.written == [(0, At(9))]


def test_a_dry_run_plans_everything_and_writes_nothing() -> None:
    ledger, plan = Scripted(), PartPlan(5)
    run = run_over(ledger, dry_run=True)
    assert run.write(plan) == [3, 4]
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
