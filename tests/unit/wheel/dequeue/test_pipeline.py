"""The stages before a transaction: their work ahead, their errors, their end."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.harness.launcher import wait_until
from tests.harness.local_world import NOW_MS, PRECISION_MS, SLOT, LocalWorld
from tests.harness.publishers import RecordingPublisher
from tests.harness.timer_rows import P0, TimerRow, timer_batch

from duewheel.checkpoints.process_role import Role
from duewheel.checkpoints.progress import Progress
from duewheel.errors import RecoveryPending, TransactionTooSlow
from duewheel.schemas.batches import Deliveries
from duewheel.schemas.wire.record_batch import Batch
from duewheel.testing import ManualClock
from duewheel.wheel.dequeue.pipeline import CHUNKS_IN_MEMORY
from duewheel.wheel.encoded import Aside, Encoded, Part, Writes
from duewheel.wheel.publisher_protocol import Prepared, PublishAttempt
from duewheel.wheel.slots import hour_of
from duewheel.wheel.storage.byte_layouts import RECORD_BYTES

_NO_BATCH = Batch(memoryview(b""), 0)
HOUR = hour_of(SLOT + 1, PRECISION_MS)
RECORD_DELAY_END = 28


class WatchedPublisher(RecordingPublisher):
    """Counts what it has prepared, and has `meanwhile` run in the middle of every publish."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.prepared: list[list[str]] = []
        self.meanwhile: Callable[[], object] = lambda: None

    def prepare(self, deliveries: Deliveries) -> Prepared:
        self.prepared.append([(source or b"").decode() for source in deliveries.source.to_pylist()])
        return super().prepare(deliveries)

    def publish(self, attempt: PublishAttempt) -> int | None:
        if attempt.prepared is not None:
            self.meanwhile()
        return super().publish(attempt)


class SlowPublisher(WatchedPublisher):
    """Whose transactions run out of 15 s with more than `rows_max` rows; committed all the same, or
    not.
    """

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.rows_max = 1_000
        self.committed_though = False
        self.tried: list[int] = []
        # From a row's offset, the numbers of the partitions that it is written to.
        self.partitions_of: Callable[[int], Sequence[int]] = lambda _: [0]

    def renew(self, prepared: Prepared, progress: Progress) -> Prepared:
        offsets = prepared.deliveries.origin_offset.tolist()
        writes = [(n, p) for n, offset in enumerate(offsets) for p in self.partitions_of(offset)]
        parts = [Part("a", number, _NO_BATCH, None) for _, number in writes]
        row, partition = np.array(writes, np.int64).reshape(-1, 2).T
        encoded = Encoded(parts, Writes(row, partition), Aside(), {}, frozenset(), b"", 0)
        return replace(super().renew(prepared, progress), encoded=encoded)

    def publish(self, attempt: PublishAttempt) -> int | None:
        rows = 0 if attempt.prepared is None else len(attempt.prepared.deliveries)
        self.tried += [rows] if rows else []
        in_time = rows <= self.rows_max
        self.clock.set(self.clock.now_ms() + min(15_000, 15_000 * rows // max(1, self.rows_max)))
        if in_time or self.committed_though:
            stamp_ms = super().publish(attempt)
        if not in_time:
            raise TransactionTooSlow("ran out of time")
        return stamp_ms


class PipelineWorld(LocalWorld):
    """A shard whose timers are all in one slot."""

    publisher: SlowPublisher

    def __init__(self, path: Path, **bounds: Any) -> None:
        super().__init__(path, starts={P0: 0}, publisher=SlowPublisher, **bounds)

    def fill(self, count: int) -> list[str]:
        """So many timers that are due now."""
        names = self.put(*[PRECISION_MS] * count)
        self.set_slot(1)
        return names

    def spoil_the_last_record(self) -> None:
        """What the log says about its slot: for the scanning stage to find."""
        directory = self.shard.directory(Role.INGEST)
        end = directory.state.commit().hours[HOUR].log_bytes
        _spoil(directory.log.files.path(HOUR), end - RECORD_BYTES + RECORD_DELAY_END - 1)

    def spoil_the_last_message(self) -> None:
        """For the reading stage to find."""
        messages = self.shard.directory(Role.INGEST).messages.files
        _spoil(messages.path(HOUR), messages.size(HOUR) - 1)


def _spoil(path: Path, position: int) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        (byte,) = file.read(1)
        file.seek(position)
        file.write(bytes([byte ^ 1]))


MakeWorld = Callable[..., PipelineWorld]


@pytest.fixture
def make_world(tmp_path: Path) -> Iterator[MakeWorld]:
    made: list[PipelineWorld] = []

    def make(chunk_records: int = 2, **bounds: Any) -> PipelineWorld:
        made.append(PipelineWorld(tmp_path / str(len(made)), chunk_records=chunk_records, **bounds))
        return made[-1]

    yield make
    for world in made:
        world.kill()
    assert stage_threads() == []


def stage_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name in {"scan", "read"}]


def test_the_next_chunk_is_prepared_during_a_commit_and_no_more(make_world: MakeWorld) -> None:
    world = make_world()
    sources, published = world.fill(20), itertools.count(1)

    def look() -> None:
        ahead = min(next(published) + CHUNKS_IN_MEMORY - 1, 10)
        wait_until(lambda: len(world.publisher.prepared) == ahead, "not prepared", every_s=0.001)
        time.sleep(0.005)  # what is not held back comes now
        assert len(world.publisher.prepared) == ahead

    world.publisher.meanwhile = look
    world.drain()
    assert world.sources() == sources
    assert list(itertools.chain(*world.publisher.prepared)) == sources


def test_a_range_of_one_chunk_needs_no_thread(make_world: MakeWorld) -> None:
    world = make_world()
    started: list[str] = []
    world.fill(2)
    world.publisher.meanwhile = lambda: started.extend(stage_threads())
    world.drain()
    assert (len(world.sources()), started) == (2, [])


@pytest.mark.parametrize(
    "spoil", [PipelineWorld.spoil_the_last_record, PipelineWorld.spoil_the_last_message]
)
def test_damage_stops_the_loop_behind_what_is_whole_and_for_good(
    make_world: MakeWorld, spoil: Callable[[PipelineWorld], None]
) -> None:
    world = make_world()
    sources = world.fill(20)
    spoil(world)
    with pytest.raises(RecoveryPending):
        world.drain()
    assert world.sources() == sources[:18]
    for _ in range(2):
        with pytest.raises(RecoveryPending):
            world.tick()
    assert world.sources() == sources[:18]


def test_stopping_in_the_middle_of_a_slot_leaves_no_thread(make_world: MakeWorld) -> None:
    world = make_world()
    sources = world.fill(20)
    assert world.tick()
    wait_until(lambda: len(world.publisher.prepared) == 2, "not prepared", every_s=0.001)
    assert stage_threads() == ["scan", "read"]
    world.shard.kill(Role.DEQUEUE)
    assert stage_threads() == []
    world.shard.start_dequeue()
    world.drain()
    assert world.sources() == sources


def test_a_transaction_has_a_bounded_number_of_partitions(make_world: MakeWorld) -> None:
    """Only encoding knows them. A kill between the parts of a chunk loses and doubles nothing."""
    world = make_world(chunk_records=12, chunk_partitions=4)
    sources = world.fill(30)
    world.publisher.partitions_of = lambda offset: [offset]  # each row has its own
    assert [world.tick() for _ in range(2)] == [True, True]  # divided, and its first part
    assert world.publisher.tried == [4]
    world.restart(Role.DEQUEUE)
    world.drain()
    assert world.sources() == sources
    assert max(world.publisher.tried) == 4
    assert len(world.publisher.tried) <= 10, "few of them are smaller"


def test_rows_that_share_few_partitions_leave_in_one_transaction(make_world: MakeWorld) -> None:
    world = make_world(chunk_records=12, chunk_partitions=4)
    sources = world.fill(24)
    world.publisher.partitions_of = lambda offset: [offset % 4]
    world.drain()
    assert (world.sources(), world.publisher.tried) == (sources, [12, 12])


def test_rows_for_too_many_partitions_are_cut_where_their_number_exceeds_the_bound(
    make_world: MakeWorld,
) -> None:
    """Two transactions, each row encoded once more: halves would be too wide again."""
    world = make_world(chunk_records=40, chunk_partitions=4)
    sources = world.fill(40)
    world.publisher.partitions_of = lambda offset: [offset % 4 + 2 * (offset >= 30)]
    world.drain()
    assert (world.sources(), world.publisher.tried) == (sources, [30, 10])
    assert sorted(len(names) for names in world.publisher.prepared) == [10, 30, 40]


def test_a_row_with_more_partitions_than_a_transaction_leaves_alone(make_world: MakeWorld) -> None:
    world = make_world(chunk_records=12, chunk_partitions=1)
    sources = world.fill(4)
    world.publisher.partitions_of = lambda offset: [offset, -offset - 1]  # with its receipt
    world.drain()
    assert (world.sources(), world.publisher.tried) == (sources, [1, 1, 1, 1])


# ---- transactions that run out of time ----------------------------------------------------------


def test_what_runs_out_of_time_leaves_in_smaller_transactions(make_world: MakeWorld) -> None:
    world = make_world(chunk_records=16)
    sources = world.fill(100)
    world.publisher.rows_max = 3
    for _ in range(20):
        world.tick()
    assert world.publisher.tried == [16, 8, 4, *[2] * 17], "what is too large is not tried again"
    world.publisher.rows_max = 1_000
    world.drain()
    assert world.sources() == sources
    assert world.publisher.tried[-3:-1] == [16, 16], "grown to whole chunks again"


def test_killed_between_the_parts_of_a_chunk(make_world: MakeWorld) -> None:
    for ticks in range(1, 12):
        world = make_world(chunk_records=8)
        sources = world.fill(20)
        world.publisher.rows_max = 2
        for _ in range(ticks):
            world.tick()
        world.restart(Role.DEQUEUE)
        world.drain()
        assert world.sources() == sources


def test_out_of_time_and_committed_all_the_same(make_world: MakeWorld) -> None:
    world = make_world(chunk_records=8)
    sources = world.fill(20)
    world.publisher.rows_max, world.publisher.committed_though = 2, True
    world.drain()
    assert world.sources() == sources
    assert world.publisher.tried == [8, 8, 4]


def test_one_row_that_runs_out_of_time_is_tried_again(make_world: MakeWorld) -> None:
    world = make_world(chunk_records=8)
    sources, tries = world.fill(3), itertools.count()
    world.publisher.rows_max = 1

    def look() -> None:
        in_time = next(tries) > 5
        world.publisher.rows_max = 1 if in_time else 0

    publish = world.publisher.publish

    def watched(attempt: PublishAttempt) -> int | None:
        look()
        return publish(attempt)

    world.publisher.publish = watched  # type: ignore[method-assign]
    world.drain()
    assert world.sources() == sources


def test_a_part_of_a_chunk_has_the_targets_of_its_rows(tmp_path: Path) -> None:
    """With all of the chunk's each of its transactions would look at 20,000 of them."""
    seen = list[list[str]]()

    class Watched(SlowPublisher):
        def __init__(self, clock: ManualClock) -> None:
            super().__init__(clock)
            self.partitions_of = lambda offset: [offset]  # each row has its own

        def prepare(self, deliveries: Deliveries) -> Prepared:
            seen.append(deliveries.targets)
            return super().prepare(deliveries)

    world = LocalWorld(tmp_path, starts={P0: 0}, publisher=Watched, chunk_partitions=3)
    batch = timer_batch([TimerRow(0, n, NOW_MS + PRECISION_MS) for n in range(9)])
    names = [f"t{n}" for n in range(9)]
    world.engine.append(replace(batch, targets=names, target=np.arange(9, dtype=np.int32)), {P0: 9})
    world.at_slot(1)
    assert (seen[0], sorted(seen[1:])) == (names, [names[:3], names[3:6], names[6:]])
    world.kill()
