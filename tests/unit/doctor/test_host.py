"""What `duewheel doctor` says of the memory of the host."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from duewheel.doctor import host


def test_memory_for_spark_and_for_reading_ahead() -> None:
    assert host.check_memory(3 << 30, 2 << 30, 1 << 30).severity == "ok"
    assert host.check_memory((3 << 30) - 1, 2 << 30, 1 << 30).severity == "warning"


@pytest.mark.parametrize(
    ("limit", "used"),
    [
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ],
)
def test_memory_of_a_container(tmp_path: Path, limit: str, used: str) -> None:
    """Its limit counts, without the page cache that the kernel can drop."""
    path = tmp_path / limit
    path.parent.mkdir(exist_ok=True)
    path.write_text("100000000\n")
    (tmp_path / used).write_text("90000000\n")
    path.with_name("memory.stat").write_text("anon 70000000\ninactive_file 20000000\n")
    assert host.available_bytes(tmp_path) == 30_000_000
    path.write_text("max\n")
    assert host.available_bytes(tmp_path) > psutil.virtual_memory().total // 100
