"""Whether a `run` on this host is starting."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.harness.config_file import small_settings
from tests.harness.local_world import LocalWorld
from tests.harness.timer_rows import P0

from duewheel.checkpoints.file_lock import FileLock
from duewheel.checkpoints.fs import HOST_FS
from duewheel.config.settings import Settings
from duewheel.ops.shard import processes
from duewheel.runtime import run_file
from duewheel.runtime.run_file import Supervised


@pytest.fixture
def stopped(tmp_path: Path) -> Settings:
    settings = small_settings(tmp_path / "data")
    LocalWorld(settings.storage.data_dir, settings.wheel, starts={P0: 0}).stop()
    return settings


@pytest.fixture
def supervised(stopped: Settings) -> Iterator[Path]:
    """The data directory of a `run`."""
    data_dir = stopped.storage.data_dir
    lock = FileLock(data_dir / run_file.LOCK_NAME)
    assert lock.try_acquire()
    yield data_dir
    lock.close()


@pytest.mark.parametrize(
    ("ingest", "starting"),
    [
        (Supervised(pid=7), True),
        (Supervised(pid=7, lives=True), False),
        (Supervised(last_exit_code=1, last_reason="ended", next_try_ms=1), False),
    ],
)
def test_a_start_is_seen_in_what_run_writes(
    stopped: Settings, supervised: Path, ingest: Supervised, starting: bool
) -> None:
    assert not processes.is_starting(stopped)
    fd = HOST_FS.open_file(supervised / run_file.FILE_NAME)
    run_file.write(fd, {"ingest": ingest, "dequeue": Supervised(pid=8, lives=True)})
    assert processes.is_starting(stopped) is starting
