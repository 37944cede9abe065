"""Whether the simulation finds what it is for: faults planted one at a time in a copy of the code.

    python -P tests/simulation/planted.py [--seeds 300] [name …]

Prints a line per fault: what it is, what found it first, and after how many seeds.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SIMULATE = Path(__file__).with_name("simulate.py")


@dataclass(frozen=True)
class Planted:
    """One clause of the code, broken.

    Attributes:
        breaks: the invariant.
        what: in words.
        path: below src/duewheel.
        old, new: the text, which must be there once, and what takes its place.
    """

    breaks: str
    what: str
    path: str
    old: str
    new: str


PLANTED = {
    "slot-early": Planted(
        "1",
        "a slot is closed one slot early",
        "wheel/layout.py",
        "    return now_ms // precision_ms\n",
        "    return now_ms // precision_ms + 1\n",
    ),
    "slot-floor": Planted(
        "1",
        "the slot of a due time is rounded down",
        "wheel/layout.py",
        "return -(-due_ms // precision_ms)",
        "return due_ms // precision_ms",
    ),
    "ring-full": Planted(
        "2",
        "marks pass rows that the ring cannot hold",
        "wheel/engine.py",
        "            marks = self._marks_before(batch, fits, marks)\n"
        "            rows = self._rows_below(batch, marks)\n",
        "            rows = np.flatnonzero(fits)\n",
    ),
    "ring-overwritten": Planted(
        "2",
        "the ring is never full",
        "wheel/engine.py",
        "return slots - delivered < self._directory.config.ring",
        "return slots >= delivered",
    ),
    "no-redo": Planted(
        "2",
        "a half-applied batch is not redone",
        "wheel/data_directory.py",
        "if not commit.applied:",
        "if False:",
    ),
    "closed-meanwhile": Planted(
        "2, 7",
        "rows whose slot was closed meanwhile stay there",
        "wheel/engine.py",
        "if not len(written.slot) or written.slot[0] > floor:",
        "if floor:",
    ),
    "closed-slot": Planted(
        "7",
        "what comes late goes to its slot, closed or not",
        "wheel/engine.py",
        "return np.maximum(slots, self._floor() + 1), rolled",
        "return slots, rolled",
    ),
    "unlinked": Planted(
        "2",
        "hours are unlinked an hour early",
        "wheel/data_directory.py",
        "hour = hour_of(min(r, durable.r) + 1, self.config.precision_ms)",
        "hour = hour_of(min(r, durable.r) + 1, self.config.precision_ms) + 1",
    ),
    "checkpoint-ahead": Planted(
        "2",
        "a Spark checkpoint ahead of the marks is believed",
        "ingest.py",
        "if mark is not None and offset > mark:",
        "if mark is not None and offset > mark + 10**9:",
    ),
    "marks-without-rows": Planted(
        "2",
        "an uncommitted batch moves the marks: they are written before its rows are placed",
        "wheel/engine.py",
        "            self._directory.wheel.apply(runs, number)\n            state.mark_applied()\n",
        "            state.mark_applied()\n            self._directory.wheel.apply(runs, number)\n",
    ),
    "doubt": Planted(
        "3",
        "a transaction in doubt is always tried again",
        "wheel/dequeue.py",
        "if found.encode() == attempted.encode():",
        "if False:",
    ),
    "doubt-committed": Planted(
        "2",
        "a transaction in doubt is always taken for committed",
        "wheel/dequeue.py",
        "                if self._happened(progress):\n",
        "                if self._happened(progress) or True:\n",
    ),
    "half-slot": Planted(
        "3",
        "what of a half-delivered slot is out is forgotten",
        "wheel/pipeline.py",
        "return done\n",
        "return done & False\n",
    ),
    "half-slot-of-range": Planted(
        "3",
        "D forgets the chunks of the slot before this one",
        "wheel/dequeue.py",
        "before = self._below if self._r == ready.r_after else {}",
        "before = {}",
    ),
    "apply-twice": Planted(
        "3",
        "a batch that is applied again is linked again",
        "wheel/timer_wheel.py",
        'todo = ~(named & (entries["magic"] == magic) & (entries["num"] > 0))',
        "todo = named | True",
    ),
    "replay": Planted(
        "3",
        "a batch that Spark repeats is taken again",
        "streaming/sink.py",
        "fresh = _rows_from(batch, known)",
        "fresh = np.arange(len(batch))",
    ),
    "order-of-closed": Planted(
        "4",
        "rows moved to the earliest open slot do not take those along that are there",
        "wheel/engine.py",
        'count = int(np.searchsorted(written.slot, earliest, "right"))',
        'count = int(np.searchsorted(written.slot, floor, "right"))',
    ),
    "order-of-batch": Planted(
        "4",
        "rows of one slot are written in reverse",
        "wheel/placing.py",
        "order: Int64 = keys % count",
        "order: Int64 = np.lexsort((-np.arange(count), slots))",
    ),
    "chunk-bytes": Planted(
        "5",
        "chunks are not bounded in bytes",
        "wheel/slot_scan.py",
        'int(np.searchsorted(sizes, bytes_max, "right"))',
        "len(sizes)",
    ),
    "chunk-records": Planted(
        "5",
        "chunks are not bounded in records",
        "wheel/slot_scan.py",
        "min(self._next + records_max, int(self._ends[-1]))",
        "int(self._ends[-1])",
    ),
    "roll-origin": Planted(
        "bytes",
        "a rolled copy forgets where its first copy lay",
        "schemas/record_tail.py",
        "framed(decimals(origin_offset))",
        "framed(decimals(origin_offset * 0))",
    ),
    "topic-ids": Planted(
        "bytes",
        "two topics get the same number",
        "wheel/topic_names.py",
        "                self._ids[name] = len(self._names)\n",
        "                self._ids[name] = 1 if len(self._names) == 2 else len(self._names)\n",
    ),
}


def copied(planted: Planted, folder: Path) -> Path:
    """A copy of the package with the fault in it."""
    package = folder / "src" / "duewheel"
    shutil.copytree(
        ROOT / "src" / "duewheel", package, ignore=shutil.ignore_patterns("__pycache__")
    )
    path = package / planted.path
    text = path.read_text()
    if text.count(planted.old) != 1:
        raise SystemExit(f"{planted.path} holds {planted.old!r} {text.count(planted.old)} times")
    path.write_text(text.replace(planted.old, planted.new))
    return folder / "src"


def found(planted: Planted, seeds: int) -> str:
    """What finds the fault, and after how many seeds."""
    with tempfile.TemporaryDirectory(prefix="duewheel-planted-") as folder:
        source = copied(planted, Path(folder))
        done = subprocess.run(
            [sys.executable, "-P", str(SIMULATE), "--seeds", str(seeds), "--until-violation"],
            env={**os.environ, "PYTHONPATH": str(source)},
            capture_output=True,
            text=True,
            check=False,
        )
    if not done.stdout:
        return f"broken: {done.stderr[-300:]}"
    violations = json.loads(done.stdout)["violations"]
    if not violations:
        return f"NOT FOUND in {seeds} seeds"
    first = violations[0]
    return f"{first['seed'] + 1} seeds: {first['invariant']}: {first['detail'][:90]!r}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=300)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(PLANTED)}; none: all")
    args = parser.parse_args()
    missed = 0
    for name in args.names or PLANTED:
        planted = PLANTED[name]
        answer = found(planted, args.seeds)
        missed += answer.startswith(("NOT", "broken"))
        print(f"{name} ({planted.breaks}: {planted.what}): {answer}", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
