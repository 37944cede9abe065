"""`make bench` and `make bench-full`: every workload on every system, one after the other.

    bench.py OUT [--full] [--rounds N] [--scale X] [--only WORKLOAD …] [--systems NAME …]

A session is a fresh start of one system on an empty store, and some workloads (workloads.py).
Within a round each session is done by all systems in turn, and every other round turns the order
round: a machine that is slow for some minutes is so for all of them. OUT is rewritten after each
session, so that a run that breaks off keeps what it has; a workload that fails is left out, and the
exit code is 1. `rocketmq-100` is RocketMQ with its finest precision. `--scale 0.01` tries the bench
out; its figures mean nothing.

RocketMQ comes as Maven artifacts: `mvn` and a JDK from 17 on must be there. The modules:

    figures.py              the schema of a line, and the medians of runs
    system.py               what a system must do; duewheel_system.py, rocketmq_system.py do it
    workloads.py            what is done to each system, and measured
    usage.py                processor time and memory of processes
    kafka_wire.py           ready-made batches to and from Kafka; kafka_consumer.py receives them
    rocketmq/               load and consumer in Java
    report.py, svg.py       docs/benchmarks.md
    engine.py, cancels.py   parts of duewheel alone, in `--full`
    cancel_phases.py        by hand: what a cancel waits for until it is answered
"""

from __future__ import annotations

import argparse
import itertools
import os
import platform
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
# The last place to look for modules: a folder called `wheel` lies there.
sys.path.append(str(ROOT))

from tests.bench import cancels, engine  # noqa: E402
from tests.bench import workloads as work  # noqa: E402
from tests.bench.duewheel_system import DuewheelSystem  # noqa: E402
from tests.bench.figures import Recorder, write  # noqa: E402
from tests.bench.rocketmq_system import RocketMqSystem, build  # noqa: E402
from tests.bench.system import System  # noqa: E402

from duewheel.errors import DuewheelError  # noqa: E402

WARM_TIMERS = 20_000
SYSTEMS = ("duewheel", "rocketmq", "rocketmq-100")
Workload = Callable[[work.Session], None]


@dataclass(frozen=True)
class SessionPlan:
    """A session: workloads by name, and the options of a duewheel that alone has it."""

    workloads: Mapping[str, Workload]
    ours: Mapping[str, Any] | None = None


class Sizes:
    """All sizes, scaled."""

    def __init__(self, scale: float) -> None:
        self._scale = scale

    def timers(self, count: int) -> int:
        return max(1_000, int(count * self._scale))

    def seconds(self, count: int) -> int:
        return max(3, int(count * self._scale))


def short_plans(sizes: Sizes) -> list[SessionPlan]:
    """`make bench`."""
    timers, length = sizes.timers, sizes.seconds(20)
    enqueue = {
        "enqueue": partial(work.enqueue, count=timers(2_000_000), warm_up=timers(300_000)),
        "backlog": partial(work.backlog, count=timers(1_000_000)),
    }
    delivery = {
        "steady 1000": partial(work.steady, per_s=1_000, seconds=length),
        "steady 5000": partial(work.steady, per_s=5_000, seconds=length),
        "spike 1": partial(work.spike, count=timers(100_000)),
        "spike 2": partial(work.spike, count=timers(100_000)),
        "idle": partial(work.idle, seconds=length),
        "overdue": partial(work.overdue, count=timers(200_000)),
    }
    return [SessionPlan(delivery), SessionPlan(enqueue)]


def full_plans(sizes: Sizes) -> list[SessionPlan]:
    """`make bench-full`."""
    timers, length = sizes.timers, sizes.seconds(60)
    enqueue = {
        "enqueue": partial(work.enqueue, count=timers(4_000_000), warm_up=timers(1_000_000)),
        "backlog": partial(work.backlog, count=timers(4_000_000)),
    }
    rates = (1_000, 5_000, 10_000, 20_000)
    delivery = {
        **{f"steady {r}": partial(work.steady, per_s=r, seconds=length) for r in rates},
        **{f"spike {n}": partial(work.spike, count=timers(100_000)) for n in (1, 2, 3)},
        "idle": partial(work.idle, seconds=length),
        "beside": partial(
            work.steady, per_s=5_000, seconds=sizes.seconds(20), beside=timers(2_000_000)
        ),
    }
    large = {
        "large spike": partial(work.spike, count=timers(1_000_000)),
        "overdue": partial(work.overdue, count=timers(1_000_000)),
    }
    levels = {
        f"pending {n}": partial(work.growth, pending=timers(n), count=timers(200_000))
        for n in (100_000, 1_000_000, 10_000_000)
    }
    roll_s = (50_000, 60_000)
    ours = {
        "half cancelled": partial(work.half_cancelled, count=timers(200_000)),
        "lost files": partial(work.lost_files, count=timers(2_000_000)),
    }
    return [
        SessionPlan(delivery),
        SessionPlan(enqueue),
        SessionPlan(large),
        SessionPlan({**levels, "restart": work.restart}),
        *(
            SessionPlan(
                {"partitions": partial(work.partitions, count=timers(100_000))},
                {"target_partitions": number},
            )
            for number in (1, 10, 160, 1_000)
        ),
        SessionPlan(
            {"rolls": partial(work.rolls, per_s=1_000, seconds=length, delay_ms=roll_s)},
            {"roll_window": "20s"},
        ),
        SessionPlan(ours, {}),
    ]


def run(workloads: Iterable[Workload], system: System, recorder: Recorder) -> bool:
    """One session: a fresh start, warmed up, and its workloads; whether none has failed."""
    whole = True
    with ExitStack() as stack:
        stack.callback(system.stop)
        system.start()
        opened = work.Session(system, recorder)
        work.warm(opened, WARM_TIMERS)
        for workload in workloads:
            try:
                workload(opened)
            except (OSError, RuntimeError, AssertionError, DuewheelError):
                traceback.print_exc()
                whole = False
    return whole


def machine() -> dict[str, Any]:
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return {
        "commit": commit.stdout.strip(),
        "run": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "python": platform.python_version(),
        "load_before": round(os.getloadavg()[0], 2),
    }


def sessions(plans: Sequence[SessionPlan], args: argparse.Namespace, recorder: Recorder) -> bool:
    """All sessions of all rounds; whether none has failed."""
    whole = True
    classpath = build() if any(name != "duewheel" for name in args.systems) else ""
    make: dict[str, Callable[..., System]] = {
        "duewheel": DuewheelSystem,
        "rocketmq": partial(RocketMqSystem, classpath=classpath),
        "rocketmq-100": partial(RocketMqSystem, classpath=classpath, precision_ms=100),
    }
    for number in range(args.rounds or (3 if args.full else 1)):
        order = args.systems if number % 2 == 0 else args.systems[::-1]
        for plan, system in itertools.product(plans, order):
            if plan.ours is not None and system != "duewheel":
                continue
            chosen = [each for name, each in plan.workloads.items() if is_chosen(name, args)]
            try:
                with tempfile.TemporaryDirectory(prefix="duewheel-bench-", dir=args.dir) as name:
                    if chosen:
                        started = make[system](Path(name), **(plan.ours or {}))
                        whole &= run(chosen, started, recorder)
            except (OSError, RuntimeError, AssertionError, DuewheelError):
                traceback.print_exc()
                whole = False
            recorder.config["load_after"] = round(os.getloadavg()[0], 2)
            write(args.out, recorder.figures)
    return whole


def parts(args: argparse.Namespace, sizes: Sizes, recorder: Recorder) -> None:
    """Parts of duewheel alone, without Kafka."""
    measures: dict[str, Callable[[], None]] = {
        "engine": partial(engine.measure, recorder, sizes.timers(1_000_000)),
        "cancel lookups": partial(cancels.measure_lookups, recorder, sizes.timers(1_000_000)),
        "cancel memory": partial(cancels.measure_memory, recorder, sizes.timers(400_000)),
    }
    for name, measure in measures.items():
        if is_chosen(name, args):
            measure()
            write(args.out, recorder.figures)


def is_chosen(name: str, args: argparse.Namespace) -> bool:
    return not args.only or name.startswith(tuple(args.only))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, help="file to write")
    parser.add_argument("--full", action="store_true", help="longer, more rates, larger spikes")
    parser.add_argument("--rounds", type=int, help="1 by default, 3 with --full")
    parser.add_argument("--scale", type=float, default=1.0, help="of all sizes")
    parser.add_argument("--only", nargs="+", help="workloads, by the beginnings of their names")
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=SYSTEMS[:2])
    parser.add_argument("--dir", type=Path, help="below which systems have their files")
    args = parser.parse_args()
    recorder, sizes = Recorder(machine()), Sizes(args.scale)
    whole = sessions((full_plans if args.full else short_plans)(sizes), args, recorder)
    if args.full:
        parts(args, sizes, recorder)
    return 0 if whole else 1


if __name__ == "__main__":
    sys.exit(main())
