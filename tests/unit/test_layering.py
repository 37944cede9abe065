"""The imports of the engine and of the commands: neither Spark, Kafka nor pandas.

import-linter reads the sources; this looks at what really happens, imports inside functions and
those of libraries included.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import duewheel

PACKAGE = Path(duewheel.__file__).parent

PROBE = """
import importlib, json, sys
loaded = {}
foreign, *names = sys.argv[1:]
for name in names:
    importlib.import_module(name)
    loaded[name] = sorted(set(foreign.split()) & set(sys.modules))
print(json.dumps(loaded))
"""


def modules_of(folder: str) -> list[str]:
    return [
        ".".join(("duewheel", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(
            ".__init__"
        )
        for path in sorted((PACKAGE / folder).rglob("*.py"))
    ]


def foreign_modules(
    *names: str, foreign: str = "pyspark py4j kafka pandas"
) -> dict[str, list[str]]:
    """The foreign libraries loaded after each import, in a fresh Python."""
    run = subprocess.run(
        [sys.executable, "-P", "-W", "ignore", "-c", PROBE, foreign, *names],
        capture_output=True,
        text=True,
        check=True,
    )
    loaded: dict[str, list[str]] = json.loads(run.stdout)
    return loaded


@pytest.mark.parametrize("folder", ["schemas", "checkpoints", "wheel"])
def test_engine_needs_neither_spark_nor_kafka(folder: str) -> None:
    pure = modules_of(folder)
    assert len(pure) > 1, "the folder was not found"
    assert {name: found for name, found in foreign_modules(*pure).items() if found} == {}


def test_the_command_line_starts_without_them() -> None:
    """Of pandas alone the start of a command would be half as long again."""
    names = ("duewheel.cli.main", "duewheel.cli.processes", "duewheel.cli.shard")
    assert not any(foreign_modules(*names).values())


def test_the_supervisor_starts_its_processes_before_it_has_heavy_libraries() -> None:
    """They start a third of a second earlier, and the supervisor needs half of the memory."""
    names, foreign = (
        ("duewheel.cli.main", "duewheel.cli.processes", "duewheel.runtime.supervisor"),
        "numpy pyarrow kafka rich",
    )
    assert not any(foreign_modules(*names, foreign=foreign).values())


def test_publisher_needs_no_spark() -> None:
    seam = modules_of("kafka")
    assert "duewheel.kafka.publish.publisher" in seam
    for name, found in foreign_modules(*seam).items():
        assert not {"pyspark", "py4j"} & set(found), name


def test_bare_folders_cannot_be_imported() -> None:
    for folder in ("streaming", "schemas", "checkpoints"):
        run = subprocess.run(
            [sys.executable, "-P", "-c", f"import {folder}"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert f"No module named '{folder}'" in run.stderr
