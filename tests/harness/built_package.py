"""Builds the package, and puts it on a path of its own with no other library than it asks for.

A `Site` is what pip would make of the built package and an extra in an empty environment. Its
libraries are links to those of the environment that runs the tests: nothing is downloaded.
"""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
LINKED = ("streaming", "wheel", "schemas", "checkpoints")
FILES = (
    *("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE", "CHANGELOG.md"),
    *("CONTRIBUTING.md", "SECURITY.md", "Dockerfile", "docker-compose.yml"),
)


def copy_sources(folder: Path) -> Path:
    """Copies what is built: setuptools leaves folders of its own beside it."""
    ignore = shutil.ignore_patterns("*.egg-info", "__pycache__")
    for name in ("src", *LINKED, "deploy", "docs"):
        shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=ignore)
    for name in FILES:
        shutil.copy(ROOT / name, folder / name)
    return folder


def build(source: Path, to: Path, *, kind: str = "wheel") -> subprocess.CompletedProcess[str]:
    """Builds a wheel or a source archive (kind "sdist")."""
    options = ["--no-isolation", f"--{kind}", "--outdir", str(to)]
    return subprocess.run(
        [sys.executable, "-P", "-m", "build", *options, str(source)],
        capture_output=True,
        text=True,
        check=False,
        cwd=to,
    )


def names_in(wheel: Path) -> set[str]:
    """The files in a built wheel."""
    with zipfile.ZipFile(wheel) as package:
        return set(package.namelist())


class Site:
    """The folder of an installed wheel with its libraries, and programs that see no others."""

    def __init__(self, folder: Path, wheel: Path, extra: str = "") -> None:
        self._folder = folder
        folder.mkdir()
        with zipfile.ZipFile(wheel) as package:
            package.extractall(folder)
        (info,) = folder.glob("duewheel-*.dist-info")
        for library in _needed(importlib.metadata.Distribution.at(info), extra):
            for file in library.files or ():
                top = file.parts[0]
                link = folder / top
                if top not in {"..", "__pycache__"} and not link.exists():
                    link.symlink_to(Path(str(library.locate_file(top))))

    def python(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs Python on the site and the standard library alone, in an empty folder."""
        away = self._folder.with_name(f"{self._folder.name}-away")
        away.mkdir(exist_ok=True)
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("DUEWHEEL_", "PYTHON"))}
        return subprocess.run(
            [sys.executable, "-S", "-P", *arguments],
            env=kept | {"PYTHONPATH": str(self._folder)},
            cwd=away,
            capture_output=True,
            text=True,
            check=False,
        )


def _needed(
    package: importlib.metadata.Distribution, extra: str
) -> Iterator[importlib.metadata.Distribution]:
    """Yields what the package requires with an extra, and what that requires in turn."""
    open_, seen = [(package, extra)], set()
    while open_:
        distribution, with_extra = open_.pop()
        for text in distribution.requires or ():
            wanted = Requirement(text)
            if wanted.marker is not None and not wanted.marker.evaluate({"extra": with_extra}):
                continue
            own = wanted.name == package.name
            found = package if own else importlib.metadata.distribution(wanted.name)
            for further in wanted.extras or {""}:
                if (wanted.name, further) not in seen:
                    seen.add((wanted.name, further))
                    open_.append((found, further))
                    if not own:
                        yield found
