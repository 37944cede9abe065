"""Header values, precedence, and the columns made of a list of headers."""

from __future__ import annotations

import datetime as dt
import re
import tracemalloc
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.harness.source_table import HEADERS, raw_headers

from duewheel.schemas.columns import binary, join
from duewheel.schemas.header_names import LEVELS_MS, REQUEST, SERVICE, Request
from duewheel.schemas.request.due_times import due_times
from duewheel.schemas.request.header_values import SATURATED, parse_instants, parse_numbers
from duewheel.schemas.request.headers import USERS, badly_named, header_groups, read_headers
from duewheel.schemas.wire.record_codec import framed
from duewheel.schemas.wire.spans import Spans

NOW_MS = 1_800_000_000_000

Header = tuple[str, bytes | None]


def column(*rows: list[Header] | None) -> Any:
    return pa.array(
        [row if row is None else [{"key": k, "value": v} for k, v in row] for row in rows], HEADERS
    )


@given(st.lists(st.binary(max_size=20) | st.from_regex(rb"\A[+-]?0*[0-9]{0,18}\Z"), max_size=20))
@example([b"", b"-", b"+", b"+-1", b"-0", b"1-", b"0" * 400, b"9" * 400, b"-" + b"9" * 16])
@example([b"999999999999999", b"1000000000000000", b" 1", b"1 ", b"1_0", b"0x1", b"1e3", b"1.0"])
@example(["٣".encode(), b"\xff1", b"1\x00"])
def test_numbers(values: list[bytes]) -> None:
    numbers, well_formed = parse_numbers(binary(values))
    for value, number, good in zip(values, numbers.tolist(), well_formed.tolist(), strict=True):
        assert good == bool(re.fullmatch(rb"[+-]?[0-9]+", value))
        assert number == (max(-SATURATED, min(int(value), SATURATED)) if good else 0)


def test_numbers_of_part_of_a_column() -> None:
    numbers, well_formed = parse_numbers(binary([b"x", b"-12", b"", b"7"]).slice(1))
    assert (numbers.tolist(), well_formed.tolist()) == ([-12, 0, 7], [True, False, True])


@given(
    st.integers(-62_135_500_000_000_000, 253_402_200_000_000_000),
    st.integers(-1439, 1439),
    st.booleans(),
)
def test_instants_are_those_of_datetime(local_us: int, zone: int, zulu: bool) -> None:
    zone = 0 if zulu else zone
    sign, (hours, minutes) = "-" if zone < 0 else "+", divmod(abs(zone), 60)
    local = dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=local_us)
    text = local.isoformat()[:-6] + ("Z" if zulu else f"{sign}{hours:02}:{minutes:02}")
    (instant,), (good,) = parse_instants(binary([text.encode()]))
    assert good
    assert instant == -(-local_us // 1000) - zone * 60_000  # rounded up


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("1970-01-01T01:00+01:00", 0),
        ("2024-02-29T12:00:00.5-05:30", 1709227800500),
        ("2027-01-15T08:00:00.0000Z", 1800000000000),
        ("2027-01-15T08:00:00.0000001Z", 1800000000001),
        ("2027-01-15T08:00:00.999999999999999999999Z", 1800000001000),
        ("1969-12-31T23:59:59.001Z", -999),
        (f"2027-01-15T08:00:00.{'0' * 43}Z", 1800000000000),
        ("-1", -1),
        ("+1800000000000", 1800000000000),
    ],
)
def test_instants(text: str, expected: int) -> None:
    instants, well_formed = parse_instants(binary([text.encode()]))
    assert well_formed.tolist() == [True]
    assert instants.tolist() == [expected]


@pytest.mark.parametrize(
    "text",
    [
        "2027-02-29T00:00:00Z",
        "2100-02-29T00:00:00Z",
        "2027-04-31T00:00:00Z",
        "2027-00-01T00:00:00Z",
        "2027-13-01T00:00:00Z",
        "2027-01-00T00:00:00Z",
        "2027-01-32T00:00:00Z",
        "0000-01-01T00:00:00Z",
        "2027-01-01T24:00:00Z",
        "2027-01-01T00:60:00Z",
        "2027-01-01T00:00:60Z",
        "2027-01-01T00:00:00+24:00",
        "2027-01-01T00:00:00+00:60",
        "2027-01-01T00:00:00",
        "2027-01-01T00:00:00.Z",
        "2027-01-01T00:00:00Z ",
        "2027-01-01T00:00:00Z\n",
        " 2027-01-01T00:00:00Z",
        "2027-01-01 00:00:00Z",
        "2027-01-01",
        "20270101T000000Z",
        f"2027-01-01T00:00:00.{'0' * 44}Z",
        "２027-01-01T00:00:00Z",
        "",
    ],
)
def test_what_is_no_instant(text: str) -> None:
    instants, well_formed = parse_instants(binary([text.encode()]))
    assert (instants.tolist(), well_formed.tolist()) == ([0], [False])


def due(*rows: list[Header]) -> list[int | str]:
    """The due time of each row, relative to its timestamp, or what is wrong."""
    fields = read_headers(raw_headers(column(*rows))).fields()
    found = due_times(fields, np.full(len(rows), NOW_MS), LEVELS_MS)
    out: list[int | str] = []
    for due_ms, known, bad in zip(found.due_ms, found.valid, found.bad, strict=True):
        assert not (known and bad >= 0)
        out.append(int(due_ms) - NOW_MS if known else "none" if bad < 0 else Request(bad).name)
    return out


def test_each_way_to_ask_for_a_time() -> None:
    assert due(
        [("DELAY", b"3")],
        [("TIMER_DELAY_SEC", b"3")],
        [("TIMER_DELAY_MS", b"3")],
        [("TIMER_DELIVER_MS", b"%d" % (NOW_MS + 3))],
        [("TIMER_DELIVER_MS", b"2027-01-15T08:00:00.003Z")],
        [],
    ) == [10_000, 3_000, 3, 3, 3, "none"]


def test_precedence() -> None:
    ways: list[Header] = [
        ("TIMER_DELIVER_MS", b"%d" % (NOW_MS + 4)),
        ("TIMER_DELAY_MS", b"3"),
        ("TIMER_DELAY_SEC", b"2"),
        ("DELAY", b"1"),
    ]
    assert due(ways[:1], ways[:2], ways[:3], ways[:4], ways[::-1]) == [4, 3, 2_000, 1_000, 1_000]


def test_only_the_winner_must_be_well_formed() -> None:
    assert due(
        [("DELAY", b"1"), ("TIMER_DELAY_SEC", b"x"), ("TIMER_DELIVER_MS", b"")],
        [("DELAY", b"x"), ("TIMER_DELAY_SEC", b"1")],
        [("DELAY", None), ("TIMER_DELAY_SEC", b"1")],
        [("TIMER_DELAY_SEC", b"1s"), ("TIMER_DELAY_MS", b"1")],
        [("TIMER_DELAY_MS", b"1.5")],
        [("TIMER_DELIVER_MS", b"tomorrow")],
    ) == [1_000, "LEVEL", "LEVEL", "DELAY_SEC", "DELAY_MS", "DELIVER_AT"]


def test_levels_are_clamped_and_level_zero_is_not_given() -> None:
    assert due(
        [("DELAY", b"99")],
        [("DELAY", b"9" * 99)],
        [("DELAY", b"0")],
        [("DELAY", b"-1"), ("TIMER_DELAY_MS", b"7")],
        [("DELAY", b"0"), ("TIMER_DELAY_MS", b"x")],
    ) == [7_200_000, 7_200_000, "none", 7, "DELAY_MS"]


def test_sums_saturate() -> None:
    assert due([("TIMER_DELAY_SEC", b"9" * 30)], [("TIMER_DELAY_MS", b"-" + b"9" * 30)]) == [
        SATURATED * 1000,
        -SATURATED,
    ]


def test_the_last_of_several_counts() -> None:
    assert due(
        [("TIMER_DELAY_MS", b"1"), ("a", b""), ("TIMER_DELAY_MS", b"2")],
        [("TIMER_DELAY_MS", b"1"), ("TIMER_DELAY_MS", b"x")],
    ) == [2, "DELAY_MS"]


def test_headers_that_only_the_service_sets_reach_no_consumer() -> None:
    """Whether a producer forged them or passed on those of an earlier delivery."""
    assert REQUEST.keys() >= SERVICE
    forged = [(name, b"1") for name in sorted(SERVICE)]
    headers = read_headers(raw_headers(column([("a", b"1"), *forged, ("TIMER_MINE", b"1")])))
    encoded, count = header_groups(headers, headers.request == USERS)
    assert encoded.to_pylist() == [b"\x02a\x021" + b"\x14TIMER_MINE\x021"]
    assert count.tolist() == [2]


def test_null_list_and_parts_of_a_column() -> None:
    rows = column([("a", b"1")], None, [("b", None), ("DELAY", b"1")], [], [("c", b"")])
    for part in (rows, rows.slice(1), rows.slice(2, 1), pa.chunked_array([rows, rows.slice(3)])):
        found = read_headers(raw_headers(part))
        encoded, count = header_groups(found, found.request == USERS)
        expected = [
            [(k, v) for k, v in ((h["key"], h["value"]) for h in row or []) if k not in REQUEST]
            for row in part.to_pylist()
        ]
        assert count.tolist() == [len(row) for row in expected]
        plain = {"a": b"\x02a\x021", "b": b"\x02b\x01", "c": b"\x02c\x00"}
        assert encoded.to_pylist() == [b"".join(plain[k] for k, _ in row) for row in expected]


def test_a_huge_name_that_is_no_utf8_costs_what_its_bytes_cost() -> None:
    """A record of 80 MiB, all of it one such name, took 2.7 GB, and four times its size on disk."""
    size = 1 << 20
    raw = raw_headers(column([("REAL_TOPIC", b"t"), ("x", b"v")]))
    huge = Spans.of(binary([b"REAL_TOPIC", b"\xff" * size]))
    both = join(*framed(huge.column()), *framed(raw.values.column()))
    raw = replace(raw, names=huge, both=Spans.of(both))
    tracemalloc.start()
    try:
        headers = read_headers(raw)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert badly_named(headers).tolist() == [True]
    assert len(headers.raw.both.column()[1].as_py()) == len(both[1].as_py())
    assert peak < 6 * size
