"""The findings of a check: damage, with its place."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from duewheel.schemas.arrays import Bool, Int64

FINDINGS_MAX = 1_000  # a destroyed file would give one per record


@dataclass(frozen=True, slots=True)
class Finding:
    """One instance of damage."""

    file: str  # path below the data directory
    offset: int  # in bytes
    code: str  # kind of damage
    detail: str  # its numbers


def findings_at(file: str, offset: Int64, bad: Bool, code: str, detail: str) -> Iterator[Finding]:
    """Makes a finding for each row in `bad`, at its offset."""
    for row in np.flatnonzero(bad)[:FINDINGS_MAX].tolist():
        yield Finding(file, int(offset[row]), code, detail)
