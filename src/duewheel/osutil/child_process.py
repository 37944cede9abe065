"""Starts child processes that never outlive this process, even if it is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from functools import partial
from typing import IO, Any

from duewheel.errors import ConfigError, DuewheelError
from duewheel.threads import Worker

# Runs before the program, in the same process: from then on the kernel signals it when its parent
# ends in any way. Popen's preexec_fn could deadlock, because this process has threads.
_LAUNCHER = """\
import ctypes, os, sys
PR_SET_PDEATHSIG = 1
ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(sys.argv[2]))
if os.getppid() != int(sys.argv[1]):  # the parent ended before the request
    sys.exit(1)
os.execv(sys.argv[3], sys.argv[3:])
"""


class Child:
    """A running program.

    The kernel sends the parent-death signal when the *thread* that started the child ends. So each
    program gets a thread that starts it and waits for its end: only the end of the whole process
    ends that thread earlier.

    The program also gets a session of its own: Ctrl-C in a terminal reaches only this process,
    which then stops its children in order.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        stdout: int | IO[Any] | None = None,
        stderr: int | IO[Any] | None = None,
        env: Mapping[str, str] | None = None,
        pass_fds: Sequence[int] = (),
        on_parent_death: signal.Signals = signal.SIGKILL,
    ) -> None:
        """Starts it; `command` begins with the program's absolute path.

        Raises:
            ConfigError: the program is missing, or not executable.
            DuewheelError: the host has no room for another process now.
        """
        arguments = [str(os.getpid()), str(int(on_parent_death)), *command]
        self._command = [sys.executable, "-I", "-S", "-c", _LAUNCHER, *arguments]
        self._popen: subprocess.Popen[bytes] | None = None
        self._failure: OSError | None = None
        self._options: dict[str, Any] = {
            "stdout": stdout,
            "stderr": stderr,
            "env": env,
            "pass_fds": pass_fds,
        }
        started = threading.Event()
        # Not Thread.join: before Python 3.13 it marks the thread as ended if Ctrl-C interrupts it.
        self._ended = threading.Event()
        try:
            Worker("child", partial(self._live, started)).start()
        except RuntimeError as error:
            raise DuewheelError(f"cannot start {command[0]} for now: {error}") from error
        started.wait()
        if isinstance(self._failure, FileNotFoundError | PermissionError):
            raise ConfigError(f"cannot start {command[0]}: {self._failure}")
        if self._popen is None:
            raise DuewheelError(f"cannot start {command[0]} for now: {self._failure}")

    def _live(self, started: threading.Event) -> None:
        try:
            self._popen = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                **self._options,
            )
        except OSError as error:
            self._failure = error
            return
        finally:
            started.set()
        self._popen.wait()
        self._ended.set()

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self._popen is not None
        return self._popen.pid

    @property
    def stdout(self) -> IO[bytes]:
        """Its output, if it was started with a pipe."""
        assert self._popen is not None and self._popen.stdout is not None
        return self._popen.stdout

    @property
    def exit_code(self) -> int | None:
        """Negative: the signal that ended it; None while it runs."""
        assert self._popen is not None
        return self._popen.returncode

    def wait(self, timeout_s: float | None) -> bool:
        """Whether it has ended within the time."""
        return self._ended.wait(timeout_s)

    def end(self, how: signal.Signals, timeout_s: float) -> bool:
        """Sends a signal and waits; returns whether it has ended."""
        assert self._popen is not None
        self._popen.send_signal(how)
        return self.wait(timeout_s)

    def stop(self, timeout_s: float) -> None:
        """Ends it by SIGTERM, after the time-out by SIGKILL."""
        if not self.end(signal.SIGTERM, timeout_s):
            self.end(signal.SIGKILL, timeout_s)
