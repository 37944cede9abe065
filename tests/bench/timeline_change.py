"""A change of `timer.timeline` with a million pending timers: real processes, Kafka and Spark.

    timeline_change.py [--pending N] [--rounds N]

One shard, filled on the wheel. It is stopped and started on the same kind, then on the other one,
and back; each time 100 timers become due while it is away, 90 s later: some seven minutes in all.
Prints a Markdown table: how long the stop took, how long after the start the first of them was
delivered, and when nothing was left to be read again from Kafka. All must have come once, and the
others must still be pending.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
# The last place to look for modules: a folder called `wheel` lies there.
sys.path.append(str(ROOT))

from tests.bench.duewheel_system import DuewheelSystem  # noqa: E402
from tests.bench.figures import Recorder  # noqa: E402
from tests.bench.session import CLOCK, DEADLINE_S, Session, fill, sleep_until, wait  # noqa: E402
from tests.bench.tables import markdown  # noqa: E402

from duewheel.ops.shard.status import read_status  # noqa: E402
from duewheel.wheel.slots import TimelineKind  # noqa: E402

PENDING = 1_000_000
AWAY_MS = 90_000  # enough to stop on a busy machine
DUE = 100
# Each start's kind; the shard is filled on the first one.
STARTS: tuple[TimelineKind, ...] = ("wheel", "wheel", "rocksdb", "rocksdb", "wheel")


@dataclass(frozen=True)
class Change:
    """A stop and a start, in seconds."""

    before: str
    after: str
    stop_s: float
    first_s: float
    whole_s: float


def change(
    system: DuewheelSystem, session: Session, before: TimelineKind, after: TimelineKind
) -> Change:
    load = session.load(np.full(DUE, CLOCK.now_ms() + AWAY_MS))
    session.enqueue(load)
    begun_s = time.monotonic()
    system.halt()
    stop_s = time.monotonic() - begun_s
    if len(session.received(load)):
        raise TimeoutError("the shard delivered before it was down")
    system.set_timeline(after)
    sleep_until(int(load.due_ms[0]) + 100)
    start_ms, begun_s = CLOCK.now_ms(), time.monotonic()
    system.resume()
    session.await_received(load, DEADLINE_S)
    wait(lambda: read_status(system.settings, CLOCK).ingest.state == "running" and system.is_whole)
    whole_s = time.monotonic() - begun_s
    rows = session.received(load)
    if (
        len(rows) != DUE
        or (pending := read_status(system.settings, CLOCK).pending) != session.pending
    ):
        raise RuntimeError(f"{len(rows)} of {DUE} have come, {pending:,} are pending")
    first_s = (int(rows["stored_ms"].min()) - start_ms) / 1000
    print(f"{before} to {after}: first delivery after {first_s:.1f} s", file=sys.stderr)
    return Change(before, after, stop_s, first_s, whole_s)


def measure(pending: int) -> list[Change]:
    """A shard, from its making to the last start."""
    with tempfile.TemporaryDirectory(prefix="duewheel-bench-") as folder:
        system = DuewheelSystem(Path(folder))
        system.start()
        try:
            session = Session(system, Recorder({}))
            fill(session, pending)
            return [change(system, session, *pair) for pair in itertools.pairwise(STARTS)]
        finally:
            system.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pending", type=int, default=PENDING)
    parser.add_argument("--rounds", type=int, default=1)
    args = parser.parse_args()
    load = os.getloadavg()[0]
    changes = [each for _ in range(args.rounds) for each in measure(args.pending)]
    head = ["from", "to", "stop", "start to the first delivery", "to nothing left to read again"]
    rows = [
        [
            each.before,
            each.after,
            *(f"{s:.1f} s" for s in (each.stop_s, each.first_s, each.whole_s)),
        ]
        for each in changes
    ]
    print(markdown(head, rows))
    print(f"\n{args.pending:,} pending, load {load:.1f} before, niceness {os.nice(0)}")


if __name__ == "__main__":
    main()
