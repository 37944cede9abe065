"""Serves Prometheus metrics over HTTP.

At each scrape a source turns frozen snapshots of a process's parts into metric families.

Names: `duewheel_`, base units (seconds), the unit last, `_total` for counters. Labels are topics,
reasons, phases and bounds, never ids or keys. Producers choose the names of topics, so only a
bounded number of topics has its own series (`TopicLabels`). Counters begin at 0 with their process.
"""

from __future__ import annotations

import platform
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

import structlog
from prometheus_client import (
    CollectorRegistry,
    ProcessCollector,
    generate_latest,
    start_http_server,
)
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)

from duewheel import __version__
from duewheel.errors import ConfigError
from duewheel.threads import failures
from duewheel.wheel.dequeue.duration_histogram import Histogram
from duewheel.wheel.inspect.counts_by_topic import Reasons
from duewheel.wheel.inspect.pending_counts import OTHER

log = structlog.get_logger(__name__)

PREFIX = "duewheel_"
TOPIC_SERIES_MAX = 200  # in one family


class Source(Protocol):
    """Makes families; those of both processes are in runtime/*_metrics.py."""

    def families(self) -> Iterable[Metric]:
        """All families as of now. Called by one thread at a time."""
        ...


class Together:
    """Several sources as one."""

    def __init__(self, *sources: Source) -> None:
        self._sources = sources

    def families(self) -> Iterator[Metric]:
        """See Source."""
        for source in self._sources:
            yield from source.families()


class _Collector:
    """Collects for one scrape at a time, and nothing once it is closed."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._lock = threading.Lock()
        self._closed = False

    def collect(self) -> list[Metric]:
        with self._lock:
            return (
                [] if self._closed else [build_info(), thread_failures(), *self._source.families()]
            )

    def close(self) -> None:
        with self._lock:
            self._closed = True


@contextmanager
def served(source: Source, host: str, port: int | None, setting: str) -> Iterator[None]:
    """Serves the source's metrics for the length of a with block; the source is not used after it.

    Args:
        port: 0: a free one, which the log names; None: no endpoint.
        setting: where the port is set, such as "metrics.ingest_port".

    Raises:
        ConfigError: the address cannot be listened on; has the setting to change.
    """
    if port is None:
        yield
        return
    collector = _Collector(source)
    registry = _registry(collector)
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        raise ConfigError(
            f"{setting}: metrics cannot be served on {host}:{port}: {error.strerror or error}"
        ) from error
    log.info("metrics served", url=f"http://{host}:{server.server_port}/metrics")
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
        collector.close()


def exposed(source: Source) -> Callable[[], bytes]:
    """A function that writes the source's metrics as text, for another server."""
    registry = _registry(_Collector(source))
    return lambda: generate_latest(registry)


def _registry(collector: _Collector) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(collector)
    ProcessCollector(registry=registry)
    return registry


class TopicLabels:
    """Chooses the topics with their own series in one family; all others together are OTHER.

    The topics with the greatest values are chosen first, and keep their series as long as they
    exist. Each family has its own object: otherwise a counter would move between series.
    """

    def __init__(self) -> None:
        self._own: set[str] = set()

    def of(self, values: Mapping[str, float]) -> dict[str, float]:
        """The value of each series."""
        topics = values.keys() - {OTHER}
        self._own &= topics
        new = sorted(topics - self._own, key=lambda topic: (-values[topic], topic))
        self._own.update(new[: TOPIC_SERIES_MAX - len(self._own)])
        found = {topic: values[topic] for topic in sorted(self._own)}
        if len(values) > len(found):
            found[OTHER] = sum(values.values()) - sum(found.values())
        return found

    def with_reasons(self, counts: Reasons) -> dict[tuple[str, ...], float]:
        """The value of each series by topic and reason."""
        own = self.of({topic: sum(each.values()) for topic, each in counts.items()})
        found = defaultdict[tuple[str, ...], float](float)
        for topic, each in counts.items():
            for reason, count in each.items():
                found[topic if topic in own else OTHER, reason] += count
        return found


# ---- families -----------------------------------------------------------------------------------


def counter(name: str, text: str, value: float) -> Metric:
    """A value that only rises."""
    return CounterMetricFamily(PREFIX + name, text, value=value)


def counters(
    name: str, text: str, label: str, values: Mapping[str, float] | Mapping[tuple[str, ...], float]
) -> Metric:
    """One value for each value of a label, or for each tuple of those of "label, label"."""
    return _filled(CounterMetricFamily(PREFIX + name, text, labels=label.split(", ")), values)


def gauge(name: str, text: str, value: float) -> Metric:
    """A current value."""
    return GaugeMetricFamily(PREFIX + name, text, value=value)


def gauges(
    name: str, text: str, label: str, values: Mapping[str, float] | Mapping[tuple[str, ...], float]
) -> Metric:
    """As `counters`, of current values."""
    return _filled(GaugeMetricFamily(PREFIX + name, text, labels=label.split(", ")), values)


def _filled(
    family: CounterMetricFamily | GaugeMetricFamily,
    values: Mapping[str, float] | Mapping[tuple[str, ...], float],
) -> Metric:
    for key, value in values.items():
        family.add_metric([key] if isinstance(key, str) else key, value)
    return family


def histogram(name: str, text: str, values_ms: Histogram) -> Metric:
    """A histogram of milliseconds, in seconds."""
    return HistogramMetricFamily(PREFIX + name, text, *_in_seconds(values_ms))


def histograms(name: str, text: str, label: str, values_ms: Mapping[str, Histogram]) -> Metric:
    """Histograms of milliseconds with one label, in seconds."""
    family = HistogramMetricFamily(PREFIX + name, text, labels=[label])
    for value, each in values_ms.items():
        family.add_metric([value], *_in_seconds(each))
    return family


def _in_seconds(values_ms: Histogram) -> tuple[list[tuple[str, int]], float]:
    """The buckets and the sum."""
    buckets, count = [], 0
    for bound, within in zip([*values_ms.bounds, None], values_ms.counts, strict=True):
        count += within
        buckets.append(("+Inf" if bound is None else f"{bound / 1000:g}", count))
    return buckets, values_ms.total / 1000


def thread_failures() -> Metric:
    """Counts errors of this process's threads."""
    text = "Errors that have ended or restarted a thread's work."
    return counters("thread_failures", text, "thread", failures)


def build_info() -> Metric:
    """The versions of duewheel and Python."""
    versions = {"version": __version__, "python": platform.python_version()}
    return InfoMetricFamily(PREFIX + "build", "Versions.", versions)
