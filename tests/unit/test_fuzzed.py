"""The list of parsers in tests/fuzz/conftest.py is that of its files."""

from __future__ import annotations

import ast
from pathlib import Path

FUZZ = Path(__file__).parents[1] / "fuzz"
SOURCE = Path(__file__).parents[2] / "src" / "duewheel"
# Their tests call them through others: a whole shard, its HTTP server, a reader of fetches, a
# position.
THROUGH = {
    "checkpoints/json_fields",
    "schemas/wire/record_reader",
    "schemas/wire/record_rows",
    "serve/app",
    "wheel/storage/cancel_log",
    "wheel/storage/message_store",
    "wheel/storage/timer_log",
}


def listed() -> dict[str, set[str]]:
    """File of tests → modules."""
    text = ast.get_docstring(ast.parse((FUZZ / "conftest.py").read_text())) or ""
    found: dict[str, set[str]] = {}
    for word in text.partition("compares):")[2].split():
        if word.startswith("test_"):
            found[word] = set()
        else:
            found[list(found)[-1]].add(word)
    return found


def imported(test: Path) -> set[str]:
    nodes = [
        each for each in ast.walk(ast.parse(test.read_text())) if isinstance(each, ast.ImportFrom)
    ]
    names = {node.module or "" for node in nodes}
    names |= {f"{node.module}.{alias.name}" for node in nodes for alias in node.names}
    return {name.removeprefix("duewheel.").replace(".", "/") for name in names}


def test_each_file_and_each_parser_is_listed() -> None:
    found = listed()
    assert found.keys() == {test.name for test in FUZZ.glob("test_*.py")}
    for test, modules in found.items():
        assert all((SOURCE / f"{module}.py").exists() for module in modules), test
        assert modules - imported(FUZZ / test) <= THROUGH, test


def test_each_reader_of_json_in_kafka_is_listed() -> None:
    """Records of topics have no checksum: whatever decodes their values is fuzzed."""
    every = {module for modules in listed().values() for module in modules}
    for folder in ("checkpoints", "schemas"):
        for path in (SOURCE / folder).glob("*.py"):
            text = path.read_text()
            if "json.loads(value" in text or "(CommandPosition)" in text:
                assert f"{folder}/{path.stem}" in every
