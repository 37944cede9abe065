"""The lateness that `duewheel serve` reads from the metrics of dequeue."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from prometheus_client.core import Metric
from tests.harness.served import served as api
from tests.harness.served import settings_of

from duewheel.config.settings import Settings, load
from duewheel.ops.shard.lateness import lateness
from duewheel.osutil.metrics_server import counter, histogram, served
from duewheel.wheel.dequeue.duration_histogram import Histogram


class Deliveries:
    """Three deliveries, one of them later than every bound."""

    def families(self) -> Iterator[Metric]:
        values_ms = Histogram().with_values(np.array([40, 70, 10**8]))
        yield counter("delivered", "Timers published.", 3)
        yield histogram("delivery_lateness_seconds", "Lateness.", values_ms)


class Nothing:
    def families(self) -> Iterator[Metric]:
        yield from ()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def settings_with(path: Path, **metrics: Any) -> Settings:
    return load(
        None,
        {"timer": {"topics": "timers"}, "metrics": metrics, "storage": {"data_dir": path / "data"}},
    )


def test_lateness_is_read_from_the_metrics_of_dequeue(tmp_path: Path) -> None:
    port = free_port()
    with served(Deliveries(), "127.0.0.1", port, "metrics.dequeue_port"):
        found = lateness(settings_with(tmp_path, host="0.0.0.0", dequeue_port=port))
    assert found.available
    within = dict(zip(found.bounds_s, found.counts, strict=False))
    assert (within[0.025], within[0.05], within[0.075]) == (0, 1, 2)
    assert found.counts[-2:] == [2, 3]
    assert len(found.counts) == len(found.bounds_s) + 1


def test_without_metrics_there_is_a_reason(tmp_path: Path) -> None:
    assert "dequeue_port" in str(lateness(settings_with(tmp_path)).reason)
    port = free_port()
    settings = settings_with(tmp_path, dequeue_port=port)
    assert "do not answer" in str(lateness(settings).reason)
    with served(Nothing(), "127.0.0.1", port, "metrics.dequeue_port"):
        assert "no lateness" in str(lateness(settings).reason)


def test_the_api_has_it(tmp_path: Path) -> None:
    with api(settings_of(tmp_path)) as client:
        found = client.get("/v1/lateness").json()
    assert found == {
        "available": False,
        "reason": "metrics.dequeue_port is not set",
        "bounds_s": [],
        "counts": [],
    }
