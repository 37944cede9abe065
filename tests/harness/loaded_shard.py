"""A shard of real processes under load, whose arrivals are counted."""

from __future__ import annotations

import random
import shutil
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from kafka import KafkaProducer
from tests.harness.launcher import launch, run
from tests.harness.whole_shard import CLOCK, WholeShard

from duewheel.osutil.child_process import Child

BURST = 3_000


def remove(folder: Path) -> None:
    """All of it; Spark's JVM outlives its killed process for a moment, and writes on."""
    while folder.exists():
        shutil.rmtree(folder, ignore_errors=True)


class Load(threading.Thread):
    """Writes timers, some hundred a second, due within seconds.

    Attributes:
        due_ms: of each value, once Kafka has it.
    """

    def __init__(self, servers: str, topic: str) -> None:
        super().__init__(name="load")
        self.due_ms: dict[bytes, int] = {}
        self._topic = topic
        self._producer = KafkaProducer(bootstrap_servers=servers, linger_ms=5)
        self._stopping = threading.Event()

    def run(self) -> None:
        dice = random.Random(1)
        number = 0
        while not self._stopping.wait(0.05):
            now_ms = CLOCK.now_ms()
            values = [b"timer %d" % n for n in range(number, number + 15)]
            self.write({value: now_ms + dice.randrange(5_000) for value in values})
            number += 15

    def write(self, due_ms: dict[bytes, int]) -> None:
        futures = [
            self._producer.send(
                self._topic, value, value, headers=[("TIMER_DELIVER_MS", b"%d" % due)]
            )
            for value, due in due_ms.items()
        ]
        for future in futures:
            future.get(timeout=60)
        self.due_ms.update(due_ms)

    def stop(self) -> None:
        self._stopping.set()
        self.join()
        self._producer.close()


class LoadedShard(WholeShard):
    """`duewheel run` in small chunks, with frequent checkpoints, under load."""

    def __init__(self, path: Path, servers: str, name: str) -> None:
        super().__init__(
            path,
            servers,
            name,
            dequeue={"chunk_records": 40},
            storage={"durable_interval": "1s"},
            shard={"take_over_after": "1s"},
        )
        self.load = Load(servers, self.timers)
        self.supervisors: list[Child] = []

    @property
    def data(self) -> Path:
        return self.settings.storage.data_dir

    def run(self, *flags: str) -> Child:
        self.supervisor = launch(self.config, "run", *flags)
        self.supervisors.append(self.supervisor)
        return self.supervisor

    def alone(self, *words: str) -> tuple[int | None, str]:
        """Exit code and stderr of a duewheel command that ends by itself."""
        done = run(self.config, *words)
        return done.returncode, done.stderr

    def kill_all(self) -> None:
        """kill -9 of both processes, then of what would start them again."""
        for name in ("dequeue", "ingest"):
            with suppress(ProcessLookupError):
                self.kill(name)
        assert self.supervisor is not None
        assert self.supervisor.end(signal.SIGKILL, 30)
        self.supervisor = None

    def close(self) -> None:
        """End all that was started, whatever has become of it."""
        if self.load.is_alive():
            self.load.stop()
        for supervisor in self.supervisors:
            supervisor.stop(30)
        super().close()

    def wait_for(self, event: str, count: int) -> dict[str, Any]:
        """The newest event of this name, once there are more than `count`."""
        self.wait(lambda: len(self.events(event)) > count)
        return self.events(event)[-1]

    def burst(self) -> None:
        """Many timers of one slot, as far as the first one's arrival."""
        burst = dict.fromkeys((b"burst %d" % n for n in range(BURST)), CLOCK.now_ms() + 3_000)
        self.load.write(burst)
        while not burst.keys() & self.arrivals.first.keys():
            time.sleep(0.002)

    def await_arrivals(self) -> None:
        """All that Kafka has had until now."""
        sent = list(self.load.due_ms)
        self.wait(lambda: all(value in self.arrivals.first for value in sent))

    def judge(self) -> None:
        """Each once, none early."""
        doubled = {value: n for value, n in self.arrivals.count.items() if n != 1}
        assert doubled == {}
        for value, due_ms in self.load.due_ms.items():
            *_, seen_ms = self.arrivals.first[value]
            assert seen_ms >= due_ms
        assert self.arrivals.first.keys() == self.load.due_ms.keys()
