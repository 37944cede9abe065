"""What reads of the HTTP API take, with `--pending` timers over 24 hours, an eighth of them rolled.

Ingest's engine fills a data directory, without Kafka; then `duewheel serve` runs beside it as a
process of its own. `first` is the first request of its kind: the first of all comes while the
process still counts what is pending. The files are in the page cache. Beside the duration of each
stands the processor time of that process, which other work on the host changes less.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2 as httpx
import numpy as np
import psutil

ROOT = Path(__file__).resolve().parents[2]
# The last place to look for modules: a folder called `wheel` lies there.
sys.path.append(str(ROOT))

from tests.bench.cancels import BATCH, CLOCK, PARTITION, SPAN_MS, WHEEL, ids_of, rows  # noqa: E402
from tests.harness.launcher import events, launch, tail, wait_until  # noqa: E402
from tests.harness.publishers import RecordingPublisher  # noqa: E402
from tests.harness.timer_shard import TimerShard  # noqa: E402

from duewheel.checkpoints.process_role import Role  # noqa: E402
from duewheel.config.settings import Settings, load  # noqa: E402
from duewheel.schemas.columns import binary  # noqa: E402
from duewheel.schemas.wire.record_codec import key_values  # noqa: E402
from duewheel.testing import ManualClock  # noqa: E402
from duewheel.wheel.dequeue_config import DequeueConfig  # noqa: E402

TURNS = 5
HOUR_MS = 3_600_000


def fill(settings: Settings, clock: ManualClock, pending: int) -> None:
    """Takes so many timers, each with a key of its own; one in eight is due beyond the roll
    window.
    """
    config = DequeueConfig(0, 1, {})
    shard = TimerShard(settings.storage.data_dir, WHEEL, RecordingPublisher(clock), clock, config)
    shard.start_dequeue({PARTITION: 0}).tick()
    engine, rng, now_ms = shard.start_ingest(), np.random.default_rng(1), clock.now_ms()
    for first in range(0, pending, BATCH):
        number = np.arange(first, min(first + BATCH, pending))
        due_ms = now_ms + rng.integers(60_000, SPAN_MS, len(number))
        due_ms[number % 8 == 0] += 20 * SPAN_MS
        batch = rows(first, number, due_ms, np.zeros(len(number), np.bool_))
        messages = key_values(ids_of(number), binary([b"x" * 100] * len(number)))
        stamps = np.full(len(number), now_ms)
        batch = replace(batch, timestamp_ms=stamps, key_value=messages)
        engine.append(batch, {PARTITION: int(number[-1]) + 1})
    for role in Role:
        shard.stop(role)


class Pages:
    """A client of `duewheel serve`, and its process."""

    def __init__(self, client: httpx.Client, pid: int) -> None:
        self._client, self._process = client, psutil.Process(pid)

    def measure(self, name: str, path: str, **wanted: Any) -> dict[str, Any]:
        """Prints how long the first request takes, and what the median of some later ones is."""
        took, used = [], []
        for _ in range(TURNS):
            begin_s, before_s = time.perf_counter(), self._processor_s()
            response = self._client.get(path, params=wanted)
            took.append(1000 * (time.perf_counter() - begin_s))
            used.append(1000 * (self._processor_s() - before_s))
            assert response.status_code in (200, 503), response.text
        later = statistics.median(took[1:]), statistics.mean(used[1:])
        print(
            f"{name:<32} first {took[0]:8.1f} ms, processor {used[0]:6.0f} ms   "
            f"then {later[0]:8.1f} ms, processor {later[1]:6.0f} ms",
            flush=True,
        )
        is_json = "json" in response.headers["content-type"]
        found: dict[str, Any] = response.json() if is_json else {}
        return found

    def _processor_s(self) -> float:
        times = self._process.cpu_times()
        return float(times.user + times.system)


@contextmanager
def serving(config: Path) -> Iterator[Pages]:
    """Runs `duewheel serve` for the length of a with block."""
    os.environ["PYTHONSAFEPATH"] = "1"
    log = config.with_name("serve.log")
    process = launch(config, "serve")
    try:
        wait_until(lambda: events(log, "serving"), lambda: tail(log), seconds=60)
        url = events(log, "serving")[0]["url"]
        with httpx.Client(base_url=url, timeout=300) as client:
            yield Pages(client, process.pid)
    finally:
        process.end(signal.SIGTERM, 60)


def measure_all(pages: Pages, pending: int, now_ms: int) -> None:
    """Measures every kind of read; the histogram first, as the page does."""
    later = {"from": str(now_ms + HOUR_MS)}
    minute = {**later, "to": str(now_ms + HOUR_MS + 60_000)}
    pages.measure("histogram", "/v1/histogram")
    pages.measure("histogram, one hour", "/v1/histogram", **later, to=str(now_ms + 2 * HOUR_MS))
    pages.measure("stats", "/v1/stats")
    pages.measure("list, first page of 100", "/v1/timers")
    pages.measure("list, first page of 1,000", "/v1/timers", limit=1_000)
    pages.measure("list, one target", "/v1/timers", topic="orders")
    pages.measure("list, no such target", "/v1/timers", topic="none")
    pages.measure("list, no such level", "/v1/timers", level=3)
    pages.measure("list, behind an hour", "/v1/timers", **later)
    found = pages.measure("search, one id", "/v1/timers", id=f"{pending // 3:020}")
    pages.measure("search, no such id", "/v1/timers", id="none")
    pages.measure("search, one key: a page", "/v1/timers", key=f"{pending // 2:020}")
    pages.measure("search, a key within a minute", "/v1/timers", key="none", **minute)
    handle = found["timers"][0]["handle"]
    pages.measure("show, by handle", f"/v1/timers/{handle}")
    rolled = pages.measure("search, id of a rolled timer", "/v1/timers", id=f"{8:020}")
    pages.measure("show, a rolled timer", f"/v1/timers/{rolled['timers'][0]['handle']}")
    pages.measure("status", "/v1/status")
    pages.measure("readyz, 503", "/readyz")
    pages.measure("metrics", "/metrics")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pending", type=int, default=1_000_000)
    pending = parser.parse_args().pending
    with tempfile.TemporaryDirectory(prefix="duewheel-bench-") as folder:
        config = Path(folder) / "duewheel.toml"
        config.write_text(
            f'[timer]\ntopics = "timers"\n[storage]\ndata_dir = "{folder}/data"\n'
            '[serve]\nport = 0\n[log]\nformat = "json"\n'
        )
        clock = ManualClock(CLOCK.now_ms())
        begin_s = time.perf_counter()
        fill(load(config), clock, pending)
        print(f"filled in {time.perf_counter() - begin_s:.1f} s", flush=True)
        with serving(config) as pages:
            measure_all(pages, pending, clock.now_ms())


if __name__ == "__main__":
    main()
