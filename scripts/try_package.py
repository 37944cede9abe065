"""Try the built package as a user meets it: installed by pip, outside the checkout.

    python -P scripts/try_package.py [client | testing | service]

    client    a new environment with the client alone: its size, the seconds of pip, an import, and
              the line of a command that needs more
    testing   a new environment with the extra for tests: pytest finds the fixture, in a test that
              waits for 40 days
    service   a new environment with the service: `duewheel demo` on a real Kafka and Spark

Without an argument all. Libraries come from the package registry that pip is configured for, at
the newest releases that the package allows. The exit code is 1 if anything fails.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
KINDS = {"client": "", "testing": "[testing]", "service": "[service]"}
TRIED = """
def test_a_reminder(duewheel):
    duewheel.producer().schedule("orders", b"pay", key=b"42", delay="40d")
    duewheel.advance("40d")
    assert [message.value for message in duewheel.delivered("orders")] == [b"pay"]
"""
CLIENT_MB_MAX = 20  # 12 to 15 with an environment's own pip left out


def main(arguments: list[str]) -> int:
    """Tries what the arguments name."""
    if not set(arguments) <= KINDS.keys():
        print(__doc__, file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="duewheel-package-") as folder:
        away = Path(folder)
        run(sys.executable, "-m", "build", "--quiet", "--outdir", folder, str(ROOT), cwd=away)
        (wheel,) = away.glob("*.whl")
        for kind in arguments or KINDS:
            python = install(wheel, kind)
            {"client": try_client, "testing": try_testing, "service": try_service}[kind](python)
    return 0


def install(wheel: Path, kind: str) -> Path:
    """Makes an environment with the wheel and an extra; returns its Python."""
    environment = wheel.parent / kind
    run(sys.executable, "-m", "venv", str(environment), cwd=wheel.parent)
    (libraries,) = environment.glob("lib/python*/site-packages")
    before, began = size_of(libraries), time.monotonic()
    python = environment / "bin" / "python"
    pip = (str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    run(*pip, f"{wheel}{KINDS[kind]}", cwd=wheel.parent)
    took, megabytes = time.monotonic() - began, (size_of(libraries) - before) / 1e6
    print(f"{kind}: {megabytes:.1f} MB installed in {took:.1f} s", flush=True)
    if kind == "client" and megabytes > CLIENT_MB_MAX:
        sys.exit(f"the client has {megabytes:.1f} MB, more than {CLIENT_MB_MAX}")
    return python


def try_client(python: Path) -> None:
    """Imports the client, and starts a command that is not there."""
    run(str(python), "-c", "from duewheel.client import DelayProducer", cwd=python.parent)
    command = str(python.with_name("duewheel"))
    run(command, "--version", cwd=python.parent)
    refused = subprocess.run([command, "run"], capture_output=True, text=True, check=False)
    if refused.returncode != 2 or "duewheel[service]" not in refused.stderr:
        sys.exit(f"`duewheel run` beside the client alone: {refused}")


def try_testing(python: Path) -> None:
    """Runs a test with the fixture."""
    folder = python.parent / "tests"
    folder.mkdir()
    (folder / "test_reminder.py").write_text(TRIED)
    run(str(python), "-m", "pytest", "--quiet", "-p", "no:cacheprovider", str(folder), cwd=folder)


def try_service(python: Path) -> None:
    """Delivers timers on a real Kafka; the demo judges each."""
    command = str(python.with_name("duewheel"))
    run(command, "demo", "--timers", "300", "--over", "5s", cwd=python.parent)


def size_of(folder: Path) -> int:
    """Bytes of the files in a folder, without what Python compiles by itself."""
    return sum(
        path.stat().st_size
        for path in folder.rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    )


def run(*command: str, cwd: Path) -> None:
    """Runs a program; its failure ends this one with its code."""
    # PYTHONPATH would lead back to the checkout.
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    code = subprocess.run(command, cwd=cwd, env=kept, check=False).returncode
    if code:
        print(f"failed with code {code}: {' '.join(command)}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
