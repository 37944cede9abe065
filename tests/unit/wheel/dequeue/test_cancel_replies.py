"""The bytes of replies to cancels: shared among topics, and bounded in each reply."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.harness.cancel_world import (
    REPLIES,
    CancelWorld,
    cancel,
    count_messages_read,
    timer,
)
from tests.harness.local_world import NOW_MS, PRECISION_MS
from tests.harness.timer_rows import P0, timer_batch

from duewheel.checkpoints.process_role import Role
from duewheel.schemas.batches import NO_KEY, TimerBatch
from duewheel.schemas.columns import binary, lengths
from duewheel.schemas.wire.record_codec import framed_bytes, key_values
from duewheel.schemas.wire.varint import read_varint
from duewheel.wheel.dequeue.cancel_replies import CancelReplies
from duewheel.wheel.dequeue.cancel_reply_rows import REPEATED_BYTES_MAX

OTHER = "others", 0
MakeWorld = Callable[..., CancelWorld]


@pytest.fixture
def make_world(tmp_path: Path) -> MakeWorld:
    return lambda **settings: CancelWorld(tmp_path / "data", **settings)


def large(batch: TimerBatch, size: int) -> TimerBatch:
    """The same requests with keys of so many bytes."""
    keys = [b"k" * size] * len(batch)
    column = key_values(binary(keys), binary([None] * len(batch)))
    return replace(batch, key_value=column, key_hash=np.full(len(batch), 7, np.int32))


@pytest.mark.parametrize("size", [700, 2_500])
def test_one_topic_with_large_cancels_delays_no_reply_of_another(
    make_world: MakeWorld, size: int
) -> None:
    """Also if each is larger than a transaction: every other one has the replies of others."""
    world = make_world(chunk_bytes=2_000)
    other = replace(timer_batch([cancel(n, timer_id=b"b") for n in range(40)]), partitions=[OTHER])
    world.engine.append(other, {OTHER: 40})
    mine = large(timer_batch([cancel(offset) for offset in range(20)]), size)
    world.engine.append(mine, {P0: 20})
    world.at_slot(3)
    sources = [source for source, _ in world.answers()]
    assert sources.index("others-0@39") - 39 <= 10, "so many large ones before the last small one"
    for topic, count in (("timers", 20), ("others", 40)):
        own = [source for source in sources if source.startswith(topic)]
        assert own == [f"{topic}-0@{n}" for n in range(count)]


def test_several_topics_with_large_cancels_delay_no_reply_of_another(
    make_world: MakeWorld,
) -> None:
    """Of those that had no room, the one that has waited longest comes first."""
    world = make_world(chunk_bytes=2_000)
    small = timer_batch([cancel(n, timer_id=b"b") for n in range(40)])
    world.engine.append(replace(small, partitions=[OTHER]), {OTHER: 40})
    mine = large(timer_batch([cancel(offset) for offset in range(39)]), 900)
    for number in range(4):
        partition = (f"large{number}", 0)
        world.engine.append(replace(mine, partitions=[partition]), {partition: 39})
    world.at_slot(3)
    sources = [source for source, _ in world.answers()]
    assert sources.index("others-0@0") < 5
    assert sources.index("others-0@39") < 150, "it has an equal part of the bytes"
    assert len(sources) == 196


def test_a_reply_repeats_no_large_key(make_world: MakeWorld) -> None:
    """Every client that awaits a reply reads the whole reply topic."""
    world = make_world()
    for offset, size in enumerate((REPEATED_BYTES_MAX, REPEATED_BYTES_MAX + 1)):
        batch = large(timer_batch([cancel(offset)]), size)
        world.engine.append(batch, {P0: offset + 1})
    world.at_slot(3)
    keys = [
        read_varint(key_value or b"", 0)[0]
        for deliveries, _ in world.publisher.committed
        if deliveries is not None
        for key_value in deliveries.key_value.to_pylist()
    ]
    assert keys == [REPEATED_BYTES_MAX, -1]
    sent = [deliveries for deliveries, _ in world.publisher.committed if deliveries is not None]
    hashes = [value for deliveries in sent for value in deliveries.key_hash.tolist()]
    assert [value == NO_KEY for value in hashes] == [False, True], "a compacted topic refuses it"


def test_a_chase_is_no_larger_than_a_reply(make_world: MakeWorld) -> None:
    """Both are uncompressed: cancels of 60 kB, compressed, would fill 140 MB of their topic."""
    world = make_world()
    world.append(timer(0, 5))
    world.at_slot(9)
    header = framed_bytes(b"h") + framed_bytes(bytes(400_000))
    batch = large(timer_batch([cancel(2)]), 400_000)
    batch = replace(batch, headers=binary([header]), header_count=np.array([1], np.int32))
    world.engine.append(batch, {P0: 3})
    world.at_slot(10)
    chases = [d for d, _ in world.publisher.committed if d is not None][-1]
    assert chases.targets[chases.target[0]] == "timers"
    assert sum(lengths(column)[0] for column in (chases.key_value, chases.headers)) < 1_000
    (chase,) = world.chases()
    world.append(replace(chase, offset=3))
    world.at_slot(20)
    assert [word for _, word in world.answers()] == ["already_delivered"]


def test_a_cut_takes_replies_away_only_once_it_is_accepted(make_world: MakeWorld) -> None:
    """Its transaction may have failed, and the lost end may have come back."""
    world = make_world()
    world.append(timer(0, 50), cancel(1), cancel(2), cancel(3))
    directory = world.shard.directory(Role.DEQUEUE)
    ((hour, (length, _)),) = directory.state.commit().cancels.items()
    (rows,) = directory.cancels.blocks(hour, length)
    directory.cancels.cut(hour, rows.position[1:], np.array([7, 8], np.int32))
    world.at_slot(3)
    progress = world.publisher.committed[-1][1]
    for epoch, count in ((6, 3), (7, 2), (8, 1)):
        replies = CancelReplies(directory, {}, epoch, REPLIES, 1 << 20)
        replies.note_closing(directory.state.commit())
        found = replies.next(progress.partitions)
        assert found is not None
        assert sum(found.outcomes.values()) == count


def append_in_turn(world: CancelWorld, topics: list[str], batches: int) -> None:
    """One cancel of each topic in each batch, as ingest takes them."""
    one = timer_batch([cancel(0, timer_id=b"b")] * len(topics))
    one = replace(
        one,
        partitions=[(topic, 0) for topic in topics],
        partition=np.arange(len(topics), dtype=np.int32),
    )
    for offset in range(batches):
        offsets = np.full(len(topics), offset)
        batch = replace(one, offset=offsets, origin_offset=offsets)
        world.engine.append(batch, {(topic, 0): offset + 1 for topic in topics})


def test_cancels_of_topics_that_take_turns_are_read_together(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read for each of them cost as much as for a thousand."""
    world, topics, batches = make_world(), ["timers", "others", "third"], 60
    append_in_turn(world, topics, batches)
    read = count_messages_read(monkeypatch, "read")
    world.at_slot(3)
    assert len(world.answers()) == sum(read) == len(topics) * batches
    assert len(read) == len(topics)


def test_a_start_delivers_between_the_cancels_that_have_their_replies(
    make_world: MakeWorld,
) -> None:
    """It passes all of the last hour: in one turn the shard would stand still for minutes."""
    world = make_world(chunk_replies=10)
    append_in_turn(world, ["timers", "others"], 30)
    world.at_slot(3)
    assert len(world.answers()) == 60
    world.restart()
    world.append(timer(30, 5))
    world.clock.set(NOW_MS + 6 * PRECISION_MS)
    assert world.shard.dequeue is not None
    turns = []
    while world.shard.dequeue.tick():
        turns.append(len(world.sources()))
    assert turns.count(0) < 4, "the timer leaves before all are passed"
    assert turns.count(1) >= 4
    assert len(world.answers()) == 60
