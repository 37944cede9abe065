"""Timers that are written, cancelled and replaced."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from duewheel.api.limits import BULK_MAX, ID_MAX, KEY_MAX, TOPIC_MAX
from duewheel.api.model import Result
from duewheel.api.timers import TimerSummary
from duewheel.schemas.header_names import Answer


class Scheduled(Result):
    """A timer that Kafka has acknowledged."""

    id: str
    timer_topic: str
    partition: int
    offset: int
    due_ms: int
    handle: str


class _FileLine(Result):
    """A line of a file."""

    line: int


class SentLine(Scheduled, _FileLine):
    """A line whose timer Kafka has acknowledged."""


class FailedLine(_FileLine):
    """A line that was not written."""

    error: str


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


class TimerFilter(BaseModel):
    """Conditions that all hold; at least one."""

    model_config = ConfigDict(extra="forbid")

    topic: str | None = Field(default=None, max_length=TOPIC_MAX, description="the target")
    id: str | None = Field(default=None, max_length=ID_MAX)
    key: str | None = Field(default=None, max_length=KEY_MAX)
    key_base64: str | None = Field(default=None, max_length=2 * KEY_MAX)
    level: Annotated[int, Field(strict=True, ge=1, le=255)] | None = None
    since: str | None = Field(
        default=None, alias="from", max_length=40, description="epoch ms or ISO-8601"
    )
    until: str | None = Field(default=None, alias="to", max_length=40, description="likewise")


class BulkCancel(BaseModel):
    """A cancel of all pending timers that match."""

    model_config = ConfigDict(extra="forbid")

    filter: TimerFilter
    dry_run: bool = Field(strict=True, description="only count")
    at_most: Annotated[int, Field(strict=True, ge=1, le=BULK_MAX)] = Field(
        BULK_MAX, description="if more timers match, none is cancelled"
    )


class BulkCancelled(Result):
    """What a bulk cancel has matched and written; of a dry run, what a real one would write."""

    dry_run: bool
    matched: int = Field(description="pending timers, without cancelled ones and dead letters")
    written: int
    answers: dict[str, int] = Field(description="replies by kind; none_in_time for those to come")
    sample: list[TimerSummary]
