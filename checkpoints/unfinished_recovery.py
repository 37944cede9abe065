"""Which part of a recovery is unfinished (wheel/recovery/kept_files.py has the decision).

`duewheel health` reads it every few seconds: the module and its imports are light.
"""

from __future__ import annotations

from typing import NamedTuple

from duewheel.checkpoints.commit_and_close_pages import Marks
from duewheel.checkpoints.state_file import State


class Recovering(NamedTuple):
    """The steps before the shard delivers again."""

    generation: int  # number of the newest recovery that was decided on
    files_whole: bool  # whether ingest has made the files whole, or they were not damaged
    missing: Marks  # how many offsets must be read again, by partition


def recovering(state: State) -> Recovering | None:
    """Returns the recovery that stops dequeue from closing and delivering, if any."""
    if state.needs_recovery:
        return Recovering(state.generation, files_whole=False, missing={})
    close = state.close()
    marks = state.commit().marks  # after C: marks only rise
    missing = close.missing(marks) if close else {}
    return Recovering(state.generation, files_whole=True, missing=missing) if missing else None
