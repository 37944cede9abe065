"""How far a shard has delivered, as a value. The loop replaces it by one store, so another thread
reads a position that the loop was at, never half of the next one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from duewheel.checkpoints.commit_and_close_pages import Close, Marks
from duewheel.schemas.batches import TopicPartition

_NO_ROWS: Mapping[str, int] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Position:
    """How far a shard has delivered: R, and how much of slot R + 1 is out.

    Attributes:
        close: the newest close page: the closed range (lower, floor], and C of its slots.
        delivered_slot: R, the last slot delivered in full; lower ≤ R ≤ floor.
        half_below: D: if slot R + 1 is half delivered, the offset of each source partition below
            which its rows of that slot are out; else empty.
        half_rows: if slot R + 1 is half delivered, how many of its rows are out, by timer topic;
            empty at a start: only the progress has the numbers then.
    """

    close: Close
    delivered_slot: int
    half_below: Marks = field(default_factory=dict)
    half_rows: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        r, close = self.delivered_slot, self.close
        assert close.lower <= r <= close.floor, f"R outside of its range: {self}"
        assert not self.half_below or r < close.floor, f"an open slot half delivered: {self}"

    @property
    def at_floor(self) -> bool:
        """Whether all closed slots are delivered."""
        return self.delivered_slot == self.close.floor

    def behind_ms(self, now_ms: int, precision_ms: int) -> int:
        """The age of the oldest slot that is not delivered in full, for the heartbeat."""
        return max(0, now_ms - self.delivered_slot * precision_ms)

    def after(
        self,
        delivered_slot: int,
        ends: Mapping[TopicPartition, int] | None,
        half_rows: Mapping[str, int] = _NO_ROWS,
    ) -> Position:
        """Returns the position after the delivery of a chunk.

        Args:
            delivered_slot: the last slot delivered in full.
            ends: if the slot after it is half delivered, the offset after its last row, by source
                partition of this chunk; else None.
            half_rows: how many rows of that slot are out, by timer topic of this chunk.
        """
        assert delivered_slot >= self.delivered_slot, f"R falls to {delivered_slot}: {self}"
        if ends is None:
            return Position(self.close, delivered_slot)
        is_same = self.delivered_slot == delivered_slot
        before, rows = (self.half_below, self.half_rows) if is_same else ({}, {})
        below = {p: max(ends.get(p, 0), before.get(p, 0)) for p in ends.keys() | before.keys()}
        return Position(self.close, delivered_slot, below, {**rows, **half_rows})

    def with_close(self, close: Close) -> Position:
        """Returns this position with another close page."""
        return replace(self, close=close)
