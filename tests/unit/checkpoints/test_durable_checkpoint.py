"""The durable checkpoint: impossible content with a valid checksum is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from duewheel.checkpoints.durable_checkpoint import Durable
from duewheel.checkpoints.fs import HOST_FS
from duewheel.errors import CorruptFile

DURABLE = Durable(2, {}, {500_000: (104, 300, 0)}, 2, None, 940, {}, 1, {500_000: (52, 90)})


def test_lengths_below_zero_are_refused(tmp_path: Path) -> None:
    """Read, they would meet the assertion on what a commit page says."""
    DURABLE.write(tmp_path, HOST_FS)
    assert Durable.read(tmp_path) == DURABLE
    for damaged in (
        replace(DURABLE, hours={500_000: (104, -300, 0)}),
        replace(DURABLE, cancels={500_000: (-52, 90)}),
    ):
        damaged.write(tmp_path, HOST_FS)
        with pytest.raises(CorruptFile, match="not the lengths"):
            Durable.read(tmp_path)
