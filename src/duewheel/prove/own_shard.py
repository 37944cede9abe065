"""The shard of a proof: `duewheel run` as a process of its own, killed and started again.

    dequeue, ingest   SIGKILL of one process; `duewheel run` starts it again, after its back-off
    both              of both at once
    all               of `duewheel run` and both; started again at once
    data              likewise, and the data directory is deleted before the start

Only processes that this one has started are killed: `duewheel run`, and its children.
"""

from __future__ import annotations

import json
import shutil
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from duewheel.config.settings import Settings
from duewheel.errors import DuewheelError
from duewheel.osutil.child_process import Child
from duewheel.prove.own_settings import environment, write_settings
from duewheel.runtime import run_file
from duewheel.wheel.storage.full_check import check

KINDS = ("dequeue", "ingest", "all", "data", "both")
_KILLED = {
    "dequeue": ("dequeue",),
    "ingest": ("ingest",),
    "both": ("dequeue", "ingest"),
    "all": ("dequeue", "ingest"),
    "data": ("dequeue", "ingest"),
}
_STOP_S = 15.0
_REMOVE_S = 30.0  # a killed Spark writes for a moment
_LOG_LINES = 20
_ENDED = {"process died", "process ended for good"}


class OwnShard:
    """Not thread-safe."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        """Writes the configuration of the processes; starts nothing yet.

        Args:
            settings: the proof's own.
            folder: for configuration and log.
        """
        self._settings = settings
        self._config, self._log = folder / "duewheel.toml", folder / "duewheel.log"
        write_settings(settings, self._config)
        self._run: Child | None = None

    def tend(self) -> None:
        """Starts `duewheel run` unless it runs.

        Raises:
            DuewheelError: it has ended for good; with the end of its log.
        """
        child = self._run
        if child is not None and child.exit_code is not None:
            if child.exit_code >= 0:
                code = f"`duewheel run` ended with code {child.exit_code}"
                raise DuewheelError(f"{code}\n{self.log_tail()}")
            self._run = None
        if self._run is None:
            self._run = self._started()

    def is_up(self, kind: str) -> bool:
        """Whether all that a kind of kill ends is running, and has given a heartbeat."""
        state = run_file.read(self._settings.storage.data_dir) or {}
        return all(name in state and state[name].lives for name in _KILLED[kind])

    def kill(self, kind: str) -> None:
        """Kills processes as the module's head says."""
        assert self._run is not None
        state = run_file.read(self._settings.storage.data_dir) or {}
        victims = [state[name].pid for name in _KILLED[kind] if name in state]
        if kind in {"all", "data"}:
            children = _children(self._run.pid)
            self._run.end(signal.SIGKILL, 0)
            _kill(children)
            self._run.wait(_STOP_S)
        else:
            _kill([each for each in _children(self._run.pid) if each.pid in victims])
        if kind == "data":
            self._remove_data()

    def stop(self) -> None:
        """Stops the processes in order."""
        if self._run is not None:
            self._run.stop(_STOP_S)

    def findings(self) -> list[str]:
        """What `duewheel check` finds in the files, once the processes have ended."""
        report = check(self._settings.storage.data_dir, self._settings.wheel)
        return [str(finding) for finding in report.findings]

    def own_ends(self) -> list[str]:
        """Ends of processes that no kill explains, from the log."""
        ends = [e for e in self._events() if e.get("event") in _ENDED]
        return [
            f"{each['process']}: {each['reason']}"
            for each in ends
            if each["exit_code"] not in {-signal.SIGKILL, -signal.SIGTERM}
        ]

    def log_tail(self) -> str:
        """The end of the log."""
        if not self._log.exists():
            return ""
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-_LOG_LINES:])

    def _started(self) -> Child:
        command = [sys.executable, "-P", "-m", "duewheel", "run", "--config", str(self._config)]
        with self._log.open("ab") as log:
            return Child(
                command,
                stdout=log,
                stderr=log,
                env=environment(self._settings),
                # SIGKILL would leave its two processes behind.
                on_parent_death=signal.SIGTERM,
            )

    def _remove_data(self) -> None:
        end_s = time.monotonic() + _REMOVE_S
        data = self._settings.storage.data_dir
        while data.exists() and time.monotonic() < end_s:
            shutil.rmtree(data, ignore_errors=True)

    def _events(self) -> list[dict[str, Any]]:
        events: list[dict[str, Any]] = []
        for line in self._log.read_text(errors="replace").splitlines():
            with suppress(ValueError):
                event = json.loads(line)
                events.append(event if isinstance(event, dict) else {})
        return events


def _children(pid: int) -> list[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).children()
    return []


def _kill(processes: list[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGKILL)
