"""Checks the data directory: its file system, rights and room, and the blocks of its wheel.

A file in a temporary folder, in the data directory or in its nearest parent that exists, shows
whether the file system allocates blocks, maps files and locks them.
"""

from __future__ import annotations

import os
import tempfile
from contextlib import closing, suppress
from pathlib import Path

import psutil

from duewheel.api.examination import DoctorFinding
from duewheel.checkpoints.disk_room import COPY_ON_WRITE, Room, copies_on_write
from duewheel.checkpoints.file_lock import FileLock
from duewheel.checkpoints.fs import HOST_FS, NewFile
from duewheel.config.settings import Settings
from duewheel.doctor.findings import Check, Findings
from duewheel.errors import NO_ROOM
from duewheel.factory import COPIES_ON_WRITE
from duewheel.wheel.storage.byte_layouts import ENTRY_BYTES
from duewheel.wheel.storage.timelines import timer_wheel

_REMOTE = {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p"}
_REMOTE |= {"ceph", "glusterfs", "lustre"}
_FUSE = "fuse."  # in front of the name of a program, such as sshfs, glusterfs or s3fs
_PASSING = {"overlay", "tmpfs", "ramfs", "aufs"}
_ROOM_BYTES = 2 << 30  # for timers: hours of them at a modest rate
_TRIAL_BYTES = 1 << 16
_LOCAL = "set storage.data_dir to a directory on a local disk"
_BLOCK_BYTES = 512  # the unit of st_blocks; the file system's own blocks are larger


def examine(settings: Settings) -> Findings:
    """Runs all checks of the data directory, which may not exist yet.

    Raises:
        OSError: this user may not look into it: a check would see one of its parents.
    """
    data_dir = settings.storage.data_dir.absolute()
    folder, ring = _existing(data_dir), 0
    if settings.wheel.timeline == "wheel":
        wheel = data_dir / timer_wheel.FILE_NAME
        if _existing(wheel) == wheel:
            yield _check_allocated(wheel)
        else:
            ring = settings.wheel.ring * ENTRY_BYTES
    yield check_file_system(data_dir, _file_system(folder))
    yield _check_file_use(data_dir, folder)
    yield check_space(str(data_dir), Room.of(folder, settings.storage.min_free.of), ring)
    if folder == data_dir:
        yield check_rights(data_dir)


def _existing(path: Path) -> Path:
    """Returns the path or its nearest existing parent. Raises OSError, where `Path.exists` of some
    Pythons says False: this user may not look there.
    """
    for place in (path, *path.parents):
        with suppress(FileNotFoundError, NotADirectoryError):
            place.stat()
            return place
    return Path(path.anchor)


def _file_system(folder: Path) -> str:
    """Returns the type of a folder's file system."""
    place = folder.resolve()
    if (kind := copies_on_write(place)) is not None:
        return kind
    mounts = {Path(part.mountpoint): part.fstype for part in psutil.disk_partitions(all=True)}
    # A chroot may list no mount of the folder.
    return next((mounts[each] for each in (place, *place.parents) if each in mounts), "unknown")


def check_file_system(path: Path, kind: str) -> DoctorFinding:
    """Checks that files outlive a restart, can be mapped and locked, and are written in place."""
    check = Check("file_system", str(path))
    remedy = f"{_LOCAL} (ext4, xfs), or mount a volume"
    if kind in _REMOTE or kind.startswith(_FUSE):
        return check.error(f"{kind}: not local, so mapped files and locks are not safe", remedy)
    if kind in _PASSING:
        return check.warning(f"{kind}: its content ends with the container or the host", remedy)
    if kind in COPY_ON_WRITE:
        return check.warning(f"{kind}: it {COPIES_ON_WRITE}", remedy)
    return check.ok(kind)


def _check_file_use(data_dir: Path, place: Path) -> DoctorFinding:
    """Allocates, maps, writes and locks a file where the data directory is, or will be."""
    check = Check("data_directory", str(data_dir))
    try:
        with tempfile.TemporaryDirectory(prefix=".doctor-", dir=place) as folder:
            path = Path(folder) / "trial"
            with closing(NewFile(path, _TRIAL_BYTES)) as new:
                new.sync()
                new.put_in_place()
            fd = HOST_FS.open_existing(path)
            try:
                with HOST_FS.map(fd, _TRIAL_BYTES, writable=True) as mapped:
                    mapped[:4] = b"seen"
                    mapped.flush()
                same = os.pread(fd, 4, 0) == b"seen"
                whole = os.fstat(fd).st_blocks * _BLOCK_BYTES >= _TRIAL_BYTES
            finally:
                HOST_FS.close(fd)
            with closing(FileLock(path)) as lock, closing(FileLock(path)) as other:
                exclusive = lock.try_acquire() and not other.try_acquire()
    except OSError as error:
        remedy = "make room there" if error.errno in NO_ROOM else _LOCAL
        if isinstance(error, PermissionError):
            remedy = f"give user {os.geteuid()} the right to write there, or set storage.data_dir"
        return check.error(f"cannot be used: {error}", remedy)
    problems = [] if same else ["a read does not return the mapped bytes"]
    problems += [] if whole else ["an allocated file has no blocks"]
    problems += [] if exclusive else ["two holders get the same lock"]
    if problems:
        return check.error("; ".join(problems), _LOCAL)
    return check.ok("allocates, maps and locks")


def check_rights(data_dir: Path) -> DoctorFinding:
    """Checks that no other user can read message bodies or the key of copies."""
    os.scandir(data_dir).close()  # raises; the walk would find no file
    readable = list(HOST_FS.readable_by_others(data_dir))
    check = Check("data_rights", str(data_dir))
    if not readable:
        return check.ok("only its owner can read its files")
    return check.error(
        f"others have rights to {len(readable)} files and directories, first {readable[0]}",
        "start the shard, which takes these rights away; or chmod -R go-rwx on it",
    )


def check_space(subject: str, room: Room, ring: int) -> DoctorFinding:
    """Checks the room for timers, and for the bytes that the wheel will take (`ring`)."""
    text = f"{room.free_bytes >> 20} MiB free, ingest leaves {room.min_free_bytes >> 20}"
    text += " (storage.min_free)" + (f", the wheel takes {ring >> 20}" if ring else "")
    left = room.left_bytes - ring
    return Check("disk_space", subject).of(
        "error" if left < 0 else "warning" if left < _ROOM_BYTES else "ok",
        text,
        "make room: a pending timer takes some 200 bytes and its message, "
        f"and less than {_ROOM_BYTES >> 20} MiB for them is little",
    )


def _check_allocated(wheel: Path) -> DoctorFinding:
    """Checks the wheel's blocks: a sparse mapped file kills the process on a full disk."""
    found = wheel.stat()
    blocks = found.st_blocks * _BLOCK_BYTES
    return Check("wheel_allocated", str(wheel)).of(
        "warning" if blocks < found.st_size else "ok",
        f"{blocks >> 20} of {found.st_size >> 20} MiB are allocated",
        f"stop duewheel, then: fallocate --length {found.st_size} {wheel}",
    )
