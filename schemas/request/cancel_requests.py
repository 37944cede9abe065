"""Timer ids, and the rows that cancel timers; a verdict on each malformed cancel.

    TIMER_DEL_UNIQKEY: id     a pure cancel: no timer. Headers for due time and target have no
                              meaning
    TIMER_RESCHEDULE: true    a timer that cancels the earlier ones of its own id; "false" equals
                              no such header
    a null value              where the topic's settings allow it (row_settings.py), a pure cancel
                              of the id that is the record's key
    the key as id             where the topic's settings require it, a timer that cancels the
                              earlier ones of its own id
    TIMER_CANCEL_OFFSET: n    beside any of these: only the timer whose first copy has offset n
    TIMER_IF_PENDING: keep    a timer that cancels nothing, and is dropped while an earlier one of
                              its own id is pending (wheel/append/keeps.py)
    TIMER_IF_PENDING: replace the same as TIMER_RESCHEDULE: true

All act on timers of their own partition with a lower offset. Copies (record_codec.py) cancel
nothing: the first copy of a reschedule has done so. A pure cancel with TIMER_ORIGIN and
TIMER_CANCEL_SLOT is a chase, written by dequeue: it acts on the timers that its request, at that
lower offset, matches.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute

from duewheel.schemas.arrays import Bool, Int64
from duewheel.schemas.batches import ANY_OFFSET
from duewheel.schemas.columns import ascii_text, lengths
from duewheel.schemas.header_names import ID_BYTES_MAX, Request
from duewheel.schemas.request.header_values import SATURATED, parse_numbers
from duewheel.schemas.request.headers import Field, Int8, rows_of

_pa: Any = pa
_pc: Any = pyarrow.compute

NOTHING = -1
IF_PENDING_DEFECTS = ("word", "no_id", "beside")
"""No such word; a timer without an id; beside a cancel, a reschedule or a recurrence."""
_UNCLEAR, _WITHOUT_ID, _BESIDE = range(len(IF_PENDING_DEFECTS))
VERDICTS = ("cancel", "reschedule", "bad_id", "bad_flag", "no_id", "both", "copy")
"""The kind of cancel (the first two), or the defect."""
_CANCEL, _RESCHEDULE, _BAD_ID, _BAD_FLAG, _NO_ID, _BOTH, _COPY = range(len(VERDICTS))

_OF_COPIES = (Request.ORIGIN, Request.NOT_BEFORE, Request.RETRIES)
# The headers that have a meaning beside a cancel.
_OF_CANCELS = frozenset(
    {
        Request.CANCEL,
        Request.CANCEL_OFFSET,
        *_OF_COPIES,
        Request.CHASE_SLOT,
        Request.CHASE_FLAGS,
    }
)


@dataclass(frozen=True, slots=True)
class CancelRequests:
    """The cancels of a batch, and the ids of its rows."""

    verdict: Int8  # index in VERDICTS, or NOTHING
    pure: Bool  # the row is a cancel and no timer
    # Of rows without the default id: a timer's own, or the id that a pure cancel cancels
    ids: Field
    named_offset: Int64  # as in TimerBatch
    keeps: Bool  # as in TimerBatch, without a defect
    if_pending: Int8  # the defect of TIMER_IF_PENDING, an index in IF_PENDING_DEFECTS, or NOTHING

    def accepted(self, rejected: Bool) -> tuple[Bool, Bool]:
        """`timer` and `cancels` of TimerBatch."""
        return ~self.pure | rejected, (self.verdict != NOTHING) & ~rejected

    def of_timers(self, fields: Mapping[Request, Field]) -> Mapping[Request, Field]:
        """The requests without those that have no meaning in a pure cancel."""
        if not self.pure.any():
            return fields
        kept = {}
        for request, field in fields.items():
            mine = field if request in _OF_CANCELS else field.where(~self.pure[field.rows])
            if len(mine.rows):
                kept[request] = mine
        return kept


def read_cancels(
    fields: Mapping[Request, Field], cancelling_keys: Field, keys_as_ids: Field, count: int
) -> CancelRequests:
    """The ids and cancels of `count` rows. `cancelling_keys` has the rows that are cancels without
    TIMER_DEL_UNIQKEY, and their ids; `keys_as_ids` the rows without UNIQ_KEY whose key is their id.
    """
    verdict = np.full(count, NOTHING, np.int8)
    pure = np.zeros(count, np.bool_)
    named_offset = np.full(count, ANY_OFFSET)
    cancelled = fields.get(Request.CANCEL, Field.none()).beside(cancelling_keys)
    own = fields.get(Request.TIMER_ID, Field.none()).beside(keys_as_ids)
    flags = fields.get(Request.RESCHEDULE, Field.none())
    keeps, if_pending = np.zeros(count, np.bool_), np.full(count, NOTHING, np.int8)
    asks = Request.IF_PENDING in fields
    if not (len(cancelled.rows) or len(flags.rows) or len(keys_as_ids.rows) or asks):
        return CancelRequests(verdict, pure, own, named_offset, keeps, if_pending)
    # From here on each line overwrites the verdicts of those above: this order is the precedence.
    verdict[keys_as_ids.rows] = _RESCHEDULE
    if asks:
        _read_if_pending(fields, own, cancelled, verdict, keeps, if_pending)
    is_true, unclear = _flags(flags)
    named = np.zeros(count, np.bool_)
    named[own.rows] = True
    verdict[flags.rows[is_true]] = np.where(named[flags.rows[is_true]], _RESCHEDULE, _NO_ID)
    verdict[flags.rows[unclear]] = _BAD_FLAG
    given = np.zeros(count, np.bool_)
    given[flags.rows[is_true | unclear]] = True
    size = lengths(cancelled.values)
    of_id = np.where((size > 0) & (size <= ID_BYTES_MAX), _CANCEL, _BAD_ID)
    verdict[cancelled.rows] = np.where(given[cancelled.rows], _BOTH, of_id)
    chase = (verdict == _CANCEL) & rows_of(fields, [Request.CHASE_SLOT], count)
    chase &= ~rows_of(fields, [Request.NOT_BEFORE, Request.RETRIES], count)
    verdict[(verdict != NOTHING) & rows_of(fields, _OF_COPIES, count) & ~chase] = _COPY
    _name_one(fields.get(Request.CANCEL_OFFSET, Field.none()), verdict, named_offset)
    pure[cancelled.rows] = True
    ids = own.where(~pure[own.rows]).beside(cancelled)
    return CancelRequests(verdict, pure, ids, named_offset, keeps, if_pending)


def _read_if_pending(
    fields: Mapping[Request, Field],
    own: Field,
    cancelled: Field,
    verdict: Int8,
    keeps: Bool,
    if_pending: Int8,
) -> None:
    """Sets the rows that keep and those that reschedule, or the defects, of rows with
    TIMER_IF_PENDING. In a copy it has no meaning: it is decided once, for the first one.
    """
    count = len(verdict)
    field = fields[Request.IF_PENDING]
    field = field.where(~rows_of(fields, [Request.ORIGIN], count)[field.rows])
    rows, named, both = field.rows, np.zeros(count, np.bool_), np.zeros(count, np.bool_)
    keep, replace = (np.asarray(_pc.equal(field.values, word)) for word in (b"keep", b"replace"))
    named[own.rows] = True
    both[cancelled.rows] = True
    both |= rows_of(fields, [Request.RESCHEDULE], count)
    recurring = rows_of(fields, [Request.CRON, Request.EVERY], count)[rows]
    # Each line overwrites the defects of those above.
    if_pending[rows[both[rows] | (keep & recurring)]] = _BESIDE
    if_pending[rows[~named[rows]]] = _WITHOUT_ID
    if_pending[rows[~keep & ~replace]] = _UNCLEAR
    good = if_pending[rows] == NOTHING
    verdict[rows[good]] = np.where(keep[good], NOTHING, _RESCHEDULE)
    keeps[rows[good & keep]] = True


def _name_one(field: Field, verdict: Int8, named_offset: Int64) -> None:
    """Sets in `named_offset` the one timer that each row with TIMER_CANCEL_OFFSET (`field`)
    cancels. A malformed offset matches no timer: otherwise the row would cancel all of its id.
    """
    number, good = parse_numbers(field.values)
    named = np.where(good & (number >= 0), number, SATURATED)
    cancels = (verdict[field.rows] == _CANCEL) | (verdict[field.rows] == _RESCHEDULE)
    named_offset[field.rows[cancels]] = named[cancels]


def _flags(flags: Field) -> tuple[Bool, Bool]:
    """Which of the values are true, and which are neither true nor false."""
    text = _pc.ascii_lower(ascii_text(flags.values))
    is_true = np.asarray(_pc.equal(text, "true"))
    return is_true, ~is_true & ~np.asarray(_pc.equal(text, "false"))
