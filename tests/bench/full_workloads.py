"""What only `make bench-full` does, beside workloads.py.

    growth          beside so many pending timers: what an enqueued one costs, and a delivered one
    restart         beside the same
    partitions      what a delivered timer costs by the number of the target's partitions

and of duewheel alone stream_alone (lateness and cost by a setting), half_cancelled, rolls and
lost_files.
"""

from __future__ import annotations

import time

import numpy as np
from tests.bench.duewheel_system import DuewheelSystem
from tests.bench.session import (
    CLOCK,
    DEADLINE_S,
    SLOWEST_PER_S,
    Report,
    Session,
    far_off,
    fill,
    sleep_until,
    stream,
    wait,
)
from tests.bench.system import Kind, TimerLoad
from tests.bench.usage import measured
from tests.bench.workloads import HALT_MS, away_until

FILL_AT_ONCE = 1_000_000
DELIVERED_PER_S = 5_000


def growth(session: Session, pending: int, count: int, delivered: int) -> None:
    """The timers stay for the next level, and so do those whose enqueue is measured."""
    config = {"timers": count, "due_h": [1, 2], "delivered": delivered}
    report = Report(session, f"pending: {pending:,}", config)
    while session.pending < pending:
        fill(session, min(FILL_AT_ONCE, pending - session.pending))
    for place, size in session.system.disk_bytes().items():
        report.add(f"disk per timer, {place}", "bytes", size / session.pending)
    deliver(session, report, delivered, "delivery ")
    load = far_off(session, count)
    with measured(session.system.pids) as usage:
        _, seconds = session.enqueue(load)
    session.pending += count
    report.add("rate", "timers/s", count / seconds)
    report.usage(usage, count)


def deliver(session: Session, report: Report, count: int, prefix: str = "") -> None:
    """Timers that were all enqueued before the first is due, in slots of some hundred: the fewer of
    one partition in a slot, the smaller each batch.
    """
    first_ms = CLOCK.now_ms() + 5_000 + count * 1000 // SLOWEST_PER_S
    span_ms = count * 1000 // DELIVERED_PER_S
    load = session.load(first_ms + session.rng.integers(0, span_ms, count))
    enqueue_before(session, load, first_ms - 200)
    sleep_until(first_ms - 200)
    with measured(session.system.pids) as usage:
        session.await_received(load)
    rows = session.received(load)
    report.lateness(load, rows, prefix)
    report.usage(usage, count, prefix)
    report.delivery(load, rows)


def enqueue_before(session: Session, load: TimerLoad, end_ms: int) -> None:
    _, took_s = session.enqueue(load)
    if CLOCK.now_ms() > end_ms:
        raise TimeoutError(f"{len(load):,} timers took {took_s:.1f} s to enqueue")


def restart(session: Session, name: str = "restart") -> None:
    """From a start until a timer that became due meanwhile leaves."""
    report = Report(session, name, {})
    report.add("pending", "timers", session.pending)  # none if `--only` left the levels out
    load = session.load(np.full(100, CLOCK.now_ms() + HALT_MS + 10_000))
    session.enqueue(load)
    start_ms = away_until(session, report, load, int(load.due_ms[0]) + 100)
    session.await_received(load)
    first_ms = int(session.received(load)["stored_ms"].min())
    report.add("start to first delivery", "s", (first_ms - start_ms) / 1000)


def partitions(session: Session, count: int) -> None:
    number = session.system.config["target_partitions"]
    report = Report(session, f"target partitions: {number:,}", {"timers": count})
    deliver(session, report, count)
    due_ms = CLOCK.now_ms() + 5_000 + count * 1000 // SLOWEST_PER_S
    load = session.load(np.full(count, due_ms))
    enqueue_before(session, load, due_ms)
    session.await_received(load)
    last_s = (int(session.received(load)["received_ms"].max()) - due_ms) / 1000
    report.add("delivered at once", "timers/s", count / last_s)


def stream_alone(session: Session, name: str, per_s: int, seconds: int) -> None:
    """A steady stream: what a setting of the session gains in lateness, or processor time."""
    report = Report(session, name, {"seconds": seconds, "per_s": per_s})
    _send_and_receive(session, report, stream(session, per_s, seconds, CLOCK.now_ms() + 1_000))


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
    due_ms = send_ms + session.rng.integers(*delay_ms, len(send_ms))
    _send_and_receive(session, report, session.load(due_ms, send_ms))


def _send_and_receive(session: Session, report: Report, load: TimerLoad) -> None:
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
    fill(session, count)
    before = system.enqueued()
    system.halt()
    system.lose_files()
    begun_s = time.monotonic()
    system.rebuild()
    wait(lambda: system.enqueued() >= before and system.is_whole)
    seconds = time.monotonic() - begun_s
    report.add("start to all pending", "s", seconds)
    report.add("rate", "timers/s", count / seconds)
