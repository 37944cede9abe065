"""A PostgreSQL and a Redis of a test's own, where their programs are installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.harness.launcher import wait_until


def program(name: str) -> str | None:
    """The path of a program; PostgreSQL's lie outside of PATH on Debian."""
    newest = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    return shutil.which(name) or (str(newest[-1]) if newest else None)


@contextmanager
def postgres() -> Iterator[str]:
    """A new cluster behind a socket; yields what libpq connects with."""
    initdb, server = program("initdb"), program("postgres")
    assert initdb is not None
    assert server is not None
    with tempfile.TemporaryDirectory(prefix="pg-") as name:
        folder = Path(name)
        data, user = folder / "data", _other_user(folder)
        subprocess.run(
            [*user, initdb, "-U", "postgres", "-A", "trust", "-N", "-D", str(data)],
            check=True,
            capture_output=True,
        )
        options = ["-c", "listen_addresses=", "-c", "fsync=off", "-k", str(folder)]
        # Its socket is there before it takes connections.
        asked = [program("pg_isready") or "pg_isready", "-q", "-h", str(folder)]

        def is_ready() -> bool:
            return subprocess.run(asked, check=False).returncode == 0

        with _running([*user, server, "-D", str(data), *options], is_ready):
            yield f"host={folder} user=postgres dbname=postgres"


@contextmanager
def redis() -> Iterator[str]:
    """An empty Redis behind a socket; yields its URL."""
    server = program("redis-server")
    assert server is not None
    with tempfile.TemporaryDirectory(prefix="redis-") as name:
        socket = Path(name) / "socket"
        options = ["--port", "0", "--unixsocket", str(socket), "--save", "", "--dir", name]
        with _running([server, *options], socket.exists):
            yield f"unix://{socket}"


def _other_user(folder: Path) -> list[str]:
    """The words before a command that PostgreSQL refuses to be run by root."""
    if os.geteuid() != 0:
        return []
    shutil.chown(folder, "postgres")
    setpriv = shutil.which("setpriv")
    assert setpriv is not None
    return [setpriv, "--reuid=postgres", "--regid=postgres", "--clear-groups"]


@contextmanager
def _running(command: Sequence[str], is_ready: Callable[[], bool]) -> Iterator[None]:
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as child:
        try:
            wait_until(is_ready, f"{command[0]} does not start")
            yield
        finally:
            child.terminate()
            child.wait(30)
