"""Recurring schedules."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from duewheel.api.model import Result
from duewheel.api.requests import Duration, MessageFields, Topic
from duewheel.config.durations import parse_duration_ms


class NewSchedule(MessageFields):
    """When a schedule fires, and its message. Give `cron` or `every`."""

    cron: Annotated[str, Field(max_length=1_000)] | None = Field(
        default=None, description="five fields, or six with seconds first: '0 8 * * MON-FRI'"
    )
    zone: str = Field(
        default="UTC",
        max_length=100,
        description="of `cron`, such as Europe/Berlin; by default UTC",
    )
    every: Duration | None = Field(
        default=None,
        description="in place of `cron`: an interval of elapsed time, such as 90s or 15m",
    )
    missed: Literal["skip", "one", "all"] = Field(
        default="skip",
        description="which instants fire late after a stop of the scheduler: none, the latest, "
        "all; by default skip",
    )
    target: Topic = Field(min_length=1, description="the topic of the messages")

    @property
    def every_ms(self) -> int | None:
        """The interval."""
        return None if self.every is None else parse_duration_ms(self.every)


class ScheduleSummary(Result):
    """A recurring schedule, without its message."""

    name: str
    state: Literal["active", "paused", "unreadable", "stopped"]
    cron: str | None = None
    zone: str | None = Field(default=None, description="of `cron`")
    every_ms: int | None = None
    target: str | None = None
    timer_topic: str | None = None
    missed: Literal["skip", "one", "all"] | None = None
    last_due_ms: int | None = Field(
        default=None, description="the last instant that is due and was written to the timer topic"
    )
    next_due_ms: int | None = Field(
        default=None, description="its next instant; null: paused, or none"
    )
    applied: bool = Field(
        default=False, description="false: its newest change is not in effect yet"
    )


class ScheduleList(Result):
    """All recurring schedules by name."""

    schedules: list[ScheduleSummary]
    scheduler: Literal["running", "silent", "none"] = Field(
        description="whether `duewheel recur` runs; silent: its last heartbeat is old"
    )
    heartbeat_ms: int | None = Field(description="its last one, by the brokers' clock")


class NextInstants(Result):
    """The next instants of a schedule."""

    name: str
    due_ms: list[int]
