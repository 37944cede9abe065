"""Header values as numbers and instants, a column at a time. Any bytes are allowed.

number     optional sign, decimal digits, nothing else; beyond 15 significant digits it
           saturates, so that sums of a few numbers fit 64 bits
instant    a number of epoch milliseconds, or ISO-8601 with a zone:
           2027-01-31T08:30:00Z, 2027-01-31T08:30+01:00, 2027-01-31T08:30:00.250-05:30;
           digits beyond the millisecond round up, because a timer is never early; 64 bytes at
           most, because the pattern takes 0.1 s for a MB, in the way of other topics' timers
local time ISO-8601 as above; without a zone in UTC
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute

from duewheel.schemas.arrays import Bool, Int64
from duewheel.schemas.columns import (
    Column,
    ascii_text,
    choose,
    constant,
    first_bytes,
    lengths,
    only,
    take,
)

_pa: Any = pa
_pc: Any = pyarrow.compute

_DIGITS_MAX = 15
_ISO_BYTES_MAX = 64
SATURATED = 10**_DIGITS_MAX - 1

_IS_DIGIT = np.isin(np.arange(256), list(b"0123456789"))
_IS_SIGN = np.isin(np.arange(256), list(b"+-"))


def parse_numbers(column: Column) -> tuple[Int64, Bool]:
    """The numbers, and which values are one; the others read 0."""
    first = first_bytes(column)
    well_formed = only(column, _IS_DIGIT, _IS_SIGN) & (lengths(column) > _IS_SIGN[first])
    text = ascii_text(column)
    if not well_formed.all():
        text = _pc.if_else(_pa.array(well_formed), text, "0")
    significant = _pc.ascii_ltrim(text, characters="+-0")
    length = np.asarray(_pc.binary_length(significant))
    if (length > _DIGITS_MAX).any():
        significant = _pc.if_else(_pa.array(length > _DIGITS_MAX), str(SATURATED), significant)
    if (length == 0).any():
        significant = _pc.if_else(_pa.array(length == 0), "0", significant)
    numbers = np.array(_pc.cast(significant, pa.int64()))
    return np.where(first == ord("-"), -numbers, numbers), well_formed


_ISO_LOCAL = (
    r"^(?P<year>[0-9]{4})-(?P<month>[0-9]{2})-(?P<day>[0-9]{2})"
    r"T(?P<hour>[0-9]{2}):(?P<minute>[0-9]{2})"
    r"(?::(?P<second>[0-9]{2})(?:\.(?P<fraction>[0-9]+))?)?"
    r"(?:Z|(?P<sign>[+-])(?P<zone_hour>[0-9]{2}):(?P<zone_minute>[0-9]{2}))?$"
)
_ISO = _ISO_LOCAL.removesuffix("?$") + "$"


def parse_instants(column: Column) -> tuple[Int64, Bool]:
    """Epoch milliseconds, and which values are an instant; the others read 0."""
    instants, well_formed = parse_numbers(column)
    others = np.flatnonzero(~well_formed)
    if len(others):
        instants[others], well_formed[others] = _parse_iso(take(column, others), _ISO)
    return instants, well_formed


def parse_local_times(column: Column) -> tuple[Int64, Bool]:
    """The same for ISO-8601 only, in UTC without a zone."""
    return _parse_iso(column, _ISO_LOCAL)


def _parse_iso(column: Column, pattern: str) -> tuple[Int64, Bool]:
    """The same for one form of ISO-8601."""
    is_short = lengths(column) <= _ISO_BYTES_MAX
    if not is_short.all():
        column = choose(is_short, column, constant(b""))
    fields = _pc.extract_regex(ascii_text(column), pattern)
    matches = np.asarray(fields.is_valid())

    def number(name: str) -> Int64:
        text = _pc.if_else(_pa.array(matches), _pc.struct_field(fields, name), "0")
        return np.asarray(_pc.cast(_pc.if_else(_pc.equal(text, ""), "0", text), pa.int64()))

    year, month, day = number("year"), number("month"), number("day")
    hour, minute, second = number("hour"), number("minute"), number("second")
    zone_hour, zone_minute = number("zone_hour"), number("zone_minute")
    # The first of a month and the first of the next bound the days that it has.
    months = np.where(month > 0, (year - 1970) * 12 + month - 1, 0)
    first, next_first = (_epoch_days(months), _epoch_days(months + 1))
    valid = matches & (year >= 1) & (month >= 1) & (month <= 12)
    valid &= (day >= 1) & (day <= next_first - first)
    valid &= (hour <= 23) & (minute <= 59) & (second <= 59)
    valid &= (zone_hour <= 23) & (zone_minute <= 59)
    east = np.where(
        np.asarray(_pc.equal(_pc.struct_field(fields, "sign"), "-").fill_null(False)), -1, 1
    )
    minutes = ((first + day - 1) * 24 + hour - east * zone_hour) * 60 + minute - east * zone_minute
    instants = (minutes * 60 + second) * 1000 + _fraction_ms(_pc.struct_field(fields, "fraction"))
    return np.where(valid, instants, 0), valid


def _epoch_days(months: Int64) -> Int64:
    """Days from the epoch to the first of a month, given in months from the epoch."""
    return months.astype("datetime64[M]").astype("datetime64[D]").astype(np.int64)


def _fraction_ms(fraction: Any) -> Int64:
    """Milliseconds of the digits after a second's point, rounded up; 0 for none."""
    digits = _pc.fill_null(fraction, "")
    shown = _pc.utf8_rpad(_pc.utf8_slice_codeunits(digits, 0, 3), 3, "0")
    below = _pc.utf8_rtrim(_pc.utf8_slice_codeunits(digits, 3), "0")
    carry = np.asarray(_pc.binary_length(below)) > 0
    return np.asarray(_pc.cast(shown, pa.int64())) + carry
