"""Keeps the log in a failure's report short: of lines that differ in numbers only, the first ones.

A client that tries again every 2 ms writes the same warning a thousand times a second. All of them
together push the assertion out of what CI shows of a failure.
"""

from __future__ import annotations

import logging
import re
from collections import Counter

LINES_MAX = 5  # of a kind


class FewOfEach(logging.Filter):
    """Lets the first lines of each kind pass, until `forget`."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: Counter[tuple[str, str]] = Counter()

    def filter(self, record: logging.LogRecord) -> bool:
        kind = record.name, re.sub(r"\d+", "0", record.getMessage())
        self._seen[kind] += 1
        return self._seen[kind] <= LINES_MAX

    def forget(self) -> None:
        """Begin anew, for the next test."""
        self._seen.clear()
