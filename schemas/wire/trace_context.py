"""W3C trace contexts in the headers of messages, encoded as in records.

A `traceparent` is

    "00-" trace id "-" span id "-" flags      of 32, 16 and 2 lower-case hexadecimal digits

with odd flags if the producer's tracer has sampled the trace, and ids that are not 0. `tracestate`,
another header, belongs to the same trace.

Any producer can write any bytes there: a header of another form is no trace context, and no error.
"""

from __future__ import annotations

import itertools
import re
from typing import Any, NamedTuple

import numpy as np
import pyarrow.compute

from duewheel.schemas.arrays import Int64
from duewheel.schemas.columns import Column, data, offsets
from duewheel.schemas.wire.record_codec import framed_bytes
from duewheel.schemas.wire.record_reader import header_starts
from duewheel.schemas.wire.varint import varint

_pc: Any = pyarrow.compute

HEADERS_MAX = 100  # of a message: in one with more, no trace context is looked for

_BYTES = 55
_NAME, _STATE_NAME = framed_bytes(b"traceparent"), framed_bytes(b"tracestate")
_BEFORE = _NAME + varint(_BYTES)
_FORM = re.compile(
    rb"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-[0-9a-f][13579bdf]"
)
_ODD = np.isin(np.arange(256), list(b"13579bdf"))


class TraceHeaders(NamedTuple):
    """A message's encoded headers with a sampled context: the ids of the producer's span."""

    headers: bytes
    starts: list[int]  # of each header
    at: int  # start of the first `traceparent`
    trace_id: int
    span_id: int

    def replaced(self, context: bytes) -> tuple[bytes, int]:
        """The headers with another context of 55 bytes, and without the state of the producer's
        trace; and their number.
        """
        parts = [
            _BEFORE + context if first == self.at else self.headers[first:end]
            for first, end in itertools.pairwise([*self.starts, len(self.headers)])
            if first == self.at or not self.headers.startswith((_NAME, _STATE_NAME), first)
        ]
        return b"".join(parts), len(parts)


def sampled(headers: Column) -> tuple[Int64, Int64]:
    """The rows that seem to have a sampled context, and where its header begins in each. Only two
    places are compared: `trace_headers` decides.
    """
    at: Int64 = np.asarray(_pc.find_substring(headers, _BEFORE)).astype(np.int64)
    rows, bounds = np.flatnonzero(at >= 0), offsets(headers)
    last = bounds[rows] + at[rows] + len(_BEFORE) + _BYTES - 1
    odd = (last < bounds[rows + 1]) & _ODD[data(headers).take(last, mode="clip")]
    return rows[odd], at[rows[odd]]


def trace_headers(headers: bytes, count: int, at: int) -> TraceHeaders | None:
    """The headers of a message, `count` of them, whose `traceparent` begins `at`; None if it has
    another form, or is inside another header's value.
    """
    form = _FORM.fullmatch(headers, at + len(_BEFORE), at + len(_BEFORE) + _BYTES)
    if form is None or count > HEADERS_MAX:
        return None
    starts, _ = header_starts(headers, count)
    if at not in starts:
        return None
    return TraceHeaders(headers, starts, at, int(form[1], 16), int(form[2], 16))
