"""Which rows cancel timers, and what is wrong with those that cannot.

    TIMER_DEL_UNIQKEY: id     a pure cancel: no timer. It has no due time and no target: headers
                              that say so mean nothing, but its id is checked
    TIMER_RESCHEDULE: true    a timer that cancels the earlier ones of its own id; "false" is as
                              good as no such header

Both act on timers of their own partition with a lower offset. Copies (record_tail.py) cancel
nothing: the cancel half of a reschedule is a matter of its first copy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute

from duewheel.schemas.columns import ascii_text, lengths
from duewheel.schemas.header_names import Request
from duewheel.schemas.headers import Field, Int8
from duewheel.schemas.timers import Bool

_pa: Any = pa
_pc: Any = pyarrow.compute

NOTHING = -1
WORDS = ("cancel", "reschedule", "bad_id", "bad_flag", "no_id", "both", "copy")
"""What a row is (the first two), or why it cannot be that."""
_CANCEL, _RESCHEDULE, _BAD_ID, _BAD_FLAG, _NO_ID, _BOTH, _COPY = range(len(WORDS))

ID_BYTES_MAX = 255
# What a pure cancel has no use for.
_OF_TIMERS = frozenset(Request) - {
    Request.CANCEL,
    Request.ORIGIN,
    Request.NOT_BEFORE,
    Request.RETRIES,
}
_OF_COPIES = (Request.ORIGIN, Request.NOT_BEFORE, Request.RETRIES)


@dataclass(frozen=True, slots=True)
class Cancels:
    """What the rows of a batch cancel.

    Attributes:
        word: row → index in WORDS, or NOTHING.
        pure: the row is no timer.
        ids: of these rows: the id that they cancel.
    """

    word: Int8
    pure: Bool
    ids: Field

    def accepted(self, rejected: Bool) -> tuple[Bool, Bool]:
        """`timer` and `cancels` of TimerBatch."""
        return ~self.pure | rejected, (self.word != NOTHING) & ~rejected

    def of_timers(self, fields: Mapping[Request, Field]) -> Mapping[Request, Field]:
        """The requests without those that mean nothing, because the row is no timer."""
        if not len(self.ids.rows):
            return fields
        return {
            request: field.where(~self.pure[field.rows]) if request in _OF_TIMERS else field
            for request, field in fields.items()
        }


def read_cancels(fields: Mapping[Request, Field], count: int) -> Cancels:
    """What `count` rows cancel, by their requests."""
    word = np.full(count, NOTHING, np.int8)
    pure = np.zeros(count, np.bool_)
    ids = fields.get(Request.CANCEL, Field.none())
    flags = fields.get(Request.RESCHEDULE, Field.none())
    if not len(ids.rows) and not len(flags.rows):
        return Cancels(word, pure, ids)
    copy = _any_of(fields, _OF_COPIES, count)
    asked, unclear = _flags(flags)
    named = _any_of(fields, (Request.TIMER_ID,), count)
    word[flags.rows[asked]] = np.where(named[flags.rows[asked]], _RESCHEDULE, _NO_ID)
    word[flags.rows[unclear]] = _BAD_FLAG
    size = lengths(ids.values)
    of_id = np.where((size > 0) & (size <= ID_BYTES_MAX), _CANCEL, _BAD_ID)
    word[ids.rows] = np.where(word[ids.rows] == NOTHING, of_id, _BOTH)
    word[(word != NOTHING) & copy] = _COPY
    pure[ids.rows] = True
    return Cancels(word, pure, ids)


def _any_of(fields: Mapping[Request, Field], requests: tuple[Request, ...], count: int) -> Bool:
    found = np.zeros(count, np.bool_)
    for request in requests:
        if request in fields:
            found[fields[request].rows] = True
    return found


def _flags(flags: Field) -> tuple[Bool, Bool]:
    """Which of the values are true, and which are neither true nor false."""
    text = _pc.ascii_lower(ascii_text(flags.values))
    asked = np.asarray(_pc.equal(text, "true"))
    return asked, ~asked & ~np.asarray(_pc.equal(text, "false"))
