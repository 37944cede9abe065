"""Copies that wait for their timer partition: kept, found again, and moved in their order."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.record.default_records import DefaultRecordBatch
from tests.harness.costly_inputs import of_headers
from tests.harness.local_world import LocalWorld
from tests.harness.publishers import RecordingPublisher

from duewheel.checkpoints.cancel_bounds import CancelBounds
from duewheel.checkpoints.config_epochs import Epochs
from duewheel.checkpoints.fs import HOST_FS
from duewheel.checkpoints.held_copies import (
    Held,
    batch_of,
    key_of,
    partition_of,
    value_of,
)
from duewheel.checkpoints.process_role import Role
from duewheel.checkpoints.progress import COPY_BYTES_MAX, PartitionProgress, Progress
from duewheel.checkpoints.reshard_records import reassigned, unsealed
from duewheel.errors import RecoveryRefused
from duewheel.kafka.publish.held_queue import (
    READ_BYTES,
    RECORD_BYTES,
    Bounds,
    as_first_copies,
    closed_to_copies,
    hold_closed,
    taken_batches,
    to_send,
)
from duewheel.runtime.shard_facts import ShardFacts
from duewheel.schemas.batches import TopicPartition
from duewheel.schemas.wire.batch_header import HEADER_BYTES
from duewheel.schemas.wire.batch_reader import HEADERS_MAX
from duewheel.schemas.wire.record_batch import Batch, seal
from duewheel.schemas.wire.record_rows import rows_of
from duewheel.schemas.wire.single_record import Header, encode, single
from duewheel.wheel.dequeue_config import DequeueConfig
from duewheel.wheel.encoded import Part
from duewheel.wheel.publisher_protocol import Prepared, PublishAttempt
from duewheel.wheel.slots import WheelConfig
from duewheel.wheel.target_rules import Target

P0, P1 = ("timers", 0), ("timers", 1)
OLD_ID, NEW_ID = (str(uuid.UUID(int=n)) for n in (1, 2))
NOW_MS = 1_800_000_000_000
SMALL_WHEEL = WheelConfig(precision_ms=50, slots=1_000, window_ms=50_000, margin_ms=0)


def batch(text: bytes, count: int = 1) -> Batch:
    return Batch(memoryview(text), count)


def part(place: TopicPartition, text: bytes, count: int = 1) -> Part:
    return Part(*place, batch(text, count), None)


class StateTopic:
    """Records of a partition, as a consumer gives them."""

    def __init__(self) -> None:
        self.bounds = Bounds.beside([], 100)
        self.records: list[Any] = [SimpleNamespace(key=b"shard-0", value=b"progress", offset=0)]
        self.held: Mapping[TopicPartition, Held] = {}
        self.read = 0  # records, by all moves

    def keep(self, *parts: Part, closed: set[TopicPartition]) -> list[Part]:
        topic_ids = {place[0]: OLD_ID for place in (P0, P1)}
        found = hold_closed(parts, closed, self.held, topic_ids, lambda: self.end)
        for record in found.records:
            self._append(record)
        self.held = found.held
        return list(found.now)

    def move(
        self, *free: TopicPartition, all_seen: bool = True, topic_id: str = OLD_ID
    ) -> list[bytes]:
        there = self.held.keys() & set(free)
        start = min((self.held[place].start_offset for place in there), default=0)
        records = self._counted(start)
        progress = replace(progress_with(self.held), topic_ids={P0[0]: topic_id})
        found = taken_batches(records, progress, there, self.bounds, all_seen=all_seen)
        for record in found.deletions:
            self._append(record)
        self.held = found.held
        return [bytes(part.batch.body) for part in found.parts]

    def _counted(self, start: int) -> Iterator[Any]:
        for record in [record for record in self.records if record.offset >= start]:
            self.read += 1
            yield record

    def _append(self, record: Batch) -> None:
        for read in DefaultRecordBatch(seal(record.body, record.count, timestamp_ms=1)):
            row = SimpleNamespace(key=read.key, value=read.value, offset=self.end)
            self.records.append(row)

    @property
    def end(self) -> int:
        return int(self.records[-1].offset) + 1

    def compact(self) -> None:
        """Only the newest record of a key stays, and of those without a value none."""
        newest = {record.key: record for record in self.records}
        self.records = [r for r in self.records if newest[r.key] is r and r.value is not None]


def test_a_record_of_copies_is_read_as_it_was_written() -> None:
    key = key_of(("a.b_c-d", 12), Held(5, 7))
    assert partition_of(key) == ("a.b_c-d", 12)
    assert partition_of(b"shard-3") is None
    for topic_id in (OLD_ID, None):
        found, named = batch_of(value_of(batch(b"some bytes", 3), topic_id))
        assert (bytes(found.body), found.count, named) == (b"some bytes", 3, topic_id)


def test_copies_are_moved_in_their_order_and_new_ones_go_behind_them() -> None:
    topic = StateTopic()
    assert topic.keep(part(P0, b"1", 2), part(P1, b"x"), closed={P0}) == [part(P1, b"x")]
    assert topic.keep(part(P0, b"2"), closed={P0}) == []
    assert topic.held == {P0: Held(1, 3)}
    assert topic.keep(part(P0, b"3"), closed=set()) == [], "though it takes writes again"
    assert topic.move(P0) == [b"1", b"2", b"3"]
    assert topic.held == {}
    assert topic.keep(part(P0, b"4"), closed=set()) == [part(P0, b"4")]


@pytest.mark.parametrize("compacts", [False, True])
def test_what_was_moved_is_never_moved_again(compacts: bool) -> None:
    topic = StateTopic()
    for text in (b"1", b"2"):
        topic.keep(part(P0, text), part(P1, b"other " + text), closed={P0, P1})
        assert topic.move(P0) == [text]
        if compacts:
            topic.compact()
            assert [partition_of(r.key) for r in topic.records].count(P0) == 0
    assert topic.held == {P1: Held(1, 2)}
    assert topic.move(P0) == []
    assert topic.move(P1) == [b"other 1", b"other 2"]


@pytest.mark.parametrize(("size", "batches"), [(100, 1), (1_500, 2), (600 * 1024, 500)])
def test_copies_for_many_partitions_are_held_by_few_batches(size: int, batches: int) -> None:
    """Kafka-python sends the batches of the state topic one after the other."""
    places = [("timers", number) for number in range(500)]
    body = bytes(size)
    found = hold_closed([part(p, body, 2) for p in places], set(places), {}, {}, lambda: 7)
    assert found.held == {place: Held(7, 2) for place in places}
    assert len(found.records) == batches
    assert max(len(record.body) for record in found.records) < max(512 * 1024, size + 100)
    records = [
        (partition_of(key or b""), bytes(batch_of(value or b"")[0].body))
        for record in found.records
        for _, _, key, value, _ in rows_of(record.body, record.count)
    ]
    assert records == [(place, body) for place in places]


def test_the_end_of_the_state_topic_is_read_once_for_all_partitions_and_only_if_needed() -> None:
    """A read is a round trip, and a transaction may have 2,000 partitions."""
    reads = list[int]()

    def end() -> int:
        reads.append(7)
        return 7

    places = [("timers", number) for number in range(2_000)]
    parts = [part(place, b"1") for place in places for _ in range(2)]
    found = hold_closed(parts, set(places), {}, {}, end)
    assert found.held == dict.fromkeys(places, Held(7, 2))
    assert reads == [7]
    hold_closed(parts, set(places), found.held, {}, end)
    assert reads == [7], "the copies of each wait already"


def test_no_more_is_moved_at_once_than_a_transaction_takes() -> None:
    topic = StateTopic()
    large = [bytes([n]) * (1 << 20) for n in range(9)]
    for text in large:
        topic.keep(part(P0, text), closed={P0})
    assert topic.move(P0) == large[:4]
    assert topic.held[P0].copies == 5
    assert topic.keep(part(P0, b"new"), closed=set()) == []
    assert topic.move(P0) + topic.move(P0) == [*large[4:], b"new"]


def test_no_more_batches_are_moved_at_once_than_is_said() -> None:
    topic = StateTopic()
    topic.bounds = Bounds.beside([part(P0, b"own")], 3)
    for number in range(6):
        topic.keep(part(P0, b"%d" % number), part(P1, b"%d" % number), closed={P0, P1})
    assert topic.move(P0, P1) == [b"0", b"0", b"1", b"1"]
    assert topic.move(P0, P1) == [b"2", b"2", b"3", b"3"]
    assert {place: of.copies for place, of in topic.held.items()} == {P0: 2, P1: 2}


@pytest.mark.parametrize("count", [200, 400])
def test_a_copy_far_behind_the_first_lets_no_record_be_read_again(count: int) -> None:
    topic = StateTopic()
    topic.bounds = Bounds.beside([], 10)
    texts = [b"%d" % number for number in range(count)]
    topic.keep(part(P1, b"first"), *(part(P0, text) for text in texts), closed={P0, P1})
    topic.keep(part(P1, b"last"), closed={P0, P1})
    moved = []
    while topic.held:
        moved += topic.move(P0, P1)
    assert moved == [b"first", *texts, b"last"]
    assert topic.read == count + 2


def test_copies_of_a_closed_partition_are_not_passed_over_by_moves_of_others() -> None:
    topic = StateTopic()
    topic.bounds = Bounds.beside([], 1)
    for number in b"1", b"2", b"3":
        topic.keep(part(P0, number), part(P1, b"closed " + number), closed={P0, P1})
    assert topic.move(P0) + topic.move(P0) == [b"1", b"2"]
    assert topic.held == {P0: Held(4, 1), P1: Held(1, 3)}
    moved = [topic.move(P0, P1) for _ in range(4)]
    assert moved == [[b"closed 1"], [b"closed 2"], [b"3"], [b"closed 3"]]
    assert topic.held == {}


def test_an_open_transaction_that_hides_copies_lets_no_record_be_read_again() -> None:
    topic = StateTopic()
    topic.keep(part(P0, b"1"), part(P1, b"x"), part(P0, b"2"), closed={P0, P1})
    hidden = topic.records.pop()
    assert topic.move(P0, all_seen=False) == [b"1"]
    assert topic.held == {P0: Held(hidden.offset, 1), P1: Held(1, 1)}
    topic.records[-1:] = [hidden]
    assert topic.move(P0) == [b"2"]


def test_what_lies_far_from_the_first_copy_is_read_by_later_transactions() -> None:
    topic = StateTopic()
    topic.keep(part(P0, b"1"), closed={P0})
    for _ in range(3):
        row = SimpleNamespace(key=b"of others", value=bytes(READ_BYTES), offset=topic.end)
        topic.records.append(row)
    topic.keep(part(P0, b"2"), closed={P0})
    read = [topic.move(P0) for _ in range(4)]
    assert read == [[b"1"], [], [], [b"2"]]
    assert topic.held == {}


def test_many_tombstones_are_read_by_several_transactions() -> None:
    topic = StateTopic()
    topic.keep(part(P0, b"1"), closed={P0})
    for _ in range(2 * READ_BYTES // RECORD_BYTES):
        topic.records.append(SimpleNamespace(key=b"moved", value=None, offset=topic.end))
    topic.keep(part(P0, b"2"), closed={P0})
    read = [topic.move(P0) for _ in range(3)]
    assert read == [[b"1"], [], [b"2"]]
    assert topic.held == {}


def test_lost_copies_are_told_only_if_no_open_transaction_may_hide_them() -> None:
    topic = StateTopic()
    topic.keep(part(P0, b"1"), closed={P0})
    del topic.records[1:]
    assert (topic.move(P0, all_seen=False), topic.held) == ([], {P0: Held(1, 1)})
    assert (topic.move(P0), topic.held) == ([], {})


def test_the_largest_copy_is_held() -> None:
    topic, large = StateTopic(), part(P0, bytes(COPY_BYTES_MAX - 100))
    assert topic.keep(large, part(P0, b"1"), closed={P0}) == []


def a_copy(*headers: Header) -> Batch:
    own = ("TIMER_ORIGIN", b"a producer's own")
    return Batch(memoryview(encode(0, b"key", None, [own, *headers])), 1)


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        (
            [("TIMER_ORIGIN", b"17"), ("TIMER_ASKED_LEVEL", b"3")],
            [("UNIQ_KEY", b"timers-0@17"), ("TIMER_ORIGIN", b"-1"), ("TIMER_ASKED_LEVEL", b"3")],
        ),
        (
            [("UNIQ_KEY", b"mine"), ("TIMER_ORIGIN", b"17")],
            [("UNIQ_KEY", b"mine"), ("TIMER_ORIGIN", b"-1")],
        ),
        (
            [("TIMER_ORIGIN", b"17"), ("TIMER_DEAD_LETTER", b"")],
            [("TIMER_ORIGIN", b"-1"), ("TIMER_DEAD_LETTER", b"")],
        ),
    ],
)
def test_copies_of_a_topic_that_was_made_anew_begin_anew(
    headers: list[Header], expected: list[Header]
) -> None:
    topic = StateTopic()
    copy = a_copy(*headers)
    topic.keep(Part(*P0, copy, None), closed={P0})
    topic.keep(Part(*P0, copy, None), closed={P0})
    topic.bounds = Bounds(batches=1, size=1 << 20)
    assert topic.move(P0) == [bytes(copy.body)]
    [moved] = topic.move(P0, topic_id=NEW_ID)
    [read] = DefaultRecordBatch(bytes(seal(moved, 1, timestamp_ms=0)))
    found = sorted(read.headers)
    assert found == sorted([("TIMER_ORIGIN", b"a producer's own"), *expected])
    assert (read.key, read.value) == (b"key", None)
    assert read.headers[-1] == expected[-1]


def test_a_copy_keeps_a_header_whose_name_is_no_utf8() -> None:
    """The topic was recreated, so the headers are encoded again; a name may have any bytes."""
    odd = b"\xff\xfe".decode(errors="surrogateescape")
    copy = a_copy((odd, None), ("TIMER_ORIGIN", b"17"))
    body = as_first_copies(P0, copy, b"key of the shard").body
    [(_, _, key, value, headers)] = rows_of(body, 1)
    assert (key, value, headers[2]) == (b"key", None, (odd, None))


def progress_with(held: Mapping[TopicPartition, Held]) -> Progress:
    epochs = Epochs.first(DequeueConfig(0, 1, {}).slot_values(WheelConfig()))
    parts = {P0: PartitionProgress(5, 3), P1: PartitionProgress(5, 4)}
    return Progress(0, 1, "a", 1, 1, epochs, parts, held=held)


def test_copies_that_were_held_one_by_one_are_sent_in_few_batches() -> None:
    """The sender sends one batch of a partition at a time, and all other deliveries wait."""
    texts = [b"%d" % number for number in range(300)]
    moved = [Part(*place, single(b"k", text), None) for text in texts for place in (P0, P1)]
    target = Target(2, 1 << 20, batch_bytes=3_000, codec="gzip")
    sent = to_send(moved, {P0[0]: target})
    assert len(sent) == 4
    assert max(len(part.batch.body) for part in sent) <= 3_000 - HEADER_BYTES
    assert {(part.codec, part.is_whole) for part in sent} == {("gzip", True)}
    for place in (P0, P1):
        found = [part.batch for part in sent if (part.topic, part.partition) == place]
        rows = [row for each in found for row in rows_of(each.body, each.count)]
        assert [value for _, _, _, value, _ in rows] == texts


def test_copies_of_another_program_do_not_stop_the_others() -> None:
    foreign, own = batch(b"no record", 3), single(b"k", b"v")
    moved = [part(P0, b"no record", 3), Part(*P1, own, None), Part(*P0, own, None)]
    sent = to_send(moved, {P0[0]: Target(2, 1 << 20, batch_bytes=3_000)})
    assert [(each.partition, each.batch) for each in sent] == [(0, foreign), (0, own), (1, own)]


def test_copies_that_cannot_be_read_are_moved_as_they_are() -> None:
    """Their topic was recreated. Ingest reads within the same bound, and makes a dead letter."""
    topic = StateTopic()
    copy = batch(of_headers(b"\0\1" * (HEADERS_MAX + 1), HEADERS_MAX + 1))
    topic.keep(Part(*P0, copy, None), closed={P0})
    topic.keep(Part(*P0, a_copy(("TIMER_ORIGIN", b"7")), None), closed={P0})
    first, second = topic.move(P0, topic_id=NEW_ID)
    assert first == bytes(copy.body)
    assert b"TIMER_ORIGIN" in second
    assert not topic.held


def test_the_progress_names_the_copies_that_are_held() -> None:
    progress = progress_with({P1: Held(17, 2), P0: Held(3, 1)})
    assert Progress.decode(progress.encode()) == progress


def closed(
    ends: Mapping[TopicPartition, int], topic_id: str = OLD_ID, unavailable: int | None = None
) -> set[TopicPartition]:
    """Of P0 and P1, where they end there and their topic has that id."""
    out = frozenset() if unavailable is None else frozenset([unavailable])
    known = {P0[0]: Target(2, 1 << 20, unavailable=out, topic_id=topic_id, batch_bytes=1 << 20)}
    progress = replace(progress_with({}), topic_ids={P0[0]: OLD_ID})
    return closed_to_copies([P0, P1], known, progress, lambda places: {p: ends[p] for p in places})


def test_nothing_goes_to_a_partition_that_has_lost_its_end() -> None:
    """C is 3 and 4: ingest has read up to there, and would never read what comes below."""
    assert closed({P0: 3, P1: 3}) == {P1}
    assert closed({P0: 3, P1: 4}) == set()
    assert closed({P1: 4}, unavailable=0) == {P0}, "nobody could say where it ends"


def test_nothing_goes_to_a_topic_that_was_made_anew_until_that_is_accepted() -> None:
    assert closed({P0: 9, P1: 9}, topic_id=NEW_ID) == {P0, P1}


def test_a_shard_with_copies_that_wait_is_given_back_but_not_dealt() -> None:
    progress = progress_with({P1: Held(17, 2)})
    with pytest.raises(RecoveryRefused, match="shard 0 holds 2 copies for timers-1"):
        reassigned([progress], 2, lambda: 7)
    assert unsealed([progress], lambda: 7)[0].held == progress.held


class HoldingPublisher(RecordingPublisher):
    """As if a timer partition took no writes: what it holds is said in the progress."""

    held: Mapping[TopicPartition, Held] = {}
    moved = False

    def compose(self, prepared: Prepared | None, progress: Progress) -> PublishAttempt:
        attempt = super().compose(prepared, replace(progress, held=self.held))
        return replace(attempt, moved=self.moved)


def test_dequeue_carries_what_its_publisher_holds_over_a_doubt_and_a_start(
    tmp_path: Path,
) -> None:
    fates = list[str]()
    world = LocalWorld(
        tmp_path,
        starts={P0: 0},
        publisher=partial(HoldingPublisher, fate=lambda: fates.pop() if fates else "commit"),
    )
    publisher = world.publisher
    assert isinstance(publisher, HoldingPublisher)
    publisher.held = {P0: Held(4, 2)}
    fates.append("doubt")  # of the first transaction whose progress names them
    for _ in range(3):
        world.clock.sleep(3)
        world.tick()
    assert publisher.committed[-1][1].held == {P0: Held(4, 2)}
    held = ShardFacts(world.shard.directory(Role.DEQUEUE).state, world.clock.now_ms()).copies_held
    assert (held, world.dequeue.statistics.doubts) == (2, 1)
    world.restart(Role.DEQUEUE)
    assert publisher.committed[-1][1].held == {P0: Held(4, 2)}


def test_while_copies_are_moved_the_next_transaction_does_not_wait(tmp_path: Path) -> None:
    """At one batch in two seconds a backlog would take hours."""
    world = LocalWorld(tmp_path, publisher=HoldingPublisher)
    publisher = world.publisher
    assert isinstance(publisher, HoldingPublisher)
    world.clock.sleep(3)
    counts = []
    for moved in (True, True, True, False, False):
        publisher.moved = moved
        world.tick()
        counts.append(len(publisher.committed))
    first = counts[0]
    assert counts == [first, first + 1, first + 2, first + 3, first + 3]


def test_kafka_is_not_asked_where_a_partition_ends_whose_copies_wait(tmp_path: Path) -> None:
    """They will lie behind that end: a cancel above it could be decided without them."""
    world = LocalWorld(tmp_path, publisher=HoldingPublisher)
    publisher = world.publisher
    assert isinstance(publisher, HoldingPublisher)
    publisher.held = {P0: Held(4, 2)}
    CancelBounds.blind_of(0, [P0, P1]).write(tmp_path, HOST_FS)
    world.restart(Role.DEQUEUE)
    unasked = []
    for held in ({P0: Held(4, 2)}, {}, {}):
        publisher.held = held
        world.clock.sleep(3)
        world.tick()
        bounds = CancelBounds.read(tmp_path)
        assert bounds is not None
        unasked.append(bounds.unknown_ends)
    assert unasked == [[P0], [P0], []]
