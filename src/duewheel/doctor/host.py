"""Checks this host: the data directory's disk and rights, limits, memory, Java, the clock.

Kafka is not involved. A file in a temporary folder, in the data directory or in its nearest parent
that exists, shows whether the file system allocates blocks, maps files and locks them.
"""

from __future__ import annotations

import ctypes
import os
import resource
import struct
import tempfile
from collections.abc import Iterator
from contextlib import closing
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

from duewheel import extras
from duewheel.checkpoints import fs
from duewheel.checkpoints.file_lock import FileLock
from duewheel.config.settings import Settings
from duewheel.doctor.findings import Diagnosis, diagnose
from duewheel.errors import ConfigError
from duewheel.factory import COPIES_ON_WRITE
from duewheel.java.find import find_java
from duewheel.wheel.storage.byte_layouts import ENTRY_BYTES

_REMOTE = {
    "nfs",
    "nfs4",
    "cifs",
    "smb3",
    "smbfs",
    "9p",
    "ceph",
    "glusterfs",
    "lustre",
    "fuse.sshfs",
}
_PASSING = {"overlay", "tmpfs", "ramfs", "aufs"}
_ROOM_BYTES = 2 << 30  # for timers: hours of them at a modest rate
_TRIAL_BYTES = 1 << 16
_BLOCK_BYTES = 512  # the unit of st_blocks; the file system's own blocks are larger
_OPEN_FILES = 4_096
_JVM_BESIDE_HEAP = 1.3  # bytes of memory that a JVM takes per byte of its heap
_TASKS_BYTES = 800 << 20  # the Python processes that plan and read took so much on two processors
# The kernel's adjtimex: its return value for an unsynchronised clock, and the first fields of
# `struct timex`: modes, offset, freq, maxerror (µs), esterror, status.
_UNSYNCHRONISED = 5
_TIMEX = struct.Struct("=i4xqqqqi")
_TIMEX_BYTES = 208


def examine(settings: Settings) -> Iterator[Diagnosis]:
    """Runs all checks of the host."""
    data_dir = settings.storage.data_dir.absolute()
    yield check_file_system(data_dir, _file_system(data_dir))
    yield _trial(data_dir)
    if data_dir.exists():
        yield check_rights(data_dir)
    yield _room(settings, data_dir)
    if (data_dir / "timerwheel").exists():
        yield _allocated(data_dir / "timerwheel")
    yield _open_files()
    yield _memory(settings)
    yield _java()
    yield _clock()


def _existing(path: Path) -> Path:
    """Returns the path or its nearest existing parent."""
    return next(folder for folder in (path, *path.parents) if folder.exists())


def _file_system(path: Path) -> str:
    """Returns the type of the file system of a path, which may not exist yet."""
    place = _existing(path).resolve()
    if (kind := fs.copies_on_write(place)) is not None:
        return kind
    mounts = {Path(part.mountpoint): part.fstype for part in psutil.disk_partitions(all=True)}
    return next((mounts[folder] for folder in (place, *place.parents) if folder in mounts), "?")


def check_file_system(path: Path, kind: str) -> Diagnosis:
    """Checks that files outlive a restart, can be mapped and locked, and are written in place."""
    remote, passing, copies = kind in _REMOTE, kind in _PASSING, kind in fs.COPY_ON_WRITE
    # A bool as a factor: each text at most once.
    why = [": not local, so mapped files and locks are not safe"] * remote
    why += [": its content ends with the container or the host"] * passing
    why += [f": it {COPIES_ON_WRITE}"] * copies
    remedy = "set storage.data_dir to a directory on a local disk (ext4, xfs), or mount a volume"
    return diagnose(
        "file_system",
        str(path),
        kind + "".join(why),
        error=remote,
        warning=passing or copies,
        remedy=remedy,
    )


def _trial(data_dir: Path) -> Diagnosis:
    """Allocates, maps, writes and locks a file where the data directory is, or will be."""
    code, subject = "data_directory", str(data_dir)
    parent = _existing(data_dir)
    try:
        with tempfile.TemporaryDirectory(prefix=".doctor-", dir=parent) as folder:
            path = Path(folder) / "trial"
            with closing(fs.NewFile(path, _TRIAL_BYTES)) as new:
                new.sync()
                new.put_in_place()
            fd = fs.HOST_FS.open_existing(path)
            try:
                with fs.HOST_FS.map(fd, _TRIAL_BYTES, writable=True) as mapped:
                    mapped[:4] = b"seen"
                    mapped.flush()
                same = os.pread(fd, 4, 0) == b"seen"
                whole = os.fstat(fd).st_blocks * _BLOCK_BYTES >= _TRIAL_BYTES
            finally:
                fs.HOST_FS.close(fd)
            with closing(FileLock(path)) as lock, closing(FileLock(path)) as other:
                exclusive = lock.try_acquire() and not other.try_acquire()
    except OSError as error:
        remedy = f"give user {os.getuid()} the right to write there, or set storage.data_dir"
        return Diagnosis(code, "error", subject, f"cannot be used: {error}", remedy)
    problems = [] if same else ["a read does not return the mapped bytes"]
    problems += [] if whole else ["an allocated file has no blocks"]
    problems += [] if exclusive else ["two holders get the same lock"]
    return diagnose(
        code,
        subject,
        "; ".join(problems) or "allocates, maps and locks",
        error=bool(problems),
        remedy="set storage.data_dir to a directory on a local disk",
    )


def check_rights(data_dir: Path) -> Diagnosis:
    """Checks that no other user can read message bodies or the key of copies."""
    readable = list(fs.HOST_FS.readable_by_others(data_dir))
    return diagnose(
        "data_rights",
        str(data_dir),
        f"others have rights to {len(readable)} files and directories, first {readable[0]}"
        if readable
        else "only its owner can read its files",
        error=bool(readable),
        remedy="start the shard, which takes these rights away; or chmod -R go-rwx on it",
    )


def _room(settings: Settings, data_dir: Path) -> Diagnosis:
    ring = 2 * settings.timer.slots * ENTRY_BYTES
    exists = (data_dir / "timerwheel").exists()
    space = fs.space(_existing(data_dir))
    least = settings.storage.min_free.of(space.total_bytes)
    return check_room(str(data_dir), space.free_bytes, 0 if exists else ring, least)


def check_room(subject: str, free: int, ring: int, least: int) -> Diagnosis:
    """Checks the room for timers, and for the bytes that the wheel will take (`ring`); ingest takes
    nothing below `least` free bytes.
    """
    text = f"{free >> 20} MiB free, ingest leaves {least >> 20} (storage.min_free)"
    text += f", the wheel takes {ring >> 20}" if ring else ""
    return diagnose(
        "disk_space",
        subject,
        text,
        error=free < ring + least,
        warning=free < ring + least + _ROOM_BYTES,
        remedy="make room: a pending timer takes some 52 bytes and its message, "
        f"and less than {_ROOM_BYTES >> 20} MiB for them is little",
    )


def _allocated(wheel: Path) -> Diagnosis:
    """Checks the wheel's blocks: a sparse mapped file kills the process on a full disk."""
    found = wheel.stat()
    blocks = found.st_blocks * _BLOCK_BYTES
    return diagnose(
        "wheel_allocated",
        str(wheel),
        f"{blocks >> 20} of {found.st_size >> 20} MiB are allocated",
        warning=blocks < found.st_size,
        remedy=f"stop duewheel, then: fallocate --length {found.st_size} {wheel}",
    )


def _open_files() -> Diagnosis:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return diagnose(
        "open_files",
        "host",
        f"a process may hold {soft} files and connections",
        warning=0 <= soft < _OPEN_FILES,
        remedy=f"ulimit -n {_OPEN_FILES}, or LimitNOFILE={_OPEN_FILES} in the service's unit",
    )


def _memory(settings: Settings) -> Diagnosis:
    spark = int(settings.ingest.driver_memory_bytes * _JVM_BESIDE_HEAP) + _TASKS_BYTES
    return check_memory(psutil.virtual_memory().available, spark, settings.dequeue.read_ahead_bytes)


def check_memory(available: int, spark: int, cache: int) -> Diagnosis:
    """Compares the available bytes with those of Spark and of read-ahead."""
    return diagnose(
        "memory",
        "host",
        f"{available >> 20} MiB available; Spark takes {spark >> 20}, "
        f"reading ahead {cache >> 20} of page cache",
        warning=available < spark + cache,
        remedy="lower ingest.driver_memory or dequeue.read_ahead_bytes, or give the host more; "
        "it is enough if duewheel runs already",
    )


def _java() -> Diagnosis:
    try:
        java = find_java()
    except ConfigError as error:
        first, *rest = str(error).splitlines()
        return Diagnosis("java", "error", "host", first, rest[-1] if rest else "")
    try:
        spark = version("pyspark")
    except PackageNotFoundError as error:
        return Diagnosis(
            "java", "warning", "host", "ingest cannot run here", extras.remedy(error) or ""
        )
    found = f"{java.version} from {java.source} ({java.executable}), pyspark {spark}"
    return Diagnosis("java", "ok", "host", found)


def _clock() -> Diagnosis:
    """Checks the clock's synchronisation, as NTP services report it to the kernel."""
    buffer = ctypes.create_string_buffer(_TIMEX_BYTES)
    adjtimex = getattr(ctypes.CDLL(None), "adjtimex", None)  # not every C library has it
    answer = -1 if adjtimex is None else adjtimex(buffer)
    _, _, _, error_us, _, _ = _TIMEX.unpack_from(buffer)
    if answer < 0:
        return Diagnosis("clock_kept", "ok", "host", "the kernel does not report it here")
    return diagnose(
        "clock_kept",
        "host",
        "the kernel reports no synchronisation of the clock"
        if answer == _UNSYNCHRONISED
        else f"synchronised, with an error of {error_us / 1000:.0f} ms at most",
        warning=answer == _UNSYNCHRONISED,
        remedy="run NTP: systemctl enable --now chrony (or systemd-timesyncd)",
    )
