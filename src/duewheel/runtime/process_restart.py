"""Keeps one of the two processes of `duewheel run` alive.

Most causes of an end pass: a stalled disk, a refused login, a stale answer of a broker, a host
without room for another process. So the process is restarted with exponential back-off, without a
limit, except after two ends that no restart mends:

    fenced     another instance owns the shard: this one must stop
    refused    dequeue refuses configuration, topics or files before it has ever run under this
               `run`: most likely a mistyped setting, which the operator should see at once
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import structlog

from duewheel.backoff import Backoff
from duewheel.checkpoints.live_fields import Heartbeat
from duewheel.checkpoints.process_role import Role
from duewheel.checkpoints.state_file import State
from duewheel.clock import Clock
from duewheel.errors import ConfigError, DuewheelError, Fenced, Locked, RecoveryRefused
from duewheel.osutil.child_process import Child
from duewheel.runtime.exit_reason import ExitReasonFile
from duewheel.runtime.run_file import Supervised

BACKOFF_MS = 2_000, 60_000  # so a process that cannot start is logged about once a minute
_CALM_S = 60.0  # a process that has run for so long starts again with the first back-off
# Before the first heartbeat these are final for dequeue; later they may pass, as of a stale answer.
_AT_FIRST = {ConfigError.exit_code, RecoveryRefused.exit_code}
_REFUSALS = _AT_FIRST | {Locked.exit_code}

_SIGBUS_HINT = "a store to a mapped file failed: a full disk that copies on write, or a bad one"

log = structlog.get_logger(__name__)


class KeptProcess:
    """A process that is restarted when it ends. Not thread-safe; `poll` is called several times a
    second.
    """

    def __init__(
        self,
        name: str,
        role: Role,
        data_dir: Path,
        clock: Clock,
        command: Callable[[], list[str]],
        *,
        is_needed: bool,
    ) -> None:
        """`command` gives the command line of each start; if the process `is_needed`, a refusal
        before it has ever run is final.
        """
        self.name = name
        self._role = role
        self._data_dir = data_dir
        self._clock = clock
        self._command = command
        self._is_needed = is_needed
        self.child: Child | None = None
        self.final_code = 0  # the exit code after which it is not restarted
        self._reason_file: ExitReasonFile | None = None
        self._starts = 0
        self._has_run = False
        self._lives = False
        self._last_beat: Heartbeat | None = None  # of a predecessor
        self._started_s = 0.0
        self._start_at_s = 0.0
        self._backoff = Backoff(clock, random.Random(), *BACKOFF_MS)
        self._code: int | None = None
        self._reason = ""

    @property
    def status(self) -> Supervised:
        """The process as `status` and metrics show it."""
        waits_s = self._start_at_s - time.monotonic()
        return Supervised(
            pid=self.child.pid if self.child else None,
            restarts=max(0, self._starts - 1),
            lives=self._lives,
            last_exit_code=self._code,
            last_reason=self._reason,
            next_try_ms=None if self.child else self._clock.now_ms() + round(waits_s * 1000),
        )

    @property
    def refused_with(self) -> int:
        """The exit code of a process that was refused and has not run since; 0 otherwise."""
        return self._code if self._code in _REFUSALS and not self._lives else 0

    def poll(self) -> bool:
        """Restart it if it is time, note its end or its heartbeat; returns whether it changed."""
        if self.final_code:
            return False
        if self.child is None:
            return time.monotonic() >= self._start_at_s and self._start()
        code = self.child.exit_code
        if code is not None:
            self._note_end(code)
            return True
        if not self._lives and self._gives_signs(self.child.pid, self._beat()):
            self._lives = self._has_run = True
            return True
        return False

    def _start(self) -> bool:
        self._starts, self._last_beat = self._starts + 1, self._beat()
        self._started_s = time.monotonic()
        try:
            self._reason_file = self._reason_file or ExitReasonFile()
            self.child = Child(
                self._command(),
                env=self._reason_file.environment,
                pass_fds=[self._reason_file.descriptor],
                on_parent_death=signal.SIGTERM,
            )
        except (DuewheelError, OSError) as error:
            self._code, self._reason = None, str(error)
            self._wait("process cannot be started")
        else:
            log.info("process started", process=self.name, child=self.child.pid)
        return True

    def _note_end(self, code: int) -> None:
        self.child, self._lives, self._code = None, False, code
        self._reason = self._read_exit_reason() or (
            f"killed by {_signal(-code)}" if code < 0 else f"exit code {code}"
        )
        refused_at_first = self._is_needed and not self._has_run and code in _AT_FIRST
        if code == Fenced.exit_code or refused_at_first:
            self.final_code = code
            log.error(
                "process ended for good",
                process=self.name,
                exit_code=code,
                reason=self._reason,
            )
            return
        if time.monotonic() - self._started_s >= _CALM_S:
            self._backoff.succeeded()
        self._wait("process died")

    def _wait(self, event: str) -> None:
        wait_s = self._backoff.next_ms() / 1000
        self._start_at_s = time.monotonic() + wait_s
        log.warning(
            event,
            process=self.name,
            exit_code=self._code,
            reason=self._reason,
            restart_in_s=round(wait_s, 1),
        )

    def _read_exit_reason(self) -> str:
        reason_file, self._reason_file = self._reason_file, None
        if reason_file is None:
            return ""
        try:
            return reason_file.read()
        finally:
            reason_file.close()

    def _gives_signs(self, pid: int, beat: Heartbeat | None) -> bool:
        """Whether the heartbeat is this child's. The pid alone does not show it: in a container a
        process often has the id of its predecessor.
        """
        return beat is not None and beat.pid == pid and beat != self._last_beat

    def _beat(self) -> Heartbeat | None:
        try:
            with State.open(self._data_dir) as state:
                return state.live.heartbeat(self._role)
        except (OSError, DuewheelError):
            return None


def _signal(number: int) -> str:
    name = signal.Signals(number).name
    return f"{name}: {_SIGBUS_HINT}" if number == signal.SIGBUS else name
