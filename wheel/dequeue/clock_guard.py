"""Whether this host's clock may close slots: not while it is ahead of the brokers' by too much.

The brokers' clock is read at every commit: they stamp the progress record while its transaction
runs, between two readings of the host's boottime. Boottime goes on by itself, also while the host
is suspended, and cannot be set; so one offset gives the brokers' clock at any later moment:

    stamp − boottime when the transaction had ended ≤ offset ≤ stamp − boottime when it began

The first reading's lower end counts: taking the brokers' clock for earlier than it is delays, for
later would deliver early. Each further reading moves the offset only as far as it must to lie
between that reading's ends. So the quickest transaction decides, one that takes seconds does no
harm, and a broker's clock that is set is followed.

    host ahead by more than the bound       no slot is closed
    not read yet, or a minute ago           the same: read first. Only a suspend or a standstill
                                            takes that long; what wakes the clocks up may be wrong
    host behind                             slots close late, when its clock says so

Where host and brokers are ahead together nothing shows it. Slots are closed before their time then,
and stay closed: once the clocks are right, what is still to come and due by the last closed slot
leaves only behind that, as late as the clocks were ahead. All that can be done is to say so.

A step of the host's clock shows at once, since boottime does not step with it. Not thread-safe.
"""

from __future__ import annotations

import structlog

from duewheel.clock import Clock

log = structlog.get_logger(__name__)

_READING_VALID_MS = 60_000
_WARN_EVERY_MS = 60_000
_AHEAD = "this host's clock is ahead of the brokers': no slot is closed until it is right"
_UNKNOWN = "the brokers' clock is not known (LogAppendTime of the state topic): no slot is closed"
_BEHIND = "this host's clock is behind the brokers': timers leave late"
_FLOOR_AHEAD = "slots are closed that lie ahead: the clocks were. What is due before leaves late"
_AGREES = "this host's clock agrees with the brokers' again"
_FLOOR_REACHED = "no closed slot lies ahead any more"


class ClockGuard:
    """Decides whether slots may be closed, from the brokers' clock as one loop reads it.

    Attributes:
        held: whether closing was not allowed when that was last asked.
    """

    def __init__(self, clock: Clock, ahead_max_ms: int) -> None:
        self.held = False
        self._clock = clock
        self._ahead_max_ms = ahead_max_ms
        self._offset_ms: int | None = None  # of the brokers' clock, from boottime
        self._read_at_ms = 0
        self._floor_ahead_ms = 0
        self._warned = ("", 0)

    def read(self, broker_ms: int | None, began_ms: int) -> None:
        """A transaction has just ended.

        Args:
            broker_ms: the brokers' time when they took its progress record; None if they did not
                say.
            began_ms: boottime before it.
        """
        if broker_ms is None:
            return
        self._read_at_ms = self._clock.boottime_ms()
        low_ms, high_ms = broker_ms - self._read_at_ms, broker_ms - began_ms
        offset_ms = low_ms if self._offset_ms is None else self._offset_ms
        self._offset_ms = min(max(offset_ms, low_ms), high_ms)

    @property
    def must_read(self) -> bool:
        """Whether the brokers' clock has to be read before anything may be closed."""
        age_ms = self._clock.boottime_ms() - self._read_at_ms
        return self._offset_ms is None or age_ms > _READING_VALID_MS

    def ahead_ms(self) -> int:
        """By how much this host's clock is ahead of the brokers'; 0 while that is not known."""
        return self._now_and_lead()[1]

    def closing_ms(self, floor_ms: int) -> int | None:
        """The time up to which slots may be closed; None while closing is held.

        Args:
            floor_ms: end of the last closed slot.
        """
        now_ms, ahead_ms = self._now_and_lead()
        self._floor_ahead_ms = max(0, floor_ms - now_ms)
        too_far = ahead_ms > self._ahead_max_ms
        self.held = too_far or self.must_read
        late = _FLOOR_AHEAD if self._floor_ahead_ms > self._ahead_max_ms else ""
        late = _BEHIND if ahead_ms < -self._ahead_max_ms else late
        self._warn(_AHEAD if too_far else _UNKNOWN if self.held else late)
        return None if self.held else now_ms

    def _now_and_lead(self) -> tuple[int, int]:
        """Now, and by how much that is ahead."""
        boottime_ms = self._clock.boottime_ms()  # first: a pause in between then counts as ahead
        now_ms = self._clock.now_ms()
        if self._offset_ms is None:
            return now_ms, 0
        return now_ms, now_ms - boottime_ms - self._offset_ms

    def _warn(self, text: str) -> None:
        """Warn, once and then every minute, until all is well again."""
        last, at_ms = self._warned
        boottime_ms = self._clock.boottime_ms()
        if text == last and (not text or boottime_ms - at_ms < _WARN_EVERY_MS):
            return
        if text:
            log.warning(
                text,
                ahead_ms=self.ahead_ms(),
                bound_ms=self._ahead_max_ms,
                floor_ahead_ms=self._floor_ahead_ms,
            )
        else:
            over = _FLOOR_REACHED if last == _FLOOR_AHEAD else _AGREES
            log.warning(over)
        self._warned = (text, boottime_ms)
