"""Pending timers: lists, single ones with their messages, counts, lateness."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from duewheel.api.fact import Gauge, fact
from duewheel.api.messages import KEY_BYTES, WithMessage
from duewheel.api.model import InstantMs, Result


class TimerSummary(Result):
    """A pending timer, without its message."""

    id: str
    source: str = Field(description="topic-partition@offset of the record that requested it")
    due_ms: InstantMs | None = Field(description="null for a dead letter, which leaves at once")
    leaves_ms: InstantMs = Field(description="when it leaves the wheel: to its topic, or to roll")
    topic: str
    level: int | None = None
    key: str | None = None
    key_base64: str | None = Field(default=None, description="a key that is no UTF-8")
    key_bytes: int | None = Field(default=None, description=KEY_BYTES)
    value_bytes: int | None
    rolled: bool = Field(description="it is written to its timer topic again when it leaves")
    cancelled: bool = Field(description="it is dropped when it leaves")
    paused: bool = Field(description="its schedule is paused: `due_ms` is no instant")
    page: str = Field(description="`page` of the list after it")
    handle: str | None = Field(description="names it in other requests; null for a dead letter")


class OfShard(Result):
    """A result from the files of one shard: other shards have further timers."""

    shard: int = Field(description="the shard that this is of")
    shards: int = Field(description="the number of shards (shard.count)")
    recovering: bool = Field(
        description="the shard still reads its timer topics again: pending timers may be missing"
    )


class TimerList(OfShard):
    """A page of pending timers, in the order in which they leave."""

    timers: list[TimerSummary]
    next: str | None = Field(
        description="`page` of the next request; null: this is the last page. A search by key may "
        "return fewer timers than `limit`, or none, before the last page."
    )


class _PlacedTimer(TimerSummary):
    """A pending timer with its partition, which is shown before its message."""

    partition: int | None = Field(description="of the target; null: chosen at delivery")


class TimerWithMessage(WithMessage, _PlacedTimer):
    """A pending timer with its message."""


class HistogramRange(Result):
    """Timers by due time: `counts[i]` from from_ms + i × width_ms on."""

    name: str
    from_ms: InstantMs
    width_ms: int
    counts: list[int]


class PendingHistogram(OfShard):
    """Everything that is pending, by due time."""

    now_ms: InstantMs
    precision_ms: int = Field(description="the length of a slot: no bucket can be finer")
    pending: int
    overdue: int = Field(description="in slots that are past")
    rolls: int = Field(description="pending timers that roll before they are due")
    estimated: bool = Field(description="their due times are estimated from a sample")
    ranges: list[HistogramRange]


class Rolls(Result):
    """Pending timers that leave to be rolled."""

    pending: int = fact(
        "pending timers that will roll before they are due",
        Gauge("dequeue", "pending_rolls"),
    )
    next_hour: int = fact("pending rolls within an hour", Gauge("dequeue", "rolls_next_hour"))
    per_second: float = Field(description="on average within the next hour")
    per_second_max: float = fact(
        "pending rolls in the busiest second of that hour",
        Gauge("dequeue", "rolls_per_second_max"),
    )


class PendingStats(Result):
    """Counts of pending timers, cancelled ones included."""

    role: Literal["owner", "standby"]
    pending: int
    by_topic: dict[str, int] = fact(
        "pending timers by target: `topic` is the target",
        Gauge("dequeue", "pending_by_topic", "topic"),
    )
    by_level: dict[int, int] = fact(
        "pending timers with a delay level, by level",
        Gauge("dequeue", "pending_by_level", "level"),
    )
    within_s: dict[str, float] = fact(
        "pending timers that are delivered, or roll, within these seconds",
        Gauge("dequeue", "pending_due_within", "seconds"),
    )
    oldest_ms: InstantMs | None = Field(description="end of the first slot with timers")
    slot_max: int = fact(
        "timers in the largest slot, also cancelled ones and those that roll. At most so many "
        "leave at once; `hot_slot` or a rate may hold some back",
        Gauge("dequeue", "slot_max_size"),
    )
    beyond_ring: int = fact(
        "timers due so far ahead that the wheel (its ring of slots) does not reach them yet",
        Gauge("dequeue", "pending_beyond_ring"),
    )
    rolls: Rolls


class StatsOfShard(OfShard, PendingStats):
    """Counts of the pending timers of a shard, cancelled ones included."""


class LevelCount(Result):
    """The pending timers of a delay level."""

    level: int
    delay: str | None = Field(description="by the present settings; null: they have no such level")
    pending: int
    delivered_ms: InstantMs | None = Field(
        description="all due by then are out; null before a start"
    )
    next_due_ms: InstantMs | None
    next: str | None = Field(description="source of its next timer")


class Lateness(Result):
    """Deliveries by lateness, since dequeue began."""

    available: bool
    reason: str | None = Field(description="why it is not available")
    bounds_s: list[float] = Field(description="rising")
    counts: list[int] = Field(description="deliveries up to each bound, then all")
