"""The publisher's records have timestamps of this host's clock, kept near the brokers'."""

from __future__ import annotations

from dataclasses import dataclass

from duewheel.clock import Clock

# How far records' timestamps may be from the brokers' clock. Topics may refuse others
# (message.timestamp.before.max.ms, message.timestamp.after.max.ms).
_OFF_MAX_MS = 1_000


@dataclass(frozen=True, slots=True)
class Stamp:
    """The brokers' clock in a transaction, between two readings of this host's boottime."""

    brokers_ms: int
    began_ms: int  # boottime before it
    ended_ms: int  # and after it

    def bounded(self, wanted_ms: int, boottime_ms: int) -> int:
        """A time within `_OFF_MAX_MS` of the brokers' clock, which a slow transaction shows only
        as a span: below its end the time could be seconds early, and records would precede their
        due time.
        """
        least_ms = self.brokers_ms + boottime_ms - self.ended_ms - _OFF_MAX_MS
        most_ms = self.brokers_ms + boottime_ms - self.began_ms + _OFF_MAX_MS
        return min(max(wanted_ms, least_ms), most_ms)


class RecordClock:
    """Learns the brokers' clock from commits."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._stamp: Stamp | None = None  # the newest that a commit has given

    def boottime_ms(self) -> int:
        """The boottime of this host."""
        return self._clock.boottime_ms()

    def note_stamp(self, brokers_ms: int, began_ms: int) -> None:
        """A transaction was committed, which had begun at that boottime."""
        self._stamp = Stamp(brokers_ms, began_ms, self._clock.boottime_ms())

    def now_ms(self, due_ms: int = 0) -> int:
        """The records' timestamp, near the brokers' clock once a commit has shown that: topics then
        accept it however wrong this host's clock is. `due_ms`: the latest due time of the timers;
        a clock that was set back since their slot was closed could be below it.
        """
        now_ms = self._clock.now_ms()
        if self._stamp is None:
            return now_ms
        return self._stamp.bounded(max(now_ms, due_ms), self._clock.boottime_ms())

    def waits_from_ms(self) -> int:
        """When parked rows begin to wait. This host's clock closes their slot, but not while it is
        ahead of the brokers' clock: so the earlier of the two counts.
        """
        return min(self._clock.now_ms(), self.now_ms())
