"""Timers that are written, cancelled and replaced: results of requests."""

from __future__ import annotations

from pydantic import Field

from duewheel.api.model import InstantMs, Result
from duewheel.api.timers import OfShard, TimerSummary
from duewheel.schemas.header_names import Answer


class Scheduled(Result):
    """A timer that Kafka has acknowledged."""

    id: str
    timer_topic: str
    partition: int
    offset: int
    due_ms: InstantMs
    handle: str


class Answered(Result):
    """A cancel that Kafka has acknowledged."""

    id: str
    timer_topic: str
    partition: int
    offset: int
    answer: Answer | None = Field(
        description="null: no reply in time, or timer.reply_topic names no topic"
    )


class RescheduledTimer(Scheduled, Answered):
    """A timer that replaces another one."""


class ReplacedPending(RescheduledTimer):
    """A timer that replaces a pending one, which was read."""

    former_due_ms: InstantMs | None = Field(description="due time of the pending one")


class BulkCancelled(OfShard):
    """The counts of a bulk cancel; a dry run has those of a real one, and writes none."""

    dry_run: bool
    matched: int = Field(description="pending timers, without cancelled ones and dead letters")
    rolling: int = Field(description="of these, those that only roll when they leave: due later")
    recurring: int = Field(description="those beside them of a schedule: they stay until it stops")
    unreachable: int = Field(description="those beside them whose id is no text: no handle has it")
    written: int
    answers: dict[str, int] = Field(description="replies by kind; none_in_time for those to come")
    sample: list[TimerSummary]
