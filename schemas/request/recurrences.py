"""Recurring timers at ingest: which records are one, and the defects of their headers.

A record with TIMER_CRON or TIMER_EVERY in place of a due time is a *seed*: due at its timestamp, it
fires nothing; dequeue writes its first copy then (wheel/dequeue/successors.py). A copy has the same
headers, and the absolute time of its instant.

Only forms are checked here, by regular expressions: the verdict about a record, and so its slot,
must not depend on a library for cron or on a version of the time zones. Whether the expression has
instants is found at the seed's slot.

A settings epoch whose rules do not name the column `recurrence` is of a version without recurring
timers: there the headers are the users' own (`users_own`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute

from duewheel.schemas.arrays import Bool, Int64
from duewheel.schemas.columns import Column, ascii_text, lengths
from duewheel.schemas.header_names import (
    CRON_BYTES_MAX,
    INTERVAL_MS_MIN,
    MISSED_WORDS,
    RECURRENCE,
    RECURRING_BYTES_MAX,
    RECURRING_HEADERS_MAX,
    RECURRING_ID_BYTES_MAX,
    Request,
)
from duewheel.schemas.request.due_times import NO_NAME, PRECEDENCE
from duewheel.schemas.request.header_values import parse_instants, parse_numbers
from duewheel.schemas.request.headers import Field, Headers, Int8, rows_of
from duewheel.schemas.wire.kafka_records import KafkaRecords

_pa: Any = pa
_pc: Any = pyarrow.compute

UNIT_MS = {"": 1, "ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
INTERVAL = r"^(?P<number>[0-9]{1,12})(?P<unit>|ms|s|m|h|d)$"

_INTERVAL_MS_MAX = 10**12  # 31 years
_JITTER_MS_MAX = 86_400_000
_CRON = r"\A[0-9A-Za-z*,/#-]+(?: [0-9A-Za-z*,/#-]+){4,5}\z"
_ZONE = r"\A[A-Za-z0-9_+-]+(?:/[A-Za-z0-9_+-]+)*\z"
_ZONE_BYTES_MAX = 64
_NOTE_BYTES_MAX = 255

VERDICTS = (
    *("cron", "zone", "every", "missed", "starts", "ends", "jitter", "paused"),
    *("alone", "both", "due_time", "window", "id", "size", "refused"),
)
"""The defects of a recurrence, each with a rule of its own; the first eight in their order."""
_OF_HEADER = {request: place for place, request in enumerate(RECURRENCE)}
_ALONE, _BOTH, _DUE_TIME, _WINDOW, _ID, _SIZE, _REFUSED = range(len(RECURRENCE), len(VERDICTS))


@dataclass(frozen=True, slots=True)
class Recurrences:
    """The recurring timers of a batch."""

    verdict: Int8  # index in VERDICTS, or NO_NAME
    recurring: Bool
    seed: Bool  # of these the users' records, which have no due time

    @classmethod
    def none(cls, count: int) -> Recurrences:
        """Of so many rows that are no recurring timers."""
        no = np.zeros(count, np.bool_)
        return cls(np.full(count, NO_NAME, np.int8), no, no)


def is_recurrence(headers: Headers) -> Bool:
    """Which headers are of a recurrence."""
    request = headers.request
    inside: Bool = (request >= RECURRENCE[0]) & (request <= RECURRENCE[-1])
    return inside


def recurrences(
    fields: Mapping[Request, Field], ids: Field, refused: Bool, records: KafkaRecords
) -> Recurrences:
    """Reads the recurrences of all records. `fields` have no pure cancels' requests; `ids` are the
    timers' ids.
    """
    count = len(refused)
    if fields.keys().isdisjoint(RECURRENCE):
        return Recurrences.none(count)
    verdict = np.full(count, NO_NAME, np.int8)
    recurring = rows_of(fields, [Request.CRON, Request.EVERY], count)
    seed = recurring & ~rows_of(fields, [Request.ORIGIN], count)
    named = np.zeros(count, np.bool_)
    named[ids.rows] = lengths(ids.values) <= RECURRING_ID_BYTES_MAX
    header_count = np.diff(records.headers.firsts)
    large = (header_count > RECURRING_HEADERS_MAX) | (records.sizes > RECURRING_BYTES_MAX)
    # Each line overwrites the verdicts of those above. A copy has more headers than its seed.
    verdict[seed & large] = _SIZE
    verdict[recurring & ~named] = _ID
    verdict[recurring & rows_of(fields, [Request.WINDOW_MS], count)] = _WINDOW
    verdict[seed & rows_of(fields, PRECEDENCE, count)] = _DUE_TIME
    for request in reversed(RECURRENCE):
        if request in fields:
            field = fields[request]
            verdict[field.rows[~_FORMS[request](field.values)]] = _OF_HEADER[request]
    both = rows_of(fields, [Request.CRON], count) & rows_of(fields, [Request.EVERY], count)
    verdict[both] = _BOTH
    verdict[rows_of(fields, RECURRENCE, count) & ~recurring] = _ALONE
    verdict[seed & refused] = _REFUSED
    return Recurrences(verdict, recurring, seed)


def _matching(pattern: str, bytes_max: int) -> Callable[[Column], Bool]:
    def good(values: Column) -> Bool:
        fits: Bool = lengths(values) <= bytes_max
        matches: Bool = np.asarray(_pc.match_substring_regex(ascii_text(values), pattern))
        return fits & matches

    return good


def _intervals(values: Column) -> Bool:
    parts = _pc.extract_regex(ascii_text(values), INTERVAL)
    matches = np.asarray(parts.is_valid())
    number = _pc.if_else(_pa.array(matches), _pc.struct_field(parts, "number"), "0")
    unit = _pc.if_else(_pa.array(matches), _pc.struct_field(parts, "unit"), "")
    place = np.asarray(_pc.index_in(unit, value_set=_pa.array(list(UNIT_MS), unit.type)))
    each_ms: Int64 = np.asarray(_pc.cast(number, pa.int64()))
    # Without the bound twelve digits of days would overflow.
    interval_ms = np.minimum(each_ms, 10**11) * np.array(list(UNIT_MS.values()), np.int64)[place]
    good: Bool = matches & (interval_ms >= INTERVAL_MS_MIN) & (interval_ms <= _INTERVAL_MS_MAX)
    return good


def _policies(values: Column) -> Bool:
    value_set = _pa.array([each.encode() for each in MISSED_WORDS], pa.large_binary())
    return np.asarray(_pc.is_in(values, value_set=value_set))


def _instants(values: Column) -> Bool:
    return parse_instants(values)[1]


def _jitters(values: Column) -> Bool:
    number, well_formed = parse_numbers(values)
    return well_formed & (number >= 0) & (number <= _JITTER_MS_MAX)


def _notes(values: Column) -> Bool:
    short: Bool = lengths(values) <= _NOTE_BYTES_MAX
    return short


_FORMS: Mapping[Request, Callable[[Column], Bool]] = {
    Request.CRON: _matching(_CRON, CRON_BYTES_MAX),
    Request.ZONE: _matching(_ZONE, _ZONE_BYTES_MAX),
    Request.EVERY: _intervals,
    Request.MISSED: _policies,
    Request.STARTS: _instants,
    Request.ENDS: _instants,
    Request.JITTER: _jitters,
    Request.PAUSED: _notes,
}
