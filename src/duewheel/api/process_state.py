"""The states of a process. No import of this module is heavy: the health probe has it, too."""

from __future__ import annotations

from typing import Literal

ProcessState = Literal["stopped", "starting", "running", "paused"]

ALIVE: tuple[ProcessState, ...] = ("running", "paused")  # it writes heartbeats
