"""Processor time and anonymous memory of processes, from /proc."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

_SAMPLE_S = 0.25
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")

Parts = Callable[[], Mapping[str, Sequence[int]]]


class Usage:
    """Of the processes of each part: processor time since the start, memory then and at most."""

    def __init__(self, parts: Parts) -> None:
        """`parts`: the processes of each; some may start and end meanwhile."""
        self._parts = parts
        found = parts()
        self._begun_s = {(name, pid): _processor_s(pid) for name, pid in _pairs(found)}
        self._seen_s = dict(self._begun_s)
        self.before_mb = _memory_mb(found)
        self.peak_mb = dict(self.before_mb)

    def sample(self) -> None:
        found = self._parts()
        for name, pid in _pairs(found):
            before = self._seen_s.get((name, pid), 0.0)
            self._seen_s[name, pid] = max(before, _processor_s(pid))
        for name, mb in _memory_mb(found).items():
            self.peak_mb[name] = max(self.peak_mb.get(name, 0.0), mb)

    def processor_s(self) -> dict[str, float]:
        """From the start to the last sample."""
        used = dict.fromkeys(self.peak_mb, 0.0)
        for (name, pid), seconds in self._seen_s.items():
            used[name] += seconds - self._begun_s.get((name, pid), 0.0)
        return used


def _pairs(parts: Mapping[str, Sequence[int]]) -> list[tuple[str, int]]:
    return [(name, pid) for name, pids in parts.items() for pid in pids]


def _memory_mb(parts: Mapping[str, Sequence[int]]) -> dict[str, float]:
    return {name: sum(map(anonymous_mb, pids)) for name, pids in parts.items()}


@contextmanager
def measured(parts: Parts) -> Iterator[Usage]:
    """Usage over a with block; sampled in a thread, and once more at its end."""
    usage, ending = Usage(parts), threading.Event()

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
    usage.sample()


class ProcessTree:
    """Descendants of processes.

    Looked up often: the kernel's list of children is one for each thread, of which a JVM has a
    hundred. Here each process is read once, when it is first seen.
    """

    def __init__(self) -> None:
        self._parents: dict[int, int] = {}

    def family(self, pid: int) -> list[int]:
        """A process and all that descend from it."""
        found = [int(each.name) for each in Path("/proc").iterdir() if each.name.isdecimal()]
        self._parents = {each: self._parents.get(each) or _parent(each) for each in found}
        members = [pid]
        for member in members:
            members += [child for child, parent in self._parents.items() if parent == member]
        return members


def anonymous_mb(pid: int) -> float:
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) / 1e3
    return 0.0


def _processor_s(pid: int) -> float:
    with suppress(OSError):
        fields = _stat(pid)
        return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
    return 0.0


def _parent(pid: int) -> int:
    """0: it has none, or has ended."""
    with suppress(OSError):
        return int(_stat(pid)[1])
    return 0


def _stat(pid: int) -> list[str]:
    """From field 3 on, the state: the name before it, in brackets, may contain spaces."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
