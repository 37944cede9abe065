"""Docstrings and comments are in plain words, and list no argument that explains itself.

CONTRIBUTING.md has the rule; this finds only its mechanical part, in the folders of CLEAN.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# Grows until it has all folders of the product.
CLEAN = (
    "src/duewheel/*.py",
    *(
        f"src/duewheel/{folder}/*.py"
        for folder in (
            "adapters",
            "api",
            "cli",
            "config",
            "dev",
            "doctor",
            "java",
            "osutil",
            "prove",
            "runtime",
            "testing",
        )
    ),
    "src/duewheel/ops/**/*.py",
    "src/duewheel/serve/**/*.py",
    "src/duewheel/kafka/*/*.py",
    "src/duewheel/kafka/*.py",
    "checkpoints/**/*.py",
    "schemas/**/*.py",
    "streaming/**/*.py",
    "wheel/**/*.py",
)

# Each with the word for it: prose that needs one of these is clearer without.
WORDS = {
    r"behind": "after, beyond, above; lag",
    r"lies?": "is",
    r"(?:of|to|beside) which": "a sentence of its own",
    r"nobody|somebody|anybody|whoever": "a passive, or the actor",
    r"anew": "again",
    r"put away": "stored, removed",
    r"what": "a noun: the rows, the files, the state",
    r"tells?|told": "shows, distinguishes",
}
_WORD = re.compile(rf"\b({'|'.join(WORDS)})\b", re.IGNORECASE)  # not in capitals: constants

_BLOCK = re.compile(r"(Args|Attributes|Returns|Yields):")
_ENTRY = re.compile(r"    (\w+(?:, \w+)*): (.+)")
_FILLERS = frozenset(["a", "an", "the", "of", "its", "their", "this", "that", "each", "all"])
_FRAGMENT = re.compile(r"(of|its) [\w./`-]+( [\w./`-]+){0,4}\.?")


def modules() -> list[Path]:
    return sorted(path for pattern in CLEAN for path in ROOT.glob(pattern))


def docstrings(source: str) -> Iterator[tuple[int, str]]:
    """Line and text of each string that stands alone."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield node.lineno, text


def comments(source: str) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def words_in(source: str) -> Iterator[tuple[int, str]]:
    """Line and word of each word in WORDS."""
    for first, text in (*docstrings(source), *comments(source)):
        for number, line in enumerate(text.splitlines(), first):
            yield from ((number, m[1]) for m in _WORD.finditer(line) if not m[1].isupper())


def empty_entries(source: str) -> Iterator[tuple[int, str]]:
    """Line and text of each entry of a list of arguments that says no more than name and type."""
    for first, text in docstrings(source):
        in_block = False
        lines = text.splitlines()
        indent = min((len(x) - len(x.lstrip()) for x in lines[1:] if x.strip()), default=0)
        for number, raw in enumerate(lines, first):
            line = raw[indent:] if number > first else raw
            if _BLOCK.fullmatch(line):
                in_block = True
            elif line and not line.startswith(" "):
                in_block = False
            elif in_block and (entry := _ENTRY.fullmatch(line)):
                names, meaning = entry[1], entry[2]
                parts = set(re.split(r"\W+|_", names.lower()))
                said = set(re.split(r"\W+", meaning.lower())) - _FILLERS - {""}
                if said <= parts or _FRAGMENT.fullmatch(meaning):
                    yield number, line.strip()


def test_prose_has_plain_words() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {word!r}"
        for path in modules()
        for line, word in words_in(path.read_text())
    ]
    assert found == []


def test_comments_of_the_page_have_plain_words() -> None:
    """A comment of a script, and its continuation lines; no text that is shown."""
    found = [
        f"{path.name}:{number}: {match[1]!r}"
        for path in sorted((ROOT / "src/duewheel/serve/page").glob("*.js"))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if (comment := re.search(r"(?:^|\s)(?://|/?\*+(?:/|\s)).*", line)) is not None
        for match in _WORD.finditer(re.sub(r"@param \{.*\} \S+", "", comment[0]))
    ]
    assert found == []


def test_lists_of_arguments_say_more_than_the_names() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {entry}"
        for path in modules()
        for line, entry in empty_entries(path.read_text())
    ]
    assert found == []


def test_each_pattern_names_modules() -> None:
    assert [pattern for pattern in CLEAN if not list(ROOT.glob(pattern))] == []


@pytest.mark.parametrize(
    ("entry", "is_empty"),
    [
        ("config: the config.", True),
        ("config: its geometry.", True),
        ("path: of the wheel.", True),
        ("hour, position: of its log record.", True),
        ("of_hour: hour of the log.", False),
        ("until: an offset; the first batch that begins there ends the reading.", False),
        ("take_over: the operator has given --take-over.", False),
    ],
)
def test_an_entry_that_says_nothing_is_found(entry: str, is_empty: bool) -> None:
    source = f'def f():\n    """Does it.\n\n    Args:\n        {entry}\n    """\n'
    assert bool(list(empty_entries(source))) == is_empty


def test_a_dropped_word_is_found_in_docstrings_and_comments_alone() -> None:
    source = '"""A row lies\n\nthere."""\nwhat = "behind"  # nobody\n'
    assert list(words_in(source)) == [(1, "lies"), (4, "nobody")]
