"""`make bench-timelines`: both timelines side by side, through the engine, without Kafka and Spark.

    timelines.py OUT [--full | --pending N] [--rounds N] [--scale X]
                     [--steps STEP …] [--kinds KIND …]

Each step of timeline_steps.py is a process of its own, and the kinds take turns: a machine that is
slow for some minutes is so for both. With 1,000,000 pending timers, twice, and in `--full` with
10,000,000, once. OUT is rewritten after each step. `report.py --record OUT` writes their
table of docs/benchmarks.md. The figures of `--scale` mean nothing, and are not recorded.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
# The last place to look for modules: a folder called `wheel` lies there.
sys.path.append(str(ROOT))

from tests.bench.bench import attempt, machine, save  # noqa: E402
from tests.bench.figures import Recorder  # noqa: E402
from tests.bench.plans import Sizes  # noqa: E402

from duewheel.wheel.storage.timelines.kinds import FILES  # noqa: E402

PENDING, PENDING_FULL = 1_000_000, 10_000_000
DIRECTORIES = (("spread", "restart", "cancels", "ids", "delivery", "recovery"), ("back-offs",))
WORKLOAD = "timeline, {step}: {pending:,}"


@dataclass(frozen=True)
class Chosen:
    """What `--steps` and `--kinds` leave."""

    steps: Sequence[str]
    kinds: Sequence[str]


def measure(recorder: Recorder, chosen: Chosen, pending: int, save: Callable[[], None]) -> None:
    """The steps, each on both kinds in turn."""
    for steps in DIRECTORIES:
        with ExitStack() as stack:
            folders = {
                kind: stack.enter_context(tempfile.TemporaryDirectory(prefix="duewheel-bench-"))
                for kind in chosen.kinds
            }
            for step in filter(chosen.steps.__contains__, steps):
                for kind, folder in folders.items():
                    run_step(recorder, step, kind, pending, folder)
                    save()


def run_step(recorder: Recorder, step: str, kind: str, pending: int, folder: str) -> None:
    """
    Raises:
        CalledProcessError: it failed.
    """
    script = Path(__file__).with_name("timeline_steps.py")
    command = [sys.executable, "-P", str(script), step, kind, str(pending), folder]
    run = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    config = {"pending": pending, "body_bytes": 100, "niceness": os.nice(0)}
    # Other lines are the log's.
    for line in run.stdout.splitlines():
        if line.startswith('{"metric"'):
            each: dict[str, Any] = json.loads(line)
            name = WORKLOAD.format(step=step, pending=pending)
            recorder.add(kind, name, each["metric"], each["unit"], each["value"], config)
            print(f"{kind:8} {name:34} {each['metric']:36} {each['value']:12,.6g} {each['unit']}")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, help="file to write")
    parser.add_argument("--full", action="store_true", help="with 10,000,000 pending, too")
    parser.add_argument("--pending", type=int, help="with so many alone, once")
    parser.add_argument("--rounds", type=int, default=2, help="with 1,000,000 pending")
    parser.add_argument("--scale", type=float, default=1.0, help="of all sizes")
    every = [step for steps in DIRECTORIES for step in steps]
    parser.add_argument("--steps", nargs="+", choices=every, default=every)
    parser.add_argument("--kinds", nargs="+", choices=list(FILES), default=list(FILES))
    args = parser.parse_args()
    scaled = {"scale": args.scale} if args.scale != 1.0 else {}
    recorder, sizes = Recorder(machine() | scaled), Sizes(args.scale)
    chosen = Chosen(args.steps, args.kinds)
    many = [PENDING] * args.rounds + [PENDING_FULL] * args.full
    todo = many if args.pending is None else [args.pending]
    begun_s, whole = time.monotonic(), True
    for pending in todo:
        flush = partial(save, args.out, recorder)
        whole &= attempt(partial(measure, recorder, chosen, sizes.timers(pending), flush))
    print(f"== {(time.monotonic() - begun_s) / 60:.1f} min")
    return 0 if whole else 1


if __name__ == "__main__":
    sys.exit(main())
