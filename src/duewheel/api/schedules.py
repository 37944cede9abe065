"""Recurring schedules: recurring timers, each under its id as its name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from duewheel.api.field_rules import Schema, exactly_one, needs
from duewheel.api.model import InstantMs, RequestFields, Result
from duewheel.api.recurring_time import Missed, RecurringTime
from duewheel.api.requests import INSTANT, Duration, MessageFields, NumberOrInstant, Target, Topic
from duewheel.api.timers import OfShard
from duewheel.config.instants import parse_instant
from duewheel.schemas.header_names import CRON_BYTES_MAX


class NewSchedule(MessageFields):
    """When a schedule fires, and its message. Give `cron` or `every`."""

    rules: ClassVar[Sequence[Schema]] = (exactly_one("cron", "every"), needs("zone", "cron"))
    in_records: ClassVar[Sequence[str]] = (
        *("cron", "zone", "every", "missed", "starts", "ends", "jitter", "target"),
    )

    cron: Annotated[str, Field(max_length=CRON_BYTES_MAX)] | None = Field(
        default=None, description="five fields, or six with seconds first: '0 8 * * MON-FRI'"
    )
    zone: Annotated[str, Field(max_length=64)] | None = Field(
        default=None, description="of `cron`, such as Europe/Berlin; by default UTC"
    )
    every: Duration | None = Field(
        default=None,
        description="in place of `cron`: an interval of elapsed time, such as 90s or 15m",
    )
    missed: Missed | None = Field(
        default=None,
        description="which instants fire that are late by more than a minute: none, the latest, "
        "or up to about a thousand; by default skip",
    )
    starts: NumberOrInstant | None = Field(
        default=None,
        description=f"no instant is earlier, and an interval counts from then on: {INSTANT}",
    )
    ends: NumberOrInstant | None = Field(default=None, description="no instant is later")
    jitter: Duration | None = Field(
        default=None, description="moves all instants by the same time, up to this, by the name"
    )
    target: Target = Field(description="the topic of the messages")

    @model_validator(mode="after")
    def _require_instants(self) -> Self:
        _ = self.recurring  # InvalidTimer
        return self

    @property
    def recurring(self) -> RecurringTime:
        """The instants.

        Raises:
            InvalidTimer: the fields contradict each other.
        """
        starts, ends = (
            None if given is None else parse_instant(str(given))
            for given in (self.starts, self.ends)
        )
        return RecurringTime.of(
            self.cron, self.zone, self.every, self.missed, starts, ends, self.jitter
        )


class ScheduleSummary(Result):
    """A recurring schedule, without its message."""

    name: str
    state: Literal["active", "paused", "stopped"]
    cron: str | None = None
    zone: str | None = Field(default=None, description="of `cron`")
    every_ms: int | None = None
    missed: Missed | None = None
    starts_ms: InstantMs | None = None
    ends_ms: InstantMs | None = None
    jitter_ms: int | None = None
    target: str | None = None
    timer_topic: str | None = None
    note: str | None = Field(default=None, description="why it is paused")
    next_due_ms: InstantMs | None = Field(
        default=None, description="its next instant; null: paused, or none"
    )
    applied: bool = Field(
        default=True, description="false: the change is written, and ingest has not taken it yet"
    )


class ScheduleFilter(RequestFields):
    """Which schedules."""

    timer_topic: Topic | None = Field(default=None, description="only those of this timer topic")


class ScheduleList(OfShard):
    """The recurring schedules of this shard by name."""

    schedules: list[ScheduleSummary]
    more: bool = Field(
        description="there are more, or may be, because the search ended: these fire first"
    )


class NextInstants(Result):
    """The next instants of a schedule."""

    name: str
    zone: str | None = Field(description="of its expression; null: an interval")
    paused: bool
    due_ms: list[InstantMs]


class Pause(RequestFields):
    """Why a schedule is paused."""

    in_records: ClassVar[Sequence[str]] = ("note",)

    note: str = Field(default="", max_length=255, description="is listed with it")


class FieldDifference(Result):
    """A field of a schedule, before and after; null: not given."""

    field: str
    old: str | None
    new: str | None


class ScheduleDifference(Result):
    """A schedule of an applied file; elsewhere: its partition is another shard's, which the file
    has to be applied on, too; a copy that was pending here is stopped.
    """

    name: str
    change: Literal["added", "changed", "unchanged", "removed", "elsewhere"]
    fields: list[FieldDifference]
    applied: bool = Field(
        description="false: a dry run would change it, elsewhere, or ingest has not taken it yet"
    )
