"""The arithmetic of slots. No other module has the due-time rule.

Slot s has the due times in ((s − 1)·p, s·p], s = ceil(due / p), and may be delivered once
now ≥ s·p: never early, late by less than p. For p = 50 ms:

    due   0 → slot 0    due 1 … 50 → slot 1    due 51 … 100 → slot 2    slot 2 closes at 100
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, overload

from duewheel.errors import ConfigError

if TYPE_CHECKING:  # the supervisor, which reads the settings, needs no numpy
    from duewheel.schemas.arrays import Int64

EARLIEST_SLOT = -(2**62)  # a rejected row requests it: its dead letter is written without delay
LATEST_SLOT = 2**62  # above every slot that a record can have
HOUR_MS = 3_600_000
DELAY_MS_MAX = 2**30  # |delay| of a record stays below, so that it fits into 4 bytes
TimelineKind = Literal["wheel", "rocksdb"]  # of wheel/storage/timelines/kinds.py
_RING_STEPS = 32  # the reach moves by 1/32 of the ring at a time


@dataclass(frozen=True, slots=True)
class WheelConfig:
    """Geometry of the wheel.

    Raises:
        ConfigError: the numbers contradict each other.
    """

    precision_ms: int = 50  # length of a slot
    # Half of the ring's entries; the other half is for past slots while dequeue lags
    slots: int = 2_097_152
    # The roll window of new settings epochs; each row has that of its own epoch
    # (checkpoints/config_epochs.py).
    window_ms: int = 24 * HOUR_MS
    # The most by which a record's timestamp may differ from this host's clock
    margin_ms: int = HOUR_MS
    timeline: TimelineKind = "wheel"

    def __post_init__(self) -> None:
        span_ms = self.slots * self.precision_ms
        if min(self.precision_ms, self.slots, self.window_ms) < 1 or self.margin_ms < 0:
            raise ConfigError("precision, slots and roll window must be positive")
        if self.window_ms + self.margin_ms > span_ms:
            raise ConfigError(
                f"roll window {self.window_ms} ms + margin {self.margin_ms} ms exceed slots × "
                f"precision = {span_ms} ms: lower the window or raise slots"
            )
        if span_ms >= DELAY_MS_MAX:
            raise ConfigError(
                f"slots × precision = {span_ms} ms must stay below 2**30 ms = {DELAY_MS_MAX} ms, "
                "the reach of a log record: lower slots or precision"
            )

    @property
    def ring(self) -> int:
        return 2 * self.slots

    def reach(self, lower: int) -> int:
        """Computes the last slot that may have an entry once every slot up to `lower` is delivered.

        It moves in large steps, because each step reads the logs of its hours (far_slots.py).
        """
        step = max(1, self.ring // _RING_STEPS)
        return (lower + self.ring) // step * step - 1


@overload
def slot_of(due_ms: int, precision_ms: int) -> int: ...


@overload
def slot_of(due_ms: Int64, precision_ms: int) -> Int64: ...


def slot_of(due_ms: int | Int64, precision_ms: int) -> int | Int64:
    """Computes the slot of a due time: ceil(due / precision)."""
    return -(-due_ms // precision_ms)


@overload
def closable_slot(now_ms: int, precision_ms: int) -> int: ...


@overload
def closable_slot(now_ms: Int64, precision_ms: int) -> Int64: ...


def closable_slot(now_ms: int | Int64, precision_ms: int) -> int | Int64:
    """Computes the last slot that may be closed at `now_ms`: floor(now / precision)."""
    return now_ms // precision_ms


@overload
def hour_of(slot: int, precision_ms: int) -> int: ...


@overload
def hour_of(slot: Int64, precision_ms: int) -> Int64: ...


def hour_of(slot: int | Int64, precision_ms: int) -> int | Int64:
    """Computes the hour (since the epoch) whose files have a slot."""
    return slot * precision_ms // HOUR_MS


def last_slot_of_hour(hour: int, precision_ms: int) -> int:
    """Computes the greatest slot in the files of `hour`."""
    return ((hour + 1) * HOUR_MS - 1) // precision_ms


def first_slot_of_hour(hour: int, precision_ms: int) -> int:
    """Computes the least slot in the files of `hour`."""
    return last_slot_of_hour(hour - 1, precision_ms) + 1
