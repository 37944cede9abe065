"""The shards of an app side by side, each as its own `duewheel serve` describes it."""

from __future__ import annotations

from typing import Literal

from pydantic import AliasPath, Field

from duewheel.api.conditions import Condition
from duewheel.api.model import Result
from duewheel.api.timers import TimerSummary


class FleetShard(Result):
    """A shard, by facts of its server's /v1/status; validation takes them out of that JSON."""

    shard: int
    role: Literal["owner", "standby"]
    ready: bool
    pending: int | None
    delivered: int
    lag: int | None = Field(
        validation_alias=AliasPath("ingest", "lag"),
        description="messages in the timer topics that are not taken yet",
    )
    behind_ms: int | None = Field(
        validation_alias=AliasPath("dequeue", "behind_ms"),
        description="age of the oldest slot not delivered in full",
    )
    conditions: list[Condition]


class FleetMember(Result):
    """A server, and its shard."""

    url: str | None = Field(description="of serve.shards; null: this server")
    status: FleetShard | None = Field(description="null: it has not answered")
    error: str | None = Field(description="why it has not")


class Fleet(Result):
    """The shards of an app."""

    shards: int = Field(description="shard.count")
    members: list[FleetMember]
    absent: list[int] = Field(description="shards whose owner has not answered")


class TimerOfShard(TimerSummary):
    """A pending timer, and its shard."""

    shard: int


class AbsentShard(Result):
    """A shard whose owner has not answered."""

    shard: int
    reason: str


class FleetTimers(Result):
    """Pending timers of all shards that have answered, in the order in which they leave."""

    shards: int = Field(description="shard.count")
    timers: list[TimerOfShard]
    more: bool = Field(description="the search has not seen all: others may match")
    absent: list[AbsentShard] = Field(description="shards whose timers are not searched")
    recovering: list[int] = Field(
        description="shards that still read their timer topics again: timers of theirs may be "
        "missing"
    )
