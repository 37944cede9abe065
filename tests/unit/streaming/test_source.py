"""Where batches end, and who reads what of them."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadMaxRows

from duewheel.checkpoints.commit_and_close_pages import marks_from, marks_to
from duewheel.checkpoints.state_file import State
from duewheel.kafka.log.list_offsets_times import EARLIEST
from duewheel.schemas.batches import TopicPartition
from duewheel.streaming.batch_attempt import FILE_NAME, Attempt
from duewheel.streaming.batch_plan import Offsets, batch_ends, divide
from duewheel.streaming.early_ends import EarlyEnds, offsets_from, offsets_to, waiting_far_ahead
from duewheel.streaming.source import SourceOptions, TimerReader
from duewheel.streaming.task_share import TaskSettings

A, B, C = ("a", 0), ("a", 1), ("b", 0)
TASK = TaskSettings({"bootstrap_servers": ["one:9092"]}, ["a", "b"], "epochs", "dead", "folder")


@dataclass
class Brokers:
    """What the reader of a source needs.

    Attributes:
        first, last: starts and ends of the logs in the metadata.
        grows_to: the ends behind as many looks at them as the list has entries.
        looks: how often the logs' ends were read.
        waits: from where the source has waited for their word.
        answers_at_once: what they say although there is nothing to read.
    """

    first: Offsets
    last: Offsets
    grows_to: list[Offsets] = field(default_factory=list)
    looks: int = 0
    waits: list[Offsets] = field(default_factory=list)
    answers_at_once: bool | None = None

    def partitions(self) -> list[TopicPartition]:
        return list(self.last)

    def starts(self, partitions: Iterable[TopicPartition], *, missing_ok: bool = False) -> Offsets:
        return {p: self.first[p] for p in partitions if p in self.first or not missing_ok}

    def ends(
        self, partitions: Iterable[TopicPartition], *, committed: bool, missing_ok: bool = False
    ) -> Offsets:
        assert committed
        self.looks += 1
        if self.grows_to:
            self.last = self.grows_to.pop(0)
        return {p: self.last[p] for p in partitions if p in self.last or not missing_ok}

    def await_news(self, positions: Offsets, wait_s: float) -> bool:
        self.waits.append(dict(positions))
        if self.answers_at_once is not None:
            return self.answers_at_once
        if self.grows_to:
            return True
        time.sleep(wait_s)
        return False


class Source(TimerReader):
    """The source of one query.

    Attributes:
        brokers: that it asks.
    """

    def __init__(self, starts: Offsets, brokers: Brokers, poll_ms: int = 0, **more: Any) -> None:
        self.brokers = brokers
        more.setdefault("folder", "none")
        options = SourceOptions(
            TASK, starts, rows_max=100, bytes_max=1_000, poll_ms=poll_ms, **more
        )
        super().__init__(options, tasks=2)

    @property
    def _kafka(self) -> Any:
        return self.brokers

    @property
    def _news(self) -> Any:
        return self.brokers

    def next_end(self, start: Offsets) -> Offsets:
        return marks_from(self.latestOffset(marks_to(start), ReadMaxRows(100)))

    def ranges(
        self, start: Offsets, end: Offsets, begins: Offsets | None = None
    ) -> dict[TopicPartition, tuple[int, int]]:
        shares = self.partitions(marks_to(start), offsets_to(end, begins or {}))
        return {p: of for share in shares for p, of in share.ranges.items()}  # type: ignore[attr-defined]


def test_a_query_begins_at_the_marks_and_new_partitions_at_their_logs_start() -> None:
    source = Source({A: 5, B: EARLIEST}, Brokers({A: 0, B: 2, C: 3}, {A: 6, B: 4, C: 4}))
    begun = marks_from(source.initialOffset())
    assert begun == {A: 5, B: 2}
    assert source.next_end(begun) == {A: 6, B: 4, C: 4}
    assert source.ranges(begun, {A: 6, B: 4, C: 4}) == {A: (5, 6), B: (2, 4), C: (3, 4)}


def test_batch_0_that_is_repeated_begins_at_the_marks_of_now() -> None:
    """Its end is that of the first time, below the marks or above them."""
    source = Source({A: 5, B: 9}, Brokers({A: 0, B: 0}, {A: 9, B: 9}))
    assert source.ranges(marks_from(source.initialOffset()), {A: 7, B: 8}) == {A: (5, 7)}


def test_a_partition_that_metadata_lacks_for_a_moment_is_not_read_again() -> None:
    brokers = Brokers({A: 0, C: 0}, {A: 6})
    source, begun = Source({A: 5, C: 7}, brokers), {A: 5, C: 7}
    end = source.next_end(begun)
    assert end == {A: 6, C: 7}
    brokers.last = {A: 6, C: 8}
    assert source.ranges(end, source.next_end(end)) == {C: (7, 8)}


def test_a_share_of_a_deleted_topic_delays_no_other_partition() -> None:
    """A shard's partitions are given, whatever the metadata has."""
    brokers = Brokers({A: 0}, {A: 6, B: 9})
    source = Source({A: 5, B: EARLIEST, C: 7}, brokers, only=True)
    assert source.next_end({A: 5, C: 7}) == {A: 6, C: 7}
    brokers.first[B] = 2
    assert source.next_end({A: 6, C: 7}) == {A: 6, B: 9, C: 7}
    assert source.reportLatestOffset() == marks_to({A: 6, B: 9})


def test_a_topic_over_its_quota_stays_behind(tmp_path: Path) -> None:
    State.create(tmp_path, 50, 1_000).release()
    began_s = time.monotonic()
    brokers, begun = Brokers({A: 0, C: 0}, {A: 10**6, C: 9}), {A: 5, C: 7}
    source = Source(begun, brokers, quotas={"a": 1_000}, data_dir=str(tmp_path))
    ends = [source.next_end(begun)]
    time.sleep(0.02)
    ends.append(source.next_end(begun))
    elapsed_ms = (time.monotonic() - began_s) * 1_000
    assert ends[0][C] == 9
    # The clock counts whole milliseconds: a part of one may be missing.
    assert ends[0][A] + 19 <= ends[1][A] <= 5 + 1 + elapsed_ms, "one in each millisecond"


def test_a_quiet_log_is_looked_at_again_before_spark_is_told() -> None:
    brokers = Brokers({A: 0}, {A: 5}, [{A: 5}, {A: 5}, {A: 6}, {A: 7}])
    assert Source({A: 5}, brokers, poll_ms=1).next_end({A: 5}) == {A: 6}
    assert brokers.grows_to == [{A: 7}]


def test_the_brokers_say_when_a_quiet_log_is_to_be_looked_at() -> None:
    """A look ten times a second would be the most of an idle shard's processor time."""
    brokers = Brokers({A: 0}, {A: 5})
    source = Source({A: 5}, brokers, poll_ms=100)
    assert source.next_end({A: 5}) == {A: 5}
    brokers.last = {A: 6}
    assert source.next_end({A: 5}) == {A: 5}, "without their word nobody looks"
    assert brokers.waits == [{A: 5}] * 2
    time.sleep(1)
    assert source.next_end({A: 5}) == {A: 6}, "but once a second"


@pytest.mark.parametrize("answers_at_once", [False, True])
def test_brokers_that_answer_at_once_are_asked_no_more_often(*, answers_at_once: bool) -> None:
    """As with an error, again and again."""
    brokers = Brokers({A: 0}, {A: 5}, answers_at_once=answers_at_once)
    assert Source({A: 5}, brokers, poll_ms=100).next_end({A: 5}) == {A: 5}
    assert 1 <= len(brokers.waits) <= 5


def test_a_backlog_is_no_quiet_log() -> None:
    brokers = Brokers({A: 0}, {A: 250})
    source = Source({A: 0}, brokers, poll_ms=100)
    assert [source.next_end({A: at})[A] for at in (0, 100, 200)] == [100, 200, 250]
    assert not brokers.waits


@pytest.mark.parametrize(("poll_ms", "looks"), [(0, 2), (200, 1), (600, 2)])
def test_a_log_that_stays_quiet_holds_no_call_for_long(poll_ms: int, looks: int) -> None:
    brokers = Brokers({A: 0}, {A: 5})
    source = Source({A: 5}, brokers, poll_ms)
    assert source.next_end({A: 5}) == source.next_end({A: 5}) == {A: 5}
    assert brokers.looks == looks


def test_a_quota_fills_up_without_a_word_of_the_brokers(tmp_path: Path) -> None:
    State.create(tmp_path, 50, 1_000).release()
    brokers = Brokers({A: 0}, {A: 1_000})
    source = Source({A: 5}, brokers, 200, quotas={"a": 1}, data_dir=str(tmp_path))
    assert source.next_end({A: 5}) == {A: 5}
    assert brokers.looks >= 2
    assert not brokers.waits


def test_quotas_that_hold_nothing_back_are_no_reason_to_look(tmp_path: Path) -> None:
    State.create(tmp_path, 50, 1_000).release()
    brokers = Brokers({A: 0}, {A: 5})
    source = Source({A: 5}, brokers, 100, quotas={"a": 1_000}, data_dir=str(tmp_path))
    assert source.next_end({A: 5}) == {A: 5}
    assert brokers.waits == [{A: 5}]


@pytest.mark.parametrize(
    ("ends", "rows_max", "wanted"),
    [
        ({A: 17, B: 5}, 100, {A: 17, B: 5}),
        ({A: 17, B: 5}, 15, {A: 17, B: 5}),
        ({A: 17, B: 5}, 6, {A: 10, B: 3}),
        ({A: 17, B: 1}, 6, {A: 12, B: 1}),
        ({A: 1_000_007, B: 1}, 1, {A: 8, B: 1}),
        ({A: 7, B: 0}, 6, {A: 7, B: 0}),
    ],
)
def test_a_batch_is_limited_and_no_partition_stands_still(
    ends: Offsets, rows_max: int, wanted: Offsets
) -> None:
    assert batch_ends({A: 7, B: 0}, ends, rows_max) == wanted


def test_a_backlog_delays_no_new_message_of_another_topic() -> None:
    """In proportion to what waits, a batch would have one or two of these 50 rows."""
    assert batch_ends({A: 0, C: 0}, {A: 10**7, C: 50}, 300_000) == {A: 299_950, C: 50}


def test_a_topic_of_many_partitions_takes_no_more_than_another() -> None:
    many = {("a", number): 10**6 for number in range(100)}
    ends = batch_ends(dict.fromkeys([*many, C], 0), {**many, C: 10**6}, 30_000)
    assert ends == {**dict.fromkeys(many, 150), C: 15_000}


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=20), st.integers(1, 10**6))
def test_a_batch_is_as_full_as_its_limit_permits(waiting: list[int], rows_max: int) -> None:
    ends = {("a", number): rows for number, rows in enumerate(waiting)}
    taken = batch_ends(dict.fromkeys(ends, 0), ends, rows_max)
    rows, busy = sum(taken.values()), sum(map(bool, waiting))
    assert min(sum(waiting), rows_max) - busy <= rows <= max(rows_max, busy)
    most = max(taken.values())
    assert all(taken[p] == min(end, most) for p, end in ends.items())


@pytest.mark.parametrize("rows_max", [1, 100])
def test_a_log_that_has_lost_its_end_is_not_taken_for_an_idle_one(rows_max: int) -> None:
    """The sink refuses an end that falls; what is written there now would be skipped."""
    assert batch_ends({A: 7, B: 0}, {A: 3, B: 9}, rows_max)[A] == 3


def test_few_rows_are_read_by_one_task() -> None:
    (only,) = divide({A: (0, 10), B: (5, 6), C: (0, 1)}, 4, 900)
    assert only == ({A: (0, 10), B: (5, 6), C: (0, 1)}, 900)


def test_many_rows_are_shared_and_no_partition_is_divided() -> None:
    ranges = {A: (0, 5_000), B: (0, 3_000), C: (100, 2_300)}
    assert divide(ranges, 2, 900) == [
        ({A: (0, 5_000)}, 450),
        ({B: (0, 3_000), C: (100, 2_300)}, 450),
    ]


def test_a_new_limit_of_rows_counts_from_the_next_plan(tmp_path: Path) -> None:
    source = Source({A: 0}, Brokers({A: 0}, {A: 1_000}), folder=str(tmp_path))
    assert source.next_end({A: 0}) == {A: 100}, "the query's own, while there is no file"
    for rows in (7, 300):
        Attempt({}, rows).write(tmp_path)
        assert source.next_end({A: 100}) == {A: 100 + rows}
    (tmp_path / FILE_NAME).write_bytes(b"damaged")
    assert source.next_end({A: 100}) == {A: 400}


def test_a_batch_begins_where_the_one_before_has_ended_early(tmp_path: Path) -> None:
    """Also where it plans the same ends again: Spark sees news in its offsets."""
    source = Source({A: 0, C: 0}, Brokers({A: 0, C: 0}, {A: 50, C: 9}), folder=str(tmp_path))
    first = source.latestOffset(marks_to({A: 0, C: 0}), ReadMaxRows(100))
    assert first == {"a": {"0": 50}, "b": {"0": 9}}
    told = EarlyEnds(tmp_path)
    told.note({A: 50}, {A: 20}, {})
    second = source.latestOffset(first, ReadMaxRows(100))
    assert second != first
    assert offsets_from(second) == ({A: 50, C: 9}, {A: 20})
    (share,) = source.partitions(first, second)
    assert share.ranges == {A: (20, 50)}  # type: ignore[attr-defined]
    for _ in range(2):  # nothing of it was read: another partition had all bytes of the batch
        again = source.latestOffset(second, ReadMaxRows(100))
        assert again != second, "a batch that Spark would not start"
        assert offsets_from(again) == ({A: 50, C: 9}, {A: 20})
        assert [s.ranges for s in source.partitions(second, again)] == [{A: (20, 50)}]  # type: ignore[attr-defined]
        second = again
    told.note({A: 50}, {A: 49}, {})
    third = source.latestOffset(second, ReadMaxRows(100))
    assert [s.ranges for s in source.partitions(second, third)] == [{A: (49, 50)}]  # type: ignore[attr-defined]
    told.note({A: 50}, {}, {})
    assert source.latestOffset(third, ReadMaxRows(100)) == third, "nothing to read"
    source.brokers.last = {A: 51, C: 9}
    assert source.latestOffset(third, ReadMaxRows(100)) == {"a": {"0": 51}, "b": {"0": 9}}


def test_a_partition_that_waits_is_left_out_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each batch would read its records again; those of the others are read meanwhile."""
    source = Source({A: 0, C: 0}, Brokers({A: 0, C: 0}, {A: 50, C: 9}), folder=str(tmp_path))
    first = source.latestOffset(marks_to({A: 0, C: 0}), ReadMaxRows(100))
    told = EarlyEnds(tmp_path)
    told.note({A: 50, C: 9}, {A: 20}, {})
    second = source.latestOffset(first, ReadMaxRows(100))
    assert offsets_from(second)[0] == {A: 50, C: 9}, "it had no bytes left"
    told.note({A: 50, C: 9}, {A: 20}, {}, [A])
    source.brokers.last = {A: 60, C: 12}
    third = source.latestOffset(second, ReadMaxRows(100))
    assert offsets_from(third) == ({A: 20, C: 12}, {A: 20})
    told.note({A: 20, C: 12}, {}, {})
    source.brokers.last = {A: 70, C: 12}
    assert source.latestOffset(third, ReadMaxRows(100)) == third, "nothing to read"
    present_s = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: present_s + 61)
    assert source.latestOffset(third, ReadMaxRows(100)) == {"a": {"0": 70}, "b": {"0": 12}}


def test_a_partition_waits_until_a_batch_has_read_further(tmp_path: Path) -> None:
    """Whatever batches read of others, and whether the file was read meanwhile."""
    told = EarlyEnds(tmp_path)
    told.note({A: 50, C: 9}, {A: 20}, {}, [A])
    told.note({A: 20, C: 12}, {}, {A: 20})
    assert waiting_far_ahead(tmp_path) == {A: 20}
    told.note({A: 60, C: 12}, {A: 30}, {A: 20}, [A])
    assert waiting_far_ahead(tmp_path) == {A: 30}
    told.note({A: 70}, {A: 60}, {A: 30})
    assert (waiting_far_ahead(tmp_path), told.read()) == ({}, {A: 60})
    (tmp_path / "early-ends").write_bytes(b"x")
    assert waiting_far_ahead(tmp_path) == {}


def test_a_batch_that_is_read_again_ends_above_what_is_taken(tmp_path: Path) -> None:
    """It may end earlier than before, in another share of the bytes."""
    told = EarlyEnds(tmp_path)
    ends = told.note({A: 50, B: 9, C: 9}, {A: 20, B: 2, C: 5}, {A: 30, B: 9})
    assert ends == {A: 30, B: 9, C: 5}
    assert told.read() == {A: 30, C: 5}


def test_a_repeated_batch_begins_at_the_marks_of_now(tmp_path: Path) -> None:
    """Its own begin is that of the query that planned it."""
    source = Source({A: 30}, Brokers({A: 0}, {A: 50}), folder=str(tmp_path))
    assert source.ranges({A: 25}, {A: 50}, {A: 20}) == {A: (30, 50)}


def test_a_lower_limit_of_rows_lowers_the_bytes(tmp_path: Path) -> None:
    source = Source({A: 0}, Brokers({A: 0}, {A: 1_000}), folder=str(tmp_path))
    Attempt({}, 25).write(tmp_path)
    (share,) = source.partitions({"a": {"0": 0}}, {"a": {"0": 25}})
    assert share.bytes_max == 250  # type: ignore[attr-defined]


def planned_within_quota(tmp_path: Path) -> tuple[Source, Any, int]:
    """A source with a quota of 100, the ends of its first batch, and how many rows that has."""
    State.create(tmp_path, 50, 1_000).release()
    brokers = Brokers({A: 0}, {A: 10**6})
    source = Source(
        {A: 0}, brokers, quotas={"a": 100}, data_dir=str(tmp_path), folder=str(tmp_path)
    )
    begun = marks_to({A: 0})
    source.latestOffset(begun, ReadMaxRows(100))  # the quota begins to fill up
    time.sleep(0.1)
    ends = source.latestOffset(begun, ReadMaxRows(100))
    rows = offsets_from(ends)[0][A]
    assert rows >= 5
    return source, ends, rows


def test_a_batch_that_ended_early_gives_its_quota_back(tmp_path: Path) -> None:
    source, ends, rows = planned_within_quota(tmp_path)
    EarlyEnds(tmp_path).note({A: rows}, {A: 1}, {})
    again = source.latestOffset(ends, ReadMaxRows(100))
    assert rows <= offsets_from(again)[0][A]


def test_the_bytes_of_a_batch_count_for_the_quota_of_its_topic(tmp_path: Path) -> None:
    source, ends, rows = planned_within_quota(tmp_path)
    EarlyEnds(tmp_path).note({A: rows}, {}, {}, (), {"a": 10**6})
    time.sleep(0.05)
    assert source.latestOffset(ends, ReadMaxRows(100)) == ends, "for hours"


def test_nothing_to_read_needs_no_task() -> None:
    assert divide({}, 4, 900) == []


def test_options_pass_as_text() -> None:
    options = SourceOptions(
        TASK,
        {A: 5, C: EARLIEST},
        "/l",
        rows_max=100,
        bytes_max=9,
        only=True,
        quotas={"a": 7},
        data_dir="/d",
    )
    assert SourceOptions.from_text(options.text) == options


def test_offsets_as_spark_keeps_them() -> None:
    offsets = {C: 3, A: 0, B: 12}
    assert marks_from(marks_to(offsets)) == offsets
    assert marks_to(offsets) == {"a": {"0": 0, "1": 12}, "b": {"0": 3}}


def test_a_planning_process_imports_no_client_of_kafka() -> None:
    """Two processes of each start only make the source; Spark waits for one after the other."""
    code = "import sys, duewheel.streaming.source; print(*sys.modules)"
    command = [sys.executable, "-P", "-c", code]
    imported = subprocess.check_output(command, text=True).split()
    assert not {"kafka", "structlog", "duewheel.streaming.read_task"} & set(imported)
