"""`make bench` and `make bench-full`: every workload on every system, one after the other.

    bench.py OUT [--full | --second-driver] [--rounds N] [--scale X]
                 [--only WORKLOAD …] [--systems NAME …]

A session is a fresh start of one system on an empty store, a warm-up, and some workloads. Within a
round each session is done by all systems in turn, and every other round turns the order round: a
machine that is slow for some minutes is so for all of them. OUT is rewritten after each workload,
so that a run that breaks off keeps what it has. A workload that fails leaves what it has measured
by then, and the exit code is 1. `rocketmq-100` is RocketMQ with its finest precision, for steady
streams.
`--scale 0.01` tries the bench out; its figures mean nothing, and are not recorded.

RocketMQ comes as Maven artifacts: `mvn` and a JDK from 17 on must be there. The modules:

    figures.py              the schema of a line, and the medians of runs
    system.py               what a system must do; duewheel_system.py, rocketmq_system.py do it
    plans.py                which workloads, in which sessions, how large
    session.py              what workloads share, and the warm-up
    workloads.py            what is done to each system, and measured
    full_workloads.py       the same, in `--full` only
    usage.py                processor time and memory of processes
    kafka_wire.py           ready-made batches to and from Kafka; kafka_consumer.py receives them
    rocketmq/               load and consumer in Java
    librdkafka_system.py    a second driver of duewheel; librdkafka_client.py: load and consumer
    report.py               docs/benchmarks.md: tables.py and plots.py of measured.py, by svg.py
    engine.py, cancels.py   parts of duewheel alone, in `--full`
    timelines.py            by itself: both timelines, by timeline_steps.py; timeline_page.py
    cancel_phases.py        by hand: what a cancel waits for until it is answered
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
# The last place to look for modules: a folder called `wheel` lies there.
sys.path.append(str(ROOT))

from tests.bench import cancels, engine  # noqa: E402
from tests.bench.duewheel_system import DuewheelSystem  # noqa: E402
from tests.bench.figures import Recorder, write  # noqa: E402
from tests.bench.librdkafka_system import LibrdkafkaSystem  # noqa: E402
from tests.bench.measured import SECOND_DRIVER  # noqa: E402
from tests.bench.plans import (  # noqa: E402
    SessionPlan,
    Sizes,
    Workload,
    full_plans,
    is_chosen,
    second_driver_plans,
    short_plans,
)
from tests.bench.rocketmq_system import RocketMqSystem, build  # noqa: E402
from tests.bench.session import Session, warm  # noqa: E402
from tests.bench.system import System  # noqa: E402

SYSTEMS = ("duewheel", "rocketmq", "rocketmq-100")
SECOND = "duewheel-librdkafka"


def run(
    workloads: Iterable[Workload], system: System, recorder: Recorder, save: Callable[[], None]
) -> bool:
    """One session: a fresh start, warmed up, and its workloads; whether none has failed."""
    whole = True
    with ExitStack() as stack:
        stack.callback(system.stop)
        system.start()
        opened = Session(system, recorder)
        warm(opened)
        for workload in workloads:
            whole &= attempt(partial(workload, opened))
            save()
    return whole


def attempt(step: Callable[[], object]) -> bool:
    """Whether it has not failed: one workload is not to cost all figures of those after it."""
    try:
        return step() is not False
    except Exception:  # noqa: BLE001 - see above
        traceback.print_exc()
        return False


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
    classpath = build() if any(name.startswith("rocketmq") for name in args.systems) else ""
    make: dict[str, Callable[..., System]] = {
        "duewheel": DuewheelSystem,
        SECOND: LibrdkafkaSystem,
        "rocketmq": partial(RocketMqSystem, classpath=classpath),
        "rocketmq-100": partial(RocketMqSystem, classpath=classpath, precision_ms=100),
    }
    todo = [
        (mine, system)
        for number in range(args.rounds)
        for plan in plans
        for system in (args.systems if number % 2 == 0 else args.systems[::-1])
        if (mine := plan.of(system)).is_for(system)
    ]
    begun_s = time.monotonic()
    for number, (plan, system) in enumerate(todo, 1):
        minutes = (time.monotonic() - begun_s) / 60
        names = ", ".join(plan.workloads)
        place = f"{minutes:.1f} min, session {number} of {len(todo)}"
        print(f"== {place}: {system}: {names}", flush=True)
        with tempfile.TemporaryDirectory(
            prefix="duewheel-bench-", dir=args.dir, ignore_cleanup_errors=True
        ) as name:
            started = make[system](Path(name), **(plan.ours or {}))
            flush = partial(save, args.out, recorder)
            whole &= attempt(partial(run, plan.workloads.values(), started, recorder, flush))
    print(f"== {(time.monotonic() - begun_s) / 60:.1f} min, all sessions", flush=True)
    return whole


def save(out: Path, recorder: Recorder) -> None:
    recorder.config["load_after"] = round(os.getloadavg()[0], 2)
    write(out, recorder.figures)


def parts(
    args: argparse.Namespace, sizes: Sizes, recorder: Recorder, chosen: Callable[[str], bool]
) -> bool:
    """Parts of duewheel alone, without Kafka; whether none has failed."""
    whole = True
    measures: dict[str, Callable[[], None]] = {
        "engine": partial(engine.measure, recorder, sizes.timers(1_000_000)),
        "cancel lookups": partial(cancels.measure_lookups, recorder, sizes.timers(1_000_000)),
        "cancel memory": partial(cancels.measure_memory, recorder, sizes.timers(400_000)),
    }
    for name, measure in measures.items():
        if chosen(name):
            print(f"== {name}", flush=True)
            whole &= attempt(measure)
            save(args.out, recorder)
    return whole


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, help="file to write")
    parser.add_argument("--full", action="store_true", help="longer, more rates, larger spikes")
    parser.add_argument(
        "--second-driver", action="store_true", help="load and consumer of librdkafka instead"
    )
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--scale", type=float, default=1.0, help="of all sizes")
    parser.add_argument("--only", nargs="+", help="workloads, by words their names begin with")
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=SYSTEMS)
    parser.add_argument("--dir", type=Path, help="below which systems have their files")
    args = parser.parse_args()
    scaled = {"scale": args.scale} if args.scale != 1.0 else {}
    recorder, sizes = Recorder(machine() | scaled), Sizes(args.scale)
    chosen = partial(is_chosen, only=args.only)
    plans = (full_plans if args.full else short_plans)(sizes)
    if args.second_driver:
        plans, args.systems = second_driver_plans(sizes), ("duewheel", SECOND)
        recorder.prefix = SECOND_DRIVER
    whole = sessions([plan.only(chosen) for plan in plans], args, recorder)
    if args.full and "duewheel" in args.systems:
        whole &= parts(args, sizes, recorder, chosen)
    return 0 if whole else 1


if __name__ == "__main__":
    sys.exit(main())
