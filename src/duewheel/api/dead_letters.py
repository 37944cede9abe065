"""Dead letters: lists, single ones with their messages, replays."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from duewheel.api.limits import BULK_MAX, PAGE_MAX, TOPIC_MAX
from duewheel.api.messages import WithMessage
from duewheel.api.model import Result


class DeadLetterSummary(Result):
    """A dead letter, without its message."""

    partition: int
    offset: int
    time: str
    code: str | None
    error: str | None
    source: str | None
    key: str | None
    value_bytes: int | None = Field(description="null: it has no value")
    replayed: bool


class DeadLetterList(Result):
    """A page of dead letters, oldest first within each partition."""

    letters: list[DeadLetterSummary]
    next: str | None = Field(description="`page` of the next request; null: this is the last page")


class DeadLetterWithMessage(WithMessage, DeadLetterSummary):
    """A dead letter with its message."""


class Replay(BaseModel):
    """Which dead letters to write again, and where."""

    model_config = ConfigDict(extra="forbid")

    code: str | None = Field(default=None, max_length=100, description="only those with this code")
    to_topic: str | None = Field(
        default=None,
        min_length=1,
        max_length=TOPIC_MAX,
        description="by default each one's own topic",
    )
    limit: Annotated[int, Field(strict=True, ge=1, le=BULK_MAX)] = PAGE_MAX
    dry_run: bool = Field(strict=True, description="only count")


class Replayed(Result):
    """What a replay has written; of a dry run, what a real one would write."""

    dry_run: bool
    replayed: int
    topics: dict[str, int] = Field(description="count by target")
    refused: dict[str, int] = Field(description="dead letters again, by code")
