"""Checks the source tree before a build, and makes the package's long description."""

import re
import sys
import tomllib
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).resolve().parent
PACKAGE = ROOT / "src" / "duewheel"
LINKED = ("checkpoints", "schemas", "streaming", "wheel")


def check_links() -> None:
    """Ends a build that would leave a part of the package out.

    In a checkout the folders are links to the top. Some archives and file systems have no links:
    setuptools would find no package there, and build the rest without a word.
    """
    lost = [name for name in LINKED if not (PACKAGE / name / "__init__.py").is_file()]
    if lost:
        sys.exit(
            f"src/duewheel/{lost[0]} is no folder: this tree has lost its symbolic links. Clone it "
            "with git (core.symlinks=true), or build from the source archive of a release."
        )


def description() -> str:
    """README.md; a link to a file of the repository becomes absolute, or the link's text.

    Without an address a picture is left out.
    """
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"].get("urls", {})
    base = urls.get("Source")

    def absolute(link: re.Match[str]) -> str:
        mark, text, target = link.groups()
        if not base:
            return "" if mark else text
        return f"{mark}[{text}]({base}/{'raw' if mark else 'blob'}/main/{target})"

    text = (ROOT / "README.md").read_text("utf-8")
    return re.sub(r"(!?)\[([^\]\n]+)\]\((?!https?://|#)([^)\s]+)\)", absolute, text)


check_links()
setup(long_description=description(), long_description_content_type="text/markdown")
