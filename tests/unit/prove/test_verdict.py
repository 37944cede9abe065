"""The verdict of proofs and soaks finds each violation."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pytest

from duewheel.prove.cancel_judge import Source
from duewheel.prove.records import ArrivedReply, ArrivedTimer, WrittenTopic
from duewheel.prove.verdict import ProofRules, ProofVerdict, out_of_order, verdict_of

RULES = ProofRules("orders", "dead", window_ms=1_000, precision_ms=50)


@dataclass(frozen=True)
class ArrivedRecord:
    topic: str
    offset: int
    timestamp: int
    value: bytes
    headers: tuple[tuple[str, bytes], ...]
    key: bytes | None = None
    partition: int = 0


def timer(offset: int, *request: tuple[str, bytes]) -> ArrivedRecord:
    return ArrivedRecord(
        "timers", offset, 10_000 + offset, b"%d " % offset, (("n", b"1"), *request)
    )


def arrival(place: int, of: ArrivedRecord, due_ms: int, *, late_ms: int = 0) -> ArrivedRecord:
    added = (("TIMER_SOURCE", b"timers-0@%d" % of.offset), ("TIMER_DUE_MS", b"%d" % due_ms))
    return ArrivedRecord("orders", place, due_ms + late_ms, of.value, (("n", b"1"), *added))


def answer(place: int, to: ArrivedRecord, word: bytes, timestamp: int) -> ArrivedRecord:
    name, source = b"timer 5", b"timers-0@%d" % to.offset
    kind = "reschedule" if to is AGAIN else "cancel"
    said = {"answer": word.decode(), "id": name.decode(), "source": source.decode()}
    added = (("TIMER_ANSWER", word), ("UNIQ_KEY", name), ("TIMER_SOURCE", source))
    value = json.dumps({**said, "request": kind}).encode()
    return ArrivedRecord("replies", place, timestamp, value, (("n", b"1"), *added))


FIRST = timer(0, ("TIMER_DELAY_MS", b"500"))
SECOND = timer(1, ("TIMER_DELAY_MS", b"900"))
BROKEN = timer(2)
ROLLED = timer(3, ("TIMER_DELAY_MS", b"5000"))
COPY = replace(ROLLED, offset=4, headers=(*ROLLED.headers, ("TIMER_ORIGIN", b"3")))
NAME = ("UNIQ_KEY", b"timer 5")
CALLED = timer(5, ("TIMER_DELAY_MS", b"600"), NAME)
AGAIN = timer(6, ("TIMER_DELAY_MS", b"700"), NAME, ("TIMER_RESCHEDULE", b"true"))
TOO_LATE = timer(7, ("TIMER_DEL_UNIQKEY", b"timer 5"))


def chase(offset: int, origin: int, name: bytes = b"timer 5") -> ArrivedRecord:
    """What duewheel writes for a cancel; no request."""
    made = (("TIMER_DEL_UNIQKEY", name), ("TIMER_ORIGIN", b"%d" % origin))
    return ArrivedRecord(
        *("timers", offset, 12_000, b"", (("n", b"1"), *made, ("TIMER_CANCEL_SLOT", b"240")))
    )


WRITTEN = [FIRST, SECOND, BROKEN, ROLLED, COPY, CALLED, AGAIN, TOO_LATE, chase(8, 7), chase(9, 6)]
ACKNOWLEDGED: dict[int, Source] = {number: (0, number) for number in (0, 1, 2, 3, 5, 6, 7)}
REJECTION = (("TIMER_ERROR_CODE", b"no_due_time"), ("TIMER_SOURCE", b"timers-0@2"))
ARRIVED = [
    arrival(0, FIRST, 10_500),
    arrival(1, SECOND, 10_901),
    ArrivedRecord("dead", 0, 10_100, b"2 ", (("n", b"1"), *REJECTION)),
    arrival(2, ROLLED, 15_003, late_ms=7),
    arrival(4, AGAIN, 10_706, late_ms=200),
]
ANSWERS = [
    answer(0, AGAIN, b"cancelled", 10_300),
    answer(1, TOO_LATE, b"already_delivered", 11_900),
]
EARLIER = replace(ARRIVED[0], offset=3)  # it comes behind the second one


def verdict(
    written: Sequence[ArrivedRecord] = WRITTEN,
    arrived: Sequence[ArrivedRecord] = ARRIVED,
    answers: Sequence[ArrivedRecord] = ANSWERS,
    acknowledged: Mapping[int, Source] = ACKNOWLEDGED,
    rules: ProofRules = RULES,
    received_ms: int = 0,
) -> ProofVerdict:
    """Each is received when it was stamped, and so much later."""
    return verdict_of(
        WrittenTopic.of(written),
        [ArrivedTimer.of(record, record.timestamp + received_ms) for record in arrived],
        [ArrivedReply.of(record) for record in answers],
        acknowledged,
        rules,
    )


@pytest.mark.parametrize(
    ("fault", "arrived"),
    [
        ("lost", ARRIVED[1:]),
        ("doubled", [*ARRIVED, replace(ARRIVED[3], offset=3)]),
        ("early", [replace(ARRIVED[0], timestamp=10_499), *ARRIVED[1:]]),
        ("altered", [replace(ARRIVED[0], value=b"0  "), *ARRIVED[1:]]),
        ("altered", [replace(ARRIVED[0], topic="dead"), *ARRIVED[1:]]),
        ("altered", [replace(ARRIVED[0], key=b"another"), *ARRIVED[1:]]),
        ("invented", [*ARRIVED, arrival(3, timer(9), 10_500)]),
        ("disordered", [EARLIER, *ARRIVED[1:]]),
    ],
)
def test_it_sees_a_fault(fault: str, arrived: list[ArrivedRecord]) -> None:
    assert verdict(arrived=arrived).faults == {fault: 1}


def test_it_sees_what_comes_though_it_was_cancelled() -> None:
    arrived = [*ARRIVED, arrival(3, CALLED, 10_605, late_ms=900)]
    faults = verdict(arrived=arrived).faults
    assert faults == {"resurrected": 1, "untrue": 1}


@pytest.mark.parametrize(
    ("fault", "answers"),
    [
        ("unanswered", ANSWERS[:1]),
        ("answered twice", [*ANSWERS, replace(ANSWERS[1], offset=2)]),
        ("invented", [*ANSWERS, answer(2, FIRST, b"unknown", 12_000)]),
        ("untrue", [answer(0, AGAIN, b"already_delivered", 10_300), ANSWERS[1]]),
        ("altered", [replace(ANSWERS[0], key=b"another"), ANSWERS[1]]),
        ("altered", [replace(ANSWERS[0], headers=ANSWERS[0].headers[1:]), ANSWERS[1]]),
    ],
)
def test_it_sees_a_fault_of_answers(fault: str, answers: list[ArrivedRecord]) -> None:
    assert verdict(answers=answers).faults[fault] == 1


@pytest.mark.parametrize(
    "stray", [chase(10, 5), chase(10, 9), chase(10, 7, b"timer 6"), chase(6, 7), chase(10, 77)]
)
def test_it_sees_a_chase_that_no_cancel_has(stray: ArrivedRecord) -> None:
    assert verdict([*WRITTEN, stray]).faults == {"strayed": 1}


def test_it_sees_what_kafka_has_taken_back() -> None:
    faults = verdict(acknowledged={**ACKNOWLEDGED, 8: (0, 8)}).faults
    assert faults == {"taken back": 1}


def test_it_finds_no_fault_where_there_is_none() -> None:
    found = verdict()
    assert (found.faults, found.details) == ({}, [])
    assert (found.delivered, found.rejected, found.expired, found.rolled) == (4, 1, 0, 1)
    assert (found.cancelled, found.chases) == (1, 2)
    assert found.replies == {"cancelled": 1, "already_delivered": 1}


EXPIRES = ("TIMER_EXPIRES_MS", b"10600")
EXPIRED = ("TIMER_ERROR_CODE", b"expired")


@pytest.mark.parametrize(
    ("delay_ms", "code", "stamp_ms", "faults"),
    [
        (b"500", b"expired", 10_601, {}),
        (b"500", b"expired", 10_600, {"misexpired": 1}),
        (b"500", None, 10_601, {}),  # decided before
        (b"700", b"expired", 10_700, {}),
        (b"700", None, 10_700, {"misexpired": 1}),
        (b"500", b"waited", 10_601, {"altered": 1}),
    ],
)
def test_a_timer_expires_after_its_last_instant_alone(
    delay_ms: bytes, code: bytes | None, stamp_ms: int, faults: Mapping[str, int]
) -> None:
    asked = timer(0, ("TIMER_DELAY_MS", delay_ms), EXPIRES)
    came = replace(arrival(0, asked, 10_000 + int(delay_ms)), timestamp=stamp_ms)
    if code is not None:
        added = (*came.headers, ("TIMER_ERROR_CODE", code))
        came = replace(came, topic="dead", headers=added)
    found = verdict([asked], [came], [], {})
    assert (found.faults, found.expired) == (faults, code == b"expired")


def test_only_a_timer_that_expires_is_expired() -> None:
    came = replace(ARRIVED[0], topic="dead", headers=(*ARRIVED[0].headers, EXPIRED))
    assert verdict(arrived=[came, *ARRIVED[1:]]).faults == {"misexpired": 1}


def test_a_broker_may_be_behind_by_the_skew_and_a_receipt_may_not() -> None:
    arrived = [replace(ARRIVED[0], timestamp=10_490), *ARRIVED[1:]]
    allowed = replace(RULES, skew_ms=10)
    assert verdict(arrived=arrived, rules=allowed, received_ms=10).faults == {}
    assert verdict(arrived=arrived, rules=allowed, received_ms=9).faults == {"early": 1}
    assert verdict(arrived=arrived, received_ms=10).faults == {"early": 1}


@pytest.mark.parametrize(
    ("header", "due_ms"),
    [
        (("TIMER_DELIVER_MS", b"10400"), 10_400),
        (("TIMER_DELAY_SEC", b"2"), 12_000),
        (("DELAY", b"2"), 15_000),
    ],
)
def test_every_form_of_a_due_time_is_known(header: tuple[str, bytes], due_ms: int) -> None:
    asked = timer(0, header)
    for late_ms, faults in ((0, {}), (-1, {"early": 1})):
        found = verdict([asked], [arrival(0, asked, due_ms, late_ms=late_ms)], [], {})
        assert found.faults == faults


def test_the_order_is_that_of_a_comparison_of_all_pairs() -> None:
    chance = random.Random(1)
    for _ in range(300):
        lane = [(offset, chance.randrange(6)) for offset in range(12)]
        chance.shuffle(lane)
        expected = [
            offset
            for at, (offset, slot) in enumerate(lane)
            if any(other > offset and later >= slot for other, later in lane[:at])
        ]
        assert list(out_of_order(lane)) == expected
