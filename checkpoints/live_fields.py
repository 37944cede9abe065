"""The fields of the `state` file that change beside its pages, each an aligned 8-byte store.

A kill leaves the old or the new value of a field. Who writes what:

    ingest            its signs of life, the rows that the disk has no room for
    dequeue           its signs of life, the host's clock, deliveries, lag, what is given up
    commands          pause, promotion

Fields about starts, stops and recoveries are State's (state_file.py); their numbers are here, too,
so that no two fields share a place. None of the numbers may change.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

from duewheel.checkpoints.role import Role


class FieldIndex(IntEnum):
    """Number of each field, of the first one where several follow each other."""

    STARTS = 0
    CLEAN = 1
    DEQUEUE_STARTS = 2
    GC_HOUR = 3
    BOOT = 4  # two
    PAUSED = 6  # one of each role
    HEARTBEATS = 8  # eight of each role, three of them used
    DAMAGE = 24
    GENERATION = 25
    RECOVERED = 26
    FOLLOWED = 27
    CLAIMED = 28
    AHEAD = 29
    HELD = 30
    STANDBY = 31
    PROMOTION = 32
    GC_CANCELS = 33
    WITHOUT_ROOM = 34
    LINKED = 36
    DELIVERED = 40
    DEAD_LETTERS = 41
    LETTERS_WAIT = 42
    LAG = 64  # five


PROMOTION_MS = 120_000  # for how long a promotion is wanted, once it has been


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A process's last sign of life.

    Attributes:
        pid: its process id, 0 if it never ran.
        at_ms: when it was given, host clock.
        detail: one number of the process's own (dequeue: behind in ms).
    """

    pid: int
    at_ms: int
    detail: int


@dataclass(frozen=True, slots=True)
class Lag:
    """How far ingest is behind the timer topics: see lag_watch.py. Times by this host's clock.

    Attributes:
        polled_ms: when Kafka said so; 0: never.
        messages: offsets that can be read and are not in the wheel.
        oldest_ms: since when the oldest of them has been known to be there.
        stuck_ms: since when no batch has come to its end with something to read.
        open: offsets behind an open transaction.
    """

    polled_ms: int
    messages: int
    oldest_ms: int
    stuck_ms: int
    open: int


class LiveFields:
    """Not thread-safe; see the module's head for who writes what."""

    def __init__(self, words: memoryview, sync: Callable[[], None]) -> None:
        """
        Args:
            words: the fields of the mapped file, 8-byte items.
            sync: makes them durable.
        """
        self._words = words
        self._sync = sync

    def promotion_wanted(self, now_ms: int) -> bool:
        """Whether a promotion of this standby is requested and not expired."""
        return 0 < self._words[FieldIndex.PROMOTION] - now_ms <= PROMOTION_MS

    def want_promotion(self, now_ms: int) -> None:
        """Request a promotion for the next PROMOTION_MS; durable.

        The request expires, so that a stale `promote` cannot depose a live owner.
        """
        self._words[FieldIndex.PROMOTION] = now_ms + PROMOTION_MS
        self._sync()

    def withdraw_promotion(self) -> None:
        """Withdraw the request; durable."""
        self._words[FieldIndex.PROMOTION] = 0
        self._sync()

    @property
    def gc_hour(self) -> int:
        """Hours below this one have no files any more, or are about to lose them."""
        return self._words[FieldIndex.GC_HOUR]

    def raise_gc_hour(self, hour: int) -> None:
        """Drop the hours below `hour`. Called under engine.lock, before they are unlinked."""
        assert hour >= self.gc_hour, "dropped hours stay dropped"
        self._words[FieldIndex.GC_HOUR] = hour

    def set_gc_hour(self, hour: int) -> None:
        """The first hour that a recovery keeps; may be lower than before."""
        self._words[FieldIndex.GC_HOUR] = hour

    @property
    def gc_cancels(self) -> int:
        """Segments of the cancel log below this hour are unlinked, or about to be."""
        return self._words[FieldIndex.GC_CANCELS]

    def set_gc_cancels(self, hour: int) -> None:
        """Drop the segments below `hour`. Called under engine.lock, before they are unlinked;
        durable: a checkpoint that names them must not look damaged without them.
        """
        self._words[FieldIndex.GC_CANCELS] = hour
        self._sync()

    def paused(self, role: Role) -> bool:
        """Whether the process is to take, or deliver, nothing."""
        return bool(self._words[FieldIndex.PAUSED + role])

    def pause(self, role: Role, *, on: bool) -> None:
        """Pause the process, or let it go on; durably, whether it runs or not."""
        self._words[FieldIndex.PAUSED + role] = int(on)
        self._sync()

    def heartbeat(self, role: Role) -> Heartbeat:
        """Last sign of life of the process."""
        at = FieldIndex.HEARTBEATS + 8 * role
        return Heartbeat(self._words[at], self._words[at + 1], self._words[at + 2])

    def beat(self, role: Role, pid: int, at_ms: int, detail: int) -> None:
        """Give a sign of life."""
        at = FieldIndex.HEARTBEATS + 8 * role
        self._words[at], self._words[at + 1], self._words[at + 2] = pid, at_ms, detail

    @property
    def host_clock(self) -> tuple[int, bool]:
        """Dequeue's view of the host's clock: by how many ms it is ahead of the brokers', and
        whether closing is held for that.
        """
        return self._words[FieldIndex.AHEAD], bool(self._words[FieldIndex.HELD])

    def note_host_clock(self, ahead_ms: int, *, held: bool) -> None:
        """Called by dequeue."""
        self._words[FieldIndex.AHEAD], self._words[FieldIndex.HELD] = ahead_ms, int(held)

    @property
    def rows_without_room(self) -> int:
        """How many messages ingest holds back, because the disk would be too full with them."""
        return self._words[FieldIndex.WITHOUT_ROOM]

    def note_rows_without_room(self, rows: int) -> None:
        """Called by ingest."""
        self._words[FieldIndex.WITHOUT_ROOM] = rows

    @property
    def deliveries(self) -> tuple[int, int, bool]:
        """Since dequeue has started: timers delivered, dead letters written; and whether dead
        letters wait because their topic takes nothing.
        """
        return (
            self._words[FieldIndex.DELIVERED],
            self._words[FieldIndex.DEAD_LETTERS],
            bool(self._words[FieldIndex.LETTERS_WAIT]),
        )

    def note_deliveries(self, delivered: int, dead_letters: int, *, wait: bool) -> None:
        """Called by dequeue."""
        self._words[FieldIndex.DELIVERED] = delivered
        self._words[FieldIndex.DEAD_LETTERS] = dead_letters
        self._words[FieldIndex.LETTERS_WAIT] = int(wait)

    @property
    def lag(self) -> Lag:
        """How far ingest is behind the timer topics, as dequeue saw it last."""
        return Lag(*self._words[FieldIndex.LAG : FieldIndex.LAG + 5])

    def note_lag(self, lag: Lag) -> None:
        """Called by dequeue. The time of the poll is stored last: a reader sees no new time with
        old counts.
        """
        values = (lag.polled_ms, lag.messages, lag.oldest_ms, lag.stuck_ms, lag.open)
        for field in (1, 2, 3, 4, 0):
            self._words[FieldIndex.LAG + field] = values[field]
