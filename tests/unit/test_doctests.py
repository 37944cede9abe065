"""The examples in docstrings hold: those of every module that has any."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

import duewheel

ROOT = Path(duewheel.__path__[0])
MODULES = sorted(
    ".".join(path.relative_to(ROOT.parent).with_suffix("").parts)
    for folder in (ROOT, *(child for child in ROOT.iterdir() if child.is_symlink()))
    for path in folder.rglob("*.py")
    if ">>> " in path.read_text()
)


def test_the_client_and_durations_have_some() -> None:
    named = {"api.due_time", "client.futures", "client.handle", "config.durations"}
    assert {f"duewheel.{name}" for name in named} <= set(MODULES)


@pytest.mark.parametrize("name", MODULES)
def test_its_examples_hold(name: str) -> None:
    found = doctest.testmod(importlib.import_module(name))
    assert found.attempted > 0
    assert found.failed == 0
