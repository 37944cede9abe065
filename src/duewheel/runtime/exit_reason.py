"""Passes the reason why a process of `duewheel run` ended to its supervisor.

The process writes it to a file in memory, which the supervisor has opened and passes on as a
descriptor: so it arrives even if the disk is full or the data directory cannot be read.
"""

from __future__ import annotations

import os
from contextlib import suppress

VARIABLE = "DUEWHEEL_EXIT_REASON_FD"  # of the environment: the number of the descriptor
BYTES_MAX = 500


def write(text: str) -> None:
    """Writes the reason; called by a process before it ends with an error."""
    number = os.environ.get(VARIABLE, "")
    if number.isdigit():
        with suppress(OSError):
            os.pwrite(int(number), text.encode()[:BYTES_MAX], 0)


class ExitReasonFile:
    """The supervisor's side, one for each process, which inherits the descriptor."""

    def __init__(self) -> None:
        """
        Raises:
            OSError: no descriptor is left.
        """
        self.descriptor = os.memfd_create("duewheel exit reason")

    @property
    def environment(self) -> dict[str, str]:
        """The environment of the process: this one's, and the descriptor."""
        return {**os.environ, VARIABLE: str(self.descriptor)}

    def read(self) -> str:
        """The reason; empty if none was written."""
        text = os.pread(self.descriptor, BYTES_MAX, 0).decode(errors="replace")
        return " ".join(text.split())

    def close(self) -> None:
        """Closes the descriptor."""
        os.close(self.descriptor)
