"""The metrics of the newest audit: in the ingest process, and as a text file beside the audits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric

from duewheel.osutil.metrics_server import gauge, gauges


def families(result: Mapping[str, Any]) -> Iterator[Metric]:
    """The families of one audit's result (run.py)."""
    yield gauge("audit_ok", "1 if the newest audit had no finding.", int(result["ok"]))
    yield gauge(
        "audit_end_timestamp_seconds", "When the newest audit ended.", result["ended_ms"] / 1000
    )
    yield gauge("audit_duration_seconds", "How long it took.", result["took_s"])
    yield gauge("audit_rows", "Messages that it judged.", result["rows"])
    yield gauge(
        "audit_skipped_offsets", "Offsets of its range that it left out.", result["skipped_offsets"]
    )
    yield gauge(
        "audit_disagreements",
        "Verdicts of ingest or of the compiled rules that are not those of the suite.",
        result["disagreements"]["count"],
    )
    yield gauges(
        "audit_rejected", "Messages of its range that are rejected.", "reason", result["rejected"]
    )
    failed = {each["code"]: int(not each["success"]) for each in result["rows_suite"]}
    yield gauges(
        "audit_failed", "1 where an expectation across rows does not hold.", "expectation", failed
    )


class _Result:
    """A collector of one result."""

    def __init__(self, result: Mapping[str, Any]) -> None:
        self._result = result

    def collect(self) -> Iterator[Metric]:
        return families(self._result)


def text(result: Mapping[str, Any]) -> str:
    """In the text format of Prometheus."""
    registry = CollectorRegistry()
    registry.register(_Result(result))
    return generate_latest(registry).decode()
