"""The callback by which a long operation reports how far it is: a command draws it."""

from __future__ import annotations

from collections.abc import Callable

Advanced = Callable[[int, int | None], None]  # the amount done, of all; None: how many is unknown


def unseen(_done: int, _total: int | None) -> None:
    """For callers that show nothing."""
