"""A pause of a target needs Kafka, and no file of the shard."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.harness.served import settings_of

from duewheel.api.requests import SelectivePause
from duewheel.checkpoints.pauses import FILE_NAME, PausesFile
from duewheel.ops.shard import selective_pause
from duewheel.testing import ManualClock


def test_a_file_that_cannot_be_read_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_of(tmp_path)
    (settings.storage.data_dir / FILE_NAME).mkdir(parents=True)  # also the superuser cannot read it
    followed = list[PausesFile]()

    def write_pause(*given: Any) -> dict[str, Any]:
        followed.append(given[-1])
        return {}

    monkeypatch.setattr(selective_pause, "write_pause", write_pause)
    clock, until_ended = ManualClock(0), SelectivePause()
    done = selective_pause.pause_selection(settings, clock, "target", "orders", until_ended)
    assert (done.paused, followed) == (True, [PausesFile()])
