"""The metrics of `duewheel recur`."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import Metric

from duewheel.osutil.metrics_server import counter, gauge, gauges
from duewheel.recurring.scheduler import Scheduler


class RecurMetrics:
    """The families of the process.

    Args:
        scheduler: of the process.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def families(self) -> Iterator[Metric]:
        """See metrics_server.Source."""
        counted, schedules = self._scheduler.statistics, self._scheduler.schedules.values()
        paused = sum(schedule.paused for schedule in list(schedules))
        yield gauges(
            "schedules",
            "Recurring schedules; none in a process that stands by.",
            "state",
            {
                "active": len(schedules) - paused,
                "paused": paused,
                "unreadable": self._scheduler.unreadable,
            },
        )
        yield gauge(
            "schedules_waiting",
            "Changed schedules that wait for the replies to cancels of their firings.",
            self._scheduler.waiting,
        )
        yield counter(
            "firings", "Firings of schedules that were written as timers.", counted.firings
        )
        yield counter(
            "firings_cancelled", "Firings that a change has cancelled.", counted.cancelled
        )
        yield counter(
            "firings_missed_steps",
            "Steps that have left out missed instants, by the schedule's policy.",
            counted.missed_steps,
        )
        yield counter(
            "firings_late", "Firings that were written after their instant.", counted.late
        )
        yield gauge(
            "recur_turn_timestamp_seconds",
            "When this process last had written all that was due; 0: never, it stands by.",
            counted.turned_ms / 1000,
        )
        yield counter(
            "recur_transactions",
            "Transactions that wrote firings or positions.",
            counted.transactions,
        )
        yield counter(
            "recur_failures",
            "Transactions that failed or are in doubt, and steps that wait for their timer topic.",
            counted.failures,
        )
