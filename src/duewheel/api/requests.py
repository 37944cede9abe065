"""Requests for timers: new ones, others in their place, and which ones. A command's options, a line
of a file and the body or query of an HTTP request are views of these models, which check them.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, ClassVar, Self

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema, model_validator

from duewheel.api.due_time import DueTime, NonNullHeader
from duewheel.api.field_rules import Schema, at_least_one, at_most_one, exactly_one, needs
from duewheel.api.limits import (
    BUCKETS_MAX,
    BULK_MAX,
    ID_MAX,
    KEY_MAX,
    PAGE_MAX,
    TOPIC_MAX,
    tag_octets,
)
from duewheel.api.model import DryRunFields, RequestFields
from duewheel.config.durations import DURATION, parse_duration_ms
from duewheel.config.instants import EPOCH_MS, MS_MAX, epoch_ms, parse_instant
from duewheel.errors import ConfigError, InvalidTimer
from duewheel.schemas.header_names import ADDED, REQUEST, TAG_BYTES_MAX, IfPending
from duewheel.schemas.name_patterns import TOPIC_NAME
from duewheel.schemas.partition_names import PARTITIONS_MAX

INSTANT = "epoch ms, or ISO-8601 with a zone"


def _duration(text: str) -> str:
    parse_duration_ms(text)
    return text


def _tag(given: object) -> object:
    if isinstance(given, str):
        tag_octets(given)  # InvalidTimer
    return given


def _instant(given: int | str) -> int | str:
    try:
        epoch_ms(parse_instant(str(given)))
    except ConfigError as error:
        raise ValueError(str(error)) from None  # one that names its field
    return given


def _whole(given: object) -> object:
    if isinstance(given, bool):  # a JSON `true` would be level 1
        raise ValueError("a whole number")  # noqa: TRY004 - one that names its field
    # JSON has one kind of number: 1.0 is an integer of a description.
    return int(given) if isinstance(given, float) and given.is_integer() else given


# Bounds come first: the description has none of those that follow a validator.
WHOLE = BeforeValidator(_whole)
Strict = Annotated[int, Field(strict=True), WHOLE]
Short = Annotated[str, Field(max_length=40)]
Duration = Annotated[
    Short, AfterValidator(_duration), Field(json_schema_extra={"pattern": DURATION})
]
# Forms that every client's library has; `_instant` takes more of ISO-8601.
DATE_TIME = {"type": "string", "format": "date-time", "maxLength": 40}
_INSTANT_TEXTS = [{"type": "string", "pattern": EPOCH_MS}, DATE_TIME]
_EPOCH_MS = {"type": "integer", "minimum": -MS_MAX, "maximum": MS_MAX}
Instant = Annotated[Short, AfterValidator(_instant), WithJsonSchema({"anyOf": _INSTANT_TEXTS})]
NumberOrInstant = Annotated[
    Strict | Short,
    AfterValidator(_instant),
    WithJsonSchema({"anyOf": [_EPOCH_MS, *_INSTANT_TEXTS]}),
]
Topic = Annotated[str, Field(max_length=TOPIC_MAX)]
Target = Annotated[Topic, Field(min_length=1, json_schema_extra={"pattern": TOPIC_NAME})]
Level = Annotated[int, Field(ge=1, le=255), WHOLE]
Key = Annotated[str, Field(max_length=KEY_MAX)]
_BASE64 = r"^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"
Base64 = Annotated[str, Field(json_schema_extra={"contentEncoding": "base64", "pattern": _BASE64})]
KeyBase64 = Annotated[Base64, Field(max_length=2 * KEY_MAX)]
# Bytes are counted first: in characters the bound is the description's alone.
Tag = Annotated[str, Field(min_length=1, max_length=TAG_BYTES_MAX), BeforeValidator(_tag)]
# The id is refused, too, unless the headers are those of a delivery.
_OF_REQUESTS = sorted(REQUEST.keys() - ADDED)
HeaderName = Annotated[str, Field(json_schema_extra={"not": {"enum": _OF_REQUESTS}})]
# A timer without an id has the name of its record, topic-partition@offset, in its place.
TimerId = Annotated[str, Field(max_length=ID_MAX + TOPIC_MAX)]
NumberOfPartition = Annotated[int, Field(strict=True, ge=0, lt=PARTITIONS_MAX), WHOLE]


class MessageHeader(RequestFields):
    """A header of a message: text, or other bytes in base64."""

    rules: ClassVar[Sequence[Schema]] = (exactly_one("value", "value_base64"),)

    name: HeaderName = Field(min_length=1, max_length=1_024)
    value: str | None = None
    value_base64: Base64 | None = None


class HeaderFields(RequestFields):
    """The headers of a message."""

    headers: list[MessageHeader] = Field(default_factory=list, max_length=100)

    @property
    def header_octets(self) -> list[NonNullHeader]:
        """The headers.

        Raises:
            InvalidTimer: one has no value, or two, or its base64 does not parse.
        """
        return list(map(_header_octets, self.headers))


class MessageFields(HeaderFields):
    """Key, value and headers of a message, and the timer topic that takes it."""

    rules: ClassVar[Sequence[Schema]] = (
        at_most_one("value", "value_base64"),
        at_most_one("key", "key_base64"),
        at_least_one("value", "value_base64", "key", "key_base64"),
    )
    in_records: ClassVar[Sequence[str]] = ("timer_topic",)

    value: str | None = Field(
        default=None, description="without it, and without value_base64: null"
    )
    value_base64: Base64 | None = None
    key: str | None = Field(default=None, description="the message's key")
    key_base64: Base64 | None = None
    timer_topic: Topic | None = Field(
        default=None, description="by default the first of timer.topics"
    )

    @property
    def value_octets(self) -> bytes | None:
        """The value; None: null.

        Raises:
            InvalidTimer: it is given twice, or its base64 does not parse.
        """
        return octets("value", self.value, self.value_base64)

    @property
    def key_octets(self) -> bytes | None:
        """The key. Raises as `value_octets`."""
        return octets("key", self.key, self.key_base64)


class DueTimeFields(RequestFields):
    """The three ways to request a due time: one of them is given."""

    needs_due: ClassVar[bool] = True
    rules: ClassVar[Sequence[Schema]] = (exactly_one("deliver_at", "delay", "level"),)
    in_records: ClassVar[Sequence[str]] = ("deliver_at", "delay", "level")

    deliver_at: NumberOrInstant | None = Field(default=None, description=INSTANT)
    delay: Duration | None = Field(default=None, description="such as 90s, 15m or 1h30m")
    level: Annotated[Level, Field(strict=True)] | None = Field(
        default=None, description="one of the delay levels"
    )

    @model_validator(mode="after")
    def _require_one(self) -> Self:
        if self.needs_due or {self.deliver_at, self.delay, self.level} != {None}:
            _ = self.due  # InvalidTimer
        return self

    @property
    def due(self) -> DueTime:
        """The due time.

        Raises:
            InvalidTimer: none of the three is given, or several.
        """
        at = None if self.deliver_at is None else parse_instant(str(self.deliver_at))
        return DueTime.of(at, self.delay, self.level)


class TimerFields(MessageFields, DueTimeFields):
    """Fields of a new timer, as far as they are given: of all lines of a file."""

    needs_due: ClassVar[bool] = False
    rules: ClassVar[Sequence[Schema]] = (needs("if_pending", "id"),)
    in_records: ClassVar[Sequence[str]] = (
        *("topic", "window", "id", "partition", "tag", "expires_at", "if_pending"),
    )

    topic: Target | None = Field(default=None, description="the topic that gets the message")
    window: Duration | None = Field(
        default=None, description="deliver within this time after the due time"
    )
    id: Annotated[str, Field(min_length=1, max_length=ID_MAX)] | None = Field(
        default=None, description="the timer's id"
    )
    partition: NumberOfPartition | None = Field(default=None, description="of the target")
    tag: Tag | None = Field(
        default=None, description="a word by which timers are listed, cancelled and paused"
    )
    expires_at: NumberOrInstant | None = Field(
        default=None, description="after it the message expires: " + INSTANT
    )
    if_pending: IfPending | None = Field(
        default=None,
        description="while a timer with its id is pending in its partition, whatever its key: keep "
        "that one and drop this, or replace it",
    )

    @property
    def last_instant(self) -> datetime | int | None:
        """The instant of `expires_at`.

        Raises:
            InvalidTimer: it has no zone, or does not parse.
        """
        return None if self.expires_at is None else parse_instant(str(self.expires_at))


class NewTimer(TimerFields):
    """A message, its target and its due time."""

    needs_due: ClassVar[bool] = True

    topic: Target = Field(description="the topic that gets the message")


class Replacement(HeaderFields, DueTimeFields):
    """The timer in the place of named ones. Without a topic their message is read back."""

    topic: str | None = Field(
        default=None, description="the topic that gets the message; not needed with a handle"
    )
    value: str | None = Field(
        default=None, description="the message; with a handle by default the old one"
    )


class KeyedTimers(RequestFields):
    """Timers by handle, or by id and key: an id counts within one partition."""

    id_needs: ClassVar[Sequence[str]] = ("key",)  # one of these

    handle: str | None = Field(default=None, description="the timer's recall handle")
    id: str | None = Field(default=None, description="the timers' id")
    key: str | None = Field(
        default=None, description="the timers' key: with an id it determines their partition"
    )
    timer_topic: str | None = Field(
        default=None,
        description="their topic; by default the handle's, or the first of timer.topics",
    )

    @model_validator(mode="after")
    def _name_them_once(self) -> Self:
        wanted = " or ".join(self.id_needs)
        if (self.handle is None) == (self.id is None):
            raise ValueError(f"give either a handle, or an id with the timers' {wanted}")
        if self.id is not None and all(getattr(self, name) is None for name in self.id_needs):
            raise ValueError(f"an id needs the timers' {wanted}: it counts within one partition")
        return self

    @property
    def name(self) -> str:
        """The first argument of DelayProducer.cancel."""
        return self.handle or self.id or ""

    @property
    def key_octets(self) -> bytes | None:
        """The key."""
        return octets("key", self.key, None)


class NamedTimers(KeyedTimers):
    """Timers by handle, or by id and key or partition."""

    id_needs: ClassVar[Sequence[str]] = ("key", "partition")

    partition: NumberOfPartition | None = Field(
        default=None, description="with an id, instead of the key"
    )


class TimeSpan(RequestFields):
    """From an instant to another."""

    since: Instant | None = Field(default=None, validation_alias="from", description=INSTANT)
    until: Instant | None = Field(default=None, validation_alias="to", description=INSTANT)

    @property
    def since_ms(self) -> int | None:
        """The first instant, epoch ms."""
        return None if self.since is None else epoch_ms(parse_instant(self.since))

    @property
    def until_ms(self) -> int | None:
        """The last instant, epoch ms."""
        return None if self.until is None else epoch_ms(parse_instant(self.until))


_BY_KEY = "only timers with this key; reads messages, seconds for a million"


class RecordPage(RequestFields):
    """A page of a list of a topic's records."""

    limit: int = Field(default=100, ge=1, le=PAGE_MAX)
    page: Annotated[str, Field(pattern=r"^[0-9]{1,9}@[0-9]{1,18}$")] | None = None


class TimerFilter(TimeSpan):
    """Conditions of pending timers that all hold."""

    topic: Topic | None = Field(default=None, description="only timers with this target topic")
    id: TimerId | None = Field(
        default=None, description="only timers with this id, in any partition"
    )
    key: str | None = Field(default=None, description=_BY_KEY)
    key_base64: str | None = None
    tag: Tag | None = Field(
        default=None, description="only timers with this TIMER_TAG; reads messages, as a key does"
    )
    level: Level | None = Field(default=None, description="only timers of this delay level")
    timer_topic: Topic | None = Field(default=None, description="only timers of this timer topic")
    since: Instant | None = Field(
        default=None,
        validation_alias="from",
        serialization_alias="from",
        description=f"only timers that leave from then on: {INSTANT}",
    )
    until: Instant | None = Field(
        default=None,
        validation_alias="to",
        serialization_alias="to",
        description="only timers that leave until then",
    )

    @property
    def key_octets(self) -> bytes | None:
        """The key.

        Raises:
            InvalidTimer: it is given twice, or its base64 does not parse.
        """
        return octets("key", self.key, self.key_base64)


class BoundedTimerFilter(TimerFilter):
    """The conditions of an HTTP request, whose head is bounded."""

    rules: ClassVar[Sequence[Schema]] = (at_most_one("key", "key_base64"),)

    key: Key | None = Field(default=None, description=_BY_KEY)
    key_base64: KeyBase64 | None = None


class FleetTimerQuery(BoundedTimerFilter, extra="ignore"):
    """Pending timers of all shards."""

    id: Annotated[str, Field(max_length=ID_MAX)] | None = None
    limit: int = Field(default=100, ge=1, le=PAGE_MAX)


class TimerQuery(FleetTimerQuery):
    """A page of pending timers."""

    page: Annotated[str, Field(pattern=r"^[0-9]{1,18}-[0-9]{1,18}$")] | None = None


class HistogramQuery(TimeSpan, extra="ignore"):
    """A range of due times, in buckets of the same width."""

    buckets: int = Field(default=60, ge=1, le=BUCKETS_MAX)

    @model_validator(mode="after")
    def _has_an_end(self) -> Self:
        since_ms, until_ms = self.since_ms, self.until_ms
        if (since_ms is None) != (until_ms is None):
            raise ValueError("give `from` and `to`, or neither")
        if since_ms is not None and until_ms is not None and until_ms <= since_ms:
            raise ValueError("give an end after the begin")
        return self


_CONDITIONS = [
    str(field.validation_alias or name) for name, field in BoundedTimerFilter.model_fields.items()
]


class BulkCancel(DryRunFields):
    """A cancel of all pending timers that match."""

    rules: ClassVar[Sequence[Schema]] = ({"properties": {"filter": at_least_one(*_CONDITIONS)}},)
    in_records: ClassVar[Sequence[str]] = ("filter", "at_most")

    filter: BoundedTimerFilter
    at_most: Annotated[int, Field(strict=True, ge=1, le=BULK_MAX), WHOLE] = Field(
        default=BULK_MAX, description="if more timers match, none is cancelled"
    )


class SelectivePause(RequestFields):
    """How long the timers of a target, timer topic or tag wait, and why."""

    in_records: ClassVar[Sequence[str]] = ("duration", "note")

    duration: Duration | None = Field(default=None, description="null: until it is resumed")
    note: str = Field(default="", max_length=255, description="`status` shows it")

    @property
    def for_ms(self) -> int | None:
        """Milliseconds from now on."""
        return None if self.duration is None else parse_duration_ms(self.duration)


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


def _header_octets(header: MessageHeader) -> NonNullHeader:
    value = octets(f"header {header.name}", header.value, header.value_base64)
    if value is None:
        raise InvalidTimer(f"the header {header.name} has no value")
    return header.name, value
