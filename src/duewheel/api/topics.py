"""Topics: those that are created or examined, and their records."""

from __future__ import annotations

from pydantic import Field

from duewheel.api.messages import WithDecoded
from duewheel.api.model import InstantMs, Result
from duewheel.schemas import topic_scope

TopicScope = topic_scope.TopicScope
ALL_TOPICS = topic_scope.ALL_TOPICS


class ExaminedTopic(Result):
    """A line about a topic, or about one of its settings."""

    topic: str
    state: str = Field(description="created, found, missing, or the fault of a setting")
    setting: str
    wanted: str
    actual: str
    reason: str
    remedy: str = Field(description="name=value for kafka-configs.sh; empty: no setting helps")


class BegunShard(Result):
    """The shard after `init`."""

    shard: int
    began: bool = Field(description="false: it has begun before, and its progress is not changed")
    open_targets: dict[str, list[str]] = Field(description="by timer topic")


class CreatedTopic(Result):
    """A topic that was created, or found."""

    topic: str
    state: str


class ReadRecord(WithDecoded):
    """A committed record. Bytes that are no UTF-8 are escaped in its value and headers."""

    partition: int
    offset: int
    timestamp_ms: InstantMs
    key: str | None = Field(default=None, description="null: it has none")
    key_base64: str | None = Field(default=None, description="in place of key, if that is no UTF-8")
    value: str | None
    value_base64: str | None = Field(default=None, description="also, if value is no UTF-8")
    headers: list[tuple[str, str | None]]
    late_ms: int | None = Field(description="null: it has no TIMER_DUE_MS")
