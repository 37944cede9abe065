"""Recurring timers at ingest: which records are one, and the reasons against the others."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.harness.source_table import SourceRow, as_table, read_records
from tests.harness.timer_rows import headers_of, suite_parameters

from duewheel.schemas.batches import TimerBatch
from duewheel.schemas.header_names import RECURRING_BYTES_MAX, RECURRING_HEADERS_MAX
from duewheel.schemas.request.acceptance_rules import compile_suite, load_suite
from duewheel.schemas.request.parser import Contract, parse
from duewheel.schemas.request.recurrences import VERDICTS
from duewheel.schemas.request.topic_settings import KEY, TopicContract
from duewheel.schemas.wire.single_record import header

NOW_MS = 1_800_000_000_000
TARGET = ("REAL_TOPIC", b"orders")
NAMED = ("UNIQ_KEY", b"daily")
Header = tuple[str, bytes | None]


def contract(suite: dict[str, Any] | None = None, **topic: Any) -> Contract:
    rules = compile_suite(suite or load_suite(), suite_parameters())
    return Contract(
        (1_000,), {"timers": TopicContract(**{"recurring": True, **topic})}, "dead", rules
    )


def parsed(*rows: Sequence[Header], under: Contract | None = None) -> TimerBatch:
    records = [SourceRow(7 + n, NOW_MS, [TARGET, *headers]) for n, headers in enumerate(rows)]
    return parse(read_records(as_table(records)), under or contract())


@pytest.mark.parametrize(
    "headers",
    [
        [("TIMER_CRON", b"0 8 * * MON-FRI"), ("TIMER_ZONE", b"Europe/Berlin")],
        [("TIMER_CRON", b"*/15 0,30 8-18/2 L,LW * 5L,MON#2")],
        [("TIMER_EVERY", b"90s"), ("TIMER_MISSED", b"all"), ("TIMER_JITTER_MS", b"5000")],
        [("TIMER_EVERY", b"1000"), ("TIMER_STARTS_MS", b"2027-01-31T08:30:00Z")],
        [("TIMER_EVERY", b"1d"), ("TIMER_ENDS_MS", b"1900000000000"), ("TIMER_PAUSED", b"why")],
    ],
)
def test_a_seed_is_due_at_its_timestamp_and_keeps_its_recurrence(headers: list[Header]) -> None:
    batch = parsed([*headers, ("own", b"1"), NAMED])
    assert (batch.rejections(), batch.recurring[0], batch.seed[0]) == ({}, True, True)
    assert (batch.due_ms[0], batch.timer_id[0].as_py()) == (NOW_MS, b"daily")
    kept = headers_of(batch.headers[0].as_py(), int(batch.header_count[0]))
    assert kept == [*headers, ("own", b"1")]


def test_a_topic_takes_recurring_timers_only_if_the_operator_opens_it_for_them() -> None:
    seed = [("TIMER_EVERY", b"1s"), NAMED]
    copy = [*seed, ("TIMER_DELIVER_MS", b"%d" % (NOW_MS + 5)), ("TIMER_ORIGIN", b"3")]
    malformed = [("TIMER_EVERY", b"soon"), NAMED]
    batch = parsed(
        seed, copy, malformed, [("TIMER_DELAY_MS", b"5")], under=contract(recurring=False)
    )
    assert batch.rejections() == {"recurring_not_allowed": 2}
    assert batch.rejected.tolist() == [True, False, True, False], "a copy was taken as a seed once"
    assert batch.recurring.tolist() == [False, True, False, False]


def test_a_copy_is_due_at_its_instant() -> None:
    copy = [
        *(("TIMER_CRON", b"0 8 * * *"), NAMED, ("TIMER_DELIVER_MS", b"%d" % (NOW_MS + 5))),
        ("TIMER_ORIGIN", b"3"),
    ]
    batch = parsed(copy)
    assert (batch.rejections(), batch.recurring[0], batch.seed[0]) == ({}, True, False)
    assert (batch.due_ms[0], batch.origin_offset[0]) == (NOW_MS + 5, 3)


EVERY = ("TIMER_EVERY", b"90s")
DEFECTS: dict[str, list[list[Header]]] = {
    "cron": [
        [NAMED, ("TIMER_CRON", text)]
        for text in (b"", b"8", b"* * * *", b"0 8 * * * * *", b"0 8 * * \xff", b"* " * 130 + b"*")
    ],
    "zone": [
        [NAMED, ("TIMER_CRON", b"0 8 * * *"), ("TIMER_ZONE", text)]
        for text in (b"", b"../etc/passwd", b"/UTC", b"x" * 65)
    ],
    "every": [
        [NAMED, ("TIMER_EVERY", text)]
        for text in (b"", b"s", b"999", b"-5s", b"1.5h", b"1h 30m", b"999999999999d", b"9" * 13)
    ],
    "missed": [[NAMED, EVERY, ("TIMER_MISSED", b"both")]],
    "starts": [[NAMED, EVERY, ("TIMER_STARTS_MS", b"2027-01-31T08:30:00")]],
    "ends": [[NAMED, EVERY, ("TIMER_ENDS_MS", b"soon")]],
    "jitter": [[NAMED, EVERY, ("TIMER_JITTER_MS", text)] for text in (b"-1", b"1s", b"86400001")],
    "paused": [[NAMED, EVERY, ("TIMER_PAUSED", b"x" * 256)]],
    "alone": [[("TIMER_DELAY_MS", b"5"), ("TIMER_ZONE", b"UTC")], [("TIMER_PAUSED", b"")]],
    "both": [[NAMED, EVERY, ("TIMER_CRON", b"0 8 * * *")]],
    "due_time": [[NAMED, EVERY, ("TIMER_DELAY_MS", b"5")], [NAMED, EVERY, ("DELAY", b"1")]],
    "window": [[NAMED, EVERY, ("TIMER_WINDOW_MS", b"5")]],
    "id": [[EVERY], [EVERY, ("UNIQ_KEY", b"x" * 201)]],
    "size": [
        [NAMED, EVERY, *[("own", b"")] * (RECURRING_HEADERS_MAX - 2)],
        [NAMED, EVERY, ("own", b"x" * RECURRING_BYTES_MAX)],
    ],
}


@pytest.mark.parametrize("defect", [each for each in VERDICTS if each != "refused"])
def test_each_defect_has_its_reason(defect: str) -> None:
    rows = DEFECTS[defect]
    batch = parsed(*rows)
    assert batch.rejections() == {"bad_recurrence": len(rows)}
    assert not batch.recurring.any() and not batch.seed.any()
    (reason,) = (
        each["meta"]["reason"]
        for each in load_suite()["expectations"]
        if each["kwargs"] == {"column": "recurrence", "value_set": [defect]}
    )
    assert all(reason.encode() in (headers or b"") for headers in batch.headers.to_pylist())


def test_a_recurring_timer_is_as_large_as_it_may_be() -> None:
    """Its copies have more headers, and are no seeds."""
    bytes_of_others = len(b"".join(header(*each) for each in (TARGET, NAMED, EVERY)))
    full = RECURRING_BYTES_MAX - bytes_of_others - len(header("own", b"")) - 2 - 2
    many = [NAMED, EVERY, *[("own", b"")] * (RECURRING_HEADERS_MAX - 3)]
    large = [NAMED, EVERY, ("own", b"x" * full)]
    as_copy = [("TIMER_DELIVER_MS", b"%d" % (NOW_MS + 5)), ("TIMER_ORIGIN", b"3")]
    batch = parsed(many, large, [*large[:2], ("own", b"x" * (full + 1))], [*many, *as_copy])
    assert batch.rejected.tolist() == [False, False, True, False]


def test_the_key_and_the_value_count_too() -> None:
    large = b"x" * RECURRING_BYTES_MAX
    headers = [TARGET, NAMED, EVERY]
    rows = [
        SourceRow(1, NOW_MS, headers, key=large),
        SourceRow(2, NOW_MS, headers, value=large),
        SourceRow(3, NOW_MS, [TARGET, ("DELAY", b"1")], value=large),
    ]
    batch = parse(read_records(as_table(rows)), contract())
    assert batch.rejections() == {"bad_recurrence": 2}
    assert not batch.rejected[2], "of an ordinary timer the broker alone limits the size"


def test_what_an_ordinary_timer_needs_a_seed_needs_too() -> None:
    record = SourceRow(0, NOW_MS, [EVERY, NAMED])
    batch = parse(read_records(as_table([record])), contract())
    assert batch.rejections() == {"no_target_topic": 1}


def test_settings_of_the_topic() -> None:
    """Its delay is no due time of a seed, which is never past due; its key may be the name."""
    under = contract(delay_ms=5_000, past_due="dead-letter", id=KEY, max_delay_ms=1)
    record = SourceRow(0, NOW_MS, [TARGET, EVERY], key=b"daily")
    batch = parse(read_records(as_table([record])), under)
    assert (batch.rejections(), batch.due_ms[0], batch.cancels[0]) == ({}, NOW_MS, True)
    assert batch.timer_id[0].as_py() == b"daily"


def test_a_producer_cannot_forge_a_copy() -> None:
    """With keys for copies, TIMER_ORIGIN means nothing here: a due time is one too many."""
    under = replace(contract(), copy_keys=(b"k" * 32,))
    batch = parsed([EVERY, NAMED, ("TIMER_DELIVER_MS", b"5"), ("TIMER_ORIGIN", b"3")], under=under)
    assert (batch.rejections(), batch.forged[0]) == ({"bad_recurrence": 1}, True)


def test_an_epoch_of_a_version_without_recurrence_keeps_its_verdicts() -> None:
    """Its rows keep their slots when they are read again: the headers were the users' own."""
    suite = json.loads(json.dumps(load_suite()))
    suite["expectations"] = [
        each for each in suite["expectations"] if each["kwargs"]["column"] != "recurrence"
    ]
    row: list[Header] = [EVERY, NAMED, ("TIMER_DELAY_MS", b"5")]
    batch = parsed(row, [EVERY, NAMED], under=contract(suite))
    assert (batch.rejections(), batch.due_ms[0]) == ({"no_due_time": 1}, NOW_MS + 5)
    assert headers_of(batch.headers[0].as_py(), 1) == [EVERY]
    assert not batch.recurring.any()


def test_a_cancel_has_no_recurrence() -> None:
    batch = parsed([("TIMER_DEL_UNIQKEY", b"daily"), EVERY])
    assert (batch.rejections(), batch.timer[0], batch.recurring[0]) == ({}, False, False)
    assert batch.header_count[0] == 0


def test_verdicts_do_not_depend_on_libraries() -> None:
    """Whether a zone exists, or an expression has instants, is found at the seed's slot."""
    batch = parsed(
        [NAMED, ("TIMER_CRON", b"0 8 * * *"), ("TIMER_ZONE", b"Atlantis/Capital")],
        [NAMED, ("TIMER_CRON", b"99 99 30 2 *")],
    )
    assert np.array_equal(batch.seed, [True, True])
