"""Recurring schedules."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from duewheel.api.model import Result


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
