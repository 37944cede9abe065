"""The recurrence of a timer: its instants, and which of them its next copy is due at.

Instants are computed once, when a row leaves the wheel (wheel/dequeue/successors.py): from the
instant of the row and the present time. In the copy they are absolute. So a slot never depends on
the library for cron, or on the version of the time zones; a transaction that was aborted may
compute another instant than the one that is tried after it, but only one of them is ever read.

An instant is *missed* once it is late by more than LATE_MS. Which of those fire:

    skip   none
    one    the latest
    all    all, but none that is older than MISSED_MAX times its distance to the next

Every other instant fires, one after the other: a row's successor is a past instant then, and leaves
as soon as ingest has taken it.

A jitter moves all instants of a timer by the same time, by its id: distances stay.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import cast

import numpy as np

from duewheel.errors import ConfigError
from duewheel.schemas import header_names as names
from duewheel.schemas.batches import TimerBatch
from duewheel.schemas.columns import binary
from duewheel.schemas.request.header_values import SATURATED, parse_instants
from duewheel.schemas.request.recurrences import INTERVAL, UNIT_MS
from duewheel.schemas.wire.record_reader import header_starts
from duewheel.schemas.wire.varint import read_varint
from duewheel.wheel.cron_instants import Cron, Every

LATE_MS = 60_000
MISSED_MAX = 1_000
PAUSED_MS = SATURATED
"""The due time of a paused timer's copies: they roll, and never fire."""

_INTERVAL = re.compile(INTERVAL)
_TEXTS = tuple(name.encode() for name in (names.CRON, names.ZONE, names.EVERY, names.MISSED))
_NUMBERS = tuple(name.encode() for name in (names.STARTS_MS, names.ENDS_MS, names.JITTER_MS))
HEADERS = frozenset([*_TEXTS, *_NUMBERS, names.PAUSED.encode()])
"""The names of its headers."""
# Raised for instants beyond the calendar, by the library or by the time zones.
_BEYOND = (ArithmeticError, ValueError, OSError)


@dataclass(frozen=True, slots=True)
class Recurrence:
    """When a timer fires; all times in epoch ms."""

    cron: str | None
    zone: str
    interval_ms: int  # without an expression
    missed: names.Missed
    starts_ms: int | None
    ends_ms: int | None
    jitter_ms: int
    paused: bool

    def first(self, written_ms: int, after_ms: int, id_hash: int, now_ms: int) -> int | None:
        """The due time of a seed's first copy; None: it has no instant.

        Args:
            written_ms: the seed's timestamp, from which an interval counts.
            after_ms: due times up to this one are not its own, but those of a timer that it
                replaces.

        Raises:
            ConfigError: expression or zone do not parse, or instants cannot be computed.
        """
        if self.paused:
            self._next(written_ms, written_ms)  # refused now, not when it is resumed
            return int(PAUSED_MS)
        shift_ms = self.shift_ms(id_hash)
        after_ms -= shift_ms
        if self.starts_ms is not None:
            written_ms, after_ms = self.starts_ms, max(after_ms, self.starts_ms - 1)
        elif self.cron is None:
            after_ms = max(after_ms, written_ms)
        return self._due(after_ms, written_ms, now_ms - shift_ms, shift_ms)

    def following(self, due_ms: int, id_hash: int, now_ms: int) -> tuple[bool, int | None]:
        """Whether the copy that is due then fires, and the due time of the next copy; None: there
        is none.

        Raises:
            ConfigError: as `first`.
        """
        if self.paused:
            return False, PAUSED_MS
        shift_ms = self.shift_ms(id_hash)
        at_ms, now_ms = due_ms - shift_ms, now_ms - shift_ms
        return self._fires(at_ms, now_ms), self._due(at_ms, at_ms, now_ms, shift_ms)

    def _fires(self, at_ms: int, now_ms: int) -> bool:
        missed_ms = now_ms - LATE_MS
        if at_ms >= missed_ms:
            return True
        if self.missed == "skip":
            return False
        following_ms = self._next(at_ms, at_ms)
        if following_ms is None or following_ms >= missed_ms:
            return True  # the latest of those that were missed
        return self.missed == "all" and at_ms >= self._oldest(at_ms, following_ms, missed_ms)

    def _due(self, after_ms: int, phase_ms: int, now_ms: int, shift_ms: int) -> int | None:
        """The due time of the next instant after `after_ms` that the policy lets fire."""
        instant_ms, missed_ms = self._next(after_ms, phase_ms), now_ms - LATE_MS
        if instant_ms is not None and instant_ms < missed_ms:
            following_ms = self._next(instant_ms, phase_ms)
            if self.missed == "skip":
                instant_ms = self._next(missed_ms - 1, phase_ms)
            elif following_ms is not None and following_ms < missed_ms:
                if self.missed == "one":
                    instant_ms = self._latest(instant_ms, following_ms, missed_ms, phase_ms)
                else:
                    oldest_ms = self._oldest(instant_ms, following_ms, missed_ms)
                    instant_ms = self._next(max(instant_ms, oldest_ms) - 1, phase_ms)
        if instant_ms is None or (self.ends_ms is not None and instant_ms > self.ends_ms):
            return None
        return instant_ms + shift_ms

    def _oldest(self, instant_ms: int, following_ms: int, missed_ms: int) -> int:
        return missed_ms - MISSED_MAX * (following_ms - instant_ms)

    def _latest(self, low_ms: int, following_ms: int, end_ms: int, phase_ms: int) -> int:
        """The last instant below `end_ms`, at or above the instant `low_ms`."""
        high_ms = end_ms
        # Where instants have one distance, the first look finds it.
        middle_ms = max(low_ms, end_ms - (following_ms - low_ms) - 1)
        while high_ms - low_ms > 1:
            found_ms = self._next(middle_ms, phase_ms)
            if found_ms is None or found_ms >= end_ms:
                high_ms = middle_ms
            else:
                low_ms, after_ms = found_ms, self._next(found_ms, phase_ms)
                if after_ms is None or after_ms >= end_ms:
                    break
            middle_ms = (low_ms + high_ms) // 2
        return low_ms

    def _next(self, after_ms: int, phase_ms: int) -> int | None:
        """The first instant after `after_ms`; intervals count from `phase_ms`."""
        if self.cron is None:
            return next(Every(self.interval_ms, phase_ms).after(after_ms), None)
        # Cached by whole seconds, as instants of expressions are.
        found = _next_of(self.cron, self.zone, after_ms // 1000)
        if isinstance(found, str):
            raise ConfigError(found)
        return found

    def shift_ms(self, id_hash: int) -> int:
        """The time by which its jitter moves all instants of a timer."""
        return id_hash % (self.jitter_ms + 1)


def parted(headers: bytes, count: int) -> tuple[dict[bytes, bytes], bytes, int]:
    """The headers of the recurrence (the last one of a name counts); the others, encoded;
    and the number of these.
    """
    own, others = dict[bytes, bytes](), list[bytes]()
    starts, end_of_all = header_starts(headers, count)
    for start, end in itertools.pairwise([*starts, end_of_all]):
        size, name_at = read_varint(headers, start)
        name = headers[name_at : name_at + size]
        if name in HEADERS:
            _, value_at = read_varint(headers, name_at + size)
            own[name] = headers[value_at:end]
        else:
            others.append(headers[start:end])
    return own, b"".join(others), len(others)


def without_recurrence(batch: TimerBatch) -> TimerBatch:
    """The batch without the headers of recurrences: a request that cancels has none in its reply,
    nor in its chase. A loop over the recurring rows.
    """
    rows = np.flatnonzero(batch.recurring)
    if not len(rows):
        return batch
    headers, header_count = batch.headers.to_pylist(), batch.header_count.copy()
    for row in rows.tolist():
        _, headers[row], header_count[row] = parted(headers[row] or b"", int(header_count[row]))
    return replace(batch, headers=binary(headers), header_count=header_count)


def numbers_in(headers: Iterable[Mapping[bytes, bytes]]) -> Mapping[bytes, int]:
    """The instants and the jitters in the headers of accepted records, for `recurrence_of`. Parsed
    together: one alone takes up to two milliseconds.
    """
    texts = list({each[name] for each in headers for name in _NUMBERS if name in each})
    return dict(zip(texts, parse_instants(binary(texts))[0].tolist(), strict=True))


def recurrence_of(
    headers: Mapping[bytes, bytes], numbers: Mapping[bytes, int] | None = None
) -> Recurrence:
    """The recurrence in the headers of an accepted record; without `numbers` of this one alone."""
    if numbers is None:
        numbers = numbers_in([headers])
    cached: Recurrence = _recurrence_of(
        *(headers.get(name) for name in _TEXTS),
        *(numbers[headers[name]] if name in headers else None for name in _NUMBERS),
        names.PAUSED.encode() in headers,
    )
    return cached


@lru_cache(4096)
def _recurrence_of(
    cron: bytes | None,
    zone: bytes | None,
    every: bytes | None,
    missed: bytes | None,
    starts_ms: int | None,
    ends_ms: int | None,
    jitter_ms: int | None,
    paused: bool,
) -> Recurrence:
    return Recurrence(
        None if cron is None else cron.decode(),
        "UTC" if zone is None else zone.decode(),
        0 if every is None else interval_ms(every.decode()),
        cast("names.Missed", "skip" if missed is None else missed.decode()),
        starts_ms,
        ends_ms,
        jitter_ms or 0,
        paused,
    )


def interval_ms(text: str) -> int:
    """Parses the value of TIMER_EVERY.

    >>> [interval_ms(text) for text in ("90s", "1500", "1d")]
    [90000, 1500, 86400000]

    Raises:
        ConfigError: another form.
    """
    match = _INTERVAL.fullmatch(text)
    if match is None:
        raise ConfigError(f"{text!r} is no interval: a whole number and ms, s, m, h or d")
    return int(match["number"]) * UNIT_MS[match["unit"]]


@lru_cache(1024)
def _parsed(cron: str, zone: str) -> Cron | str:
    """The expression, or its defect: an error is cached like the rest."""
    try:
        return Cron(cron, zone)
    except ConfigError as error:
        return str(error)


@lru_cache(1 << 14)
def _next_of(cron: str, zone: str, after_s: int) -> int | str | None:
    parsed = _parsed(cron, zone)
    if isinstance(parsed, str):
        return parsed
    try:
        return next(parsed.after(after_s * 1000), None)
    except _BEYOND as error:
        return f"{cron!r} in {zone}: no instant can be computed: {error}"
