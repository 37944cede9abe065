"""Processor time and anonymous memory of processes, from /proc."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

_SAMPLE_S = 0.1
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Usage:
    """Of the processes of each part: processor time since the start, memory then and at most."""

    def __init__(self, pids: Mapping[str, Sequence[int]]) -> None:
        self._pids = pids
        self._before_s = self._processor_s()
        self.before_mb = self._memory_mb()
        self.peak_mb = dict(self.before_mb)

    def sample(self) -> None:
        for name, mb in self._memory_mb().items():
            self.peak_mb[name] = max(self.peak_mb[name], mb)

    def processor_s(self) -> dict[str, float]:
        """Since this object was made. A process that has ended meanwhile counts as 0."""
        after = self._processor_s()
        return {name: max(0.0, after[name] - before) for name, before in self._before_s.items()}

    def _processor_s(self) -> dict[str, float]:
        return {name: sum(map(_processor_s, pids)) for name, pids in self._pids.items()}

    def _memory_mb(self) -> dict[str, float]:
        return {name: sum(map(anonymous_mb, pids)) for name, pids in self._pids.items()}


@contextmanager
def measured(pids: Mapping[str, Sequence[int]]) -> Iterator[Usage]:
    """Usage over a with block; memory is sampled in a thread."""
    usage, ending = Usage(pids), threading.Event()

    def run() -> None:
        while not ending.wait(_SAMPLE_S):
            usage.sample()

    thread = threading.Thread(target=run, name="usage")
    thread.start()
    try:
        yield usage
    finally:
        ending.set()
        thread.join()


def family(pid: int) -> list[int]:
    """A process and all that descend from it."""
    children: list[int] = []
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            children += map(int, (task / "children").read_text().split())
    return [pid, *(member for child in children for member in family(child))]


def anonymous_mb(pid: int) -> float:
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) / 1e3
    return 0.0


def _processor_s(pid: int) -> float:
    with suppress(OSError):
        # The name, in brackets, may contain spaces; user and system time are fields 14 and 15.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
    return 0.0
