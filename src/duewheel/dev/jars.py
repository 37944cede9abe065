"""The jars of the development broker, which pip does not bring.

`jars.json` beside this module pins them:

    { "roots": the coordinates that a person chose,
      "jars":  [ { "coordinate": group:artifact:version, "size", "sha256" } ] }

`python -P -m duewheel.dev.jars --pin` fills in "jars" from "roots" and their dependencies; an
upgrade is an edit of "roots" and that command.

The jars (fetched as ivy.py says) are kept in the cache directory:

    jars/lock             held while fetching: a second process waits and finds the work done
    jars/fetching-*       unfinished; the next process removes it after a kill
    jars/broker-<digest>  complete; <digest> names the pinned list, so that upgrades do not mix

Invariant: a folder gets its name broker-<digest> after all its checksums were right, and they are
checked at each use; if one is wrong, all jars are fetched again.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import random
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn

from duewheel.backoff import Backoff
from duewheel.clock import SystemClock
from duewheel.dev.ivy import Ivy
from duewheel.errors import DuewheelError
from duewheel.java.class_archive import archive_name
from duewheel.java.find import Java, cache_dir, find_java

PINS = Path(__file__).with_name("jars.json")

# Ivy fetches one file after the other; six at a time is 6 s instead of 16 s.
_PARALLEL = 6
_ATTEMPTS = 4
_BACKOFF_MS = 1_000, 8_000


@dataclass(frozen=True, slots=True)
class Jar:
    """One pinned jar: Maven coordinate, size in bytes, SHA-256 in hex."""

    coordinate: str
    size: int
    sha256: str

    @property
    def file_name(self) -> str:
        """Such as "kafka-clients-4.2.2.jar"."""
        _, artifact, version = self.coordinate.split(":")
        return f"{artifact}-{version}.jar"


def broker_jars(java: Java, attempts: int = _ATTEMPTS) -> list[Path]:
    """A Kafka broker with its dependencies, without a logging backend and scala-library; fetched
    if they are missing.

    Raises:
        DuewheelError: the jars cannot be fetched, or are not the pinned ones.
    """
    wanted = pinned()
    folder = _folder(wanted)
    if not _whole(folder, wanted):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _locked(folder.parent / "lock"):
            if not _whole(folder, wanted):
                _fetch(wanted, folder, java, attempts)
    return [folder / jar.file_name for jar in wanted]


def broker_archive(java: Java) -> Path:
    """The path of the broker's class archive, which may be missing."""
    folder = _folder(pinned())
    return folder.with_name(archive_name(folder.name, java))


def _folder(wanted: Sequence[Jar]) -> Path:
    digest = hashlib.sha256("".join(jar.sha256 for jar in wanted).encode()).hexdigest()[:12]
    return cache_dir() / "jars" / f"broker-{digest}"


def pinned() -> list[Jar]:
    """The jars of `broker_jars`."""
    return [Jar(**jar) for jar in json.loads(PINS.read_text())["jars"]]


def _whole(folder: Path, wanted: Sequence[Jar]) -> bool:
    """Whether every jar is there with its checksum; 50 MB take 0.1 s or less."""
    return all(_sha256(folder / jar.file_name) == jar.sha256 for jar in wanted)


def _sha256(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        return None


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _fetch(wanted: Sequence[Jar], folder: Path, java: Java, attempts: int) -> None:
    """Fills `folder`; the caller holds the lock."""
    for left_over in folder.parent.glob("fetching-*"):
        shutil.rmtree(left_over)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeElapsedColumn())
    with (
        tempfile.TemporaryDirectory(prefix="fetching-", dir=folder.parent) as scratch,
        Progress(*columns, console=Console(stderr=True)) as progress,
    ):
        bar = progress.add_task(f"fetching {len(wanted)} jars of the broker", total=_size(wanted))
        new = Path(scratch) / "new"
        new.mkdir()
        with Ivy(java, Path(scratch)) as ivy, ThreadPoolExecutor(_PARALLEL) as pool:
            stop = threading.Event()
            work = {pool.submit(_fetch_one, ivy, jar, new, stop, attempts): jar for jar in wanted}
            try:
                for done in as_completed(work):
                    done.result()
                    progress.advance(bar, work[done].size)
            except BaseException as error:
                stop.set()
                pool.shutdown(wait=False, cancel_futures=True)
                if not isinstance(error, DuewheelError):  # Ctrl-C does not wait for the network
                    ivy.close()
                raise
        shutil.rmtree(folder, ignore_errors=True)  # there is one only if its checksums failed
        new.rename(folder)


def _size(jars: Sequence[Jar]) -> int:
    return sum(jar.size for jar in jars)


def _fetch_one(ivy: Ivy, jar: Jar, into: Path, stop: threading.Event, attempts: int) -> None:
    target = into / jar.file_name
    backoff = Backoff(SystemClock(), random.Random(), *_BACKOFF_MS)
    for left in reversed(range(attempts)):
        try:
            shutil.copyfile(ivy.resolve([jar.coordinate], transitive=False)[0], target)
            break
        except DuewheelError:
            if not left or stop.wait(backoff.next_ms() / 1000):
                raise
    if (found := _sha256(target)) != jar.sha256:
        raise DuewheelError(
            f"{jar.coordinate} is not the pinned jar: SHA-256 {found}, expected {jar.sha256}"
        )


def pin() -> None:
    """Resolves the roots and writes their jars and checksums to jars.json."""
    pins = json.loads(PINS.read_text())
    with tempfile.TemporaryDirectory() as scratch, Ivy(find_java(), Path(scratch)) as ivy:
        ivy.resolve(pins["roots"], transitive=True)
        jars = [_pinned(path) for path in Path(scratch).glob("ivy-*/cache/*/*/*/*.jar")]
    jars.sort(key=lambda jar: jar.coordinate)
    assert len({jar.file_name for jar in jars}) == len(jars), "file names must not collide"
    pins["jars"] = [asdict(jar) for jar in jars]
    print(f"{len(jars)} jars, {_size(jars) / 1e6:.1f} MB")
    PINS.write_text(json.dumps(pins, indent=2) + "\n")


def _pinned(path: Path) -> Jar:
    """The pin of a jar in Ivy's cache: <group>/<artifact>/<kind>/<artifact>-<version>.jar."""
    group, artifact = path.parts[-4:-2]
    version = path.stem.removeprefix(f"{artifact}-")
    checksum = _sha256(path)
    assert checksum is not None, path
    return Jar(f"{group}:{artifact}:{version}", path.stat().st_size, checksum)


def main(arguments: Sequence[str]) -> int:
    """Fetches the jars now, or with --pin renews the pins."""
    if list(arguments) == ["--pin"]:
        pin()
        return 0
    if arguments:
        print("usage: python -P -m duewheel.dev.jars [--pin]", file=sys.stderr)
        return 2
    try:
        broker_jars(find_java())
    except DuewheelError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
