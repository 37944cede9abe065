"""Bounds and identity of the dequeue loop."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from duewheel.checkpoints.config_epochs import PRECISION, WINDOW
from duewheel.wheel.slot_overflow import HotSlots
from duewheel.wheel.slots import WheelConfig


@dataclass(frozen=True, slots=True)
class DequeueConfig:
    """Bounds and identity of the loop.

    Attributes:
        shard, shards: this shard's index and how many there are.
        slot_config: what decides a row's slot beside the wheel's geometry
        (schemas/request/contract.py).
        chunk_records: rows of one transaction, at most.
        chunk_bytes: stored bytes of one transaction, at most (one message may be larger).
        progress_interval_ms: the progress is committed this often even when nothing is due.
        take_over_after_ms: an empty directory takes over from an owner that has been silent for
            longer, by the broker's clock.
        clock_skew_max_ms: nothing is closed while this host's clock is ahead of the brokers' by
            more.
        hot_slots: what is done about slots with many rows.
        reply_topic: where answers to cancels go; None: there are none.
    """

    shard: int
    shards: int
    slot_config: Mapping[str, Any]
    chunk_records: int = 20_000
    chunk_bytes: int = 6 << 20
    progress_interval_ms: int = 2_000
    take_over_after_ms: int = 10_000
    clock_skew_max_ms: int = 1_000
    hot_slots: HotSlots = field(default_factory=HotSlots)
    reply_topic: str | None = None

    def slot_values(self, wheel: WheelConfig) -> dict[str, Any]:
        """Everything that decides a row's slot, as the progress keeps it."""
        return {PRECISION: wheel.precision_ms, WINDOW: wheel.window_ms, **self.slot_config}
