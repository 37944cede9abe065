"""The exactly-once writer with a position: every outcome of a doubt."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from duewheel.errors import Displaced, KafkaUnavailable, PublishDoubt
from duewheel.wheel.doubt_resolution import CommitOutcome, CommitResult, Ledger


@dataclass(frozen=True)
class Mark:
    """A position; two of the same number are two objects, as if they were read."""

    number: int
    seen: object = field(default_factory=object)

    def encode(self) -> bytes:
        return b"%d" % self.number


class Topic:
    """Kafka, as a ledger sees it: one position, and the batches of committed transactions.

    Attributes:
        fate: of the next transaction: "commit", "lost" (a doubt, not committed), "done" (a doubt,
            committed), or the number that another writer commits in its place; None: it is gone.
    """

    def __init__(self, number: int | None = 1) -> None:
        self.number, self.batches = number, list[str]()
        self.fate: str | int | None = "commit"
        self.doubts: list[PublishDoubt | None] = []
        self.is_away = False

    def start(self, doubt: PublishDoubt | None) -> Mark | None:
        self.doubts.append(doubt)
        if self.is_away:
            raise KafkaUnavailable("no answer")
        return None if self.number is None else Mark(self.number)

    def publish(self, batches: str, position: Mark) -> int | None:
        if self.fate not in {"commit", "lost", "done"}:
            assert not isinstance(self.fate, str)
            self.number = self.fate
            raise Displaced("taken")
        if self.fate != "lost":
            self.number = position.number
            self.batches.append(batches)
        if self.fate != "commit":
            raise PublishDoubt(self.fate)
        return 99


def opened(topic: Topic) -> Ledger[str, Mark]:
    ledger = Ledger(topic.start, topic.publish)
    found = ledger.open()
    assert (None if found is None else found.number) == topic.number
    return ledger


def number_of(result: CommitResult[Mark]) -> int | None:
    return None if result.position is None else result.position.number


def test_a_commit_without_a_doubt_reads_nothing() -> None:
    topic = Topic()
    ledger = opened(topic)
    result = ledger.commit("a", Mark(2))
    assert (result.outcome, result.stamp_ms, result.doubt) == (CommitOutcome.COMMITTED, 99, None)
    assert (number_of(result), topic.batches, topic.doubts) == (2, ["a"], [None])


@pytest.mark.parametrize("before", [1, None])
def test_in_doubt_the_position_decides(before: int | None) -> None:
    topic = Topic(before)
    ledger = opened(topic)
    for fate, outcome, there in [
        ("lost", CommitOutcome.ABORTED, before),
        ("lost", CommitOutcome.ABORTED, before),
        ("done", CommitOutcome.COMMITTED, 2),
    ]:
        topic.fate = fate
        result = ledger.commit("a", Mark(2))
        assert (result.outcome, number_of(result)) == (outcome, there)
        assert topic.doubts[-1] is result.doubt is not None
        assert result.stamp_ms is None, "the brokers' time of another transaction would be a lie"
    assert topic.batches == ["a"]
    topic.fate = "lost"
    result = ledger.commit("b", Mark(3))
    assert (result.outcome, number_of(result)) == (CommitOutcome.ABORTED, 2), "2 is the one before"


@pytest.mark.parametrize("others", [7, None])
def test_what_another_has_committed_is_no_abort(others: int | None) -> None:
    topic = Topic()
    ledger = opened(topic)
    topic.fate = others
    result = ledger.commit("a", Mark(2))
    assert (result.outcome, number_of(result)) == (CommitOutcome.ANOTHERS, others)
    assert isinstance(result.doubt, Displaced)
    topic.fate = "lost"
    again = ledger.commit("a", Mark(8))
    assert again.outcome is CommitOutcome.ABORTED, (
        "the position that was found is the one before now"
    )


def test_without_an_answer_the_doubt_stays() -> None:
    topic = Topic()
    ledger = opened(topic)
    topic.fate, topic.is_away = "done", True
    with pytest.raises(KafkaUnavailable):
        ledger.commit("a", Mark(2))
    topic.is_away = False
    assert ledger.open() is ledger.position is not None
    assert ledger.position.number == 2


def test_a_doubt_is_about_the_position_as_it_was_written() -> None:
    """A publisher adds its held copies to the progress."""
    topic = Topic()

    def written(position: Mark) -> Mark:
        return Mark(10 * position.number)

    def publish(batches: str, position: Mark) -> int | None:
        return topic.publish(batches, written(position))

    ledger = Ledger(topic.start, publish, written=written)
    ledger.open()
    topic.fate = "done"
    result = ledger.commit("a", Mark(2))
    assert (result.outcome, number_of(result)) == (CommitOutcome.COMMITTED, 20)
    topic.fate = "commit"
    assert number_of(ledger.commit("b", Mark(3))) == 30
    topic.fate = "lost"
    assert ledger.commit("c", Mark(4)).outcome is CommitOutcome.ABORTED
