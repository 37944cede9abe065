"""The built package: one top-level name, the four linked folders as files, the data files."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("src", "streaming", "wheel", "schemas", "checkpoints")
FILES = ("pyproject.toml", "README.md", "LICENSE")


def test_built_package_is_whole(tmp_path: Path) -> None:
    # A copy: setuptools leaves its own folders beside what it builds.
    copy = tmp_path / "source"
    ignore = shutil.ignore_patterns("*.egg-info", "__pycache__")
    for folder in SOURCES:
        shutil.copytree(ROOT / folder, copy / folder, symlinks=True, ignore=ignore)
    for file in FILES:
        shutil.copy(ROOT / file, copy / file)
    options = ["--no-build-isolation", "--no-deps", "--no-index", "--quiet"]
    subprocess.run(
        [sys.executable, "-P", "-m", "pip", "wheel", *options, "-w", str(tmp_path), str(copy)],
        check=True,
        cwd=tmp_path,
    )
    with zipfile.ZipFile(next(tmp_path.glob("duewheel-*.whl"))) as package:
        names = set(package.namelist())
    assert {name.split("/")[0].split("-")[0] for name in names} == {"duewheel"}
    for folder in SOURCES[1:]:
        here = {
            f"duewheel/{path.relative_to(ROOT)}"
            for path in (ROOT / folder).rglob("*")
            if path.suffix in {".py", ".json"}
        }
        assert here <= names
    top = ROOT / "src" / "duewheel"
    shell = {str(path.relative_to(top)) for path in top.rglob("*") if path.suffix}
    data = {"py.typed", "dev/jars.json", "dev/broker.properties", "audit/page.html"}
    assert {"client/__init__.py", *data} <= shell
    assert {f"duewheel/{name}" for name in shell if not name.endswith(".pyc")} <= names
    assert any(name.endswith(".dist-info/entry_points.txt") for name in names)
