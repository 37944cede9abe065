"""The lateness of deliveries since dequeue began: for the page of `duewheel serve`.

Dequeue counts it in memory and serves it with its metrics: this reads them, as Prometheus does. All
other numbers of the page are in the shard's files, which every process reads.
"""

from __future__ import annotations

from http.client import HTTPConnection, HTTPException

from prometheus_client.parser import text_string_to_metric_families

from duewheel.api.timers import Lateness
from duewheel.config.settings import Settings
from duewheel.osutil.metrics_server import PREFIX

FAMILY = f"{PREFIX}delivery_lateness_seconds"
_TIMEOUT_S = 2.0
_BYTES_MAX = 16 << 20
_ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}  # noqa: S104 - not listened on


def lateness(settings: Settings) -> Lateness:
    """Reads the histogram of lateness."""
    host, port = settings.metrics.host, settings.metrics.dequeue_port
    if not port:
        return _unavailable("metrics.dequeue_port is not set")
    try:
        text = _read(_ANY_ADDRESS.get(host, host), port)
    except (OSError, HTTPException):
        return _unavailable("the metrics of dequeue do not answer")
    bounds, counts = _buckets(text)
    if not counts:
        return _unavailable("dequeue has no lateness: it may be a standby")
    return Lateness(available=True, reason=None, bounds_s=bounds, counts=counts)


def _unavailable(reason: str) -> Lateness:
    return Lateness(available=False, reason=reason, bounds_s=[], counts=[])


def _read(host: str, port: int) -> str:
    connection = HTTPConnection(host, port, timeout=_TIMEOUT_S)
    try:
        connection.request("GET", "/metrics")
        return connection.getresponse().read(_BYTES_MAX).decode()
    finally:
        connection.close()


def _buckets(text: str) -> tuple[list[float], list[int]]:
    # Only its own lines are parsed: there may be series of hundreds of topics.
    lines = [line for line in text.splitlines() if FAMILY in line]
    bounds, counts = [], []
    for family in text_string_to_metric_families("\n".join(lines) + "\n"):
        for sample in family.samples:
            if sample.name == f"{FAMILY}_bucket":
                bounds.append(float(sample.labels["le"]))
                counts.append(int(sample.value))
    return bounds[:-1], counts  # the last bound is +Inf
