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
    """The path of the archive for this Java and this installation of pyspark."""
    spark = importlib.util.find_spec("pyspark")
    assert spark is not None and spark.origin is not None
    # Whole seconds: the layers of a container image keep no finer times.
    installed_s = int(Path(spark.origin).stat().st_mtime)
    name = archive_name("spark", java, spark.origin, installed_s)
    return Path(sys.prefix) / "class-archives" / name


def write_spark_archive(java: Java) -> bool:
    """Starts Spark once for its classes, which takes half a minute of processor time. Returns
    whether there is an archive now.
    """
    path = spark_archive(java)
    if not path.exists():
        for outdated in path.parent.glob("spark-*.jsa"):
            outdated.unlink()
        write_base_archive(java)
        with tempfile.TemporaryDirectory(prefix="duewheel-") as work, recorded(path) as options:
            rehearse(SessionOptions("rehearsal", Path(work), java.home, java_options=options))
    return path.exists()


def main() -> int:
    """Writes the archive. Without one, starts only take longer."""
    logs.configure("cli", "error")
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
