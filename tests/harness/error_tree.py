"""The classes of errors below one of them."""

from __future__ import annotations

from collections.abc import Iterator

from duewheel.errors import DuewheelError


def descendants(kind: type[DuewheelError]) -> Iterator[type[DuewheelError]]:
    """Of all modules that are imported."""
    for each in kind.__subclasses__():
        yield each
        yield from descendants(each)
