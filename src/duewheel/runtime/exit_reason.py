"""Why a process of `duewheel run` has ended, in its own words, for its supervisor to read.

They are written to a file in memory that the supervisor has made and hands on as a descriptor:
neither a full disk nor a data directory that cannot be read keeps them back.
"""

from __future__ import annotations

import os
from contextlib import suppress

VARIABLE = "DUEWHEEL_EXIT_REASON_FD"  # of the environment: the number of the descriptor
BYTES_MAX = 500


def write(text: str) -> None:
    """Called by a process that is about to end with an error."""
    number = os.environ.get(VARIABLE, "")
    if number.isdigit():
        with suppress(OSError):
            os.pwrite(int(number), text.encode()[:BYTES_MAX], 0)


class ExitReasonFile:
    """The supervisor's side, of one process. Its descriptor is to be inherited."""

    def __init__(self) -> None:
        """
        Raises:
            OSError: there are no descriptors left.
        """
        self.descriptor = os.memfd_create("duewheel exit reason")

    @property
    def environment(self) -> dict[str, str]:
        """For the process, on top of this one's."""
        return {**os.environ, VARIABLE: str(self.descriptor)}

    def read(self) -> str:
        """What was said; empty if nothing was."""
        text = os.pread(self.descriptor, BYTES_MAX, 0).decode(errors="replace")
        return " ".join(text.split())

    def close(self) -> None:
        """Give the descriptor back."""
        os.close(self.descriptor)
