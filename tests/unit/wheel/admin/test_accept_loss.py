"""Timer partitions that are deleted, recreated or cut short, and accepted losses."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from tests.harness.cancel_world import count_messages_read
from tests.harness.killed import Killed, die
from tests.harness.local_world import NOW_MS, PRECISION_MS
from tests.harness.reconfiguring import alone
from tests.harness.recovery_world import RecoveryWorld
from tests.harness.standbys import Standby
from tests.harness.state_pages import damage_newest_commit
from tests.harness.timer_rows import TIMER_TOPIC, TimerRow

from duewheel.checkpoints.cancel_bounds import CancelBounds
from duewheel.checkpoints.commit_and_close_pages import Marks
from duewheel.checkpoints.durable_checkpoint import Durable
from duewheel.checkpoints.progress import Progress
from duewheel.checkpoints.reshard_records import reassigned, sealed
from duewheel.checkpoints.state_file import State
from duewheel.errors import ConfigError, RecoveryPending, RecoveryRefused
from duewheel.schemas import header_names
from duewheel.schemas.batches import TopicPartition, is_retired
from duewheel.schemas.wire.record_codec import framed_bytes
from duewheel.wheel.admin import accept_loss
from duewheel.wheel.admin.accept_loss import KafkaTopics, Loss, accept, losses
from duewheel.wheel.recovery.first_offsets import first_marks
from duewheel.wheel.recovery.survey import survey
from duewheel.wheel.storage.data_directory import DataDirectory
from duewheel.wheel.storage.message_store import split_by_count

P: TopicPartition = (TIMER_TOPIC, 0)
Q: TopicPartition = (TIMER_TOPIC, 1)
OLD, NEW = {TIMER_TOPIC: "an id"}, {TIMER_TOPIC: "another id"}


class Shop(RecoveryWorld):
    """A shard whose timer topic may be recreated.

    Attributes:
        ids: of the topics.
        wanted: every timer ever written, by source; topics that are recreated use sources again.
    """

    def __init__(self, path: Path, host: pytest.MonkeyPatch, chunk_records: int) -> None:
        self.ids = OLD
        self.wanted: Counter[bytes] = Counter()
        super().__init__(path, host, chunk_records)
        self.reopen()

    def reopen(self) -> None:
        self.kill()
        self.shard.start_dequeue()
        self.shard.start_ingest(self.ids)

    def write(self, partition: int, *due_slots: int) -> None:
        first = len(self.kafka[partition])
        super().write(partition, *due_slots)
        self.wanted.update(t.source.encode() for t in self.kafka[partition][first:])

    def make_anew(self) -> None:
        self.kafka = {number: [] for number in self.kafka}
        self.ids = NEW

    @property
    def topics(self) -> KafkaTopics:
        ends: Marks = {(TIMER_TOPIC, p): len(timers) for p, timers in self.kafka.items()}
        return KafkaTopics(self.ids if ends else {}, dict.fromkeys(ends, 0), ends)

    def accept(self, *named: TopicPartition) -> dict[TopicPartition, Loss]:
        self.kill()
        with alone(self) as directory:
            local = survey(self.path, self.wheel)
            found, told = losses(
                named, self.publisher.start(), local, self.shard.config, self.topics
            )
            accept(directory, self.publisher, found, told, self.topics.ids)
        return told

    def progress(self) -> Progress:
        found = self.publisher.peek()
        assert found is not None
        return found

    def finish(self) -> None:
        for _ in range(3):
            self.ingest()
            self.at_slot(5_000)
        assert Counter(self.publisher.sources()) == self.wanted
        self.kill()


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    return Shop(tmp_path, monkeypatch, chunk_records=1)


def with_timers(shop: Shop) -> None:
    """Some delivered, some in the wheel; nothing half delivered."""
    shop.write(0, 1, 30, 30, 30, 40)
    shop.write(1, 2, 30, 50)
    shop.ingest()
    shop.at_slot(5)


def test_a_topic_made_anew_begins_at_its_start_and_what_was_there_is_delivered(shop: Shop) -> None:
    with_timers(shop)
    shop.make_anew()
    shop.write(0, 30, 30, 45)
    shop.write(1, 30)
    with pytest.raises(RecoveryRefused, match=r"duewheel reconfigure --accept-loss"):
        shop.reopen()
    told = shop.accept(P, Q)
    assert told == {P: Loss("recreated", 5, 0, 0), Q: Loss("recreated", 3, 0, 0)}
    assert shop.progress().topic_ids == NEW
    assert {p: at.delivered_mark for p, at in shop.progress().partitions.items()} == {P: 0, Q: 0}
    shop.reopen()
    shop.ingest()
    # Rows of both topics in one slot, and a kill after each of them.
    for _ in range(12):
        shop.at_slot(30, ticks=1)
        shop.reopen()
    shop.finish()


def test_a_slot_that_holds_rows_of_a_topic_that_was_leaves_no_trace_in_the_progress(
    shop: Shop,
) -> None:
    with_timers(shop)
    shop.make_anew()
    shop.accept(P, Q)
    shop.reopen()
    shop.at_slot(30, ticks=1)
    half = shop.progress()
    assert any(is_retired(topic) for topic, _ in half.partitions)
    assert half.topics == {TIMER_TOPIC}
    assert first_marks(shop.wheel, half, lambda _: {}).keys() == {P, Q}
    records = reassigned([sealed(half, 2, incarnation=1)], 2, lambda: 2)
    assert [record.partitions.keys() for record in records] == [{P}, {Q}]
    shop.reopen()
    shop.at_slot(30)
    assert shop.progress().partitions.keys() == {P, Q}
    shop.reopen()
    shop.finish()


def test_a_partition_that_is_gone_is_dropped_and_what_was_there_is_delivered(shop: Shop) -> None:
    """The topic has come back with fewer partitions."""
    with_timers(shop)
    shop.make_anew()
    del shop.kafka[1]
    assert shop.accept(P, Q) == {P: Loss("recreated", 5, 0, 0), Q: Loss("deleted", 3, None, 0)}
    assert shop.progress().partitions.keys() == {P}
    shop.reopen()
    assert State.open(shop.path).commit().marks == {P: 0}
    shop.write(0, 30)
    shop.ingest()
    for _ in range(10):
        shop.at_slot(30, ticks=1)
        shop.reopen()
    shop.finish()


def test_a_partition_that_was_cut_short_goes_on_at_its_end(shop: Shop) -> None:
    with_timers(shop)
    cut(shop, 3)
    with pytest.raises(RecoveryRefused, match=r"2 timers are pending from behind the cut"):
        shop.accept(P)
    shop.reopen()
    shop.at_slot(40)
    assert shop.accept(P) == {P: Loss("cut short", 5, 3, 0)}
    assert State.open(shop.path).commit().marks == {P: 3, Q: 3}
    shop.reopen()
    shop.write(0, 60, 60)
    shop.ingest()
    for _ in range(4):
        shop.at_slot(60, ticks=1)
        shop.reopen()
    shop.finish()


def test_a_look_behind_a_cut_reads_a_bounded_number_of_messages_at_once(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With all of an hour in memory the command would be killed at each try."""
    with_timers(shop)
    cut(shop, 3)
    pairs = partial(split_by_count, records_max=2)
    monkeypatch.setattr("duewheel.wheel.admin.accept_loss.split_by_count", pairs)
    read = [count_messages_read(monkeypatch, method) for method in ("read", "read_ids")]
    with pytest.raises(RecoveryRefused, match=r"2 timers are pending from behind the cut"):
        shop.accept(P)
    assert read[0] == [] and max(read[1]) == 2 < sum(read[1])


def cut(shop: Shop, end: int) -> None:
    del shop.kafka[0][end:]


def test_a_lost_directory_does_not_take_the_new_topic_for_the_old_one(shop: Shop) -> None:
    """Its ids are in the progress. What it had in the wheel is lost with it."""
    shop.write(0, 1, 2, 3)
    shop.ingest()
    shop.at_slot(4)
    assert shop.progress().topic_ids == OLD
    shop.kill()
    shutil.rmtree(shop.path)
    shop.publisher.silent_ms = 61_000
    shop.make_anew()
    shop.write(0, 1, 2, 3, 9)  # as many as there were: no end lies below a mark
    with pytest.raises(RecoveryRefused, match="recreated"):
        shop.reopen()
    # As much as the old topic had below C is to be read again, and never will be.
    assert shop.accept(P, Q)[P] == Loss("recreated", 3, 0, 3)
    shop.reopen()
    shop.finish()


def test_no_durable_checkpoint_outlives_the_topic_that_it_speaks_of(shop: Shop) -> None:
    with_timers(shop)
    shop.checkpoint()
    assert Durable.read(shop.path) is not None
    shop.make_anew()
    shop.accept(P, Q)
    assert Durable.read(shop.path) is None


def test_a_timer_of_the_old_topic_that_rolls_begins_anew(shop: Shop) -> None:
    """The new topic has no first copy of it; its id is that which it had."""
    shop.write(0, 4_900, 4_900)
    shop.kafka[0] = [replace(written, timestamp_ms=NOW_MS) for written in shop.kafka[0]]
    shop.ingest()
    shop.make_anew()
    shop.accept(P, Q)
    shop.shard.start_dequeue()
    shop.at_slot(4_000)
    sent = [rows for rows, _ in shop.publisher.committed if rows is not None]
    assert all(rows.is_copy.all() and rows.targets[rows.target[0]] == TIMER_TOPIC for rows in sent)
    texts = [text for rows in sent for text in rows.headers.to_pylist() if text is not None]
    assert len(texts) == 2
    headers = b"".join(texts)
    assert headers.count(framed_bytes(header_names.ORIGIN.encode()) + framed_bytes(b"-1")) == 2
    assert b"id of timers-0@0" in headers
    assert b"timers-0@1" in headers


# ---- what is refused -----------------------------------------------------------------------------


def test_what_is_there_is_not_given_up(shop: Shop) -> None:
    with_timers(shop)
    with pytest.raises(RecoveryRefused, match="nothing is lost of timers-0"):
        shop.accept(P)
    with pytest.raises(ConfigError, match="no timer partition timers-7"):
        shop.accept((TIMER_TOPIC, 7))
    shop.make_anew()
    with pytest.raises(ConfigError, match="add --accept-loss timers-1"):
        shop.accept(P)
    shop.kafka = {}
    with pytest.raises(RecoveryRefused, match="no timer partition left"):
        shop.accept(P, Q)


def test_a_half_delivered_slot_is_finished_first(shop: Shop) -> None:
    with_timers(shop)
    shop.at_slot(30, ticks=2)
    shop.make_anew()
    with pytest.raises(RecoveryRefused, match="let it finish the slot first"):
        shop.accept(P, Q)
    shop.shard.start_dequeue()
    shop.at_slot(30)
    shop.accept(P, Q)
    shop.reopen()
    shop.finish()


# ---- kills ---------------------------------------------------------------------------------------


@contextmanager
def dying(owner: object, name: str) -> Iterator[None]:
    """Whoever calls it dies before it does anything."""

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(owner, name, die)
        with pytest.raises(Killed):
            yield


STEPS: list[tuple[object, str]] = [
    (accept_loss, "commit"),
    (State, "write_mirror"),
    (State, "restart_close"),
    (State, "write_commit"),
    (State, "mark_applied"),
]


@pytest.mark.parametrize(("owner", "name"), STEPS, ids=[name for _, name in STEPS])
@pytest.mark.parametrize("between", [False, True])
def test_a_command_that_was_killed_is_run_again(
    shop: Shop, owner: object, name: str, between: bool
) -> None:
    """Whether dequeue has delivered something meanwhile or not."""
    with_timers(shop)
    shop.make_anew()
    shop.write(0, 30, 45)
    with dying(owner, name):
        shop.accept(P, Q)
    if between:
        shop.kill()
        shop.shard.start_dequeue()
        shop.at_slot(35)
    if name != "mark_applied":
        shop.accept(P, Q)
    shop.reopen()
    shop.ingest()
    shop.at_slot(36, ticks=1)
    shop.reopen()
    shop.finish()


def test_a_partition_that_was_given_up_is_no_progress_that_kafka_has_lost(shop: Shop) -> None:
    """Killed before the local copy of the progress has forgotten it, too."""
    with_timers(shop)
    shop.make_anew()
    del shop.kafka[1]
    with dying(State, "write_mirror"):
        shop.accept(P, Q)
    shop.kill()
    shop.shard.start_dequeue()
    assert shop.accept(P, Q)[Q] == Loss("deleted", 3, None, 0)
    shop.reopen()
    shop.finish()


def test_ingest_is_refused_until_the_command_has_ended(shop: Shop) -> None:
    with_timers(shop)
    shop.make_anew()
    with dying(State, "write_commit"):
        shop.accept(P, Q)
    with pytest.raises(RecoveryRefused, match="recreated"):
        shop.reopen()


def test_a_standby_does_not_take_the_new_topic_for_the_old(shop: Shop, tmp_path: Path) -> None:
    with_timers(shop)
    standby = Standby(shop, tmp_path / "standby")
    standby.shard.start_ingest(shop.ids)
    standby.ingest()
    shop.make_anew()
    shop.accept(P, Q)
    shop.reopen()
    shop.write(0, 6, 50, 50, 50, 50, 50, 50)
    shop.write(1, 6, 50, 50, 50)
    shop.ingest()
    shop.at_slot(7)
    with pytest.raises(RecoveryPending, match="or are given up"):
        standby.follower.tick()
    standby.kill()
    standby.follow()
    assert standby.case() == ("taken over", "nothing")
    standby.kill()
    shop.finish()


def ask(shop: Shop, due_slot: int, request: str = "") -> TimerRow:
    """A timer with the id "x" in the first partition, or a request about it."""
    timers = shop.kafka[0]
    asked = TimerRow(
        0, len(timers), NOW_MS + due_slot * PRECISION_MS, timer_id=b"x", request=request
    )
    timers.append(asked)
    return asked


def test_a_cancel_from_behind_a_cut_meets_nothing_new(shop: Shop) -> None:
    shop.write(0, 1, 2)
    ask(shop, 60)
    for _ in range(3):
        ask(shop, 0, "cancel")
    shop.ingest()
    shop.at_slot(5)
    cut(shop, 4)
    assert shop.accept(P) == {P: Loss("cut short", 6, 4, 0)}
    shop.reopen()
    shop.wanted[ask(shop, 50).source.encode()] += 1  # where a cancel was
    shop.write(0, 51)
    shop.ingest()
    shop.at_slot(70)
    shop.finish()


def test_what_a_cut_takes_away_is_known_to_be_lost(shop: Shop) -> None:
    """Cancels from behind it get no reply, and nothing on disk proves what became of a timer."""
    for _ in range(3):
        ask(shop, 0, "cancel")
    shop.ingest()
    shop.at_slot(5)
    cut(shop, 2)
    shop.accept(P)
    directory = DataDirectory(shop.path, shop.wheel)
    ((hour, (length, _)),) = directory.state.commit().cancels.items()
    (rows,) = directory.cancels.blocks(hour, length)
    assert rows.cut_at.tolist() == [0, 0, shop.progress().assignment_epoch]
    directory.close()
    progress = shop.progress()
    assert CancelBounds.read(shop.path) == CancelBounds.blind_of(progress.delivered_slot, [P, Q])
    assert progress.partitions[P].replied_below <= 2


def test_what_came_late_and_lies_before_a_cut_is_not_done(shop: Shop) -> None:
    """Its own slot is delivered, and C of that lies below it."""
    shop.write(0, 1)
    shop.ingest()
    shop.at_slot(5)
    shop.write(0, 2)
    ask(shop, 0, "cancel")
    shop.ingest()
    cut(shop, 2)
    assert shop.accept(P) == {P: Loss("cut short", 3, 2, 0)}
    assert shop.progress().partitions[P].delivered_mark == 1
    shutil.rmtree(shop.path)
    shop.publisher.silent_ms = 61_000
    shop.reopen()
    shop.finish()


def test_a_damaged_commit_page_brings_back_no_mark_from_behind_a_cut(shop: Shop) -> None:
    """What is written between the cut and that mark would never be read."""
    shop.write(0, 1, 2, 3)
    shop.ingest()
    shop.at_slot(5)
    cut(shop, 2)
    shop.accept(P)
    state = State.open(shop.path)
    damage_newest_commit(shop.path)
    assert state.commit().marks[P] == 2
    shop.reopen()
    shop.write(0, 60, 61)
    shop.ingest()
    shop.at_slot(70)
    shop.wanted = Counter(f"{TIMER_TOPIC}-0@{o}".encode() for o in (0, 1, 2, 2, 3))
    shop.finish()


def test_a_timer_is_not_brought_back_by_cutting_its_cancel_off(shop: Shop) -> None:
    shop.write(0, 1)
    ask(shop, 60)
    for _ in range(2):
        ask(shop, 0, "cancel")
    shop.ingest()
    shop.at_slot(5)
    cut(shop, 2)
    with pytest.raises(
        RecoveryRefused, match=r"1 pending timers are cancelled from behind the cut"
    ):
        shop.accept(P)
    shop.kill()
    shop.shard.start_dequeue()
    shop.at_slot(60)
    shop.accept(P)
    shop.reopen()
    shop.wanted[ask(shop, 80).source.encode()] += 1  # where a cancel was
    shop.write(0, 81, 82)
    shop.ingest()
    shop.at_slot(90)
    shop.finish()


def test_a_cancel_of_a_topic_made_anew_meets_what_is_left_of_the_old_one(shop: Shop) -> None:
    shop.write(0, 1)
    ask(shop, 60)
    ask(shop, 0, "cancel")
    shop.write(0, 70)
    shop.ingest()
    shop.at_slot(5)
    shop.make_anew()
    shop.accept(P, Q)
    shop.wanted[ask(shop, 60).source.encode()] += 1
    shop.write(0, 61)
    for slot in (6, 65):
        shop.reopen()
        shop.ingest()
        shop.at_slot(slot)
    shop.finish()
