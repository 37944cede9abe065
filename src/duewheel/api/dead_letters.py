"""Dead letters: lists, single ones with their messages, replays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar

from pydantic import AfterValidator, Field, WithJsonSchema

from duewheel.api.limits import BULK_MAX, PAGE_MAX
from duewheel.api.messages import KEY_BYTES, WithMessage
from duewheel.api.model import DryRunFields, InstantMs, RequestFields, Result
from duewheel.api.requests import DATE_TIME, WHOLE, RecordPage, Topic
from duewheel.config.range_ends import Bound
from duewheel.errors import ConfigError

OFFSET_OR_INSTANT = {"anyOf": [{"type": "string", "pattern": "^[0-9]{1,18}$"}, DATE_TIME]}
_OF_TOPIC = "only dead letters of this timer topic"
Code = Annotated[str, Field(max_length=100)]


def _offset_or_instant(text: str) -> str:
    try:
        Bound.parse("", text)
    except ConfigError as error:
        raise ValueError(str(error).strip()) from None  # one that names its field
    return text


class DeadLetterSummary(Result):
    """A dead letter, without its message."""

    partition: int
    offset: int
    written_ms: InstantMs = Field(description="the timestamp of its record")
    code: str | None
    error: str | None
    source: str | None
    id: str | None = Field(description="of the timer, if the dead letter has it")
    key: str | None = Field(default=None, description="null: it has none, or one in key_base64")
    key_base64: str | None = Field(default=None, description="a key that is no UTF-8")
    key_bytes: int | None = Field(default=None, description=KEY_BYTES)
    value_bytes: int | None = Field(description="null: it has no value")
    replayed: bool


class DeadLetterList(Result):
    """A page of dead letters, oldest first within each partition."""

    letters: list[DeadLetterSummary]
    next: str | None = Field(description="`page` of the next request; null: this is the last page")


class DeadLetterWithMessage(WithMessage, DeadLetterSummary):
    """A dead letter with its message."""


class DeadLetterFilter(RequestFields):
    """Conditions of dead letters that all hold."""

    code: str | None = Field(
        default=None, description="only dead letters with this TIMER_ERROR_CODE"
    )
    timer_topic: Topic | None = Field(default=None, description=_OF_TOPIC)
    since: Annotated[str, AfterValidator(_offset_or_instant), WithJsonSchema(OFFSET_OR_INSTANT)] = (
        Field(
            default="0",
            max_length=40,
            validation_alias="from",
            description="an offset, or ISO-8601 with a zone; by default 0",
        )
    )


class DeadLetterQuery(DeadLetterFilter, RecordPage, extra="ignore"):
    """A page of dead letters."""

    code: Code | None = None


class ReplayFilter(RequestFields):
    """Which dead letters to write again, and where."""

    code: str | None = Field(
        default=None, description="only dead letters with this TIMER_ERROR_CODE"
    )
    timer_topic: Topic | None = Field(default=None, description=_OF_TOPIC)
    to_topic: Annotated[Topic, Field(min_length=1)] | None = Field(
        default=None, description="a target for all; by default each one's own topic"
    )
    limit: Annotated[int, Field(strict=True, ge=1), WHOLE] | None = Field(
        default=None, description="how many at most"
    )


class Replay(ReplayFilter, DryRunFields):
    """A replay by the HTTP API, which is bounded."""

    in_records: ClassVar[Sequence[str]] = ("code", "timer_topic", "to_topic", "limit")

    code: Code | None = Field(default=None, description="only those with this code")
    limit: Annotated[int, Field(strict=True, ge=1, le=BULK_MAX), WHOLE] = PAGE_MAX


class Replayed(Result):
    """The counts of a replay; of a dry run, those that a real one would have."""

    dry_run: bool
    replayed: int
    topics: dict[str, int] = Field(description="count by target")
    refused: dict[str, int] = Field(description="dead letters again, by code")
