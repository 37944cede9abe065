"""Checks this host: limits, memory, Java, the clock. Kafka is not involved."""

from __future__ import annotations

import ctypes
import resource
import struct
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

import psutil

from duewheel import extras
from duewheel.api.examination import DoctorFinding
from duewheel.config.settings import Settings
from duewheel.doctor.findings import Check, Findings
from duewheel.errors import ConfigError
from duewheel.java.find import find_java

_OPEN_FILES = 4_096
_JVM_BESIDE_HEAP = 1.3  # bytes of memory that a JVM takes per byte of its heap
_TASKS_BYTES = 800 << 20  # the Python processes that plan and read took so much on two processors
_CGROUP = Path("/sys/fs/cgroup")  # of the container, if this is one
# Limit and use in bytes: of version 2, and of version 1. memory.stat is beside both.
_LIMITS = (
    ("memory.max", "memory.current"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
)
# The kernel's adjtimex: its return values without a kept clock, and the first fields of
# `struct timex`: modes, offset, freq, maxerror (µs), esterror, status.
_UNREPORTED, _UNSYNCHRONISED = -1, 5
_TIMEX = struct.Struct("=i4xqqqqi")
_TIMEX_BYTES = 208


def examine(settings: Settings) -> Findings:
    """Runs all checks of the host."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield check_open_files(soft)
    yield _check_memory(settings)
    yield check_clock(*_kernel_clock())
    yield _check_java()  # last: it runs another program, and an error of that ends this part


def check_open_files(limit: int) -> DoctorFinding:
    """Checks the limit of open files; below 0 there is none."""
    return Check("open_files", "host").of(
        "warning" if 0 <= limit < _OPEN_FILES else "ok",
        f"a process may hold {limit if limit >= 0 else 'any number of'} files and connections",
        f"ulimit -n {_OPEN_FILES}, or LimitNOFILE={_OPEN_FILES} in the service's unit",
    )


def _check_memory(settings: Settings) -> DoctorFinding:
    spark = 0
    if find_spec("pyspark") is not None:
        spark = int(settings.ingest.driver_memory_bytes * _JVM_BESIDE_HEAP) + _TASKS_BYTES
    return check_memory(available_bytes(_CGROUP), spark, settings.dequeue.read_ahead_bytes)


def available_bytes(cgroup: Path) -> int:
    """Returns the memory of the host, or of the container if that is less."""
    available = psutil.virtual_memory().available
    for limit, used in _LIMITS:
        path = cgroup / limit
        with suppress(OSError, ValueError):  # there is none, or it is `max`
            left = int(path.read_text()) - int((cgroup / used).read_text())
            with suppress(OSError, KeyError, ValueError):  # not every container has it
                stat = dict(map(str.split, path.with_name("memory.stat").read_text().splitlines()))
                left += int(stat["inactive_file"])  # page cache to drop
            available = min(available, left)
    return available


def check_memory(available: int, spark: int, cache: int) -> DoctorFinding:
    """Compares the available bytes with those of Spark and of read-ahead."""
    return Check("memory", "host").of(
        "warning" if available < spark + cache else "ok",
        f"{available >> 20} MiB available; Spark takes {spark >> 20}, "
        f"reading ahead {cache >> 20} of page cache",
        "lower ingest.driver_memory or dequeue.read_ahead_bytes, or give the host more; "
        "it is enough if duewheel runs already",
    )


def _check_java() -> DoctorFinding:
    check = Check("java", "host")
    try:
        spark = version("pyspark")  # first: without it nothing here needs Java
    except PackageNotFoundError as error:
        return check.warning("ingest cannot run here", extras.remedy(error) or "")
    try:
        java = find_java()
    except ConfigError as error:
        *tried, remedy = str(error).splitlines()
        return check.error(" ".join(map(str.strip, tried)), remedy)
    found = f"{java.version} from {java.source} ({java.executable}), pyspark {spark}"
    return check.ok(found)


def _kernel_clock() -> tuple[int, int]:
    """The answer of adjtimex, and the greatest error of the clock in µs."""
    buffer = ctypes.create_string_buffer(_TIMEX_BYTES)
    adjtimex = getattr(ctypes.CDLL(None), "adjtimex", None)  # not every C library has it
    answer = _UNREPORTED if adjtimex is None else adjtimex(buffer)
    _, _, _, error_us, _, _ = _TIMEX.unpack_from(buffer)
    return answer, error_us


def check_clock(answer: int, error_us: int) -> DoctorFinding:
    """Checks the clock's synchronisation, as NTP services report it to the kernel."""
    check = Check("clock_kept", "host")
    if answer == _UNREPORTED:
        return check.warning(
            "whether NTP keeps the clock cannot be read here",
            "ask outside the container: chronyc tracking; timedatectl",
        )
    if answer == _UNSYNCHRONISED:
        return check.warning(
            "the kernel reports no synchronisation of the clock",
            "run NTP: systemctl enable --now chrony (or systemd-timesyncd)",
        )
    return check.ok(f"synchronised, with an error of {error_us / 1000:.0f} ms at most")
