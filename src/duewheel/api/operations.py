"""Results of commands that change a shard as a whole, or show what a change would do."""

from __future__ import annotations

from pydantic import Field, JsonValue

from duewheel.api.model import Result


class SettingChange(Result):
    """A setting before and after; null: not set. Durations are texts."""

    old: JsonValue
    new: JsonValue


class Reconfigured(Result):
    """The settings that a shard has taken, or would take."""

    dry_run: bool
    changes: dict[str, SettingChange] = Field(description="by setting; none: it has them already")
    since: dict[str, int] = Field(description="topic-partition → first offset under the new ones")
    epochs: int = Field(description="settings epochs after the change")
    dropped: int = Field(description="old epochs that no row needs any more")
    key_rotated: bool = Field(description="copies have a new key")


class Skipped(Result):
    """The records that become dead letters without being parsed."""

    dry_run: bool
    skipped: dict[str, list[int]] = Field(
        description="topic-partition → offsets, those of earlier runs included"
    )


class LostPartition(Result):
    """A timer partition whose messages are lost."""

    kind: str = Field(description="deleted, recreated or cut short")
    was: int = Field(description="next offset before the loss")
    start: int | None = Field(description="next offset to take; null: the partition is deleted")
    unread: int = Field(description="offsets that had to be read again, and cannot be")


class LossAccepted(Result):
    """The accepted losses of timer partitions."""

    dry_run: bool
    accepted: dict[str, LostPartition] = Field(description="by topic-partition")


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
    """What the next start would do with the files, and read again."""

    dry_run: bool = True
    case: str
    keep: str = Field(description="nothing, durable or all of the files")
    start_offsets: dict[str, int] = Field(description="topic-partition → next offset to read")
    rows_to_read: int = Field(description="messages that would be read again")
    done_rows: int = Field(description="of these, delivered ones: they would be dropped")
    pending_rows: int = Field(description="of these, pending ones: they would be placed again")
    took_s: float


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
    earliest_due_ms: int | None
    latest_due_ms: int | None
    targets: dict[str, int] = Field(description="timers by target")
    missing_targets: list[str]


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


class ExaminedTopic(Result):
    """A line about a topic, or about one of its settings."""

    topic: str
    state: str = Field(description="created, found, missing, or what is wrong with a setting")
    setting: str
    wanted: str
    actual: str
    reason: str
    remedy: str = Field(description="name=value for kafka-configs.sh; empty: no setting helps")


class CreatedTopic(Result):
    """A topic that was created, or found."""

    topic: str
    state: str
