"""Results of `reshard`."""

from __future__ import annotations

from pydantic import Field

from duewheel.api.model import InstantMs, Result


class NewShard(Result):
    """A shard after a reassignment."""

    shard: int
    partitions: list[str]
    delivered_until_ms: InstantMs
    apart_ms: int = Field(description="between the most and the least advanced partition")


class Resharded(Result):
    """A reassignment of partitions to another number of shards."""

    dry_run: bool
    from_shards: int
    to_shards: int
    moved: int = Field(description="partitions that change their shard")
    sealed: list[int] = Field(
        default=[],
        description="shards that an unfinished run has left sealed",
    )
    shards: list[NewShard]
    took_s: float = 0.0
