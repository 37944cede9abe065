"""The work of a turn of the loop, as a value: the loop replaces it by one store, so another thread
reads a phase that the loop was in.
"""

from __future__ import annotations

from enum import Enum


class Phase(Enum):
    """The work of a turn of the loop. A start begins in RECOVERING and never returns to it.

        RECOVERING ──► CLOSING ◄──► DELIVERING
                          ▲  PAUSED  ▲                from either, and back, by the operator

    In RECOVERING and PAUSED the loop closes and delivers no slot, and replies to no cancel. It
    still commits stale progress, or a standby would treat the owner as dead; held copies move in
    these commits.
    """

    RECOVERING = "ingest is making the files whole, or reads again what is missing"
    PAUSED = "the operator has paused delivery"
    CLOSING = "everything closed is delivered: slots whose time is past are closed, then delivered"
    DELIVERING = "closed slots are delivered"
