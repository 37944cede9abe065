"""The result of `recover --dry-run`."""

from __future__ import annotations

from pydantic import Field

from duewheel.api.model import Result


class StartPreview(Result):
    """The files that the next start would keep, and the messages that it would read again."""

    dry_run: bool = True
    case: str
    keep: str = Field(description="nothing, durable or all of the files")
    start_offsets: dict[str, int] = Field(description="topic-partition → next offset to read")
    rows_to_read: int = Field(description="messages that would be read again")
    done_rows: int = Field(description="of these, delivered ones: they would be dropped")
    pending_rows: int = Field(description="of these, pending ones: they would be placed again")
    took_s: float
