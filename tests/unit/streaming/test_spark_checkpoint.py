"""Spark's checkpoint read as Spark reads it; foreign bytes refused; set aside and tidied up."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from duewheel.errors import CorruptFile
from duewheel.streaming.spark_checkpoint import (
    ASIDE_COUNT_MAX,
    Resume,
    end_offsets,
    resume_point,
    set_aside,
    settle_checkpoint,
)

Offsets = dict[str, dict[str, int]]

# As Spark 4.2 writes it, settings shortened.
METADATA = '{"batchWatermarkMs":0,"batchTimestampMs":1795160908590,"conf":{"a":"b"}}'


def plan(checkpoint: Path, batch_id: int, offsets: Offsets) -> None:
    path = checkpoint / "offsets" / str(batch_id)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"v1\n{METADATA}\n{json.dumps(offsets)}")


def commit(checkpoint: Path, batch_id: int) -> None:
    path = checkpoint / "commits" / str(batch_id)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text('v1\n{"nextBatchWatermarkMs":0}')


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return tmp_path / "spark"


def test_the_end_of_a_batch(checkpoint: Path) -> None:
    plan(checkpoint, 7, {"a": {"0": 5, "1": 0}, "b.c": {"12": 9}})
    assert end_offsets(checkpoint, 7) == {("a", 0): 5, ("a", 1): 0, ("b.c", 12): 9}


def test_nothing_there_says_nothing(checkpoint: Path) -> None:
    assert resume_point(checkpoint) is None
    (checkpoint / "offsets").mkdir(parents=True)
    (checkpoint / "offsets" / ".0.c0ffee.tmp").write_text("v1\n")
    assert resume_point(checkpoint) is None


def test_batch_0_is_run_again_from_an_offset_that_no_file_has(checkpoint: Path) -> None:
    plan(checkpoint, 0, {"a": {"0": 8}})
    assert resume_point(checkpoint) == Resume(0, {}, {("a", 0): 8})


def test_goes_on_behind_a_committed_batch(checkpoint: Path) -> None:
    for batch_id in range(11):
        plan(checkpoint, batch_id, {"a": {"0": 8 + batch_id}})
        commit(checkpoint, batch_id)
    assert resume_point(checkpoint) == Resume(11, {("a", 0): 18})


def test_a_planned_batch_is_run_again_from_the_end_of_the_one_before(checkpoint: Path) -> None:
    plan(checkpoint, 9, {"a": {"0": 8}})
    commit(checkpoint, 9)
    plan(checkpoint, 10, {"a": {"0": 12, "1": 4}})
    assert resume_point(checkpoint) == Resume(10, {("a", 0): 8}, {("a", 0): 12, ("a", 1): 4})


@pytest.mark.parametrize(("end", "kept"), [(12, True), (11, False)])
def test_a_planned_batch_must_end_within_the_log(checkpoint: Path, end: int, *, kept: bool) -> None:
    """What is written there later would count as read, and be lost."""
    plan(checkpoint, 9, {"a": {"0": 8}})
    commit(checkpoint, 9)
    plan(checkpoint, 10, {"a": {"0": 12}})
    settle_checkpoint(checkpoint, {("a", 0): 8}, {("a", 0): 8}, {("a", 0): end})
    assert checkpoint.exists() == kept


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0\0\0\0",
        b"v2\n{}\n{}",
        b"v1\n{}",
        b"v1\n{}\n-",
        b"v1\n{}\n{}\n{}",
        b"v1\nnonsense\n{}",
        b'v1\n{}\n{"a": 5}',
        b'v1\n{}\n{"a": {"zero": 5}}',
        b'v1\n{}\n{"a": {"0": -2}}',
        b'v1\n{}\n{"a": {"0": true}}',
        b'v1\n{}\n{"a": {"0": 5',
        b"v1\n[]\n{}",
        b"v1\n{}\n\xff\xfe",
    ],
)
def test_foreign_bytes_are_refused(checkpoint: Path, content: bytes) -> None:
    plan(checkpoint, 0, {})
    (checkpoint / "offsets" / "0").write_bytes(content)
    commit(checkpoint, 0)
    with pytest.raises(CorruptFile) as caught:
        resume_point(checkpoint)
    assert caught.value.path == checkpoint / "offsets" / "0"


def test_missing_pieces_are_refused(checkpoint: Path) -> None:
    plan(checkpoint, 5, {"a": {"0": 1}})
    with pytest.raises(CorruptFile, match="missing"):
        resume_point(checkpoint)
    commit(checkpoint, 6)
    with pytest.raises(CorruptFile, match="never planned"):
        resume_point(checkpoint)
    with pytest.raises(CorruptFile, match="missing"):
        end_offsets(checkpoint, 6)


@pytest.mark.parametrize(
    ("end", "log_end", "kept"),
    [
        ({"a": {"0": 8}}, 8, True),
        ({"a": {"0": 2}}, 8, True),  # it begins at the marks: it is empty
        ({"a": {"0": 8}}, 7, False),
        ({"a": {"0": 8, "1": 0}}, 8, False),
        ({"b": {"0": 8}}, 8, False),
    ],
)
def test_batch_0_is_run_again_where_it_can_skip_nothing(
    checkpoint: Path, end: Offsets, log_end: int, *, kept: bool
) -> None:
    plan(checkpoint, 0, end)
    settle_checkpoint(checkpoint, {("a", 0): 3}, {("a", 0): 3}, {("a", 0): log_end})
    assert checkpoint.exists() == kept


def test_an_empty_commit_is_refused(checkpoint: Path) -> None:
    plan(checkpoint, 0, {"a": {"0": 1}})
    commit(checkpoint, 0)
    (checkpoint / "commits" / "0").write_bytes(b"")
    with pytest.raises(CorruptFile):
        resume_point(checkpoint)


def test_set_aside_keeps_the_newest_few(checkpoint: Path) -> None:
    assert set_aside(checkpoint) is None
    for number in range(1, 13):
        plan(checkpoint, number, {})
        aside = set_aside(checkpoint)
        assert aside is not None
        assert (aside / "offsets" / str(number)).exists()
        assert not checkpoint.exists()
    left = sorted(path.name for path in checkpoint.parent.iterdir())
    assert len(left) == ASIDE_COUNT_MAX
    assert left == ["spark.aside-10", "spark.aside-11", "spark.aside-12"]
