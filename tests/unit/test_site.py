"""The documentation as a site: every page is there, no link is broken, no asset is foreign."""

from __future__ import annotations

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built strictly: a broken link, or a page that the navigation lacks, ends the build."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-P", "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    build = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert build.returncode == 0, build.stderr
    return folder


class Assets(HTMLParser):
    """What a browser would load with a page, links that a reader follows left out."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag != "a":
            self.found += [value for name, value in attrs if name in {"src", "href"} and value]


def test_each_page_is_on_the_site(site: Path) -> None:
    pages = {page.with_suffix(".html").name for page in (ROOT / "docs").glob("*.md")}
    built = {page.name for page in site.glob("*.html")}
    assert pages | {"index.html", "changelog.html", "contributing.html"} <= built


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    for page in site.glob("*.html"):
        assets = Assets(page.read_text("utf-8")).found
        assert assets
        assert [each for each in assets if re.match(r"(https?:)?//", each)] == [], page.name
    for style in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(https?:)?//", style.read_text("utf-8")), style.name


def test_links_of_the_top_lead_to_the_site(site: Path) -> None:
    text = (site / "index.html").read_text("utf-8")
    assert 'href="quickstart.html"' in text
    assert 'href="changelog.html"' in text
    assert 'href="docs/' not in text
    assert '<a href="glossary.html">glossary</a>' in (site / "concepts.html").read_text("utf-8")
    assert (site / "docker-compose.yml").read_bytes() == (ROOT / "docker-compose.yml").read_bytes()
    assert 'href="deploy/chart/values.yaml"' in (site / "deployment.html").read_text("utf-8")


def test_files_for_a_deployment_are_on_the_site(site: Path) -> None:
    files = [path for path in (ROOT / "deploy").rglob("*") if path.is_file()]
    assert len(files) > 15
    for path in files:
        assert (site / path.relative_to(ROOT)).read_bytes() == path.read_bytes()
