"""duewheel as in duewheel_system.py, driven by librdkafka: whether a second driver finds the same.

`confluent-kafka` has to be installed beside duewheel for it (`pip install confluent-kafka`).
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.bench.duewheel_system import TARGET, TIMERS, DuewheelSystem
from tests.bench.measured import SECOND_NAME
from tests.bench.system import Kind, SendResult, TimerLoad, times_file, write_times

CLIENT = Path(__file__).with_name("librdkafka_client.py")


class LibrdkafkaSystem(DuewheelSystem):
    """See the module."""

    name = SECOND_NAME

    def __init__(self, path: Path, **options: Any) -> None:
        super().__init__(path, **options)
        self._load_pids: list[int] = []

    def consumer_command(self) -> Sequence[str]:
        return self._client("consume", self.servers, TARGET, str(self.receipts.path))

    def prepare(self, load: TimerLoad) -> TimerLoad:
        assert load.kind is Kind.TIMERS, "this driver sends timers only"
        write_times(self._path, load)
        return load

    def send_now(self, load: TimerLoad) -> SendResult:
        times = str(times_file(self._path, load))
        command = self._client("send", self.servers, TIMERS, TARGET, times, str(load.first))
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            self._load_pids.append(process.pid)
            said, _ = process.communicate()
        self._load_pids.remove(process.pid)
        return SendResult(**json.loads(said))

    def pids(self) -> Mapping[str, Sequence[int]]:
        return {**super().pids(), "load": list(self._load_pids)}

    def _client(self, *arguments: str) -> Sequence[str]:
        return [sys.executable, "-P", str(CLIENT), *arguments]
