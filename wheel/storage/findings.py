"""What a check finds: damage, with its place."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from duewheel.schemas.arrays import Bool, Int64

FINDINGS_MAX = 1_000  # a destroyed file would give one per record


@dataclass(frozen=True, slots=True)
class Finding:
    """One instance of damage.

    Attributes:
        file: path below the data directory.
        offset: position in the file, in bytes.
        code: kind of damage.
        detail: its numbers.
    """

    file: str
    offset: int
    code: str
    detail: str


def findings_at(file: str, offset: Int64, bad: Bool, code: str, detail: str) -> Iterator[Finding]:
    """Makes a finding for each row in `bad`, at its offset."""
    for row in np.flatnonzero(bad)[:FINDINGS_MAX].tolist():
        yield Finding(file, int(offset[row]), code, detail)
