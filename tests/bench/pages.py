"""What reads of the HTTP API take, with `--pending` timers over 24 hours, an eighth of them rolled.

Each request goes through the app, in this process; the first count of all is made before, as at the
start of `duewheel serve`. The files are in the page cache.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
# The last place to look for modules: a folder called `wheel` lies there.
sys.path.append(str(ROOT))

from fastapi.testclient import TestClient  # noqa: E402
from tests.bench.cancels import BATCH, CLOCK, PARTITION, SPAN_MS, WHEEL, rows  # noqa: E402

from duewheel.checkpoints.role import Role  # noqa: E402
from duewheel.config.settings import Settings, load  # noqa: E402
from duewheel.serve.access import Access  # noqa: E402
from duewheel.serve.app import make_app  # noqa: E402
from duewheel.testing import LocalShard, ManualClock, RecordingPublisher  # noqa: E402
from duewheel.wheel.dequeue_config import DequeueConfig  # noqa: E402

TURNS = 5


def fill(settings: Settings, clock: ManualClock, pending: int) -> None:
    """Takes so many timers; one in eight is due beyond the roll window."""
    config = DequeueConfig(0, 1, {})
    shard = LocalShard(settings.storage.data_dir, WHEEL, RecordingPublisher(clock), clock, config)
    shard.start_dequeue({PARTITION: 0}).tick()
    engine, rng, now_ms = shard.start_ingest(), np.random.default_rng(1), clock.now_ms()
    for first in range(0, pending, BATCH):
        number = np.arange(first, min(first + BATCH, pending))
        due_ms = now_ms + rng.integers(60_000, SPAN_MS, len(number))
        due_ms[number % 8 == 0] += 20 * SPAN_MS
        batch = rows(first, number, due_ms, np.zeros(len(number), np.bool_))
        batch = replace(batch, timestamp_ms=np.full(len(number), now_ms))
        engine.append(batch, {PARTITION: int(number[-1]) + 1})
    for role in Role:
        shard.stop(role)


def measure(client: TestClient, name: str, path: str, **wanted: Any) -> None:
    took_ms = []
    for _ in range(TURNS):
        begin_s = time.perf_counter()
        response = client.get(path, params=wanted)
        took_ms.append((time.perf_counter() - begin_s) * 1000)
        assert response.status_code == 200, response.text
    rest = statistics.median(took_ms[1:])
    print(f"{name:<40} first {took_ms[0]:8.1f} ms   then {rest:8.1f} ms", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pending", type=int, default=1_000_000)
    pending = parser.parse_args().pending
    with tempfile.TemporaryDirectory(prefix="duewheel-bench-") as folder:
        given = {"timer": {"topics": "timers"}, "storage": {"data_dir": Path(folder) / "data"}}
        settings, clock = load(None, given), ManualClock(CLOCK.now_ms())
        fill(settings, clock, pending)
        app = make_app(settings, clock, Access())
        begin_s = time.perf_counter()
        app.state.service.view.stats()
        print(f"first count {(time.perf_counter() - begin_s) * 1000:.1f} ms", flush=True)
        with TestClient(app, base_url="http://localhost") as client:
            measure(client, "list, first page of 100", "/v1/timers")
            measure(client, "list, first page of 1,000", "/v1/timers", limit=1_000)
            measure(client, "list, one target", "/v1/timers", topic="orders")
            measure(client, "list, no such target", "/v1/timers", topic="none")
            hour_ms = clock.now_ms() + 3_600_000
            measure(client, "list, behind an hour", "/v1/timers", **{"from": hour_ms})
            measure(client, "search, one id", "/v1/timers", id=f"{pending // 2:020}")
            measure(client, "search, no such key", "/v1/timers", key="none")
            timer = client.get("/v1/timers", params={"id": f"{pending // 3:020}"}).json()
            handle = timer["timers"][0]["handle"]
            measure(client, "show, by handle", f"/v1/timers/{handle}")
            measure(client, "histogram", "/v1/histogram")
            measure(client, "stats", "/v1/stats")
            measure(client, "readyz is 503; livez", "/livez")


if __name__ == "__main__":
    main()
