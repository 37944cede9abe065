"""A data directory with damage in one file: `check` says so, or the start and the loop do; nothing
that is not as it was put in is delivered, nothing twice, nothing early, and everything ends.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import event, given
from hypothesis import strategies as st
from tests.harness.killed import Killed, die
from tests.harness.publishers import RecordingPublisher
from tests.harness.timer_rows import TIMER_TOPIC, TimerRow, ends_of, timer_batch
from tests.harness.timer_shard import TimerShard

from duewheel.checkpoints.commit_and_close_pages import Marks
from duewheel.checkpoints.process_role import Role
from duewheel.checkpoints.progress import Progress
from duewheel.checkpoints.state_file import State
from duewheel.errors import DuewheelError
from duewheel.schemas.batches import Deliveries
from duewheel.schemas.wire.record_codec import Records
from duewheel.testing import ManualClock
from duewheel.wheel.dequeue_config import DequeueConfig
from duewheel.wheel.publisher_protocol import PublishAttempt
from duewheel.wheel.slots import WheelConfig
from duewheel.wheel.storage.full_check import check

Change = Callable[[st.DataObject, bytes], bytes]
Message = tuple[str, bytes]  # target and record

PRECISION_MS = 10
WHEEL = WheelConfig(PRECISION_MS, slots=64, window_ms=400, margin_ms=0)
CONFIG = DequeueConfig(
    *(0, 1, {"precision": PRECISION_MS}),
    chunk_records=7,
    chunk_bytes=4_000,
    reply_topic="replies",
)
HOUR_STARTS_MS = 1_800_000_000_000
BEGIN_MS = HOUR_STARTS_MS - 200
END_MS = BEGIN_MS + 600
TICKS_MAX = 300
CANCELLED = {b"timers-1@4": b"timers-1@16", b"timers-1@29": b"timers-1@53"}  # by what


def messages(deliveries: Deliveries) -> Iterator[tuple[bytes, Message]]:
    """Each delivery's source, and where and as what it leaves."""
    places = np.zeros(len(deliveries), np.int64)
    records: list[Any] = Records.of(deliveries).encode(places).to_pylist()
    sources: list[Any] = deliveries.source.to_pylist()
    for source, target, record in zip(sources, deliveries.target, records, strict=True):
        yield source, (deliveries.targets[target], record)


class Publisher(RecordingPublisher):
    """Sees to it that nothing leaves twice, early, or otherwise than it should.

    Attributes:
        found: messages and replies.
        chased: requests that were written again: that is as good as a reply here.
        revived: timers that leave though there is a cancel of them.
    """

    def __init__(self, sample: Sample | None, clock: ManualClock) -> None:
        super().__init__(clock)
        self.found: dict[bytes, Message] = {}
        self.chased: set[bytes] = set()
        self.revived: set[bytes] = set()
        self._sample = sample
        if sample is not None:
            self.committed = list(sample.committed)
            self.found = dict(sample.delivered)
            self.chased = set(sample.chased)

    def publish(self, attempt: PublishAttempt) -> int | None:
        deliveries = None if attempt.prepared is None else attempt.prepared.deliveries
        if deliveries is not None:
            now = self.clock.now_ms()
            early = (deliveries.due_ms > now) & ~deliveries.dead_letter & ~deliveries.is_copy
            assert not early.any()
            chases = (deliveries.answer & deliveries.is_copy).tolist()
            for chase, (source, message) in zip(chases, messages(deliveries), strict=True):
                assert source not in self.found.keys() | self.chased, f"{source!r} leaves twice"
                if chase:
                    self.chased.add(source)
                    continue
                if source in CANCELLED:
                    cancel = CANCELLED[source]
                    assert cancel not in self.found, f"{source!r} leaves after {cancel!r}"
                    self.revived.add(source)
                elif self._sample is not None:
                    assert message == self._sample.expected[source], f"{source!r} is altered"
                self.found[source] = message
        return super().publish(attempt)


@dataclass
class Sample:
    """A whole data directory and what is to come out of it.

    Attributes:
        path: the directory.
        now_ms: when it was left.
        committed, delivered, chased: what the publisher had been given by then.
        expected: every message and reply, by source.
    """

    path: Path
    now_ms: int
    committed: list[tuple[Deliveries | None, Progress]]
    delivered: dict[bytes, Message]
    chased: set[bytes]
    expected: dict[bytes, Message]


def batches() -> Iterator[list[TimerRow]]:
    """Runs of several lengths, several to a slot; two hours; rejected and rolled rows; a timer that
    is cancelled before the first closing, one that is cancelled by the last batch.
    """
    offsets = [0, 0]
    for number, spread in enumerate((1, 40, 7, 40, 3)):
        batch = []
        for row in range(24):
            partition = row % 2
            due_ms = BEGIN_MS + 60 + (row * spread * PRECISION_MS) % 400
            rejected = row == 5
            timer = TimerRow(partition, offsets[partition], due_ms, rejected)
            if row == 9 and number < 2:
                timer = replace(timer, timer_id=b"gone", request="cancel" if number else "")
            if row == 11 and number in {2, 4}:
                request = "cancel" if number == 4 else ""
                timer = replace(timer, timer_id=b"gone late", request=request)
            batch.append(timer)
            offsets[partition] += 1
        yield sorted(batch, key=lambda timer: (timer.partition, timer.offset))


def shard_at(path: Path, clock: ManualClock, publisher: Publisher) -> TimerShard:
    return TimerShard(path, WHEEL, publisher, clock, CONFIG)


def append(shard: TimerShard, timers: list[TimerRow]) -> None:
    shard.append(timers, ends_of(timers))


def drain(shard: TimerShard, clock: ManualClock) -> None:
    """Everything, slot by slot."""
    assert shard.dequeue is not None
    while clock.now_ms() < END_MS:
        clock.set(clock.now_ms() + 50)
        for _ in range(TICKS_MAX):
            if not shard.dequeue.tick():
                break
        else:
            raise AssertionError("it does not come to an end")


def fill(path: Path, last_batch_unlinked: bool) -> Sample:
    """A directory after kills of both processes, half delivered, and what comes out of a copy."""
    clock = ManualClock(BEGIN_MS)
    publisher = Publisher(None, clock)
    shard = shard_at(path, clock, publisher)
    shard.start_dequeue({(TIMER_TOPIC, 0): 0, (TIMER_TOPIC, 1): 0})
    shard.start_ingest()
    *early, last = batches()
    for batch in early:
        append(shard, batch)
    clock.set(BEGIN_MS + 120)
    assert shard.dequeue is not None
    for _ in range(3):
        shard.dequeue.tick()
    if last_batch_unlinked:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(State, "mark_applied", die)
            patch.setattr("duewheel.wheel.storage.timelines.timer_wheel.TimerWheel.apply", die)
            with pytest.raises(Killed):
                append(shard, last)
    else:
        append(shard, last)
    for role in Role:
        shard.kill(role)
    now_ms, committed = clock.now_ms(), publisher.committed[:]
    delivered, chased = dict(publisher.found), set(publisher.chased)
    copy = path.with_name(f"{path.name}-copy")
    shutil.copytree(path, copy)
    shard = shard_at(copy, clock, publisher)
    shard.start_dequeue()
    drain(shard, clock)
    shard.kill(Role.DEQUEUE)
    found = len(publisher.found) + len(publisher.chased)
    assert found == 5 * 24 - 2, "all but the cancelled ones; of each cancel a reply or a chase"
    assert len(list(path.glob("cancelled/*"))) >= 1
    return Sample(path, now_ms, committed, delivered, chased, publisher.found)


@pytest.fixture(scope="module")
def draw_sample(tmp_path_factory: pytest.TempPathFactory) -> Callable[[st.DataObject], Sample]:
    """A directory that is whole, or one whose last batch is not linked yet."""
    folder = tmp_path_factory.mktemp("samples")
    samples = {name: fill(folder / name, name == "unlinked") for name in ("linked", "unlinked")}
    return lambda data: samples[data.draw(st.sampled_from(sorted(samples)))]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("damaged") / "data"


def is_below(marks: Marks, source: bytes) -> bool:
    place, _, offset = source.decode().partition("@")
    topic, _, number = place.rpartition("-")
    return int(offset) < marks[topic, int(number)]


def damaged_copy(sample: Sample, place: Path, file: Path, content: bytes) -> None:
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(sample.path, place)
    (place / file).write_bytes(content)


FAULTS = {"something is missing", "a cancelled one is delivered"}


def outcome(sample: Sample, place: Path, *, ingest_too: bool) -> str:
    """Work in the damaged directory until all is out, or something is refused."""
    clock = ManualClock(sample.now_ms)
    publisher = Publisher(sample, clock)
    shard = shard_at(place, clock, publisher)
    shard.offsets_at = lambda _: {(TIMER_TOPIC, 0): 0, (TIMER_TOPIC, 1): 0}
    publisher.silent_ms = 61_000
    try:
        shard.start_dequeue()
        if shard.directory(Role.DEQUEUE).state.live.paused(Role.DEQUEUE):
            return "paused"
        if ingest_too:
            # Its timers are due later than the loop looks, and go to a topic not seen so far.
            batch = timer_batch([TimerRow(0, 60 + n, END_MS + 100 + 10 * n) for n in range(4)])
            batch = replace(batch, targets=["other", "bills", "dead"])
            shard.start_ingest()
            for timers in batches():
                append(shard, timers)  # which is there already, or its commit page is lost
            assert shard.ingest is not None
            shard.ingest.append(batch, {(TIMER_TOPIC, 0): 64})
        drain(shard, clock)
        state = shard.directory(Role.DEQUEUE).state
        marks, close = state.commit().marks, state.close()
        assert close is not None
        if state.needs_recovery or any(marks.get(p, 0) < c for p, c in close.marks.items()):
            return "waits for ingest"
    except DuewheelError:
        return "refused"
    finally:
        for role in Role:
            shard.kill(role)
    # What is above the marks, because its commit page is lost, Spark would bring again.
    wanted = {source for source in sample.expected if is_below(marks, source)}
    if any(is_below(marks, CANCELLED[source]) for source in publisher.revived):
        return "a cancelled one is delivered"
    came = publisher.found.keys() | publisher.chased
    return "whole" if came >= wanted else "something is missing"


LOGS = ("timerlog/*", "messages/*", "cancelled/*", "cancels/*", "requests/*")


FILES = ("state", "timerwheel", "timerwheel", "topics", "cancel_bounds", *LOGS)
# In the state file: identity, live fields, and both pages of every kind.
PAGES = (0, 4_096, *range(8_192, 8_192 + 6 * 262_144, 262_144))
_PIECE = 300


def damaged_file(sample: Sample, data: st.DataObject, damage: Change) -> tuple[Path, bytes]:
    """One of the files, and what is in it now."""
    kind = data.draw(st.sampled_from(FILES))
    path = data.draw(st.sampled_from(sorted(sample.path.glob(kind))))
    file, whole = path.relative_to(sample.path), path.read_bytes()
    if kind != "state":
        return file, damage(data, whole)
    at = data.draw(st.sampled_from(PAGES))
    piece = damage(data, whole[at : at + _PIECE])[:_PIECE].ljust(_PIECE, b"\0")
    return file, whole[:at] + piece + whole[at + _PIECE :]


@given(data=st.data())
def test_damage_is_reported_and_never_delivered(
    draw_sample: Callable[[st.DataObject], Sample],
    place: Path,
    damage: Change,
    data: st.DataObject,
) -> None:
    sample = draw_sample(data)
    file, content = damaged_file(sample, data, damage)
    damaged_copy(sample, place, file, content)
    report = check(place, WHEEL)
    damaged_copy(sample, place, file, content)
    found = outcome(sample, place, ingest_too=False)
    event(f"{file.parts[0]}: {found}, {'reported' if report.findings else 'not reported'}")
    assert found not in FAULTS or report.findings


@given(data=st.data())
def test_damage_is_not_built_upon(
    draw_sample: Callable[[st.DataObject], Sample],
    place: Path,
    damage: Change,
    data: st.DataObject,
) -> None:
    sample = draw_sample(data)
    file, content = damaged_file(sample, data, damage)
    damaged_copy(sample, place, file, content)
    found = outcome(sample, place, ingest_too=True)
    event(f"{file.parts[0]}: {found}")
    assert found not in FAULTS or check(place, WHEEL).findings
