"""What `duewheel doctor` says of the memory of the host."""

from __future__ import annotations

from duewheel.doctor import host


def test_memory_for_spark_and_for_reading_ahead() -> None:
    assert host.check_memory(3 << 30, 2 << 30, 1 << 30).severity == "ok"
    assert host.check_memory((3 << 30) - 1, 2 << 30, 1 << 30).severity == "warning"
