"""The lag of ingest as dequeue measures it, and the reasons why a shard is not ready."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.harness.config_file import small_settings

from duewheel.api.reasons import REASONS
from duewheel.checkpoints.file_lock import FileLock
from duewheel.checkpoints.fs import HOST_FS
from duewheel.checkpoints.live_fields import Lag
from duewheel.checkpoints.process_role import Role
from duewheel.checkpoints.state_file import State
from duewheel.config.settings import Settings, load
from duewheel.errors import KafkaUnavailable
from duewheel.runtime import run_file
from duewheel.runtime.lag_watch import LagNotes, LagWatch
from duewheel.runtime.readiness import ReadyBounds, not_ready
from duewheel.runtime.run_file import Supervised
from duewheel.runtime.shard_facts import ShardFacts
from duewheel.runtime.shard_metrics import ShardMetrics
from duewheel.testing import ManualClock

NOW_MS = 1_800_000_000_000
P0, P1 = ("timers", 0), ("timers", 1)


# ---- what looks at the logs' ends have seen -----------------------------------------------------


def test_the_oldest_message_that_is_not_taken_is_as_old_as_the_first_look_at_it() -> None:
    notes = LagNotes()
    assert notes.measure(0, 1, {P0: 5}, {P0: 5}) == (0, 0, 0)
    assert notes.measure(1_000, 1, {P0: 5}, {P0: 7}) == (2, 0, 0)
    assert notes.measure(4_000, 1, {P0: 5}, {P0: 9}) == (4, 3_000, 3_000)
    # A batch came to its end: not stuck, and what it left was first seen at 4 s.
    assert notes.measure(6_000, 2, {P0: 7}, {P0: 9}) == (2, 2_000, 0)
    assert notes.measure(9_000, 2, {P0: 7}, {P0: 9}) == (2, 5_000, 3_000)
    assert notes.measure(9_500, 3, {P0: 9}, {P0: 9}) == (0, 0, 0)
    assert notes.measure(9_900, 3, {P0: 9}, {P0: 10}) == (1, 0, 0), (
        "ages count from the new message"
    )


def test_a_reader_that_is_always_as_late_is_said_to_be_so() -> None:
    """One offset a second, taken 40 s later, in a batch each."""
    notes = LagNotes()
    seen = [notes.measure(s * 1000, s, {P0: max(0, s - 40)}, {P0: s})[1:] for s in range(1, 1_000)]
    later = [late_ms for late_ms, _ in seen[100:]]
    assert max(later) <= 40_000
    assert min(later) >= 30_000
    assert {stuck_ms for _, stuck_ms in seen} == {0}


@pytest.mark.parametrize("fails", [False, True])
def test_a_poll_that_took_long_does_not_hide_the_lag_for_minutes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, fails: bool
) -> None:
    clock, waits_s = ManualClock(), list[float]()

    def poll(_: LagWatch, __: object) -> None:
        clock.sleep(10)
        if fails:
            raise KafkaUnavailable("no answer within 10 s")

    def wait(seconds: float) -> bool:
        waits_s.append(seconds)
        return len(waits_s) > 2

    monkeypatch.setattr(LagWatch, "_poll", poll)
    watch = LagWatch(small_settings(tmp_path), clock)
    monkeypatch.setattr(watch._stop, "wait", wait)  # noqa: SLF001
    watch._run()  # noqa: SLF001
    assert waits_s == [2, 20, 20]


def test_one_partition_that_stands_still_is_not_hidden_by_the_others() -> None:
    notes = LagNotes()
    for second in range(100):
        marks, ends = {P0: 3, P1: second}, {P0: 4, P1: second}
        count, late_ms, _ = notes.measure(second * 1000, second, marks, ends)
        assert (count, late_ms) == (1, second * 1000)


def test_what_was_cut_off_or_is_gone_is_not_waited_for() -> None:
    notes = LagNotes()
    notes.measure(0, 1, {P0: 5, P1: 0}, {P0: 9, P1: 4})
    assert notes.measure(1_000, 1, {P0: 5}, {P0: 5}) == (0, 0, 0)


# ---- what makes a shard not ready ---------------------------------------------------------------


class WatchedDirectory:
    """A data directory in which this process plays both processes."""

    def __init__(self, path: Path) -> None:
        flags = {"timer": {"topics": "timers"}, "storage": {"data_dir": path}}
        self.settings: Settings = load(None, flags)
        self.bounds = ReadyBounds.of(self.settings)
        self.clock = ManualClock(NOW_MS)
        self.state = State.create(path, self.bounds.precision_ms, self.bounds.slots)
        self.locks = {role: FileLock(path / role.lock_name) for role in Role}
        for lock in self.locks.values():
            lock.try_acquire()
        self.beat()
        self.note_lag()

    def beat(self, *, behind_ms: int = 0) -> None:
        now_ms = self.clock.now_ms()
        self.state.live.beat(Role.INGEST, os.getpid(), now_ms, 0)
        self.state.live.beat(Role.DEQUEUE, os.getpid(), now_ms, behind_ms)

    def note_lag(self, messages: int = 0, late_ms: int = 0, stuck_ms: int = 0) -> None:
        now_ms = self.clock.now_ms()
        self.state.live.note_lag(Lag(now_ms, messages, now_ms - late_ms, now_ms - stuck_ms, 0))

    def later(self, ms: int) -> None:
        self.clock.set(self.clock.now_ms() + ms)

    def reasons(self) -> list[str]:
        return list(not_ready(ShardFacts(self.state, self.clock.now_ms()), self.bounds))

    def metrics(self) -> dict[str, float]:
        return {
            ":".join([sample.name.removeprefix("duewheel_"), *sample.labels.values()]): sample.value
            for family in ShardMetrics(self.settings, self.clock).families()
            for sample in family.samples
        }


@pytest.fixture
def shard(tmp_path: Path) -> Iterator[WatchedDirectory]:
    shard = WatchedDirectory(tmp_path)
    yield shard
    for lock in shard.locks.values():
        lock.close()


@pytest.fixture
def bounds(shard: WatchedDirectory) -> ReadyBounds:
    return shard.bounds


def test_a_shard_that_does_its_work_is_ready(shard: WatchedDirectory) -> None:
    assert shard.reasons() == []
    found = shard.metrics()
    assert (found["ready"], found["ingest_lag_messages"], found["ingest_lag_seconds"]) == (1, 0, 0)
    assert {name for name in found if name.startswith("not_ready:")} == {
        f"not_ready:{reason}" for reason in (*REASONS, "unreadable")
    }


def test_files_of_other_settings_have_a_reason_in_the_metrics(shard: WatchedDirectory) -> None:
    timer = shard.settings.timer.model_copy(update={"slots": 2 * shard.settings.timer.slots})
    shard.settings = shard.settings.model_copy(update={"timer": timer})
    found = shard.metrics()
    assert (found["ready"], found["not_ready:unreadable"]) == (0, 1)


def test_a_lag_up_to_its_bound_is_none(shard: WatchedDirectory, bounds: ReadyBounds) -> None:
    shard.note_lag(6_000, bounds.lag_ms)
    assert shard.reasons() == []
    shard.later(1)
    shard.beat()
    assert shard.reasons() == ["ingest_lag"]
    found = shard.metrics()
    assert (found["ready"], found["not_ready:ingest_lag"]) == (0, 1)
    assert found["ingest_lag_messages"] == 6_000
    assert found["ingest_lag_seconds"] == (bounds.lag_ms + 1) / 1000


def test_a_batch_without_progress_shows_its_age(
    shard: WatchedDirectory, bounds: ReadyBounds
) -> None:
    shard.note_lag(1, 0, bounds.batch_ms + 1)
    assert shard.reasons() == ["batch_stuck"]
    assert shard.metrics()["ingest_batch_age_seconds"] == (bounds.batch_ms + 1) / 1000


def test_deliveries_that_are_behind(shard: WatchedDirectory, bounds: ReadyBounds) -> None:
    shard.beat(behind_ms=bounds.behind_ms - 1_000)
    assert shard.reasons() == []
    shard.later(1_001)  # dequeue says nothing, and is not faster for it
    assert shard.reasons() == ["dequeue_behind"]


def test_silence_is_no_proof_of_work(shard: WatchedDirectory, bounds: ReadyBounds) -> None:
    shard.later(bounds.silence_ms + 1)
    assert shard.reasons() == ["ingest_silent", "dequeue_silent", "ends_unknown", "dequeue_behind"]


def everything_waits(shard: WatchedDirectory) -> None:
    """Both processes are silent, nothing is taken, nothing is delivered."""
    bounds = shard.bounds
    shard.note_lag(6_000, bounds.lag_ms, bounds.batch_ms)
    shard.beat(behind_ms=bounds.behind_ms)
    shard.later(bounds.silence_ms + 1)


def test_kafka_that_does_not_answer_is_the_only_reason(
    shard: WatchedDirectory, bounds: ReadyBounds
) -> None:
    shard.state.live.note_no_answer(shard.clock.now_ms() - 1)  # before the last poll
    everything_waits(shard)
    assert len(shard.reasons()) > 3
    shard.state.live.note_no_answer(shard.clock.now_ms())
    assert shard.reasons() == ["ends_unknown"]
    said = not_ready(ShardFacts(shard.state, shard.clock.now_ms()), bounds)["ends_unknown"]
    assert said == "Kafka does not answer: no ends of the timer topics for 30 s"
    shard.later(bounds.silence_ms + 1)  # dequeue no longer asks
    assert len(shard.reasons()) > 3


def test_a_full_disk_or_a_missing_planner_stands_for_its_effects(
    shard: WatchedDirectory, bounds: ReadyBounds
) -> None:
    shard.note_lag(6_000, bounds.lag_ms + 1, bounds.batch_ms + 1)
    shard.state.live.note_rows_without_room(7)
    assert shard.reasons() == ["disk_full"]
    shard.state.live.note_rows_without_room(0)
    begun_ms = shard.clock.now_ms()
    for passed_ms, reasons in (
        (bounds.unplanned_ms, ["ingest_lag", "batch_stuck"]),
        (1, ["no_planner"]),
    ):
        shard.later(passed_ms)
        shard.state.live.beat(Role.INGEST, os.getpid(), shard.clock.now_ms(), begun_ms)
        assert shard.reasons() == reasons
    shard.locks[Role.INGEST].release()
    assert shard.reasons() == ["ingest_not_running"]


def test_what_is_paused_is_no_fault(shard: WatchedDirectory, bounds: ReadyBounds) -> None:
    shard.note_lag(6_000, bounds.lag_ms + 1, bounds.batch_ms + 1)
    shard.beat(behind_ms=bounds.behind_ms + 1)
    assert shard.reasons() == ["ingest_lag", "batch_stuck", "dequeue_behind"]
    shard.state.live.pause(Role.INGEST, on=True)
    assert shard.reasons() == ["dequeue_behind"]
    shard.state.live.pause(Role.DEQUEUE, on=True)
    assert shard.reasons() == []


def test_processes_that_do_not_run_or_keep_ending(shard: WatchedDirectory, tmp_path: Path) -> None:
    shard.locks[Role.INGEST].release()
    assert shard.reasons() == ["ingest_not_running"]
    run = FileLock(tmp_path / run_file.LOCK_NAME)
    assert run.try_acquire()
    fd = HOST_FS.open_file(tmp_path / run_file.FILE_NAME)
    ended = Supervised(restarts=2, last_exit_code=6, last_reason="locked", next_try_ms=NOW_MS + 9)
    run_file.write(fd, {"ingest": ended, "dequeue": Supervised(pid=1, lives=True)})
    assert shard.reasons() == ["ingest_not_running", "ingest_failing"]
    said = not_ready(ShardFacts(shard.state, NOW_MS), shard.bounds)["ingest_failing"]
    assert said == "ingest ended with 6: locked; next try in 0 s"
    found = shard.metrics()
    assert found["process_restarts_total:ingest"] == 2
    assert [found[f"process_failing:{name}"] for name in ("ingest", "dequeue")] == [1, 0]
    assert found["process_next_try_timestamp_seconds:ingest"] == (NOW_MS + 9) / 1000
    run.close()
    os.close(fd)


def test_before_kafka_has_said_anything_nothing_is_ready(tmp_path: Path) -> None:
    path = tmp_path / "new"
    path.mkdir()
    shard = WatchedDirectory(path)
    shard.state.live.note_lag(Lag(0, 0, 0, 0, 0))
    assert shard.reasons() == ["ends_unknown"]
    assert "ingest_lag_messages" not in shard.metrics()


def test_batches_that_come_seldom_by_request_are_waited_for(tmp_path: Path) -> None:
    flags = {"timer": {"topics": "timers"}, "ingest": {"trigger_ms": 60_000}}
    found = ReadyBounds.of(load(None, flags))
    assert (found.lag_ms, found.batch_ms) == (180_000, 180_000)
    assert found.behind_ms == ReadyBounds(50, 1_000).behind_ms
