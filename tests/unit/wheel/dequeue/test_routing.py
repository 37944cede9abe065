"""The rows of a slot that leave, that are parked, and that become dead letters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from tests.harness.deliveries import NOW_MS, rows
from tests.harness.record_batches import batch, rows_of

from duewheel.kafka.log.columns import committed_records
from duewheel.kafka.log.leader_requests import Fetched
from duewheel.schemas.batches import TopicPartition
from duewheel.schemas.columns import binary
from duewheel.schemas.dead_letters import DeadLetter, Outgoing
from duewheel.schemas.name_patterns import TimerTopics
from duewheel.schemas.wire.copy_mac import own_copies
from duewheel.schemas.wire.kafka_records import KafkaRecords
from duewheel.schemas.wire.record_batch import seal, split
from duewheel.schemas.wire.record_codec import key_values
from duewheel.wheel.dequeue.requeue import rolled_copies
from duewheel.wheel.dequeue.routing import Routed, route
from duewheel.wheel.target_rules import Reason, Target

ROOM = Target(1, 2_000, batch_bytes=2_000)


def routed_slot(known: Mapping[str, Target], copy_key: bytes = b"") -> Routed:
    """Rows of one slot: good, bad, and rolled ones between each other."""
    names = ["good", "bad", "good", "far", "good"]
    sent = replace(rows(names, [0] * 5), origin_offset=np.arange(5))
    values = binary([b"v", b"v", b"v", b"v" * 450, b"v"])
    sent = replace(sent, key_value=key_values(binary([b"k"] * 5), values))
    sent = rolled_copies(sent, np.array([False, False, False, True, False]))
    everywhere = {"good": ROOM, "far": ROOM, "timers": ROOM, "dead": ROOM, **known}
    return route(
        sent,
        lambda topics: {name: everywhere[name] for name in topics},
        frozenset(),
        "dead",
        NOW_MS,
        copy_key=copy_key,
    )


@pytest.mark.parametrize(
    ("bad", "code"),
    [
        (Target(0, 0, refusal=Reason.UNKNOWN_TARGET_TOPIC), "unknown_target_topic"),
        (Target(0, 0, refusal=Reason.TARGET_NOT_AUTHORIZED), "target_not_authorized"),
        (Target(0, 2_000), "bad_target_partition"),
        (Target(1, 100), "record_too_large"),
    ],
)
def test_neighbours_of_what_can_never_be_published_leave_with_it(bad: Target, code: str) -> None:
    found = routed_slot({"bad": replace(bad, batch_bytes=2_000)})
    targets = [found.deliveries.targets[index] for index in found.deliveries.target.tolist()]
    assert targets == ["good", "dead", "good", "timers", "good"]
    assert found.aside.reasons == {code: 1}


def test_a_rolled_copy_that_its_timer_topic_does_not_take_becomes_a_dead_letter() -> None:
    """With its request, so that a replay can judge it anew; its neighbours leave."""
    found = routed_slot({"bad": ROOM, "timers": Target(1, 500, batch_bytes=500)})
    targets = [found.deliveries.targets[index] for index in found.deliveries.target.tolist()]
    assert targets == ["good", "bad", "good", "dead", "good"]
    headers = found.deliveries.headers[3].as_py()
    assert b"record_too_large" in headers and b"TIMER_ORIGIN" in headers
    assert not found.deliveries.is_copy[3]


def test_the_replay_of_a_rolled_copy_is_a_copy() -> None:
    """Without a MAC it would be an ordinary message: with another default id, and past due."""
    key = bytes(32)
    found = routed_slot({"bad": ROOM, "timers": Target(1, 500, batch_bytes=500)}, key)
    ((part,),) = split(found.deliveries.take(np.array([3])), [1], [1 << 20])
    written = read(bytearray(seal(part.body, part.count, timestamp_ms=NOW_MS)), ("dead", 0))
    _, message_key, value, headers = rows_of(written)[0][2]
    letter = DeadLetter(0, 0, NOW_MS, message_key, value, headers)
    out = letter.replayed(TimerTopics(("timers",)), lambda *_: None, None, None)
    assert isinstance(out, Outgoing)
    again = read(batch([(NOW_MS, message_key, value, [*out.headers])]), ("timers", 0))
    assert own_copies(again, [key]).all()


def read(octets: bytearray, place: TopicPartition) -> KafkaRecords:
    octets[:8] = bytes(8)
    (records,) = committed_records([Fetched(place, memoryview(octets), [], 0, 1)], {place: (0, 1)})
    return records


def test_a_dead_letter_that_its_topic_does_not_take_is_cut_down_to_its_source() -> None:
    small = Target(1, 400, batch_bytes=400)
    found = routed_slot({"bad": ROOM, "timers": Target(1, 500, batch_bytes=500), "dead": small})
    assert found.deliveries.key_value[3].as_py() == b"\x01\x01"
    assert b"record_too_large" in found.deliveries.headers[3].as_py()
    assert found.deliveries.source[3].as_py() == b"timers-0@3"
