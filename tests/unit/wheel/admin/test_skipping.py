"""Records that the operator skips: dead letters now, and whenever they are read again."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from tests.harness.reconfiguring import alone as holding
from tests.harness.reconfiguring import caught_up
from tests.harness.recovery_world import RecoveryWorld
from tests.harness.source_table import SourceRow, as_table, read_records
from tests.harness.timer_rows import TIMER_TOPIC, suite_parameters

from duewheel.checkpoints.commit_and_close_pages import Marks
from duewheel.checkpoints.config_epochs import Epoch, Epochs
from duewheel.checkpoints.progress import Progress
from duewheel.checkpoints.state_file import State
from duewheel.errors import ConfigError, RecoveryRefused
from duewheel.schemas.batches import TimerBatch, TopicPartition
from duewheel.schemas.request.acceptance_rules import compile_suite, load_suite
from duewheel.schemas.request.parser import Contract, parse
from duewheel.schemas.request.skipped_records import parse_but_skipped
from duewheel.schemas.wire.kafka_records import KafkaRecords
from duewheel.wheel.admin.change_settings import commit
from duewheel.wheel.admin.skip_records import SKIPPED_MAX, skip
from duewheel.wheel.dequeue_config import DequeueConfig
from duewheel.wheel.recovery.survey import survey

P: TopicPartition = (TIMER_TOPIC, 0)
Q: TopicPartition = (TIMER_TOPIC, 1)
ENDS: Marks = {P: 1_000, Q: 1_000}
WRITTEN_MS = 1_784_894_400_000
CONTRACT = Contract((1_000,), {}, "dead", compile_suite(load_suite(), suite_parameters()))


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RecoveryWorld:
    return RecoveryWorld(tmp_path, monkeypatch)


# ---- parsing -------------------------------------------------------------------------------------


def table(*places: tuple[str, int, int]) -> pa.Table:
    due = [("REAL_TOPIC", b"orders"), ("TIMER_DELAY_MS", b"5")]
    return as_table(
        [
            SourceRow(offset, WRITTEN_MS, due, number, b"key", b"%d" % offset, topic)
            for topic, number, offset in places
        ]
    )


def careful(records: KafkaRecords) -> TimerBatch:
    """A parser that one record ends."""
    assert 7 not in records.offset
    return parse(records, CONTRACT)


def test_a_skipped_record_is_a_dead_letter_in_its_place() -> None:
    places = [("timers", 0, n) for n in (5, 6, 7, 8)] + [("timers", 1, n) for n in (6, 7)]
    with pytest.raises(AssertionError):
        careful(read_records(table(*places)))
    skipped = {P: (7,), Q: (7,), ("other", 0): (5,)}
    batch = parse_but_skipped(read_records(table(*places)), careful, skipped, "dead")
    found = [
        (batch.partitions[p], o, r)
        for p, o, r in zip(batch.partition, batch.offset, batch.rejected, strict=True)
    ]
    assert found == [((t, n), o, o == 7) for t, n, o in places]
    assert [batch.targets[t] for t in batch.target] == [
        *("orders", "orders", "dead", "orders"),
        *("orders", "dead"),
    ]
    assert batch.rejections() == {"skipped_by_operator": 2}
    alone = table(("timers", 0, 7))
    row = parse_but_skipped(read_records(alone), careful, skipped, "dead")
    assert row.key_value.to_pylist() == parse(read_records(alone), CONTRACT).key_value.to_pylist()
    assert row.header_count.tolist() == [2]  # its own are not looked at
    assert row.timer.all() and not row.cancels.any()


def test_others_are_not_touched() -> None:
    records = read_records(table(("timers", 0, 1)))
    for skipped in ({}, {P: (2,)}, {Q: (1,)}):
        assert not parse_but_skipped(records, careful, skipped, "dead").rejected.any()


# ---- what is kept in the progress ----------------------------------------------------------------


def test_what_is_skipped_goes_with_the_epochs() -> None:
    epochs = Epochs((Epoch({"precision_ms": 1, "roll_window_ms": 1}),))
    assert "skipped" not in epochs.text
    some = epochs.skipping([(P, 9), (P, 3), (Q, 4)]).skipping([(P, 3)])
    assert some.skipped == {P: (3, 9), Q: (4,)}
    assert Epochs.from_json(json.loads(some.text)) == some != epochs
    assert some.reaching({P: 4, Q: 4}).skipped == {P: (9,), Q: (4,)}
    assert some.reaching({P: 10, Q: 5}) == epochs
    assert some.without([P]).skipped == {Q: (4,)}
    assert some.cut({P: 9}).skipped == {P: (3,), Q: (4,)}
    assert some.extended_by({"precision_ms": 1, "roll_window_ms": 2}, {}).skipped == some.skipped
    assert epochs.skipping([(P, 1)]).beside(epochs.skipping([(Q, 2)])).skipped == {P: (1,), Q: (2,)}


def planned(
    world: RecoveryWorld, *named: tuple[TopicPartition, int], ends: Marks = ENDS
) -> Progress:
    found, local = world.publisher.peek(), survey(world.path, world.wheel)
    config = DequeueConfig(0, 1, {})
    return skip(named, found, local, world.wheel, config, world.shard.offsets_at, ends)


def test_only_what_was_not_taken_can_be_skipped(world: RecoveryWorld) -> None:
    caught_up(world)
    marks = State.open(world.path).commit().marks
    assert planned(world, (P, marks[P])).epochs.skipped == {P: (marks[P],)}
    with pytest.raises(RecoveryRefused, match="taken already"):
        planned(world, (P, marks[P] - 1))
    with pytest.raises(ConfigError, match="ends at 1000"):
        planned(world, (P, 1_000))
    with pytest.raises(ConfigError, match="reads no such partition"):
        planned(world, (("unknown", 0), 1))
    many = [(P, marks[P] + n) for n in range(SKIPPED_MAX + 1)]
    assert len(planned(world, *many[:-1]).epochs.skipped[P]) == SKIPPED_MAX
    with pytest.raises(ConfigError, match=f"{SKIPPED_MAX + 1} records would be skipped"):
        planned(world, *many)


def test_what_was_skipped_outlives_a_loss(world: RecoveryWorld) -> None:
    caught_up(world)
    mark = State.open(world.path).commit().marks[P]
    found, wanted = world.publisher.start(), planned(world, (P, mark + 1))
    assert found is not None and wanted.epoch == found.epoch + 1
    with holding(world) as directory:
        commit(directory, world.publisher, found, wanted)
    assert planned(world, (P, mark + 1)) == wanted  # again: nothing changes
    assert world.start() == "intact"
    assert world.shard.ingest is not None
    assert world.shard.ingest.epochs.skipped == {P: (mark + 1,)}
    world.kill()
    shutil.rmtree(world.path)
    world.start(take_over=True)
    assert world.shard.ingest is not None
    assert world.shard.ingest.epochs.skipped == {P: (mark + 1,)}
