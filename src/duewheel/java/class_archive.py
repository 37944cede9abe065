"""Class archives: what a JVM has loaded and verified at one start, for the next ones to map.

Spark loads some 15,000 classes from 250 jars. From an archive, a start of its JVM takes half of the
processor time (6 s instead of 11 s without the optimizing compiler).

    spark_archive(java)       its path, below the Python environment that has the jars
    archive_options(path)     what a JVM starts with: nothing, while there is no archive
    recording_options(path)   with these a JVM writes the archive when it ends

A JVM compares an archive with its own version, its class path and the time of each jar. One that
does not fit is passed over in silence, and the start takes as long as without it.
"""

from __future__ import annotations

import hashlib
import importlib.util
import sys
import tempfile
from pathlib import Path

from duewheel.errors import DuewheelError
from duewheel.java.find import Java, find_java
from duewheel.streaming.rehearsal import rehearse
from duewheel.streaming.session import SessionOptions

# The default is stdout, with a line for each class that no archive can have.
_QUIET = "-Xlog:cds*=off"


def spark_archive(java: Java) -> Path:
    """Where the archive of Spark's classes for this Java lies, or would lie."""
    return _folder() / f"spark-{_digest(java)}.jsa"


def archive_options(path: Path) -> tuple[str, ...]:
    """Options of a JVM that is to use the archive."""
    return (f"-XX:SharedArchiveFile={path}", _QUIET) if path.exists() else ()


def recording_options(path: Path) -> tuple[str, ...]:
    """Options of a JVM that is to write the archive when it ends."""
    return (f"-XX:ArchiveClassesAtExit={path}", _QUIET)


def write_spark_archive(java: Java) -> bool:
    """Start Spark once and keep its classes; half a minute of processor time.

    Returns:
        Whether there is an archive now. A Java without an archive of its own classes writes none.
    """
    path = spark_archive(java)
    if path.exists():
        return True
    path.parent.mkdir(parents=True, exist_ok=True)
    for outdated in path.parent.glob("spark-*.jsa"):
        outdated.unlink()
    with tempfile.TemporaryDirectory(prefix="recording-", dir=path.parent) as scratch:
        new = Path(scratch) / path.name
        options = ("-XX:TieredStopAtLevel=1", *recording_options(new))
        rehearse(SessionOptions("rehearsal", Path(scratch), java.home, java_options=options))
        if new.exists():
            new.replace(path)
    return path.exists()


def _folder() -> Path:
    return Path(sys.prefix) / "class-archives"


def _digest(java: Java) -> str:
    """Of what the archive depends on; another installation of pyspark gets another archive."""
    spark = importlib.util.find_spec("pyspark")
    assert spark is not None and spark.origin is not None
    of = (java.executable, java.version, spark.origin, Path(spark.origin).stat().st_mtime_ns)
    return hashlib.sha256(repr(of).encode()).hexdigest()[:12]


def main() -> int:
    """Write the archive if it is missing. No archive is no error: starts only take longer."""
    try:
        java = find_java()
        if not spark_archive(java).exists():
            print("archiving Spark's classes, for quicker starts", flush=True)
        if not write_spark_archive(java):
            print(f"Java {java.version} writes no class archive: Spark starts without one")
    except DuewheelError as error:
        print(f"Spark starts without a class archive: {error}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
