"""Fetching the pinned jars, with the real Ivy, from a mirror on this machine."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import asdict
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import psutil
import pytest

from duewheel.dev import jars
from duewheel.dev.jars import broker_jars
from duewheel.errors import DuewheelError
from duewheel.java.find import Java

POM = """\
<project><modelVersion>4.0.0</modelVersion>
<groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version></project>
"""

FETCH = """
import sys
from pathlib import Path
from duewheel.dev import jars
from duewheel.java.find import find_java
jars.PINS = Path(sys.argv[1])
jars.broker_jars(find_java())
"""
COUNT = 4  # jars that are fetched here: the smallest ones


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Keep the requests out of the test's output."""


@pytest.fixture
def few(kafka_jars: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Some of the broker's jars, pinned instead of all."""
    pins = sorted(jars.pinned(), key=lambda jar: jar.size)[:COUNT]
    path = tmp_path / "jars.json"
    path.write_text(json.dumps({"jars": [asdict(jar) for jar in pins]}))
    monkeypatch.setattr(jars, "PINS", path)
    by_name = {jar.name: jar for jar in kafka_jars}
    return [by_name[jar.file_name] for jar in pins]


@pytest.fixture
def mirror(few: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A Maven repository with these jars, as the only one; the cache is empty."""
    root = tmp_path / "mirror"
    for jar, path in zip(jars.pinned(), few, strict=True):
        group, artifact, version = jar.coordinate.split(":")
        folder = root.joinpath(*group.split("."), artifact, version)
        folder.mkdir(parents=True)
        (folder / path.name).write_bytes(path.read_bytes())
        (folder / f"{path.stem}.pom").write_text(POM.format(group, artifact, version))
    handler = functools.partial(Quiet, directory=str(root))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        port = server.server_address[1]
        monkeypatch.setenv("DEFAULT_ARTIFACT_REPOSITORY", f"http://127.0.0.1:{port}/")
        monkeypatch.setenv("DUEWHEEL_CACHE_DIR", str(tmp_path / "cache"))
        try:
            yield root
        finally:
            server.shutdown()
            thread.join()


def folders(cache: Path) -> list[str]:
    return sorted(path.name.split("-")[0] for path in (cache / "jars").iterdir() if path.is_dir())


def test_fetched_once_and_again_if_it_is_damaged_and_nothing_else_stays(
    mirror: Path, java: Java, few: list[Path], tmp_path: Path
) -> None:
    (tmp_path / "cache/jars/fetching-killed/new").mkdir(parents=True)
    children = {child.pid for child in psutil.Process().children()}
    paths = broker_jars(java)
    assert [path.read_bytes() for path in paths] == [path.read_bytes() for path in few]
    assert folders(tmp_path / "cache") == ["broker"]
    assert {child.pid for child in psutil.Process().children()} <= children
    whole = paths[0].read_bytes()
    paths[0].write_bytes(whole[:-1])
    assert broker_jars(java)[0].read_bytes() == whole, "a damaged one is used"
    assert folders(tmp_path / "cache") == ["broker"]
    for file in mirror.rglob("*.*"):
        if file.is_file():
            file.unlink()
    assert broker_jars(java) == paths


def test_another_jar_than_the_pinned_one_is_refused(
    mirror: Path, java: Java, tmp_path: Path
) -> None:
    jar = next(mirror.rglob("*.jar"))
    jar.write_bytes(jar.read_bytes() + b"more")
    with pytest.raises(DuewheelError, match=rf"{jar.parent.parent.name}.*not the pinned jar"):
        broker_jars(java)
    assert folders(tmp_path / "cache") == []


def test_missing_jar_is_named_with_the_remedy(mirror: Path, java: Java) -> None:
    jar = next(mirror.rglob("*.jar"))
    jar.unlink()
    name = jar.parent.parent.name
    with pytest.raises(DuewheelError, match=rf"(?s){name}.*DEFAULT_ARTIFACT_REPOSITORY"):
        broker_jars(java, attempts=1)


@pytest.mark.usefixtures("mirror")
def test_two_processes_at_once_fetch_once(tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-c", FETCH, str(jars.PINS)]
    running = [
        subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
        for _ in range(2)
    ]
    said = [process.communicate()[1] for process in running]
    assert [process.returncode for process in running] == [0, 0], said
    assert sum("fetching" in text for text in said) == 1
    assert folders(tmp_path / "cache") == ["broker"]
