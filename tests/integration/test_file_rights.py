"""Rights to the files of a real shard, whose data directory was open to all users of the host."""

from __future__ import annotations

import os
import stat
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.harness.shared_broker import SharedBroker
from tests.harness.whole_shard import WholeShard

from duewheel.doctor import data_directory

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.crash_matrix,
    pytest.mark.usefixtures("java"),
]


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


@pytest.mark.timeout(600)
def test_an_open_data_directory_ends_with_files_of_its_owner_alone(
    tmp_path: Path, broker: SharedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RocksDB and Spark make files of their own."""
    monkeypatch.setenv("DUEWHEEL_TIMER__TIMELINE", "rocksdb")
    with umask(0o022):
        shard = WholeShard(tmp_path, broker.bootstrap_servers, f"rights-{uuid.uuid4().hex[:8]}")
        data_dir = shard.settings.storage.data_dir
        data_dir.mkdir(parents=True, exist_ok=True)
        data_dir.chmod(0o755)
        (data_dir / "copied").write_bytes(b"by an operator")
        assert data_directory.check_rights(data_dir).severity == "error"
        try:
            shard.start()
            running = modes(data_dir)
        finally:
            shard.close()
    for found in (running, modes(data_dir)):
        assert [path for path, mode in found.items() if _is_open(mode)] == []
        assert any("rocksdb" in str(path) for path in found)
        assert any("spark" in str(path) for path in found)
    assert data_directory.check_rights(data_dir).severity == "ok"


def modes(folder: Path) -> dict[Path, int]:
    found = {}
    for path in (folder, *folder.rglob("*")):
        try:
            found[path] = path.lstat().st_mode
        except FileNotFoundError:  # removed meanwhile
            continue
    return found


def _is_open(mode: int) -> bool:
    if stat.S_ISLNK(mode):
        return False
    return bool(mode & (0o007 if stat.S_ISDIR(mode) else 0o077))
