"""Run the publisher's tests against a kafka-python that the service does not allow yet.

    python -P scripts/try_kafka_python.py [version]

Without a version it is the newest release. The service takes exactly one, because it touches the
internals of the producer (producer_internals.py); this shows what another one needs there. If the
newest release is the one that the service takes, `make test` has tried it.

The exit code is that of the tests if a version is given. Of the newest release failures are only
printed: a release of another project is no fault of this tree.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from importlib.metadata import Distribution
from pathlib import Path

from duewheel.kafka.ledger.producer_internals import SUPPORTED_VERSION

ROOT = Path(__file__).resolve().parent.parent
TESTS = (
    "tests/unit/kafka/ledger/test_producer_internals.py",
    "tests/integration/test_kafka_publisher.py",
)


def main(arguments: list[str]) -> int:
    """Tries the version that is given, or the newest one."""
    if len(arguments) > 1:
        print(__doc__, file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="duewheel-kafka-python-") as folder:
        version = install(Path(folder), *arguments)
        if version == SUPPORTED_VERSION:
            print(f"kafka-python {version} is the one that the service takes: see `make test`")
            return 0
        print(f"kafka-python {version} instead of {SUPPORTED_VERSION}:", flush=True)
        code = run_tests(Path(folder))
    if code:
        print(
            f"kafka-python {version} needs changes of producer_internals.py: see docs/kafka-apis.md"
        )
    return code if arguments else 0


def install(folder: Path, *version: str) -> str:
    """Installs a release alone into a folder; returns its version."""
    name = "==".join(("kafka-python", *version))
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    subprocess.run([*pip, "--no-deps", "--target", str(folder), name], check=True)
    (info,) = folder.glob("kafka_python-*.dist-info")
    return Distribution.at(info).version


def run_tests(folder: Path) -> int:
    """Runs the tests with the kafka-python of a folder, which comes before the installed one."""
    plugin = Path(__file__).with_name("any_kafka_python.py")
    paths = filter(None, (str(folder), os.environ.get("PYTHONPATH"), str(plugin.parent)))
    return subprocess.run(
        [
            sys.executable,
            "-P",
            "-m",
            "pytest",
            "-m",
            "not crash_matrix",
            "--quiet",
            "-p",
            plugin.stem,
            *TESTS,
        ],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        cwd=ROOT,
        check=False,
    ).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
