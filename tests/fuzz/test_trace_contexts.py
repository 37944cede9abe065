"""Headers that are looked for where a timer leaves: OpenTelemetry's own parser finds the same trace
contexts, and the instant of an expiry is that of its own row.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.trace import get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from duewheel.schemas.columns import binary
from duewheel.schemas.request.header_values import parse_instants
from duewheel.schemas.wire.record_reader import header_starts, header_values
from duewheel.schemas.wire.single_record import header
from duewheel.schemas.wire.trace_context import HEADERS_MAX, sampled, trace_headers

Change = Callable[[st.DataObject, bytes], bytes]

CONTEXT = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
OWN = b"00-00000000000000000000000000000001-0000000000000002-01"
DIGITS = st.sampled_from("00000123456789abcdefABCDEFg-")
Header = tuple[str, bytes | None]
VALUES = st.sampled_from([None, header("at", b"1"), b"\x04at\x02", b"1"]) | st.binary(max_size=9)
NAMES = st.sampled_from(["traceparent", "tracestate", "a"])


def read_by_the_library(value: bytes) -> tuple[int, int] | None:
    """The ids of a sampled context."""
    carrier = {"traceparent": value.decode("latin-1")}
    context = get_current_span(TraceContextTextMapPropagator().extract(carrier)).get_span_context()
    is_sampled = context.is_valid and context.trace_flags.sampled
    return (context.trace_id, context.span_id) if is_sampled else None


@given(data=st.data())
def test_the_library_finds_the_same_context(data: st.DataObject, damage: Change) -> None:
    value = CONTEXT
    for _ in range(data.draw(st.integers(0, 3))):
        at = data.draw(st.integers(0, len(CONTEXT) - 1))
        digits = data.draw(st.text(DIGITS, max_size=32)).encode()
        value = (value[:at] + digits + value[at + len(digits) :])[: len(CONTEXT)]
    value = damage(data, value) if data.draw(st.booleans()) else value
    raw = header("traceparent", value)
    rows, at_ = sampled(binary([raw]))
    parsed = trace_headers(raw, 1, int(at_[0])) if len(rows) else None
    found = None if parsed is None else (parsed.trace_id, parsed.span_id)
    # Blanks around it, and longer ones of later versions, are left to it.
    assert found == (read_by_the_library(value) if len(value) == len(CONTEXT) else None)


@given(data=st.data())
def test_any_bytes_are_read_and_others_headers_stay(data: st.DataObject, damage: Change) -> None:
    values = st.sampled_from([CONTEXT, header("traceparent", CONTEXT), b"v=1"]) | st.binary()
    headers = data.draw(st.lists(st.tuples(NAMES, values | st.none()), max_size=HEADERS_MAX + 2))
    raw, count = b"".join(header(*each) for each in headers), len(headers)
    rows, at = sampled(binary([raw]))
    if len(rows) and (parsed := trace_headers(raw, count, int(at[0]))) is not None:
        new, left = parsed.replaced(OWN)
        starts, end = header_starts(new, left)
        assert (end, len(starts)) == (len(new), left)
        own = header("traceparent", OWN)
        kept = [header(*each) for each in headers if each[0] == "a"]
        assert [new[a:b] for a, b in zip(starts, [*starts[1:], end], strict=True)].count(own) == 1
        assert new.replace(own, b"", 1) == b"".join(kept)
    # Bytes that no encoder has written.
    raw = damage(data, raw)
    rows, at = sampled(binary([raw]))
    for start in at.tolist():
        trace_headers(raw, count, start)


@given(rows=st.lists(st.lists(st.tuples(st.sampled_from(["at", "a"]), VALUES), max_size=9)))
def test_a_value_is_that_of_the_first_header_of_its_name(rows: list[list[Header]]) -> None:
    encoded = binary(b"".join(header(*each) for each in row) for row in rows)
    counts = np.array([len(row) for row in rows], np.int32)
    found, values = header_values(encoded, counts, "at", 9)
    first = {n: [value for name, value in row if name == "at"][:1] for n, row in enumerate(rows)}
    wanted = {n: each[0] or b"" for n, each in first.items() if each}
    assert dict(zip(found.tolist(), values.to_pylist(), strict=True)) == wanted
    assert all(len(part) == len(found) for part in parse_instants(values))
