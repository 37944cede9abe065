"""What cancels wait for until they are answered: the time of each, phase by phase.

A broker of its own, `duewheel run`, many pending timers. Then cancels at random intervals, first of
pending timers, then of delivered ones and of nothing; and bursts. Of each is written down when

    sent        the client was asked for it
    written     its record was acknowledged
    planned     Spark had planned the batch that takes it: its file of offsets
    taken       the batch was committed: marks of the commit page
    known       a closing had it: C of the close page
    left        the transaction with its answer was committed, or that with its chase: `a` of the
                mirrored progress
    received    the client had the answer; of a delivered timer that of the chase

The pages of `state` are looked at every few milliseconds, so a phase may be off by as much; and the
progress is mirrored after its commit, when the client may have the answer already. Prints lines of
JSON: for each workload the time from each moment to the next, and from the first to the last; then
the slowest cancels, with the share of their time in which some process of this host waited for a
core or for the disk (`/proc/pressure`), and in which the host's cores were taken away (steal). All
times in ms, all shares in percent.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
# The last place to look for modules: a folder called `wheel` lies there.
sys.path.append(str(ROOT))

from tests.bench import session as work  # noqa: E402
from tests.bench.duewheel_system import REPLIES, TARGET, TIMERS, DuewheelSystem  # noqa: E402
from tests.bench.figures import Recorder  # noqa: E402

from duewheel.checkpoints.commit_and_close_pages import Marks  # noqa: E402
from duewheel.checkpoints.state_file import State  # noqa: E402
from duewheel.client import Answer, Cancel, DelayProducer  # noqa: E402
from duewheel.clock import SystemClock  # noqa: E402
from duewheel.ops.shard.status import read_status  # noqa: E402
from duewheel.runtime.ingest_process import CHECKPOINT  # noqa: E402
from duewheel.schemas.arrays import Int64  # noqa: E402
from duewheel.schemas.batches import TopicPartition  # noqa: E402
from duewheel.streaming.batch_attempt import SPARK_DIR  # noqa: E402
from duewheel.streaming.spark_checkpoint import end_offsets  # noqa: E402

MOMENTS = ("sent", "written", "planned", "taken", "known", "left", "received")
LOOK_S = 0.004
LOOK_AT_MACHINE_MS = 100
LOOK_AT_BATCHES_S = 2.0  # Spark keeps the files of a hundred
BUCKETS_MS = (50, 100, 200, 400, 800, 1_600)
SPACING_MS = (200, 600)
ANSWER_S = 60.0
SHOWN = 10
CLOCK = SystemClock()


class Rising:
    """A vector of offsets that only rise, and when each was first seen."""

    def __init__(self) -> None:
        self._seen: dict[TopicPartition, tuple[list[int], list[int]]] = {}

    def note(self, offsets: Marks, at_ms: int) -> None:
        """What is seen at this time."""
        for partition, offset in offsets.items():
            known, times = self._seen.setdefault(partition, ([], []))
            if not known or offset > known[-1]:
                known.append(offset)
                times.append(at_ms)

    def passed(self, partition: TopicPartition, offset: int) -> int:
        """When it was first seen beyond an offset."""
        known, times = self._seen[partition]
        return times[bisect_right(known, offset)]


class Watch:
    """Looks at a data directory and at this host, in a thread."""

    def __init__(self, data: Path) -> None:
        self._checkpoint = data / SPARK_DIR / CHECKPOINT
        self._state = State.open(data)
        self._next_batch = 0
        self._machine: list[tuple[int, int, int, int]] = []
        self.planned, self.taken, self.known, self.left = (Rising() for _ in range(4))

    def look(self) -> None:
        """At the pages."""
        state, now_ms = self._state, CLOCK.now_ms()
        self.taken.note(state.commit().marks, now_ms)
        close, mirror = state.close(), state.mirror()
        if close is not None:
            self.known.note(close.marks, now_ms)
        if mirror is not None:
            parts = mirror.progress.partitions
            self.left.note({p: part.replied_below for p, part in parts.items()}, now_ms)
        if not self._machine or now_ms - self._machine[-1][0] > LOOK_AT_MACHINE_MS:
            self._machine.append((now_ms, _waited_us("cpu"), _waited_us("io"), _stolen_us()))

    def look_at_batches(self) -> None:
        """At the files of those that Spark has planned."""
        folder = self._checkpoint / "offsets"
        found = sorted(int(path.name) for path in folder.iterdir() if path.name.isdecimal())
        for batch in found[bisect_left(found, self._next_batch) :]:
            planned_ms = (folder / str(batch)).stat().st_mtime_ns // 1_000_000
            self.planned.note(end_offsets(self._checkpoint, batch), planned_ms)
            self._next_batch = batch + 1

    def machine(self, began_ms: int, ended_ms: int) -> dict[str, float]:
        """The shares of this time."""
        times = [look[0] for look in self._machine]
        first = self._machine[max(0, bisect_left(times, began_ms) - 1)]
        last = self._machine[min(len(times) - 1, bisect_left(times, ended_ms))]
        took_ms = last[0] - first[0]
        shares = [(b - a) / took_ms / 10 for a, b in zip(first, last, strict=True)]
        return dict(zip(("cpu", "io", "steal"), (round(s, 1) for s in shares[1:]), strict=True))

    def close(self) -> None:
        """Let go of the state."""
        self._state.release()


def _waited_us(what: str) -> int:
    """How long some process of this host has waited for it, since boot."""
    some = Path(f"/proc/pressure/{what}").read_text().splitlines()[0]
    return int(some.rpartition("total=")[2])


def _stolen_us() -> int:
    return int(Path("/proc/stat").read_text().split()[8]) * 10_000


@dataclass
class TimedCancel:
    """A cancel, and when what happened to it."""

    sent_ms: int
    future: Future[Cancel]
    written_ms: int = 0
    received_ms: int = 0
    done: Future[Answer] = field(default_factory=Future)

    @classmethod
    def of(cls, ask: Callable[[], Future[Cancel]]) -> TimedCancel:
        """Send it."""
        sent_ms = CLOCK.now_ms()
        asked = cls(sent_ms, ask())
        asked.future.add_done_callback(asked._written)
        return asked

    def _written(self, future: Future[Cancel]) -> None:
        self.written_ms = CLOCK.now_ms()
        reply = future.result().reply
        assert reply is not None, "the client has a reply topic"
        reply.add_done_callback(self._received)

    def _received(self, reply: Future[Answer]) -> None:
        self.received_ms = CLOCK.now_ms()
        self.done.set_result(reply.result())

    def moments_ms(self, watch: Watch) -> list[int]:
        """As MOMENTS are."""
        cancel = self.future.result()
        place = (cancel.timer_topic, cancel.partition), cancel.offset
        seen = (watch.planned, watch.taken, watch.known, watch.left)
        return [self.sent_ms, self.written_ms, *(s.passed(*place) for s in seen), self.received_ms]


class CancelLoad:
    """Cancels of one shard, and what is watched meanwhile."""

    def __init__(
        self, system: DuewheelSystem, client: DelayProducer, watch: Watch, seed: int
    ) -> None:
        self._system, self._client, self._watch = system, client, watch
        self._dice = random.Random(seed)
        self._count = 0

    def timers(self, count: int, delay: str) -> list[str]:
        """Handles of new ones, once all of them are in the wheel."""
        before = self._system.enqueued()
        asked = [
            self._client.schedule(TARGET, b"", key=b"%d" % number, delay=delay)
            for number in range(count)
        ]
        handles = [timer.result(work.DEADLINE_S).handle for timer in asked]
        work.wait(lambda: self._system.enqueued() >= before + count)
        return handles

    def cancel(self, handle: str) -> TimedCancel:
        return TimedCancel.of(lambda: self._client.cancel(handle))

    def cancel_nothing(self, _handle: str) -> TimedCancel:
        self._count += 1
        name = f"nobody-{self._count}"
        return TimedCancel.of(lambda: self._client.cancel(name, key=name.encode()))

    def one_by_one(
        self, handles: Iterable[str], ask: Callable[[str], TimedCancel]
    ) -> tuple[int, list[TimedCancel]]:
        """At random intervals, which begin with the cancel before."""
        began_ms, asked = CLOCK.now_ms(), []
        for handle in handles:
            asked.append(ask(handle))
            next_ms = asked[-1].sent_ms + self._dice.randint(*SPACING_MS)
            CLOCK.sleep(max(0, next_ms - CLOCK.now_ms()) / 1_000)
        return began_ms, asked

    def bursts(self, handles: Sequence[str], size: int) -> tuple[int, list[TimedCancel]]:
        """Each when the one before is answered."""
        began_ms, asked = CLOCK.now_ms(), []
        for first in range(0, len(handles), size):
            burst = [self.cancel(handle) for handle in handles[first : first + size]]
            wait([each.done for each in burst], ANSWER_S)
            CLOCK.sleep(self._dice.randint(*SPACING_MS) / 1_000)
            asked += burst
        return began_ms, asked

    def report(self, workload: str, run: tuple[int, list[TimedCancel]], answer: Answer) -> None:
        """What came of a run; all of it must have been answered so."""
        began_ms, asked = run
        for each in asked:
            assert each.done.result(ANSWER_S) == answer
        CLOCK.sleep(2 * LOOK_AT_BATCHES_S)
        at_ms = np.array([each.moments_ms(self._watch) for each in asked])
        config: dict[str, object] = {
            "cancels": len(asked),
            "pending": read_status(self._system.settings, SystemClock()).pending,
            "machine": self._watch.machine(began_ms, CLOCK.now_ms()),
            "load": _load(),
        }
        for number, (begin, end) in enumerate(pairwise(MOMENTS)):
            _distribution(
                workload, f"{begin} → {end}", at_ms[:, number + 1] - at_ms[:, number], config
            )
        total = at_ms[:, -1] - at_ms[:, 0]
        _distribution(workload, f"{MOMENTS[0]} → {MOMENTS[-1]}", total, config)
        for row in np.argsort(-total)[:SHOWN].tolist():
            self._show(workload, at_ms[row])

    def _show(self, workload: str, moments_ms: Int64) -> None:
        took = np.diff(moments_ms)
        shown = dict(zip(MOMENTS[1:], took.tolist(), strict=True))
        machine = self._watch.machine(int(moments_ms[0]), int(moments_ms[-1]))
        line = {"workload": workload, "sent_ms": int(moments_ms[0])}
        line |= {"took": int(took.sum()), "until": shown, "machine": machine}
        print(json.dumps(line), flush=True)


def _distribution(workload: str, metric: str, took: Int64, config: dict[str, object]) -> None:
    quantiles = {"p50": 50, "p95": 95, "p99": 99, "max": 100}
    bounds = [-np.inf, *BUCKETS_MS, np.inf]
    names = [f"<{ms}" for ms in BUCKETS_MS] + [f">={BUCKETS_MS[-1]}"]
    counts = np.histogram(took, bounds)[0].tolist()
    line = {
        "workload": workload,
        "metric": metric,
        "unit": "ms",
        **{name: round(float(np.percentile(took, q))) for name, q in quantiles.items()},
        "histogram": dict(zip(names, counts, strict=True)),
        "config": config,
    }
    print(json.dumps(line, ensure_ascii=False), flush=True)


def _load() -> float:
    return float(Path("/proc/loadavg").read_text().split()[0])


@contextmanager
def repeated(step: Callable[[], object], every_s: float) -> Iterator[None]:
    """Do `step` in a thread of its own for the length of a with block."""
    ending = threading.Event()

    def run() -> None:
        while not ending.wait(every_s):
            step()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join()


@contextmanager
def watching(watch: Watch) -> Iterator[None]:
    """For the length of a with block."""
    with repeated(watch.look, LOOK_S), repeated(watch.look_at_batches, LOOK_AT_BATCHES_S):
        yield
    watch.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dir", type=Path, help="below which the data directory is made")
    parser.add_argument("--pending", type=int, default=100_000)
    parser.add_argument("--cancels", type=int, default=600, help="of pending timers")
    parser.add_argument("--others", type=int, default=60, help="of delivered timers; of nothing")
    parser.add_argument("--bursts", type=int, default=5)
    parser.add_argument("--burst", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.dir) as path, ExitStack() as stack:
        system = DuewheelSystem(Path(path))
        stack.callback(system.stop)
        system.start()
        session = work.Session(system, Recorder())
        work.warm(session)
        warmed = session.number
        session.enqueue(work.far_off(session, args.pending))
        client = stack.enter_context(
            DelayProducer(TIMERS, bootstrap_servers=system.servers, reply_topic=REPLIES)
        )
        watch = Watch(system.settings.storage.data_dir)
        stack.enter_context(watching(watch))
        load = CancelLoad(system, client, watch, args.seed)
        pending = load.timers(args.cancels, "2h")
        delivered = load.timers(args.others, "0s")
        work.wait(
            lambda: read_status(system.settings, SystemClock()).delivered >= warmed + args.others
        )
        burst = load.timers(args.bursts * args.burst, "2h")
        load.report("one by one", load.one_by_one(pending, load.cancel), Answer.CANCELLED)
        late = load.one_by_one(delivered, load.cancel)
        load.report("of delivered timers", late, Answer.ALREADY_DELIVERED)
        nothing = load.one_by_one(delivered, load.cancel_nothing)
        load.report("of nothing", nothing, Answer.UNKNOWN)
        load.report(f"bursts of {args.burst}", load.bursts(burst, args.burst), Answer.CANCELLED)


if __name__ == "__main__":
    main()
