"""Text that producers write, made safe for a terminal."""

from __future__ import annotations


def printable(text: str) -> str:
    r"""Escapes what a terminal would act on, or not show: an id may have an escape sequence that
    changes the lines above it, a line break that begins a false line, or a change of direction.

    >>> print(printable("order 8821\x1b[2J\n"))
    order 8821\x1b[2J\n
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
