"""Lateness is counted apart for undisturbed time, and for the time after a kill."""

from __future__ import annotations

from duewheel.prove.measures import START, Interruption, Measures, Quantiles, measure
from duewheel.prove.records import ArrivedTimer, RecordContent, WrittenRequest, WrittenTopic
from duewheel.prove.verdict import ProofRules

RULES = ProofRules("orders", "dead", window_ms=10_000, precision_ms=50)
CONTENT = RecordContent(None, 0, 0, ())
BEGIN_MS = 1_000_000
INTERRUPTIONS = [
    Interruption(START, BEGIN_MS, BEGIN_MS + 10_000),
    Interruption("dequeue", BEGIN_MS + 50_000, BEGIN_MS + 55_000),
]


def measured(
    timers: list[tuple[int, int, int]], interruptions: list[Interruption] = INTERRUPTIONS
) -> Measures:
    """Of timers with these times after the beginning: written, due, received."""
    written = WrittenTopic()
    arrived = []
    for offset, (at_ms, due_ms, received_ms) in enumerate(timers):
        source, due_ms = (0, offset), BEGIN_MS + due_ms
        written.requests[source] = WrittenRequest(
            *(source, "timers", offset, BEGIN_MS + at_ms, CONTENT, due_ms),
            expires_ms=None,
            timer_id=None,
            is_timer=True,
            cancels=False,
        )
        received_ms += BEGIN_MS
        arrived.append(
            ArrivedTimer(
                *("orders", 0, offset, source, offset, due_ms, received_ms, CONTENT, due_ms, None)
            )
        )
    return measure(written, arrived, interruptions, RULES)


def test_a_delivery_counts_where_it_was_due_and_received() -> None:
    found = measured(
        [
            (0, 5_000, 5_900),  # during the start
            (15_000, 20_000, 20_040),
            (15_000, 30_000, 30_060),
            (20_000, 49_000, 50_010),  # due before the kill, received after it
            (20_000, 54_000, 56_000),
            (60_000, 60_000, 60_300),  # at once
            (52_000, 62_000, 62_020),
            (52_000, 52_000, 54_400),  # at once, after the kill
        ]
    )
    assert found.disturbed.count == 3 and found.disturbed.max == 2_000
    assert found.undisturbed == Quantiles(3, 40, 60, 60, 60, 60)
    assert (found.at_once.count, found.at_once.p50) == (1, 300)
    assert (found.at_once_disturbed.count, found.at_once_disturbed.p50) == (1, 2_400)


def test_without_an_end_of_a_fault_all_that_follows_is_disturbed() -> None:
    never = [INTERRUPTIONS[0], Interruption("ingest", BEGIN_MS + 15_000)]
    found = measured([(11_000, 12_000, 12_001), (12_000, 90_000, 90_001)], never)
    assert (found.undisturbed.count, found.disturbed.count) == (1, 1)
    assert never[1].took_s is None


def test_rates_and_lateness_over_time() -> None:
    found = measured([(0, 3_000, 3_010), (200, 3_000, 3_030), (4_100, 4_100, 4_500)]).over_time
    assert found.part_s == 1.0
    assert found.scheduled == [2.0, 0.0, 0.0, 0.0, 1.0]
    assert found.delivered == [0.0, 0.0, 0.0, 2.0, 1.0]
    assert found.worst_ms == [None, None, None, 30, None]
    assert found.median_ms[3] == 20


def test_nothing_was_delivered() -> None:
    found = measured([], [Interruption(START, BEGIN_MS)])
    assert found.undisturbed == found.disturbed == Quantiles(0)
    assert found.at_once == found.at_once_disturbed == Quantiles(0)
    assert found.over_time.scheduled == [0.0]
