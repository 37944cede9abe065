"""What is done to each system, written once against system.py.

enqueue     as fast as the system takes them, due in an hour: rate until all are in the wheel
backlog     the same from a backlog in Kafka, without a producer beside it (duewheel only)
steady      a rate, each timer due 2 to 8 s after it was sent: lateness
spike       timers due in one instant, and 100 a second beside them that are not
overdue     timers that became due while the system was down: catch-up
idle        nothing at all: processor time
"""

from __future__ import annotations

import time
from concurrent.futures import Future

import numpy as np
from tests.bench.duewheel_system import DuewheelSystem
from tests.bench.session import (
    CLOCK,
    DEADLINE_S,
    DELAY_MS,
    SLOWEST_PER_S,
    Report,
    Session,
    far_off,
    sleep_until,
    stream,
    wait,
)
from tests.bench.system import SendResult, TimerLoad
from tests.bench.usage import measured

BACKGROUND_PER_S = 100
BACKGROUND_S = 3  # after a spike: they are due up to 11 s after it
READ_AHEAD = 300_000  # what ingest reads before it holds back: two batches
SPIKE_LEAD_MS = 8_000
OVERDUE_SPAN_MS = 20_000
HALT_MS = 20_000  # a stop of either system takes less


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


def steady(session: Session, per_s: int, seconds: int, beside: int = 0) -> None:
    """`beside`: until the last is due so many timers, due much later, are sent again and again, as
    fast as the system takes them.
    """
    config = {"seconds": seconds, "delay_ms": list(DELAY_MS), "beside": beside}
    name = f"beside an enqueue, {per_s:,}/s" if beside else f"steady, {per_s:,}/s"
    report = Report(session, name, config)
    others = far_off(session, beside) if beside else None
    # Preparation takes microseconds a timer, and is not to run into the schedule.
    load = stream(session, per_s, seconds, CLOCK.now_ms() + 1_000 + per_s * seconds // 200)
    with measured(session.system.pids) as usage:
        sending = session.system.send(load)
        if others is not None:
            rate = _enqueue_until_due(session, others, load)
            report.add("rate of the others", "timers/s", rate)
        sent = sending.result(DEADLINE_S)
        session.await_received(load)
    time.sleep(1)  # for what comes twice
    rows = session.received(load)
    report.lateness(load, rows)
    assert load.send_ms is not None
    report.add("sent after its time, at most", "ms", sent.acked_ms - int(load.send_ms[-1]))
    if beside:
        report.memory(usage)  # processor time is that of the others, too
    else:
        report.usage(usage, len(load))
    report.delivery(load, rows)


def _enqueue_until_due(session: Session, others: TimerLoad, load: TimerLoad) -> float:
    """From the first due time of a load to its last; returns how many others a second.

    Each load of others waits for the one before to be in the wheel. Kafka would take them faster
    than ingest does, and the stream would wait in its topic behind more and more.
    """
    sleep_until(int(load.due_ms.min()))
    count, begun_s = 0, time.monotonic()
    while CLOCK.now_ms() < load.due_ms.max():
        session.enqueue(others)
        count += len(others)
    return count / (time.monotonic() - begun_s)


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
    start_ms = away_until(session, report, load, first_ms + OVERDUE_SPAN_MS + 100)
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


def away_until(session: Session, report: Report, load: TimerLoad, end_ms: int) -> int:
    """Stop the system, of whose timers none is due yet, and start it at a time; returns when the
    start began.
    """
    begun_s = time.monotonic()
    session.system.halt()
    report.add("stopped within", "s", time.monotonic() - begun_s)
    if len(session.received(load)):
        raise TimeoutError("the system delivered before it was down")
    sleep_until(end_ms)
    start_ms = CLOCK.now_ms()
    session.system.resume()
    return start_ms


def idle(session: Session, seconds: int) -> None:
    report = Report(session, "idle", {"seconds": seconds})
    with measured(session.system.pids) as usage:
        time.sleep(seconds)
    for name, busy_s in usage.processor_s().items():
        report.add(f"processor time of {name}", "% of a core", 100 * busy_s / seconds)
    report.memory(usage)
