"""Everything that is read back before a start, with other bytes in it: refused with a reason, or
read as something that can be worked with.
"""

from __future__ import annotations

import json
import mmap
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.harness import state_pages

from duewheel.checkpoints import live_fields, progress_mirror, state_file
from duewheel.checkpoints.cancel_bounds import EVERY_OFFSET, CancelBounds
from duewheel.checkpoints.cancel_bounds import FILE_NAME as CANCEL_BOUNDS_FILE
from duewheel.checkpoints.checksummed_pages import PagePair
from duewheel.checkpoints.commit_and_close_pages import Close, Commit, HourLengths, Marks
from duewheel.checkpoints.config_epochs import Epochs
from duewheel.checkpoints.dlq_replay_position import ReplayPosition
from duewheel.checkpoints.durable_checkpoint import Durable
from duewheel.checkpoints.fs import HOST_FS, checked_line
from duewheel.checkpoints.local_state import FILE_NAME as RECOVERY_FILE
from duewheel.checkpoints.local_state import Keep, Local, RecoveryRecord
from duewheel.checkpoints.progress import PartitionProgress, Progress
from duewheel.checkpoints.progress_mirror import Mirror
from duewheel.checkpoints.quota_waiting import FILE_NAME as QUOTA_WAITING_FILE
from duewheel.checkpoints.quota_waiting import QuotaWaiting
from duewheel.checkpoints.state_file import Damage, State
from duewheel.checkpoints.timer_topics_file import FILE_NAME as TIMER_TOPICS_FILE
from duewheel.checkpoints.timer_topics_file import TopicSet
from duewheel.errors import ConfigError, CorruptFile, DuewheelError, RecoveryRefused
from duewheel.streaming.batch_attempt import FILE_NAME as BATCH_LIMIT_FILE
from duewheel.streaming.batch_attempt import Attempt
from duewheel.streaming.batch_plan import ROWS_MIN
from duewheel.streaming.batch_size import rows_after_failure
from duewheel.streaming.spark_checkpoint import resume_point
from duewheel.wheel.recovery.kept_files import decide

Change = Callable[[st.DataObject, bytes], bytes]

MARKS: Marks = {("orders.delayed", 0): 120, ("orders.delayed", 11): 7}
CLOSE = Close(900, {("orders.delayed", 0): 100}, 1_000, MARKS)
HOURS = {500_000: HourLengths(5_200, 12_345, 5_148), 500_001: HourLengths(52, 99, 52)}
PARTITIONS = {
    ("orders.delayed", 0): PartitionProgress(950, 100, 120, 110, half_rows=9),
    ("orders.delayed", 11): PartitionProgress(950, 7, 7, 0, half_rows=9),
}
VALUES = {"precision_ms": 50, "roll_window_ms": 86_400_000}
EPOCHS = Epochs.first(VALUES).extended_by({**VALUES, "levels_ms": [1]}, MARKS)
PROGRESS = Progress(0, 1, "a-uuid", 2, 1, EPOCHS, PARTITIONS)
LOCAL = Local(
    "a-uuid",
    (2, 3),
    Damage.NONE,
    Commit(2, MARKS, HOURS, 80, applied=True),
    CLOSE,
    PROGRESS,
    None,
    undone=False,
    pending=None,
)
NOW_MS = 1_800_000_000_000
INT64 = range(-(2**63), 2**63)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


def require_marks(marks: Marks) -> None:
    """Places and offsets that the engine can work with."""
    for (topic, partition), offset in marks.items():
        assert type(topic) is str
        assert type(partition) is int and partition in INT64
        assert type(offset) is int and offset in INT64


def require_close(close: Close) -> None:
    assert type(close.lower) is int and type(close.floor) is int
    assert close.lower in INT64 and close.floor in INT64
    require_marks(close.marks)
    require_marks(close.marks_before)


def require_commit(commit: Commit) -> None:
    assert type(commit.batch) is int and commit.batch in INT64
    assert type(commit.placed) is int and commit.placed in INT64
    require_marks(commit.marks)
    for hour, lengths in commit.hours.items():
        assert type(hour) is int
        for length in (*lengths.lengths, lengths.batch_from, lengths.cancelled_from):
            assert type(length) is int and length in INT64
    assert all(type(each) is str for pair in commit.topic_ids.items() for each in pair)
    require_lengths(commit.cancels)


def require_lengths(segments: Mapping[int, tuple[int, ...]]) -> None:
    for hour, lengths in segments.items():
        assert type(hour) is int and len(lengths) == 2
        assert all(type(length) is int and length in INT64 for length in lengths)


# ---- the state file --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def written(folder: Path) -> Iterator[State]:
    """A state file with two pages of every kind."""
    state = State.create(folder, 50, 64)
    for batch in (1, 2):
        ids = {"orders.delayed": "an-id"}
        state.write_commit(Commit(batch, MARKS, HOURS, 40 * batch, ids, 3, {500_000: (104, 300)}))
        state.write_close(CLOSE._replace(floor=CLOSE.floor + batch))
        state.write_mirror(Mirror(940 + batch, 20 * batch, PROGRESS.encode()))
    yield state
    state.release()


PAGES = {
    "identity": (0, 200),
    "commit": (state_pages.COMMIT, 400),
    "commit, the other": (state_pages.COMMIT + state_file.PAGE_BYTES, 400),
    "close": (state_pages.CLOSE, 400),
    "close, the other": (state_pages.CLOSE + state_file.PAGE_BYTES, 400),
}


@given(data=st.data(), place=st.sampled_from(sorted(PAGES)))
def test_a_damaged_state_file(
    written: State, folder: Path, damage: Change, data: st.DataObject, place: str
) -> None:
    whole = written.path.read_bytes()
    at, size = PAGES[place]
    changed = damage(data, whole[at : at + size])[:size].ljust(size, b"\0")
    other = folder / "damaged"
    other.mkdir(exist_ok=True)
    (other / live_fields.FILE_NAME).write_bytes(whole[:at] + changed + whole[at + size :])
    try:
        found = State.open(other)
    except (CorruptFile, ConfigError):
        return
    try:
        with suppress(CorruptFile):
            # What was written last, or before that; nothing else.
            commit = found.commit()
            assert (commit.batch, commit.placed) in {(1, 40), (2, 80)}
            assert (commit.marks, commit.hours) == (MARKS, HOURS)
        with suppress(CorruptFile):
            assert found.close() in [CLOSE._replace(floor=CLOSE.floor + n) for n in (1, 2)]
    finally:
        found.release()


@given(data=st.data(), size=st.integers(0, 2_000_000))
def test_a_state_file_of_another_length(
    written: State, folder: Path, data: st.DataObject, size: int
) -> None:
    whole = written.path.read_bytes()
    other = folder / "cut"
    other.mkdir(exist_ok=True)
    (other / live_fields.FILE_NAME).write_bytes(whole[:size].ljust(size, b"\0"))
    if size != len(whole):
        with pytest.raises(CorruptFile):
            State.open(other)


@given(data=st.data())
def test_whole_pages_of_another_shape(written: State, alter: Change, data: st.DataObject) -> None:
    with written.path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        places = (state_pages.COMMIT, state_pages.CLOSE)
        pairs = [PagePair(mapped, at, state_file.PAGE_BYTES) for at in places]
        before = [page.payload for page in [pair.read() for pair in pairs] if page is not None]
        others = [alter(data, payload)[:100_000] for payload in before]
        for pair, payload in zip(pairs, others, strict=True):
            pair.write(payload)
        try:
            with suppress(CorruptFile):
                require_commit(written.commit())
            with suppress(CorruptFile):
                found = written.close()
                assert found is not None
                require_close(found)
        finally:
            for pair, payload in zip(pairs, before, strict=True):
                pair.write(payload)


@given(data=st.data())
def test_a_damaged_mirror(
    written: State, folder: Path, damage: Change, data: st.DataObject
) -> None:
    path = folder / "damaged mirror"
    path.write_bytes(damage(data, written.path.with_name(progress_mirror.FILE_NAME).read_bytes()))
    with suppress(CorruptFile):
        # The older one, if its page alone is whole.
        written_once = [Mirror(940 + batch, 20 * batch, PROGRESS.encode()) for batch in (1, 2)]
        assert progress_mirror.read(path) in written_once


# ---- durable checkpoint, recovery record -------------------------------------------------------


LENGTHS = {500_000: (5_200, 12_345, 48)}
SEGMENTS = {500_000: (104, 300)}
DURABLE = Durable(2, MARKS, LENGTHS, 80, CLOSE, 940, {"orders.delayed": "id"}, 3, SEGMENTS)


def read_durable(folder: Path) -> None:
    try:
        found = Durable.read(folder)
    except CorruptFile:
        return
    assert found is not None
    assert type(found.delivered_slot) is int and found.delivered_slot in INT64
    hours = {hour: HourLengths.applied(lengths) for hour, lengths in found.hours.items()}
    require_commit(Commit(found.batch, found.marks, hours, found.placed, found.topic_ids))
    if found.close is not None:
        require_close(found.close)


@given(data=st.data())
def test_a_damaged_durable_checkpoint(folder: Path, damage: Change, data: st.DataObject) -> None:
    DURABLE.write(folder, HOST_FS)
    path = folder / "durable"
    whole = path.read_bytes()
    path.write_bytes(damage(data, whole))
    try:
        assert Durable.read(folder) == DURABLE
    except CorruptFile:
        assert path.read_bytes() != whole


@given(data=st.data())
def test_a_durable_checkpoint_of_another_shape(
    folder: Path, alter: Change, data: st.DataObject
) -> None:
    DURABLE.write(folder, HOST_FS)
    path = folder / "durable"
    _, _, text = path.read_bytes().partition(b" ")
    path.write_bytes(checked_line(alter(data, text)))
    read_durable(folder)


@given(data=st.data(), checked=st.booleans())
def test_another_batch_limit(
    folder: Path, damage: Change, alter: Change, data: st.DataObject, checked: bool
) -> None:
    """It is a hint only: what cannot be read is not there."""
    Attempt(MARKS, 240).write(folder)
    path = folder / BATCH_LIMIT_FILE
    whole = path.read_bytes()
    text = whole.partition(b" ")[2]
    path.write_bytes(checked_line(alter(data, text)) if checked else damage(data, whole))
    found = Attempt.read(folder)
    if found is not None:
        require_marks(found.marks)
        assert type(found.rows) is int and rows_after_failure(found.rows, found.rows) >= ROWS_MIN
        assert type(found.has_failed(MARKS, unfinished=True)) is bool


@given(data=st.data(), checked=st.booleans())
def test_other_bounds_of_cancels(
    folder: Path, damage: Change, alter: Change, data: st.DataObject, checked: bool
) -> None:
    """What is not whole says nothing: ingest then takes nothing on disk for proof."""
    bounds = CancelBounds(900, {**MARKS, ("bills.delayed", 2): EVERY_OFFSET})
    bounds.write(folder, HOST_FS)
    path = folder / CANCEL_BOUNDS_FILE
    line = path.read_bytes()
    text = line.partition(b" ")[2]
    path.write_bytes(checked_line(alter(data, text)) if checked else damage(data, line))
    found = CancelBounds.read(folder)
    if checked and found is not None:
        assert type(found.since) is int and found.since in INT64
        require_marks(found.blind)
    elif found is not None:
        assert found == bounds


@given(data=st.data(), checked=st.booleans())
def test_other_messages_that_wait(
    folder: Path, damage: Change, alter: Change, data: st.DataObject, checked: bool
) -> None:
    """It is a hint only: what cannot be read says that nothing waits."""
    waiting = QuotaWaiting(NOW_MS, {("orders.delayed", 0): (5, 120), ("bills", 11): (0, 7)})
    waiting.write(folder)
    path = folder / QUOTA_WAITING_FILE
    line = path.read_bytes()
    text = line.partition(b" ")[2]
    path.write_bytes(checked_line(alter(data, text)) if checked else damage(data, line))
    found = QuotaWaiting.read_valid(folder, NOW_MS)
    assert set(found.by_topic) <= {topic for topic, _ in found.waiting}
    assert all(count >= 0 for count in found.by_topic.values())
    below = found.below(MARKS)
    assert below.keys() == MARKS.keys() and all(below[p] <= MARKS[p] for p in MARKS)
    if not checked:
        assert found in [waiting, QuotaWaiting()]


@given(data=st.data(), checked=st.booleans())
def test_other_timer_topics(
    folder: Path, damage: Change, alter: Change, data: st.DataObject, checked: bool
) -> None:
    topics = TopicSet(("bills", "orders.delayed"), {"x": "compacted"}, {"bills": "cut short"})
    topics.write(folder)
    path = folder / TIMER_TOPICS_FILE
    line = path.read_bytes()
    text = line.partition(b" ")[2]
    path.write_bytes(checked_line(alter(data, text)) if checked else damage(data, line))
    found = TopicSet.read(folder)
    if checked and found is not None:
        named = [*found.topics, *found.left_out.items(), *found.faulty.items()]
        assert json.dumps(named, ensure_ascii=False).encode()
    elif found is not None:
        assert found == topics


@given(data=st.data(), checked=st.booleans())
def test_another_recovery_record(
    folder: Path, damage: Change, alter: Change, data: st.DataObject, checked: bool
) -> None:
    record = RecoveryRecord("intact", Keep.ALL, 2, "boot", 3)
    record.write(folder, HOST_FS)
    path = folder / RECOVERY_FILE
    line = path.read_bytes()
    _, _, text = line.partition(b" ")
    path.write_bytes(checked_line(alter(data, text)) if checked else damage(data, line))
    found = RecoveryRecord.read(folder)
    if checked and found is not None:
        assert (type(found.case), type(found.boot_id), type(found.dequeue_start)) == (str, str, int)
        assert type(found.keep) is Keep and type(found.generation) is int
    elif found is not None:
        assert found == record


# ---- records in the state topic ----------------------------------------------------------------


def work_with(value: bytes) -> None:
    try:
        found = Progress.decode(value)
        decide(found, LOCAL)
    except RecoveryRefused:
        return
    assert Progress.decode(found.encode()) == found
    assert all(
        p.delivered_slot in INT64 and p.delivered_mark in INT64 for p in found.partitions.values()
    )


@given(data=st.data())
def test_a_damaged_progress_record(damage: Change, data: st.DataObject) -> None:
    work_with(damage(data, PROGRESS.encode()))


@given(data=st.data())
def test_a_progress_record_of_another_shape(alter: Change, data: st.DataObject) -> None:
    head, _, columns = PROGRESS.encode().partition(b"\n")
    work_with(alter(data, head) + b"\n" + columns)


@given(value=st.binary(max_size=100))
def test_any_bytes_instead_of_a_progress_record(value: bytes) -> None:
    work_with(value)


def replayed_up_to(value: bytes) -> None:
    try:
        found = ReplayPosition.decode(value, "an-id")
    except DuewheelError:
        return
    for partition in (0, 3):
        assert found.start(partition, "bad_header", "timers") in INT64
    found = found.moved(0, 12, None, None)
    again = ReplayPosition.decode(found.encode(), "an-id")
    assert again.encode() == found.encode()


def replay_position() -> bytes:
    position = ReplayPosition("an-id")
    position = position.moved(0, 12, "bad_header", None)
    position = position.moved(3, 7, None, None)
    position = position.moved(3, 9, None, "timers")
    return position.encode()


@given(data=st.data())
def test_a_damaged_replay_position(damage: Change, data: st.DataObject) -> None:
    replayed_up_to(damage(data, replay_position()))


@given(data=st.data())
def test_a_replay_position_of_another_shape(alter: Change, data: st.DataObject) -> None:
    replayed_up_to(alter(data, replay_position()))


# ---- Spark's checkpoint ------------------------------------------------------------------------

METADATA = b'{"batchWatermarkMs":0,"batchTimestampMs":1795160908590,"conf":{"a":"b"}}'
OFFSETS = b'{"orders.delayed":{"0":120,"11":7}}'
SPARK_FILES = {
    "offsets/0": b"v1\n" + METADATA + b"\n" + OFFSETS,
    "offsets/1": b"v1\n" + METADATA + b"\n" + OFFSETS,
    "commits/0": b'v1\n{"nextBatchWatermarkMs":0}',
    "commits/1": b'v1\n{"nextBatchWatermarkMs":0}',
}


@given(
    data=st.data(),
    names=st.sets(st.sampled_from(sorted(SPARK_FILES)), min_size=1),
    place=st.sampled_from(sorted(SPARK_FILES)),
    whole_json=st.booleans(),
)
def test_another_checkpoint_of_sparks(
    tmp_path_factory: pytest.TempPathFactory,
    damage: Change,
    alter: Change,
    data: st.DataObject,
    names: set[str],
    place: str,
    whole_json: bool,
) -> None:
    checkpoint = tmp_path_factory.mktemp("spark")
    for name in names | {place}:
        path = checkpoint / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(SPARK_FILES[name])
    path = checkpoint / place
    head, _, last = SPARK_FILES[place].rpartition(b"\n")
    path.write_bytes(
        head + b"\n" + alter(data, last) if whole_json else damage(data, SPARK_FILES[place])
    )
    try:
        found = resume_point(checkpoint)
    except CorruptFile:
        return
    if found is not None:
        for offsets in (found.offsets, found.until):
            require_marks(offsets)
            assert all(p >= 0 and p < 2**31 and o >= 0 for (_, p), o in offsets.items())
            json.dumps({topic: {str(p): o} for (topic, p), o in offsets.items()})
