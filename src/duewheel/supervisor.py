"""`duewheel run` and `duewheel standby`: keep ingest and dequeue of one shard alive.

- A process that dies is started again with a growing back-off; either lives on without the other.
- A code that a new start cannot mend (configuration, lock, fencing, refused recovery) is the one
  that `run` ends with: at once if it is dequeue's; if it is ingest's, dequeue goes on delivering
  what is in the wheel until `run` is told to stop, and the log says so every minute.
- `--take-over` is handed to dequeue until it has claimed the shard (in the `state` file, before it
  says so in Kafka). Later starts must not take it back from somebody who has taken it over since.
- Audits are started at their interval (audit_schedule.py), and stopped with the two.
- When both have ended, `run` declares the clean stop that a killed one could not declare.
- engine.lock is held for milliseconds: one that is held for seconds belongs to a process that does
  not move (stopped, or stuck in a dying disk), and is freed by killing it.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import structlog

from duewheel.audit_schedule import AuditSchedule, start_audit
from duewheel.checkpoints.files import FileLock
from duewheel.checkpoints.state import State
from duewheel.child import Child
from duewheel.clock import SystemClock
from duewheel.config import Settings
from duewheel.errors import ConfigError, DuewheelError, Fenced, Locked, RecoveryRefused
from duewheel.processes import stop_signals
from duewheel.threads import Worker
from duewheel.wheel.data_directory import ENGINE_LOCK, declare_stopped

log = structlog.get_logger(__name__)

_FINAL = {kind.exit_code for kind in (ConfigError, Fenced, Locked, RecoveryRefused)}
_BACKOFF_S = (1.0, 30.0)
_CALM_S = 60.0  # having lived this long, a process has earned the first back-off again
_STOP_S = 8.0  # after this long a process that was told to stop is killed
_LOCK_STUCK_S = 5.0
_REMIND_S = 60.0
_POLL_S = 0.1
_SIGBUS_HINT = "a store to a mapped file failed: a full disk that copies on write, or a bad one"


@dataclass
class _Worker:
    """One of the two processes and when it is to be started again.

    Attributes:
        flags: asked at every start for those of its command line.
        final_code: that it ended with, and a new start cannot mend; 0 as long as there is none.
        remind_at_s: when that is to be said again.
    """

    name: str
    flags: Callable[[], list[str]]
    child: Child | None = None
    started_s: float = 0.0
    start_at_s: float = 0.0
    backoff_s: float = _BACKOFF_S[0]
    final_code: int = 0
    remind_at_s: float = 0.0


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
        The exit code: 0, or the code of a process that a new start cannot mend.
    """
    claim = _Claim(settings.storage.data_dir, wanted=take_over)
    role = ["--standby"] if standby else []
    dequeue = _Worker("dequeue", lambda: [*claim.flags(), *role, *flags])
    ingest = _Worker("ingest", lambda: flags)
    workers = [dequeue, ingest]
    lock = _LockWatch(settings.storage.data_dir)
    audits = AuditSchedule(settings, SystemClock(), partial(start_audit, flags))
    with stop_signals() as stopping:
        try:
            while not dequeue.final_code and not stopping.wait(_POLL_S):
                for worker in workers:
                    _tend(worker)
                lock.look([worker.child.pid for worker in workers if worker.child])
                audits.look()
        finally:
            _stop([c for c in (audits.child, *(w.child for w in workers)) if c])
            _declare_stopped(settings.storage.data_dir)
    return dequeue.final_code or ingest.final_code


def _tend(worker: _Worker) -> None:
    """Start a process that is due, note one that has died, remind of one that must not run."""
    now_s = time.monotonic()
    if worker.final_code:
        if now_s >= worker.remind_at_s:
            log.error(
                "process ended for good: mend the cause, then stop and start `run`",
                process=worker.name,
                exit_code=worker.final_code,
            )
            worker.remind_at_s = now_s + _REMIND_S
        return
    if worker.child is None:
        if now_s >= worker.start_at_s:
            worker.child = Child(
                [sys.executable, "-P", "-m", "duewheel", worker.name, *worker.flags()],
                on_parent_death=signal.SIGTERM,
            )
            worker.started_s = now_s
            log.info("process started", process=worker.name, child=worker.child.pid)
        return
    code = worker.child.exit_code
    if code is None:
        return
    worker.child = None
    if code in _FINAL:
        worker.final_code = code
        _tend(worker)
        return
    if now_s - worker.started_s >= _CALM_S:
        worker.backoff_s = _BACKOFF_S[0]
    log.warning(
        "process died",
        process=worker.name,
        exit_code=code,
        restart_in_s=worker.backoff_s,
        **({"hint": _SIGBUS_HINT} if code == -signal.SIGBUS else {}),
    )
    worker.start_at_s = now_s + worker.backoff_s
    worker.backoff_s = min(2 * worker.backoff_s, _BACKOFF_S[1])


def _stop(children: list[Child]) -> None:
    """Both at once: each has its whole time."""
    threads = [Worker("stop", partial(child.stop, _STOP_S)) for child in children]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


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
        """The lineage that the last start drew when it claimed the shard; 0 before the first."""
        try:
            known = State.open(self._data_dir)
        except (FileNotFoundError, DuewheelError):
            return 0
        try:
            return known.lineages[1]
        finally:
            known.release()


class _LockWatch:
    """Kills a child that keeps engine.lock."""

    def __init__(self, data_dir: Path) -> None:
        data_dir.mkdir(parents=True, exist_ok=True)
        self._lock = FileLock(data_dir / ENGINE_LOCK)
        self._taken_since: tuple[int, float] | None = None

    def look(self, children: list[int]) -> None:
        """Called several times a second."""
        if self._lock.is_free():
            self._taken_since = None
            return
        holder, now_s = self._lock.holder(), time.monotonic()
        if self._taken_since is None or self._taken_since[0] != holder:
            self._taken_since = (holder, now_s)
        elif now_s - self._taken_since[1] > _LOCK_STUCK_S and holder in children:
            log.error("engine.lock is stuck: killing its holder", holder=holder)
            os.kill(holder, signal.SIGKILL)
            self._taken_since = None
