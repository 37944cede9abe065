"""The fields of the `state` file beside its pages, each written by an aligned 8-byte store.

A kill leaves the old or the new value of a field. The writers:

    ingest            its heartbeat, the rows that the disk has no room for; in a recovery the
                      unlinked hours
    dequeue           its heartbeat, the host's clock, deliveries, their lateness, lag, the time at
                      which Kafka did not answer, the unlinked hours
    commands          pause, promotion (which State clears at a change of `standby`), wanted
                      settings (which a start of dequeue clears)

State (state_file.py) has the fields of starts, stops and recoveries; their numbers are here, too,
so that no two fields have the same one. A changed number would give an existing directory the value
of another field.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import NamedTuple

from duewheel.checkpoints.process_role import Role

FILE_NAME = "state"
LIVE_OFFSET = 4096
LIVE_BYTES = 4096


class FieldIndex(IntEnum):
    """The number of each field; of the first one in a group of several."""

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
    BLOCKED = 30
    STANDBY = 31
    PROMOTION = 32
    GC_CANCELS = 33
    WITHOUT_ROOM = 34
    LINKED = 36
    WANTED_SETTINGS = 37
    DELIVERED = 40
    DEAD_LETTERS = 41
    LETTERS_WAIT = 42
    LAG = 64  # five
    NO_ANSWER = 69
    LATENESS = 72  # LATENESS_MAX


LATENESS_MAX = 24
PROMOTION_MS = 120_000  # after this the request for a promotion expires


class Heartbeat(NamedTuple):
    """The last heartbeat of a process."""

    pid: int  # 0 if it never ran
    at_ms: int  # by the host's clock
    # Dequeue: its lag in ms. Ingest: since when no process plans batches, by the host's clock; 0 if
    # one does.
    detail: int


class Lag(NamedTuple):
    """Ingest's lag in the timer topics (lag_watch.py). Times by this host's clock."""

    polled_ms: int  # time of the poll of Kafka; 0: never
    messages: int  # offsets that can be read and are not in the wheel
    oldest_ms: int  # time of the poll that first showed the oldest of them
    stuck_ms: int  # since when no batch has ended although there were offsets to read
    open: int  # offsets above the start of an open transaction, which cannot be read yet

    def age_ms(self, now_ms: int) -> int:
        """How long the oldest of them has been known; 0 also after the clock was set back."""
        return max(0, now_ms - self.oldest_ms) if self.messages else 0

    def batch_age_ms(self, now_ms: int) -> int:
        """How long no batch has ended although there were offsets to read; 0 as for `age_ms`."""
        return max(0, now_ms - self.stuck_ms) if self.messages else 0


class LiveFields:
    """The fields of one mapped file, `words` of 8 bytes. Not thread-safe; the module's head lists
    the writers.
    """

    def __init__(self, words: memoryview, sync: Callable[[], None]) -> None:
        self._words = words
        self._sync = sync

    def promotion_wanted(self, now_ms: int) -> bool:
        """Returns whether a promotion of this standby is requested and not expired."""
        return 0 < self._words[FieldIndex.PROMOTION] - now_ms <= PROMOTION_MS

    def want_promotion(self, now_ms: int) -> int:
        """Requests a promotion, durably. It expires after PROMOTION_MS, so that a stale `promote`
        cannot depose a live owner. Returns that instant, in epoch ms, which names the request.
        """
        expires_ms = now_ms + PROMOTION_MS
        self._words[FieldIndex.PROMOTION] = expires_ms
        self._sync()
        return expires_ms

    def withdraw_promotion(self, request: int) -> None:
        """Withdraws a request, durably, unless a later call has replaced it."""
        if self._words[FieldIndex.PROMOTION] == request:
            self._words[FieldIndex.PROMOTION] = 0
            self._sync()

    @property
    def wanted_settings(self) -> int:
        """The digest of the settings that a running shard should take
        (src/duewheel/runtime/take_settings.py); 0: none. While it is set, ingest commits no
        batch.
        """
        return self._words[FieldIndex.WANTED_SETTINGS]

    def want_settings(self, digest: int) -> None:
        """Requests that the shard takes these settings; durable."""
        self._words[FieldIndex.WANTED_SETTINGS] = digest
        self._sync()

    @property
    def gc_hour(self) -> int:
        """Hours below this one are unlinked, or will be soon."""
        return self._words[FieldIndex.GC_HOUR]

    def raise_gc_hour(self, hour: int) -> None:
        """Drops the hours below `hour`. Called under engine.lock, before they are unlinked."""
        assert hour >= self.gc_hour, "dropped hours stay dropped"
        self._words[FieldIndex.GC_HOUR] = hour

    def set_gc_hour(self, hour: int) -> None:
        """Sets the first hour that a recovery keeps; it may be lower than before."""
        self._words[FieldIndex.GC_HOUR] = hour

    @property
    def gc_cancels(self) -> int:
        """Segments of the cancel log below this hour are unlinked, or will be soon."""
        return self._words[FieldIndex.GC_CANCELS]

    def set_gc_cancels(self, hour: int) -> None:
        """Drops the segments below `hour`, durably. Called under engine.lock, before they are
        unlinked: otherwise a checkpoint that names them would seem damaged.
        """
        self._words[FieldIndex.GC_CANCELS] = hour
        self._sync()

    def paused(self, role: Role) -> bool:
        """Returns whether the process is paused: ingest takes, or dequeue delivers, nothing."""
        return bool(self._words[FieldIndex.PAUSED + role])

    def pause(self, role: Role, *, on: bool) -> None:
        """Pauses or resumes the process, durably, whether it runs or not."""
        self._words[FieldIndex.PAUSED + role] = int(on)
        self._sync()

    def heartbeat(self, role: Role) -> Heartbeat:
        at = FieldIndex.HEARTBEATS + 8 * role
        return Heartbeat(self._words[at], self._words[at + 1], self._words[at + 2])

    def beat(self, role: Role, pid: int, at_ms: int, detail: int) -> None:
        at = FieldIndex.HEARTBEATS + 8 * role
        self._words[at], self._words[at + 1], self._words[at + 2] = pid, at_ms, detail

    @property
    def host_clock(self) -> tuple[int, bool]:
        """Dequeue's measurement of the host's clock: how many ms it is ahead of the brokers', and
        whether that stops closing.
        """
        return self._words[FieldIndex.AHEAD], bool(self._words[FieldIndex.BLOCKED])

    def note_host_clock(self, ahead_ms: int, *, blocks_closing: bool) -> None:
        """Records the measurement. Called by dequeue."""
        self._words[FieldIndex.AHEAD] = ahead_ms
        self._words[FieldIndex.BLOCKED] = int(blocks_closing)

    @property
    def rows_without_room(self) -> int:
        """The number of messages that ingest does not take, because the disk lacks room."""
        return self._words[FieldIndex.WITHOUT_ROOM]

    def note_rows_without_room(self, rows: int) -> None:
        """Records the number. Called by ingest."""
        self._words[FieldIndex.WITHOUT_ROOM] = rows

    @property
    def deliveries(self) -> tuple[int, int, bool]:
        """Timers delivered and dead letters written since dequeue's start; and whether dead letters
        wait, because their topic takes no writes.
        """
        return (
            self._words[FieldIndex.DELIVERED],
            self._words[FieldIndex.DEAD_LETTERS],
            bool(self._words[FieldIndex.LETTERS_WAIT]),
        )

    def note_deliveries(self, delivered: int, dead_letters: int, *, wait: bool) -> None:
        """Records the counts. Called by dequeue."""
        self._words[FieldIndex.DELIVERED] = delivered
        self._words[FieldIndex.DEAD_LETTERS] = dead_letters
        self._words[FieldIndex.LETTERS_WAIT] = int(wait)

    def lateness(self, bounds: int) -> list[int]:
        """Deliveries since dequeue's start, between neighbours of so many bounds of lateness, and
        beyond the last.
        """
        return self._words[FieldIndex.LATENESS : FieldIndex.LATENESS + bounds + 1].tolist()

    def note_lateness(self, counts: Sequence[int]) -> None:
        """Records the counts. Called by dequeue."""
        assert len(counts) <= LATENESS_MAX, "the next field is another one"
        for number, count in enumerate(counts):
            self._words[FieldIndex.LATENESS + number] = count

    @property
    def lag(self) -> Lag:
        """Ingest's lag by dequeue's last poll."""
        return Lag(*self._words[FieldIndex.LAG : FieldIndex.LAG + 5])

    @property
    def no_answer_ms(self) -> int:
        """When Kafka last failed to answer dequeue's poll, host clock; 0: never."""
        return self._words[FieldIndex.NO_ANSWER]

    def note_no_answer(self, now_ms: int) -> None:
        """Records a poll that has failed. Called by dequeue."""
        self._words[FieldIndex.NO_ANSWER] = now_ms

    def note_lag(self, lag: Lag) -> None:
        """Records a poll. Called by dequeue."""
        values = (lag.polled_ms, lag.messages, lag.oldest_ms, lag.stuck_ms, lag.open)
        # The time comes last: otherwise a reader could see the new time with old counts.
        for field in (1, 2, 3, 4, 0):
            self._words[FieldIndex.LAG + field] = values[field]
