"""The class archive of Spark, below the Python environment that has the jars.

python -P -m duewheel.java.spark_archive    writes it if it is missing; `make setup` does so
"""

from __future__ import annotations

import importlib.util
import sys
import tempfile
from pathlib import Path

from duewheel.errors import DuewheelError
from duewheel.java.class_archive import archive_name, recorded, write_base_archive
from duewheel.java.find import Java, find_java
from duewheel.osutil import logs
from duewheel.streaming.rehearsal import rehearse
from duewheel.streaming.session import SessionOptions


def spark_archive(java: Java) -> Path:
    """Where the archive for this Java lies, or would lie. Another installation of pyspark has
    another one.
    """
    spark = importlib.util.find_spec("pyspark")
    assert spark is not None and spark.origin is not None
    # Whole seconds: the layers of a container image keep no finer times.
    installed_s = int(Path(spark.origin).stat().st_mtime)
    name = archive_name("spark", java, spark.origin, installed_s)
    return Path(sys.prefix) / "class-archives" / name


def write_spark_archive(java: Java) -> bool:
    """Start Spark once for its classes; half a minute of processor time.

    Returns:
        Whether there is an archive now.

    Raises:
        DuewheelError: Spark does not start.
    """
    path = spark_archive(java)
    if not path.exists():
        for outdated in path.parent.glob("spark-*.jsa"):
            outdated.unlink()
        write_base_archive(java)
        with tempfile.TemporaryDirectory(prefix="duewheel-") as work, recorded(path) as options:
            java_options = ("-XX:TieredStopAtLevel=1", *options)
            rehearse(SessionOptions("rehearsal", Path(work), java.home, java_options=java_options))
    return path.exists()


def main() -> int:
    """Write the archive. None is no error: starts only take longer."""
    logs.configure("cli", "error")  # Spark's own lines say nothing more to who only waits for it
    try:
        java = find_java()
        if not spark_archive(java).exists():
            print("archiving Spark's classes, for quicker starts", flush=True)
        if not write_spark_archive(java):
            print(f"Java {java.version} writes no class archive: Spark starts without one")
    except (DuewheelError, OSError) as error:
        print(f"no archive yet, which only costs time at starts: {error}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
