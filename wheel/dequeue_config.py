"""The configuration of the dequeue loop: shard, bounds, hot slots, reply topic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from duewheel.checkpoints.config_epochs import BY_OFFSET, PRECISION, ROLL_SPREAD, WINDOW
from duewheel.wheel.slot_overflow import HotSlots
from duewheel.wheel.slots import WheelConfig

# Records of one span of a scan (slot_scan.py); their positions take 8 bytes each while it lasts.
SPAN_RECORDS = 1 << 20

# The broker's coordinator keeps an open transaction as one record: each topic's name once, and four
# bytes for each partition. That record must stay below message.max.bytes (1 MiB unless set), or no
# attempt at the transaction can ever succeed. A thousand of the longest names (249 bytes) are a
# quarter of it; of partitions there are at most as many as rows.
TOPICS_MAX = 1_000

# Ingest reads committed records only: a long transaction with copies would keep it from all records
# behind them. So transactions with many rolled or spread timers are short.
ROLLS_MAX = 2_000

REPLIES_MAX = 1_000  # replies and chases of one transaction


@dataclass(frozen=True, slots=True)
class DequeueConfig:
    """The configuration of the loop.

    Attributes:
        shard, shards: this shard's index, and the number of shards.
        slot_config: the settings that decide a row's slot beside the wheel's geometry
            (schemas/request/parser.py).
        chunk_records: the most rows of a transaction.
        chunk_bytes: the most stored bytes of a transaction (one message may be larger).
        progress_interval_ms: the progress is committed this often even when nothing is due.
        take_over_after_ms: the silence of an owner after which an empty directory takes over, by
            the broker's clock.
        clock_skew_max_ms: while this host's clock is ahead of the brokers' by more, no slot is
            closed.
        hot_slots: the policy for slots with many rows.
        reply_topic: the topic of the replies to cancels; None: no replies.
        lateness_p99_ms: of each timer topic with an objective, by how much 99 of 100 deliveries may
            be late.
        chunk_topics: the most target topics of a transaction.
        chunk_rolls: the most rolled and spread timers of a transaction.
        chunk_replies: the most replies and chases of a transaction.
        span_records: the most records in a span of the scan, unless one slot has more
            (slot_scan.py).
        collect_interval_ms: the time between two garbage collections.
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
    lateness_p99_ms: Mapping[str, int] = field(default_factory=dict)
    chunk_topics: int = TOPICS_MAX
    chunk_rolls: int = ROLLS_MAX
    chunk_replies: int = REPLIES_MAX
    span_records: int = SPAN_RECORDS
    collect_interval_ms: int = 60_000

    def slot_values(self, wheel: WheelConfig) -> dict[str, Any]:
        """Returns all settings that decide a row's slot, in the form of the progress."""
        return {
            PRECISION: wheel.precision_ms,
            WINDOW: wheel.window_ms,
            ROLL_SPREAD: BY_OFFSET,
            **self.slot_config,
        }
