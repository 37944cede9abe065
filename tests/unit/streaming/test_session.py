"""The files that a process leaves if it is killed while Spark's JVM starts."""

from __future__ import annotations

import os
import re
import socket
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from pyspark.sql import SparkSession

from duewheel.streaming.session import SessionOptions, start_session


def test_a_kill_while_the_jvm_starts_leaves_nothing_outside_the_work_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pyspark makes a folder by which the JVM tells its port, and removes it only if it lives."""
    made = []

    class Killed:
        def getOrCreate(self) -> SimpleNamespace:  # noqa: N802
            made.append(Path(tempfile.mkdtemp()))
            return SimpleNamespace(_jvm=None)

    monkeypatch.setattr(os, "environ", {**os.environ})
    monkeypatch.setattr(SparkSession, "builder", Killed())
    start_session(SessionOptions("test", tmp_path, Path("java")))
    (folder,) = made
    assert folder.parent == tmp_path / "scratch"
    assert Path(tempfile.gettempdir()) != tmp_path / "scratch"
    assert folder.parent.stat().st_mode & 0o777 == 0o700, "tasks leave message bodies there"


def properties(monkeypatch: pytest.MonkeyPatch, options: SessionOptions) -> str:
    """The file that a JVM would read at a start with these options."""
    given = []

    class Started:
        def getOrCreate(self) -> SimpleNamespace:  # noqa: N802
            given.append((options.work_dir / "properties").read_text())
            return SimpleNamespace(_jvm=None)

    monkeypatch.setattr(os, "environ", {**os.environ})
    monkeypatch.setattr(SparkSession, "builder", Started())
    start_session(options)
    return given[0]


def plain(properties: str) -> str:
    """The file without escapes."""
    return re.sub(r"\\u([0-9a-f]{4})", lambda found: chr(int(found[1], 16)), properties)


@pytest.mark.parametrize(
    ("own", "collectors"),
    [
        ("", ["UseParallelGC"]),
        ("-Xmn1g", ["UseParallelGC"]),
        ("-XX:+UseG1GC", ["UseG1GC"]),
        ("-Xmn1g -XX:+UseG1GC -Xss9m", ["UseG1GC"]),
        ("-XX:MaxGCPauseMillis=100 -Xlog:gc", ["UseParallelGC"]),
        ("-XX:-UseG1GC", ["UseG1GC", "UseParallelGC"]),
    ],
)
@pytest.mark.parametrize("key", ["extraJavaOptions", "defaultJavaOptions"])
def test_the_jvm_has_one_collector(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str, own: str, collectors: list[str]
) -> None:
    conf = {f"spark.driver.{key}": own}
    given = properties(monkeypatch, SessionOptions("test", tmp_path, Path("java"), conf=conf))
    assert sorted(re.findall(r"Use\w+GC", given)) == collectors


def test_options_of_the_caller_come_before_those_of_the_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = SessionOptions(
        "test",
        tmp_path,
        Path("java"),
        java_options=["-Da=with space"],
        conf={"spark.driver.extraJavaOptions": "-Da=own"},
    )
    given = properties(monkeypatch, options)
    text = plain(given)
    assert text.index('"-Da=with space"') < text.index("-Da=own")


@pytest.mark.parametrize("chosen", [{}, {"spark.driver.host": "ingest.example"}])
def test_on_a_cluster_only_the_driver_is_on_the_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chosen: dict[str, str]
) -> None:
    monkeypatch.delenv("SPARK_LOCAL_IP", raising=False)
    with socket.create_server(("127.0.0.1", 0)) as server:
        master = f"spark://127.0.0.1:{server.getsockname()[1]}"
        options = SessionOptions("test", tmp_path, Path("java"), master=master, conf=chosen)
        text = plain(properties(monkeypatch, options))
        assert os.environ["SPARK_LOCAL_IP"] == "127.0.0.1"
        assert f"spark.driver.host={chosen.get('spark.driver.host', '127.0.0.1')}\n" in text
        monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.2")
        text = plain(properties(monkeypatch, options))
        assert os.environ["SPARK_LOCAL_IP"] == "127.0.0.2", "the operator's choice"
        assert ("spark.driver.host" in text) == bool(chosen)
