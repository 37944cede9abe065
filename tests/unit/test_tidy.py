"""Checks without a tool: the length of functions and modules, and forbidden text."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

LINKED = ("checkpoints", "schemas", "streaming", "wheel")
FOLDERS = (*LINKED, "src")
FUNCTION_LINES_MAX = 70
MODULE_LINES_MAX = 600

# Written in pieces: this file is looked through too.
FORBIDDEN = {
    "unfinished work": re.compile(r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X)\b"),
    "a registry's address": re.compile(
        r"(?:py" + r"pi|maven|npmjs|python" + r"hosted|crates|debian)\.(?:org|io|com)\b"
    ),
    "a path of one machine": re.compile(r"(?<![\w.])/(?:root|home/(?!someone)\w+|work/\w+)/"),
}


def tracked(*patterns: str) -> list[Path]:
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--", *patterns],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    paths = (ROOT / name for name in listing.stdout.split("\0") if name)
    return [path for path in paths if path.is_file() and not path.is_symlink()]


@pytest.fixture(autouse=True)
def in_a_repository(require: Callable[[object, str], None]) -> None:
    require((ROOT / ".git").exists(), "not a git working tree: no list of the project's files")


def test_functions_fit_on_a_screen() -> None:
    too_long = []
    for path in tracked("*.py"):
        for node in ast.walk(ast.parse(path.read_bytes(), str(path))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno is not None
                lines = node.end_lineno - node.lineno + 1
                if lines > FUNCTION_LINES_MAX:
                    too_long.append(f"{path.relative_to(ROOT)}: {node.name}, {lines} lines")
    assert too_long == []


def test_modules_are_of_a_size_to_read() -> None:
    lengths = {path: len(path.read_text().splitlines()) for path in tracked("*.py")}
    assert lengths, "no file was found"
    assert {path: lines for path, lines in lengths.items() if lines > MODULE_LINES_MAX} == {}


def test_files_contain_nothing_that_must_not_be_there() -> None:
    found = []
    for path in tracked():
        content = path.read_bytes()
        if b"\0" in content:
            continue  # a picture: any three letters come by chance
        text = content.decode()
        for what, pattern in FORBIDDEN.items():
            for match in pattern.finditer(text):
                line = text.count("\n", 0, match.start()) + 1
                found.append(f"{path.relative_to(ROOT)}:{line}: {what}: {match.group()}")
    assert found == []


# kafka-python commits also if a record of the transaction has expired.
MAY_COMMIT = {
    "src/duewheel/client/transactions.py",  # after it has read every future
    "src/duewheel/doctor/trial.py",  # likewise
    "tests/harness/retrying_consumer.py",  # a producer that passes the call on
    "tests/integration/test_retries.py",  # of a program's own transaction, flushed
    "tests/unit/test_tidy.py",
    "tests/unit/testing/test_transactions.py",  # of the test kit's producer
}


def test_every_commit_reads_each_future() -> None:
    """It is `duewheel.client.transaction`, or `kafka.transactional_producer.commit_all`."""
    committing = {
        str(path.relative_to(ROOT))
        for path in tracked("*.py", "*.md")
        if re.search(r"\.commit_transaction\b", path.read_text())
    }
    assert committing <= MAY_COMMIT


def test_no_test_module_imports_another() -> None:
    """What two of them need lies in tests/harness, or in a module without `test_` beside them."""
    imported = re.compile(r"^\s*(?:from|import) (tests\.\S*\btest_\w+)", re.MULTILINE)
    found = [
        f"{path.relative_to(ROOT)}: {match.group(1)}"
        for path in tracked("tests/*.py")
        for match in imported.finditer(path.read_text())
    ]
    assert found == []


def test_tests_of_commands_stand_under_the_name_of_their_module() -> None:
    tests = [path.relative_to(ROOT / "tests/unit") for path in tracked("tests/unit/*/test_*.py")]
    of_commands = [path for path in tests if path.parts[0] in {"cli", "ops"}]
    assert of_commands, "no file was found"
    modules = [path.with_name(path.name.removeprefix("test_")) for path in of_commands]
    assert [path for path in modules if not (ROOT / "src/duewheel" / path).exists()] == []


def attributes_born_late(a_class: ast.ClassDef) -> set[str]:
    """Those that a method gives, and neither `__init__` nor the class's body."""
    stored: dict[bool, set[str]] = {True: set(), False: set()}
    for method in a_class.body:
        if isinstance(method, ast.FunctionDef):
            stored[method.name == "__init__"] |= {
                node.attr
                for node in ast.walk(method)
                if isinstance(node, ast.Attribute)
                and isinstance(node.ctx, ast.Store)
                and isinstance(node.value, ast.Name)
                and node.value.id == "self"
            }
    declared = {
        node.target.id
        for node in a_class.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    return stored[False] - stored[True] - declared


def test_every_attribute_is_born_with_its_object() -> None:
    late = {
        f"{path.relative_to(ROOT)}: {node.name}": names
        for path in tracked(*(f"{folder}/*.py" for folder in FOLDERS))
        for node in ast.walk(ast.parse(path.read_bytes()))
        if isinstance(node, ast.ClassDef) and (names := attributes_born_late(node))
    }
    assert late == {}


def test_folders_are_linked_into_the_package() -> None:
    for folder in LINKED:
        link = ROOT / "src" / "duewheel" / folder
        assert link.is_symlink()
        assert link.readlink() == Path("../..") / folder


def takes_minutes(path: str, test: str) -> bool:
    """Whether only `make crash-matrix` runs the test: by a mark of its own, or of its module."""
    marks: list[ast.expr] = []
    for node in ast.parse((ROOT / "tests" / path).read_bytes()).body:
        match node:
            case ast.Assign(targets=[ast.Name(id="pytestmark")], value=value):
                marks.append(value)
            case ast.FunctionDef(name=name, decorator_list=decorators) if name == test:
                marks += decorators
    return any("crash_matrix" in ast.unparse(mark) for mark in marks)


def test_each_fault_of_the_tables_has_a_test_and_says_when_that_takes_minutes() -> None:
    text = (ROOT / "docs" / "faults.md").read_text().partition("\n## Faults\n")[2]
    faults = re.findall(r"^\| (?!fault|---).*", text, re.MULTILINE)
    assert len(faults) > 20 and all("::" in fault for fault in faults)
    for path, test, mark in re.findall(r"`(\w+(?:/\w+)+\.py)::(\w+)`( †)?", text):
        assert bool(mark) == takes_minutes(path, test), f"{path}::{test}"


def test_tests_that_pages_name_exist() -> None:
    for page in tracked("docs/*.md"):
        for path, test in re.findall(r"`(\w+(?:/\w+)+\.py)::(\w+)`", page.read_text()):
            source = (ROOT / "tests" / path).read_text()
            assert f"def {test}(" in source, f"{page.name}: {path}::{test}"
