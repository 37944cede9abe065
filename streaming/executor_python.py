"""The Python of a cluster's executors: gives them this duewheel, and checks their packages.

Tasks run under the path of one Python on every host, the driver's too. That Python, of the driver's
minor version, has duewheel's dependencies; duewheel itself comes from the driver with each start,
so that an upgrade concerns one host.
"""

from __future__ import annotations

import os
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import duewheel
from duewheel.errors import ConfigError, DuewheelError, SparkUnavailable
from duewheel.streaming.executors import on_each_core

# Of an examination: host, Python's path, and each package that it cannot import, with the reason.
Examined = tuple[str, str, list[str]]


def require_python(session: SparkSession, packages: Sequence[str], scratch: Path) -> None:
    """Gives the executors of a cluster this duewheel, and imports `packages` (or modules) on them.
    `scratch` is a folder for the code as it is sent, as long as the session lives.

    Raises:
        ConfigError: an executor has no Python, another version, or not all packages.
        SparkUnavailable: the executors did not answer.
    """
    context = session.sparkContext
    context.addPyFile(str(archive(scratch)))
    try:
        examined = on_each_core(session, examination(packages))
    except (Py4JError, PySparkException) as error:
        raise reason(str(error), context.pythonExec, context.pythonVer) from error
    if lack := lacking(examined):
        raise ConfigError(
            f"executors lack packages that tasks import: {lack}. Install duewheel's "
            "dependencies there, in that Python"
        )


def archive(folder: Path) -> Path:
    """Makes the zip file of the package, with the folders that an editable installation links."""
    top, archive = Path(duewheel.__file__).parent, folder / "duewheel.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as into:
        for name, _, files in os.walk(top, followlinks=True):
            for path in (Path(name, file) for file in files if not file.endswith(".pyc")):
                into.write(path, Path(top.name, path.relative_to(top)))
    return archive


def examination(packages: Sequence[str]) -> Callable[[Iterable[Any]], Iterator[Examined]]:
    """The task of the job: tries to import the packages."""

    def examine(_: Iterable[Any]) -> Iterator[Examined]:
        import importlib
        import socket
        import sys

        missing = []
        for name in packages:
            try:
                importlib.import_module(name)
            except Exception as error:  # noqa: BLE001 - a broken package may raise anything
                missing.append(f"{name} ({type(error).__name__}: {error})")
        yield socket.gethostname(), sys.executable, missing

    return examine


def lacking(examined: Iterable[Examined]) -> str:
    """Describes the missing packages, with one entry for each host."""
    hosts = {host: (python, missing) for host, python, missing in examined if missing}
    return "; ".join(
        f"{host}, {python}: {', '.join(missing)}" for host, (python, missing) in hosts.items()
    )


def reason(text: str, python: str, version: str) -> DuewheelError:
    """The error, with the one line that counts in Spark's pages of stack traces."""
    remedy = f"install Python {version} there, or set spark.pyspark.python in [spark] to its path"
    if differs := re.search(r"PYTHON_VERSION_MISMATCH\] (.*?)(?:,|\.\s|$)", text, re.MULTILINE):
        return ConfigError(f"{differs[1]}: {remedy}")
    if absent := re.search(r'Cannot run program "[^"]*".*?: (.*)', text):
        return ConfigError(f"executors cannot run {python} ({absent[1]}): {remedy}")
    lines = [line for line in text.splitlines() if line.strip()]
    return SparkUnavailable(f"the executors' Python cannot be examined: {' '.join(lines[1:2])}")
