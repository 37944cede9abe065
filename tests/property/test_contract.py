"""Any records, hostile ones included, against a plain implementation of the contract."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.harness.source_table import read_records
from tests.harness.timer_rows import suite_parameters
from tests.property.plain_contract import Header, PlainRecord, check, table

from duewheel.errors import ConfigError
from duewheel.schemas.header_names import DROP_IN, REQUEST
from duewheel.schemas.request.acceptance_rules import compile_suite, load_suite
from duewheel.schemas.request.parser import Contract, parse
from duewheel.schemas.request.topic_settings import CHOICES, DEFAULT, TopicContract

MAX_DELAY_MS = 86_400_000
DEAD_LETTERS = "dead.letters"
LEVELS_MS = (1_000, 5_000, 7_200_000)
NOW_MS = 1_800_000_000_000
TOPIC_CONTRACTS = {"orders.delayed": TopicContract(target="orders")}
PARAMETERS = suite_parameters(
    max_delay_ms=MAX_DELAY_MS,
    forbidden_targets=["orders.delayed", "other.delayed", DEAD_LETTERS],
)


RULES = compile_suite(load_suite(), PARAMETERS)


def contract(topics: dict[str, TopicContract], default: TopicContract = DEFAULT) -> Contract:
    return Contract(LEVELS_MS, topics, DEAD_LETTERS, RULES, default)


CONTRACT = contract(TOPIC_CONTRACTS)


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
FOREIGN = [name for names in DROP_IN.values() for name in names]
NAMES = [*REQUEST, *FOREIGN, "x", "", "timer_delay_ms", "TIMER_DELAY_MS ", "é", "TIMER_ERROR_CODE"]

FLAGS = [b"true", b"True", b"false", b"keep", b"replace"]
WORDS = [b"schedule", b"cancel", b"tombstone", b"1.0.0", b"1.0.1", b"2027-01-15T08:00:00"]

header_values = (
    st.none()
    | st.sampled_from(NUMBERS)
    | st.sampled_from(NUMBERS + MALFORMED + INSTANTS + TOPICS + FLAGS + WORDS)
    | st.binary(max_size=12)
    | st.binary(min_size=250, max_size=260)
)
hostile_headers = st.none() | st.lists(st.tuples(st.sampled_from(NAMES), header_values), max_size=6)
sound_headers = st.fixed_dictionaries(
    {},
    optional={
        "TIMER_DELAY_MS": st.integers(-5, MAX_DELAY_MS).map(lambda n: b"%d" % n),
        "TIMER_DELIVER_MS": st.sampled_from(INSTANTS[:3]),
        "TIMER_WINDOW_MS": st.integers(0, MAX_DELAY_MS).map(lambda n: b"%d" % n),
        "REAL_TOPIC": st.sampled_from(TOPICS[:2]),
        "REAL_QID": st.just(b"3"),
        "UNIQ_KEY": st.binary(min_size=1, max_size=20),
        "TIMER_RESCHEDULE": st.sampled_from(FLAGS),
        "TIMER_IF_PENDING": st.sampled_from(FLAGS),
        "TIMER_DEL_UNIQKEY": st.binary(min_size=1, max_size=20),
        "TIMER_ORIGIN": st.integers(-2, 20).map(lambda n: b"%d" % n),
        "TIMER_ROLL_TIMES": st.integers(-1, 70_000).map(lambda n: b"%d" % n),
        "TIMER_NOT_BEFORE_MS": st.integers(0, 2 * NOW_MS).map(lambda n: b"%d" % n),
        "TIMER_RETRIES": st.integers(0, 70_000).map(lambda n: b"%d" % n),
        "x": header_values,
    },
).map(lambda fields: list(fields.items()))
chase_headers = st.fixed_dictionaries(
    {
        "TIMER_DEL_UNIQKEY": st.binary(max_size=256),
        "TIMER_ORIGIN": st.integers(-2, 20).map(lambda n: b"%d" % n),
        "TIMER_CANCEL_SLOT": st.sampled_from([*NUMBERS, b"x"]),
    },
    optional={
        "TIMER_CANCEL_FLAGS": st.sampled_from([b"0", b"1", b"2", b"3", b"4", b"-1", b"x", None]),
        "TIMER_CANCEL_OFFSET": st.sampled_from(NUMBERS),
        "TIMER_RESCHEDULE": st.sampled_from(FLAGS),
        "TIMER_RETRIES": st.just(b"1"),
        "TIMER_ROLL_TIMES": st.just(b"4"),
        "x": header_values,
    },
).map(lambda fields: list(fields.items()))
foreign_headers = st.fixed_dictionaries(
    {},
    optional={
        "scheduler-epoch": st.sampled_from([*NUMBERS, b"1800000001"]),
        "scheduler-target-topic": st.just(b"orders"),
        "scheduler-target-key": st.sampled_from([None, b"", b"k"]),
        "schedule_schema_version": st.sampled_from([b"1.0.0", b"2.0.0"]),
        "schedule_source_type": st.sampled_from(WORDS[:3]),
        "schedule_target_epoch": st.just(b"1800000001"),
        "schedule_target_topic": st.just(b"bills"),
        "schedule_target_partition": st.sampled_from(NUMBERS),
        "schedule_target_key": st.just(b"key"),
        "schedule_target_partition_key": st.sampled_from([None, b"", b"p"]),
        "kafka-scheduler-when": st.sampled_from(INSTANTS + WORDS),
        "kafka-scheduler-topic": st.just(b"orders"),
        "kafka-scheduler-cron": st.just(b"* * * * * *"),
        "TIMER_WINDOW_MS": st.sampled_from([b"5", b"86400000"]),
        "TIMER_ORIGIN": st.just(b"3"),
        "schedule_source_key": header_values,
        "x": header_values,
    },
).map(lambda fields: list(fields.items()))
CRONS = [b"0 8 * * MON-FRI", b"*/5 * * * * *", b"0 8 * *", b"0  8 * * *", b"0 8 L * 5L#,/-", b"a_b"]
recurring_headers = st.fixed_dictionaries(
    {"UNIQ_KEY": st.sampled_from([b"n", b"n" * 200, b"n" * 201]), "REAL_TOPIC": st.just(b"orders")},
    optional={
        "TIMER_CRON": st.sampled_from([*CRONS, b"* " * 124 + b"* *", *MALFORMED]),
        "TIMER_ZONE": st.sampled_from([b"Europe/Berlin", b"UTC", b"a/b_c+1-2", b"/", *MALFORMED]),
        "TIMER_EVERY": st.sampled_from([b"90s", b"1000", b"5ms", b"1d", b"9" * 12 + b"d", b"1.5h"]),
        "TIMER_MISSED": st.sampled_from([b"skip", b"one", b"all", b"", b"All"]),
        "TIMER_STARTS_MS": st.sampled_from([*NUMBERS, *INSTANTS]),
        "TIMER_ENDS_MS": st.sampled_from([*NUMBERS, *MALFORMED]),
        "TIMER_JITTER_MS": st.sampled_from([*NUMBERS, *MALFORMED]),
        "TIMER_PAUSED": st.sampled_from([None, b"", b"a\nnote", b"x" * 256]),
        "TIMER_DELAY_MS": st.just(b"5"),
        "TIMER_WINDOW_MS": st.just(b"5"),
        "TIMER_DELIVER_MS": st.sampled_from(INSTANTS[:3]),
        "TIMER_ORIGIN": st.just(b"3"),
        "x": header_values,
    },
).map(lambda fields: list(fields.items()))
some_bytes = st.none() | st.binary(max_size=30)
FRAMED = [b"\0\0\0\0\1", b"\0\0\0\0\1body", b"\0\x7f\xff\xff\xff\n", b"\0\1\0\0\0\0"]
UNFRAMED = [b"", b"\0", b"\0\0\0\0\0body", b"\1\0\0\0\1", b"\0\0\0\1", b"\0\x80\0\0\1", b"{}" * 5]
records = st.builds(
    PlainRecord,
    topic=st.sampled_from(["orders.delayed", "other.delayed"]),
    partition=st.sampled_from([0, 1, 70_000]),
    timestamp_ms=st.just(NOW_MS) | st.integers(-1, 2 * NOW_MS),
    key=some_bytes,
    value=some_bytes | st.sampled_from(FRAMED + UNFRAMED),
    headers=hostile_headers | sound_headers | chase_headers | foreign_headers | recurring_headers,
)
topic_contracts = st.builds(
    TopicContract,
    **{name: st.sampled_from(values) for name, values in CHOICES.items()},
    target=st.sampled_from([None, "orders", "bills"]),
    targets=st.sampled_from([None, (), ("*",), ("orders", "b[!a-h]ll?"), ("billing.*", "[a-c]*")]),
    delay_ms=st.sampled_from([None, 0, 1_000, 2 * MAX_DELAY_MS]),
    max_delay_ms=st.sampled_from([None, 0, 5, 86_400, 2 * MAX_DELAY_MS]),
    recurring=st.booleans(),
)
contracts = st.builds(
    contract,
    st.fixed_dictionaries(
        {}, optional={"orders.delayed": topic_contracts, "other.delayed": topic_contracts}
    ),
    topic_contracts,
)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(records, max_size=25),
    st.booleans(),
    st.lists(st.integers(0, 25), max_size=3).map(tuple),
    st.just(CONTRACT) | contracts,
)
def test_any_records(
    rows: list[PlainRecord], dictionary: bool, cuts: tuple[int, ...], under: Contract
) -> None:
    check(rows, parse(read_records(table(rows, dictionary, cuts)), under), under)


def test_a_replace_beside_headers_of_copies_cancels_nothing() -> None:
    """As a reschedule does not: a forged record, which has the code of that."""
    headers = [("UNIQ_KEY", b"a"), ("TIMER_IF_PENDING", b"replace"), ("TIMER_DELAY_MS", b"5000")]
    for more in ([], [("TIMER_NOT_BEFORE_MS", b"0")], [("TIMER_RETRIES", b"0")]):
        rows = [PlainRecord("orders.delayed", 0, NOW_MS, b"k", b"v", [*headers, *more])]
        batch = parse(read_records(table(rows)), CONTRACT)
        check(rows, batch, CONTRACT)
        codes = [batch.codes[code] for code in batch.code.tolist() if code >= 0]
        assert codes == (["bad_cancel"] if more else [])


@pytest.mark.parametrize("mode", CHOICES["headers"])
def test_each_value_in_each_header(mode: str) -> None:
    under = contract({"orders.delayed": TopicContract(headers=mode, target="orders")})
    values = [None, *NUMBERS, *MALFORMED, *INSTANTS, *TOPICS, *FLAGS, *WORDS]
    rows = [
        PlainRecord("orders.delayed", 0, NOW_MS, b"k", b"v", [*others, (name, value)])
        for name in DROP_IN.get(mode, REQUEST)
        for value in values
        for others in (
            [],
            [("TIMER_DELAY_MS", b"5")],
            [("TIMER_DELAY_MS", b"5"), ("UNIQ_KEY", b"id")],
        )
    ]
    batch = parse(read_records(table(rows)), under)
    check(rows, batch, under)
    assert 0.1 < batch.rejected.mean() < 0.9


def test_many_rows_with_large_ones_between() -> None:
    rows = [
        PlainRecord(
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
    check(rows, parse(read_records(table(rows, cuts=(100, 101, 700))), CONTRACT), CONTRACT)


@pytest.mark.parametrize("origin", [b"7", b"8", b"9223372036854775807", b"-2", b"", b"x", None])
def test_a_forged_chase_is_a_dead_letter(origin: bytes | None) -> None:
    """Its request would lie where it lies itself, or behind it, or nowhere."""
    chase: list[Header] = [("TIMER_DEL_UNIQKEY", b"id"), ("TIMER_CANCEL_SLOT", b"4")]
    rows = [
        PlainRecord("orders.delayed", 0, NOW_MS, b"k", None, [*chase, ("TIMER_ORIGIN", value)])
        for value in (origin, b"6")
    ]
    batch = parse(read_records(table(rows)), CONTRACT)
    check(rows, batch, CONTRACT)
    assert batch.rejected.tolist() == [True, False]
    assert (batch.timer.tolist(), batch.cancels.tolist()) == ([True, False], [False, True])
    assert (batch.origin_offset[1], batch.chase_slot[1]) == (6, 4)


HUGE_BYTES = 10_000_000


@pytest.mark.parametrize("octet", [b"9", b"0", b"\xff"])
def test_headers_of_ten_megabytes(octet: bytes) -> None:
    """A number that is far too large, one with far too many digits, no text at all."""
    others: list[Header] = [("TIMER_DELAY_MS", b"5"), ("REAL_TOPIC", b"orders")]
    names = ("TIMER_DELIVER_MS", "DELAY", "REAL_TOPIC", "UNIQ_KEY", "TIMER_ORIGIN", "x")
    rows = [
        PlainRecord("orders.delayed", 0, NOW_MS, None, b"v", [*others, *huge])
        for name in names
        for huge in ([(name, octet * HUGE_BYTES)], [])
    ]
    check(rows, parse(read_records(table(rows)), CONTRACT), CONTRACT)


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
        PlainRecord("orders.delayed", 0, NOW_MS, b"k", b"v", headers)
        for headers in (many, [*times, *sound], [], [*sound, ("DELAY", None)], times)
    ]
    batch = parse(read_records(table(rows)), CONTRACT)
    check(rows, batch, CONTRACT)
    assert batch.due_ms[1] == NOW_MS + 19_999
    assert batch.header_count[1] == 20_000


def test_no_rows() -> None:
    assert len(parse(read_records(table([])), CONTRACT)) == 0
    assert len(parse(read_records(table([]).schema.empty_table()), CONTRACT)) == 0


def test_taken_rows_keep_their_fields() -> None:
    rows = [
        PlainRecord(
            "orders.delayed", 0, NOW_MS, None, b"%d" % i, [("DELAY", b"%d" % i), ("x", b"y")]
        )
        for i in range(5)
    ]
    batch = parse(read_records(table(rows)), CONTRACT).take(
        parse(read_records(table(rows)), CONTRACT).offset[::-2] - 7
    )
    assert batch.offset.tolist() == [11, 9, 7]
    assert batch.key_value.to_pylist() == [b"\x01\x024", b"\x01\x022", b"\x01\x020"]
    assert batch.rejected.tolist() == [False, False, True]


def test_slot_values_are_plain_and_ordered() -> None:
    values: dict[str, Any] = CONTRACT.slot_values()
    assert values["levels_ms"] == [1_000, 5_000, 7_200_000]
    assert values["topics"] == {"orders.delayed": {"target": "orders"}}
    assert values["parameters"]["max_delay_ms"] == MAX_DELAY_MS
    assert values == contract(TOPIC_CONTRACTS).slot_values()
    assert values == json.loads(json.dumps(values))


@settings(max_examples=20)
@given(contracts)
def test_the_settings_of_topics_are_read_as_they_were_written(under: Contract) -> None:
    values = json.loads(json.dumps(under.slot_values()))
    read = Contract.from_slot_values(values, DEAD_LETTERS)
    assert (read.topics, read.default) == (under.topics, under.default)


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
        {"topics": {"orders.delayed": {"targets": 7}}},
        {"topics_default": {"targets": ["a b"]}},
        {"parameters": {}},
        {"suite": []},
        {"suite": {"expectations": [{"type": "expect_nothing"}]}},
        {"suite": {"expectations": ["none"]}},
    ],
)
def test_values_that_make_no_contract_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Contract.from_slot_values(CONTRACT.slot_values() | change, DEAD_LETTERS)


@pytest.mark.parametrize("target", ["", "a/b", "..", "__offsets", DEAD_LETTERS, "orders.delayed"])
def test_a_mapping_to_no_possible_target_is_refused(target: str) -> None:
    topics = {"orders.delayed": TopicContract(target=target)}
    with pytest.raises(ConfigError, match=r"orders\.delayed"):
        Contract(LEVELS_MS, topics, DEAD_LETTERS, CONTRACT.rules)


def test_a_timer_topic_is_closed_for_targets_that_its_settings_do_not_name() -> None:
    """Its own target is open, copies are no exception, and a cancel has no target."""
    opened = TopicContract(target="orders", targets=("bills.*",))
    under = contract({"orders.delayed": opened}, TopicContract(targets=()))
    soon: Header = ("TIMER_DELAY_MS", b"5")
    rows = [
        PlainRecord(topic, 0, NOW_MS, b"k", b"v", [soon, *headers])
        for topic in ("orders.delayed", "other.delayed")
        for headers in (
            list[Header](),
            [("REAL_TOPIC", b"orders")],
            [("REAL_TOPIC", b"bills.eu")],
            [("REAL_TOPIC", b"bills")],
            [("REAL_TOPIC", b"bills"), ("TIMER_ORIGIN", b"3")],
            [("REAL_TOPIC", b"bills"), ("TIMER_DEL_UNIQKEY", b"id")],
        )
    ]
    batch = parse(read_records(table(rows)), under)
    check(rows, batch, under)
    assert batch.rejected.tolist() == [*[False] * 3, True, True, False, *[True] * 5, False]
    assert batch.rejections() == {"target_not_allowed": 6, "no_target_topic": 1}


def test_mapped_topics_share_the_check_of_one_list() -> None:
    """A check for each topic and target would cost seconds in every batch of 2,000 topics."""
    mapped = [TopicContract(target=f"t{n}", targets=("bills.*", "t1")) for n in range(3)]
    assert len({each.listed_targets for each in mapped}) == 1
    named = [b"t0", b"t1", b"t2"]
    rows = [
        PlainRecord(f"m{n}", 0, NOW_MS, b"k", b"v", [("TIMER_DELAY_MS", b"5"), ("REAL_TOPIC", to)])
        for n in range(3)
        for to in named
    ]
    under = contract({f"m{n}": each for n, each in enumerate(mapped)})
    batch = parse(read_records(table(rows)), under)
    check(rows, batch, under)
    # Its own target, and t1, which the list names.
    assert batch.rejected.tolist() == [False, False, True, True, False, True, True, False, False]


def test_the_longest_delay_of_a_timer_topic() -> None:
    """The window counts; the limit of all topics stays the ceiling."""
    limits = {"orders.delayed": 1_000, "other.delayed": 2 * MAX_DELAY_MS}
    under = contract({n: TopicContract(target="a", max_delay_ms=ms) for n, ms in limits.items()})
    rows = [
        PlainRecord(topic, 0, NOW_MS, b"k", b"v", [("TIMER_DELAY_MS", delay), *more])
        for topic in limits
        for delay, more in (
            (b"1000", []),
            (b"1001", []),
            (b"999", [("TIMER_WINDOW_MS", b"2")]),
            (b"%d" % (MAX_DELAY_MS + 1), []),
        )
    ]
    batch = parse(read_records(table(rows)), under)
    check(rows, batch, under)
    assert batch.rejected.tolist() == [False, True, True, True, False, False, False, True]
    assert batch.rejections() == {"delay_too_long": 4}
    assert b"due 1001 ms after" in batch.headers[1].as_py()
    assert b"max_delay of the timer topic allows less" in batch.headers[1].as_py()


def test_a_value_without_the_number_of_a_schema() -> None:
    """Only where the timer topic demands it; a null, a cancel and a copy need none."""
    wanted = TopicContract(target="a", value_schema="registry")
    under = contract({"orders.delayed": wanted, "other.delayed": TopicContract(target="a")})
    due: list[Header] = [("TIMER_DELAY_MS", b"1000")]
    values: list[bytes | None] = [*FRAMED, None, *UNFRAMED]
    rows = [
        PlainRecord(topic, 0, NOW_MS, b"k", value, due)
        for topic in ("orders.delayed", "other.delayed")
        for value in values
    ]
    rows.append(PlainRecord("orders.delayed", 0, NOW_MS, b"k", b"x", [("TIMER_DEL_UNIQKEY", b"i")]))
    rows.append(
        PlainRecord("orders.delayed", 0, NOW_MS, b"k", b"x", [*due, ("TIMER_ORIGIN", b"3")])
    )
    batch = parse(read_records(table(rows)), under)
    check(rows, batch, under)
    refused = [False] * (len(FRAMED) + 1) + [True] * len(UNFRAMED)
    assert batch.rejected.tolist() == [*refused, *[False] * (len(values) + 2)]
    assert batch.rejections() == {"no_schema_number": len(UNFRAMED)}


def test_a_contract_from_before_the_lists_is_open() -> None:
    values = CONTRACT.slot_values()
    del values["topics_default"]
    assert Contract.from_slot_values(values, DEAD_LETTERS).default == DEFAULT


@pytest.mark.parametrize("levels_ms", [(), (1_000, -1)])
def test_impossible_levels_are_refused(levels_ms: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="levels"):
        Contract(levels_ms, {}, DEAD_LETTERS, CONTRACT.rules)
