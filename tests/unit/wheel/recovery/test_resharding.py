"""Partitions that move between shards, on real files: every timer leaves exactly once, in order."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from random import Random

import numpy as np
import pytest
from tests.harness.killed import Killed, die
from tests.harness.publishers import RecordingPublisher
from tests.harness.timer_rows import TIMER_TOPIC, TimerRow
from tests.harness.timer_shard import TimerShard

from duewheel.backoff import Backoff
from duewheel.checkpoints.config_epochs import PRECISION, Epoch, Epochs
from duewheel.checkpoints.config_epochs import WINDOW as WINDOW_MS
from duewheel.checkpoints.local_state import RecoveryRecord
from duewheel.checkpoints.process_role import Role
from duewheel.checkpoints.progress import NOBODY, PartitionProgress, Progress, shard_of
from duewheel.checkpoints.reshard_records import (
    NOTICE_KEY,
    is_unfinished_notice,
    nothing,
    notice,
    reassigned,
    sealed,
)
from duewheel.checkpoints.state_file import State
from duewheel.errors import RecoveryRefused
from duewheel.ops.reshard import Reassignment
from duewheel.schemas.batches import TopicPartition
from duewheel.testing import ManualClock
from duewheel.wheel.dequeue.standby import Follower
from duewheel.wheel.dequeue_config import DequeueConfig
from duewheel.wheel.publisher_protocol import Seen
from duewheel.wheel.recovery.first_offsets import first_marks
from duewheel.wheel.slots import WheelConfig
from duewheel.wheel.storage.data_directory import DataDirectory

PRECISION_MS = 10
WINDOW = 50
NOW_MS = 1_800_000_000_000
PARTITIONS = [(TIMER_TOPIC, number) for number in range(4)]


@dataclass
class ServedShard:
    """One of them, as it is served."""

    local: TimerShard
    publisher: RecordingPublisher

    @property
    def progress(self) -> Progress:
        found = self.publisher.peek()
        assert found is not None
        return found

    def kill(self) -> None:
        for role in Role:
            self.local.kill(role)


class ReshardedWorld:
    """All shards, and the Kafka that they share.

    Attributes:
        kafka: all timers ever written, by partition; the offset is the index.
    """

    def __init__(self, path: Path, shards: int, chunk_records: int = 2) -> None:
        self.path = path
        self.kafka: dict[TopicPartition, list[TimerRow]] = {p: [] for p in PARTITIONS}
        self.clock = ManualClock(NOW_MS)
        self.wheel = WheelConfig(PRECISION_MS, 4 * WINDOW, WINDOW * PRECISION_MS, margin_ms=0)
        self._stamps: dict[TopicPartition, list[int]] = {p: [] for p in PARTITIONS}
        self._chunk_records = chunk_records
        self._publishers = [RecordingPublisher(self.clock) for _ in PARTITIONS]
        self._left: list[bytes] = []
        self._numbers = count(1)
        first = PartitionProgress(NOW_MS // PRECISION_MS, 0)
        parts = dict.fromkeys(PARTITIONS, first)
        values = DequeueConfig(0, 1, {}).slot_values(self.wheel)
        epochs = Epochs.first(values)
        self._serve([Progress(0, 1, NOBODY, next(self._numbers), 0, epochs, parts)], 1)
        if shards > 1:
            self.reshard(shards)

    def _serve(self, records: Sequence[Progress], shards: int) -> None:
        self.shards = []
        for index, record in enumerate(records):
            publisher = self._publishers[index]
            publisher.committed.append((None, record))
            config = DequeueConfig(index, shards, {}, self._chunk_records, progress_interval_ms=20)
            local = self.local(self.path / f"{index}", publisher, config)
            self.shards.append(ServedShard(local, publisher))

    def local(self, path: Path, publisher: RecordingPublisher, config: DequeueConfig) -> TimerShard:
        """A shard on these files that is not started."""
        local = TimerShard(path, self.wheel, publisher, self.clock, config)
        local.offsets_at = self.offsets_at
        return local

    def offsets_at(self, time_ms: int) -> dict[TopicPartition, int]:
        found: dict[TopicPartition, int] = {}
        for partition, stamps in self._stamps.items():
            later = [offset for offset, stamp_ms in enumerate(stamps) if stamp_ms >= time_ms]
            found |= {partition: later[0]} if later else {}
        return found

    def write(self, number: int, *due_slots: int) -> None:
        """Timers due so many slots from now."""
        partition = PARTITIONS[number]
        for slot in due_slots:
            due_ms = self.clock.now_ms() + slot * PRECISION_MS
            self.kafka[partition].append(TimerRow(number, len(self.kafka[partition]), due_ms))
            self._stamps[partition].append(self.clock.now_ms())

    def start(self, shard: ServedShard) -> None:
        if shard.local.dequeue is None:
            shard.local.start_dequeue(take_over=True)
        if shard.local.ingest is None:
            shard.local.start_ingest()

    def ingest(self, shard: ServedShard, rows: int = 1_000) -> None:
        """A batch of up to `rows` of each of the shard's partitions."""
        self.start(shard)
        assert shard.local.ingest is not None
        index, batch, ends = self.shards.index(shard), [], {}
        for partition, timers in self.kafka.items():
            if shard_of(partition, len(self.shards)) == index:
                begin = shard.local.ingest.marks.get(partition, 0)
                batch += timers[begin : begin + rows]
                ends[partition] = min(begin + rows, len(timers))
        shard.local.append(batch, ends)

    def tick(self, shard: ServedShard, ticks: int = 10_000) -> None:
        self.start(shard)
        assert shard.local.dequeue is not None
        for _ in range(ticks):
            if not shard.local.dequeue.tick():
                break

    def forward(self, slots: float) -> None:
        self.clock.set(self.clock.now_ms() + round(slots * PRECISION_MS))

    def reshard(self, shards: int) -> None:
        """Everything stops, and starts again in as many shards."""
        draw = self._numbers.__next__
        for shard in self.shards:
            shard.kill()
        self._left += [source for shard in self._publishers for source in shard.sources()]
        old = [sealed(shard.progress, shards, draw()) for shard in self.shards]
        records = reassigned(old, shards, draw)
        for publisher in self._publishers:
            publisher.committed.clear()
        self._serve(records, shards)

    def finish(self) -> None:
        """Everything is delivered, once, and each slot of a partition in its order."""
        for _ in range(4):
            for shard in self.shards:
                self.ingest(shard)
                self.tick(shard)
            self.forward(4 * WINDOW)
        sources = [*self._left, *(s for shard in self.shards for s in shard.publisher.sources())]
        counted = Counter(sources)
        everything = {t.source.encode(): t for timers in self.kafka.values() for t in timers}
        assert {source: n for source, n in counted.items() if n > 1} == {}
        assert everything.keys() - counted.keys() == set()
        for number in range(len(PARTITIONS)):
            left = [t for s in sources if (t := everything[s]).partition == number]
            for index, timer in enumerate(left):
                later = [t for t in left[:index] if t.offset > timer.offset]
                assert all(t.due_ms < timer.due_ms for t in later)
        for shard in self.shards:
            shard.kill()


def test_a_slot_half_delivered_by_one_shard_is_finished_by_another(tmp_path: Path) -> None:
    cluster = ReshardedWorld(tmp_path, 2)
    for number in range(4):
        cluster.write(number, 3, 3, 3, 3, 9, 9, 30)
    ahead, behind = cluster.shards
    for shard in cluster.shards:
        cluster.ingest(shard)
    cluster.forward(3)
    cluster.tick(behind, ticks=2)
    cluster.forward(6)
    cluster.tick(ahead, ticks=5)
    halves = [part for s in cluster.shards for part in s.progress.partitions.values()]
    assert len({part.delivered_slot for part in halves}) == 2
    assert all(part.half_below is not None for part in halves)
    cluster.reshard(1)
    cluster.write(0, 0, 0)  # late, as everything is
    cluster.reshard(2)
    cluster.reshard(1)
    (shard,) = cluster.shards
    cluster.ingest(shard)
    cluster.tick(shard, ticks=3)
    cluster.finish()


def test_a_half_slot_whose_rest_went_to_another_shard_is_over(tmp_path: Path) -> None:
    cluster = ReshardedWorld(tmp_path, 1, chunk_records=1)
    (shard,) = cluster.shards
    cluster.write(1, 2, 2, 1, 1)
    cluster.ingest(shard)
    cluster.write(0, 1)
    cluster.ingest(shard)
    cluster.forward(1)
    cluster.tick(shard, ticks=2)
    assert shard.progress.partitions[PARTITIONS[1]].half_below == 4
    cluster.reshard(2)
    other = cluster.shards[1]
    cluster.forward(1)
    cluster.ingest(other)
    cluster.tick(other, ticks=1)  # nothing is left of that slot here
    cluster.tick(other, ticks=1)
    assert other.publisher.sources() == [b"timers-1@0"]
    cluster.reshard(2)  # its D is not that of the slot before
    cluster.finish()


def follow(
    path: Path, cluster: ReshardedWorld, shard: ServedShard, config: DequeueConfig
) -> tuple[Follower, DataDirectory]:
    """A follower that has looked once, and what it has open."""
    directory = DataDirectory.start(path, cluster.wheel, Role.DEQUEUE)
    follower = Follower(directory, shard.publisher, cluster.clock, config)
    try:
        follower.tick()
    except Killed:
        directory.close()
        raise
    return follower, directory


def test_a_standby_killed_while_partitions_come_to_its_shard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shard 0 has delivered half of a slot, shard 1 is behind; they become one. What the standby
    of shard 0 holds of the half that is out must not go out again.
    """
    cluster = ReshardedWorld(tmp_path / "shards", 2)
    ahead, behind = cluster.shards
    cluster.write(0, 5, 5, 5, 5, 5, 5, 30)
    cluster.write(1, 9, 9, 30)
    for shard in cluster.shards:
        cluster.ingest(shard)
    cluster.tick(behind, ticks=1)
    config = DequeueConfig(0, 2, {}, 2, progress_interval_ms=20)
    path = tmp_path / "standby"
    follower, directory = follow(path, cluster, ahead, config)
    cluster.forward(4)
    cluster.tick(ahead)
    follower.tick()
    standby = cluster.local(path, ahead.publisher, config)
    standby.start_ingest()
    rows = [timer for number in (0, 2) for timer in cluster.kafka[PARTITIONS[number]]]
    ends = {p: len(cluster.kafka[p]) for p in (PARTITIONS[0], PARTITIONS[2])}
    assert standby.append(rows, ends).rows > 0
    cluster.forward(1)
    cluster.tick(ahead, ticks=1)
    assert ahead.progress.partitions[PARTITIONS[0]].half_below is not None
    follower.tick()
    standby.kill(Role.INGEST)
    directory.close()
    cluster.reshard(1)
    (shard,) = cluster.shards
    config = replace(config, shards=1)
    with monkeypatch.context() as patch:
        patch.setattr(State, "restart_close", die)
        with pytest.raises(Killed):
            follow(path, cluster, shard, config)
    _, directory = follow(path, cluster, shard, config)
    directory.close()
    record = RecoveryRecord.read(path)
    assert record is not None
    assert record.keep.name == "NOTHING"
    shard.local = cluster.local(path, shard.publisher, config)
    cluster.finish()


def test_files_that_followed_another_shard_are_not_kept(tmp_path: Path) -> None:
    """Its partitions are missing in the progress of this shard, and Kafka has not lost them."""
    cluster = ReshardedWorld(tmp_path / "shards", 2)
    this, other = cluster.shards
    for number in range(4):
        cluster.write(number, 3, 9, 30)
    for shard in cluster.shards:
        cluster.ingest(shard)
    cluster.forward(4)
    cluster.tick(other)
    assert this.progress.assignment_epoch == other.progress.assignment_epoch
    path, config = tmp_path / "standby", DequeueConfig(1, 2, {}, 2, progress_interval_ms=20)
    _, directory = follow(path, cluster, other, config)
    standby = cluster.local(path, other.publisher, config)
    standby.start_ingest()
    assert standby.append(cluster.kafka[PARTITIONS[1]], {PARTITIONS[1]: 3}).rows > 0
    standby.kill(Role.INGEST)
    directory.close()
    this.kill()
    this.local = cluster.local(path, this.publisher, this.local.config)
    cluster.start(this)
    record = RecoveryRecord.read(path)
    assert record is not None
    assert (record.case, record.keep.name) == ("taken over", "NOTHING")
    cluster.finish()


def misfortunes(cluster: ReshardedWorld, chance: Random) -> None:
    """Shards fall apart, slots stay half delivered, partitions move, directories are lost."""
    for _ in range(8):
        lazy = chance.randrange(5)  # a shard that does nothing for now, or none
        for _ in range(chance.randint(1, 4)):
            for number in chance.sample(range(4), 2):
                due = chance.choice([-2, 0, 1, 1, 2, 3, WINDOW])
                cluster.write(number, *[due] * chance.randint(1, 3), chance.randint(-1, 4))
            for index, shard in enumerate(cluster.shards):
                if index != lazy:
                    cluster.ingest(shard, chance.choice([1, 3, 100]))
                    cluster.tick(shard, chance.randint(0, 3))
            cluster.forward(chance.choice([0, 0.5, 1, 2]))
        if chance.random() < 0.6:
            cluster.reshard(chance.choice([1, 1, 2, 4]))
        for shard in cluster.shards:
            if chance.random() < 0.4:
                shard.kill()
                if chance.random() < 0.6:
                    shutil.rmtree(shard.local.path, ignore_errors=True)


RARE = (pytest.param(seed, marks=pytest.mark.crash_matrix) for seed in range(5, 150))


@pytest.mark.parametrize("seed", [*range(5), *RARE])
def test_any_number_of_shards_after_another_with_any_loss(tmp_path: Path, seed: int) -> None:
    chance = Random(seed)
    cluster = ReshardedWorld(tmp_path, chance.choice([1, 2, 4]), chance.choice([1, 2, 5]))
    misfortunes(cluster, chance)
    cluster.finish()


# ---- records ------------------------------------------------------------------------------------


EPOCHS = Epochs.first({PRECISION: 10, WINDOW_MS: 100})
OTHER = Epochs.first({PRECISION: 10, WINDOW_MS: 200})


def record(shard: int, shards: int, *numbers: int) -> Progress:
    parts = {PARTITIONS[n]: PartitionProgress(10 + n, n, n, 1, 7, n) for n in numbers}
    return Progress(shard, shards, "a directory", 5, 3 + shard, EPOCHS, parts, assignment_epoch=2)


def test_partitions_are_dealt_unchanged() -> None:
    old = [sealed(record(0, 2, 0, 2), 4, 1), sealed(record(1, 2, 1, 3), 4, 2)]
    assert [(o.owner, o.incarnation, o.epoch, o.sealed_for) for o in old] == [
        (NOBODY, 1, 4, 4),
        (NOBODY, 2, 5, 4),
    ]
    new = reassigned(old, 4, count(10).__next__)
    assert [(n.shard, n.shards, n.owner, n.incarnation, n.epoch, n.sealed_for) for n in new] == [
        (shard, 4, NOBODY, 10 + shard, 6, None) for shard in range(4)
    ]
    before = {p: part for o in old for p, part in o.partitions.items()}
    assert [dict(n.partitions) for n in new] == [{p: before[p]} for p in PARTITIONS]
    assert [(n.epochs, n.assignment_epoch) for n in new] == [(EPOCHS, 3)] * 4
    empty = nothing(old[0], 4, 2, 7)
    assert (empty.shard, empty.sealed_for, empty.incarnation, dict(empty.partitions)) == (
        4,
        2,
        7,
        {},
    )


class NoWait(ManualClock):
    def sleep(self, seconds: float) -> None:
        raise AssertionError("nobody else takes a shard")


class Sealing:
    """The ReshardCluster of the command, with these records; `before_seal` of a shard is called
    once, before it is sealed.
    """

    def __init__(self, *records: Progress) -> None:
        clock = ManualClock(NOW_MS)
        self.publishers = [RecordingPublisher(clock) for _ in range(4)]
        for publisher, written in zip(self.publishers, records, strict=False):
            publisher.committed.append((None, written))
        self.before_seal: dict[int, Callable[[], None]] = {}

    @property
    def records(self) -> list[Progress]:
        return [p.committed[-1][1] for p in self.publishers if p.committed]

    def shards(self, *, past_open: bool) -> dict[int, Seen]:
        return {record.shard: Seen(record, 0) for record in self.records}

    def take_lock(self) -> None:
        pass

    def make_room(self, shards: int) -> None:
        pass

    def write(self, values: Mapping[int, Mapping[bytes, bytes]]) -> None:
        for shard, records in values.items():
            for key in records.keys() - {NOTICE_KEY}:
                written = Progress.decode(records[key])
                self.publishers[shard].committed.append((None, written))

    def publisher(self, shard: int) -> RecordingPublisher:
        self.before_seal.pop(shard, lambda: None)()
        return self.publishers[shard]


def test_a_target_keeps_the_last_turn_of_all_old_shards() -> None:
    """Its waiting copies may come to any new shard: new timers queue behind them."""
    turns = [{"mails": 7_000, "sms": 1_000}, {"mails": 2_000}]
    old = [replace(record(n, 2, n, n + 2), charged_ms=turns[n]) for n in range(2)]
    for shards in (1, 2):
        found = reassigned(old, shards, lambda: 7)
        assert [each.charged_ms for each in found] == [{"mails": 7_000, "sms": 1_000}] * shards


@pytest.mark.parametrize("begun", [4, 1])
def test_an_undo_asks_for_no_common_history(begun: int) -> None:
    """Shard 1 is reconfigured once shard 0 is sealed."""
    before = [record(0, 2, 0, 2), record(1, 2, 1, 3)]
    cluster, backoff = Sealing(*before), Backoff(NoWait(), Random(0))

    def reconfigured() -> None:
        changed = cluster.records[1]
        old, new = changed.epochs, OTHER.newest.values
        since = dict.fromkeys(changed.partitions, 40)
        before[1] = replace(changed, epochs=old.extended_by(new, since))
        cluster.publishers[1].committed.append((None, before[1]))

    cluster.before_seal[1] = reconfigured
    for _ in range(2):
        with pytest.raises(RecoveryRefused, match=r"differ in .*shards 0, 1\..*--to 2` gives each"):
            Reassignment(cluster, begun, backoff).run(dry_run=False)
    assert [r.sealed_for for r in cluster.records[:2]] == [begun] * 2
    shown = [Reassignment(cluster, 2, backoff).run(dry_run=dry) for dry in (True, False, True)]
    assert [(each.moved, each.sealed) for each in shown] == [(0, [0, 1]), (0, [0, 1]), (0, [])]
    for was, now in zip(before, cluster.records, strict=False):
        assert (now.owner, now.sealed_for, now.assignment_epoch) == (
            NOBODY,
            None,
            was.assignment_epoch + 1,
        )
        assert now.epoch > was.epoch
        owned = replace(
            now,
            owner=was.owner,
            incarnation=was.incarnation,
            epoch=was.epoch,
            assignment_epoch=was.assignment_epoch,
        )
        assert owned == was


def test_a_shard_is_told_of_no_partition_of_another() -> None:
    """Not even if it was added, and no progress names it yet."""
    numbers = range(4)
    since = {(TIMER_TOPIC, number): 7 for number in numbers}
    epochs = Epochs.first({"x": 0}).extended_by({"x": 1}, since)
    parts = {(TIMER_TOPIC, number): PartitionProgress(5, 9) for number in numbers[:2]}
    one = sealed(Progress(0, 1, "uuid", 4, 7, epochs, parts), 2, incarnation=1)
    told = [record.epochs.newest.since.keys() for record in reassigned([one], 2, lambda: 2)]
    assert told == [{(TIMER_TOPIC, 0), (TIMER_TOPIC, 2)}, {(TIMER_TOPIC, 1), (TIMER_TOPIC, 3)}]


def test_each_partition_keeps_the_settings_that_it_had() -> None:
    p, q = PARTITIONS[0], PARTITIONS[1]
    old, new = EPOCHS.newest.values, OTHER.newest.values
    records = [
        replace(record(shard, 2, shard), epochs=Epochs.first(old).extended_by(new, {at: offset}))
        for shard, (at, offset) in enumerate(((p, 3), (q, 8)))
    ]
    (joined,) = reassigned([sealed(each, 1, 1) for each in records], 1, lambda: 2)
    assert joined.epochs.newest.since == {p: 3, q: 8}
    assert [dict(epoch.values) for epoch in joined.epochs.epochs] == [dict(old), dict(new)]


def test_the_histories_of_two_shards_become_one() -> None:
    a, b, c, d = ({PRECISION: 10, WINDOW_MS: window} for window in (1, 2, 3, 4))
    p, q, r, s = PARTITIONS
    ours = Epochs((Epoch(a, {p: 2}), Epoch(b, {p: 5, r: 3}), Epoch(d, {p: 9, r: 9})))
    theirs = Epochs((Epoch(c, {q: 1}), Epoch(a), Epoch(b, {q: 4}), Epoch(d, {q: 8, s: 1})))
    for merged in (ours.beside(theirs), theirs.beside(ours)):
        for partitions, own in (((p, r), ours), ((q, s), theirs)):
            for partition in partitions:
                assert merged.begins_at(partition) == own.begins_at(partition)
                offset = np.arange(own.begins_at(partition), 12)
                where = ([partition], np.zeros(len(offset), np.int32), offset)
                windows = [
                    [found.epochs[i].window_ms for i in found.of_rows(*where)]
                    for found in (merged, own)
                ]
                assert windows[0] == windows[1]
    assert theirs.beside(Epochs.first(d)).newest == theirs.newest


@pytest.mark.parametrize(
    ("old", "shards", "reason"),
    [
        ([record(0, 2, 0, 2), record(1, 2, 1, 3)], 5, "shard 4 of 5 would have no partition"),
        (
            [record(0, 2, 0, 2), record(1, 2, 2, 3)],
            1,
            "more than one shard has progress of timers-2",
        ),
        (
            [record(0, 2, 0), replace(record(1, 2, 1), epochs=OTHER)],
            1,
            "shards 0 and 1 differ in roll_window_ms: .*reconfigure",
        ),
    ],
)
def test_what_cannot_be_reassigned(old: list[Progress], shards: int, reason: str) -> None:
    with pytest.raises(RecoveryRefused, match=reason):
        reassigned(old, shards, lambda: 0)


@pytest.mark.parametrize("keyed", [0, 1])
def test_shards_with_and_without_a_key_for_copies_are_not_merged(keyed: int) -> None:
    """Unsigned copies that are on their way to the one would be ordinary messages."""
    old = [record(0, 2, 0, 2), record(1, 2, 1, 3)]
    old[keyed] = replace(old[keyed], epochs=old[keyed].epochs.drawing_key(lambda _: 1))
    with pytest.raises(RecoveryRefused, match=f"rotate-key` for shard {1 - keyed} first"):
        reassigned(old, 1, lambda: 0)
    old[1 - keyed] = replace(old[1 - keyed], epochs=old[1 - keyed].epochs.drawing_key(lambda _: 2))
    (joined,) = reassigned(old, 1, lambda: 0)
    assert len(joined.epochs.newest.copy_keys) == 2


def test_a_notice_asks_to_yield_until_it_is_done() -> None:
    assert is_unfinished_notice(notice(1, 2, done=False))
    for value in (notice(1, 2, done=True), b"", b"{}", b"[]", b'{"done": 0}', b"\xff"):
        assert not is_unfinished_notice(value)


def test_each_partition_is_read_again_from_its_own_r() -> None:
    wheel = WheelConfig(10, 100, 100, margin_ms=20)
    at = [(100, 2_000), (200, 1_999), (300, 1_998), (100, 4)]
    parts = {
        partition: PartitionProgress(r, c, replied_below=c)
        for partition, (r, c) in zip(PARTITIONS, at, strict=True)
    }
    progress = replace(record(0, 1), partitions=parts)
    # A record every millisecond since the beginning.
    marks = first_marks(wheel, progress, lambda ms: dict.fromkeys(PARTITIONS, ms))
    assert marks == {
        PARTITIONS[0]: 1_000 - 120,
        PARTITIONS[1]: 2_000 - 120,
        PARTITIONS[2]: 2_000 - 2,
        PARTITIONS[3]: 4,
    }
