"""Starts audits at intervals, each in a process of its own beside those of `duewheel run`.

An audit is never urgent. After a failure the next one comes an interval later; while one runs, no
second one starts; a standby starts none. The first comes an interval after the newest audit in the
folder, including one that was run by hand.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import structlog

from duewheel.audit.history import AuditHistory, project_folder
from duewheel.checkpoints.state_file import State
from duewheel.clock import Clock
from duewheel.config.settings import Settings
from duewheel.config.values import as_millis
from duewheel.errors import DuewheelError
from duewheel.extras import require
from duewheel.osutil.child_process import Child

log = structlog.get_logger(__name__)

Start = Callable[[], Child]


class AuditSchedule:
    """Starts an audit at each interval. Not thread-safe; the supervisor's loop calls `poll`."""

    def __init__(self, settings: Settings, clock: Clock, start: Start) -> None:
        """Without an `audit.interval` no audit starts.

        Raises:
            ConfigError: audits are wanted, and their libraries or their project are missing.
        """
        if settings.audit.interval:
            require("audit")  # now, and not when the first audit starts
            project_folder(settings)
        self._interval_ms = as_millis(settings.audit.interval) if settings.audit.interval else None
        self._data_dir = settings.storage.data_dir
        self._clock = clock
        self._start = start
        self._child: Child | None = None
        self._due_ms = self._first_ms(AuditHistory(settings.audit_dir))

    @property
    def child(self) -> Child | None:
        """The process of the running audit, or None."""
        return self._child

    def poll(self) -> None:
        """Starts an audit if one is due, and logs the failure of one that has ended."""
        if self._interval_ms is None:
            return
        if self._child is not None:
            code = self._child.exit_code
            if code is None:
                return
            self._child = None
            if code:
                log.warning("audit ended with findings, or failed", exit_code=code)
        now_ms = self._clock.boottime_ms()
        if now_ms < self._due_ms:
            return
        self._due_ms = now_ms + self._interval_ms
        if not _is_standby(self._data_dir):
            try:
                self._child = self._start()
            except DuewheelError as error:
                log.warning("audit cannot be started", reason=str(error))
            else:
                log.info("audit started", child=self._child.pid)

    def _first_ms(self, history: AuditHistory) -> int:
        """Returns the first due time, by boottime: a change of the wall clock must not shift it."""
        interval_ms, now_ms = self._interval_ms or 0, self._clock.now_ms()
        newest = history.newest()
        last_ms = now_ms if newest is None else min(newest.started_ms, now_ms)
        return self._clock.boottime_ms() + max(0, last_ms + interval_ms - now_ms)


def start_audit(flags: Sequence[str]) -> Child:
    """Starts an audit from the end of the last one; `flags` give it the settings of `run`."""
    command = [sys.executable, "-P", "-m", "duewheel", "audit", "--from", "last", *flags]
    return Child(command, stdout=subprocess.DEVNULL, on_parent_death=signal.SIGTERM)


def _is_standby(data_dir: Path) -> bool:
    try:
        with State.open(data_dir) as state:
            return state.standby
    except (FileNotFoundError, DuewheelError):
        return False
