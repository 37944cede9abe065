"""The results of `recover`."""

from __future__ import annotations

from pydantic import Field

from duewheel.api.model import InstantMs, Result


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


class MirrorRecovered(Result):
    """The timers of a lost cluster that were written from its mirror; or would be."""

    dry_run: bool
    records: int = Field(description="in the mirrored timer topics")
    delivered: int = Field(description="with a receipt, or the dead letter of a failed delivery")
    stopped: int = Field(description="cancelled or replaced in the lost cluster")
    kept_out: int = Field(description="with `keep`, while another one was pending")
    copied: int = Field(description="records for which a later copy stands")
    assumed_delivered: int = Field(description="due before --delivered-before")
    left_out: dict[str, int] = Field(
        description="rejected ones by code; `recurring`: all records that set or changed a schedule"
    )
    not_taken: dict[str, int] = Field(
        description="topic-partition → first offset of what was copied after the first transaction"
    )
    unclear_cancels: int = Field(description="by handle, of a timer that was not found")
    unclear_windows: int = Field(
        description="without id and key, with a window: written, and perhaps delivered before"
    )
    newest_record_ms: InstantMs | None = Field(description="in the mirrored timer topics")
    newest_receipt_ms: InstantMs | None
    already_done: int = Field(description="timers that earlier runs have read")
    written: int
    past_due: int = Field(description="of the timers written")
    refused: dict[str, int] = Field(description="timers that ingest would reject, by error code")
    earliest_due_ms: InstantMs | None
    latest_due_ms: InstantMs | None
    targets: dict[str, int] = Field(description="timers by target")
    missing_targets: list[str]
