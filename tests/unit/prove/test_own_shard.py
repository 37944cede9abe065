"""A proof's shard notices processes that do not come back, from what `duewheel run` leaves."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from tests.harness.config_file import small_settings

from duewheel.checkpoints.file_lock import FileLock
from duewheel.errors import DuewheelError
from duewheel.prove.measures import START
from duewheel.prove.own_shard import OwnShard
from duewheel.runtime import run_file
from duewheel.runtime.run_file import Supervised

UP = Supervised(pid=1, lives=True)
FAILING = Supervised(restarts=2, last_exit_code=1, last_reason="no Java")
KILLED = Supervised(last_exit_code=-9, last_reason="killed by SIGKILL")


@contextmanager
def supervised(data_dir: Path, **processes: Supervised) -> Iterator[None]:
    """A `duewheel run` that keeps these processes."""
    data_dir.mkdir()
    with closing(FileLock.taken(data_dir / run_file.LOCK_NAME, 0, "")):
        fd = os.open(data_dir / run_file.FILE_NAME, os.O_CREAT | os.O_RDWR)
        run_file.write(fd, processes)
        os.close(fd)
        yield


def shard_of(folder: Path, *ends: tuple[str, int | None]) -> OwnShard:
    """With these ends in its log: process and exit code."""
    shard = OwnShard(small_settings(folder / "data"), folder)
    lines = (
        {"event": "process died", "process": process, "exit_code": code, "reason": f"reason {n}"}
        for n, (process, code) in enumerate(ends)
    )
    text = "".join(f"{json.dumps(line)}\n" for line in lines)
    (folder / "duewheel.log").write_text(f"no JSON\n{text}")
    return shard


def test_a_process_that_ends_again_and_again_does_not_come_back(tmp_path: Path) -> None:
    shard = shard_of(tmp_path, *[("ingest", 1)] * 3)
    with (
        supervised(tmp_path / "data", dequeue=UP, ingest=FAILING),
        pytest.raises(DuewheelError, match=r"ingest does not come back: .* 3 times .* reason 2"),
    ):
        shard.require_returning()


@pytest.mark.parametrize(
    ("ends", "ingest"),
    [
        ([("ingest", 1)] * 2, FAILING),
        ([("ingest", 1), ("dequeue", 1)] * 2, FAILING),
        ([("ingest", -9)] * 5, KILLED),
        ([("ingest", 1)] * 5, UP),
    ],
    ids=["twice", "two of each", "killed", "back again"],
)
def test_another_may_come_back(
    tmp_path: Path, ends: list[tuple[str, int | None]], ingest: Supervised
) -> None:
    shard = shard_of(tmp_path, *ends)
    shard.require_returning()  # no `run` yet
    with supervised(tmp_path / "data", dequeue=UP, ingest=ingest):
        shard.require_returning()
        assert shard.is_up("dequeue")
        assert shard.is_up("ingest") == shard.is_up(START) == ingest.lives


def test_files_that_were_never_made_are_a_finding(tmp_path: Path) -> None:
    (finding,) = shard_of(tmp_path).findings()
    assert "no files to check" in finding
