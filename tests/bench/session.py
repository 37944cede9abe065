"""What workloads share: a session, which is one start of one system, and the report of a workload.

Lateness is the time of receipt at a consumer of committed messages minus the due time. Every
workload checks that each of its timers was received once and none early, and reports what was not
so; a system that repeats or loses some is measured, not refused.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from tests.bench.figures import Recorder
from tests.bench.system import BODY_BYTES, POLL_S, Kind, Receipts, SendResult, System, TimerLoad
from tests.bench.usage import Usage

from duewheel.clock import SystemClock
from duewheel.schemas.arrays import Int64

CLOCK = SystemClock()
HOUR_MS = 3_600_000
DELAY_MS = (2_000, 8_000)
SLOWEST_PER_S = (
    20_000  # that a warm system enqueues: how long before their due time timers are sent
)
DEADLINE_S = 900.0
SILENCE_S = 180.0  # a start takes as long on a loaded machine
WARM_TIMERS, WARM_PER_S, WARM_S = 20_000, 2_000, 10
QUANTILES = {"p50": 50.0, "p90": 90.0, "p99": 99.0, "p99.9": 99.9, "max": 100.0}


@dataclass
class Session:
    """One start of one system, and the workloads on it.

    Attributes:
        number: of the next timer.
        pending: timers that `fill` has put into the wheel.
    """

    system: System
    recorder: Recorder
    number: int = 0
    pending: int = 0
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(1))

    def load(
        self, due_ms: Int64, send_ms: Int64 | None = None, kind: Kind = Kind.TIMERS
    ) -> TimerLoad:
        """Numbered and prepared."""
        first, self.number = self.number, self.number + len(due_ms)
        return self.system.prepare(TimerLoad(first, due_ms, send_ms, kind))

    def received(self, load: TimerLoad) -> npt.NDArray[np.void]:
        rows = self.system.receipts.read()
        return rows[(rows["number"] >= load.first) & (rows["number"] < load.first + len(load))]

    def await_received(self, load: TimerLoad, silence_s: float = SILENCE_S) -> None:
        """Until as many have come as were sent; a repeated one counts as one that is missing.

        Raises:
            TimeoutError: for `silence_s` nothing has come although some are missing.
        """
        receipts = self.system.receipts
        while True:
            # In this order: what comes between the two readings is not waited for again.
            count = len(receipts)
            missing = len(load) - len(self.received(load))
            if missing <= 0:
                return
            wait_for_receipts(receipts, count, count + missing, silence_s)

    def enqueue(self, load: TimerLoad) -> tuple[SendResult, float]:
        """Send a load; returns when all of it is in the wheel, and after how many seconds."""
        before, begun_s = self.system.enqueued(), time.monotonic()
        sent = self.system.send(load).result(DEADLINE_S)
        wait(lambda: self.system.enqueued() >= before + len(load) - sent.failed)
        return sent, time.monotonic() - begun_s


@dataclass
class Report:
    """Records the metrics of one workload."""

    session: Session
    workload: str
    config: Mapping[str, Any]

    def add(self, metric: str, unit: str, value: float) -> None:
        system = self.session.system
        config = {"body_bytes": BODY_BYTES, **system.config, **self.config}
        self.session.recorder.add(system.name, self.workload, metric, unit, value, config)
        print(f"{system.name:16} {self.workload:22} {metric:34} {value:12,.6g} {unit}", flush=True)

    def usage(self, usage: Usage, messages: int, prefix: str = "") -> None:
        for name, seconds in usage.processor_s().items():
            cost_us = seconds / messages * 1e6
            self.add(f"{prefix}processor time of {name}", "us/message", cost_us)
        self.memory(usage, prefix)

    def memory(self, usage: Usage, prefix: str = "") -> None:
        for name, mb in usage.peak_mb.items():
            self.add(f"{prefix}anonymous memory of {name}", "MB", mb)

    def lateness(self, load: TimerLoad, rows: npt.NDArray[np.void], prefix: str = "") -> None:
        late_ms = rows["received_ms"] - load.due_ms[rows["number"] - load.first]
        for name, q in QUANTILES.items():
            self.add(f"{prefix}lateness {name}", "ms", float(np.percentile(late_ms, q)))

    def delivery(self, load: TimerLoad, rows: npt.NDArray[np.void]) -> None:
        """What is to be 0."""
        numbers, counts = np.unique(rows["number"], return_counts=True)
        early = rows["received_ms"] < load.due_ms[rows["number"] - load.first]
        self.add("lost", "timers", len(load) - len(numbers))
        self.add("repeated", "timers", int(np.count_nonzero(counts > 1)))
        self.add("early", "timers", int(np.count_nonzero(early)))


def wait(done: Callable[[], bool]) -> None:
    end_s = time.monotonic() + DEADLINE_S
    while not done():
        if time.monotonic() > end_s:
            raise TimeoutError("the workload does not come to its end")
        time.sleep(POLL_S)


def wait_for_receipts(
    receipts: Receipts, count: int, until: int, silence_s: float = SILENCE_S
) -> None:
    """From `count` of them on."""
    last_s = time.monotonic()
    while count < until:
        time.sleep(POLL_S)
        if (now := len(receipts)) > count:
            count, last_s = now, time.monotonic()
        elif time.monotonic() > last_s + silence_s:
            raise TimeoutError(f"{until - count:,} timers have not come for {silence_s:.0f} s")


def sleep_until(at_ms: float) -> None:
    time.sleep(max(0.0, at_ms - CLOCK.now_ms()) / 1000)


def warm(session: Session) -> None:
    """Timers of one instant, then a stream: compilers, connections and caches are warm."""
    load = session.load(np.full(WARM_TIMERS, CLOCK.now_ms() + 3_000))
    session.enqueue(load)
    session.await_received(load)
    load = stream(session, WARM_PER_S, WARM_S, CLOCK.now_ms() + 500)
    session.system.send(load).result(DEADLINE_S)
    session.await_received(load)


def far_off(session: Session, count: int) -> TimerLoad:
    due_ms = CLOCK.now_ms() + HOUR_MS + session.rng.integers(0, HOUR_MS, count)
    return session.load(due_ms)


def fill(session: Session, count: int) -> None:
    """Timers that stay pending."""
    session.enqueue(far_off(session, count))
    session.pending += count


def stream(session: Session, per_s: int, seconds: float, start_ms: int) -> TimerLoad:
    """An open loop: equal intervals, random delays."""
    send_ms = start_ms + np.arange(int(per_s * seconds)) * 1000 // per_s
    return session.load(send_ms + session.rng.integers(*DELAY_MS, len(send_ms)), send_ms)
