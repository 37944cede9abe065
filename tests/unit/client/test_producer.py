"""The client without a broker: its imports, its due times, and the headers that it routes."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.partitioner import murmur2

from duewheel.api.due_time import DueTime, NonNullHeader, window_headers
from duewheel.api.recurring_time import RecurringTime
from duewheel.client import DelayProducer
from duewheel.client.producer import has_due_time
from duewheel.client.request_headers import timer_headers
from duewheel.config.instants import parse_instant
from duewheel.errors import ConfigError, DuewheelError, InvalidTimer
from duewheel.schemas.columns import binary
from duewheel.schemas.hashing import key_hashes
from duewheel.schemas.header_names import DROP_IN, LEVELS_MS, NAME_OF, REQUEST, Request
from duewheel.schemas.request.due_times import due_times
from duewheel.schemas.request.headers import Field

HEAVY = ["pyspark", "py4j", "pyarrow", "great_expectations", "pandas", "numpy", "pydantic"]
NOW_MS = 1_800_000_000_000

# What Kafka's Java client computes, as signed 32-bit numbers.
MURMUR2 = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


def test_it_imports_none_of_the_engines_libraries() -> None:
    probe = "import sys, json, duewheel.client; print(json.dumps(sorted(sys.modules)))"
    run = subprocess.run(
        [sys.executable, "-P", "-W", "ignore", "-c", probe],
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = json.loads(run.stdout)
    assert "kafka" in loaded
    assert set(HEAVY) & set(loaded) == set()


@pytest.mark.parametrize(
    ("asked", "header"),
    [
        ({"deliver_at": NOW_MS}, ("TIMER_DELIVER_MS", b"1800000000000")),
        ({"deliver_at": 0}, ("TIMER_DELIVER_MS", b"0")),
        (
            {"deliver_at": datetime(2027, 1, 15, 8, tzinfo=UTC)},
            ("TIMER_DELIVER_MS", b"1800000000000"),
        ),
        (
            {"deliver_at": datetime(2027, 1, 15, 10, tzinfo=timezone(timedelta(hours=2)))},
            ("TIMER_DELIVER_MS", b"1800000000000"),
        ),
        (
            {"deliver_at": datetime(2027, 1, 15, 8, 0, 0, 1, tzinfo=UTC)},
            ("TIMER_DELIVER_MS", b"1800000000001"),
        ),
        ({"delay": timedelta(seconds=90)}, ("TIMER_DELAY_MS", b"90000")),
        ({"delay": timedelta(microseconds=1001)}, ("TIMER_DELAY_MS", b"2")),
        ({"delay": timedelta(0)}, ("TIMER_DELAY_MS", b"0")),
        ({"delay": timedelta(seconds=-1)}, ("TIMER_DELAY_MS", b"-1000")),
        ({"delay": "1h30m"}, ("TIMER_DELAY_MS", b"5400000")),
        ({"level": 1}, ("DELAY", b"1")),
        ({"level": 99}, ("DELAY", b"99")),
    ],
)
def test_ways_to_say_when(asked: dict[str, Any], header: NonNullHeader) -> None:
    assert DueTime.of(**asked).headers == [header]


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ({}, "exactly one"),
        ({"delay": "1s", "level": 1}, "exactly one"),
        ({"deliver_at": 0, "delay": timedelta(0)}, "exactly one"),
        ({"deliver_at": datetime(2027, 1, 15, 8)}, "no zone"),  # noqa: DTZ001 - refused for it
        ({"deliver_at": 1.8e12}, "neither a datetime nor epoch ms"),
        ({"deliver_at": "2027-01-15T08:00Z"}, "neither a datetime nor epoch ms"),
        ({"deliver_at": True}, "neither a datetime nor epoch ms"),
        ({"delay": 900}, "no unit"),
        ({"delay": 1.5}, "no unit"),
        ({"delay": "900"}, "no duration"),
        ({"delay": "1.5ms"}, "whole number of milliseconds"),
        ({"level": 0}, "from 1 up"),
        ({"level": True}, "from 1 up"),
        ({"level": "3"}, "from 1 up"),
    ],
)
def test_impossible_requests_are_refused(asked: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidTimer, match=reason) as refused:
        DueTime.of(**asked)
    assert isinstance(refused.value, ValueError)
    assert isinstance(refused.value, DuewheelError)
    assert refused.value.exit_code == 2


def test_tags() -> None:
    when = DueTime.of(None, "5m", None)
    headers = timer_headers("orders", when, "timers", tag="mails")
    assert headers[0] == ("TIMER_TAG", b"mails")
    for refused in ("", "a" * 65, "ü" * 33, "\udcff"):
        with pytest.raises(InvalidTimer, match="a tag has 1 to 64 bytes of UTF-8"):
            timer_headers("orders", when, "timers", tag=refused)


def test_a_timer_that_expires() -> None:
    when, at = DueTime.of(None, "5m", None), datetime(2027, 1, 15, 8, tzinfo=UTC)
    for instant in (at, 1_800_000_000_000):
        headers = timer_headers("orders", when, "timers", expires_at=instant)
        assert headers[0] == ("TIMER_EXPIRES_MS", b"1800000000000")
    with pytest.raises(InvalidTimer, match=r"expires_at .* has no zone"):
        timer_headers("orders", when, "timers", expires_at=at.replace(tzinfo=None))
    daily = RecurringTime.of(cron="0 8 * * *")
    with pytest.raises(InvalidTimer, match="ends by `ends`"):
        timer_headers("orders", daily, "timers", expires_at=at, id="daily")


def test_windows() -> None:
    assert window_headers(None) == []
    assert window_headers("5m") == [("TIMER_WINDOW_MS", b"300000")]
    assert window_headers(timedelta(microseconds=1)) == [("TIMER_WINDOW_MS", b"1")]
    for refused, reason in ((5, "window 5 has no unit"), (timedelta(-1), "below 0")):
        with pytest.raises(InvalidTimer, match=reason):
            window_headers(refused)  # type: ignore[arg-type]


@given(
    st.one_of(
        st.fixed_dictionaries({"deliver_at": st.integers(-(10**15) + 1, 10**15 - 1)}),
        st.fixed_dictionaries({"deliver_at": st.datetimes(timezones=st.timezones())}),
        st.fixed_dictionaries({"delay": st.timedeltas(-timedelta(days=400), timedelta(days=400))}),
        st.fixed_dictionaries({"level": st.integers(1, 10**9)}),
    ),
    st.integers(0, 2**42),
)
def test_it_tells_the_due_time_that_ingest_reads(asked: dict[str, Any], timestamp_ms: int) -> None:
    when = DueTime.of(**asked)
    ((name, value),) = when.headers
    field = Field(np.zeros(1, np.int64), binary([value]))
    read = due_times({REQUEST[name]: field}, np.array([timestamp_ms]), LEVELS_MS)
    assert read.valid.tolist() == [True]
    assert read.due_ms.tolist() == [when.due_ms(timestamp_ms, LEVELS_MS)]


@pytest.mark.parametrize(
    ("headers", "routed"),
    [
        ([], False),
        ([("x", b"1"), ("REAL_TOPIC", b"orders"), ("UNIQ_KEY", b"7")], False),
        ([("TIMER_SOURCE", b"t-0@1"), ("TIMER_DUE_MS", b"1"), ("TIMER_ROLL_TIMES", b"1")], False),
        ([("DELAY", b"3")], True),
        ([("DELAY", b"three")], True),
        ([("DELAY", b"")], True),
        ([("DELAY", b"0")], False),
        ([("DELAY", b"+00")], False),
        ([("DELAY", b"-12")], False),
        ([("DELAY", b"3"), ("DELAY", b"0")], False),
        ([("DELAY", b"0"), ("DELAY", b"3")], True),
        ([("DELAY", b"0"), ("TIMER_DELAY_MS", b"5")], True),
        ([("TIMER_DELAY_SEC", b"5")], True),
        ([("TIMER_DELIVER_MS", b"")], True),
        ([("deliverAfter", b"5")], True),
        ([("TIMER_WINDOW_MS", b"5")], False),
        ([("TIMER_DEL_UNIQKEY", b"7")], True),
        ([("timer_delay_ms", b"5")], False),
    ],
)
def test_records_for_the_timer_topic(headers: list[NonNullHeader], routed: bool) -> None:
    assert has_due_time(headers) is routed


def test_every_request_has_a_name() -> None:
    foreign = {request for names in DROP_IN.values() for request in names.values()}
    assert set(NAME_OF) | foreign == set(Request)
    assert NAME_OF[Request.TARGET_PARTITION] == "REAL_QID"


@pytest.mark.parametrize("option", ["acks", "enable_idempotence", "partitioner"])
def test_what_guarantees_rest_on_is_no_option(option: str) -> None:
    options: dict[str, Any] = {option: 1}
    with pytest.raises(ConfigError, match=option):
        DelayProducer("orders.delayed", **options)


@pytest.mark.parametrize(("key", "expected"), MURMUR2.items())
def test_keys_are_hashed_as_the_java_client_does(key: bytes, expected: int) -> None:
    assert murmur2(key) == expected & 0xFFFFFFFF
    assert key_hashes(binary([key])).tolist() == [expected & 0x7FFFFFFF]


@pytest.mark.parametrize(
    ("text", "instant"),
    [
        ("1800000000000", NOW_MS),
        ("-5", -5),
        ("2027-01-15T08:00:00Z", datetime(2027, 1, 15, 8, tzinfo=UTC)),
        ("2027-01-15T08:00+00:00", datetime(2027, 1, 15, 8, tzinfo=UTC)),
    ],
)
def test_what_a_person_writes(text: str, instant: datetime | int) -> None:
    assert parse_instant(text) == instant


@pytest.mark.parametrize("text", ["", "soon", "1.8e12", "2027-13-01T00:00Z"])
def test_what_is_no_instant(text: str) -> None:
    with pytest.raises(ConfigError, match="is no instant: give epoch ms, or such as 2027"):
        parse_instant(text)
