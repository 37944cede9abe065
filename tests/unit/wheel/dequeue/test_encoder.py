"""Encoding ahead of the transaction: the metadata that it requests, its batches, their sources."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
from tests.harness.deliveries import rows

from duewheel.checkpoints.pauses import NONE_PAUSED, PausedTimers
from duewheel.errors import PublishDoubt
from duewheel.schemas.batches import NO_PARTITION, Deliveries
from duewheel.wheel.dequeue.encoder import Encoder, encode
from duewheel.wheel.dequeue.receipt_rows import Receipts
from duewheel.wheel.dequeue.requeue import rolled_copies
from duewheel.wheel.encoded import Encoded
from duewheel.wheel.target_rules import Reason, Target

LIMIT = 1_000
NOW_MS = 1_800_000_000_000
THERE = Target(4, LIMIT, batch_bytes=300)
NOWHERE = Target(0, 0, refusal=Reason.UNKNOWN_TARGET_TOPIC, batch_bytes=0)


def encoded(
    deliveries: Deliveries,
    known: Mapping[str, Target],
    refused: frozenset[bytes] = frozenset(),
) -> tuple[Encoded, list[str]]:
    """The result, and the topics that were asked for."""
    asked: list[str] = []

    def lookup(topics: Sequence[str]) -> Mapping[str, Target]:
        asked.extend(topics)
        return {topic: known[topic] for topic in topics}

    return encode(deliveries, lookup, refused, "dead", random.Random(0), NOW_MS), asked


def places(found: Encoded) -> list[tuple[str, int, int]]:
    return [(part.topic, part.partition, part.batch.count) for part in found.parts]


def test_rows_go_to_their_partitions_in_batches_of_the_size_asked_for() -> None:
    sent = rows(["b", "a"] * 20, [1, 3] * 20)
    found, asked = encoded(sent, {"a": THERE, "b": Target(4, LIMIT, batch_bytes=10_000)})
    assert [(topic, partition) for topic, partition, _ in places(found)][-1] == ("b", 1)
    assert len(places(found)) > 2, "the batches of a are smaller"
    assert sum(count for topic, _, count in places(found) if topic == "a") == 20
    assert places(found)[-1] == ("b", 1, 20)
    assert asked == ["a", "b"] == list(found.used_targets)
    assert (found.aside.reasons, found.refused) == ({}, frozenset())


def test_the_dead_letter_topic_matters_only_if_there_are_dead_letters() -> None:
    sent = rows(["a", "gone", "a"], [9, NO_PARTITION, 0])
    known = {"a": THERE, "gone": NOWHERE, "dead": Target(1, LIMIT, batch_bytes=300)}
    found, asked = encoded(sent, known, frozenset([b"timers-0@2"]))
    assert asked == ["a", "gone", "dead"] == list(found.used_targets)
    assert sum(count for topic, _, count in places(found) if topic == "dead") == 3
    assert found.aside.reasons == {
        "bad_target_partition": 1,
        "unknown_target_topic": 1,
        "record_refused": 1,
    }


def test_copies_are_signed_by_the_key_of_the_progress() -> None:
    """Also what was encoded ahead by another key, or by none; messages have no MAC."""
    sent = rolled_copies(rows(["a", "a"], [0, 1]), np.array([False, True]))
    encoder = Encoder(all_there, frozenset, "dead", random.Random(0), Receipts())
    ahead = encoder.prepare(sent, NOW_MS)
    assert ahead.encoded is not None
    assert signed_topics(ahead.encoded) == []
    encoder.copy_key = bytes(32)

    found = encoder.renew(ahead, all_there, NOW_MS).encoded
    assert found is not None
    assert signed_topics(found) == ["timers"]
    again = encoder.prepare(sent, NOW_MS)
    assert encoder.renew(again, all_there, NOW_MS).encoded is again.encoded


def test_what_was_encoded_before_a_pause_is_encoded_again() -> None:
    now = [NONE_PAUSED]
    given = all_there, frozenset, "dead", random.Random(0), Receipts()
    encoder = Encoder(*given, paused=lambda: now[0])
    ahead = encoder.prepare(rows(["a", "b"], [0, 1]), NOW_MS)
    now[0] = PausedTimers(targets=frozenset("a"))
    renewed = encoder.renew(ahead, all_there, NOW_MS)
    assert renewed.encoded is not None
    assert [topic for topic, _, _ in places(renewed.encoded)] == ["b", "timers"]
    assert encoder.renew(renewed, all_there, NOW_MS) is renewed
    now[0] = NONE_PAUSED
    again = encoder.renew(renewed, all_there, NOW_MS).encoded
    assert again is not None
    assert [topic for topic, _, _ in places(again)] == ["a", "b"]


def signed_topics(found: Encoded) -> list[str]:
    return [part.topic for part in found.parts if b"TIMER_COPY_MAC" in bytes(part.batch.body)]


def all_there(topics: Sequence[str]) -> Mapping[str, Target]:
    return dict.fromkeys(topics, THERE)


def test_a_record_alone_in_its_batch_is_named() -> None:
    found, _ = encoded(rows(["a", "a", "a"], [0, 1, 1]), {"a": THERE})
    assert [part.source for part in found.parts] == [b"timers-0@0", None]


def test_a_piece_of_a_chunk_is_encoded_like_rows_of_their_own() -> None:
    """Its columns begin in the middle of others, its topics are a few of many."""
    whole = rows(["a", "b", "gone", "a", "b", "gone", "a"], [0, 1, NO_PARTITION, 9, 2, 0, 3])
    known = {"a": THERE, "b": THERE, "gone": NOWHERE, "dead": Target(1, LIMIT, batch_bytes=300)}
    piece, _ = encoded(whole.slice(2, 6), known)
    own, _ = encoded(whole.take(np.arange(2, 6)), known)
    assert places(piece) == places(own)
    assert [bytes(part.batch.body) for part in piece.parts] == [
        bytes(part.batch.body) for part in own.parts
    ]
    assert (piece.aside.reasons, piece.used_targets) == (own.aside.reasons, own.used_targets)


def test_without_a_place_for_a_dead_letter_nothing_is_decided() -> None:
    with pytest.raises(PublishDoubt, match=r"dead-letter topic 'dead': unknown_target_topic"):
        encoded(rows(["gone"], [NO_PARTITION]), dict.fromkeys(("gone", "dead", "timers"), NOWHERE))
    found, _ = encoded(rows(["a"], [NO_PARTITION]), {"a": THERE})
    assert places(found)[0][2] == 1, "it does not matter to what can be delivered"


@pytest.mark.parametrize(
    ("replies", "reason"),
    [
        (NOWHERE, "unknown_target_topic"),
        (Target(4, LIMIT, unavailable=frozenset({0}), batch_bytes=300), "target_unavailable"),
    ],
)
def test_an_answer_waits_for_nothing_and_goes_nowhere_else(replies: Target, reason: str) -> None:
    sent = rows(["a", "replies", "a"], [1, 0, 2])
    sent = replace(sent, answer=np.array([False, True, False]))
    known = {"a": THERE, "replies": replies, "dead": Target(1, LIMIT, batch_bytes=300)}
    found, _ = encoded(sent, known | {"timers": THERE})
    assert (found.aside.reasons, len(found.aside.parked)) == ({reason: 1}, 0)
    assert sorted(place for place in places(found) if place[0] == "dead") == [("dead", 0, 1)]
