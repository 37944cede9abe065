"""The result of `schedule move`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from duewheel.api.model import InstantMs, Result


class MovedSchedule(Result):
    """One schedule of a former `duewheel recur`, and the recurring timer that it is now."""

    name: str
    state: Literal["active", "paused", "stays"] = Field(description="stays: it is not moved")
    timer_topic: str | None = None
    next_due_ms: InstantMs | None = Field(default=None, description="null: paused")
    firings: int = Field(
        default=0, description="written as timers: missed ones, and those of the next minute"
    )
    error: str | None = Field(default=None, description="why it stays")
