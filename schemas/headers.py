"""The names of all headers, in one place: those a user may set, and those duewheel adds.

A request header under another name (of another delay service, say) is one more line in REQUEST.
Of headers with the same meaning the last one in a record counts; all are taken out at delivery.
A null value reads as an empty one.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, auto
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute

from duewheel.schemas.columns import Column, binary, filled, large_binary, take
from duewheel.schemas.timers import Bool, Int64

Int8 = npt.NDArray[np.int8]
_pa: Any = pa
_pc: Any = pyarrow.compute

# Added to what is delivered.
SOURCE = "TIMER_SOURCE"  # topic-partition@offset of the timer
DUE_MS = "TIMER_DUE_MS"  # requested due time, epoch ms
TIMER_ID = "UNIQ_KEY"  # the timer's id, the given one or the default: that of SOURCE
ROLL_TIMES = "TIMER_ROLL_TIMES"  # how often the timer was rolled, if it was

# Added to dead letters.
ERROR_CODE = "TIMER_ERROR_CODE"  # one word, for programs
ERROR = "TIMER_ERROR"  # a sentence, for people


class Request(IntEnum):
    """What a request header can mean. The first four are in order of precedence."""

    LEVEL = 0
    DELAY_SEC = auto()
    DELAY_MS = auto()
    DELIVER_AT = auto()
    TARGET_TOPIC = auto()
    TARGET_PARTITION = auto()
    TIMER_ID = auto()
    CANCEL = auto()
    RESCHEDULE = auto()
    IGNORED = auto()  # added by an earlier delivery: taken out, else it would be there twice


REQUEST: dict[str, Request] = {
    "DELAY": Request.LEVEL,
    "TIMER_DELAY_SEC": Request.DELAY_SEC,
    "TIMER_DELAY_MS": Request.DELAY_MS,
    "TIMER_DELIVER_MS": Request.DELIVER_AT,
    "REAL_TOPIC": Request.TARGET_TOPIC,
    "REAL_QID": Request.TARGET_PARTITION,
    TIMER_ID: Request.TIMER_ID,
    "TIMER_DEL_UNIQKEY": Request.CANCEL,
    "TIMER_RESCHEDULE": Request.RESCHEDULE,
    SOURCE: Request.IGNORED,
    DUE_MS: Request.IGNORED,
    ROLL_TIMES: Request.IGNORED,
}


@dataclass(frozen=True, slots=True)
class Headers:
    """The headers of a batch of records, flat.

    Attributes:
        names: large_binary, no nulls.
        values: large_binary; a null is a header without a value.
        firsts: row → index of its first header; one more entry at the end.
        request: what each header asks for, a Request or USERS.
    """

    names: Column
    values: Column
    firsts: Int64
    request: Int8

    def where(self, keep: Bool) -> Headers:
        """Only the wanted ones, as one group of all rows."""
        kept = np.flatnonzero(keep)
        firsts = np.array([0, len(kept)], np.int64)
        return Headers(take(self.names, kept), take(self.values, kept), firsts, self.request[kept])

    def rows(self) -> Int64:
        """The row of each header."""
        counts = np.diff(self.firsts)
        return np.repeat(np.arange(len(counts)), counts)

    def fields(self) -> dict[Request, Field]:
        """The requests made, by what they ask for; the last header of a row counts."""
        asked = np.flatnonzero(self.request >= 0)
        requests, rows = self.request[asked], self.rows()[asked]
        fields = {}
        for request in Request:
            mine = requests == request
            if mine.any():
                row, header = rows[mine], asked[mine]
                last = np.append(row[1:] != row[:-1], True)
                fields[request] = Field(row[last], filled(take(self.values, header[last])))
        return fields


@dataclass(frozen=True, slots=True)
class Field:
    """One request, where it is made.

    Attributes:
        rows: which rows make it, rising.
        values: large_binary: the header's value in those rows, empty for null.
    """

    rows: Int64
    values: Column

    def where(self, keep: Bool) -> Field:
        """Some of those rows; the whole field if all are kept."""
        if keep.all():
            return self
        return Field(self.rows[keep], take(self.values, np.flatnonzero(keep)))

    @classmethod
    def none(cls) -> Field:
        """A request that no row makes."""
        return cls(np.zeros(0, np.int64), binary([]))


USERS = -1
_KNOWN = _pa.array([name.encode() for name in REQUEST], pa.large_binary())
_MEANING = np.array([*REQUEST.values(), USERS], np.int8)


def read_headers(column: Any) -> Headers:
    """Headers as Spark gives them.

    Args:
        column: list<struct<key: string, value: binary>>, chunked or not; a null list has none.
    """
    counts = np.asarray(_pc.fill_null(_pc.list_value_length(column), 0))
    firsts = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=firsts[1:])
    flat = _pc.list_flatten(column)
    names = filled(large_binary(_pc.struct_field(flat, 0)))
    values = large_binary(_pc.struct_field(flat, 1))
    found = _pc.fill_null(_pc.index_in(names, value_set=_KNOWN), len(REQUEST))
    return Headers(names, values, firsts, _MEANING[np.asarray(found)])
