"""The reference of settings, metrics and commands in docs/ fits the code: scripts/reference.py."""

from __future__ import annotations

import runpy
import tomllib
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.core import Metric
from tests.harness.local_world import LocalWorld

from duewheel.config.settings import Settings, load
from duewheel.osutil.metrics_server import build_info, thread_failures
from duewheel.runtime.dequeue_metrics import DequeueMetrics
from duewheel.wheel.storage.data_directory import DataDirectory

ROOT = Path(__file__).resolve().parents[2]
REFERENCE: dict[str, Any] = runpy.run_path(str(ROOT / "scripts" / "reference.py"))


@pytest.mark.parametrize("name", REFERENCE["PAGES"])
def test_a_committed_page_is_what_is_generated(name: str) -> None:
    committed = (ROOT / "docs" / name).read_text("utf-8")
    assert committed == REFERENCE["page"](name), f"docs/{name}: run `make reference`, and commit it"


def test_every_key_is_described() -> None:
    lines = [line for line in REFERENCE["settings"]() if line.startswith("| `")]
    assert len(lines) > 50
    assert [line for line in lines if not all(cell.strip() for cell in line.split("|")[1:-1])] == []


@pytest.mark.usefixtures("clean_surroundings")
def test_documented_defaults_are_those_in_force() -> None:
    """Each as a file would give it."""
    section, given = "", dict[str, dict[str, Any]]()
    for line in (line for part in REFERENCE["settings"]() for line in part.splitlines()):
        if line.startswith("## ["):
            section = line.removeprefix("## [").rstrip("]\n")
        elif line.startswith("| `") and "<name>" not in section:
            key, default, *_ = (cell.strip().strip("`") for cell in line.split(" | "))
            key = key.removeprefix("| `")
            if default != "–":
                given.setdefault(section, {})[key] = tomllib.loads(f"x = {default}")["x"]
    given["timer"]["topics"] = ["a"]
    assert given["timer"]["max_delay"] == "40d"
    as_given, by_default = load(None, given), load(None, {"timer": {"topics": ["a"]}})
    assert as_given.model_dump() == by_default.model_dump()
    assert isinstance(as_given, Settings)


def test_the_families_that_are_scraped_are_documented(tmp_path: Path) -> None:
    world = LocalWorld(tmp_path)
    beside = DataDirectory(tmp_path, world.wheel)
    source = DequeueMetrics(beside, world.clock, lambda: world.dequeue.statistics)
    found: list[Metric] = [build_info(), thread_failures(), *source.families()]
    documented = {name: (kind, text) for _, name, kind, _, text in REFERENCE["families"]()}
    for family in found:
        suffix = {"counter": "_total", "info": "_info"}.get(family.type, "")
        assert documented[family.name + suffix] == (family.type, family.documentation)
    assert len(found) > 30
    beside.close()
    world.kill()
