"""`duewheel run` and `duewheel standby`: keep ingest and dequeue of one shard alive.

- A process that dies is started again with back-off, and either lives on without the other
  (kept_process.py). The log at each attempt, `status` and metrics say what is wrong
  (run_file.py).
- `run` ends when it is told to, or when dequeue ends for good. Its exit code is for what supervises
  `run` itself: 4, another instance owns the shard, must not be started again; any other may be.
- `--take-over` is handed to dequeue until it has claimed the shard (in the `state` file, before it
  says so in Kafka). Later starts must not take it back from somebody who has taken it over since.
- Audits are started at their interval (audit/schedule.py), and stopped with the two.
- When both have ended, `run` declares the clean stop that a killed one could not declare.
- engine.lock is held for milliseconds: one that is held for seconds belongs to a process that does
  not move (stopped, or stuck in a dying disk), and is freed by killing it.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from functools import partial
from pathlib import Path

import structlog

from duewheel.audit.schedule import AuditSchedule, start_audit
from duewheel.checkpoints import fs
from duewheel.checkpoints.fs import FileLock
from duewheel.checkpoints.role import Role
from duewheel.checkpoints.state_file import State
from duewheel.clock import SystemClock
from duewheel.config.settings import Settings
from duewheel.errors import DuewheelError
from duewheel.osutil.child_process import Child
from duewheel.osutil.signals import stop_signals
from duewheel.runtime import run_file
from duewheel.runtime.kept_process import KeptProcess
from duewheel.wheel.storage.data_directory import ENGINE_LOCK, declare_stopped

log = structlog.get_logger(__name__)

_STOP_S = 8.0  # after this long a process that was told to stop is killed
_LOCK_STUCK_S = 5.0
_RUN_LOCK_S = 1.0  # a predecessor that was killed has let go by then
_POLL_S = 0.1


def run(
    settings: Settings, flags: list[str], *, take_over: bool = False, standby: bool = False
) -> int:
    """Supervise until told to stop, or until dequeue cannot go on.

    Args:
        settings: for the data directory.
        flags: of the command line, which give both processes the same settings.
        take_over: the operator says that no other instance serves the shard any more.
        standby: dequeue begins as a follower.

    Returns:
        The exit code: 0; or that of a process that has ended for good, or that was refused and has
        not run since.

    Raises:
        Locked: another `run` works in the data directory.
    """
    data_dir, clock = settings.storage.data_dir, SystemClock()
    claim = _Claim(data_dir, wanted=take_over)
    role = ["--standby"] if standby else []

    def command(name: str, *own: str) -> list[str]:
        return [sys.executable, "-P", "-m", "duewheel", name, *own, *flags]

    dequeue = KeptProcess(
        "dequeue",
        Role.DEQUEUE,
        data_dir,
        clock,
        lambda: command("dequeue", *claim.flags(), *role),
        is_needed=True,
    )
    ingest = KeptProcess(
        "ingest", Role.INGEST, data_dir, clock, lambda: command("ingest"), is_needed=False
    )
    kept = [dequeue, ingest]
    audits = AuditSchedule(settings, clock, partial(start_audit, flags))
    with stop_signals() as stopping, closing(_run_lock(data_dir)):
        lock, notes = _LockWatch(data_dir), _Notes(data_dir)
        try:
            while not dequeue.final_code and not stopping.wait(_POLL_S):
                if [each for each in kept if each.poll()]:
                    notes.write(kept)
                lock.poll([each.child.pid for each in kept if each.child])
                audits.look()
        finally:
            _stop([c for c in (audits.child, *(each.child for each in kept)) if c])
            _declare_stopped(data_dir)
    return dequeue.final_code or dequeue.refused_with or ingest.final_code or ingest.refused_with


def _run_lock(data_dir: Path) -> FileLock:
    """The lock that a `run` holds for life."""
    fs.make_directory(data_dir)
    refusal = f"{data_dir}: `run` works there already"
    return FileLock.taken(data_dir / run_file.LOCK_NAME, _RUN_LOCK_S, refusal)


class _Notes:
    """The file `run`."""

    def __init__(self, data_dir: Path) -> None:
        self._fd = fs.open_file(data_dir / run_file.FILE_NAME)

    def write(self, kept: Sequence[KeptProcess]) -> None:
        """Tell the others what is known of the processes."""
        try:
            run_file.write(self._fd, {each.name: each.status for each in kept})
        except OSError as error:  # the processes are kept alive all the same
            log.warning("`status` is not told of the processes", reason=str(error))


def _stop(children: Sequence[Child]) -> None:
    """All at once: each has the whole time. No thread: there may be no room for one."""
    for child in children:
        child.end(signal.SIGTERM, 0)
    end_s = time.monotonic() + _STOP_S
    for child in children:
        if not child.wait(max(0.0, end_s - time.monotonic())):
            child.end(signal.SIGKILL, _STOP_S)


def _declare_stopped(data_dir: Path) -> None:
    """Or else a boot of the host would now lead to a recovery."""
    try:
        stopped = declare_stopped(data_dir)
    except (DuewheelError, OSError) as error:
        log.warning("no clean stop", data_dir=str(data_dir), reason=str(error))
    else:
        log.info("stopped", clean=stopped)


class _Claim:
    """Whether dequeue still has to be told to take the shard over."""

    def __init__(self, data_dir: Path, *, wanted: bool) -> None:
        self._data_dir = data_dir
        self._before = self._drawn()
        self._wanted = wanted

    def flags(self) -> list[str]:
        """For the next start of dequeue."""
        self._wanted = self._wanted and self._drawn() == self._before
        return ["--take-over"] if self._wanted else []

    def _drawn(self) -> int:
        """The incarnation that the last start drew to claim the shard; 0 before the first."""
        try:
            with State.open(self._data_dir) as known:
                return known.incarnations[1]
        except (FileNotFoundError, DuewheelError):
            return 0


class _LockWatch:
    """Kills a child that keeps engine.lock."""

    def __init__(self, data_dir: Path) -> None:
        self._lock = FileLock(data_dir / ENGINE_LOCK)
        self._taken_since: tuple[int, float] | None = None

    def poll(self, children: list[int]) -> None:
        """Called several times a second."""
        if self._lock.is_free():
            self._taken_since = None
            return
        holder, now_s = self._lock.holder(), time.monotonic()
        if self._taken_since is None or self._taken_since[0] != holder:
            self._taken_since = (holder, now_s)
        elif now_s - self._taken_since[1] > _LOCK_STUCK_S and holder in children:
            log.error("engine.lock is stuck: killing its holder", holder=holder)
            with suppress(ProcessLookupError):
                os.kill(holder, signal.SIGKILL)
            self._taken_since = None
