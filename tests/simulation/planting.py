"""Plants one fault in a copy of the code, and runs the simulation on it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SIMULATE = Path(__file__).with_name("simulate.py")
LONGEST_S = 800
_NOTHING = ""


@dataclass(frozen=True)
class Planted:
    """One clause of the code, broken.

    Attributes:
        breaks: the invariant.
        what: in words.
        path: below src/duewheel.
        old, new: the text, which must be there once, and what takes its place.
        timeline: the only one that it breaks; "": each. RocksDB misses the key of a batch that was
            not applied, and has all read again.
        test: in `tests`, that notices it; "" if the simulation does within some hundred seeds.
        seed: the first that does, as of late: it is tried first. Any change of the simulation may
            make it another one.
    """

    breaks: str
    what: str
    path: str
    old: str
    new: str
    timeline: str = ""
    test: str = ""
    seed: int = 0


def copied(planted: Planted, folder: Path) -> Path:
    """A copy of the package with the fault in it."""
    package = folder / "src" / "duewheel"
    shutil.copytree(
        ROOT / "src" / "duewheel", package, ignore=shutil.ignore_patterns("__pycache__")
    )
    path = package / planted.path
    text = path.read_text()
    if text.count(planted.old) != 1:
        raise SystemExit(f"{planted.path} holds {planted.old!r} {text.count(planted.old)} times")
    path.write_text(text.replace(planted.old, planted.new))
    return folder / "src"


def found(planted: Planted, seeds: int) -> str:
    """What finds the fault, and after how many seeds."""
    if planted.test:
        return _found_by_test(planted)
    with tempfile.TemporaryDirectory(prefix="duewheel-planted-") as folder:
        source = copied(planted, Path(folder))
        if planted.seed:
            told = _simulated(source, 1, planted.seed, planted.timeline)
            if told != _NOTHING:
                return told
        told = _simulated(source, seeds, 0, planted.timeline)
    return f"NOT FOUND in {seeds} seeds" if told == _NOTHING else told


def _simulated(source: Path, seeds: int, first: int, timeline: str) -> str:
    """The first violation of these seeds."""
    span = ["--seeds", str(seeds), "--first", str(first)]
    span += ["--timeline", timeline] * bool(timeline)
    with subprocess.Popen(
        [sys.executable, "-P", str(SIMULATE), *span, "--until-violation"],
        env={**os.environ, "PYTHONPATH": str(source)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    ) as running:
        try:
            output, error = running.communicate(timeout=LONGEST_S)
        except subprocess.TimeoutExpired:
            os.killpg(running.pid, signal.SIGKILL)  # some of its processes might go on for ever
            return f"broken: no end within {LONGEST_S} s"
    if not output:
        return f"broken: {error[-300:]}"
    violations = json.loads(output)["violations"]
    if not violations:
        return _NOTHING
    found = violations[0]
    return f"seed {found['seed']}: {found['invariant']}: {found['detail'][:90]!r}"


def _found_by_test(planted: Planted) -> str:
    with tempfile.TemporaryDirectory(prefix="duewheel-planted-") as folder:
        source = copied(planted, Path(folder))
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "pytest",
                "-m",
                "",
                "-q",
                "-p",
                "no:cacheprovider",
                planted.test,
            ],
            cwd=ROOT / "tests",
            env={
                **os.environ,
                "PYTHONPATH": str(source),
                "PYTHONSAFEPATH": "1",
                "DUEWHEEL_TIMER__TIMELINE": "wheel",  # some faults are of its files
            },
            capture_output=True,
            text=True,
            check=False,
        )
    failed = done.returncode == pytest.ExitCode.TESTS_FAILED
    return planted.test if failed else f"NOT FOUND by {planted.test}"
