"""A shard with the most partitions that it has room for, and with more."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.harness.progress_rows import NOW, partitions_of, progress_of

from duewheel.checkpoints import progress_mirror
from duewheel.checkpoints.commit_and_close_pages import Close, Commit
from duewheel.checkpoints.partition_limit import beyond_room
from duewheel.checkpoints.progress import RECORD_BYTES_MAX, Progress
from duewheel.checkpoints.progress_mirror import Mirror
from duewheel.checkpoints.state_file import State
from duewheel.errors import CorruptFile, RecoveryRefused


@pytest.mark.parametrize(("topics", "each"), [(500, 100), (22_000, 1)])
def test_all_that_there_is_room_for_fits_everywhere(tmp_path: Path, topics: int, each: int) -> None:
    places = partitions_of(topics, each)
    names = dict.fromkeys(topic for topic, _ in places)
    assert beyond_room(dict.fromkeys(names, each)) == {}
    full = progress_of(places)
    full.require_room()
    full.require_publishable()
    assert Progress.decode(full.encode()) == full

    state = State.create(tmp_path, 50, 64)
    marks = {place: part.delivered_mark for place, part in full.partitions.items()}
    before = {place: part.half_below or 0 for place, part in full.partitions.items()}
    close = Close(NOW, before, NOW + 1, marks)
    for batch in (1, 2):
        state.write_commit(Commit(batch, marks, {}, 0, full.topic_ids))
        state.write_mirror(Mirror(NOW, 5, full.encode()))
        state.restart_close(close)
    assert state.commit().marks == marks
    assert state.close() == close
    assert state.mirror() == Mirror(NOW, 5, full.encode())
    state.release()


def test_a_topic_beyond_the_room_is_named_with_the_numbers() -> None:
    counts = {"small": 10, "large": 1_990, "third": 1_000}
    beyond = beyond_room(counts, room_bytes=100_000)
    assert beyond.keys() == {"large"}
    assert "1990 partitions of it" in beyond["large"] and "duewheel reshard" in beyond["large"]
    kept = beyond_room(counts, {"large": 1_990}, 200_000)
    assert kept.keys() == {"third"}, "the largest is in the records already"
    assert beyond_room(counts, {"deleted": 1_000}, 100_000).keys() == {"large", "third"}


def test_a_topic_that_has_grown_displaces_no_other() -> None:
    """Its owner has added partitions, also to one that was taken before."""
    taken = {"a.timers": 4, "other.timers": 4}
    beyond = beyond_room({"a.timers": 2_001, "other.timers": 4, "new.timers": 4}, taken)
    assert beyond.keys() == {"a.timers"}
    assert "one topic may have 2000" in beyond["a.timers"]
    many = {f"t{n}": 2_000 for n in range(40)} | {"small": 50}
    assert set(beyond_room(many)) <= {f"t{n}" for n in range(40)}
    assert beyond_room(many)


def test_a_progress_that_is_too_large_is_refused_before_it_is_published() -> None:
    some = progress_of(partitions_of(10, 10))
    with pytest.raises(RecoveryRefused, match=r"100 partitions in 10 topics .* takes 5000"):
        some.require_publishable(5_000)
    with pytest.raises(RecoveryRefused, match="has room for 5000"):
        some.require_room(5_000)
    assert len(some.encode()) < RECORD_BYTES_MAX


def test_a_mirror_that_is_lost_or_damaged_is_told(tmp_path: Path) -> None:
    state, path = State.create(tmp_path, 50, 64), tmp_path / progress_mirror.FILE_NAME
    assert state.mirror() is None
    state.write_mirror(Mirror(3, 4, b"record"))
    state.restart_close(Close(1, {}, 2, {}))
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(CorruptFile, match="no mirror"):
        state.mirror()
    path.unlink()
    with pytest.raises(CorruptFile, match="missing"):
        state.mirror()
    state.release()


def test_a_write_of_the_mirror_that_is_cut_short_leaves_the_one_before(tmp_path: Path) -> None:
    """Also the next one, and one that is larger than those before."""
    state, path = State.create(tmp_path, 50, 64), tmp_path / progress_mirror.FILE_NAME
    for number in range(4):
        state.write_mirror(Mirror(number, number, b"record" * number))
    before, earlier, whole = path.read_bytes(), Mirror(3, 3, b"record" * 3), Mirror(4, 0, b"later")
    state.write_mirror(whole)
    after = path.read_bytes()
    assert len(after) == len(before), "in its place"
    first = next(at for at in range(len(after)) if after[at] != before[at])
    for end in range(first, first + 40):
        path.write_bytes(after[:end] + before[end:])
        assert state.mirror() == (whole if after[end:] == before[end:] else earlier)
        state.write_mirror(whole)
        assert state.mirror() == whole
    large = Mirror(5, 0, bytes(50_000))
    state.write_mirror(large)
    assert state.mirror() == large
    state.release()
