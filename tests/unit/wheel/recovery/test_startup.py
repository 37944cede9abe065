"""Starts and stops: the right to work in a data directory, and where delivery continues."""

from __future__ import annotations

import os
import uuid
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import psutil
import pytest
from hypothesis import given
from tests.harness.manual_host import ManualHost
from tests.harness.publishers import RecordingPublisher
from tests.harness.timelines import KIND, spoil_timeline

from duewheel.checkpoints.commit_and_close_pages import NO_COMMIT, Close, Commit
from duewheel.checkpoints.config_epochs import Epochs
from duewheel.checkpoints.durable_checkpoint import Durable
from duewheel.checkpoints.fs import HOST_FS, FileSystem
from duewheel.checkpoints.local_state import Keep, Local, RecoveryRecord, dequeue_has_decided
from duewheel.checkpoints.ownership import require_fits, require_may_own
from duewheel.checkpoints.process_role import Role
from duewheel.checkpoints.progress import NOBODY, PartitionProgress, Progress, advanced
from duewheel.checkpoints.state_file import Damage, State
from duewheel.errors import ConfigError, Fenced, Locked, RecoveryPending, RecoveryRefused
from duewheel.schemas.batches import TopicPartition
from duewheel.testing import ManualClock
from duewheel.wheel.dequeue_config import DequeueConfig
from duewheel.wheel.recovery.kept_files import Decision, decide, decide_to_follow
from duewheel.wheel.recovery.startup import first_progress, start
from duewheel.wheel.slots import WheelConfig
from duewheel.wheel.storage.cross_file_damage import survey_files
from duewheel.wheel.storage.data_directory import DataDirectory, declare_stopped
from duewheel.wheel.storage.timelines.kinds import remove_timelines

P: TopicPartition = ("timers", 0)
Q: TopicPartition = ("timers", 1)
WHEEL = WheelConfig(precision_ms=50, slots=1000, window_ms=10_000, margin_ms=0)
VALUES = {"precision_ms": 50, "roll_window_ms": 1}
EPOCHS = Epochs.first(VALUES)


# ---- who may work in a directory -----------------------------------------------------------------


def open_locks(path: Path) -> list[str]:
    opened = [Path(file.path) for file in psutil.Process().open_files()]
    return [file.name for file in opened if file.parent == path and file.suffix == ".lock"]


def test_each_role_has_one_process(tmp_path: Path) -> None:
    ingest = DataDirectory.start(tmp_path, WHEEL, Role.INGEST)
    with pytest.raises(Locked, match=f"ingest runs already, as process {os.getpid()}"):
        DataDirectory.start(tmp_path, WHEEL, Role.INGEST)
    dequeue = DataDirectory.start(tmp_path, WHEEL, Role.DEQUEUE)
    ingest.close()
    DataDirectory.start(tmp_path, WHEEL, Role.INGEST).close()
    dequeue.close()


def test_the_process_that_stops_last_declares_a_clean_stop(tmp_path: Path) -> None:
    ingest = DataDirectory.start(tmp_path, WHEEL, Role.INGEST)
    dequeue = DataDirectory.start(tmp_path, WHEEL, Role.DEQUEUE)
    ingest.stop()
    assert not State.open(tmp_path).stopped_cleanly
    dequeue.stop()
    assert State.open(tmp_path).stopped_cleanly
    DataDirectory.start(tmp_path, WHEEL, Role.INGEST).close()
    assert not State.open(tmp_path).stopped_cleanly


def test_a_start_while_the_last_one_syncs_forbids_the_clean_stop(tmp_path: Path) -> None:
    started: list[DataDirectory] = []

    class SlowDisk(FileSystem):
        def sync_tree(self, directory: Path) -> None:
            super().sync_tree(directory)
            started.append(DataDirectory.start(directory, WHEEL, Role.INGEST))

    ingest = DataDirectory.start(tmp_path, WHEEL, Role.INGEST, fs=SlowDisk())
    ingest.stop()
    assert not State.open(tmp_path).stopped_cleanly
    started[0].close()


def test_a_clean_stop_can_be_declared_for_those_that_were_killed(tmp_path: Path) -> None:
    assert not declare_stopped(tmp_path)
    assert list(tmp_path.iterdir()) == []
    ingest = DataDirectory.start(tmp_path, WHEEL, Role.INGEST)
    dequeue = DataDirectory.start(tmp_path, WHEEL, Role.DEQUEUE)
    ingest.close()
    assert not declare_stopped(tmp_path)
    dequeue.close()
    assert declare_stopped(tmp_path)
    assert State.open(tmp_path).stopped_cleanly
    assert open_locks(tmp_path) == []


def test_no_clean_stop_is_declared_for_what_a_boot_has_taken(tmp_path: Path) -> None:
    host = ManualHost()
    DataDirectory.start(tmp_path, WHEEL, Role.INGEST, fs=host).close()
    host.boot()
    assert not declare_stopped(tmp_path, host)
    ingest = DataDirectory.start(tmp_path, WHEEL, Role.INGEST, fs=host)
    with pytest.raises(RecoveryPending), ingest.locked():
        pass
    ingest.stop()
    assert not State.open(tmp_path, host).stopped_cleanly


def test_a_start_and_an_end_leave_no_lock_open(tmp_path: Path) -> None:
    DataDirectory.start(tmp_path, WHEEL, Role.INGEST).close()
    DataDirectory.start(tmp_path, WHEEL, Role.DEQUEUE).stop()
    assert open_locks(tmp_path) == []


def test_a_refused_start_leaves_no_lock_behind(tmp_path: Path) -> None:
    DataDirectory.start(tmp_path, WHEEL, Role.INGEST).close()
    for _ in range(3):
        with pytest.raises(ConfigError, match="precision_ms=50"):
            DataDirectory.start(tmp_path, replace(WHEEL, precision_ms=10), Role.INGEST)
    assert open_locks(tmp_path) == []


def test_a_lost_wheel_is_damage_and_a_lost_state_a_new_directory(tmp_path: Path) -> None:
    state = State.create(tmp_path, WHEEL.precision_ms, WHEEL.slots)
    # As if a kill had come before the wheel was made.
    directory = DataDirectory.start(tmp_path, WHEEL, Role.INGEST)
    assert directory.state.damage is Damage.NONE
    directory.close()
    spoil_timeline(tmp_path)
    directory = DataDirectory.start(tmp_path, WHEEL, Role.INGEST)
    assert directory.state.damage is Damage.CACHE_LOST
    directory.close()
    remove_timelines(tmp_path, [KIND], HOST_FS)
    directory = DataDirectory.start(tmp_path, WHEEL, Role.INGEST)
    assert directory.state.damage is Damage.FILES_LOST
    directory.close()
    (tmp_path / "state").unlink()
    directory = DataDirectory.start(tmp_path, WHEEL, Role.INGEST)
    assert directory.state.damage is Damage.NONE
    assert directory.state.uuid != state.uuid
    directory.close()


def test_a_damaged_state_is_set_aside(tmp_path: Path) -> None:
    DataDirectory.start(tmp_path, WHEEL, Role.INGEST).close()
    path = tmp_path / "state"
    damaged = b"?" * 100 + path.read_bytes()[100:]
    path.write_bytes(damaged)
    directory = DataDirectory.start(tmp_path, WHEEL, Role.INGEST)
    assert (tmp_path / "state.damaged").read_bytes() == damaged
    assert survey_files(directory).is_fresh
    directory.close()


# ---- where delivery goes on ----------------------------------------------------------------------


def progress(r: int, c: int, c1: int | None = None, d: int | None = None) -> Progress:
    """Both partitions alike."""
    part = PartitionProgress(r, c, c1, d)
    return Progress(0, 1, "uuid", 4, 7, EPOCHS, {P: part, Q: part})


def marks(offset: int) -> dict[TopicPartition, int]:
    return {P: offset, Q: offset}


CLOSE = Close(20, marks(5), 30, marks(9))
COMMIT = Commit(3, marks(11), {}, 11, applied=True)
DURABLE = Durable(2, marks(8), {}, 8, Close(10, marks(3), 15, marks(4)), 7, {}, 0)
LOCAL = Local("uuid", (4, 9), Damage.NONE, COMMIT, CLOSE, None, DURABLE, undone=False, pending=None)


@pytest.mark.parametrize(
    ("found", "r", "below"),
    [
        (progress(20, 5), 20, {}),  # at the end of the range before
        (progress(12, 4), 20, {}),  # the slots between were empty and told no one
        (progress(25, 9), 25, {}),  # in the middle of the range
        (progress(30, 9), 30, {}),  # at its end
        (progress(20, 5, 9, 6), 20, marks(6)),  # its first slot is half delivered
        (progress(29, 9, 9, 8), 29, marks(8)),  # its last one is
    ],
)
def test_after_a_kill_delivery_goes_on_in_the_closed_range(
    found: Progress, r: int, below: dict[TopicPartition, int]
) -> None:
    decision = Decision("intact", Keep.ALL, CLOSE, r, below)
    assert decide(found, LOCAL) == decision
    assert decide(found, replace(LOCAL, mirror=found)) == decision
    # A recovery that was begun has to be ended, whatever it was.
    assert decide(found, replace(LOCAL, undone=True)).case == "old copy"


@pytest.mark.parametrize(
    ("found", "close"),
    [
        (progress(31, 11), Close(31, marks(11), 31, marks(11))),
        (progress(30, 9, 12, 1), Close(30, marks(9), 31, marks(12))),
        (progress(77, 20, 25, 21), Close(77, marks(20), 78, marks(25))),
    ],
)
def test_files_older_than_the_progress_are_kept_and_completed(
    found: Progress, close: Close
) -> None:
    decision = decide(found, LOCAL)
    assert (decision.case, decision.keep, decision.close) == ("old copy", Keep.ALL, close)
    assert decision.delivered_slot == found.delivered_slot


@pytest.mark.parametrize("found", [progress(31, 9), progress(30, 9, 10, 1), progress(40, 9, 12, 1)])
def test_files_that_have_taken_more_than_a_later_closing_are_not_kept(found: Progress) -> None:
    # In the owner's files the rest lies in later slots, here perhaps below R.
    assert decide(found, LOCAL).keep is Keep.NOTHING


def test_files_that_cannot_have_led_to_the_progress_are_not_kept() -> None:
    # Slot 20 is half delivered, and was empty when the files closed it.
    decision = decide(progress(19, 5, 9, 1), LOCAL)
    assert (decision.case, decision.keep) == ("files lost", Keep.NOTHING)
    assert decision.close == Close(19, marks(5), 20, marks(9))


LOST = {"damage": Damage.CACHE_LOST}


@pytest.mark.parametrize(
    ("change", "case", "keep"),
    [
        (LOST, "power lost", Keep.DURABLE),
        ({**LOST, "durable": None}, "files lost", Keep.NOTHING),
        ({**LOST, "durable": replace(DURABLE, close=None)}, "files lost", Keep.NOTHING),
        ({"damage": Damage.FILES_LOST}, "files lost", Keep.NOTHING),
        ({"close": None}, "files lost", Keep.NOTHING),
        ({"uuid": "another"}, "taken over", Keep.NOTHING),
        ({"incarnations": (3, 5)}, "taken over", Keep.NOTHING),
    ],
)
def test_how_much_is_kept(change: dict[str, Any], case: str, keep: Keep) -> None:
    decision = decide(progress(28, 9), replace(LOCAL, **change))
    assert (decision.case, decision.keep) == (case, keep)
    assert decision.close == Close(28, marks(9), 28, marks(9))


def test_a_durable_close_page_is_kept_if_the_progress_lies_in_it() -> None:
    lost = replace(LOCAL, damage=Damage.CACHE_LOST)
    for r, known in ((10, 10), (12, 12), (7, 10)):
        decision = decide(progress(r, 4), lost)
        assert decision.keep is Keep.DURABLE
        assert (decision.close, decision.delivered_slot) == (DURABLE.close, known)


def test_what_was_decided_to_be_given_up_stays_given_up() -> None:
    for keep in Keep:
        record = RecoveryRecord("a case", keep, 5, "boot", 1)
        decision = decide(progress(28, 9), replace(LOCAL, undone=True, pending=record))
        assert decision.keep is keep


def test_a_fresh_directory_is_new_to_its_own_progress_and_follows_another() -> None:
    fresh = Local("uuid", (0, 0), Damage.NONE, NO_COMMIT, None, None, None, False, None)
    assert fresh.is_fresh
    first = replace(progress(100, 7), incarnation=0, epoch=0)
    close = Close(100, marks(7), 100, marks(7))
    assert decide(first, fresh) == Decision("new", Keep.NOTHING, close, 100, {})
    assert decide(progress(100, 7), fresh).case == "taken over"


@pytest.mark.parametrize(
    ("found", "mirrored"),
    [
        (progress(24, 9), progress(25, 9)),
        (progress(24, 9), progress(24, 9, 9, 1)),
        (progress(24, 9, 9, 3), progress(24, 9, 9, 4)),
        (progress(24, 9, 9, 3), progress(25, 9)),
    ],
)
def test_a_progress_older_than_the_files_is_refused(found: Progress, mirrored: Progress) -> None:
    with pytest.raises(RecoveryRefused, match="older than the local copy"):
        decide(found, replace(LOCAL, mirror=mirrored))
    assert decide(mirrored, replace(LOCAL, mirror=found)).case == "intact"


@pytest.mark.parametrize("damage", [Damage.CACHE_LOST, Damage.FILES_LOST])
def test_a_progress_older_than_the_durable_checkpoint_is_refused(damage: Damage) -> None:
    """The local copy may have been lost with the power, and be older still."""
    lost = replace(LOCAL, damage=damage, mirror=progress(5, 3))
    with pytest.raises(
        RecoveryRefused, match="durable checkpoint: it has slot 6, the checkpoint slot 7"
    ):
        decide(progress(6, 3), lost)
    assert decide(progress(7, 3), lost).delivered_slot >= 7
    # Neither what was given up counts, nor what another directory has left behind.
    given_up = RecoveryRecord("a case", Keep.NOTHING, 5, "boot", 1)
    assert decide(progress(6, 3), replace(lost, pending=given_up)).keep is Keep.NOTHING
    assert decide(progress(6, 3), replace(lost, uuid="another")).case == "taken over"


def test_a_standby_keeps_nothing_if_the_progress_is_older_than_its_durable_checkpoint() -> None:
    standby = replace(
        LOCAL, uuid="another", standby=True, damage=Damage.CACHE_LOST, mirror=progress(5, 3)
    )
    assert decide_to_follow(progress(7, 8), standby).keep is Keep.DURABLE
    assert decide_to_follow(progress(6, 8), standby).keep is Keep.NOTHING


def apart(p: PartitionProgress, q: PartitionProgress) -> Progress:
    return replace(progress(0, 0), partitions={P: p, Q: q})


@pytest.mark.parametrize(
    ("p", "q", "close", "below"),
    [
        ((20, 5), (24, 7), Close(20, {P: 5, Q: 7}, 24, {P: 5, Q: 7}), {}),
        ((20, 5, 6, 3), (24, 7, 9, 8), Close(20, {P: 5, Q: 7}, 25, {P: 6, Q: 9}), {P: 3}),
        ((20, 5, 6, 3), (20, 7), Close(20, {P: 5, Q: 7}, 21, {P: 6, Q: 7}), {P: 3}),
        ((20, 5), (19, 7, 9, 8), Close(19, {P: 5, Q: 7}, 20, {P: 5, Q: 9}), {Q: 8}),
    ],
)
def test_partitions_that_come_from_different_shards(
    p: tuple[int, ...], q: tuple[int, ...], close: Close, below: dict[TopicPartition, int]
) -> None:
    found = replace(
        apart(PartitionProgress(*p), PartitionProgress(*q)), owner=NOBODY, incarnation=1
    )
    assert decide(found, LOCAL) == Decision("taken over", Keep.NOTHING, close, close.lower, below)
    # Killed before the lower one has come to the higher one, everything is kept.
    ours = replace(found, owner="uuid", incarnation=4)
    local = replace(LOCAL, close=close)
    assert decide(ours, local) == Decision("intact", Keep.ALL, close, close.lower, below)


def test_a_partition_that_is_ahead_keeps_its_progress_until_the_shard_is_there() -> None:
    known = {P: PartitionProgress(20, 5, 6, 3, half_rows=4), Q: PartitionProgress(24, 7, 9, 8, 7)}
    close = Close(20, {P: 5, Q: 7}, 25, {P: 6, Q: 9})
    for r, below, expected in [
        (20, {P: 4}, PartitionProgress(20, 5, 6, 4, half_rows=5)),
        (20, {}, PartitionProgress(20, 5, 6, 3, half_rows=5)),
        (21, None, PartitionProgress(21, 6)),
        (22, {P: 4}, PartitionProgress(22, 6, 6, 4, half_rows=5)),
    ]:
        ahead = replace(known[Q], replied_below=9)
        assert advanced(known, close, r, below, {Q: 9}, {P[0]: 5}) == {P: expected, Q: ahead}
    assert advanced(known, close, 24, {P: 5}, {P: 4, Q: 1}, {P[0]: 3}) == {
        P: PartitionProgress(24, 6, 6, 5, half_rows=3, replied_below=4),
        Q: PartitionProgress(24, 7, 9, 8, 7, 1),
    }
    assert advanced(known, close, 24, {Q: 9}, {}, {})[Q].half_below == 9
    assert advanced(known, close, 25, None, {}, {})[Q] == PartitionProgress(25, 9)
    later = Close(25, {P: 6, Q: 9}, 30, {P: 11, Q: 12})
    assert advanced(known, later, 25, None, {}, {})[P] == PartitionProgress(25, 6)
    assert advanced(known, later, 30, None, {}, {})[P] == PartitionProgress(30, 11)


@pytest.mark.parametrize(
    ("shards", "left", "reason"),
    [(4, {P: PartitionProgress(1, 1)}, "shard 0 is sealed.*--to 4"), (2, {}, "no shard 0.*made 2")],
)
def test_a_sealed_shard_is_owned_by_no_one(
    shards: int, left: dict[TopicPartition, PartitionProgress], reason: str
) -> None:
    record = replace(progress(1, 1), partitions=left, sealed_for=shards)
    assert Progress.decode(record.encode()) == record
    with pytest.raises(RecoveryRefused, match=reason):
        require_fits(record, shard=0, shards=1, slot_config={"window": 1})


def test_other_settings_are_refused() -> None:
    ours = progress(1, 1)
    require_fits(ours, shard=0, shards=1, slot_config=VALUES)
    with pytest.raises(RecoveryRefused, match="shard 0 of 1, the configuration says 0 of 2"):
        require_fits(ours, shard=0, shards=2, slot_config=VALUES)
    other = VALUES | {"roll_window_ms": 2, "levels_ms": [1]}
    both = "levels_ms: was None, is .1.; roll_window_ms: was 1, is 2"
    with pytest.raises(RecoveryRefused, match=both) as refused:
        require_fits(ours, shard=0, shards=1, slot_config=other)
    assert "duewheel reconfigure" in str(refused.value)
    # What the newest epoch says, and not what was before.
    changed = replace(ours, epochs=ours.epochs.extended_by(other, {P: 5}))
    require_fits(changed, shard=0, shards=1, slot_config=other)
    with pytest.raises(RecoveryRefused, match="levels_ms"):
        require_fits(changed, shard=0, shards=1, slot_config=VALUES)


OWN = {"uuid": "uuid", "incarnations": (1, 4)}
COPY = {"uuid": "uuid", "incarnations": (1, 2)}
OTHER = {"uuid": "another", "incarnations": (0, 0)}
CLAIMED = {"uuid": "another", "incarnations": (4, 9)}  # by a start that did not live to say so
UNCLAIMED = {"uuid": "another", "incarnations": (4, 0)}
FRESH = {"uuid": "new", "incarnations": (0, 0), "close": None, "commit": NO_COMMIT}


@pytest.mark.parametrize(
    ("who", "silent_s", "take_over", "refused"),
    [
        (OWN, 0, False, ""),
        (COPY, 59, False, "another copy of the data directory uuid"),
        (COPY, 61, False, ""),
        (COPY, 0, True, ""),
        (FRESH, 59, False, "the data directory uuid, this one is new"),
        (FRESH, 61, False, ""),
        ({**FRESH, **LOST}, 61, False, ""),
        (OTHER, 1_000_000, False, "the data directory uuid, this one is another"),
        (OTHER, 0, True, ""),
        (CLAIMED, 0, False, ""),
        (UNCLAIMED, 0, False, "the data directory uuid, this one is another"),
    ],
)
def test_who_may_take_a_shard(
    who: dict[str, Any], silent_s: int, take_over: bool, refused: str
) -> None:
    def take() -> None:
        require_may_own(
            progress(1, 1),
            replace(LOCAL, **who),
            age_ms=lambda: silent_s * 1000,
            take_over_after_ms=60_000,
            take_over=take_over,
        )

    if refused:
        kind = Fenced if who["uuid"] == "another" else RecoveryPending
        with pytest.raises(kind, match=f"{refused}.*{silent_s} s old.*--take-over"):
            take()
    else:
        take()


def test_a_progress_record_is_read_as_it_was_written() -> None:
    written = Progress(
        1,
        4,
        "uuid",
        3,
        9,
        Epochs.first(VALUES).extended_by(
            {**VALUES, "levels": [1, 2]}, {P: 2**53, ("b.c-d", 11): 0}
        ),
        {("b.c-d", 11): PartitionProgress(5, 2**53, 7, 6, 3), P: PartitionProgress(5, 0)},
    )
    assert Progress.decode(written.encode()) == written
    assert Progress.decode(written.encode()).encode() == written.encode()
    for damaged in (b"", b"{}", b"[]", written.encode().replace(b'"format":2', b'"format":9')):
        with pytest.raises(RecoveryRefused, match="cannot be read"):
            Progress.decode(damaged)


def test_a_negative_offset_is_neither_written_nor_read() -> None:
    written = Progress(1, 4, "uuid", 3, 9, Epochs.first(VALUES), {P: PartitionProgress(5, 2**53)})
    mark, negative = (number.to_bytes(8, "little", signed=True) for number in (2**53, -1))
    with pytest.raises(RecoveryRefused, match="negative number in column c"):
        Progress.decode(written.encode().replace(mark, negative))
    with pytest.raises(AssertionError, match="negative"):
        replace(written, partitions={P: PartitionProgress(5, -1)}).encode()


@given(
    offset=st.integers(0, 12),
    slot=st.integers(-2, 12),
    r=st.integers(0, 10),
    c=st.integers(0, 10),
    half=st.none() | st.tuples(st.integers(0, 10), st.integers(0, 10)),
)
def test_what_is_done(offset: int, slot: int, r: int, c: int, half: tuple[int, int] | None) -> None:
    c1, d = half or (None, None)
    expected = offset < c and slot <= r
    if c1 is not None and d is not None and offset < c1 and offset < d:
        expected |= slot == r + 1 or (slot <= r and offset >= c)
    found = Progress(0, 1, "uuid", 0, 1, EPOCHS, {P: PartitionProgress(r, c, c1, d)})
    done = found.done(
        [Q, P], np.array([1, 0], np.int32), np.array([offset] * 2), np.array([slot] * 2)
    )
    assert done.tolist() == [expected, False]  # of Q nothing is known


# ---- what dequeue tells ingest -------------------------------------------------------------------


def test_ingest_believes_only_the_dequeue_that_lives(tmp_path: Path) -> None:
    dequeue = DataDirectory.start(tmp_path, WHEEL, Role.DEQUEUE)
    number = dequeue.state.count_dequeue_start()
    record = RecoveryRecord("intact", Keep.ALL, 0, HOST_FS.boot_id(), number)

    def decided() -> bool:
        return dequeue_has_decided(dequeue.state, tmp_path) == record

    assert not decided()
    record.write(tmp_path, HOST_FS)
    assert RecoveryRecord.read(tmp_path) == record
    assert decided()
    replace(record, boot_id=str(uuid.uuid4())).write(tmp_path, HOST_FS)
    assert not decided()
    replace(record, dequeue_start=number - 1).write(tmp_path, HOST_FS)
    assert not decided()
    record.write(tmp_path, HOST_FS)
    path = tmp_path / "recovery"
    path.write_bytes(path.read_bytes().replace(b"intact", b"Killed"))
    assert not decided()
    record.write(tmp_path, HOST_FS)
    assert decided()
    state = State.open(tmp_path)
    dequeue.close()
    assert dequeue_has_decided(state, tmp_path) is None


# ---- in which order a start works ----------------------------------------------------------------


class ObservedPublisher(RecordingPublisher):
    """Notes what a start asks of it."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.calls: list[str] = []

    def peek(self) -> Progress | None:
        self.calls.append("peek")
        return super().peek()

    def start(self) -> Progress | None:
        self.calls.append("take")
        return super().peek()


def test_the_shard_is_taken_only_once_the_callers_checks_have_passed(tmp_path: Path) -> None:
    """They run beside the first reading of the progress, and the next step fences the owner."""
    publisher = ObservedPublisher(ManualClock(1_800_000_000_000))
    config = DequeueConfig(0, 1, {})
    directory = DataDirectory.start(tmp_path, WHEEL, Role.DEQUEUE)
    first = first_progress(directory, config, {P: 0}, publisher.clock.now_ms())
    before = directory.state.incarnations

    def refuse() -> None:
        publisher.calls.append("refused")
        raise ConfigError("a topic is missing")

    with pytest.raises(ConfigError, match="is missing"):
        start(directory, publisher, config, first, take_over=False, before_claim=refuse)
    assert publisher.calls == ["peek", "refused"]
    assert publisher.committed == []
    assert directory.state.incarnations == before
    passed = partial(publisher.calls.append, "passed")
    start(directory, publisher, config, first, take_over=False, before_claim=passed)
    assert publisher.calls[2:] == ["peek", "passed", "take"]
    directory.close()
