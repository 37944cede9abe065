"""Turns request headers into the columns that the rules check.

A copy (record_codec.py) was accepted with its first one, perhaps under other settings. Its delay
and past-due check are therefore not repeated; all other checks are. A record of a producer with the
headers of a copy is none (wire/copy_mac.py): they are ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from dataclasses import fields as fields_of
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute

from duewheel.schemas.arrays import Bool, Int32, Int64
from duewheel.schemas.batches import ANY_TIME, LEVEL_MAX, NO_LEVEL, NO_SLOT
from duewheel.schemas.columns import Column, ascii_text, coded, lengths
from duewheel.schemas.header_names import (
    CHASE_FLAG_FOUND,
    CHASE_FLAG_RESCHEDULE,
    NAME_OF,
    Request,
)
from duewheel.schemas.request.cancel_requests import (
    IF_PENDING_DEFECTS,
    VERDICTS,
    CancelRequests,
    read_cancels,
)
from duewheel.schemas.request.due_times import NO_NAME, PRECEDENCE, DueTimes
from duewheel.schemas.request.header_values import SATURATED, parse_numbers
from duewheel.schemas.request.headers import Field, Headers, Int8, rows_of
from duewheel.schemas.request.recurrences import VERDICTS as RECURRENCE_VERDICTS
from duewheel.schemas.request.recurrences import Recurrences
from duewheel.schemas.request.row_settings import CANCEL_TYPE, RowSettings
from duewheel.schemas.wire.record_codec import LETTER_END, NO_ORIGIN

_pa: Any = pa
_pc: Any = pyarrow.compute

_NAME = pa.dictionary(pa.int8(), pa.string())
RULE_COLUMNS = pa.schema(
    [
        pa.field("cancel", _NAME),  # a kind of cancel, or its defect (cancel_requests.py)
        pa.field("if_pending", _NAME),  # the defect of TIMER_IF_PENDING (cancel_requests.py)
        pa.field("unsupported", _NAME),  # of a drop-in mode: the feature that duewheel lacks
        pa.field("bad_name", _NAME),  # header, if the name of one is no UTF-8
        pa.field("recurrence", _NAME),  # the defect of a recurring timer (recurrences.py)
        pa.field("timestamp_ms", pa.int64()),  # of the record; null: a copy, or a pure cancel
        pa.field("due_ms", pa.int64()),  # epoch ms; null: not given, or malformed
        pa.field(
            "delay_ms", pa.int64()
        ),  # until the window's end; null: not requested, a copy, a seed
        pa.field("long_ms", pa.int64()),  # the same; null: no longer than the timer topic allows
        # Since the window's end; null: not past, no delay, or a topic that accepts timers past due.
        pa.field("past_ms", pa.int64()),
        pa.field("window_ms", pa.int64()),  # null: not given; -1: malformed, or in a copy
        pa.field("bad_header", _NAME),  # the header that gives the due time, if malformed
        pa.field("missing", _NAME),  # due_time or target_topic, if the timer lacks it
        pa.field("target_topic", pa.dictionary(pa.int32(), pa.large_string())),
        pa.field("closed", _NAME),  # target_topic, if the timer topic is not open for it
        pa.field("target_partition", pa.int64()),  # null: not requested; -1: malformed
        pa.field("timer_id_bytes", pa.int64()),  # length of the id; null: not given
        pa.field("origin_distance", pa.int64()),  # offset - origin's; null: no copy; -1: malformed
        pa.field("retries", pa.int64()),  # null: not parked; -1: malformed, or not on a copy
        pa.field("unframed", _NAME),  # value, if it lacks the schema's number that its topic wants
    ]
)
"""The columns that rules may name. A null passes every rule but "not null"."""

DUE_NAMES = ["epoch_seconds", "when", *(NAME_OF[request] for request in PRECEDENCE[2:])]
_MISSING = ("due_time", "target_topic")
_CLOSED = ("target_topic",)
_BAD_NAME = ("header",)
_UNFRAMED = ("value",)
UNSUPPORTED = ("recurring", "schema_version", "source_type")
_SCHEMA_VERSIONS = (b"1.0.0",)
_SOURCE_TYPES = (b"schedule", CANCEL_TYPE)
COUNT_MAX = 65_535  # of rolls and retries: two bytes on disk; the counts stop there


@dataclass(frozen=True, slots=True)
class RequestColumns:
    """The requests of a batch's rows."""

    fields: Mapping[Request, Field]  # in pure cancels only those that have a meaning
    cancels: CancelRequests
    due: DueTimes
    recurrences: Recurrences
    timestamp_ms: Int64
    offset: Int64
    target: pa.DictionaryArray[Any, Any]  # names; null: none
    closed: Bool  # rows of topics that are not open for their target
    badly_named: Bool  # rows with a header whose name is no UTF-8
    rejects_past_due: Bool  # rows of topics that reject timers past due
    unframed: Bool  # rows whose value lacks the number of a schema, in topics that want it
    max_delay_ms: Int64 | None  # the longest delay of each row's topic; None: no topic has one

    @classmethod
    def of_targets(cls, settings: RowSettings, targets: Sequence[str]) -> RequestColumns:
        """One timer for each target, due at once, in a topic with these settings."""
        count = len(targets)
        zeros, none, no = np.zeros(count, np.int64), Field.none(), np.zeros(count, np.bool_)
        target = target_column(None, np.arange(count, dtype=np.int32), targets)
        return cls(
            *({}, read_cancels({}, none, none, count), DueTimes.at(zeros)),
            Recurrences.none(count),
            zeros,
            zeros,
            target,
            closed=settings.closed_targets(target),
            badly_named=no,
            rejects_past_due=no,
            unframed=no,
            max_delay_ms=None,
        )

    @property
    def copy(self) -> Bool:
        return rows_of(self.fields, [Request.ORIGIN], len(self.offset))


def rule_columns(requests: RequestColumns) -> pa.Table:
    """The columns of RULE_COLUMNS."""
    fields, due, count = requests.fields, requests.due, len(requests.offset)
    delay_ms = due.latest_ms - np.clip(requests.timestamp_ms, -SATURATED, SATURATED)
    has_delay = due.valid & ~requests.copy & ~requests.recurrences.seed
    is_long = np.zeros(count, np.bool_)
    if requests.max_delay_ms is not None:
        is_long = has_delay & (delay_ms > requests.max_delay_ms)
    ids = requests.cancels.ids
    columns = [
        _named(requests.cancels.verdict, VERDICTS),
        _named(requests.cancels.if_pending, IF_PENDING_DEFECTS),
        _named(_unsupported(fields, count), UNSUPPORTED),
        _named(np.where(requests.badly_named, np.int8(0), np.int8(NO_NAME)), _BAD_NAME),
        _named(requests.recurrences.verdict, RECURRENCE_VERDICTS),
        _pa.array(requests.timestamp_ms, mask=requests.copy | requests.cancels.pure),
        _pa.array(due.due_ms, mask=~due.valid),
        _pa.array(delay_ms, mask=~has_delay),
        _pa.array(delay_ms, mask=~is_long),
        _pa.array(-delay_ms, mask=~(has_delay & requests.rejects_past_due & (delay_ms <= 0))),
        _pa.array(due.window_ms, mask=~rows_of(fields, [Request.WINDOW_MS], count)),
        _named(due.bad, DUE_NAMES),
        _named(_missing(requests), _MISSING),
        requests.target,
        _named(np.where(requests.closed, np.int8(0), np.int8(NO_NAME)), _CLOSED),
        _sparse(fields.get(Request.TARGET_PARTITION), _partitions, count),
        _sparse(ids.where(~requests.cancels.pure[ids.rows]), lengths, count),
        _sparse(fields.get(Request.ORIGIN), partial(_distances, fields, requests.offset), count),
        _retries(fields, count),
        _named(np.where(requests.unframed, np.int8(0), np.int8(NO_NAME)), _UNFRAMED),
    ]
    table: pa.Table = _pa.table(columns, schema=RULE_COLUMNS)
    return table


def _missing(requests: RequestColumns) -> Int8:
    missing = np.where(np.asarray(requests.target.is_null()), np.int8(1), np.int8(NO_NAME))
    missing[~requests.due.valid & (requests.due.bad == NO_NAME)] = 0
    missing[requests.cancels.pure] = NO_NAME
    return missing


def _unsupported(fields: Mapping[Request, Field], count: int) -> Int8:
    """Row → index in UNSUPPORTED. Of several features the one with the lowest index counts."""
    unsupported = np.full(count, NO_NAME, np.int8)
    for i, request, supported in (
        (2, Request.SOURCE_TYPE, _SOURCE_TYPES),
        (1, Request.SCHEMA_VERSION, _SCHEMA_VERSIONS),
        (0, Request.RECURRING, ()),
    ):
        if request in fields:
            field = fields[request]
            value_set = _pa.array(supported, pa.large_binary())
            strange = ~np.asarray(_pc.is_in(field.values, value_set=value_set))
            unsupported[field.rows[strange]] = i
    return unsupported


def _named(index: Int8, names: Sequence[str]) -> pa.DictionaryArray[Any, Any]:
    return _dictionary(index, _pa.array(names, pa.string()))


def _dictionary(index: Int8 | Int32, values: Any) -> pa.DictionaryArray[Any, Any]:
    """A dictionary column; index -1 is null."""
    column: pa.DictionaryArray[Any, Any] = _pa.DictionaryArray.from_arrays(
        _pa.array(index, mask=index < 0), values
    )
    return column


def target_column(
    field: Field | None, default_target: Int32, named: Sequence[str]
) -> pa.DictionaryArray[Any, Any]:
    """REAL_TOPIC (`field`), or the default target: an index in `named`, or -1 for none. A
    dictionary, so that rules check each name once.
    """
    values = _pa.array(list(named), pa.large_string())
    index = default_target.copy()
    if field is not None:
        place, different = coded(field.values)
        index[field.rows] = place + len(values)
        values = _pa.concat_arrays([values, ascii_text(different)])
    return _dictionary(index, values)


def _sparse(field: Field | None, read: Callable[[Column], Int64], count: int) -> pa.Int64Array:
    """A column of numbers read from a field, null where it is not given."""
    numbers = np.zeros(count, np.int64)
    absent = np.ones(count, np.bool_)
    if field is not None:
        numbers[field.rows] = read(field.values)
        absent[field.rows] = False
    column: pa.Int64Array = _pa.array(numbers, mask=absent)
    return column


def _distances(fields: Mapping[Request, Field], offset: Int64, values: Column) -> Int64:
    origin, well_formed = parse_numbers(values)
    before = offset[fields[Request.ORIGIN].rows]
    return np.where(well_formed & (origin >= NO_ORIGIN), before - origin, -1)


def _retries(fields: Mapping[Request, Field], count: int) -> pa.Int64Array:
    """RETRIES of waiting copies; -1 unless both headers of waiting are whole numbers from 1, on a
    copy.
    """
    retries = np.zeros(count, np.int64)
    given = np.zeros((2, count), np.bool_)
    well_formed = np.zeros((2, count), np.bool_)
    for i, request in enumerate((Request.NOT_BEFORE, Request.RETRIES)):
        field = fields.get(request)
        if field is not None:
            number, is_number = parse_numbers(field.values)
            given[i, field.rows] = True
            well_formed[i, field.rows] = is_number & (number > 0)
            retries[field.rows] = number  # RETRIES comes last, and overwrites the other
    copy = rows_of(fields, [Request.ORIGIN], count)
    retries[~(well_formed.all(0) & copy)] = -1
    column: pa.Int64Array = _pa.array(retries, mask=~given.any(0))
    return column


def ends_without_mac(headers: Headers) -> Int64:
    """The end of each row's headers, its MAC left out."""
    ends = headers.firsts[1:].copy()
    some = np.flatnonzero(np.diff(headers.firsts))
    ends[some] -= headers.request[ends[some] - 1] == Request.COPY_MAC
    return ends


def waiting_letters(headers: Headers) -> Bool:
    """Dead letters that wait for their topic, recognised by their last headers. They skip all other
    checks and stay dead letters, even if the rule that rejected them has changed.
    """
    size, ends = len(LETTER_END), ends_without_mac(headers)
    letters: Bool = ends - headers.firsts[:-1] >= size
    for place, request in enumerate(LETTER_END):
        at = ends[letters] - size + place
        letters[letters] = headers.request[at] == request
    return letters


def kept_in_letters(headers: Headers, letters: Bool) -> Bool:
    """The headers that stay in the given waiting letters: all but LETTER_END and the MAC."""
    kept: Bool = letters[headers.rows()]
    kept[headers.firsts[1:][letters] - 1] = False  # the MAC, if it has one
    ends = ends_without_mac(headers)[letters]
    for i in range(1, len(LETTER_END) + 1):
        kept[ends - i] = False
    return kept


@dataclass(frozen=True, slots=True)
class Copies:
    """The copy headers of rows."""

    # Of the timer's first copy; the row's own if the row is the first, or the first is lost
    origin_offset: Int64
    roll_times: Int32  # how often it was rolled
    not_before_ms: Int64  # see TimerBatch
    retries: Int32  # how often it was parked; a spread one counts as parked once
    level: Int32  # that of the first copy's request; NO_LEVEL where the row is no copy
    chase_slot: Int64  # see TimerBatch
    chase_flags: Int32

    def where(self, rows: Bool, others: Copies) -> Copies:
        """These values in `rows`, those of `others` in all other rows."""
        pairs = ((getattr(self, each.name), getattr(others, each.name)) for each in fields_of(self))
        return Copies(*(np.where(rows, mine, its) for mine, its in pairs))

    def unrolled(self) -> Copies:
        """The same for dead letters, which have no rolls and no level."""
        return replace(
            self,
            roll_times=np.zeros_like(self.roll_times),
            level=np.full_like(self.level, NO_LEVEL),
        )


def copies(fields: Mapping[Request, Field], offset: Int64, accepted: Bool) -> Copies:
    """The copy headers of every row. `accepted` rows have passed the rules for ORIGIN, NOT_BEFORE
    and RETRIES.
    """
    count = len(offset)
    result = Copies(
        offset.copy(),
        np.zeros(count, np.int32),
        np.full(count, ANY_TIME, np.int64),
        np.zeros(count, np.int32),
        np.full(count, NO_LEVEL, np.int32),
        np.full(count, NO_SLOT),
        np.zeros(count, np.int32),
    )
    if Request.ORIGIN not in fields:
        return result
    is_copy = rows_of(fields, [Request.ORIGIN], count) & accepted
    result.roll_times[is_copy] = 1
    for request, column, last in (
        (Request.ORIGIN, result.origin_offset, SATURATED),
        (Request.ROLL_TIMES, result.roll_times, COUNT_MAX),
        (Request.NOT_BEFORE, result.not_before_ms, SATURATED),
        (Request.RETRIES, result.retries, COUNT_MAX),
        (Request.REQUESTED_LEVEL, result.level, LEVEL_MAX),
        (Request.CHASE_SLOT, result.chase_slot, SATURATED),
        (Request.CHASE_FLAGS, result.chase_flags, CHASE_FLAG_FOUND | CHASE_FLAG_RESCHEDULE),
    ):
        given = fields.get(request)
        if given is not None:
            number, well_formed = parse_numbers(given.values)
            good = well_formed & (number >= 0) & is_copy[given.rows]
            column[given.rows[good]] = np.minimum(number[good], last)
    return result


def _partitions(values: Column) -> Int64:
    number, well_formed = parse_numbers(values)
    return np.where(well_formed, number, -1)
