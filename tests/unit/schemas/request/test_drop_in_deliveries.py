"""Topics that speak as another delay service does: the examples that those projects document, and
what becomes of such a timer that rolls.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.harness.local_world import LocalWorld
from tests.harness.source_table import read_records
from tests.harness.timer_rows import suite_parameters
from tests.property.plain_contract import Header, PlainRecord, table

from duewheel.schemas.batches import NO_KEY, Deliveries, TimerBatch
from duewheel.schemas.header_names import LEVELS_MS
from duewheel.schemas.request.acceptance_rules import compile_suite, load_suite
from duewheel.schemas.request.parser import Contract, parse
from duewheel.schemas.request.topic_settings import TopicContract
from duewheel.schemas.wire.varint import read_varint
from duewheel.wheel.slots import WheelConfig

NOW_MS = 1_607_918_336_000
YEARS_MS = 20 * 366 * 86_400_000
RULES = compile_suite(load_suite(), suite_parameters(max_delay_ms=YEARS_MS))
TOPIC = "schedules"
Message = tuple[bytes | None, bytes | None, list[Header]]


def contract(mode: str, **settings: Any) -> Contract:
    return Contract(LEVELS_MS, {TOPIC: TopicContract(headers=mode, **settings)}, "dead", RULES)


def read(
    mode: str,
    headers: list[Header],
    key: bytes | None = b"vid1-online",
    value: bytes | None = b"video 1",
    **settings: Any,
) -> TimerBatch:
    """One record of a topic of this mode, with offset 7 in partition 3."""
    record = PlainRecord(TOPIC, 3, NOW_MS, key, value, headers)
    return parse(read_records(table([record])), contract(mode, **settings))


def code(batch: TimerBatch) -> str | None:
    return next(iter(batch.rejections()), None)


def framed(octets: bytes, at: int) -> tuple[bytes | None, int]:
    size, at = read_varint(octets, at)
    return (None, at) if size < 0 else (octets[at : at + size], at + size)


def message(rows: TimerBatch | Deliveries, row: int = 0) -> Message:
    """Key, value, and the headers before those that every delivery gets."""
    octets = rows.key_value[row].as_py()
    key, at = framed(octets, 0)
    value, at = framed(octets, at)
    octets, at, headers = rows.headers[row].as_py(), 0, []
    while at < len(octets):
        name, at = framed(octets, at)
        content, at = framed(octets, at)
        headers.append(((name or b"").decode(), content))
    return key, value, headers


def target(batch: TimerBatch) -> str:
    return batch.targets[int(batch.target[0])]


ETF1: list[Header] = [
    ("scheduler-epoch", b"1893456000"),
    ("scheduler-target-topic", b"online-videos"),
    ("scheduler-target-key", b"vid1"),
    ("customer-header", b"dummy"),
]
KARAFKA: list[Header] = [
    ("schedule_schema_version", b"1.0.0"),
    ("schedule_target_epoch", b"1893456000"),
    ("schedule_source_type", b"schedule"),
    ("schedule_target_topic", b"events"),
]
EIFINGER: list[Header] = [
    ("kafka-scheduler-key", b"myKey"),
    ("kafka-scheduler-topic", b"mytopic"),
    ("kafka-scheduler-when", b"2011-12-03T10:15:30+01:00"),
]


def test_the_example_of_etf1() -> None:
    batch = read("etf1", ETF1)
    assert (target(batch), batch.due_ms.tolist()) == ("online-videos", [1_893_456_000_000])
    assert message(batch) == (
        b"vid1",
        b"video 1",
        [
            ("customer-header", b"dummy"),
            ("scheduler-timestamp", b"1607918336"),
            ("scheduler-key", b"vid1-online"),
            ("scheduler-topic", b"schedules"),
        ],
    )
    # The schedule's key is its id; the same key again is another schedule in its place.
    assert batch.timer_id.to_pylist() == [b"vid1-online"]
    assert (batch.timer.tolist(), batch.cancels.tolist()) == ([True], [True])


@pytest.mark.parametrize("mode", ["etf1", "karafka", "eifinger"])
def test_a_null_value_cancels_what_has_its_key(mode: str) -> None:
    """Whatever else it says; and nothing of the other service is added to it."""
    batch = read(mode, [*ETF1, *KARAFKA, *EIFINGER], value=None)
    assert (batch.timer.tolist(), batch.cancels.tolist()) == ([False], [True])
    assert batch.timer_id.to_pylist() == [b"vid1-online"]
    assert message(batch)[:2] == (b"vid1-online", None)
    assert ("customer-header", b"dummy") in message(batch)[2]
    added = {"scheduler-topic", "schedule_source_topic"}
    assert added.isdisjoint(name for name, _ in message(batch)[2])


def test_schedules_without_what_they_need() -> None:
    assert code(read("etf1", ETF1[1:])) == "no_due_time"
    assert code(read("etf1", [("scheduler-epoch", b"soon"), *ETF1[1:]])) == "bad_header"
    assert code(read("etf1", [ETF1[0]])) == "no_target_topic"
    assert target(read("etf1", [ETF1[0]], target="videos")) == "videos"
    assert code(read("etf1", ETF1, key=b"x" * 256)) == "bad_timer_id"
    # Without a target key the message has none; without a key the schedule has the default id.
    assert message(read("etf1", ETF1[:2]))[0] is None
    keyless = read("etf1", ETF1, key=None)
    assert (keyless.timer_id.to_pylist(), keyless.cancels.tolist()) == ([b""], [False])
    assert message(keyless)[2][-2] == ("scheduler-key", None)


def test_an_external_producer_of_karafka() -> None:
    batch = read("karafka", KARAFKA, key=b"events-7f3a")
    assert (target(batch), batch.due_ms.tolist()) == ("events", [1_893_456_000_000])
    assert batch.timer_id.to_pylist() == [b"events-7f3a"]
    assert message(batch) == (
        None,
        b"video 1",
        [
            ("schedule_source_topic", b"schedules"),
            ("schedule_source_partition", b"3"),
            ("schedule_source_offset", b"7"),
            ("schedule_source_key", b"events-7f3a"),
        ],
    )
    assert message(read("karafka", KARAFKA, key=None))[2][-1] == ("schedule_source_offset", b"7")


def test_the_optional_headers_of_karafka() -> None:
    batch = read(
        "karafka",
        [*KARAFKA, ("schedule_target_key", b"k"), ("schedule_target_partition", b"4")],
    )
    assert (message(batch)[0], batch.target_partition.tolist()) == (b"k", [4])
    placed = read("karafka", [*KARAFKA, ("schedule_target_partition_key", b"customer-9")])
    by_key = read("karafka", [*KARAFKA, ("schedule_target_key", b"customer-9")])
    assert message(placed)[0] is None
    assert placed.key_hash.tolist() == by_key.key_hash.tolist() != [NO_KEY]


def test_a_cancel_of_karafka() -> None:
    headers: list[Header] = [
        ("schedule_schema_version", b"1.0.0"),
        ("schedule_source_type", b"cancel"),
    ]
    for value in (None, b""):
        batch = read("karafka", headers, key=b"your_message_key", value=value)
        assert (batch.timer.tolist(), batch.cancels.tolist()) == ([False], [True])
        assert batch.timer_id.to_pylist() == [b"your_message_key"]
    assert code(read("karafka", headers, key=None, value=None)) == "bad_cancel"
    # Elsewhere this is an ordinary header.
    assert code(read("native", [*headers, ("REAL_TOPIC", b"t"), ("TIMER_DELAY_MS", b"1")])) is None


@pytest.mark.parametrize(
    "changed", [("schedule_schema_version", b"2.0.0"), ("schedule_source_type", b"tombstone")]
)
def test_what_karafka_would_not_understand(changed: Header) -> None:
    assert code(read("karafka", [*KARAFKA, changed])) == "bad_header"


def test_a_one_time_command_of_eifinger() -> None:
    batch = read("eifinger", EIFINGER, key=b"key", value=b"value")
    assert (target(batch), batch.due_ms.tolist()) == ("mytopic", [1_322_903_730_000])
    assert message(batch) == (b"myKey", b"value", [])
    assert batch.timer_id.to_pylist() == [b"key"]


@pytest.mark.parametrize(
    ("when", "due_ms"),
    [
        (b"2011-12-03T10:15:30Z", 1_322_907_330_000),
        (b"2011-12-03T10:15:30", 1_322_907_330_000),  # a local time: in UTC
        (b"2011-12-03T10:15", 1_322_907_300_000),
        (b"2011-12-03T10:15:30.000000001", 1_322_907_330_001),
    ],
)
def test_times_of_eifinger(when: bytes, due_ms: int) -> None:
    batch = read("eifinger", [*EIFINGER[:2], ("kafka-scheduler-when", when)])
    assert batch.due_ms.tolist() == [due_ms]


@pytest.mark.parametrize("when", [b"1322907330000", b"2011-12-03", b"2011-12-03T10:15:30[UTC]"])
def test_what_is_no_time_of_eifinger(when: bytes) -> None:
    assert code(read("eifinger", [*EIFINGER[:2], ("kafka-scheduler-when", when)])) == "bad_header"


@pytest.mark.parametrize(
    "again", [("kafka-scheduler-cron", b"*/5 * * * * *"), ("kafka-scheduler-period", b"PT5S")]
)
def test_recurring_commands_are_refused_and_can_be_cancelled(again: Header) -> None:
    assert code(read("eifinger", [*EIFINGER[:2], again])) == "recurring_not_supported"
    assert code(read("eifinger", [*EIFINGER, again])) == "recurring_not_supported"
    assert read("eifinger", [again], value=None).cancels.tolist() == [True]


def test_an_empty_target_key_is_a_key() -> None:
    headers: list[Header] = [("kafka-scheduler-key", b""), *EIFINGER[1:]]
    assert message(read("eifinger", headers))[0] == b""


@pytest.mark.parametrize("mode", ["native", "karafka", "eifinger"])
def test_headers_of_another_mode_are_the_users_own(mode: str) -> None:
    headers: list[Header] = [*ETF1, ("REAL_TOPIC", b"t"), ("TIMER_DELAY_MS", b"1")]
    batch = read(mode, headers)
    assert (target(batch), batch.due_ms.tolist()) == ("t", [NOW_MS + 1])
    assert message(batch)[2][: len(ETF1)] == ETF1


def test_where_both_say_when_the_modes_own_header_counts() -> None:
    both = read("etf1", [("DELAY", b"1"), *ETF1])
    assert (both.due_ms.tolist(), both.level.tolist()) == ([1_893_456_000_000], [0])
    native = read("etf1", [("DELAY", b"1"), *ETF1[1:]])
    assert (native.due_ms.tolist(), native.level.tolist()) == ([NOW_MS + 1_000], [1])


@pytest.mark.parametrize("mode", ["etf1", "karafka", "eifinger"])
def test_a_native_timer_in_such_a_topic_keeps_its_key(mode: str) -> None:
    """As DelayProducer writes it; still the key is its id where it gives none."""
    asked: list[Header] = [("TIMER_DELAY_MS", b"1"), ("REAL_TOPIC", b"t")]
    batch = read(mode, [*asked, ("UNIQ_KEY", b"7")])
    assert message(batch) == (b"vid1-online", b"video 1", [])
    assert (batch.timer_id.to_pylist(), batch.cancels.tolist()) == ([b"7"], [False])
    assert read(mode, asked).timer_id.to_pylist() == [b"vid1-online"]


# ---- through the wheel ---------------------------------------------------------------------------


class RollingWorld(LocalWorld):
    """A shard with one topic, whose rolled copies are read again."""

    def __init__(self, path: Path, under: Contract) -> None:
        wheel = WheelConfig(50, 100_000, window_ms=3_600_000, margin_ms=0)
        super().__init__(path, wheel, starts={(TOPIC, 3): 0}, now_ms=NOW_MS)
        self.under = under

    def take(self, *records: PlainRecord) -> None:
        mark = self.engine.marks.get((TOPIC, 3), 0)
        batch = parse(read_records(table([*records], first_offset=mark)), self.under)
        assert not batch.rejected.any()
        self.engine.append(batch, {(TOPIC, 3): mark + len(records)})

    def deliver(self) -> tuple[Deliveries, int]:
        """What leaves at last, and how often it was rolled till then."""
        for rolls in range(20):
            known = len(self.publisher.committed)
            while len(self.publisher.committed) == known or self.publisher.committed[-1][0] is None:
                self.clock.sleep(60)
                self.drain()
            deliveries = self.publisher.committed[-1][0]
            assert deliveries is not None
            if not deliveries.is_copy.any():
                return deliveries, rolls
            key, value, headers = message(deliveries)
            self.take(PlainRecord(TOPIC, 3, self.clock.now_ms(), key, value, headers))
        raise AssertionError("it rolls for ever")


HOURS_MS = 5 * 3_600_000
EPOCH = b"%d" % ((NOW_MS + HOURS_MS) // 1000)


@pytest.mark.parametrize(
    ("mode", "key", "headers"),
    [
        ("etf1", b"the id", [("scheduler-epoch", EPOCH), *ETF1[1:]]),
        ("etf1", None, [("scheduler-epoch", EPOCH), *ETF1[1:]]),
        (
            "karafka",
            b"the id",
            [
                ("schedule_target_epoch", EPOCH),
                ("schedule_target_topic", b"events"),
                ("schedule_target_key", b"k"),
                ("schedule_target_partition_key", b"customer-9"),
            ],
        ),
        ("eifinger", None, [*EIFINGER[:2], ("kafka-scheduler-when", b"2020-12-14T08:58:56")]),
        ("native", b"the id", [("REAL_TOPIC", b"t"), ("TIMER_DELIVER_MS", EPOCH + b"000")]),
    ],
)
def test_one_that_rolls_is_delivered_like_one_that_does_not(
    tmp_path: Path, mode: str, key: bytes | None, headers: list[Header]
) -> None:
    """The copy has another key and none of the service's headers: it is still the same timer."""
    under = contract(mode, id="key", null_value="cancel", past_due="dead-letter", delay_ms=5)
    headers = [*headers, ("TIMER_WINDOW_MS", b"60000"), ("x", b"")]
    record = PlainRecord(TOPIC, 3, NOW_MS, key, b"value", headers)
    at_once = parse(read_records(table([record], first_offset=0)), under)
    world = RollingWorld(tmp_path, under)
    world.take(record)
    found, rolls = world.deliver()
    world.kill()
    assert rolls >= 5
    assert message(found) == message(at_once)
    assert found.targets[int(found.target[0])] == target(at_once)
    for column in ("due_ms", "key_hash", "target_partition"):
        assert getattr(found, column).tolist() == getattr(at_once, column).tolist(), column
    assert found.timer_id.to_pylist() == [key or b"schedules-3@0"]
