"""`duewheel run` and `duewheel standby`: keep ingest and dequeue of one shard alive.

- A process that ends is restarted with back-off; the other one continues without it
  (process_restart.py). The log, `status` and metrics show the reason (run_file.py).
- `run` ends on a signal, or when dequeue ends for good. Its exit code is for the supervisor of
  `run`: 4 (another instance owns the shard) must not be restarted; any other may be.
- Dequeue gets `--take-over` until it has claimed the shard (in the `state` file, before it does so
  in Kafka). A later start with it would depose an instance that has taken the shard over since.
- Audits are started at their interval (audit/schedule.py), and stopped with the two.
- When both have ended, `run` declares the clean stop that a killed one could not declare.
- engine.lock is held for milliseconds. A child that holds it for seconds is suspended (SIGSTOP), or
  stuck in a dying disk, and blocks the other one: it is killed.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from functools import partial
from pathlib import Path

import psutil
import structlog

from duewheel.audit.schedule import AuditSchedule, start_audit
from duewheel.checkpoints import fs
from duewheel.checkpoints.file_lock import ENGINE_LOCK, FileLock
from duewheel.checkpoints.process_role import Role
from duewheel.checkpoints.state_file import State
from duewheel.clock import SystemClock
from duewheel.config.settings import Settings
from duewheel.errors import DuewheelError
from duewheel.extras import require
from duewheel.osutil.child_process import Child
from duewheel.osutil.signals import stop_signals
from duewheel.runtime import run_file
from duewheel.runtime.process_restart import KeptProcess

log = structlog.get_logger(__name__)

STOP_S = 8.0  # from SIGTERM to SIGKILL
_LOCK_STUCK_S = 5.0  # without need of a processor
_LOCK_LONGEST_S = 120.0
_RUN_LOCK_S = 1.0  # a killed predecessor has released it by then
_POLL_S = 0.1


def run(
    settings: Settings, flags: list[str], *, take_over: bool = False, standby: bool = False
) -> int:
    """Supervises until a signal, or until dequeue ends for good. The `flags` of the command line
    give both processes the same settings.

    Returns the exit code of a process that has ended for good, or that was refused and has not run
    since; 0 otherwise.

    Raises:
        Locked: another `run` works in the data directory.
        ConfigError: traces are wanted, and their libraries are not installed.
    """
    if settings.traces.enabled:
        require("otel")
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
                if [each for each in kept if each.poll()]:  # not any(): each must be polled
                    notes.write(kept)
                lock.poll([each.child.pid for each in kept if each.child])
                audits.poll()
        finally:
            _stop([c for c in (audits.child, *(each.child for each in kept)) if c])
            _declare_stopped(data_dir)
    return dequeue.final_code or dequeue.refused_with or ingest.final_code or ingest.refused_with


def _run_lock(data_dir: Path) -> FileLock:
    """The lock that a `run` holds for life."""
    fs.HOST_FS.make_directory(data_dir)
    refusal = f"{data_dir}: `run` works there already"
    return FileLock.taken(data_dir / run_file.LOCK_NAME, _RUN_LOCK_S, refusal)


class _Notes:
    """The file `run`."""

    def __init__(self, data_dir: Path) -> None:
        self._fd = fs.HOST_FS.open_file(data_dir / run_file.FILE_NAME)

    def write(self, kept: Sequence[KeptProcess]) -> None:
        """Write the state of the processes for `status` and metrics."""
        try:
            run_file.write(self._fd, {each.name: each.status for each in kept})
        except OSError as error:  # without the file the processes still run
            log.warning(
                "`status` cannot show the processes: the file `run` was not written",
                reason=str(error),
            )


def _stop(children: Sequence[Child]) -> None:
    """Stop all at once: each has the whole time. No threads: the host may have no room for them."""
    for child in children:
        child.end(signal.SIGTERM, 0)
    end_s = time.monotonic() + STOP_S
    for child in children:
        if not child.wait(max(0.0, end_s - time.monotonic())):
            child.end(signal.SIGKILL, STOP_S)


def _declare_stopped(data_dir: Path) -> None:
    """Declare the clean stop: without it a reboot of the host would lead to a recovery."""
    # Not at the top: it imports numpy and pyarrow, before the children could be started.
    from duewheel.wheel.storage.data_directory import declare_stopped

    try:
        stopped = declare_stopped(data_dir)
    except (DuewheelError, OSError) as error:
        log.warning("no clean stop", data_dir=str(data_dir), reason=str(error))
    else:
        log.info("stopped", clean=stopped)


class _Claim:
    """Whether dequeue still needs `--take-over`."""

    def __init__(self, data_dir: Path, *, wanted: bool) -> None:
        self._data_dir = data_dir
        self._before = self._drawn()
        self._wanted = wanted

    def flags(self) -> list[str]:
        """Flags for the next start of dequeue."""
        self._wanted = self._wanted and self._drawn() == self._before
        return ["--take-over"] if self._wanted else []

    def _drawn(self) -> int:
        """The incarnation that the last start drew to claim the shard; 0 before the first."""
        try:
            with State.open(self._data_dir) as state:
                return state.incarnations[1]
        except (FileNotFoundError, DuewheelError):
            return 0


class _LockWatch:
    """Kills a child that keeps engine.lock and does nothing.

    One that uses a processor, or waits for one on a busy host, is at work: after a loss, a cancel
    may stop millions of timers in one batch. Killed, it would begin with the same batch again and
    again.
    """

    def __init__(self, data_dir: Path) -> None:
        self._lock = FileLock(data_dir / ENGINE_LOCK)
        # Holder, and when it took the lock; when that was seen, and the holder's `_worked_s`
        self._taken: tuple[tuple[int, int], float, float] | None = None

    def poll(self, children: list[int]) -> None:
        """Called several times a second."""
        if self._lock.is_free():
            self._taken = None
            return
        holder, now_s = self._lock.holder(), time.monotonic()
        taken, worked_s = (holder, self._lock.taken_ns()), _worked_s(holder)
        if self._taken is None or self._taken[0] != taken:
            self._taken = taken, now_s, worked_s
        elif holder in children:
            _, since_s, before_s = self._taken
            held_s = now_s - since_s
            if held_s - (worked_s - before_s) > _LOCK_STUCK_S or held_s > _LOCK_LONGEST_S:
                log.error("engine.lock is stuck: killing its holder", holder=holder)
                with suppress(ProcessLookupError):
                    os.kill(holder, signal.SIGKILL)
                self._taken = None


def _worked_s(pid: int) -> float:
    """Returns the processor time of a process, and the time that its threads have waited for a
    processor, if the kernel counts that; 0 if it has ended.
    """
    with suppress(psutil.Error):
        times = psutil.Process(pid).cpu_times()
        return float(times.user + times.system) + sum(_waits_s(pid))
    return 0.0


def _waits_s(pid: int) -> Iterator[float]:
    for file in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        with suppress(OSError):  # the thread has ended
            yield int(file.read_text().split()[1]) / 1e9
