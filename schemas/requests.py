"""From request headers to the columns that the rules judge.

A row is decided by its record, its Kafka timestamp and the configuration, never by the clock.
Of the four ways to ask for a time the first in the order of precedence wins, and only the winner
must be well-formed:

    DELAY             a level; 0 and below count as not given, above the highest as the highest
    TIMER_DELAY_SEC   seconds from the record's timestamp
    TIMER_DELAY_MS    milliseconds from the record's timestamp
    TIMER_DELIVER_MS  an instant (values.py)

What a copy (record_tail.py) asks for was accepted with its first one, under other settings perhaps:
the length of its delay is not judged again, all else is. Whoever may write to the timer topic can
make a record look like a copy: he may let a timer wait for longer, as by sending it over and over,
but reaches no topic that is closed to timers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute

from duewheel.schemas.cancel_requests import WORDS, Cancels
from duewheel.schemas.columns import Column, ascii_text, lengths
from duewheel.schemas.header_names import NATIVE, Request
from duewheel.schemas.headers import Field, Int8
from duewheel.schemas.record_tail import NO_ORIGIN
from duewheel.schemas.timers import ANY_TIME, LEVEL_MAX, NO_LEVEL, Bool, Int32, Int64
from duewheel.schemas.values import SATURATED, parse_instants, parse_numbers

_pa: Any = pa
_pc: Any = pyarrow.compute

_NAME = pa.dictionary(pa.int8(), pa.string())
JUDGED = pa.schema(
    [
        pa.field("due_ms", pa.int64()),  # epoch ms; null: not given, or malformed
        pa.field("delay_ms", pa.int64()),  # due_ms - the record's timestamp; null: not asked for
        pa.field("bad_header", _NAME),  # the header that gives the due time, if malformed
        pa.field("missing", _NAME),  # what a timer needs and this one lacks: due_time, target_topic
        pa.field("target_topic", pa.dictionary(pa.int32(), pa.large_string())),
        pa.field("target_partition", pa.int64()),  # null: not asked for; -1: malformed
        pa.field("timer_id_bytes", pa.int64()),  # length of the id; null: not given
        pa.field("cancel", _NAME),  # what it cancels, or why it cannot (cancel_requests.py)
        pa.field("origin_distance", pa.int64()),  # offset - origin's; null: no copy; -1: malformed
        pa.field("retries", pa.int64()),  # null: not parked; -1: malformed, or on what is no copy
    ]
)
"""The columns that rules may name. A null passes every rule that does not ask for a value."""

_DUE = (Request.LEVEL, Request.DELAY_SEC, Request.DELAY_MS, Request.DELIVER_AT)
_MISSING = ("due_time", "target_topic")
_NONE = -1
COUNT_MAX = 65_535  # of rolls and retries: two bytes on disk; the counts stop there


@dataclass(frozen=True, slots=True)
class DueTimes:
    """When each row is due.

    Attributes:
        due_ms: epoch ms, 0 where not known.
        known: which rows have a due time.
        bad: index in the order of precedence of the winning header if it is malformed, else -1.
        level: the delay level that counts, NO_LEVEL where another header does.
    """

    due_ms: Int64
    known: Bool
    bad: Int8
    level: Int32


def due_times(
    fields: Mapping[Request, Field], timestamp_ms: Int64, levels_ms: Sequence[int]
) -> DueTimes:
    """Read the due times that the requests ask for."""
    base_ms = np.clip(timestamp_ms, -SATURATED, SATURATED)
    due_ms = np.zeros(len(base_ms), np.int64)
    known = np.zeros(len(base_ms), np.bool_)
    bad = np.full(len(base_ms), _NONE, np.int8)
    level = np.full(len(base_ms), NO_LEVEL, np.int32)
    for request in reversed(_DUE):  # what takes precedence overwrites
        field = fields.get(request)
        if field is None:
            continue
        rows = field.rows
        if request is Request.DELIVER_AT:
            due, well_formed = parse_instants(field.values)
        else:
            number, well_formed = parse_numbers(field.values)
            if request is Request.LEVEL:
                given = ~well_formed | (number > 0)
                rows, number, well_formed = rows[given], number[given], well_formed[given]
                level[rows] = np.where(well_formed, _levels(number, levels_ms), NO_LEVEL)
            due = base_ms[rows] + _delay_ms(request, number, levels_ms)
        due_ms[rows] = np.where(well_formed, due, 0)
        known[rows] = well_formed
        bad[rows] = np.where(well_formed, _NONE, _DUE.index(request))
    return DueTimes(due_ms, known, bad, level)


def _delay_ms(request: Request, number: Int64, levels_ms: Sequence[int]) -> Int64:
    if request is Request.DELAY_SEC:
        return number * 1000
    if request is Request.DELAY_MS:
        return number
    return np.array(levels_ms, np.int64)[_levels(number, levels_ms) - 1]


def _levels(number: Int64, levels_ms: Sequence[int]) -> Int64:
    return np.clip(number, 1, len(levels_ms))


def judged_columns(
    fields: Mapping[Request, Field],
    due: DueTimes,
    cancels: Cancels,
    timestamp_ms: Int64,
    default_target: Int32,
    mapped: Sequence[str],
    offset: Int64,
) -> pa.Table:
    """The columns of JUDGED.

    Args:
        fields: the requests; of pure cancels only those that mean something.
        due: their due times.
        cancels: what the rows cancel.
        timestamp_ms: the records' timestamps.
        default_target: row → index in `mapped` of the target without REAL_TOPIC, or -1 for none.
        mapped: the targets that the configuration names.
        offset: the records' own.
    """
    base_ms = np.clip(timestamp_ms, -SATURATED, SATURATED)
    count = len(base_ms)
    target = _targets(fields.get(Request.TARGET_TOPIC), default_target, mapped)
    missing = np.where(np.asarray(target.is_null()), np.int8(1), np.int8(_NONE))
    missing[~due.known & (due.bad == _NONE)] = 0
    missing[cancels.pure] = _NONE
    distances = _sparse(fields.get(Request.ORIGIN), partial(_distances, fields, offset), count)
    is_copy = np.asarray(_pc.fill_null(distances, 0)) > 0
    columns = [
        _pa.array(due.due_ms, mask=~due.known),
        _pa.array(due.due_ms - base_ms, mask=~due.known | is_copy),
        _named(due.bad, [NATIVE[request] for request in _DUE]),
        _named(missing, _MISSING),
        target,
        _sparse(fields.get(Request.TARGET_PARTITION), _partitions, count),
        _sparse(fields.get(Request.TIMER_ID), lengths, count),
        _named(cancels.word, WORDS),
        distances,
        _retries(fields, count),
    ]
    table: pa.Table = _pa.table(columns, schema=JUDGED)
    return table


def _named(index: Int8, names: Sequence[str]) -> pa.DictionaryArray[Any, Any]:
    return _dictionary(index, _pa.array(names, pa.string()))


def _dictionary(index: Int8 | Int32, values: Any) -> pa.DictionaryArray[Any, Any]:
    """A dictionary column; index -1 is null."""
    column: pa.DictionaryArray[Any, Any] = _pa.DictionaryArray.from_arrays(
        _pa.array(index, mask=index < 0), values
    )
    return column


def _targets(
    field: Field | None, default_target: Int32, mapped: Sequence[str]
) -> pa.DictionaryArray[Any, Any]:
    """REAL_TOPIC, else what the mapping says. A dictionary: rules then look once at each name."""
    values = _pa.array(list(mapped), pa.large_string())
    index = default_target.copy()
    if field is not None:
        asked = _pc.dictionary_encode(field.values)
        index[field.rows] = np.asarray(asked.indices) + len(values)
        values = _pa.concat_arrays([values, ascii_text(asked.dictionary)])
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
    """A parked copy has both headers, whole numbers from 1, and is a copy."""
    retries = np.zeros(count, np.int64)
    given = np.zeros((2, count), np.bool_)
    well_formed = np.zeros((2, count), np.bool_)
    for i, request in enumerate((Request.NOT_BEFORE, Request.RETRIES)):
        field = fields.get(request)
        if field is not None:
            number, is_number = parse_numbers(field.values)
            given[i, field.rows] = True
            well_formed[i, field.rows] = is_number & (number > 0)
            retries[field.rows] = number  # in the end those of RETRIES
    copy = np.zeros(count, np.bool_)
    if Request.ORIGIN in fields:
        copy[fields[Request.ORIGIN].rows] = True
    retries[~(well_formed.all(0) & copy)] = -1
    column: pa.Int64Array = _pa.array(retries, mask=~given.any(0))
    return column


@dataclass(frozen=True, slots=True)
class Copies:
    """What rows say of themselves as copies.

    Attributes:
        origin_offset: offset of the first copy of each timer, the row's own if that is it, or
            if it is no more.
        roll_times: how often it was rolled.
        not_before_ms: see TimerBatch.
        retries: how often it was parked.
        level: that of the first copy's request; NO_LEVEL where the row is none.
    """

    origin_offset: Int64
    roll_times: Int32
    not_before_ms: Int64
    retries: Int32
    level: Int32


def copies(fields: Mapping[Request, Field], offset: Int64, accepted: Bool) -> Copies:
    """What is known of copies, of every row.

    Args:
        fields: the requests.
        offset: the records' own.
        accepted: rows whose ORIGIN, NOT_BEFORE and RETRIES, if there are any, were found good.
    """
    count = len(offset)
    known = Copies(
        offset.copy(),
        np.zeros(count, np.int32),
        np.full(count, ANY_TIME, np.int64),
        np.zeros(count, np.int32),
        np.full(count, NO_LEVEL, np.int32),
    )
    field = fields.get(Request.ORIGIN)
    if field is None:
        return known
    is_copy = np.zeros(count, np.bool_)
    is_copy[field.rows] = True
    is_copy &= accepted
    known.roll_times[is_copy] = 1
    for request, column, last in (
        (Request.ORIGIN, known.origin_offset, SATURATED),
        (Request.ROLL_TIMES, known.roll_times, COUNT_MAX),
        (Request.NOT_BEFORE, known.not_before_ms, SATURATED),
        (Request.RETRIES, known.retries, COUNT_MAX),
        (Request.ASKED_LEVEL, known.level, LEVEL_MAX),
    ):
        given = fields.get(request)
        if given is not None:
            number, well_formed = parse_numbers(given.values)
            good = well_formed & (number >= 0) & is_copy[given.rows]
            column[given.rows[good]] = np.minimum(number[good], last)
    return known


def _partitions(values: Column) -> Int64:
    number, well_formed = parse_numbers(values)
    return np.where(well_formed, number, -1)
