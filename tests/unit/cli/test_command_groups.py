"""`duewheel --help` lists every command, under the heading where a user looks for it."""

from __future__ import annotations

import re
from itertools import chain
from pathlib import Path

import click
from click.testing import CliRunner

from duewheel.cli.main import cli
from duewheel.extras import COMMANDS, of_command

GROUPS = {heading: tuple(rows) for heading, rows in cli.headings.items()}

DOCS = Path(__file__).resolve().parents[3] / "docs"
PAGE = DOCS / "commands.md"


def test_each_command_is_in_one_group() -> None:
    assert sorted(chain(*GROUPS.values())) == sorted(cli.commands)


def test_the_list_has_the_help_of_each_command() -> None:
    """It does not load their modules."""
    for rows in cli.headings.values():
        for name, (_, text) in rows.items():
            assert cli.commands[name].get_short_help_str(200) == text


def test_the_help_has_the_groups_in_order() -> None:
    text = CliRunner().invoke(cli, ["--help"]).output
    _, *sections = re.split(r"^(?=\S.*:$)", text.partition("Options:")[2], flags=re.MULTILINE)
    found = {
        section.partition(":")[0]: tuple(re.findall(r"^  ([a-z-]+)  ", section, re.MULTILINE))
        for section in sections
    }
    assert found == GROUPS
    assert [*found] == [*GROUPS]
    assert max(map(len, text.splitlines())) <= 80


def options_of(command: click.Command) -> set[str]:
    if isinstance(command, click.Group):
        return set(chain.from_iterable(map(options_of, command.commands.values())))
    return {flag for option in command.params for flag in option.opts}


def test_the_topic_of_a_message_has_one_name_in_all_commands() -> None:
    of_timers = ("send", "send-lines", "import", "list", "cancel-matching", "reschedule")
    for name in (*of_timers, "receipts", "pause", "resume"):
        assert "--target" in options_of(cli.commands[name]), name
    assert "--topic" not in options_of(cli)


def test_the_page_has_the_same_groups() -> None:
    rows = re.findall(r"^\| ([a-z ]+) \| (`.*) \|$", PAGE.read_text("utf-8"), re.MULTILINE)
    shown = {heading: set(re.findall(r"`([a-z-]+)", names)) for heading, names in rows}
    assert shown == {heading.lower(): set(names) for heading, names in GROUPS.items()}


def test_the_quickstart_has_the_extra_of_each_command() -> None:
    assert COMMANDS.keys() <= set(cli.commands)
    row = r"^\| `duewheel\[(\w+)\]`.* \| .* \| (.*) \|$"
    rows = dict(re.findall(row, (DOCS / "quickstart.md").read_text("utf-8"), re.MULTILINE))
    for command, extra in COMMANDS.items():
        assert f"`{command}`" in rows[extra] or f"]({command}.md)" in rows[extra], command


def test_a_command_without_an_extra_of_its_own_needs_dequeue() -> None:
    assert [of_command(each) for each in ("send", "run")] == ["dequeue", "service"]
