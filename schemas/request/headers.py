"""The headers of a batch of records as columns, and their meanings (names: header_names.py).

The meaning of a name depends on the mode of its topic. In a copy it has the native meaning, except
for a partition key. Of headers with the same meaning the last one in a record counts. A null value
reads as an empty one, except where it is a key.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.compute

from duewheel.schemas.arrays import Bool, Int32, Int64, bounds_of
from duewheel.schemas.columns import (
    Column,
    binary,
    concat,
    constants,
    filled,
    join_groups,
    take,
)
from duewheel.schemas.header_names import COPY_ONLY, DROP_IN, ORIGIN, REQUEST, Request
from duewheel.schemas.request.topic_settings import NATIVE
from duewheel.schemas.wire.spans import RawHeaders

Int8 = npt.NDArray[np.int8]
_pc: Any = pyarrow.compute


@dataclass(frozen=True, slots=True)
class Headers:
    """The headers of a batch of records, flat.

    Attributes:
        raw: names, values and the rows that they belong to.
        request: the meaning of each header, a Request or USERS.
    """

    raw: RawHeaders
    request: Int8

    @property
    def firsts(self) -> Int64:
        """Row → index of its first header; one more entry at the end."""
        return self.raw.firsts

    def rows(self) -> Int64:
        """The row of each header."""
        counts = np.diff(self.firsts)
        return np.repeat(np.arange(len(counts)), counts)

    def fields(self) -> dict[Request, Field]:
        """The requests by their meaning; the last header of a row counts."""
        with_request = np.flatnonzero(self.request >= 0)
        requests, rows = self.request[with_request], self.rows()[with_request]
        fields = {}
        for request in Request:
            mine = requests == request
            if mine.any():
                row, header = rows[mine], with_request[mine]
                last = np.append(row[1:] != row[:-1], True)
                values = self.raw.values.take(header[last]).column()
                is_key = request is Request.TARGET_KEY
                fields[request] = Field(row[last], values if is_key else filled(values))
        return fields


@dataclass(frozen=True, slots=True)
class Field:
    """One request, in the rows that make it.

    Attributes:
        rows: those rows, rising.
        values: large_binary: the header's value in those rows; empty for null, but in TARGET_KEY a
            null stays: it is a key.
    """

    rows: Int64
    values: Column

    def where(self, keep: Bool) -> Field:
        """Some of those rows; the whole field if all are kept."""
        if keep.all():
            return self
        return Field(self.rows[keep], take(self.values, np.flatnonzero(keep)))

    def beside(self, other: Field) -> Field:
        """The same request with the rows of `other`, too."""
        if not len(other.rows):
            return self
        rows = np.concatenate([self.rows, other.rows])
        order = np.argsort(rows)
        return Field(rows[order], take(concat([self.values, other.values]), order))

    @classmethod
    def none(cls) -> Field:
        """A request that no row makes."""
        return cls(np.zeros(0, np.int64), binary([]))


def rows_of(fields: Mapping[Request, Field], requests: Iterable[Request], count: int) -> Bool:
    """Which of `count` rows make one of the requests."""
    rows = np.zeros(count, np.bool_)
    for request in requests:
        if request in fields:
            rows[fields[request].rows] = True
    return rows


USERS = -1
MODES = (NATIVE, *DROP_IN)
"""The modes of topics; `mode` of a row is an index in them."""
_NAMES = [*dict.fromkeys(name for names in (REQUEST, *DROP_IN.values()) for name in names)]
_NAME_SET = constants([name.encode() for name in _NAMES])
_ORIGIN = _NAMES.index(ORIGIN)


_FORGEABLE = constants(
    [name.encode() for name, r in REQUEST.items() if r in COPY_ONLY and r != Request.ROLL_TIMES]
)


def _meanings(*names: dict[str, Request]) -> list[int]:
    """The meaning of each of _NAMES, then of all other names."""
    requests = {name: request for each in names for name, request in each.items()}
    return [*(requests.get(name, USERS) for name in _NAMES), USERS]


def _of_copies(names: dict[str, Request]) -> dict[str, Request]:
    return {name: r for name, r in names.items() if r is Request.PARTITION_KEY}


_DROP_INS = ({}, *DROP_IN.values())
_NO_COPY = {name: Request.IGNORED for name, request in REQUEST.items() if request in COPY_ONLY}
# A row for each mode, then one for copies in each mode, then one for forged copies in each.
_MEANING = np.array(
    [_meanings(REQUEST, names) for names in _DROP_INS]
    + [_meanings(REQUEST, _of_copies(names)) for names in _DROP_INS]
    + [_meanings(REQUEST, names, _NO_COPY) for names in _DROP_INS],
    np.int8,
)
_OF_COPIES = np.isin(_MEANING[0], [int(request) for request in COPY_ONLY])


def read_headers(raw: RawHeaders, mode: Int8 | None = None, own: Bool | None = None) -> Headers:
    """The meanings of headers.

    Args:
        raw: the headers.
        mode: row → index in MODES; None if all are native.
        own: rows that duewheel has written: headers of copies have a meaning there; None: all.
    """
    index = _pc.index_in(raw.names.column(), value_set=_NAME_SET)
    name = np.asarray(_pc.fill_null(index, len(_NAMES)))
    counts = np.diff(raw.firsts)
    if own is not None and not _OF_COPIES[name].any():
        own = None  # no header depends on it
    if mode is None and own is None:
        return Headers(raw, _MEANING[0][name])
    row = np.repeat(np.arange(len(counts)), counts)
    meaning = np.zeros(len(counts), np.int8) if mode is None else mode.copy()
    copy = np.zeros(len(counts), np.bool_)
    copy[row[name == _ORIGIN]] = True
    if own is not None:
        copy &= own
        meaning[~own] += 2 * len(MODES)
    meaning[copy] += len(MODES)
    return Headers(raw, _MEANING[np.repeat(meaning, counts), name])


def forged_rows(headers: Headers, own: Bool | None) -> Bool:
    """The rows with a header that only copies have, but that duewheel has not written.

    Args:
        headers: those of a batch, as `read_headers` gives them.
        own: as there.
    """
    count = len(headers.firsts) - 1
    if own is None or not (headers.request == Request.IGNORED).any():
        return np.zeros(count, np.bool_)
    index = _pc.index_in(headers.raw.names.column(), value_set=_FORGEABLE)
    rows: Bool = np.diff(bounds_of(np.asarray(index.is_valid()))[headers.firsts]) > 0
    return rows & ~own


def header_groups(headers: Headers, keep: Bool) -> tuple[Column, Int32]:
    """Each row's headers as they stand in records, and their number.

    Args:
        headers: those of a batch of rows.
        keep: which of them to write.
    """
    firsts = bounds_of(keep)[headers.firsts]
    both = headers.raw.both
    encoded = (both if keep.all() else both.take(keep)).column()
    return join_groups(encoded, firsts), np.diff(firsts).astype(np.int32)
