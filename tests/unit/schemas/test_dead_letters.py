"""The content of dead letters, their replay, and its position."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from kafka.record import MemoryRecords
from tests.harness.deliveries import plain_deliveries
from tests.harness.timer_rows import suite_parameters

from duewheel.checkpoints.dlq_replay_position import ReplayPosition
from duewheel.schemas.batches import NO_KEY, NO_PARTITION, Deliveries
from duewheel.schemas.columns import binary
from duewheel.schemas.dead_letters import DeadLetter, Outgoing, why_no_target
from duewheel.schemas.name_patterns import TimerTopics
from duewheel.schemas.request.acceptance_rules import compile_suite, load_suite
from duewheel.schemas.request.parser import Contract
from duewheel.schemas.request.preview import Rejection
from duewheel.schemas.request.topic_settings import TopicContract
from duewheel.schemas.wire.record_batch import seal, split
from duewheel.schemas.wire.single_record import Header, encode, framed
from duewheel.wheel.dequeue import dead_letter_rows
from duewheel.wheel.target_rules import Reason, Target

TIMERS, DEAD, STATE, REPLIES = "orders.delayed", "dead", "state", "replies"
OWN = {TIMERS, DEAD, STATE, REPLIES}
TIMER_TOPICS = TimerTopics((TIMERS,))
RULES = compile_suite(
    load_suite(),
    suite_parameters(forbidden_targets=sorted(OWN)),
)
OPEN = TopicContract(targets=("orders", "gone", "new*"))
NO_TARGETS = partial(why_no_target, Contract((1,), {TIMERS: OPEN}, DEAD, RULES))
USERS: list[Header] = [("a", None), ("a", b"1"), ("TIMER_ERROR_CODE", b"mine")]


def deliveries(rolled: bool) -> Deliveries:
    """A row without wishes, one with a partition, an id and a roll behind it."""
    header = b"".join(framed(name.encode()) + framed(value) for name, value in USERS)
    return replace(
        plain_deliveries(2),
        targets=["gone"],
        target_partition=np.array([NO_PARTITION, 3], np.int32),
        key_hash=np.array([NO_KEY, 5], np.int32),
        due_ms=np.array([7, 8]),
        source_partitions=[("orders.delayed", 0), ("orders.delayed", 2)],
        source_partition=np.array([0, 1], np.int32),
        origin_offset=np.array([1, 9]),
        source=binary([b"orders.delayed-0@1", b"orders.delayed-2@9"]),
        timer_id=binary([b"orders.delayed-0@1", b"mine\xff"]),
        key_value=binary([framed(None) * 2, framed(b"k") + framed(b"")]),
        headers=binary([header, header]),
        header_count=np.full(2, len(USERS), np.int32),
        roll_times=np.array([0, 2], np.int32),
        is_copy=np.full(2, rolled),
    )


def decoded(rows: Deliveries) -> list[Any]:
    """The records as Kafka's clients see them."""
    (batches,) = split(rows, [len(rows)], [1 << 20])
    records = MemoryRecords(
        b"".join(bytes(seal(batch.body, batch.count, timestamp_ms=0)) for batch in batches)
    )
    found = []
    while (batch := records.next_batch()) is not None:
        found += list(batch)
    return found


def dead_lettered(rolled: bool = False) -> list[DeadLetter]:
    rows = deliveries(rolled)
    reason = np.full(2, Reason.UNKNOWN_TARGET_TOPIC, np.int32)
    return letters_of(dead_letter_rows.dead_lettered(rows, reason, {"gone": Target(0, 0)}, DEAD))


def letters_of(rows: Deliveries) -> list[DeadLetter]:
    return [
        DeadLetter(0, place, 0, record.key, record.value, tuple(record.headers))
        for place, record in enumerate(decoded(rows))
    ]


def test_a_failed_delivery_keeps_what_it_would_have_carried() -> None:
    plain, other = dead_lettered()
    error = ("TIMER_ERROR", b"topic 'gone' does not exist")
    reason = [("TIMER_ERROR_CODE", b"unknown_target_topic"), error]
    assert list(plain.headers) == [
        *USERS,
        *reason,
        ("REAL_TOPIC", b"gone"),
        ("TIMER_DUE_MS", b"7"),
        ("UNIQ_KEY", b"orders.delayed-0@1"),
        ("TIMER_SOURCE", b"orders.delayed-0@1"),
    ]
    assert list(other.headers[len(USERS) + 2 :]) == [
        ("REAL_TOPIC", b"gone"),
        ("REAL_QID", b"3"),
        ("TIMER_DUE_MS", b"8"),
        ("UNIQ_KEY", b"mine\xff"),
        ("TIMER_ROLL_TIMES", b"2"),
        ("TIMER_SOURCE", b"orders.delayed-2@9"),
    ]
    # Replayed, it is byte for byte the delivery that failed.
    for letter, delivery in zip((plain, other), decoded(deliveries(rolled=False)), strict=True):
        out = letter.replayed(TIMER_TOPICS, NO_TARGETS, None, REPLIES)
        assert isinstance(out, Outgoing)
        assert (letter.key, letter.value) == (delivery.key, delivery.value)
        assert list(out.headers) == delivery.headers
        assert out.partition_needed
    assert [out.partition for out in map(sent, (plain, other))] == [NO_PARTITION, 3]


def test_the_requested_partition_may_be_any_that_kafka_can_number() -> None:
    (_, letter) = dead_lettered()
    for number, code in ((b"2147483647", None), (b"2147483648", "not_a_dead_letter")):
        headers = [(n, number if n == "REAL_QID" else value) for n, value in letter.headers]
        named = replace(letter, headers=headers)
        out = named.replayed(TIMER_TOPICS, NO_TARGETS, None, REPLIES)
        assert getattr(out, "code", None) == code
        assert getattr(out, "partition", None) == (None if code else 2**31 - 1)


def sent(letter: DeadLetter) -> Outgoing:
    out = letter.replayed(TIMER_TOPICS, NO_TARGETS, None, REPLIES)
    assert isinstance(out, Outgoing)
    return out


def test_a_replay_has_no_lateness_of_the_attempt_that_failed() -> None:
    plain, _ = dead_lettered()
    late = replace(plain, headers=(("TIMER_LATENESS_MS", b"5"), *plain.headers))
    assert sent(late).headers == sent(plain).headers


def test_a_rolled_copy_goes_back_to_its_timer_topic() -> None:
    """Its headers are a complete request already."""
    for letter, partition in zip(dead_lettered(rolled=True), (0, 2), strict=True):
        out = sent(letter)
        assert (out.topic, out.partition) == (TIMERS, partition)
        assert out.headers == tuple(USERS)


def rejected(
    *users: Header, code: str = "no_due_time", source: str = f"{TIMERS}-1@7"
) -> DeadLetter:
    added = [("TIMER_ERROR_CODE", code.encode()), ("TIMER_SOURCE", source.encode())]
    return DeadLetter(0, 0, 0, b"k", b"v", (*users, *added))


def test_a_rejected_message_goes_back_as_it_came() -> None:
    # Request headers and all, those of an earlier life of it included.
    brought: list[Header] = [
        ("REAL_TOPIC", DEAD.encode()),
        ("TIMER_ERROR_CODE", b"x"),
        ("REAL_TOPIC", b"gone"),
    ]
    out = sent(rejected(*brought))
    assert (out.topic, out.partition, out.partition_needed) == (TIMERS, 1, False)
    assert out.headers == tuple(brought)
    to_topic = rejected(*brought).replayed(TIMER_TOPICS, NO_TARGETS, "orders", REPLIES)
    assert isinstance(to_topic, Outgoing)
    assert (to_topic.topic, to_topic.partition) == ("orders", NO_PARTITION)
    own = [header for header in brought if header[0] != "TIMER_ERROR_CODE"]
    assert to_topic.headers == (*own, ("TIMER_SOURCE", b"orders.delayed-1@7"))


def test_a_forged_reply_stays_away_from_the_reply_topic() -> None:
    letter = rejected(("TIMER_ANSWER", b"cancelled"), ("REAL_TOPIC", REPLIES.encode()))
    refusal = letter.replayed(TIMER_TOPICS, NO_TARGETS, REPLIES, REPLIES)
    assert isinstance(refusal, Rejection)
    assert refusal.code == "forbidden_target"


@pytest.mark.parametrize(
    ("letter", "code"),
    [
        (rejected(source=f"{DEAD}-0@1"), "not_a_timer_topic"),
        (rejected(source="nonsense"), "not_a_dead_letter"),
        (rejected(code=""), "not_a_dead_letter"),
        (rejected(code="bad_origin"), "bad_origin"),
        (DeadLetter(0, 0, 0, b"k", b"v", ()), "not_a_dead_letter"),
        (
            replace(rejected(code="record_too_large"), key=None, value=None),
            "record_too_large",
        ),
    ],
)
def test_what_cannot_be_replayed(letter: DeadLetter, code: str) -> None:
    refusal = letter.replayed(TIMER_TOPICS, NO_TARGETS, None, REPLIES)
    assert isinstance(refusal, Rejection)
    assert refusal.code == code


@pytest.mark.parametrize(
    ("topic", "code"),
    [
        *((topic, "forbidden_target") for topic in [*sorted(OWN), "__consumer_offsets"]),
        ("orders.secret", "target_not_allowed"),
    ],
)
def test_what_no_timer_may_go_to_is_no_target_of_a_replay(topic: str, code: str) -> None:
    letter = DeadLetter(
        *(0, 0, 0, b"k", b"v"),
        (
            ("TIMER_ERROR_CODE", b"unknown_target_topic"),
            ("REAL_TOPIC", topic.encode()),
            ("TIMER_SOURCE", b"orders.delayed-0@1"),
        ),
    )
    to_topic = rejected().replayed(TIMER_TOPICS, NO_TARGETS, topic, REPLIES)
    refusals = [letter.replayed(TIMER_TOPICS, NO_TARGETS, None, REPLIES)]
    if code == "target_not_allowed":  # the operator may choose it
        assert isinstance(to_topic, Outgoing)
    else:
        refusals.append(to_topic)
    for refusal in refusals:
        assert isinstance(refusal, Rejection)
        assert refusal.code == code
        assert topic in refusal.reason


def test_an_answer_is_replayed_as_it_was_to_the_reply_topic_and_to_no_other_closed_one() -> None:
    def answers(topic: str) -> tuple[list[Any], list[DeadLetter]]:
        """As they were, and as dead letters."""
        two = deliveries(rolled=False).take(np.zeros(2, np.int64))
        own = [("TIMER_ANSWER", b"cancelled"), ("UNIQ_KEY", b"a")]
        headers = b"".join(framed(name.encode()) + framed(value) for name, value in own)
        rows = replace(
            two,
            targets=[topic],
            headers=binary([headers] * 2),
            header_count=np.full(2, len(own), np.int32),
            answer=np.ones(2, np.bool_),
        )
        reason = np.full(2, Reason.UNKNOWN_TARGET_TOPIC, np.int32)
        dead = dead_letter_rows.dead_lettered(rows, reason, {topic: Target(0, 0)}, DEAD)
        return decoded(rows), letters_of(dead)

    for answer, letter in zip(*answers(REPLIES), strict=True):
        names = [name for name, _ in letter.headers[2:]]
        assert names == ["TIMER_ERROR_CODE", "TIMER_ERROR", "REAL_TOPIC", "TIMER_SOURCE"]
        out = letter.replayed(TIMER_TOPICS, NO_TARGETS, None, REPLIES)
        assert isinstance(out, Outgoing)
        assert (out.topic, out.partition) == (REPLIES, NO_PARTITION)
        assert out.headers == tuple(answer.headers)
    for letter in answers(STATE)[1]:
        assert isinstance(letter.replayed(TIMER_TOPICS, NO_TARGETS, None, REPLIES), Rejection)


def test_dead_again_with_todays_reason() -> None:
    plain = dead_lettered()[0]
    again = plain.again(Rejection("key_required", "why"))
    letter = replace(plain, headers=again)
    assert (letter.code, letter.error, letter.source) == ("key_required", "why", plain.source)
    assert sent(letter) == sent(plain)


def test_single_records_are_read_by_kafkas_own_decoder() -> None:
    rows: list[tuple[bytes | None, bytes | None, list[Header]]] = [
        (None, None, [("a", None), ("", b""), ("a", bytes(range(256)))]),
        (b"", b"", []),
    ]
    rows += [(b"%d" % n, bytes(n), [("n", b"%d" % n)]) for n in range(200)]
    body = b"".join(encode(place, *row) for place, row in enumerate(rows))
    batch = MemoryRecords(bytes(seal(body, len(rows), timestamp_ms=9))).next_batch()
    assert [(r.key, r.value, r.headers) for r in batch] == rows


def letter_at(partition: int, offset: int, code: str, topic: str = "timers") -> DeadLetter:
    headers = [("TIMER_ERROR_CODE", code.encode()), ("TIMER_SOURCE", f"{topic}-0@7".encode())]
    return DeadLetter(partition, offset, 9, b"k", b"v", headers)


def test_a_position_of_one_code_passes_over_the_others() -> None:
    position = ReplayPosition("topic 1")
    position = position.moved(0, 10, "a", None)
    assert position.has(letter_at(0, 9, "a"))
    assert not position.has(letter_at(0, 9, "b"))
    assert not position.has(letter_at(0, 10, "a"))
    assert not position.has(letter_at(1, 9, "a"))
    assert [position.start(0, code, None) for code in ("a", "b", None)] == [10, 0, 0]

    position = position.moved(0, 5, None, None)
    position = position.moved(1, 3, None, None)
    again = ReplayPosition.decode(position.encode(), "topic 1")
    assert again == position
    assert [again.has(letter_at(0, offset, "b")) for offset in (4, 5)] == [True, False]
    assert again.has(letter_at(0, 9, "a"))
    again = again.moved(0, 12, None, None)
    assert again.has(letter_at(0, 11, "b"))
    assert again.encode() == b'{"topic_id": "topic 1", "partitions": {"0": [12, {}], "1": [3, {}]}}'


def test_a_position_of_one_timer_topic_passes_over_the_others() -> None:
    position = ReplayPosition("topic 1").moved(0, 10, None, "timers").moved(0, 20, "a", "timers")
    again = ReplayPosition.decode(position.encode(), "topic 1")
    assert again == position
    assert again.encode().endswith(b'{"0": [0, {}, [[null, "timers", 10], ["a", "timers", 20]]]}}')
    assert [again.has(letter_at(0, n, "a")) for n in (9, 19, 20)] == [True, True, False]
    assert [again.has(letter_at(0, n, "b")) for n in (9, 10)] == [True, False]
    assert not again.has(letter_at(0, 0, "a", "others"))
    assert not again.has(DeadLetter(0, 0, 9, b"k", b"v", ()))
    assert again.start(0, "a", None) == again.start(0, None, None) == 0
    assert again.moved(0, 20, None, None) == ReplayPosition("topic 1").moved(0, 20, None, None)


def test_a_position_in_a_topic_made_anew_is_its_beginning() -> None:
    position = ReplayPosition("topic 1")
    position = position.moved(0, 10, None, None)
    assert ReplayPosition.decode(position.encode(), "topic 2") == ReplayPosition("topic 2")
    assert ReplayPosition.decode(None, "topic 1") == ReplayPosition("topic 1")
