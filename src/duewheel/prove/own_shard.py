"""The shard of a proof: `duewheel run` as a process of its own, killed and started again.

    dequeue, ingest   SIGKILL to one process; `duewheel run` starts it again, after its back-off
    both              SIGKILL to both at once
    all               SIGKILL to `duewheel run` and both; all are started again at once
    data              like `all`, and the data directory is deleted before the start

It kills only processes that it has started: `duewheel run`, and its children.
"""

from __future__ import annotations

import json
import shutil
import signal
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from duewheel.api.shard import SupervisedProcess
from duewheel.clock import SystemClock
from duewheel.config.settings import Settings
from duewheel.errors import DuewheelError, NoDataDirectory
from duewheel.ops.files import check_files
from duewheel.ops.shard.local_readiness import not_ready_reasons
from duewheel.ops.shard.processes import supervised
from duewheel.osutil.child_process import Child
from duewheel.prove.own_settings import environment, write_settings

KINDS = ("dequeue", "ingest", "all", "data", "both")
_BOTH = ("dequeue", "ingest")
_STOP_S = 15.0
_REMOVE_S = 30.0  # Spark still writes for a moment after its kill
_LOG_LINES = 20
_ENDED = {"process died", "process ended for good", "process cannot be started"}
_KILLS = {-signal.SIGKILL, -signal.SIGTERM}
_ENDS_MAX = 3  # a process that ends as often by itself, after one kill, will not come back


class OwnShard:
    """Not thread-safe."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        """Writes the configuration of the processes into `folder`; starts nothing yet."""
        self._settings = settings
        self._config, self._log = folder / "duewheel.toml", folder / "duewheel.log"
        write_settings(settings, self._config)
        self._run: Child | None = None
        self._killed: set[int] = set()  # process ids
        self._log_begin = 0  # the log's length at the last kill

    def tend(self) -> None:
        """Starts `duewheel run` unless it runs.

        Raises:
            DuewheelError: it has ended by itself; has the end of its log.
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
        """Whether every process that this kind of kill ends has given a heartbeat since."""
        state = self._processes()
        return all(
            name in state and state[name].lives and state[name].pid not in self._killed
            for name in _killed_by(kind)
        )

    def signs(self) -> tuple[int, int]:
        """Two numbers that grow while the processes get on, however slowly: the bytes of their log,
        and their processor time in tens of seconds. Idle processes use less within minutes.
        """
        size = self._log.stat().st_size if self._log.exists() else 0
        run = [] if self._run is None else _children(self._run.pid, recursive=True)
        return size, int(sum(_processor_s(each) for each in run) // 10)

    def not_ready(self) -> str:
        """Why the shard is not ready; "" if it is."""
        try:
            found = not_ready_reasons(self._settings, SystemClock())
        except (DuewheelError, OSError):
            return "its processes start"
        return "; ".join(found.values())

    def require_returning(self) -> None:
        """Refuses processes that do not come back after the last kill, or the first start.

        Raises:
            DuewheelError: one has ended again and again by itself; has its reason.
        """
        failing = [each for each in self._processes().values() if each.is_failing]
        if all(each.last_exit_code in _KILLS for each in failing):
            return  # reading the log at each call would be slow
        ends = [each for each in self._events(self._log_begin) if _is_own_end(each)]
        for process, count in Counter(each["process"] for each in ends).items():
            if count >= _ENDS_MAX:
                reason = next(e["reason"] for e in reversed(ends) if e["process"] == process)
                raise DuewheelError(
                    f"{process} does not come back: it has ended {count} times by itself, "
                    f"the last time with: {reason}"
                )

    def kill(self, kind: str) -> None:
        """Kills processes as the module's head says."""
        assert self._run is not None
        state = self._processes()
        victims = [state[name].pid for name in _killed_by(kind) if name in state]
        self._killed = {pid for pid in victims if pid is not None}
        self._log_begin = self._log.stat().st_size
        if kind in {"all", "data"}:
            children = _children(self._run.pid)
            self._run.end(signal.SIGKILL, 0)
            _kill(children)
            self._run.wait(_STOP_S)
        else:
            _kill([each for each in _children(self._run.pid) if each.pid in victims])
        if kind == "data":
            end_s, data = time.monotonic() + _REMOVE_S, self._settings.storage.data_dir
            while data.exists() and time.monotonic() < end_s:
                shutil.rmtree(data, ignore_errors=True)

    def stop(self) -> None:
        """Stops the processes in order."""
        if self._run is not None:
            self._run.stop(_STOP_S)

    def findings(self) -> list[str]:
        """The findings of `duewheel check`, once the processes have ended."""
        try:
            return [finding.text for finding in check_files(self._settings).findings]
        except NoDataDirectory as error:  # the shard never got that far
            return [f"there are no files to check: {error}"]

    def own_ends(self) -> list[str]:
        """Ends of processes that no kill explains, from the log."""
        ends = [each for each in self._events() if _is_own_end(each)]
        return [f"{each['process']}: {each['reason']}" for each in ends]

    def log_tail(self) -> str:
        """The end of the log."""
        if not self._log.exists():
            return ""
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-_LOG_LINES:])

    def _processes(self) -> dict[str, SupervisedProcess]:
        return supervised(self._settings)

    def _started(self) -> Child:
        command = [sys.executable, "-P", "-m", "duewheel", "run", "--config", str(self._config)]
        with self._log.open("ab") as log:
            return Child(
                command,
                stdout=log,
                stderr=log,
                env=environment(self._settings),
                # At SIGKILL it could not stop its two processes.
                on_parent_death=signal.SIGTERM,
            )

    def _events(self, begin: int = 0) -> list[dict[str, Any]]:
        """The lines of the log from this byte on."""
        events: list[dict[str, Any]] = []
        for line in self._log.read_bytes()[begin:].decode(errors="replace").splitlines():
            with suppress(ValueError):
                event = json.loads(line)
                events.append(event if isinstance(event, dict) else {})
        return events


def _killed_by(kind: str) -> tuple[str, ...]:
    """The names of the processes that a kind of kill ends, or the first start begins."""
    return (kind,) if kind in _BOTH else _BOTH


def _is_own_end(event: dict[str, Any]) -> bool:
    """Whether a process has ended, or could not be started, and no kill explains it."""
    return event.get("event") in _ENDED and event["exit_code"] not in _KILLS


def _children(pid: int, *, recursive: bool = False) -> list[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).children(recursive=recursive)
    return []


def _processor_s(process: psutil.Process) -> float:
    with suppress(psutil.NoSuchProcess):
        used = process.cpu_times()
        return float(used.user + used.system)
    return 0.0


def _kill(processes: list[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGKILL)
