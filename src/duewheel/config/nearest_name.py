"""Suggests a name in the place of an unknown one: of a topic, a key, an option."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(name: str, names: Iterable[str]) -> str:
    """The suggestion, to end an error with; "" if none is near.

    >>> nearest("ordres", ["orders", "invoices"])
    '; did you mean "orders"?'
    """
    close = difflib.get_close_matches(name, list(names), n=1)
    return f'; did you mean "{close[0]}"?' if close else ""
