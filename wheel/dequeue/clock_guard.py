"""Guards the closing of slots: none is closed while this host's clock is too far ahead of Kafka's.

The guard reads the brokers' clock at every commit: a broker stamps the progress record while its
transaction runs, between two readings of the host's boottime. Boottime runs continuously, also
while the host is suspended, and cannot be set. So one offset gives the brokers' clock at any later
moment:

    stamp − boottime at the end of the transaction ≤ offset ≤ stamp − boottime at its begin

The guard starts with the lower bound of the first reading: an estimate below the brokers' clock
delays timers, one above it would deliver them early. A later reading moves the offset only as far
as necessary to be within its bounds. So the quickest transaction decides, a slow one does no harm,
and the guard adopts a change of the brokers' clock.

    host ahead by more than the bound       no slot is closed
    not read yet, or a minute ago           no slot is closed before the next reading. Only a
                                            suspend or a stall takes that long; the clock may be
                                            wrong after it
    host's clock slow                       slots close late, by the host's clock

If host and brokers are ahead together, no reading shows it: slots are closed before their time, and
stay closed. Once the clocks are right, a new timer that is due by the last closed slot is
delivered after that slot, as late as the clocks were ahead. The guard can only warn about it.

A step of the host's clock shows at once, because boottime does not step with it. Not thread-safe.
"""

from __future__ import annotations

import structlog

from duewheel.clock import Clock, Interval

log = structlog.get_logger(__name__)

_READING_VALID_MS = 60_000
_WARN_EVERY_MS = 60_000
# A reading takes a commit, and each start waits for its first one: a shorter wait is no news.
_UNREAD_MS = 5_000
_AHEAD = "this host's clock is ahead of the brokers': no slot is closed until it is right"
_UNKNOWN = "the brokers' clock is not known (LogAppendTime of the state topic): no slot is closed"
_BEHIND = "this host's clock is behind the brokers': timers leave late"
_FLOOR_AHEAD = "closed slots lie in the future: timers that are due before their end leave late"
_AGREES = "this host's clock agrees with the brokers' again"
_FLOOR_REACHED = "no closed slot lies in the future any more"


class ClockGuard:
    """Decides whether slots may be closed, from one loop's readings of the brokers' clock.

    Attributes:
        blocks_closing: the result of the last `check`: whether no slot may be closed.
    """

    def __init__(self, clock: Clock, ahead_max_ms: int) -> None:
        self.blocks_closing = False
        self._clock = clock
        self._ahead_max_ms = ahead_max_ms
        self._offset_ms: int | None = None  # of the brokers' clock, from boottime
        self._read_at_ms = 0
        self._floor_ahead_ms = 0
        self._unread_since_ms: int | None = None  # boottime; None: slots do not wait for a reading
        self._warned = ""
        self._warning = Interval(clock, _WARN_EVERY_MS)

    def read(self, broker_ms: int | None, began_ms: int) -> None:
        """Adds a reading, right after a transaction.

        Args:
            broker_ms: the brokers' timestamp of its progress record; None without one.
            began_ms: boottime before the transaction.
        """
        if broker_ms is None:
            return
        self._read_at_ms = self._clock.boottime_ms()
        low_ms, high_ms = broker_ms - self._read_at_ms, broker_ms - began_ms
        offset_ms = low_ms if self._offset_ms is None else self._offset_ms
        self._offset_ms = min(max(offset_ms, low_ms), high_ms)

    @property
    def must_read(self) -> bool:
        """Whether no slot may be closed before another reading."""
        age_ms = self._clock.boottime_ms() - self._read_at_ms
        return self._offset_ms is None or age_ms > _READING_VALID_MS

    def ahead_ms(self) -> int:
        """Returns by how much this host's clock is ahead; 0 before the first reading."""
        return self._now_and_lead()[1]

    def check(self, floor_ms: int) -> int | None:
        """Compares the clocks, and warns if they differ, or if a reading does not come.

        Returns:
            The end of the last slot that may be closed; None if none may be.
        """
        now_ms, ahead_ms = self._now_and_lead()
        self._floor_ahead_ms = max(0, floor_ms - now_ms)
        too_far = ahead_ms > self._ahead_max_ms
        self.blocks_closing = too_far or self.must_read
        late = _FLOOR_AHEAD if self._floor_ahead_ms > self._ahead_max_ms else ""
        late = _BEHIND if ahead_ms < -self._ahead_max_ms else late
        self._warn(_AHEAD if too_far else _UNKNOWN if self.blocks_closing else late)
        return None if self.blocks_closing else now_ms

    def _now_and_lead(self) -> tuple[int, int]:
        """Returns the host's time, and how far it is ahead."""
        boottime_ms = self._clock.boottime_ms()  # first: a pause before `now` then counts as ahead
        now_ms = self._clock.now_ms()
        if self._offset_ms is None:
            return now_ms, 0
        return now_ms, now_ms - boottime_ms - self._offset_ms

    def _warn(self, text: str) -> None:
        """Warns once and then every minute, until the cause is gone."""
        if self._awaits_reading(text == _UNKNOWN):
            return
        last, self._warned = self._warned, text
        if not self._warning.is_over(text):
            return
        if text:
            log.warning(
                text,
                ahead_ms=self.ahead_ms(),
                bound_ms=self._ahead_max_ms,
                floor_ahead_ms=self._floor_ahead_ms,
            )
        elif last:
            log.warning(_FLOOR_REACHED if last == _FLOOR_AHEAD else _AGREES)

    def _awaits_reading(self, unknown: bool) -> bool:
        """Returns whether the brokers' clock may be known in a moment."""
        if not unknown:
            self._unread_since_ms = None
            return False
        now_ms = self._clock.boottime_ms()
        if self._unread_since_ms is None:
            self._unread_since_ms = now_ms
        return now_ms - self._unread_since_ms < _UNREAD_MS
