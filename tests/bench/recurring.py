"""The load of `duewheel recur` with very many schedules that fire each minute, as JSON lines.

    recurring.py [--schedules 10000] [--minutes 3]

A broker of its own and the real process; no shard, whose load is that of any timers. Twice: all
schedules fire at the same second, then spread over the minute. A firing is to be written a minute
ahead of its instant; `late_ms` is counted from then to the begin of its transaction. Processor time
is that of the process, over whole minutes behind its start.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from kafka import KafkaProducer

ROOT = Path(__file__).resolve().parents[2]
# The last place to look for modules: a folder called `wheel` lies there.
sys.path.append(str(ROOT))

from tests.bench.usage import measured  # noqa: E402
from tests.harness.config_file import write_config  # noqa: E402
from tests.harness.launcher import events, launch, tail, wait_until  # noqa: E402
from tests.harness.reader import read_topic  # noqa: E402

from duewheel.clock import SystemClock  # noqa: E402
from duewheel.config.settings import Settings, load  # noqa: E402
from duewheel.dev.broker import DevBroker  # noqa: E402
from duewheel.kafka.topics.admin import KafkaAdmin  # noqa: E402
from duewheel.recurring.schedule import SCHEDULE_PREFIX, Schedule  # noqa: E402
from duewheel.recurring.steps import AHEAD_MS  # noqa: E402

MINUTE_S = 60
BEGUN_S = 300.0  # the longest time for the first turn


def set_all(settings: Settings, count: int, *, spread: bool) -> None:
    """Writes the schedules, as `schedule set` does."""
    topic = settings.timer.schedules_topic
    with closing(KafkaProducer(bootstrap_servers=settings.kafka.servers)) as producer:
        for number in range(count):
            second = number % MINUTE_S if spread else 0
            schedule = Schedule(
                name=f"schedule-{number}",
                revision="r1",
                timer_topic=settings.timer.topics[0],
                target="orders",
                cron=f"{second} * * * * *",
                value=b"v" * 100,
            )
            key = SCHEDULE_PREFIX + schedule.name.encode()
            producer.send(topic, schedule.encode(), key)


def run(folder: Path, servers: str, count: int, minutes: int, *, spread: bool) -> dict[str, Any]:
    """One measurement, in topics of its own."""
    app = "spread" if spread else "at-once"
    timer = {"reply_topic": f"{app}.replies", "schedules_topic": f"{app}.schedules"}
    log_format = {"format": "json"}
    config = write_config(folder, servers, app, timer=timer, log=log_format)
    settings = load(config)
    with KafkaAdmin(settings.kafka.client_options("admin")) as admin:
        admin.init_topics(settings, partitions=4)
    set_all(settings, count, spread=spread)
    log = folder / f"{app}.log"
    recur = launch(config, "recur", log=log)
    wait_until(lambda: events(log, "schedules opened"), lambda: tail(log), BEGUN_S)
    clock = SystemClock()
    time.sleep(2 * MINUTE_S - clock.now_ms() / 1000 % MINUTE_S)  # the first turn is behind it
    begin_ms = clock.now_ms()
    with measured(lambda: {"recur": [recur.pid]}) as usage:
        time.sleep(minutes * MINUTE_S)
    end_ms = clock.now_ms()
    assert recur.end(signal.SIGTERM, BEGUN_S) and recur.exit_code == 0, tail(log)
    records = read_topic(servers, settings.timer.topics[0])
    due_ms = np.array([int(dict(record.headers)["TIMER_DELIVER_MS"]) for record in records])
    stamp_ms = np.array([record.timestamp for record in records])
    written_ms = due_ms - AHEAD_MS
    within = (written_ms >= begin_ms) & (written_ms < end_ms - MINUTE_S * 1000 // 2)
    late_ms = (stamp_ms - written_ms)[within]
    return {
        "schedules": count,
        "fire": "spread over the minute" if spread else "at one second",
        "firings": int(within.sum()),
        "late_ms": {str(q): float(np.quantile(late_ms, q)) for q in (0.5, 0.99, 1.0)},
        "processor_s_per_minute": round(usage.processor_s()["recur"] / minutes, 2),
        "memory_mb": round(usage.peak_mb["recur"]),
        "load": os.getloadavg(),
        "niceness": os.nice(0),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--schedules", type=int, default=10_000)
    parser.add_argument("--minutes", type=int, default=3)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="duewheel-bench-") as name, DevBroker() as broker:
        servers = broker.bootstrap_servers
        for spread in (False, True):
            found = run(Path(name), servers, args.schedules, args.minutes, spread=spread)
            print(json.dumps(found), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
