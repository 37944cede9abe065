"""The shards of an app side by side, each as its own `duewheel serve` describes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from duewheel.api.conditions import Condition
from duewheel.api.model import Result


class FleetShard(Result):
    """A shard, by facts of its server's /v1/status."""

    shard: int
    role: Literal["owner", "standby"]
    ready: bool
    pending: int | None
    delivered: int
    lag: int | None = Field(description="messages in the timer topics that are not taken yet")
    behind_ms: int | None = Field(description="age of the oldest slot not delivered in full")
    conditions: list[Condition]

    @classmethod
    def of_status(cls, status: Mapping[str, Any]) -> FleetShard:
        """Takes these facts out of the JSON of a ShardView.

        Raises:
            LookupError, TypeError, ValueError: it is none.
        """
        own = {name: status[name] for name in ("shard", "role", "ready", "pending", "delivered")}
        ingest, dequeue = status["ingest"], status["dequeue"]
        own |= {"lag": ingest["lag"], "behind_ms": dequeue["behind_ms"]}
        return cls.model_validate(own | {"conditions": status["conditions"]})


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
