"""The lateness of deliveries: the acknowledgement of their transaction minus their due times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np

from duewheel.schemas.arrays import Bool, Int64
from duewheel.schemas.batches import Deliveries, topic_numbers
from duewheel.wheel.dequeue.duration_histogram import Histogram, counts_of
from duewheel.wheel.inspect.pending_counts import OTHER, TOPICS_MAX


@dataclass(frozen=True, slots=True)
class Objective:
    """The deliveries of a timer topic with an objective.

    Attributes:
        limit_ms: 99 of 100 deliveries may be late by no more.
        delivered: all of them.
        late: those that were late by more.
    """

    limit_ms: int
    delivered: int = 0
    late: int = 0

    def with_deliveries(self, late_ms: Int64) -> Objective:
        """Adds deliveries that were late by so much."""
        late = int((late_ms > self.limit_ms).sum())
        return replace(self, delivered=self.delivered + len(late_ms), late=self.late + late)


@dataclass(frozen=True, slots=True)
class LatenessStatistics:
    """The lateness of all deliveries since the start of dequeue.

    Attributes:
        max_ms: the greatest.
        by_topic: histograms by timer topic: the producers of one can write due times that are long
            past. Those of topics beyond TOPICS_MAX are one.
        objectives: deliveries by timer topic, of the topics with an objective.
    """

    max_ms: int = 0
    by_topic: Mapping[str, Histogram] = field(default_factory=dict)
    objectives: Mapping[str, Objective] = field(default_factory=dict)

    @classmethod
    def of(cls, limits_ms: Mapping[str, int]) -> Self:
        """Without a delivery, and with these objectives."""
        return cls(objectives={topic: Objective(ms) for topic, ms in limits_ms.items()})

    @property
    def counts(self) -> list[int]:
        """The counts of all timer topics together, between the bounds of MILLISECONDS."""
        return counts_of(self.by_topic.values())

    def with_deliveries(
        self, deliveries: Deliveries, rows: Bool, acknowledged_ms: int
    ) -> LatenessStatistics:
        """Adds these rows of a transaction."""
        late_ms = acknowledged_ms - deliveries.due_ms[rows]
        histograms, objectives = dict(self.by_topic), dict(self.objectives)
        for topic, each_ms in _by_timer_topic(deliveries, rows, late_ms).items():
            name = topic if topic in histograms or len(histograms) < TOPICS_MAX else OTHER
            histograms[name] = histograms.get(name, Histogram()).with_values(each_ms)
            if topic in objectives:
                objectives[topic] = objectives[topic].with_deliveries(each_ms)
        return LatenessStatistics(
            max(self.max_ms, int(late_ms.max(initial=0))), histograms, objectives
        )


def _by_timer_topic(deliveries: Deliveries, rows: Bool, late_ms: Int64) -> dict[str, Int64]:
    """Divides `late_ms`, which is of the given rows, by their timer topic."""
    topics, number = topic_numbers(deliveries.source_partitions)
    if len(topics) == 1:
        return {topics[0]: late_ms}
    of_row = number[deliveries.source_partition[rows]]
    ends = np.bincount(of_row, minlength=len(topics)).cumsum()
    parts = np.split(late_ms[np.argsort(of_row)], ends[:-1])  # a mask per topic reads all rows each
    return {topic: part for topic, part in zip(topics, parts, strict=True) if len(part)}
