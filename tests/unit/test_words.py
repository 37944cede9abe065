"""The words that were dropped do not come back: docs/glossary.md has those in their place."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("wheel", "checkpoints", "schemas", "streaming", "src/duewheel")

# Parts of names of functions, classes, parameters and attributes: each hides what the thing is.
DROPPED = re.compile(
    "told|tells?|telling|said|word|known|found|gone|there|asks|asked|learn|learns|learned|looks?"
    "|met|meets?|passed|meant|anew|deal|dealt|lineage|patience|believed|outages|condemned|judged?"
    "|homes?|excess|stretch|stretches|places|uncommitted|restored|pieces|let|give|carry|forgiven|heard|hears"
    "|origin|away|back"
)
# Also as names of locals.
NO_LOCAL = re.compile(
    "told|said|asked|gone|there|met|learned|meant|anew|dealt|judged|condemned|forgiven|heard"
)
# Right in their place: a header's meaning, JAVA_HOME, a key of doctor's JSON.
ALLOWED = {
    "origin",
    "origin_offset",
    "origin_header",
    "java_home",
    "home",
    "found",
    *("ORIGIN", "_ORIGIN", "NO_ORIGIN", "CHASE_FOUND", "CHASE_FLAG_FOUND"),
}
ALLOWED_IN = {
    "schemas/batches.py",
    "schemas/header_names.py",
    "schemas/request/headers.py",
    "schemas/request/parser.py",
    "schemas/request/request_columns.py",
    "schemas/wire/record_codec.py",
    "src/duewheel/api/examination.py",
    "src/duewheel/doctor/findings.py",
    "src/duewheel/java/find.py",
    "streaming/session.py",
    "wheel/storage/cancel_log.py",
}
PHRASES = re.compile(
    r"\b(anew|whoever|nobody knows|what is told|of which there is one|signs? of life"
    r"|what becomes of|knows of|those that there are|makes of (it|them)"
    r"|told|goes? on|somebody|anybody|what is left)\b",
    re.IGNORECASE,
)


def modules() -> list[Path]:
    found = [path for folder in PRODUCT for path in sorted((ROOT / folder).rglob("*.py"))]
    return [path for path in found if path.resolve() == path]  # each behind its link only once


def names(module: ast.Module) -> Iterator[tuple[str, bool, int]]:
    """Each name that a module gives, whether it is a local's, and its line."""
    for node in ast.walk(module):
        match node:
            case (
                ast.FunctionDef(name=name)
                | ast.AsyncFunctionDef(name=name)
                | ast.ClassDef(name=name)
                | ast.arg(arg=name)
            ):
                yield name, False, node.lineno
            case ast.Attribute(attr=name, ctx=ast.Store()):
                yield name, False, node.lineno
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield name, False, node.lineno
            case ast.Name(id=name, ctx=ast.Store()):
                yield name, not name.isupper(), node.lineno  # constants belong to their module


def uses(words: re.Pattern[str], name: str) -> bool:
    """Whether a part of the name is one of the words."""
    parts = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower().split("_")
    return any(words.fullmatch(part) for part in parts)


def test_names_use_the_words_of_the_glossary() -> None:
    dropped = []
    for path in modules():
        place = str(path.relative_to(ROOT))
        for name, is_local, line in names(ast.parse(path.read_bytes())):
            allowed = place in ALLOWED_IN and name in ALLOWED
            if uses(NO_LOCAL if is_local else DROPPED, name) and not allowed:
                dropped.append(f"{place}:{line}: {name}")
    assert dropped == []


@pytest.mark.parametrize(
    ("name", "is_dropped"), [("isTold", True), ("_look_up", True), ("retold", False)]
)
def test_a_dropped_word_is_found_within_a_name(name: str, is_dropped: bool) -> None:
    assert uses(DROPPED, name) == is_dropped


def test_prose_uses_plain_words() -> None:
    pages = [*modules(), *(ROOT / "docs").glob("*.md"), ROOT / "README.md"]
    lines = [
        f"{page.relative_to(ROOT)}:{number}: {line.strip()}"
        for page in pages
        for number, line in enumerate(page.read_text().splitlines(), 1)
        if PHRASES.search(line)
    ]
    assert lines == []


def modules_of_tests() -> list[Path]:
    """Not those of the model and of the simulation: each is a world with the product's names."""
    folders = (ROOT / "tests").iterdir()
    own = [folder for folder in folders if folder.name not in {"model", "simulation"}]
    return [path for folder in own for path in sorted(folder.rglob("*.py"))]


@pytest.mark.parametrize("listed", [modules, modules_of_tests], ids=["product", "tests"])
def test_a_class_name_is_one_thing(listed: Callable[[], list[Path]]) -> None:
    seen: dict[str, list[str]] = {}
    for path in listed():
        for node in ast.parse(path.read_bytes()).body:
            if isinstance(node, ast.ClassDef):
                seen.setdefault(node.name, []).append(str(path.relative_to(ROOT)))
    assert {name: where for name, where in seen.items() if len(where) > 1} == {}
