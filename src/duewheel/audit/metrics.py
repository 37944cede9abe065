"""The metrics of the newest audit: the ingest process exports them, an audit writes them."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric

from duewheel.api.audit import AuditResult
from duewheel.osutil.metrics_server import gauge, gauges


def families(result: AuditResult) -> Iterator[Metric]:
    """Makes the metric families of one audit's result (run.py)."""
    yield gauge("audit_ok", "1 if the newest audit had no finding.", int(result.ok))
    yield gauge(
        "audit_end_timestamp_seconds", "When the newest audit ended.", result.ended_ms / 1000
    )
    yield gauge("audit_duration_seconds", "Duration of the newest audit.", result.took_s)
    yield gauge("audit_rows", "Messages that the newest audit validated.", result.rows)
    yield gauge(
        "audit_skipped_offsets", "Offsets of its range that it skipped.", result.skipped_offsets
    )
    yield gauge(
        "audit_disagreements",
        "Verdicts of ingest, or of its compiled rules, that differ from the written rules.",
        result.disagreements.count,
    )
    yield gauges("audit_rejected", "Rejected messages in its range.", "reason", result.rejected)
    failed: dict[tuple[str, ...], float] = {
        (name, each.severity): int(not each.success) for name, each in result.across_rows.items()
    }
    yield gauges(
        "audit_failed",
        "1 for each expectation across messages, or of a topic's suite, that fails. With severity "
        "`critical` that is a finding.",
        "expectation, severity",
        failed,
    )


class _Result:
    """Collects the metrics of one result."""

    def __init__(self, result: AuditResult) -> None:
        self._result = result

    def collect(self) -> Iterator[Metric]:
        return families(self._result)


def text(result: AuditResult) -> str:
    """Formats the metrics of a result in Prometheus' text format."""
    registry = CollectorRegistry()
    registry.register(_Result(result))
    return generate_latest(registry).decode()
