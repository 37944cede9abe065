"""The headers of a batch of records as columns, and their meanings (names: header_names.py).

A name that is no UTF-8 ends other clients, whose header names are text. Such a name is only read:
the stored name has a question mark for each of its bytes beyond ASCII, and no rule but
bad_header_name sees it. As the stored name is as long as the producer's, a record costs no more
memory and disk than any other of its size.

The meaning of a name depends on the mode of its topic. In a copy it has the native meaning, except
for a partition key. Of headers with the same meaning the last one in a record counts. A null value
reads as an empty one, except where it is a key.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.compute

from duewheel.schemas.arrays import Bool, Int32, Int64, bounds_of
from duewheel.schemas.columns import (
    ASCII,
    Column,
    binary,
    concat,
    constants,
    data,
    filled,
    from_parts,
    join,
    join_groups,
    offsets,
    only,
    take,
)
from duewheel.schemas.header_names import COPY_ONLY, DROP_IN, ORIGIN, REQUEST, Request
from duewheel.schemas.request.topic_settings import NATIVE
from duewheel.schemas.wire.record_codec import framed
from duewheel.schemas.wire.spans import RawHeaders, Spans

Int8 = npt.NDArray[np.int8]
_pc: Any = pyarrow.compute


@dataclass(frozen=True, slots=True)
class Headers:
    """The headers of a batch of records, flat."""

    raw: RawHeaders  # names, values and rows
    request: Int8  # the meaning of each header, a Request or USERS
    bad: Bool | None = None  # which headers have a name that was no UTF-8; None: no header has

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
    """One request, in the rows that make it."""

    rows: Int64  # rising
    values: Column  # empty for null; but in TARGET_KEY a null stays: it is a key

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


_STORED = bytes(octet if octet < 128 else ord("?") for octet in range(256))
# Arrow searches in a column of bytes byte by byte.
_UTF8 = (
    r"\A(?:[\x00-\x7f]|[\xc2-\xdf][\x80-\xbf]|\xe0[\xa0-\xbf][\x80-\xbf]"
    r"|[\xe1-\xec\xee\xef][\x80-\xbf]{2}|\xed[\x80-\x9f][\x80-\xbf]"
    r"|\xf0[\x90-\xbf][\x80-\xbf]{2}|[\xf1-\xf3][\x80-\xbf]{3}|\xf4[\x80-\x8f][\x80-\xbf]{2})*\z"
)
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
    """The meanings of headers. `mode` is an index in MODES for each row; None if all are native. In
    rows that are not `own` (None: all are) duewheel's headers have no meaning: a producer wrote
    them.
    """
    names = raw.names.column()
    bad = _no_utf8(names)
    if bad is not None:
        raw = _readable(raw, np.flatnonzero(bad))
    index = _pc.index_in(names, value_set=_NAME_SET)
    name = np.asarray(_pc.fill_null(index, len(_NAMES)))
    counts = np.diff(raw.firsts)
    if own is not None and not _OF_COPIES[name].any():
        own = None  # no header depends on it
    if mode is None and own is None:
        return Headers(raw, _MEANING[0][name], bad)
    row = np.repeat(np.arange(len(counts)), counts)
    meaning = np.zeros(len(counts), np.int8) if mode is None else mode.copy()
    copy = np.zeros(len(counts), np.bool_)
    copy[row[name == _ORIGIN]] = True
    if own is not None:
        copy &= own
        meaning[~own] += 2 * len(MODES)
    meaning[copy] += len(MODES)
    return Headers(raw, _MEANING[np.repeat(meaning, counts), name], bad)


def users_own(headers: Headers, own: Bool) -> Headers:
    """The headers, where `own` without their meaning: as headers of the user."""
    return replace(headers, request=np.where(own, USERS, headers.request)) if own.any() else headers


def _no_utf8(names: Column) -> Bool | None:
    """Which names are no UTF-8; None: all are."""
    beyond_ascii = np.flatnonzero(~only(names, ASCII))
    if not len(beyond_ascii):
        return None
    good = _pc.match_substring_regex(take(names, beyond_ascii), _UTF8)
    bad = np.zeros(len(names), np.bool_)
    bad[beyond_ascii] = ~np.asarray(good)
    return bad if bad.any() else None


def _readable(raw: RawHeaders, rows: Int64) -> RawHeaders:
    """The headers with the stored form of these names."""
    names = raw.names.take(rows).column()
    bounds = offsets(names)
    octets = data(names)[bounds[0] : bounds[-1]]
    shown = from_parts(bounds - bounds[0], octets.tobytes().translate(_STORED))
    stored = join(*framed(shown), *framed(raw.values.take(rows).column()))
    if len(rows) == len(raw.names):
        return replace(raw, both=Spans.of(stored))
    place_of = np.arange(len(raw.names))
    place_of[rows] = len(raw.names) + np.arange(len(rows))
    return replace(raw, both=Spans.of(take(concat([raw.both.column(), stored]), place_of)))


def badly_named(headers: Headers) -> Bool:
    """The rows with a header whose name was no UTF-8."""
    if headers.bad is None:
        return np.zeros(len(headers.firsts) - 1, np.bool_)
    rows: Bool = np.diff(bounds_of(headers.bad)[headers.firsts]) > 0
    return rows


def forged_rows(headers: Headers, own: Bool | None) -> Bool:
    """The rows with a header that only copies have, but that duewheel has not written. `own` as in
    `read_headers`.
    """
    count = len(headers.firsts) - 1
    if own is None or not (headers.request == Request.IGNORED).any():
        return np.zeros(count, np.bool_)
    index = _pc.index_in(headers.raw.names.column(), value_set=_FORGEABLE)
    rows: Bool = np.diff(bounds_of(np.asarray(index.is_valid()))[headers.firsts]) > 0
    return rows & ~own


def header_groups(headers: Headers, keep: Bool) -> tuple[Column, Int32]:
    """Each row's headers that `keep` selects, encoded as in records, and their number."""
    firsts = bounds_of(keep)[headers.firsts]
    both = headers.raw.both
    encoded = (both if keep.all() else both.take(keep)).column()
    return join_groups(encoded, firsts), np.diff(firsts).astype(np.int32)
