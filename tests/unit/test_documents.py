"""The pages of the top and of docs/: their links and names are valid."""

from __future__ import annotations

import re
import runpy
import string
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from click import Group, Option
from pydantic import BaseModel

from duewheel.cli.main import cli
from duewheel.config.keys_and_defaults import TimerTopic
from duewheel.config.settings import Settings
from duewheel.schemas.request.acceptance_rules import load_suite
from duewheel.schemas.request.unread_batches import SKIPPED_CODE, UNREADABLE_CODE
from duewheel.wheel.policies.policy import Policy
from duewheel.wheel.policies.table import POLICIES
from duewheel.wheel.target_rules import Reason

ROOT = Path(__file__).resolve().parents[2]
TOP = [ROOT / n for n in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")]
PAGES = [*TOP, *sorted((ROOT / "docs").glob("*.md"))]
README_WORDS_MAX = 700
NO_METRICS = {
    *("duewheel_audit", "duewheel_settings"),  # a file; a fixture
    *("duewheel_outbox", "duewheel_relay"),  # tables
}
SECTIONS = {name: field.annotation for name, field in Settings.model_fields.items()}
IN_CODE = re.compile(r"`([^`\n]+)`")


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


def prose(page: Path) -> str:
    """A page without its snippets."""
    return re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """Of its headings, as GitHub makes them."""
    heads = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    dropped = str.maketrans("", "", "".join(set(string.punctuation) - set("-_")) + "…")
    return {head.lower().translate(dropped).replace(" ", "-") for head in heads}


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text("utf-8").split()) <= README_WORDS_MAX


def test_the_contents_lead_to_every_page() -> None:
    linked = re.findall(r"\]\(([\w-]+\.md)\)", (ROOT / "docs/contents.md").read_text("utf-8"))
    assert sorted([*linked, "contents.md"]) == [page.name for page in PAGES[len(TOP) :]]


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if target.startswith(("https://", "http://")):
            continue
        file, _, anchor = target.partition("#")
        to = (page.parent / file).resolve() if file else page
        assert to.exists(), target
        assert not anchor or anchor in anchors(to), target


def test_metrics_that_are_named_exist() -> None:
    made = runpy.run_path(str(ROOT / "scripts" / "reference.py"))["families"]()
    exist = {name for _, name, *_ in made}
    for page in PAGES:
        for name in re.findall(r"`(duewheel_\w+)", prose(page)):
            assert name in exist | NO_METRICS, f"{named(page)}: {name}"


def keys_of(section: str) -> set[str]:
    """None of what is no section, or passed through."""
    model = SECTIONS.get(section)
    if not (isinstance(model, type) and issubclass(model, BaseModel)):
        return set()
    return set(model.model_fields)


def settings_in(page: Path) -> Iterator[tuple[str, str]]:
    """Whatever looks like section.key in a code span."""
    for span in IN_CODE.findall(prose(page)):
        yield from re.findall(r"(?<![\w./-])([a-z]+)\.([a-z_]+)(?![\w(/])", span)


# What status says under names of sections, and files that begin so.
NO_SETTINGS = {
    *(("dequeue", key) for key in ("behind_ms", "lock", "py")),
    *(("ingest", key) for key in ("lag", "lock", "py")),
}


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_settings_that_are_named_exist(page: Path) -> None:
    for section, key in settings_in(page):
        if (section, key) not in NO_SETTINGS and (known := keys_of(section)):
            assert key in known, f"{section}.{key}"
    for section, key in re.findall(r"\bDUEWHEEL_([A-Z]+)__([A-Z_]+)\b", page.read_text("utf-8")):
        name, _, _ = key.lower().partition("__")  # the key of a table follows
        assert name in keys_of(section.lower()), f"{section}__{key}"


def test_keys_of_one_topic_exist() -> None:
    documented = re.findall(r"timer\.topic\.[\w.]*\.(\w+)=", (ROOT / "docs/topics.md").read_text())
    assert documented
    assert set(documented) <= set(TimerTopic.model_fields)


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_commands_that_are_named_exist(page: Path) -> None:
    """Also their options, as far as they stand in the same code span."""
    for span in IN_CODE.findall(prose(page)):
        words = span.split()
        if words[:1] != ["duewheel"] or len(words) == 1:
            continue
        command, rest = cli.commands.get(words[1]), words[2:]
        assert command is not None, span
        if isinstance(command, Group) and rest:
            command, rest = command.commands[rest[0]], rest[1:]
        known = {o for each in command.params if isinstance(each, Option) for o in each.opts}
        assert {word.partition("=")[0] for word in rest if word.startswith("--")} <= known, span


def test_every_code_of_a_dead_letter_is_explained_once() -> None:
    page = (ROOT / "docs" / "dead-letters.md").read_text("utf-8")
    tables = page.partition("## Codes of rejected")[2].partition("`dlq replay` counts")[0]
    cells = re.findall(r"^\| (`.*?) \|", tables, re.MULTILINE)
    explained = [code for cell in cells for code in IN_CODE.findall(cell)]
    rejected = {expectation["meta"]["code"] for expectation in load_suite()["expectations"]}
    failed = {reason.code for reason in Reason} - {Reason.NONE.code, Reason.FORBIDDEN.code}
    by_policies = {policy.name for policy in POLICIES if policy.refusal}
    codes = rejected | {SKIPPED_CODE, UNREADABLE_CODE} | failed | by_policies
    assert sorted(explained) == sorted(codes)


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
def test_each_policy_is_explained_where_users_look(policy: type[Policy]) -> None:
    """Its module's name is a section of flow.md; its own name is where a user reads that it acted:
    among the causes of lateness, or the codes of dead letters.
    """
    pages = [(ROOT / "docs" / f"{page}.md").read_text("utf-8") for page in ("flow", "operations")]
    title = policy.__module__.rpartition(".")[2].replace("_", " ").capitalize()
    assert f"\n## {title}" in pages[0]
    causes = pages[1].partition("| cause |")[2].partition("\n\n")[0]
    assert policy.name in causes or policy.refusal


def test_log_lines_that_are_named_exist() -> None:
    page = (ROOT / "docs" / "operations.md").read_text("utf-8")
    table = page.partition("| `event` | means |")[2].partition("\n\n")[0]
    named = [cell for row in table.splitlines() for cell in IN_CODE.findall(row.split(" | ")[0])]
    folders = ("src/duewheel", "wheel", "streaming", "checkpoints")
    code = "".join(path.read_text() for each in folders for path in (ROOT / each).rglob("*.py"))
    assert len(named) > 5
    assert [line for line in named if f'"{line.removesuffix("…").rstrip()}' not in code] == []


def test_make_targets_that_are_named_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for page in PAGES:
        for target in re.findall(r"(?:`|^)make ([a-z][a-z-]+)", page.read_text(), re.MULTILINE):
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"{named(page)}: {target}"


def test_each_picture_is_shown_and_needs_nothing_else() -> None:
    text = "".join(page.read_text("utf-8") for page in PAGES)
    pictures = sorted((ROOT / "docs" / "images").iterdir())
    assert [each.name for each in pictures if f"images/{each.name})" not in text] == []
    drawn = [each for each in pictures if each.suffix == ".svg"]
    assert len(drawn) >= 3
    for each in drawn:
        root = ET.fromstring(each.read_text("utf-8"))
        assert root.get("aria-label"), each.name
        assert "prefers-color-scheme: dark" in each.read_text("utf-8"), each.name
        values = [value for node in root.iter() for value in node.attrib.values()]
        assert not [value for value in values if "://" in value], each.name


def test_a_subject_has_its_name_in_each_layer() -> None:
    layers, page = ROOT / "src" / "duewheel", (ROOT / "docs" / "architecture.md").read_text("utf-8")
    section = page.partition("### Subjects")[2].partition("Imports point down")[0]
    subjects = set(re.findall(r"^\| [^|]+ \| `(\w+)`", section, re.MULTILINE))
    shared = set(re.findall(r"`(\w+)`", section.partition("Shared by several")[2]))
    assert len(subjects) > 10
    for layer in ("api", "ops"):
        assert subjects <= {path.stem for path in (layers / layer).iterdir()}, layer
    operations = {path.stem for path in (layers / "ops").iterdir() if path.name[0] != "_"}
    assert operations == subjects | (shared & operations)
    of_processes = {"developing", "processes", "other_shards"}
    for layer in ("cli", "serve"):
        sources = {path.stem: path.read_text() for path in (layers / layer).glob("*.py")}
        made = re.compile(r"^@(click\.command|\w+\.(command|get|post|put|delete))\(", re.MULTILINE)
        named = {name for name, source in sources.items() if made.search(source)}
        assert named <= subjects | of_processes, layer
