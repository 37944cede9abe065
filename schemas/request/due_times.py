"""The due time of a row: a function of its record, its Kafka timestamp and the settings, never of
the clock. A record that is read again therefore gets the same due time.

The first request in the order of precedence wins, and only the winner must be well-formed:

    scheduler-epoch …        epoch seconds, in the drop-in modes that have it
    kafka-scheduler-when     an ISO-8601 instant, in UTC if it has no zone
    DELAY                    a level; 0 and below count as not given, a higher one than the highest
                             as the highest
    TIMER_DELAY_SEC          seconds from the record's timestamp
    TIMER_DELAY_MS           milliseconds from the record's timestamp
    TIMER_DELIVER_MS         an instant (header_values.py)
    deliverAfter             the field that KIP-1277 proposes, as a header. The KIP leaves open
                             whether it is a delay or an instant. A number below 10**12 is
                             milliseconds from the record's timestamp (31 years; as an instant it
                             would be before 2001); anything else is an instant

Without any of them the topic's own delay counts, if it has one. The record of a recurring timer is
due at its timestamp (recurrences.py).

TIMER_WINDOW_MS w spreads timers: one is due at a whole millisecond from the requested time to w
after it, chosen by a hash of its key, or of its id without a key. The timers of a key thus keep
their order. A copy has no window, because it is due at a fixed instant.

Whether a time is too far ahead is decided elsewhere: by a client in api/due_time.py, at ingest by
the columns `delay_ms` and `long_ms` of request_columns.py with their rules in timer_suite.json.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from duewheel.schemas.arrays import Bool, Int32, Int64
from duewheel.schemas.batches import NO_LEVEL
from duewheel.schemas.columns import Column
from duewheel.schemas.header_names import Request
from duewheel.schemas.request.header_values import (
    SATURATED,
    parse_instants,
    parse_local_times,
    parse_numbers,
)
from duewheel.schemas.request.headers import Field, Int8

PRECEDENCE = (
    Request.EPOCH_SEC,
    Request.WHEN,
    Request.LEVEL,
    Request.DELAY_SEC,
    Request.DELAY_MS,
    Request.DELIVER_AT,
    Request.DELIVER_AFTER,
)
NO_DELAY = -1  # of a topic
DELAY_MS_END = 10**12  # deliverAfter: a delay below it, an instant from there on
NO_NAME = -1  # an index into names of headers, where no header is meant
MALFORMED_WINDOW = -1

# Values, and the timestamps of their rows → epoch ms, and which are well-formed.
_Read = Callable[[Column, Int64], tuple[Int64, Bool]]


@dataclass(frozen=True, slots=True)
class DueTimes:
    """When each row is due."""

    due_ms: Int64  # epoch ms, 0 where not valid; without the window
    valid: Bool  # which rows have a due time
    bad: Int8  # index in PRECEDENCE of the winning header if malformed, else NO_NAME
    window_ms: Int64  # 0 if there is none, or MALFORMED_WINDOW
    level: Int32  # the delay level that counts, NO_LEVEL where another header does

    @classmethod
    def at(cls, due_ms: Int64) -> DueTimes:
        """All valid, without windows."""
        count = len(due_ms)
        none, zeros = np.full(count, NO_NAME, np.int8), np.zeros(count, np.int64)
        level = np.full(count, NO_LEVEL, np.int32)
        return cls(due_ms, np.ones(count, np.bool_), none, zeros, level)

    @property
    def latest_ms(self) -> Int64:
        """The ends of the windows."""
        return self.due_ms + np.maximum(self.window_ms, 0)

    def at_once(self, rows: Bool, timestamp_ms: Int64) -> DueTimes:
        """The same with these rows due at their timestamps."""
        if not rows.any():
            return self
        return replace(
            self,
            due_ms=np.where(rows, np.clip(timestamp_ms, -SATURATED, SATURATED), self.due_ms),
            valid=self.valid | rows,
            bad=np.where(rows, np.int8(NO_NAME), self.bad),
            level=np.where(rows, np.int32(NO_LEVEL), self.level),
        )

    def spread(self, key_hash: Int64, rows: Int64) -> Int64:
        """The due times, those of `rows` moved inside their windows by `key_hash`, which is not
        negative.
        """
        due_ms = self.due_ms.copy()
        due_ms[rows] += key_hash % (self.window_ms[rows] + 1)
        return due_ms


def due_times(
    fields: Mapping[Request, Field],
    timestamp_ms: Int64,
    levels_ms: Sequence[int],
    delay_ms: Int64 | None = None,
) -> DueTimes:
    """Reads the requested due times. `levels_ms` are the delays of level 1, 2, …; `delay_ms` those
    of rows without a requested time, or NO_DELAY; None if no row has one.
    """
    base_ms = np.clip(timestamp_ms, -SATURATED, SATURATED)
    count = len(base_ms)
    due_ms = np.zeros(count, np.int64)
    valid = np.zeros(count, np.bool_)
    bad = np.full(count, NO_NAME, np.int8)
    level = np.full(count, NO_LEVEL, np.int32)
    if delay_ms is not None:
        valid |= delay_ms != NO_DELAY
        due_ms[valid] = base_ms[valid] + delay_ms[valid]
    for place in reversed(range(len(PRECEDENCE))):  # a higher precedence overwrites
        field = fields.get(PRECEDENCE[place])
        if field is None:
            continue
        rows = field.rows
        if PRECEDENCE[place] is Request.LEVEL:
            rows, level_number, well_formed = _levels(field, len(levels_ms))
            due = base_ms[rows] + np.array(levels_ms, np.int64)[level_number - 1]
            level[rows] = np.where(well_formed, level_number, NO_LEVEL)
        else:
            due, well_formed = _READ[PRECEDENCE[place]](field.values, base_ms[rows])
            level[rows] = NO_LEVEL
        due_ms[rows] = np.where(well_formed, due, 0)
        valid[rows] = well_formed
        bad[rows] = np.where(well_formed, NO_NAME, place)
    return DueTimes(due_ms, valid, bad, _windows(fields, count), level)


def _levels(field: Field, highest: int) -> tuple[Int64, Int64, Bool]:
    """The rows with a level or with a malformed one; the level; which are well-formed."""
    level, well_formed = parse_numbers(field.values)
    given = ~well_formed | (level > 0)
    return field.rows[given], np.clip(level[given], 1, highest), well_formed[given]


def _epoch_seconds(values: Column, _base_ms: Int64) -> tuple[Int64, Bool]:
    number, well_formed = parse_numbers(values)
    return number * 1000, well_formed


def _local_times(values: Column, _base_ms: Int64) -> tuple[Int64, Bool]:
    return parse_local_times(values)


def _delay_seconds(values: Column, base_ms: Int64) -> tuple[Int64, Bool]:
    number, well_formed = parse_numbers(values)
    return base_ms + number * 1000, well_formed


def _delay_millis(values: Column, base_ms: Int64) -> tuple[Int64, Bool]:
    number, well_formed = parse_numbers(values)
    return base_ms + number, well_formed


def _instants(values: Column, _base_ms: Int64) -> tuple[Int64, Bool]:
    return parse_instants(values)


def _delays_or_instants(values: Column, base_ms: Int64) -> tuple[Int64, Bool]:
    _, is_number = parse_numbers(values)
    instant, well_formed = parse_instants(values)
    is_delay = is_number & (instant < DELAY_MS_END)
    return np.where(is_delay, base_ms + instant, instant), well_formed


_READ: Mapping[Request, _Read] = {
    Request.EPOCH_SEC: _epoch_seconds,
    Request.WHEN: _local_times,
    Request.DELAY_SEC: _delay_seconds,
    Request.DELAY_MS: _delay_millis,
    Request.DELIVER_AT: _instants,
    Request.DELIVER_AFTER: _delays_or_instants,
}


def _windows(fields: Mapping[Request, Field], count: int) -> Int64:
    window_ms = np.zeros(count, np.int64)
    field = fields.get(Request.WINDOW_MS)
    if field is not None:
        number, well_formed = parse_numbers(field.values)
        window_ms[field.rows] = np.where(well_formed & (number >= 0), number, MALFORMED_WINDOW)
        if Request.ORIGIN in fields:
            copies = fields[Request.ORIGIN].rows
            window_ms[np.intersect1d(field.rows, copies)] = MALFORMED_WINDOW
    return window_ms
