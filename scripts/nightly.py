"""Run what takes too long, or needs too much, for every change: `make nightly`.

Each part runs, whatever comes of the others. The last lines list what ran, what failed, and what
was left out and why. The exit code is 1 if a part failed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYTEST = ("-P", "-m", "pytest", "--quiet")
TESTS = (sys.executable, *PYTEST, "-m", "")  # also those of the crash matrix
FOLDER = "tests/integration/test_"
SEEDS = f"SEEDS={os.environ.get('SEEDS', '300')}"
PARTS = {
    "Spark cluster": (*TESTS, f"{FOLDER}spark_cluster.py"),
    "clients in Java, Go and Node": (*TESTS, f"{FOLDER}foreign_clients.py"),
    "schema registry": (*TESTS, f"{FOLDER}schema_registry.py"),
    "SASL, TLS and ACLs": (*TESTS, f"{FOLDER}doctor_security.py", f"{FOLDER}login.py"),
    "three brokers": (sys.executable, "-P", "tests/soak/soak.py", "--brokers=3", "--rounds=5"),
    "simulation": ("make", "--assume-old=setup-dev", "simulate-nightly", SEEDS),
}
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
ON_PYTHONS = ("tests/unit", "tests/property")


def main() -> int:
    """Runs all parts, or those whose names contain an argument."""
    known = {**PARTS, **{f"Python {version}": () for version in PYTHONS}}
    chosen = [name for name in known if any(word in name for word in sys.argv[1:] or [""])]
    lines, failed = [], False
    for name in chosen:
        print(f"--- {name}", flush=True)
        began = time.monotonic()
        state = run(*known[name]) if known[name] else on_python(name.split()[1])
        failed |= state.startswith("failed")
        lines.append(f"{name}: {state} ({time.monotonic() - began:.0f} s)")
    print("\n".join(["--- nightly", *lines]))
    return int(failed)


def run(*command: str) -> str:
    """Runs a part; tests that pytest skips are left out, with their reasons."""
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    skipped = []
    for line in process.stdout:
        print(line, end="", flush=True)
        skipped += [line.strip()] if line.startswith("SKIPPED") else []
    code = process.wait()
    return "; ".join(["ran" if code == 0 else f"failed with code {code}", *skipped])


def on_python(version: str) -> str:
    """Runs the tests without Kafka; another Python has an environment below build/."""
    if version == f"{sys.version_info.major}.{sys.version_info.minor}":
        return run(sys.executable, *PYTEST, *ON_PYTHONS)
    python = shutil.which(f"python{version}")
    if python is None or subprocess.run([python, "-c", "import ensurepip"], check=False).returncode:
        return f"left out: no python{version} with ensurepip on the path"
    environment = ROOT / "build" / f"python{version}"
    inside = str(environment / "bin" / "python")
    pip = (inside, "-m", "pip", "install", "--quiet", "--no-build-isolation")
    for command in (
        (python, "-m", "venv", "--clear", str(environment)),
        (*pip, "-r", "requirements-build.txt"),
        (*pip, "--use-pep517", "-r", "requirements-dev.txt"),
        (*pip, "--no-deps", "."),
    ):
        if code := subprocess.run(command, cwd=ROOT, check=False).returncode:
            return f"failed with code {code}: {' '.join(command)}"
    return run(inside, *PYTEST, *ON_PYTHONS)


if __name__ == "__main__":
    sys.exit(main())
