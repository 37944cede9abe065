"""The examination of executors' Python, where duewheel is not installed, says what is missing."""

from __future__ import annotations

import base64
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from pyspark import cloudpickle

from duewheel.errors import ConfigError, DuewheelError, SparkUnavailable
from duewheel.streaming.executor_python import archive, examination, lacking, reason

WITHOUT_DUEWHEEL = """
import base64, sys
sys.modules["duewheel"] = None
from pyspark import cloudpickle
print(*cloudpickle.loads(base64.b64decode(sys.argv[1]))([]))
"""


def test_it_runs_without_this_package() -> None:
    sent = base64.b64encode(cloudpickle.dumps(examination(["json", "duewheel", "no_such"])))  # type: ignore[no-untyped-call]
    run = subprocess.run(
        [sys.executable, "-P", "-c", WITHOUT_DUEWHEEL, sent],
        capture_output=True,
        text=True,
        check=True,
    )
    assert sys.executable in run.stdout
    assert "'duewheel (ModuleNotFoundError: " in run.stdout
    assert "'no_such (ModuleNotFoundError: No module named 'no_such')" in run.stdout.replace(
        '"', "'"
    )
    assert "json" not in run.stdout


def test_the_whole_package_is_sent(tmp_path: Path) -> None:
    sent = archive(tmp_path)
    names = set(zipfile.ZipFile(sent).namelist())
    assert {"duewheel/__init__.py", "duewheel/wheel/slots.py"} <= names
    assert "duewheel/schemas/request/timer_suite.json" in names
    assert not {name for name in names if name.endswith(".pyc")}


def test_each_host_is_named_once() -> None:
    lacks = ("one", "/usr/bin/python3", ["numpy (x)", "pyarrow (y)"])
    assert lacking([lacks, lacks, ("two", "/opt/python", [])]) == (
        "one, /usr/bin/python3: numpy (x), pyarrow (y)"
    )


OTHER_VERSION = """An error occurred
: org.apache.spark.SparkException: Job aborted ...
pyspark.errors.exceptions.base.PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in worker has \
different version: 3.9 than that in driver: 3.11, PySpark cannot run with different minor versions.
"""
NO_PYTHON = """An error occurred
: java.io.IOException: Cannot run program "/opt/python": error=2, No such file or directory
\tat z
"""


@pytest.mark.parametrize(
    ("text", "kind", "says"),
    [
        (OTHER_VERSION, ConfigError, "different version: 3.9 than that in driver: 3.11: install"),
        (NO_PYTHON, ConfigError, "run /opt/python (error=2, No such file or directory): install"),
        ("An error occurred\n: java.io.IOException: oh\n\tat z", SparkUnavailable, "Exception: oh"),
    ],
)
def test_the_reason_in_pages_of_stack_traces(
    text: str, kind: type[DuewheelError], says: str
) -> None:
    found = reason(text, "/opt/python", "3.11")
    assert type(found) is kind
    assert says in str(found)
    assert "\n" not in str(found)
