"""The two records of a change by the HTTP API, in the topic of changes: before it, and after it."""

from __future__ import annotations

from typing import Any, Literal

from duewheel.api.model import InstantMs, Result


class BegunChange(Result):
    """A change that begins."""

    change: str  # also the key of both records
    state: Literal["begun", "ended"] = "begun"
    begun_ms: InstantMs
    shard: int
    operation: str
    client: str  # the address
    by: str | None  # the token's name
    user: str | None
    arguments: dict[str, Any]

    @property
    def who(self) -> dict[str, str]:
        """The operation and the caller, for the log."""
        return self.model_dump(include={"operation", "client", "by", "user"}, exclude_none=True)

    def as_json(self) -> dict[str, Any]:
        """Returns the JSON object, without the fields that are null."""
        return {name: value for name, value in self if value is not None}


class EndedChange(BegunChange):
    """The same change, and its outcome."""

    state: Literal["ended"] = "ended"
    ended_ms: InstantMs
    status: int
    code: str | None = None  # of a problem
    matched: int | None = None  # this and the next two: of a cancel by filter in doubt
    written: int | None = None
    in_doubt: int | None = None
    result: dict[str, Any] | None = None
