"""The configuration of the dequeue loop: shard, bounds, policies, reply topic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from duewheel.checkpoints.config_epochs import BY_OFFSET, PRECISION, ROLL_SPREAD, WINDOW
from duewheel.checkpoints.ownership import require_fits
from duewheel.checkpoints.progress import Progress
from duewheel.wheel.policies.policy import Policy
from duewheel.wheel.slots import WheelConfig

# Records of one span of a scan (slot_scan.py); their positions take 8 bytes each while it lasts.
SPAN_RECORDS = 1 << 20

# Each partition of a transaction costs 0.2 to 0.5 ms: a writer whose timers name so many holds up
# all others for a second. With a lower bound its rows would hold them up for longer, as each of
# their transactions has nearly all of the partitions. Those of a new topic are parked until their
# brokers have made them (kafka/targets/target_describer.py).
#
# The broker's coordinator keeps an open transaction as one record: each topic's name once, and four
# bytes for each partition. That record must stay below message.max.bytes (1 MiB unless set), or no
# attempt at the transaction can ever succeed. So many topics of the longest names (249 bytes) are
# half of it. Names without a topic do not count: their rows write to no partition of their own.
PARTITIONS_MAX = 2_000

# Python makes their successors one by one, 0.5 ms each at most: a transaction with more would keep
# other timers waiting for more than half a second. Rolled and postponed rows are columns, and need
# no bound.
RECURRING_MAX = 1_000

REPLIES_MAX = 1_000  # replies and chases of one transaction


@dataclass(frozen=True, slots=True)
class DequeueConfig:
    """The configuration of the loop: flat, because each field is one setting or one bound that
    tests lower.
    """

    shard: int  # this shard's index
    shards: int
    # The settings that decide a row's slot beside the wheel's geometry (schemas/request/parser.py)
    slot_config: Mapping[str, Any]
    chunk_records: int = 20_000  # the most rows of a transaction
    chunk_bytes: int = 6 << 20  # the most stored bytes of a transaction; one message may be larger
    # The progress is committed this often even when nothing is due
    progress_interval_ms: int = 2_000
    # The silence of an owner, by the brokers' clock, after which an empty directory takes over
    take_over_after_ms: int = 10_000
    # While this host's clock is ahead of the brokers' by more, no slot is closed
    clock_skew_max_ms: int = 1_000
    policies: Sequence[Policy] = ()  # of delivery, asked in this order
    reply_topic: str | None = None  # of the replies to cancels; None: no replies
    # By how much 99 of 100 deliveries may be late, for each timer topic with an objective
    lateness_p99_ms: Mapping[str, int] = field(default_factory=dict)
    # The most partitions of a transaction, unless one row has more: message, receipt, copy
    chunk_partitions: int = PARTITIONS_MAX
    chunk_recurring: int = RECURRING_MAX  # the most recurring timers of a transaction
    chunk_replies: int = REPLIES_MAX  # the most replies and chases of a transaction
    # The most records in a span of the scan, unless one slot has more (slot_scan.py)
    span_records: int = SPAN_RECORDS
    collect_interval_ms: int = 60_000  # between two garbage collections

    def slot_values(self, wheel: WheelConfig) -> dict[str, Any]:
        """Returns all settings that decide a row's slot, in the form of the progress."""
        return {
            PRECISION: wheel.precision_ms,
            WINDOW: wheel.window_ms,
            ROLL_SPREAD: BY_OFFSET,
            **self.slot_config,
        }

    def changes(self, progress: Progress, wheel: WheelConfig) -> dict[str, tuple[Any, Any]]:
        """Returns old and new value of each such setting that differs from the newest epoch's."""
        return progress.epochs.newest.changes(self.slot_values(wheel))

    def require_fits(self, progress: Progress, wheel: WheelConfig) -> None:
        """Refuses this configuration for a shard with this progress: the one check of that, at each
        start, in ingest, a standby, `recover --dry-run` and `doctor`.

        Raises:
            RecoveryRefused: see checkpoints/ownership.py.
        """
        values = self.slot_values(wheel)
        require_fits(progress, shard=self.shard, shards=self.shards, slot_config=values)
