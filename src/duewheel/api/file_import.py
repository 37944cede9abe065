"""Timers that are sent from a file."""

from __future__ import annotations

from pydantic import Field

from duewheel.api.changes import Scheduled
from duewheel.api.model import InstantMs, Result


class _FileLine(Result):
    """A line of a file."""

    line: int


class SentLine(Scheduled, _FileLine):
    """A line whose timer Kafka has acknowledged."""


class FailedLine(_FileLine):
    """A line that was not written."""

    error: str


class RefusedLine(Result):
    """A line that ingest would reject."""

    line: int
    code: str
    reason: str


class FileImported(Result):
    """The verdict on an import; of a dry run, the figures of a run."""

    name: str
    dry_run: bool
    complete: bool = Field(description="up to the end of the file")
    already_done: int = Field(description="lines that earlier runs have sent")
    read: int
    written: int = Field(description="timers")
    cancelled: int = Field(description="cancels")
    past_due: int = Field(description="of the timers written")
    refused: dict[str, int] = Field(description="lines by error code")
    refused_first: list[RefusedLine]
    earliest_due_ms: InstantMs | None
    latest_due_ms: InstantMs | None
    targets: dict[str, int] = Field(description="timers by target")
    missing_targets: list[str]
