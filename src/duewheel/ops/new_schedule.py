"""A recurring schedule as JSON: a body of the HTTP API."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from duewheel.config.durations import parse_duration_ms
from duewheel.errors import InvalidTimer
from duewheel.ops.new_timer import MessageHeader, Short, octets, octets_of
from duewheel.ops.schedules import ScheduledMessage, Times


class NewSchedule(BaseModel):
    """When a schedule fires, and its message. Give `cron` or `every`."""

    model_config = ConfigDict(extra="forbid")

    cron: Annotated[str, Field(max_length=1_000)] | None = Field(
        None, description="five fields, or six with seconds first"
    )
    zone: str = Field("UTC", max_length=100, description="of `cron`, such as Europe/Berlin")
    every: Short | None = Field(None, description="elapsed time, such as 90s or 15m")
    missed: Literal["skip", "one", "all"] = "skip"
    target: str = Field(min_length=1, max_length=249)
    value: str | None = Field(None, description="without it, and without value_base64: null")
    value_base64: str | None = None
    key: str | None = None
    key_base64: str | None = None
    headers: list[MessageHeader] = Field(default_factory=list, max_length=100)
    timer_topic: str | None = Field(
        None, max_length=249, description="by default the first of timer.topics"
    )

    @property
    def times(self) -> Times:
        """When it fires.

        Raises:
            InvalidTimer: `every` does not parse.
        """
        try:
            every_ms = None if self.every is None else parse_duration_ms(self.every)
        except ValueError as error:
            raise InvalidTimer(f"every: {error}") from error
        return Times(self.cron, self.zone, every_ms, self.missed)

    @property
    def message(self) -> ScheduledMessage:
        """What it sends.

        Raises:
            InvalidTimer: bytes are given twice, or their base64 does not parse.
        """
        return ScheduledMessage(
            self.target,
            octets("value", self.value, self.value_base64),
            octets("key", self.key, self.key_base64),
            tuple((header.name, octets_of(header)) for header in self.headers),
            self.timer_topic,
        )
