"""Trace contexts in encoded headers: found where they are headers, replaced, and left alone."""

from __future__ import annotations

import pytest

from duewheel.schemas.columns import binary
from duewheel.schemas.wire.single_record import Header, header
from duewheel.schemas.wire.trace_context import HEADERS_MAX, sampled, trace_headers

TRACE_ID, SPAN_ID = 0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331
CONTEXT = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
OWN = b"00-00000000000000000000000000000001-0000000000000002-01"


def encoded(*headers: Header) -> bytes:
    return b"".join(header(name, value) for name, value in headers)


def found(*headers: Header) -> tuple[int, int] | None:
    """The ids that are found."""
    raw = encoded(*headers)
    rows, at = sampled(binary([b"", raw])[1:])
    if not len(rows):
        return None
    parsed = trace_headers(raw, len(headers), int(at[0]))
    return None if parsed is None else (parsed.trace_id, parsed.span_id)


@pytest.mark.parametrize("before", [[], [("a", b"1")], [("a", None), ("long", b"x" * 300)]])
def test_a_sampled_context_is_found(before: list[Header]) -> None:
    assert found(*before, ("traceparent", CONTEXT), ("b", b"")) == (TRACE_ID, SPAN_ID)
    assert found(*before, ("traceparent", CONTEXT[:-2] + b"fb")) == (TRACE_ID, SPAN_ID)


@pytest.mark.parametrize(
    "value",
    [
        *(None, b"", b"x", CONTEXT[:-1], CONTEXT + b"-", b"x" * 55, b"\xff" * 55),
        *(CONTEXT[:-2] + flags for flags in (b"00", b"02", b"0x", b"0A", b"x1")),
        *(b"ff" + CONTEXT[2:], CONTEXT.upper(), CONTEXT.replace(b"-", b"_")),
        *(b"00-" + b"0" * 32 + CONTEXT[35:], CONTEXT[:36] + b"0" * 16 + CONTEXT[52:]),
    ],
)
def test_what_is_not_sampled_or_no_context_is_ignored(value: bytes | None) -> None:
    assert found(("traceparent", value)) is None


def test_inside_of_another_value_it_is_no_header() -> None:
    inner = encoded(("traceparent", CONTEXT))
    assert found(("envelope", inner)) is None
    assert found(("envelope", inner), ("traceparent", CONTEXT)) is None, "the first one counts"
    assert found(("traceparent", CONTEXT), ("envelope", inner)) == (TRACE_ID, SPAN_ID)


def test_in_too_many_headers_none_is_looked_for() -> None:
    others: list[Header] = [("a", b"")] * HEADERS_MAX
    assert found(*others, ("traceparent", CONTEXT)) is None
    assert found(*others[1:], ("traceparent", CONTEXT)) == (TRACE_ID, SPAN_ID)


def test_rows_of_a_column_are_found_by_their_numbers() -> None:
    rows = [encoded(("traceparent", CONTEXT[:-1] + flag)) for flag in (b"0", b"1", b"2", b"3")]
    column = binary([b"", b"a", *rows, rows[1][:-1]])
    assert sampled(column)[0].tolist() == [3, 5]
    assert sampled(column[3:])[0].tolist() == [0, 2]
    assert sampled(column[:0])[0].tolist() == sampled(binary([]))[0].tolist() == []


def test_another_context_takes_its_place_and_the_state_of_the_trace_goes() -> None:
    others: list[Header] = [("traceparents", b"1"), ("baggage", b"k=v")]
    headers = [
        *(("a", b"1"), ("traceparent", CONTEXT), ("tracestate", b"v=1"), *others),
        *(("traceparent", CONTEXT), ("tracestate", None)),
    ]
    raw = encoded(*headers)
    parsed = trace_headers(raw, len(headers), raw.index(b"\x16traceparent"))
    assert parsed is not None
    expected = [("a", b"1"), ("traceparent", OWN), *others]
    assert parsed.replaced(OWN) == (encoded(*expected), len(expected))
