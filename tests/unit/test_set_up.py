"""`scripts/set_up.py`, cut short while pip waits for a registry that never answers."""

from __future__ import annotations

import fcntl
import os
import runpy
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "set_up.py"
DEADLINE_S = 120.0


class SetUp:
    """The script at work in a folder of its own, once pip has asked the registry.

    Attributes:
        process: the script.
        children: what it has started: pip.
        lock: the file that it locks.
        scratch: where pip puts what is temporary.
        said: the file with all that both of them say.
    """

    def __init__(self, folder: Path, registry: socket.socket) -> None:
        port = registry.getsockname()[1]
        line = f"--index-url http://127.0.0.1:{port}/simple\nnothing==1 --hash=sha256:{'0' * 64}\n"
        for name in ("pyproject.toml", "setup.py"):
            (folder / name).touch()
        for name in ("requirements-build.txt", "requirements.txt", "requirements-dev.txt"):
            (folder / name).write_text(line)
        (folder / "scripts").mkdir()
        script = shutil.copy(SCRIPT, folder / "scripts")
        self.scratch = folder / "scratch"
        self.scratch.mkdir()
        # Neither a proxy nor what else pip is told on this machine.
        foreign = ("pip_", "http_proxy", "https_proxy", "all_proxy")
        kept = {k: v for k, v in os.environ.items() if not k.lower().startswith(foreign)}
        self._environment = kept | {"TMPDIR": str(self.scratch), "PIP_CONFIG_FILE": os.devnull}
        self._script = script
        self.lock = folder / ".venv" / ".set-up.lock"
        self.children: list[psutil.Process] = []
        self.said = folder / "said"
        self.process = self.start(self.said)
        try:
            self._asked = registry.accept()[0]
            self.children = self.process.children(recursive=True)
        except BaseException:
            self.end()
            raise

    def start(self, said: Path) -> psutil.Popen:
        with said.open("wb") as file:
            return psutil.Popen(
                [sys.executable, self._script],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
            )

    def end(self) -> None:
        """Whatever still runs, and the one that has to be waited for."""
        for process in (self.process, *self.children):
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.wait(DEADLINE_S)
        psutil.wait_procs(self.children, DEADLINE_S)


@pytest.fixture
def set_up(tmp_path: Path) -> Iterator[SetUp]:
    with socket.create_server(("127.0.0.1", 0)) as registry:
        registry.settimeout(DEADLINE_S)
        running = SetUp(tmp_path, registry)
        yield running
        running.end()


def is_locked(path: Path) -> bool:
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


@pytest.mark.parametrize(
    "how", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.crash_matrix)]
)
def test_one_that_is_stopped_takes_pip_along(set_up: SetUp, how: signal.Signals) -> None:
    assert set_up.children and any(set_up.scratch.iterdir())
    if how == signal.SIGINT:  # as a terminal does, which tells all of them
        for child in set_up.children:
            child.send_signal(how)
    set_up.process.send_signal(how)
    assert set_up.process.wait(DEADLINE_S) == 130
    assert [child for child in set_up.children if child.is_running()] == []
    assert list(set_up.scratch.iterdir()) == []
    assert not is_locked(set_up.lock)
    assert "Traceback" not in set_up.said.read_text()


def test_while_pip_outlives_a_killed_one_the_next_waits(set_up: SetUp) -> None:
    set_up.process.kill()
    set_up.process.wait(DEADLINE_S)
    assert is_locked(set_up.lock)
    said = set_up.said.with_name("said next")
    following = set_up.start(said)
    set_up.children.append(following)
    give_up = time.monotonic() + DEADLINE_S
    while "another set-up is at work in .venv: waiting for it" not in said.read_text():
        assert following.is_running() and time.monotonic() < give_up, said.read_text()
        time.sleep(0.05)
    set_up.end()
    assert not is_locked(set_up.lock)


def test_an_environment_in_use_is_not_changed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A running shard would import the old and the new release of a package. It is this program
    that runs here.
    """
    script = runpy.run_path(str(SCRIPT))
    monkeypatch.setitem(script["install"].__globals__, "VENV", Path(sys.prefix))
    monkeypatch.setitem(script["install"].__globals__, "is_installed", lambda _: False)
    with pytest.raises(SystemExit):
        script["install"](dev=True)
    said = capsys.readouterr().err
    assert "is out of date, and in use: stop " in said
    assert f"{os.getpid()} (" in said


def test_settings_of_other_tools_install_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = runpy.run_path(str(SCRIPT))
    monkeypatch.setitem(script["digest"].__globals__, "ROOT", tmp_path)
    lock = shutil.copy(SCRIPT, tmp_path / "setup.py")
    found = []
    for text in (
        '[project]\nname = "a"\n[tool.pytest]\ntimeout = 1',
        '[project]\nname = "a"\n[tool.pytest]\ntimeout = 2',
        '[project]\nname = "a"\n[tool.setuptools]\npackages = []',
        '[project]\nname = "b"',
    ):
        (tmp_path / "pyproject.toml").write_text(text)
        found.append(script["digest"](lock))
    assert found[0] == found[1]
    assert len(set(found)) == 3
