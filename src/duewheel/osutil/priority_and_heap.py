"""How much of the host a process takes: its priority, its memory."""

from __future__ import annotations

import ctypes
import os
import sys
import time
from contextlib import suppress
from importlib.abc import MetaPathFinder
from pathlib import Path

import psutil
import pyarrow as pa

_M_ARENA_MAX = -8  # of glibc's malloc.h
_NICE_MAX = 19
_AUTOGROUP = Path("/proc/self/autogroup")
_AUTOGROUP_TRIES, _AUTOGROUP_PAUSE_S = 10, 0.1


def yield_processors(step: int) -> None:
    """Lets other processes go first where processors are scarce: adds `step` to the niceness of all
    threads of this process and of the processes below it. Later ones inherit it.
    """
    if not step:
        return
    nice, done = min(os.getpriority(os.PRIO_PROCESS, 0) + step, _NICE_MAX), set[int]()
    while fresh := _threads() - done:  # until none was started meanwhile with the old priority
        for thread in fresh:
            with suppress(ProcessLookupError):
                os.setpriority(os.PRIO_PROCESS, thread, nice)
        done |= fresh
    # Where the kernel groups processes by session, niceness counts within the group only. The group
    # has a niceness of its own, which begins at 0.
    if os.getsid(0) == os.getpid():
        _lower_the_group(step)


def _threads() -> set[int]:
    """The threads of this process and of all below it."""
    this, found = psutil.Process(), set[int]()
    for process in (this, *this.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            found |= {thread.id for thread in process.threads()}
    return found


def _lower_the_group(step: int) -> None:
    for _ in range(_AUTOGROUP_TRIES):
        try:
            _AUTOGROUP.write_text(str(step))
        except BlockingIOError:  # the kernel takes ten writes a second, for all groups together
            time.sleep(_AUTOGROUP_PAUSE_S)
        except OSError:  # it has no groups
            return
        else:
            return


def share_one_heap() -> None:
    """Makes all threads and Arrow allocate from one heap.

    One thread reads and encodes a chunk, a second hands it over, a third sends it. With a heap for
    each, and Arrow's own pool, half of a large slot's memory would stay allocated without use.
    """
    pa.set_memory_pool(pa.system_memory_pool())
    with suppress(AttributeError):  # not glibc
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


def do_without_pandas() -> None:
    """Keeps pandas, 30 MB and a quarter of a second, out of a process that does not need it.

    pyarrow imports it to make a column, and pyspark at its start; both work without it.
    """
    sys.meta_path.insert(0, _WithoutPandas())


class _WithoutPandas(MetaPathFinder):
    def find_spec(self, fullname: str, *_: object) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError("pandas is kept out of this process", name=fullname)
