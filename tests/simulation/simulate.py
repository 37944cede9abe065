"""Runs seeds of the simulation, in two processes, and prints what they violated: a line of JSON.

    make simulate SEEDS=10000 FIRST=0
    make simulate SEEDS=1 FIRST=4711 VERBOSE=1      the schedule of one seed, as it was
    make simulate-nightly                           from seeds that nobody has chosen

A seed is the same run on every host at any time. For each seed with a violation the command to
repeat it is printed. A seed that takes far more processor time than any other has `no end`: a
process loops in the middle of a step, which only time can show.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import logging
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import count, islice
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console
from rich.progress import track

ROOT = Path(__file__).resolve().parents[2]
PROCESSES = 2
AT_ONCE = 20  # seeds that a process takes at a time
SEED_CPU_S = 60.0  # a seed takes some seconds
MEMORY = Path("/dev/shm")
TIMELINE = "DUEWHEEL_TIMER__TIMELINE"  # `make test-rocksdb` sets it
RANDOM_BELOW = 1_000_000_000  # a first seed that nobody has chosen


def prepare() -> None:
    """Once in each process, before its first seed."""
    import structlog

    logging.disable(logging.ERROR)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    # The last place to look for modules: a folder called `wheel` lies there.
    sys.path.append(str(ROOT))
    importlib.import_module("tests.simulation.schedule")
    gc.freeze()  # `run_some` collects garbage after each seed: not to visit every module then


@dataclass
class Outcome:
    """What came of some seeds.

    Attributes:
        violations: each with its seed.
        met: how often each thing has happened.
        lines: the schedule of the last seed.
    """

    violations: list[dict[str, Any]] = field(default_factory=list)
    met: Counter[str] = field(default_factory=Counter)
    lines: list[str] = field(default_factory=list)

    def add(self, other: Outcome) -> None:
        self.violations += other.violations
        self.met += other.met
        self.lines = other.lines


class NoEndError(BaseException):
    """A seed takes too long. No Exception: what goes round may take these for its own."""


@contextmanager
def ended_after(cpu_s: float) -> Iterator[None]:
    """Raise NoEndError in here after so much time of the processor, whatever else it does."""

    def end(_: int, frame: FrameType | None) -> None:
        where = frame.f_code.co_qualname if frame is not None else "?"
        raise NoEndError(f"in {where}, after {cpu_s:.0f} s")

    signal.signal(signal.SIGPROF, end)
    signal.setitimer(signal.ITIMER_PROF, cpu_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def run_seed(seed: int, folder: Path) -> Outcome:
    """One run, its files in a folder of its own below `folder`."""
    from tests.simulation.schedule import Schedule

    root = folder / str(seed)
    schedule = Schedule(seed, root)
    history = schedule.host.history
    try:
        with ended_after(SEED_CPU_S):
            found = [asdict(violation) for violation in schedule.run()]
    except NoEndError as error:
        found = [{"invariant": "no end", "detail": str(error)}]
    except Exception:  # noqa: BLE001 - a seed that breaks the simulation is a finding too
        found = [{"invariant": "simulation", "detail": traceback.format_exc()}]
    finally:
        schedule.host.end()
        shutil.rmtree(root, ignore_errors=True)
    return Outcome([{"seed": seed, **each} for each in found], history.counts, history.lines)


def run_some(folder: Path, until_violation: bool, seeds: list[int]) -> Outcome:
    """Several runs, one after another, in this process; perhaps up to the first violation."""
    outcome = Outcome()
    for seed in seeds:
        outcome.add(run_seed(seed, folder))
        # A run is one circle of objects. Python would keep hundreds of megabytes of past ones.
        gc.collect()
        if until_violation and outcome.violations:
            break
    outcome.lines = []
    return outcome


def chosen(first: int, seeds: int, *, resharding: bool) -> list[int]:
    """So many seeds from `first` on; with `resharding`, only those that may change the shards."""
    if not resharding:
        return list(range(first, first + seeds))
    from tests.simulation.resharding import happens

    return list(islice(filter(happens, count(first)), seeds))


def run_all(folder: Path, seeds: list[int], *, until_violation: bool) -> Outcome:
    """These seeds, in several processes; no more behind the first violation."""
    size = min(AT_ONCE, -(-len(seeds) // PROCESSES))
    pieces = [seeds[at : at + size] for at in range(0, len(seeds), size)]
    outcome = Outcome()
    with multiprocessing.get_context("forkserver").Pool(PROCESSES, prepare) as pool:
        outcomes = pool.imap(partial(run_some, folder, until_violation), pieces)
        console = Console(stderr=True)
        for found in track(outcomes, f"each {size} seeds", len(pieces), console=console):
            outcome.add(found)
            for seed in dict.fromkeys(violation["seed"] for violation in found.violations):
                console.print(f"violated: make simulate SEEDS=1 FIRST={seed} VERBOSE=1")
            if until_violation and outcome.violations:
                break
    return outcome


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=300)
    parser.add_argument("--first", default="0", help='a number, or "random"')
    parser.add_argument("--only", type=int, nargs="*", help="these seeds")
    parser.add_argument("--resharding", action="store_true", help="only seeds that may reshard")
    timeline = os.environ.get(TIMELINE, "wheel")
    parser.add_argument("--timeline", choices=["wheel", "rocksdb"], default=timeline)
    parser.add_argument("--verbose", action="store_true", help="print the schedule of one seed")
    parser.add_argument("--until-violation", action="store_true", help="end at the first one")
    args = parser.parse_args()
    os.environ[TIMELINE] = args.timeline  # of all processes: harness/timelines.py
    begun_s = time.monotonic()
    first = random.randrange(RANDOM_BELOW) if args.first == "random" else int(args.first)
    memory = MEMORY if MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="duewheel-simulation-", dir=memory) as name:
        folder = Path(name)
        if args.verbose:
            prepare()
            outcome = run_seed(first, folder)
            print("\n".join(outcome.lines), file=sys.stderr)
        else:
            sys.path.append(str(ROOT))
            seeds = args.only or chosen(first, args.seeds, resharding=args.resharding)
            outcome = run_all(folder, seeds, until_violation=args.until_violation)
    wall_s = time.monotonic() - begun_s
    ran = 1 if args.verbose else len(seeds)
    result = {
        "first": first,
        "seeds": ran,
        "violations": outcome.violations,
        "wall_s": round(wall_s, 1),
        "seeds_per_s": round(ran / wall_s, 1),
        "met": dict(sorted(outcome.met.items())),
    }
    print(json.dumps(result))
    return 1 if outcome.violations else 0


if __name__ == "__main__":
    # The order of sets is one more thing that must be the same each time.
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.execve(
            sys.executable,
            [sys.executable, *sys.orig_argv[1:]],
            {**os.environ, "PYTHONHASHSEED": "0"},
        )
    sys.exit(main())
