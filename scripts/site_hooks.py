"""Hooks of mkdocs.yml: pages from outside docs/, and the anchors that links of the repository use.

A page of docs/ links to ../README.md, ../CHANGELOG.md and others, as the repository shows them. On
the site those are pages and files beside the others.
"""

from __future__ import annotations

import re
import string
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
# Files of the top that become pages; and files, and a folder of them, that are only linked.
PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security-policy.md",
}
FILES = ("Dockerfile", "docker-compose.yml")
FOLDER = "deploy"
_NAME = re.compile(r"\[([\w-]+)\.md\]\(")
_LINK = re.compile(r"(\]\()([^)\s#]+)")
_DROPPED = str.maketrans("", "", "".join(set(string.punctuation) - set("-_")) + "…")


def slug(text: str, separator: str) -> str:
    """The anchor of a heading, as repositories show it: links of docs/ are made for that."""
    return text.lower().translate(_DROPPED).replace(" ", separator)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Gives headings the repository's anchors."""
    config.mdx_configs.setdefault("toc", {})["slugify"] = slug
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds what lies beside docs/."""
    for name, page in PAGES.items():
        text = _from_top((ROOT / name).read_text("utf-8"))
        files.append(File.generated(config, page, content=text))
    within = (path for path in (ROOT / FOLDER).rglob("*") if path.is_file())
    for name in (*FILES, *(str(path.relative_to(ROOT)) for path in within)):
        files.append(File.generated(config, name, abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown: str, **_: object) -> str:
    """Links to what on_files has added; and names of pages without the ending of a file."""
    markdown = _NAME.sub(r"[\1](", markdown)
    return _LINK.sub(lambda link: link[1] + _moved(link[2].removeprefix("../")), markdown)


def _from_top(text: str) -> str:
    """A file of the top, with its links to docs/ as from within."""
    return _LINK.sub(lambda link: link[1] + link[2].removeprefix("docs/"), text)


def _moved(target: str) -> str:
    return PAGES.get(target, target)
