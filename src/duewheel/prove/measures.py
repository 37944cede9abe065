"""Lateness and throughput of a proof, from the rows of its records.

Lateness is the time of receipt minus the due time: it includes transaction, fetch and consumer. A
delivery is *disturbed* if it was due or received between a start or kill and the moment when
deliveries flowed again. Timers due at once are counted apart, because they wait for ingest first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from duewheel.prove.records import ArrivedTimer, WrittenTopic
from duewheel.prove.verdict import ProofRules

START = "start"  # the kind of the first interruption
QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999, "max": 1.0}
_BINS_MAX = 120
_AT_ONCE_MS = 1_000  # a shorter delay mostly measures ingest

Millis = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Interruption:
    """A start or a kill. Deliveries flow again once a timer that was written afterwards has come
    from every partition.
    """

    kind: str
    at_ms: int
    flow_ms: int | None = None  # None: never

    @property
    def took_s(self) -> float | None:
        """Until deliveries flowed again."""
        return None if self.flow_ms is None else (self.flow_ms - self.at_ms) / 1_000


@dataclass(frozen=True)
class Quantiles:
    """Lateness of so many deliveries, in ms."""

    count: int
    p50: int | None = None
    p90: int | None = None
    p99: int | None = None
    p999: int | None = None
    max: int | None = None

    @classmethod
    def of(cls, late_ms: Millis) -> Quantiles:
        if not len(late_ms):
            return cls(0)
        values = np.quantile(late_ms, list(QUANTILES.values()), method="higher").tolist()
        return cls(len(late_ms), *(int(value) for value in values))


@dataclass(frozen=True)
class OverTime:
    """Rates and lateness, by equal parts of the time from the first interruption on."""

    part_s: float
    scheduled: list[float]  # a second, like `delivered`
    delivered: list[float]
    median_ms: list[int | None]  # by the time of receipt; None: nothing was received
    worst_ms: list[int | None]


@dataclass(frozen=True)
class Measures:
    """Lateness of timers with a delay, and of those that were due at once; rates over time."""

    undisturbed: Quantiles
    disturbed: Quantiles
    at_once: Quantiles
    at_once_disturbed: Quantiles
    over_time: OverTime


def measure(
    written: WrittenTopic,
    arrived: Sequence[ArrivedTimer],
    interruptions: Sequence[Interruption],
    rules: ProofRules,
) -> Measures:
    """Measures all deliveries to the target; the first interruption is the start."""
    rows = [
        (timer.stamp_ms, timer.due_ms, each.received_ms)
        for each in arrived
        if each.topic == rules.target
        and (timer := written.requests.get(each.source)) is not None
        and timer.due_ms is not None
    ]
    written_ms, due_ms, received_ms = np.array(rows, np.int64).reshape(-1, 3).T
    late_ms = received_ms - due_ms
    disturbed = np.zeros(len(rows), np.bool_)
    for each in interruptions:
        until_ms = np.iinfo(np.int64).max if each.flow_ms is None else each.flow_ms
        disturbed |= (due_ms <= until_ms) & (received_ms >= each.at_ms)
    delayed = due_ms - written_ms >= _AT_ONCE_MS
    scheduled_ms = [each.stamp_ms for each in written.requests.values() if each.is_timer]
    return Measures(
        undisturbed=Quantiles.of(late_ms[delayed & ~disturbed]),
        disturbed=Quantiles.of(late_ms[delayed & disturbed]),
        at_once=Quantiles.of(late_ms[~delayed & ~disturbed]),
        at_once_disturbed=Quantiles.of(late_ms[~delayed & disturbed]),
        over_time=_over_time(
            np.array(scheduled_ms, np.int64),
            received_ms,
            np.where(delayed, late_ms, -1),
            interruptions[0].at_ms,
        ),
    )


def _over_time(
    scheduled_ms: Millis, received_ms: Millis, late_ms: Millis, start_ms: int
) -> OverTime:
    """Timers with `late_ms` below 0 count for the rates only."""
    last_ms = max(start_ms, int(scheduled_ms.max(initial=0)), int(received_ms.max(initial=0)))
    part_ms = max(1_000, -(-(last_ms - start_ms) // _BINS_MAX))
    parts = -(-(last_ms - start_ms + 1) // part_ms)

    def part_of(times_ms: Millis) -> Millis:
        return np.clip((times_ms - start_ms) // part_ms, 0, parts - 1)

    counted = late_ms >= 0
    part, late_ms = part_of(received_ms[counted]), late_ms[counted]
    by_part = [late_ms[part == number] for number in range(parts)]
    return OverTime(
        part_s=part_ms / 1_000,
        scheduled=(np.bincount(part_of(scheduled_ms), minlength=parts) * 1_000 / part_ms).tolist(),
        delivered=(np.bincount(part_of(received_ms), minlength=parts) * 1_000 / part_ms).tolist(),
        median_ms=[int(np.median(each)) if len(each) else None for each in by_part],
        worst_ms=[int(each.max()) if len(each) else None for each in by_part],
    )
