"""Changes of a shard's settings, skipped records and accepted losses."""

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
