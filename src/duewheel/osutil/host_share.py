"""How much of the host a process takes: its priority, its memory."""

from __future__ import annotations

import ctypes
import os
import sys
from contextlib import suppress
from importlib.abc import MetaPathFinder
from pathlib import Path

import pyarrow as pa

_M_ARENA_MAX = -8  # of glibc's malloc.h
_NICE = 5  # a third of the processor time of a process that does not yield
_AUTOGROUP = Path("/proc/self/autogroup")


def yield_processors() -> None:
    """Let other processes go first where processors are scarce.

    Called before this process has threads: the kernel knows a priority per thread. Threads and
    programs that are started later have it, too.
    """
    nice = os.nice(_NICE)
    # Where the kernel groups processes by session, a priority counts within the group only.
    if os.getsid(0) == os.getpid():
        with suppress(OSError):
            _AUTOGROUP.write_text(str(nice))


def share_one_heap() -> None:
    """Make all threads and Arrow allocate from one heap.

    One thread reads and encodes a chunk, a second hands it over, a third sends it. With a heap for
    each, and Arrow's own pool, half of the memory of a large slot stays allocated without use.
    """
    pa.set_memory_pool(pa.system_memory_pool())
    with suppress(AttributeError):  # not glibc
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


def do_without_pandas() -> None:
    """Keep pandas out of this process, where nothing needs it: 30 MB and a quarter of a second.

    pyarrow imports it where it makes a column, and pyspark where it starts; both go on without.
    """
    sys.meta_path.insert(0, _WithoutPandas())


class _WithoutPandas(MetaPathFinder):
    def find_spec(self, fullname: str, *_: object) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError("pandas is kept out of this process", name=fullname)
