"""The snippets of README.md, docs/ and docs/clients/python: each does what can be done.

Settings are loaded, commands are parsed by the command line itself, requests in kcat's words are
headers that ingest knows, and programs run, with a Kafka that acknowledges and answers at once.
Tests among them pass: those of a section are a module, with the plugin as pytest loads it.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import chdir
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, Self

import click
import kafka
import pytest
from kafka import KafkaConsumer, KafkaProducer

from duewheel import tables
from duewheel.api.schedules import NewSchedule
from duewheel.cli.main import cli
from duewheel.client import producer
from duewheel.config.settings import load
from duewheel.errors import ConfigError
from duewheel.schemas.header_names import DROP_IN, REQUEST, Answer

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"][
    "optional-dependencies"
]
CLIENTS = {
    "java": ["java/Reminder.java", "java/Retry.java"],
    "go": ["go/reminder/main.go", "go/retry/main.go"],
    "js": ["node/reminder.js", "node/retry.js"],
}
TEST = re.compile(r"^def test_", re.MULTILINE)
REQUEST_NAMES = REQUEST.keys() | set[str]().union(*DROP_IN.values())
# "": drawings; integration/relay/test_relay.py runs those in SQL, test_mirror.py MirrorMaker's
LANGUAGES = {"toml", "python", "sh", "json", "promql", "sql", "properties", "ini", *CLIENTS, ""}


@dataclass(frozen=True)
class Snippet:
    """A fenced block, and where it begins."""

    page: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def snippets() -> list[Snippet]:
    found = []
    for page in PAGES:
        text = page.read_text("utf-8")
        for fence in re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
            line = text.count("\n", 0, fence.start()) + 1
            name = str(page.relative_to(ROOT))
            found.append(Snippet(name, line, fence[1], fence[2]))
    programs = sorted((ROOT / "docs/clients/python").glob("*.py"))
    whole = [(str(path.relative_to(ROOT)), path.read_text("utf-8")) for path in programs]
    return found + [Snippet(name, 1, "python", text) for name, text in whole]


ALL = snippets()


def is_test(snippet: Snippet) -> bool:
    return snippet.language == "python" and bool(TEST.search(snippet.text))


def of(language: str) -> Callable[..., Any]:
    wanted = [each for each in ALL if each.language == language and not is_test(each)]
    return pytest.mark.parametrize("snippet", wanted, ids=str)


def test_each_is_in_a_language_that_is_tried() -> None:
    assert {snippet.language for snippet in ALL} <= LANGUAGES
    assert len(ALL) > 30


@pytest.mark.parametrize("language", CLIENTS)
def test_programs_in_other_languages_are_parts_of_those_that_run(language: str) -> None:
    """integration/test_foreign_clients.py runs the files; the page links to each."""
    shown = [snippet for snippet in ALL if snippet.language == language]
    assert {snippet.page for snippet in shown} == {"docs/languages.md"}
    files = [ROOT / "docs" / "clients" / path for path in CLIENTS[language]]
    run = ["\n".join(map(str.strip, file.read_text("utf-8").splitlines())) for file in files]
    for snippet in shown:
        part = "\n".join(map(str.strip, snippet.text.splitlines()))
        assert any(part in program for program in run), snippet
    page = (ROOT / "docs" / "languages.md").read_text("utf-8")
    assert [path for path in CLIENTS[language] if f"](clients/{path})" not in page] == []


# ---- settings -----------------------------------------------------------------------------------


def loads(text: str) -> None:
    """The settings can be used, where they name what a snippet about others may leave out."""
    given = tomllib.loads(text)
    given.setdefault("timer", {}).setdefault("topics", ["orders.delayed"])
    load(None, given)


@of("toml")
@pytest.mark.usefixtures("clean_surroundings")
def test_settings_load(snippet: Snippet) -> None:
    tables = tomllib.loads(snippet.text)
    if all("target" in table for table in tables.values()):  # a file of `schedule apply`
        assert [NewSchedule.of(table) for table in tables.values()]
    else:
        loads(snippet.text)


@pytest.mark.usefixtures("clean_surroundings")
def test_a_wrong_key_would_be_noticed() -> None:
    with pytest.raises(ConfigError, match="no such key"):
        loads("[dequeue]\nhot_slots = 'spread'\n")


@of("ini")
@pytest.mark.usefixtures("clean_surroundings")
def test_a_drop_in_of_systemd_has_known_settings(
    snippet: Snippet, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs = " ".join(re.findall(r"^Environment=(.*)$", snippet.text, re.MULTILINE)).split()
    assert pairs
    for name, value in (pair.split("=", 1) for pair in pairs):
        monkeypatch.setenv(name, value)
    loads("")


@of("json")
def test_json_parses(snippet: Snippet) -> None:
    json.loads(snippet.text)


# ---- commands -----------------------------------------------------------------------------------


def parses(words: list[str]) -> None:
    """The command line knows the command and its options; nothing is run."""
    command: click.Command = cli
    while isinstance(command, click.Group):
        assert words, "a group is no command"
        command = command.commands[words.pop(0)]
    with TemporaryDirectory() as folder, chdir(folder):
        for word in words:
            if word.endswith(".jsonl"):  # it is opened
                Path(word).touch()
        command.make_context(command.name, words).close()


def commands_of(text: str) -> list[list[str]]:
    """The words of each command: comments, redirections and here-documents left out."""
    text = re.sub(r"<<'(\w+)'\n.*?^\1$", "", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r" [<>] [\w.]+$", "", text.replace("\\\n", " "), flags=re.MULTILINE)
    found: list[list[str]] = []
    begun = ""
    for line in text.splitlines():
        begun += line
        try:
            words = shlex.split(begun, comments=True)
        except ValueError:  # a quotation that continues on the next line
            begun += "\n"
            continue
        begun = ""
        found.append([])
        for word in words:
            if word in {"|", "&&"}:
                found.append([])
            else:
                found[-1].append(word)
    assert not begun, "a quotation without an end"
    return [command for command in found if command]


def exists(words: list[str]) -> None:
    """One command of a snippet."""
    program, *rest = words
    program = program.removeprefix("/opt/duewheel/bin/")
    if program == "duewheel":
        parses(rest)
    elif program in {"kubectl", "runuser"} and "--" in rest:
        exists(rest[rest.index("--") + 1 :])
    elif program == "make":
        targets = (ROOT / "Makefile").read_text()
        assert re.search(rf"^{rest[0]}:", targets, re.MULTILINE), rest
    elif program == "pip":
        extras = re.findall(r"[a-z]+", rest[-1].partition("[")[2])
        assert rest[0] == "install" and set(extras) <= EXTRAS.keys()
    elif program == "kcat":
        headers = [rest[at + 1] for at, word in enumerate(rest) if word == "-H"]
        assert {header.partition("=")[0] for header in headers} <= REQUEST_NAMES
    elif program == "printf":
        headers = rest[0].partition("\\t")[0].split(",")
        assert {header.partition(":")[0] for header in headers} <= REQUEST.keys()
    else:
        known = {".", "cat", "cd", "curl", "echo", "eval", "export", "mkdir", "python"}
        known |= {"kafka-acls.sh", "kafka-configs.sh", "kafka-console-producer.sh", "kafka-python"}
        known |= {
            "docker",
            "go",
            "helm",
            "java",
            "node",
            "npm",
            "install",
            "kill",
            "psql",
            "python3",
            "redis-cli",
            "systemctl",
            "useradd",
        }
        assert program in known, f"what is {program}?"


@of("sh")
@pytest.mark.usefixtures("clean_surroundings")
def test_commands_exist(snippet: Snippet, monkeypatch: pytest.MonkeyPatch) -> None:
    for _, settings in re.findall(r"<<'(\w+)'\n(.*?)^\1$", snippet.text, re.MULTILINE | re.DOTALL):
        loads(settings)
    commands = commands_of(snippet.text)
    assert commands
    for command in commands:
        exists(command)
        if command[0] == "export":
            name, _, value = command[1].partition("=")
            monkeypatch.setenv(name, value)
    load(None, {"timer": {"topics": ["orders.delayed"]}})


def test_a_list_is_shown_row_by_row_without_the_rows_that_have_no_handle(
    require: Callable[[object, str], None], tmp_path: Path
) -> None:
    """A pending dead letter has none."""
    require(shutil.which("jq"), "it needs jq")
    text = (ROOT / "docs" / "operations.md").read_text("utf-8")
    (pipeline,) = re.findall(r"`(duewheel list [^`]*\|\s+xargs [^`]*)`", text)
    duewheel = tmp_path / "duewheel"
    rows = "\n".join(json.dumps({"handle": handle}) for handle in ("a", None, "b"))
    duewheel.write_text(f"#!/bin/sh\nif [ $1 = list ]; then echo '{rows}'; else echo $3; fi\n")
    duewheel.chmod(0o755)
    path = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    command = ["sh", "-c", pipeline.replace("\n", " ")]
    shown = subprocess.run(command, env=path, capture_output=True, text=True, check=True).stdout
    assert shown.split() == ["a", "b"]
    for each in commands_of(pipeline.replace("\n", " ")):
        if each[0] == "duewheel":
            parses(each[1:])


@pytest.mark.parametrize(
    "text",
    [
        "duewheel stats --by hour",
        "duewheel forget --id 1",
        "duewheel dlq",
        "duewheel send --value x",
    ],
)
def test_a_wrong_command_would_be_noticed(text: str) -> None:
    with pytest.raises((KeyError, AssertionError, click.ClickException)):
        exists(shlex.split(text))


# ---- programs -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Acknowledged:
    """Where a record was written, as kafka-python tells it."""

    topic: str
    partition: int
    offset: int
    timestamp: int = 1_800_000_000_000

    def add_callback(self, callback: Callable[[Self], object]) -> None:
        callback(self)

    def add_errback(self, callback: Callable[..., object]) -> None:
        pass

    def get(self, timeout: float) -> Self:
        return self


class QuickKafka:
    """Stands for KafkaProducer: each record is written at once.

    Attributes:
        written: topic and header names of all records.
    """

    written: list[tuple[str, list[str]]]

    def __init__(self, *, bootstrap_servers: str, **options: Any) -> None:
        assert re.fullmatch(r"[\w.-]+:\d+", bootstrap_servers)
        self.config = KafkaProducer.DEFAULT_CONFIG | options

    def send(
        self,
        topic: str,
        value: Any,
        key: Any,
        headers: list[tuple[str, bytes]],
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> Acknowledged:
        self.written.append((topic, [name for name, _ in headers]))
        return Acknowledged(topic, partition or 0, len(self.written))

    def partitions_for(self, topic: str) -> set[int]:
        return {0, 1, 2, 3}

    def close(self, timeout: float | None = None) -> None:
        pass


class QuickTransactions(QuickKafka):
    """Stands for KafkaProducer with a transactional id."""

    def init_transactions(self) -> None:
        pass

    begin_transaction = abort_transaction = commit_transaction = flush = init_transactions

    def send_offsets_to_transaction(self, offsets: object, group: object) -> None:
        pass


class QuickConsumer:
    """Stands for KafkaConsumer: it has one record, which is no JSON."""

    def __init__(self, topic: str, *, bootstrap_servers: str, **options: Any) -> None:
        self.config = KafkaConsumer.DEFAULT_CONFIG | options
        self._topic = topic

    def __iter__(self) -> Iterator[Any]:
        place = {"topic": self._topic, "partition": 0, "offset": 0}
        yield SimpleNamespace(**place, key=None, value=b"oops", headers=[])

    def commit(self) -> None:
        pass

    def group_metadata(self) -> None:
        pass

    def subscription(self) -> None:
        pass

    def close(self) -> None:
        pass


class QuickReplies:
    """Stands for ReplyReader: each request has cancelled something."""

    def __init__(self, settings: object, reply_topic: str) -> None:
        pass

    def expect(self, timer_topic: str) -> int:
        return 0

    def expect_soon(self, timer_topic: str) -> tuple[int, None]:
        return 0, None

    def failed(self, request: int) -> None:
        pass

    def written(self, request: int, source: str) -> Future[Answer]:
        reply: Future[Answer] = Future()
        reply.set_result(Answer.CANCELLED)
        return reply

    def close(self, timeout_s: float | None = None) -> None:
        pass


class QuickMessages:
    """Stands for MessageReader."""

    def __init__(self, settings: object) -> None:
        pass

    def read(self, handle: object) -> Any:
        kept = [("REAL_TOPIC", b"orders")]
        return SimpleNamespace(key=b"order-42", value=b"pay your order", kept=kept)

    def close(self) -> None:
        pass


@of("python")
def test_programs_run(snippet: Snippet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(QuickKafka, "written", [], raising=False)
    monkeypatch.setattr(producer, "KafkaProducer", QuickKafka)
    monkeypatch.setattr(kafka, "KafkaProducer", QuickTransactions)
    monkeypatch.setattr(kafka, "KafkaConsumer", QuickConsumer)
    monkeypatch.setattr(producer, "ReplyReader", QuickReplies)
    monkeypatch.setattr(producer, "MessageReader", QuickMessages)
    monkeypatch.setattr(tables, "load", lambda _: None)
    none = replace(tables.LISTS["pending"], _rows=lambda *_: iter(()))
    monkeypatch.setitem(tables.LISTS, "pending", none)
    exec(compile(snippet.text, str(snippet), "exec"), {"__name__": "__main__"})
    for topic, headers in QuickKafka.written:
        timed = producer.has_due_time([(name, b"1") for name in headers])
        assert topic in ({"orders.delayed"} if timed else {"orders", "orders.failed"})
    # test_relay.py runs the first, the others only read.
    only_read = {"docs/outbox.md", "docs/kafka.md", "docs/receipts.md"}
    assert QuickKafka.written or snippet.page in only_read


# ---- tests --------------------------------------------------------------------------------------

DJANGO = """
import django
from django.conf import settings

memory = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}
settings.configure(DATABASES={"default": memory})
django.setup()
"""


def pages_of_tests() -> list[object]:
    """The recipes have tests by the dozen."""
    pages = sorted({snippet.page for snippet in ALL if is_test(snippet)})
    slow = {"docs/recipes.md"}
    assert slow.issubset(pages)
    return [pytest.param(p, marks=pytest.mark.slow) if p in slow else p for p in pages]


@pytest.mark.parametrize("page", pages_of_tests())
def test_tests_pass(page: str, tmp_path: Path) -> None:
    tests = [snippet for snippet in ALL if snippet.page == page and is_test(snippet)]
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "conftest.py").write_text(DJANGO)
    for snippet in tests:
        (tmp_path / f"test_line_{snippet.line}.py").write_text(snippet.text)
    plugin = ("-p", "duewheel.pytest_plugin", "-p", "no:cacheprovider")
    run = subprocess.run(
        [sys.executable, "-P", "-m", "pytest", "--import-mode=importlib", *plugin, str(tmp_path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout
    assert f"{sum(len(TEST.findall(snippet.text)) for snippet in tests)} passed" in run.stdout


def test_no_page_installs_a_release_before_there_is_one() -> None:
    """Whatever stands under this name on a package index is not ours. Delete this with the first
    release (CONTRIBUTING.md).
    """
    pages = [*PAGES, ROOT / "SECURITY.md", *(ROOT / "deploy").rglob("*.[ysm]*")]
    wrong = re.compile(r"pip install [^`\n]*\bduewheel\b")
    found = [(page.name, *wrong.findall(page.read_text("utf-8"))) for page in pages]
    assert [each for each in found if len(each) > 1] == []
    installs = re.compile(r"pip install '?[.](?:\[([a-z,]+)\])?")
    extras = {
        extra
        for page in PAGES
        for extra in ",".join(installs.findall(page.read_text("utf-8"))).split(",")
    }
    assert extras - {""} <= EXTRAS.keys() and "service" in extras
