"""Any records, hostile ones included, against a plain reading of the contract, row by row."""

from __future__ import annotations

import datetime as dt
import json
import re
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2

from duewheel.errors import ConfigError
from duewheel.schemas.columns import binary
from duewheel.schemas.contract import Contract, parse, rejections
from duewheel.schemas.header_names import REQUEST
from duewheel.schemas.ids import id_hashes
from duewheel.schemas.rules import compile_suite, load_suite
from duewheel.schemas.timers import ANY_TIME, NO_PARTITION, TimerBatch
from duewheel.schemas.topic_contracts import TopicContract
from duewheel.schemas.varint import varint
from duewheel.testing import suite_parameters

MAX_DELAY_MS = 86_400_000
DEAD_LETTERS = "dead.letters"
LEVELS_MS = (1_000, 5_000, 7_200_000)
MAPPING = {"orders.delayed": "orders"}
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
NOW_MS = 1_800_000_000_000
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))

Header = tuple[str, bytes | None]


TOPIC_CONTRACTS = {"orders.delayed": TopicContract(target="orders")}
PARAMETERS = suite_parameters(
    max_delay_ms=MAX_DELAY_MS,
    forbidden_targets=["orders.delayed", "other.delayed", DEAD_LETTERS],
)


def contract() -> Contract:
    """One that takes cancels."""
    suite = load_suite()
    suite["expectations"] = [
        each for each in suite["expectations"] if each["meta"]["code"] != "cancel_not_supported"
    ]
    return Contract(LEVELS_MS, TOPIC_CONTRACTS, DEAD_LETTERS, compile_suite(suite, PARAMETERS))


CONTRACT = contract()


@dataclass
class Record:
    """A record of a timer topic."""

    topic: str
    partition: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: list[Header] | None


@dataclass
class Timer:
    """What the contract makes of it."""

    code: str | None
    due_ms: int
    target: str
    target_partition: int
    timer_id: bytes
    headers: list[Header]
    origin: int
    rolls: int
    not_before_ms: int = ANY_TIME
    retries: int = 0
    is_timer: bool = True
    cancels: bool = False


# The plain reading.


def number(value: bytes) -> int | None:
    if not re.fullmatch(rb"[+-]?[0-9]+", value):
        return None
    limit = 10**15 - 1
    # Python reads no number of more than some thousand digits.
    digits = value.lstrip(b"+-0")
    size = limit if len(digits) > 15 else int(digits or b"0")
    return -size if value.startswith(b"-") else size


def instant(value: bytes) -> int | None:
    plain = number(value)
    if plain is not None:
        return plain
    match = re.fullmatch(
        rb"(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d)(?::(\d\d)(?:\.(\d+))?)?(?:Z|([+-])(\d\d):(\d\d))",
        value,
    )
    if match is None:
        return None
    fraction, sign = match[7] or b"", match[8]
    try:
        when = dt.datetime(*(int(match[i] or 0) for i in range(1, 7)), tzinfo=dt.UTC)  # type: ignore[arg-type,misc]
        zone = dt.time(int(match[9] or 0), int(match[10] or 0))
    except ValueError:
        return None
    minutes = (zone.hour * 60 + zone.minute) * (-1 if sign == b"-" else 1)
    seconds = (when - EPOCH) // dt.timedelta(seconds=1) - minutes * 60
    rounded_up: int = -(-int(fraction or b"0") * 1000 // 10 ** len(fraction))
    return seconds * 1000 + rounded_up


def due(asked: dict[str, bytes], timestamp_ms: int) -> int | str:
    """Epoch ms, or the code of what is wrong."""
    level = number(asked["DELAY"]) if "DELAY" in asked else 0
    if level is None:
        return "bad_header"
    if level > 0:
        return timestamp_ms + LEVELS_MS[min(level, len(LEVELS_MS)) - 1]
    for name, unit_ms in (("TIMER_DELAY_SEC", 1000), ("TIMER_DELAY_MS", 1)):
        if name in asked:
            delay = number(asked[name])
            return "bad_header" if delay is None else timestamp_ms + delay * unit_ms
    if "TIMER_DELIVER_MS" in asked:
        when = instant(asked["TIMER_DELIVER_MS"])
        return "bad_header" if when is None else when
    return "no_due_time"


def bad_target(name: bytes | None) -> str | None:
    if name is None:
        return "no_target_topic"
    if not re.fullmatch(rb"[a-zA-Z0-9._-]{1,249}", name) or name in (b".", b".."):
        return "bad_target_topic"
    if name in (b"orders.delayed", b"other.delayed", DEAD_LETTERS.encode()):
        return "forbidden_target"
    return "forbidden_target" if name.startswith(b"__") else None


def first_copy(asked: dict[str, bytes], offset: int) -> tuple[int, int] | None:
    """Offset of the first copy and number of rolls; None if what is said cannot be."""
    if "TIMER_ORIGIN" not in asked:
        return offset, 0
    origin, times = number(asked["TIMER_ORIGIN"]), number(asked.get("TIMER_ROLL_TIMES", b"1"))
    if origin is None or not -1 <= origin < offset:
        return None
    rolls = min(times, 65_535) if times is not None and times >= 0 else 1
    return offset if origin == -1 else origin, rolls


def parking(asked: dict[str, bytes]) -> tuple[int, int] | None:
    """Not before, and how often it was parked; None if what is said cannot be."""
    if not asked.keys() & {"TIMER_NOT_BEFORE_MS", "TIMER_RETRIES"}:
        return ANY_TIME, 0
    not_before = number(asked.get("TIMER_NOT_BEFORE_MS", b""))
    retries = number(asked.get("TIMER_RETRIES", b""))
    if not_before is None or retries is None or min(not_before, retries) < 1:
        return None
    return (not_before, min(retries, 65_535)) if "TIMER_ORIGIN" in asked else None


def bad_cancel(asked: dict[str, bytes]) -> str | None:
    """The code of what is wrong with what is to be cancelled."""
    flag = asked.get("TIMER_RESCHEDULE", b"false").lower()
    pure = asked.get("TIMER_DEL_UNIQKEY")
    if pure is None and flag == b"false":
        return None
    if asked.keys() & {"TIMER_ORIGIN", "TIMER_NOT_BEFORE_MS", "TIMER_RETRIES"}:
        return "bad_cancel"
    if pure is not None:
        return None if flag == b"false" and 1 <= len(pure) <= 255 else "bad_cancel"
    return None if flag == b"true" and "UNIQ_KEY" in asked else "bad_reschedule"


def refused(
    record: Record,
    asked: dict[str, bytes],
    target: bytes | None,
    copy: tuple[int, int] | None,
) -> str | None:
    """Why a timer is rejected."""
    when = due(asked, record.timestamp_ms)
    if isinstance(when, str):
        return when
    if when - record.timestamp_ms > MAX_DELAY_MS and not (copy and "TIMER_ORIGIN" in asked):
        return "delay_too_long"
    partition = number(asked.get("REAL_QID", b"0"))
    checks = {
        "bad_target_partition": partition is not None and 0 <= partition < 2**31,
        "bad_timer_id": 1 <= len(asked.get("UNIQ_KEY", b"x")) <= 255,
        "bad_origin": copy is not None,
        "bad_retry": parking(asked) is not None,
    }
    return bad_target(target) or next((code for code, good in checks.items() if not good), None)


def expected(record: Record, offset: int) -> Timer:
    headers = record.headers or []
    asked = {name: value or b"" for name, value in headers if name in REQUEST}
    kept = [header for header in headers if header[0] not in REQUEST]
    refusal = bad_cancel(asked)
    if refusal is not None:
        return Timer(refusal, 0, DEAD_LETTERS, NO_PARTITION, b"", headers, offset, 0)
    if "TIMER_DEL_UNIQKEY" in asked:
        named = asked["TIMER_DEL_UNIQKEY"]
        return Timer(
            *(None, 0, DEAD_LETTERS, NO_PARTITION, named, kept, offset, 0),
            is_timer=False,
            cancels=True,
        )
    mapped = MAPPING.get(record.topic)
    target = asked.get("REAL_TOPIC", None if mapped is None else mapped.encode())
    when = due(asked, record.timestamp_ms)
    partition = number(asked.get("REAL_QID", b"0"))
    copy = first_copy(asked, offset)
    code = refused(record, asked, target, copy)
    if code is not None:
        return Timer(code, 0, DEAD_LETTERS, NO_PARTITION, b"", headers, offset, 0)
    assert target is not None and isinstance(when, int) and partition is not None and copy
    wanted = partition if "REAL_QID" in asked else NO_PARTITION
    named, waiting = asked.get("UNIQ_KEY", b""), parking(asked)
    assert waiting is not None
    replaces = asked.get("TIMER_RESCHEDULE", b"").lower() == b"true"
    return Timer(
        *(None, when, target.decode(), wanted, named, kept, *copy, *waiting), cancels=replaces
    )


# Encoded parts, read back.


def framed(value: bytes | None) -> bytes:
    return varint(-1) if value is None else varint(len(value)) + value


def encoded(headers: list[Header]) -> bytes:
    return b"".join(framed(name.encode()) + framed(value) for name, value in headers)


def check(records: list[Record], batch: TimerBatch) -> None:
    assert len(batch) == len(records)
    for i, record in enumerate(records):
        timer = expected(record, i + 7)
        headers = batch.headers[i].as_py()
        assert batch.rejected[i] == (timer.code is not None), (record, timer)
        if timer.code is not None:
            begin = encoded([*timer.headers, ("TIMER_ERROR_CODE", timer.code.encode())])
            assert headers.startswith(begin + framed(b"TIMER_ERROR")), (record, timer)
            assert batch.header_count[i] == len(timer.headers) + 2
        else:
            assert headers == encoded(timer.headers)
            assert batch.header_count[i] == len(timer.headers)
            assert not timer.is_timer or batch.due_ms[i] == timer.due_ms
        assert batch.partitions[batch.partition[i]] == (record.topic, record.partition)
        assert (batch.timer[i], batch.cancels[i]) == (timer.is_timer, timer.cancels)
        assert batch.targets[batch.target[i]] == timer.target
        assert batch.target_partition[i] == timer.target_partition
        assert batch.timer_id[i].as_py() == timer.timer_id
        source = f"{record.topic}-{record.partition}@{timer.origin}".encode()
        assert batch.id_hash[i] == id_hashes(binary([timer.timer_id or source]))[0]
        assert batch.key_value[i].as_py() == framed(record.key) + framed(record.value)
        hashed = -1 if record.key is None else murmur2(record.key) & 0x7FFFFFFF
        assert batch.key_hash[i] == hashed
        assert (batch.offset[i], batch.origin_offset[i]) == (i + 7, timer.origin)
        assert batch.roll_times[i] == timer.rolls
        assert (batch.not_before_ms[i], batch.retries[i]) == (timer.not_before_ms, timer.retries)
        assert batch.timestamp_ms[i] == record.timestamp_ms


def table(records: list[Record], dictionary: bool = False, cuts: tuple[int, ...] = ()) -> pa.Table:
    """The records as Spark gives them, in chunks."""
    text = pa.dictionary(pa.int32(), pa.string()) if dictionary else pa.string()
    whole = pa.table(
        {
            "topic": pa.array([r.topic for r in records], text),
            "partition": pa.array([r.partition for r in records], pa.int32()),
            "offset": pa.array(range(7, len(records) + 7), pa.int64()),
            "timestamp": pa.array(
                [r.timestamp_ms * 1000 for r in records], pa.timestamp("us", "UTC")
            ),
            "key": pa.array([r.key for r in records], pa.binary()),
            "value": pa.array([r.value for r in records], pa.binary()),
            "headers": pa.array(
                [
                    r.headers
                    if r.headers is None
                    else [{"key": k, "value": v} for k, v in r.headers]
                    for r in records
                ],
                HEADERS,
            ),
        }
    )
    ends = [*sorted(cut % (len(records) + 1) for cut in cuts), len(records)]
    pieces = [whole.slice(a, b - a) for a, b in zip([0, *ends], ends, strict=False)]
    return pa.concat_tables(pieces)


NUMBERS = [
    *(b"0", b"1", b"-1", b"+3", b"-0", b"99", b"86400", b"86401", b"86400000", b"86400001"),
    *(b"1800000000000", b"1800086400000", b"1800086400001", b"2147483647", b"2147483648"),
    *(b"999999999999999", b"9" * 16, b"-" + b"9" * 25, b"0" * 30 + b"5", b"9223372036854775808"),
]
MALFORMED = [
    *(b"", b"-", b"+-1", b" 5", b"5 ", b"0x10", b"1e3", b"1.5", b"1_0", "٣".encode(), b"\xff"),
    *(b"5\x00", b"\n", b"null", b"9" * 400 + b"x", b"NaN", b"inf", b"-Infinity", b"1e400", b"--1"),
]
INSTANTS = [
    *(b"2027-01-15T08:00:00Z", b"2027-01-15T08:00Z", b"2027-01-15T08:00:00.0001+00:00"),
    *(b"2027-01-15T23:59:59.999-14:30", b"2028-02-29T00:00:00Z", b"2027-02-29T00:00:00Z"),
    *(b"9999-12-31T23:59:59.9999-23:59", b"0001-01-01T00:00:00+23:59", b"0000-01-01T00:00:00Z"),
    *(b"2027-01-15T08:00:00", b"2027-01-15t08:00:00z", b"2027-01-15T08:00:60Z"),
]
TOPICS = [
    *(b"orders", b"billing.v1", b"__x", b".", b"..", b"a/b", b"a b", b"a\n", b"\xc3\xa9", b"\xff"),
    *(b"a" * 249, b"a" * 250, DEAD_LETTERS.encode(), b"other.delayed"),
]
NAMES = [*REQUEST, "x", "", "timer_delay_ms", "TIMER_DELAY_MS ", "é", "TIMER_ERROR_CODE"]

FLAGS = [b"true", b"True", b"false"]

header_values = (
    st.none()
    | st.sampled_from(NUMBERS)
    | st.sampled_from(NUMBERS + MALFORMED + INSTANTS + TOPICS + FLAGS)
    | st.binary(max_size=12)
    | st.binary(min_size=250, max_size=260)
)
hostile_headers = st.none() | st.lists(st.tuples(st.sampled_from(NAMES), header_values), max_size=6)
sound_headers = st.fixed_dictionaries(
    {},
    optional={
        "TIMER_DELAY_MS": st.integers(-5, MAX_DELAY_MS).map(lambda n: b"%d" % n),
        "TIMER_DELIVER_MS": st.sampled_from(INSTANTS[:3]),
        "REAL_TOPIC": st.sampled_from(TOPICS[:2]),
        "REAL_QID": st.just(b"3"),
        "UNIQ_KEY": st.binary(min_size=1, max_size=20),
        "TIMER_RESCHEDULE": st.sampled_from(FLAGS),
        "TIMER_DEL_UNIQKEY": st.binary(min_size=1, max_size=20),
        "TIMER_ORIGIN": st.integers(-2, 20).map(lambda n: b"%d" % n),
        "TIMER_ROLL_TIMES": st.integers(-1, 70_000).map(lambda n: b"%d" % n),
        "TIMER_NOT_BEFORE_MS": st.integers(0, 2 * NOW_MS).map(lambda n: b"%d" % n),
        "TIMER_RETRIES": st.integers(0, 70_000).map(lambda n: b"%d" % n),
        "x": header_values,
    },
).map(lambda fields: list(fields.items()))
some_bytes = st.none() | st.binary(max_size=30)
records = st.builds(
    Record,
    topic=st.sampled_from(["orders.delayed", "other.delayed"]),
    partition=st.sampled_from([0, 1, 70_000]),
    timestamp_ms=st.just(NOW_MS) | st.integers(-1, 2 * NOW_MS),
    key=some_bytes,
    value=some_bytes,
    headers=hostile_headers | sound_headers,
)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(records, max_size=25),
    st.booleans(),
    st.lists(st.integers(0, 25), max_size=3).map(tuple),
)
def test_any_records(rows: list[Record], dictionary: bool, cuts: tuple[int, ...]) -> None:
    check(rows, parse(table(rows, dictionary, cuts), CONTRACT))


def test_each_value_in_each_header() -> None:
    values = [None, *NUMBERS, *MALFORMED, *INSTANTS, *TOPICS, *FLAGS]
    rows = [
        Record("orders.delayed", 0, NOW_MS, b"k", b"v", [*others, (name, value)])
        for name in REQUEST
        for value in values
        for others in (
            [],
            [("TIMER_DELAY_MS", b"5")],
            [("TIMER_DELAY_MS", b"5"), ("UNIQ_KEY", b"id")],
        )
    ]
    batch = parse(table(rows), CONTRACT)
    check(rows, batch)
    assert 0.2 < batch.rejected.mean() < 0.8


def test_many_rows_with_large_ones_between() -> None:
    rows = [
        Record(
            "orders.delayed",
            i % 5,
            NOW_MS,
            bytes(i % 40),
            bytes(900_000 if i == 77 else i % 300),
            [
                ("TIMER_DELAY_SEC", b"%d" % i),
                *[(f"h{j}", b"x" * (70_000 if i == 99 and j == 7 else j)) for j in range(i % 100)],
            ],
        )
        for i in range(1_000)
    ]
    check(rows, parse(table(rows, cuts=(100, 101, 700)), CONTRACT))


HUGE_BYTES = 10_000_000


@pytest.mark.parametrize("octet", [b"9", b"0", b"\xff"])
def test_headers_of_ten_megabytes(octet: bytes) -> None:
    """A number that is far too large, one with far too many digits, no text at all."""
    others: list[Header] = [("TIMER_DELAY_MS", b"5"), ("REAL_TOPIC", b"orders")]
    names = ("TIMER_DELIVER_MS", "DELAY", "REAL_TOPIC", "UNIQ_KEY", "TIMER_ORIGIN", "x")
    rows = [
        Record("orders.delayed", 0, NOW_MS, None, b"v", [*others, *huge])
        for name in names
        for huge in ([(name, octet * HUGE_BYTES)], [])
    ]
    check(rows, parse(table(rows), CONTRACT))


def test_thousands_of_headers_and_each_request_thousands_of_times() -> None:
    """Of a request the last one counts; users' headers keep their order, duplicates and nulls."""
    values = [None, b"", b"1", b"\xff", b"orders", b"5"]
    many: list[Header] = [
        (name, values[(i + place) % len(values)])
        for i in range(1_000)
        for place, name in enumerate([*REQUEST, "x", "", "y"])
    ]
    sound: list[Header] = [("x", b"%d" % i) for i in range(20_000)]
    times: list[Header] = [("TIMER_DELAY_MS", b"%d" % i) for i in range(20_000)]
    rows = [
        Record("orders.delayed", 0, NOW_MS, b"k", b"v", headers)
        for headers in (many, [*times, *sound], [], [*sound, ("DELAY", None)], times)
    ]
    batch = parse(table(rows), CONTRACT)
    check(rows, batch)
    assert batch.due_ms[1] == NOW_MS + 19_999
    assert batch.header_count[1] == 20_000


def test_no_rows() -> None:
    assert len(parse(table([]), CONTRACT)) == 0
    assert len(parse(table([]).schema.empty_table(), CONTRACT)) == 0


def test_taken_rows_keep_their_fields() -> None:
    rows = [
        Record("orders.delayed", 0, NOW_MS, None, b"%d" % i, [("DELAY", b"%d" % i), ("x", b"y")])
        for i in range(5)
    ]
    batch = parse(table(rows), CONTRACT).take(parse(table(rows), CONTRACT).offset[::-2] - 7)
    assert batch.offset.tolist() == [11, 9, 7]
    assert batch.key_value.to_pylist() == [b"\x01\x024", b"\x01\x022", b"\x01\x020"]
    assert batch.rejected.tolist() == [False, False, True]


def test_slot_values_are_plain_and_ordered() -> None:
    values: dict[str, Any] = CONTRACT.slot_values()
    assert values["levels_ms"] == [1_000, 5_000, 7_200_000]
    assert values["topics"] == {"orders.delayed": {"target": "orders"}}
    assert values["parameters"]["max_delay_ms"] == MAX_DELAY_MS
    assert values == contract().slot_values()
    assert values == json.loads(json.dumps(values))


def test_a_contract_can_be_made_again_from_its_values() -> None:
    values = json.loads(json.dumps(CONTRACT.slot_values()))
    again = Contract.from_slot_values(values, DEAD_LETTERS)
    assert again.slot_values() == CONTRACT.slot_values()
    assert (again.levels_ms, again.topics) == (CONTRACT.levels_ms, CONTRACT.topics)
    reasons = [(rule.code, rule.reason) for rule in CONTRACT.rules.rules]
    assert [(rule.code, rule.reason) for rule in again.rules.rules] == reasons


@pytest.mark.parametrize(
    "change",
    [
        {"levels_ms": None},
        {"levels_ms": ["soon"]},
        {"topics": 7},
        {"topics": {"orders.delayed": {"target": "orders.delayed"}}},
        {"topics": {"orders.delayed": {"headers": "morse"}}},
        {"topics": {"orders.delayed": {"delay_ms": "5"}}},
        {"topics": {"orders.delayed": {"colour": "red"}}},
        {"parameters": {}},
        {"suite": []},
        {"suite": {"expectations": [{"type": "expect_nothing"}]}},
        {"suite": {"expectations": ["none"]}},
    ],
)
def test_values_that_make_no_contract_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Contract.from_slot_values(CONTRACT.slot_values() | change, DEAD_LETTERS)


def test_until_cancels_are_supported_they_are_rejected() -> None:
    rules = compile_suite(load_suite(), PARAMETERS)
    shipped = Contract(LEVELS_MS, TOPIC_CONTRACTS, DEAD_LETTERS, rules)
    asked: list[list[Header]] = [
        [("TIMER_DEL_UNIQKEY", b"id")],
        [("TIMER_RESCHEDULE", b"true"), ("UNIQ_KEY", b"id"), ("TIMER_DELAY_MS", b"5")],
        [("TIMER_RESCHEDULE", b"false"), ("TIMER_DELAY_MS", b"5")],
    ]
    rows = [Record("orders.delayed", 0, NOW_MS, b"k", b"v", headers) for headers in asked]
    batch = parse(table(rows), shipped)
    assert rejections(batch, rules.rules) == {"cancel_not_supported": 2}
    assert batch.rejected.tolist() == [True, True, False]
    assert batch.timer.all() and not batch.cancels.any()


@pytest.mark.parametrize("target", ["", "a/b", "..", "__offsets", DEAD_LETTERS, "orders.delayed"])
def test_a_mapping_to_no_possible_target_is_refused(target: str) -> None:
    topics = {"orders.delayed": TopicContract(target=target)}
    with pytest.raises(ConfigError, match=r"orders\.delayed"):
        Contract(LEVELS_MS, topics, DEAD_LETTERS, CONTRACT.rules)


@pytest.mark.parametrize("levels_ms", [(), (1_000, -1)])
def test_impossible_levels_are_refused(levels_ms: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="levels"):
        Contract(levels_ms, {}, DEAD_LETTERS, CONTRACT.rules)
