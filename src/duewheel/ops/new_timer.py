"""A new timer as JSON: a line of `duewheel send --file`, and a body of the HTTP API."""

from __future__ import annotations

import base64
import binascii
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from duewheel.errors import InvalidTimer
from duewheel.ops.changes import DueTimeArguments, TimerArguments

Strict = Annotated[int, Field(strict=True)]
Short = Annotated[str, Field(max_length=40)]  # an instant, or a duration


class MessageHeader(BaseModel):
    """A header of a message: text, or other bytes in base64."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(min_length=1, max_length=1_024)
    value: str | None = None
    value_base64: str | None = None


class DueTimeFields(BaseModel):
    """One of the three ways to request a due time."""

    model_config = ConfigDict(extra="forbid")

    deliver_at: Strict | Short | None = Field(None, description="epoch ms, or ISO-8601 and zone")
    delay: Short | None = Field(None, description="such as 90s, 15m or 1h30m")
    level: Annotated[Strict, Field(ge=1, le=255)] | None = None

    @property
    def when(self) -> DueTimeArguments:
        """The due time, as keyword arguments of what writes timers (ops/changes.py)."""
        at = None if self.deliver_at is None else str(self.deliver_at)
        return {"deliver_at": at, "delay": self.delay, "level": self.level}


class NewTimer(DueTimeFields):
    """A message, its target and its due time."""

    topic: str = Field(description="the target", min_length=1, max_length=249)
    value: str | None = Field(None, description="without it, and without value_base64: null")
    value_base64: str | None = None
    key: str | None = None
    key_base64: str | None = None
    headers: list[MessageHeader] = Field(default_factory=list, max_length=100)
    window: Short | None = Field(None, description="deliver within this time after the due time")
    id: str | None = Field(None, min_length=1, max_length=255)
    partition: Annotated[Strict, Field(ge=0, lt=2**31)] | None = Field(
        None, description="of the target"
    )
    timer_topic: str | None = Field(
        None, max_length=249, description="by default the first of timer.topics"
    )

    @property
    def arguments(self) -> TimerArguments:
        """The timer, as keyword arguments of `send`, which writes it (ops/changes.py).

        Raises:
            InvalidTimer: bytes are given twice, or their base64 does not parse.
        """
        return {
            **self.when,
            "topic": self.topic,
            "value": octets("value", self.value, self.value_base64),
            "key": octets("key", self.key, self.key_base64),
            "headers": [(header.name, octets_of(header)) for header in self.headers],
            "window": self.window,
            "timer_id": self.id,
            "partition": self.partition,
            "timer_topic": self.timer_topic,
        }


def octets_of(header: MessageHeader) -> bytes:
    """Returns the value of a header.

    Raises:
        InvalidTimer: it has none, or two.
    """
    value = octets(f"header {header.name}", header.value, header.value_base64)
    if value is None:
        raise InvalidTimer(f"the header {header.name} has no value")
    return value


def octets(name: str, text: str | None, encoded: str | None) -> bytes | None:
    """Returns bytes that are given as text, or in base64; None without either.

    Raises:
        InvalidTimer: both are given, or one cannot be encoded.
    """
    if text is not None and encoded is not None:
        raise InvalidTimer(f"{name}: give text or base64, not both")
    try:
        if encoded is not None:
            return base64.b64decode(encoded, validate=True)
        return None if text is None else text.encode()
    except (binascii.Error, ValueError) as error:
        raise InvalidTimer(f"{name}: this is no base64, or no text") from error
