"""What is done to each system, written once against system.py.

    warm        some thousand timers, delivered: compilers, connections and caches are warm
    enqueue     as fast as the system takes them, due in an hour: rate until all are in the wheel
    backlog     the same from a backlog in Kafka, without a producer beside it (duewheel only)
    steady      a rate, each timer due 2 to 8 s after it was sent: lateness
    spike       timers due in one instant, and 100 a second beside them that are not
    overdue     timers that became due while the system was down: catch-up
    idle        nothing at all: processor time
    growth, restart                 beside many pending timers
    partitions, half_cancelled, rolls, lost_files       duewheel only, by their names

Lateness is the time of receipt at a consumer of committed messages minus the due time. Every
workload checks that each of its timers was received once and none early, and reports what was not
so; a system that repeats or loses some is measured, not refused.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from tests.bench.duewheel_system import DuewheelSystem
from tests.bench.figures import Recorder
from tests.bench.system import BODY_BYTES, POLL_S, Kind, Receipts, SendResult, System, TimerLoad
from tests.bench.usage import Usage, measured

from duewheel.clock import SystemClock
from duewheel.schemas.arrays import Int64

CLOCK = SystemClock()
HOUR_MS = 3_600_000
DELAY_MS = (2_000, 8_000)
BACKGROUND_PER_S = 100
BACKGROUND_S = 3  # after a spike: they are due up to 11 s after it
READ_AHEAD = 300_000  # what ingest reads before it holds back: two batches
SPIKE_LEAD_MS = 8_000
OVERDUE_SPAN_MS = 20_000
HALT_MS = 20_000  # a stop of either system takes less
SLOWEST_PER_S = 12_000  # that a cold system enqueues: how long before a spike it is sent
DEADLINE_S = 900.0
QUANTILES = {"p50": 50.0, "p90": 90.0, "p99": 99.0, "p99.9": 99.9, "max": 100.0}


@dataclass
class Session:
    """One start of one system, and the workloads on it.

    Attributes:
        number: of the next timer.
    """

    system: System
    recorder: Recorder
    number: int = 0
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

    def await_received(self, load: TimerLoad) -> None:
        """Until as many have come as were sent; a repeated one counts as one that is missing."""
        receipts = self.system.receipts
        while True:
            # In this order: what comes between the two readings is not waited for again.
            count = len(receipts)
            missing = len(load) - len(self.received(load))
            if missing <= 0:
                return
            wait_for_receipts(receipts, count + missing)

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

    def usage(self, usage: Usage, messages: int) -> None:
        for name, seconds in usage.processor_s().items():
            self.add(f"processor time of {name}", "us/message", seconds / messages * 1e6)
        for name, mb in usage.peak_mb.items():
            self.add(f"anonymous memory of {name}", "MB", mb)

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


def wait_for_receipts(receipts: Receipts, count: int) -> None:
    wait(lambda: len(receipts) >= count)


def sleep_until(at_ms: float) -> None:
    time.sleep(max(0.0, at_ms - CLOCK.now_ms()) / 1000)


def warm(session: Session, count: int) -> None:
    load = session.load(np.full(count, CLOCK.now_ms() + 3_000))
    session.enqueue(load)
    session.await_received(load)


def far_off(session: Session, count: int) -> TimerLoad:
    due_ms = CLOCK.now_ms() + HOUR_MS + session.rng.integers(0, HOUR_MS, count)
    return session.load(due_ms)


def enqueue(session: Session, count: int, warm_up: int) -> None:
    report = Report(session, "enqueue", {"timers": count, "warm_up": warm_up, "due_h": [1, 2]})
    session.enqueue(far_off(session, warm_up))
    load = far_off(session, count)
    before = session.system.disk_bytes()
    with measured(session.system.pids) as usage:
        sent, seconds = session.enqueue(load)
    report.add("rate", "timers/s", (count - sent.failed) / seconds)
    report.add("refused", "timers", sent.failed)
    report.usage(usage, count)
    for place, size in session.system.disk_bytes().items():
        report.add(f"disk per timer, {place}", "bytes", (size - before[place]) / count)


def backlog(session: Session, count: int) -> None:
    system = session.system
    if not isinstance(system, DuewheelSystem):
        return
    ahead = min(READ_AHEAD, count // 2)
    report = Report(session, "backlog", {"timers": count - ahead, "due_h": [1, 2]})
    before = system.enqueued()
    system.set_ingest("pause")
    system.send(far_off(session, count)).result(DEADLINE_S)
    system.set_ingest("resume")
    wait(lambda: system.enqueued() >= before + ahead)
    begun_s, begun_at = time.monotonic(), system.enqueued()
    with measured(system.pids) as usage:
        wait(lambda: system.enqueued() >= before + count)
        seconds = time.monotonic() - begun_s
    measured_count = before + count - begun_at
    report.add("rate", "timers/s", measured_count / seconds)
    report.usage(usage, measured_count)


def stream(session: Session, per_s: int, seconds: float, start_ms: int) -> TimerLoad:
    """An open loop: equal intervals, random delays."""
    send_ms = start_ms + np.arange(int(per_s * seconds)) * 1000 // per_s
    return session.load(send_ms + session.rng.integers(*DELAY_MS, len(send_ms)), send_ms)


def steady(session: Session, per_s: int, seconds: int, beside: int = 0) -> None:
    """`beside`: as many timers due much later are sent as fast as the system takes them."""
    config = {"seconds": seconds, "delay_ms": list(DELAY_MS), "beside": beside}
    name = f"beside an enqueue, {per_s:,}/s" if beside else f"steady, {per_s:,}/s"
    report = Report(session, name, config)
    others = far_off(session, beside) if beside else None
    # Preparation takes microseconds a timer, and is not to run into the schedule.
    load = stream(session, per_s, seconds, CLOCK.now_ms() + 1_000 + per_s * seconds // 200)
    with measured(session.system.pids) as usage:
        sending = session.system.send(load)
        if others is not None:
            sleep_until(int(load.due_ms.min()))
            session.system.send(others).result(DEADLINE_S)
        sent = sending.result(DEADLINE_S)
        session.await_received(load)
    time.sleep(1)  # for what comes twice
    rows = session.received(load)
    report.lateness(load, rows)
    assert load.send_ms is not None
    report.add("sent after its time, at most", "ms", sent.acked_ms - int(load.send_ms[-1]))
    report.usage(usage, len(load))
    report.delivery(load, rows)


def spike(session: Session, count: int) -> None:
    config = {"timers": count, "background_per_s": BACKGROUND_PER_S}
    report = Report(session, f"spike of {count:,}", config)
    due_ms = CLOCK.now_ms() + SPIKE_LEAD_MS + count * 1000 // SLOWEST_PER_S
    load = session.load(np.full(count, due_ms))
    _, took_s = session.enqueue(load)
    start_ms = CLOCK.now_ms() + 500
    if start_ms > due_ms - DELAY_MS[0]:
        raise TimeoutError(f"the spike took {took_s:.1f} s to enqueue")
    seconds = (due_ms - start_ms) / 1000 + BACKGROUND_S
    background = stream(session, BACKGROUND_PER_S, seconds, start_ms)
    sending: Future[SendResult] = session.system.send(background)
    sleep_until(due_ms - 200)
    with measured(session.system.pids) as usage:
        session.await_received(load)
    sending.result(DEADLINE_S)
    session.await_received(background)
    rows, beside = session.received(load), session.received(background)
    last_s = (int(rows["received_ms"].max()) - due_ms) / 1000
    report.add("due to last received", "s", last_s)
    report.add("delivered", "timers/s", count / last_s)
    report.lateness(background, beside, "background ")
    report.usage(usage, count)
    report.delivery(load, rows)


def overdue(session: Session, count: int) -> None:
    """Times are those at which the broker stored a delivery where the system knows them: consumers
    of RocketMQ come back seconds after their broker, which is not its timer's doing.
    """
    config = {"timers": count, "span_ms": OVERDUE_SPAN_MS}
    report = Report(session, "overdue", config)
    first_ms = CLOCK.now_ms() + HALT_MS + count * 1000 // SLOWEST_PER_S
    due_ms = np.sort(first_ms + session.rng.integers(0, OVERDUE_SPAN_MS, count))
    load = session.load(due_ms)
    session.enqueue(load)
    begun_s = time.monotonic()
    session.system.halt()
    report.add("stopped within", "s", time.monotonic() - begun_s)
    if len(session.received(load)):
        raise TimeoutError("the system delivered before it was down")
    sleep_until(first_ms + OVERDUE_SPAN_MS + 100)
    start_ms = CLOCK.now_ms()
    session.system.resume()
    session.await_received(load)
    time.sleep(1)  # for what comes twice
    rows = session.received(load)
    first, last = int(rows["stored_ms"].min()), int(rows["stored_ms"].max())
    report.add("start to first delivery", "s", (first - start_ms) / 1000)
    report.add("start to last delivery", "s", (last - start_ms) / 1000)
    # The first are not counted: the time in which they were delivered is before their receipt.
    if after_first := int(np.count_nonzero(rows["stored_ms"] > first)):
        report.add("catch-up rate", "timers/s", after_first / (last - first) * 1000)
    report.delivery(load, rows)


def idle(session: Session, seconds: int) -> None:
    report = Report(session, "idle", {"seconds": seconds})
    with measured(session.system.pids) as usage:
        time.sleep(seconds)
    for name, busy_s in usage.processor_s().items():
        report.add(f"processor time of {name}", "% of a core", 100 * busy_s / seconds)
    for name, mb in usage.peak_mb.items():
        report.add(f"anonymous memory of {name}", "MB", mb)


def growth(session: Session, pending: int, count: int) -> None:
    """What an enqueued timer costs beside so many pending ones, which stay for the next level."""
    report = Report(session, f"pending: {pending:,}", {"timers": count, "due_h": [1, 2]})
    while session.number < pending:
        session.enqueue(far_off(session, min(1_000_000, pending - session.number)))
    load = far_off(session, count)
    with measured(session.system.pids) as usage:
        _, seconds = session.enqueue(load)
    report.add("rate", "timers/s", count / seconds)
    report.usage(usage, count)


def restart(session: Session) -> None:
    """Beside all that is pending: from a start until a timer that became due meanwhile leaves."""
    report = Report(session, "restart", {"pending": session.number})
    load = session.load(np.full(100, CLOCK.now_ms() + HALT_MS))
    session.enqueue(load)
    begun_s = time.monotonic()
    session.system.halt()
    report.add("stopped within", "s", time.monotonic() - begun_s)
    sleep_until(int(load.due_ms[0]) + 100)
    start_ms = CLOCK.now_ms()
    session.system.resume()
    session.await_received(load)
    first_ms = int(session.received(load)["stored_ms"].min())
    report.add("start to first delivery", "s", (first_ms - start_ms) / 1000)


def partitions(session: Session, count: int) -> None:
    """What a delivered timer costs by the number of the target's partitions, in slots of some
    hundred timers: the fewer of one partition in a slot, the smaller each batch.
    """
    number = session.system.config["target_partitions"]
    report = Report(session, f"target partitions: {number:,}", {"timers": count})
    span_ms = count // 5  # 5,000 a second
    first_ms = CLOCK.now_ms() + 5_000 + count * 1000 // SLOWEST_PER_S
    load = session.load(first_ms + session.rng.integers(0, span_ms, count))
    session.enqueue(load)
    sleep_until(first_ms - 200)
    with measured(session.system.pids) as usage:
        session.await_received(load)
    rows = session.received(load)
    report.lateness(load, rows)
    report.usage(usage, count)
    report.delivery(load, rows)


def half_cancelled(session: Session, count: int) -> None:
    """Timers due at once, of which each second one is cancelled a while before."""
    report = Report(session, "half cancelled", {"timers": count})
    due_ms = CLOCK.now_ms() + 10_000 + count * 2000 // SLOWEST_PER_S
    due = np.full(count, due_ms)
    cancelled = session.load(due[: count // 2], kind=Kind.TIMERS_WITH_IDS)
    delivered = session.load(due[count // 2 :], kind=Kind.TIMERS_WITH_IDS)
    for load in (cancelled, delivered):
        session.enqueue(load)
    cancels = session.system.prepare(
        TimerLoad(cancelled.first, cancelled.due_ms, kind=Kind.CANCELS)
    )
    with measured(session.system.pids) as usage:
        _, seconds = session.enqueue(cancels)
    report.add("cancels", "1/s", len(cancels) / seconds)
    report.usage(usage, len(cancels))
    session.await_received(delivered)
    time.sleep(1)  # for what should not come
    rows = session.received(delivered)
    last_s = (int(rows["received_ms"].max()) - due_ms) / 1000
    report.add("due to last received", "s", last_s)
    report.add("cancelled and delivered", "timers", len(session.received(cancelled)))
    report.delivery(delivered, rows)


def rolls(session: Session, per_s: int, seconds: int, delay_ms: tuple[int, int]) -> None:
    """A steady rate of timers that roll, over a window of seconds."""
    config = {"delay_ms": list(delay_ms), "seconds": seconds, "rate": per_s}
    report = Report(session, "rolls", config)
    send_ms = CLOCK.now_ms() + 2_000 + np.arange(per_s * seconds) * 1000 // per_s
    load = session.load(send_ms + session.rng.integers(*delay_ms, len(send_ms)), send_ms)
    with measured(session.system.pids) as usage:
        session.system.send(load).result(DEADLINE_S)
        session.await_received(load)
    rows = session.received(load)
    report.lateness(load, rows)
    report.usage(usage, len(load))
    report.delivery(load, rows)


def lost_files(session: Session, count: int) -> None:
    """The data directory is lost: until Kafka's copy of all pending timers is in a new wheel."""
    system = session.system
    assert isinstance(system, DuewheelSystem)
    report = Report(session, "lost files", {"pending": count})
    session.enqueue(far_off(session, count))
    before = system.enqueued()
    system.halt()
    system.lose_files()
    begun_s = time.monotonic()
    system.rebuild()
    wait(lambda: system.enqueued() >= before and system.is_whole)
    seconds = time.monotonic() - begun_s
    report.add("start to all pending", "s", seconds)
    report.add("rate", "timers/s", count / seconds)
