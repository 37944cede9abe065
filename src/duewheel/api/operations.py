"""Results of `reshard`, `recover` and `check`."""

from __future__ import annotations

from pydantic import Field

from duewheel.api.model import Result


class NewShard(Result):
    """A shard after a reassignment."""

    shard: int
    partitions: list[str]
    delivered_until_ms: int
    apart_ms: int = Field(description="between the most and the least advanced partition")


class Resharded(Result):
    """A reassignment of partitions to another number of shards."""

    dry_run: bool
    from_shards: int
    to_shards: int
    moved: int = Field(description="partitions that change their shard")
    shards: list[NewShard]
    took_s: float = 0.0


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


class FileFinding(Result):
    """A contradiction in the files of a data directory."""

    file: str
    offset: int
    code: str
    detail: str

    @property
    def text(self) -> str:
        """The finding in one line."""
        return f"{self.file} at byte {self.offset}: {self.code}: {self.detail}"


class CheckedFiles(Result):
    """The verdict on all files of a data directory."""

    ok: bool
    records: int
    findings: list[FileFinding]
