"""Around an audit: its range, its files, its metrics, and its schedule."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from duewheel.api.audit import AuditResult, Disagreements, EpochResults, ExpectationResult
from duewheel.audit import metrics as audit_metrics
from duewheel.audit.history import AuditHistory, project_folder
from duewheel.audit.range import CHUNK_OFFSETS, offsets_in, ranges, reached, split_range
from duewheel.audit.run import Wanted, run_audit
from duewheel.audit.schedule import AuditSchedule
from duewheel.checkpoints.state_file import State
from duewheel.config.range_ends import Bound
from duewheel.config.settings import Settings, load
from duewheel.errors import ConfigError, Locked
from duewheel.osutil.child_process import Child
from duewheel.testing import ManualClock

P0, P1 = ("timers", 0), ("timers", 1)
NOW_MS = 1_800_000_000_000
HOUR_MS = 3_600_000


# ---- the range ----------------------------------------------------------------------------------


def test_a_range_begins_at_offsets_or_at_a_time() -> None:
    ends = {P0: 100, P1: 7}
    asked: list[int] = []

    def at_time(time_ms: int) -> dict[tuple[str, int], int]:
        asked.append(time_ms)
        return {P0: 42}

    assert Bound.parse("--from", "10").offsets(ends, at_time) == {P0: 10, P1: 7}
    time = Bound.parse("--to", "2027-01-15T08:00:00Z")
    assert time.offsets(ends, at_time) == {P0: 42, P1: 7}
    assert asked == [NOW_MS]
    assert ranges({P0: 10, P1: 7}, ends) == {P0: (10, 100)}


def test_an_offset_above_all_ends_is_refused_where_a_range_begins() -> None:
    """Elsewhere such a number is an instant: the range would have nothing, without a word."""
    ends = {P0: 100, P1: 7}

    def at_time(time_ms: int) -> dict[tuple[str, int], int]:
        raise AssertionError(time_ms)

    assert Bound.parse("--from", "100").firsts(ends, at_time) == {P0: 100, P1: 7}
    with pytest.raises(ConfigError, match=r"offset 101 .* 100 at most: .* ISO-8601 with a zone"):
        Bound.parse("--from", "101").firsts(ends, at_time)
    assert Bound(offset=0).firsts({}, at_time) == {}


@pytest.mark.parametrize("text", ["", "soon", "2027-01-15T08:00:00", "-3", "1.5"])
def test_what_is_no_end_of_a_range(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--from .*: give an offset, or ISO-8601 with a zone"):
        Bound.parse("--from", text)


BETWEEN = st.dictionaries(
    st.tuples(st.sampled_from("ab"), st.integers(0, 3)),
    st.tuples(st.integers(0, 10**6), st.integers(1, 10**6)).map(lambda x: (x[0], x[0] + x[1])),
)


@given(BETWEEN, st.integers(1_000, 10**7))
def test_chunks_cover_the_range_or_are_spread_evenly_over_it(
    between: dict[tuple[str, int], tuple[int, int]], most: int
) -> None:
    chunks = split_range(between, most)
    seen: dict[tuple[str, int], int] = {p: start for p, (start, _) in between.items()}
    for chunk in chunks:
        assert 0 < offsets_in(chunk) <= min(CHUNK_OFFSETS, most) + 2 * len(between)
        for partition, (first, end) in chunk.items():
            assert seen[partition] <= first < end
            seen[partition] = end
    total = offsets_in(between)
    assert sum(map(offsets_in, chunks)) <= max(most, len(between)) + len(chunks) * len(between)
    if total <= min(most, CHUNK_OFFSETS):
        assert sum(map(offsets_in, chunks)) == total
    if between:
        assert seen == {partition: end for partition, (_, end) in between.items()}


def test_a_sample_is_spread_over_the_range() -> None:
    chunks = split_range({P0: (0, 10 * CHUNK_OFFSETS)}, 2 * CHUNK_OFFSETS)
    assert chunks == [
        {P0: (4 * CHUNK_OFFSETS, 5 * CHUNK_OFFSETS)},
        {P0: (9 * CHUNK_OFFSETS, 10 * CHUNK_OFFSETS)},
    ]


def test_a_flood_in_one_topic_takes_no_other_topic_out_of_the_sample() -> None:
    size = 5 * CHUNK_OFFSETS
    between = {
        **{("flood", number): (0, 100 * size) for number in range(2)},
        ("large", 0): (7, 7 + 10 * size),
        ("small", 0): (3, 1_003),
    }
    read = Counter[str]()
    chunks = split_range(between, size)
    for chunk in chunks:
        for (topic, _), (first, end) in chunk.items():
            read[topic] += end - first
    assert len(chunks) == 5
    each = (size - 1_000) // 2
    assert read["small"] == 1_000
    assert each <= read["large"] <= each + len(chunks)
    assert each <= read["flood"] <= each + 2 * len(chunks)


@pytest.mark.parametrize(
    ("before", "start", "end", "after"),
    [
        (None, 10, 30, 30),  # the first
        (10, 10, 30, 30),  # goes on
        (10, 5, 30, 30),  # reads some again
        (10, 11, 30, 10),  # leaves something out: the next one must read it
        (10, 2, 5, 5),  # nothing is there any more above 5: the topic was recreated
        (10, 10, 10, 10),
    ],
)
def test_where_the_next_audit_goes_on(before: int | None, start: int, end: int, after: int) -> None:
    known = {P1: 4} if before is None else {P0: before, P1: 4}
    assert reached(known, {P0: start}, {P0: end}) == {P0: after, P1: 4}


# ---- what is kept -------------------------------------------------------------------------------


def across_rows(code: str, *, success: bool) -> ExpectationResult:
    return ExpectationResult(
        type="expect_one",
        column=None,
        code=code,
        reason="one",
        severity="critical",
        success=success,
        rows=12,
        failed=int(not success),
        observed=0.5,
        examples=[],
    )


def a_result(number: int = 0, **changes: Any) -> AuditResult:
    fields = {
        "id": f"20270115T08000{number}.000Z",
        "ok": True,
        "started_ms": NOW_MS + number,
        "ended_ms": NOW_MS + number + 1_500,
        "took_s": 1.5,
        "rows": 12,
        "skipped_offsets": 3,
        "rejected": {"no_due_time": 2},
        "shard": 0,
        "ranges": {"timers-0": [3, 18]},
        "audited": {"timers-0": 18},
        "disagreements": Disagreements(count=1, first=[]),
        "rules_suite": [EpochResults(epoch=0, expectations=[])],
        "rows_suite": [
            across_rows("ids_again", success=False),
            across_rows("offsets_fall", success=True),
        ],
    } | changes
    return AuditResult.model_validate(fields)


def test_the_newest_is_known(tmp_path: Path) -> None:
    history = AuditHistory(tmp_path / "audit")
    assert history.newest() is None
    with history.locked():
        for number in range(3):
            history.add(a_result(number), "metrics\n")
    assert history.newest() == a_result(2)
    assert (tmp_path / "audit" / "duewheel_audit.prom").read_text() == "metrics\n"


@pytest.mark.parametrize(
    "damaged", ["", "{", json.dumps(a_result().as_json())[:-20], "\udcff", "[]", '{"id": "1"}']
)
def test_a_damaged_result_stops_no_later_audit(tmp_path: Path, damaged: str) -> None:
    history = AuditHistory(tmp_path)
    (tmp_path / "result.json").write_text(damaged, errors="surrogateescape")
    assert history.newest() is None
    history.add(a_result(1), "")
    assert history.newest() == a_result(1)


def test_a_directory_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(ConfigError, match=r"audits cannot be kept in .*/file/audit: "),
        AuditHistory(tmp_path / "file" / "audit").locked(),
    ):
        pass


def test_one_audit_at_a_time(tmp_path: Path) -> None:
    history = AuditHistory(tmp_path)
    with history.locked(), pytest.raises(Locked, match="another audit"), history.locked():
        pass
    with history.locked():
        pass


def test_metrics_of_the_newest(tmp_path: Path) -> None:
    text = audit_metrics.text(a_result())
    samples = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert samples == {
        ("duewheel_audit_ok",): 1,
        ("duewheel_audit_end_timestamp_seconds",): (NOW_MS + 1_500) / 1000,
        ("duewheel_audit_duration_seconds",): 1.5,
        ("duewheel_audit_rows",): 12,
        ("duewheel_audit_skipped_offsets",): 3,
        ("duewheel_audit_disagreements",): 1,
        ("duewheel_audit_rejected", "no_due_time"): 2,
        ("duewheel_audit_failed", "ids_again", "critical"): 1,
        ("duewheel_audit_failed", "offsets_fall", "critical"): 0,
    }


# ---- when it is due -----------------------------------------------------------------------------


class Starts:
    """Stands for the audit's process: something that ends when it is told to."""

    def __init__(self) -> None:
        self.children: list[Child] = []

    def __call__(self) -> Child:
        self.children.append(Child([sys.executable, "-I", "-c", "import time; time.sleep(60)"]))
        return self.children[-1]

    def end(self) -> None:
        for child in self.children:
            child.stop(5)


Make = Callable[..., tuple[AuditSchedule, ManualClock, Starts]]


@pytest.fixture
def scheduled(tmp_path: Path) -> Any:
    starts = Starts()

    def make(interval: str | None = "1h") -> tuple[AuditSchedule, ManualClock, Starts]:
        clock = ManualClock(NOW_MS)
        return AuditSchedule(settings(tmp_path, interval), clock, starts), clock, starts

    yield make
    starts.end()


def settings(path: Path, interval: str | None = "1h", context: Path | None = None) -> Settings:
    audit = {"interval": interval, "context": context}
    timer = {"topics": "timers"}
    return load(None, {"timer": timer, "storage": {"data_dir": path}, "audit": audit})


def test_an_audit_every_interval_and_never_two(scheduled: Make) -> None:
    schedule, clock, starts = scheduled()
    schedule.poll()
    clock.sleep(3_599)
    schedule.poll()
    assert starts.children == []
    clock.sleep(1)
    schedule.poll()
    assert schedule.child is starts.children[0]
    clock.sleep(3 * 3_600)
    schedule.poll()
    assert len(starts.children) == 1
    starts.end()
    schedule.poll()
    schedule.poll()
    assert len(starts.children) == 2


def test_the_interval_counts_from_the_last_audit(tmp_path: Path, scheduled: Make) -> None:
    AuditHistory(settings(tmp_path).audit_dir).directory.mkdir()
    ago = a_result(started_ms=NOW_MS - HOUR_MS + 5_000)
    AuditHistory(settings(tmp_path).audit_dir).add(ago, "")
    schedule, clock, starts = scheduled()
    clock.sleep(4)
    schedule.poll()
    assert starts.children == []
    clock.sleep(1)
    schedule.poll()
    assert len(starts.children) == 1


def test_none_without_an_interval_and_none_by_a_standby(tmp_path: Path, scheduled: Make) -> None:
    schedule, clock, starts = scheduled(None)
    clock.sleep(10**6)
    schedule.poll()
    state = State.create(tmp_path, 50, 100_000)
    state.set_standby(on=True)
    state.release()
    schedule, clock, starts = scheduled()
    clock.sleep(3_600)
    schedule.poll()
    assert starts.children == []


def test_a_project_that_is_not_there_is_refused_before_an_audit(tmp_path: Path) -> None:
    """By `run` as by `audit`: Great Expectations would make one, where nobody looks."""
    given = settings(tmp_path, context=tmp_path / "projct")
    (tmp_path / "empty").mkdir()
    for begin in (
        lambda: AuditSchedule(given, ManualClock(NOW_MS), Starts()),
        lambda: run_audit(given, Wanted()),
        lambda: project_folder(settings(tmp_path, context=tmp_path / "empty")),
    ):
        with pytest.raises(ConfigError, match=r"audit\.context: .*/gx/great_expectations\.yml"):
            begin()
    assert not (tmp_path / "projct").exists()
    assert not (tmp_path / "audit").exists()
    AuditSchedule(settings(tmp_path, None, context=tmp_path / "x"), ManualClock(NOW_MS), Starts())


def test_the_program_of_the_refusal_makes_the_project(tmp_path: Path) -> None:
    given = settings(tmp_path, context=tmp_path / "it's")
    with pytest.raises(ConfigError) as refusal:
        project_folder(given)
    program = tmp_path / "make.py"
    program.write_text(str(refusal.value).partition("makes it: ")[2])
    subprocess.run([sys.executable, program], check=True)
    assert project_folder(given) == tmp_path / "it's"


def test_the_folder_of_the_audits_is_made(tmp_path: Path) -> None:
    assert project_folder(settings(tmp_path)) == tmp_path / "audit"


def test_more_rows_than_are_read_cannot_be_asked_for() -> None:
    timer = {"topics": "timers"}
    with pytest.raises(ConfigError, match=r"audit\.rows_min: is above audit\.rows_max = 1000"):
        load(None, {"timer": timer, "audit": {"rows_min": 2_000, "rows_max": 1_000}})
    with pytest.raises(ConfigError, match=r"audit\.interval"):
        load(None, {"timer": timer, "audit": {"interval": "1s"}})
