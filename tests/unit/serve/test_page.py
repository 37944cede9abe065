"""The files of the page: their policy, and that they need only themselves and the API."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.harness.local_world import NOW_MS
from tests.harness.served import (
    CHANGING,
    READING,
    served,
    settings_of,
)

from duewheel.api.fact import instants
from duewheel.api.limits import BUCKETS_MAX
from duewheel.api.shard import ShardView
from duewheel.cli.output import printable
from duewheel.config.keys_and_defaults import TimerSection
from duewheel.serve.access import Access
from duewheel.serve.app import make_app
from duewheel.serve.page import POLICY, page_files
from duewheel.testing import ManualClock

LINES_MAX = 400
FILES = {name: content.decode() for name, content in page_files().items()}
SCRIPTS = {name: text for name, text in FILES.items() if name.endswith(".js")}
INDEX = FILES["index.html"]


def test_the_page_is_served_with_its_policy_and_without_a_token(tmp_path: Path) -> None:
    access = Access(CHANGING, READING)
    with served(settings_of(tmp_path), access) as client:
        for path in ("/", *(f"/page/{name}" for name in FILES if name != "index.html")):
            response = client.get(path)
            assert response.status_code == 200, path
            assert response.headers["content-security-policy"] == POLICY
            assert response.headers["cache-control"] == "no-store"
            assert response.headers["x-content-type-options"] == "nosniff"
        assert client.get("/").headers["content-type"] == "text/html; charset=utf-8"


def test_the_policy_permits_nothing_but_this_server() -> None:
    rules = dict(rule.split(" ", 1) for rule in POLICY.split("; "))
    assert rules.pop("require-trusted-types-for") == "'script'"
    assert rules["default-src"] == rules["frame-ancestors"] == rules["trusted-types"] == "'none'"
    assert set(rules.values()) == {"'none'", "'self'"}


@pytest.mark.parametrize("name", ["index.html", "nothing.js", "..%2f__init__.py", "__init__.py"])
def test_nothing_else_is_served(tmp_path: Path, name: str) -> None:
    with served(settings_of(tmp_path)) as client:
        response = client.get(f"/page/{name}")
        assert (response.status_code, response.json()["code"]) == (404, "not_found")


def test_the_markup_has_no_code() -> None:
    assert re.findall(r"<script(?![^>]* src=)|<style|\sstyle=|\son\w+=|javascript:", INDEX) == []


@pytest.mark.parametrize("name", SCRIPTS)
def test_nothing_is_parsed_as_markup_or_code(name: str) -> None:
    dangerous = r"(inner|outer)HTML|insertAdjacentHTML|document\.write|\beval\(|new Function|srcdoc"
    assert re.findall(dangerous, SCRIPTS[name]) == []


# Prints what is appended to elements: in a document's place there is only that.
SHOWN = """
import { code } from "./cells.js";
import { el } from "./dom.js";
const classList = { add() {} };
globalThis.document = {
  createElement: (name) => ({ name, classList, append: (...texts) => console.log(name, ...texts) }),
};
const text = JSON.parse(process.argv[2]);
code(text);
el("pre", text);
"""


def test_controls_of_a_producer_are_shown_as_by_the_commands(
    require: Callable[[object, str], None], tmp_path: Path
) -> None:
    """An id may turn the direction of what follows it, or have what is not seen at all."""
    node = shutil.which("node")
    require(node, "Node is not installed")
    for name, text in {**SCRIPTS, "shown.js": SHOWN, "package.json": '{"type": "module"}'}.items():
        (tmp_path / name).write_text(text)
    hostile = "8\u202e\u2066\u200f \u00a0\x1b[2J\x7f\r\u2028\U000e0041é\u05d0\U0001f44d\\"
    command = [str(node), "shown.js", json.dumps(f"{hostile}\n\tb")]
    shown = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    first, rest = shown.split("\n", 1)
    assert first == f"bdi {printable(hostile)}\\n\\tb"
    assert rest == f"pre {printable(hostile)}\n\tb\n"


@pytest.mark.parametrize("name", FILES)
def test_no_other_host_is_named(name: str) -> None:
    found = set(re.findall(r"\b(?:https?|wss?)://[^\s\"'`<>]+", FILES[name]))
    assert found <= {"http://www.w3.org/2000/svg"}


def test_every_file_that_is_named_exists_and_is_used() -> None:
    used = set(re.findall(r'"page/([\w.]+)"', INDEX))
    for text in SCRIPTS.values():
        used |= set(re.findall(r'from "\./([\w.]+)"', text))
    assert used == FILES.keys() - {"index.html"}


def test_every_name_that_is_imported_is_exported() -> None:
    exported = {
        name: set(
            re.findall(r"^export (?:async )?(?:function|const|class) (\w+)", text, re.MULTILINE)
        )
        for name, text in SCRIPTS.items()
    }
    for name, text in SCRIPTS.items():
        for names, source in re.findall(
            r'^import \{([^}]+)\} from "\./([\w.]+)";', text, re.MULTILINE
        ):
            wanted = {each.strip() for each in names.split(",") if each.strip()}
            assert wanted <= exported[source], f"{name}: {wanted - exported[source]}"
            for each in wanted:
                assert len(re.findall(rf"\b{each}\b", text)) > 1, f"{name} does not use {each}"


def test_every_export_is_imported() -> None:
    for name, text in SCRIPTS.items():
        for exported in re.findall(
            r"^export (?:async )?(?:function|const|class) (\w+)", text, re.MULTILINE
        ):
            others = [other for other in SCRIPTS if other != name]
            assert any(exported in SCRIPTS[other] for other in others), f"{name}: {exported}"


def test_every_element_that_is_named_exists() -> None:
    ids = set(re.findall(r'\sid="([\w-]+)"', INDEX))
    views = set(re.findall(r'data-view="([\w-]+)"', INDEX))
    named = {each for text in SCRIPTS.values() for each in re.findall(r'byId\("([\w-]+)"\)', text)}
    assert named | {f"view-{view}" for view in views} <= ids


def test_every_operation_that_is_called_exists(tmp_path: Path) -> None:
    app = make_app(settings_of(tmp_path), ManualClock(NOW_MS), Access())
    paths = {re.sub(r"\{\w+\}", "*", path) for path in app.openapi()["paths"]}
    text = SCRIPTS["operations.js"].replace("${ONE(timer)}", "v1/timers/*")
    text = text.replace("${at(shard)}", "")
    text = text.replace("${SCHEDULE(row.name)}", "v1/schedules/*")
    called = {
        "/" + re.sub(r"\$\{[^}]*\}", "*", path)
        for path in re.findall(
            r"[\"`]((?:v1/|readyz)[^\"`]*)[\"`]", text.replace("${encodeURIComponent(handle)}", "*")
        )
    }
    assert len(called) > 10
    assert called <= paths


def test_the_instants_of_a_shard_are_those_of_its_declarations() -> None:
    """A duration of as many digits as an instant counted as one."""
    assert instants(ShardView) == {"floor_ms", "lag_asked_ms", "next_try_ms"}
    assert 'new Set(["floor_ms", ' in SCRIPTS["facts.js"]


def test_the_bounds_of_inputs_are_those_of_the_api(tmp_path: Path) -> None:
    described = make_app(settings_of(tmp_path), ManualClock(NOW_MS), Access()).openapi()
    limits: dict[str, dict[str, Any]] = {}  # by operation or model, and field
    for operations in described["paths"].values():
        for operation in operations.values():
            fields = {each["name"]: each["schema"] for each in operation.get("parameters", [])}
            limits[operation["operationId"]] = fields
    limits |= {
        name: model.get("properties", {})
        for name, model in described["components"]["schemas"].items()
    }

    def limit(owner: str, field: str) -> set[int]:
        schema = limits[owner][field]
        parts = [schema, *schema.get("anyOf", [])]
        return {each[key] for each in parts for key in ("maxLength", "maximum") if key in each}

    searches = {
        "timers": "list_timers",
        "receipts": "list_receipts",
        "dead_letters": "list_dead_letters",
        "schedules": "list_schedules",
    }
    found = 0
    for script, operation in searches.items():
        bounds = re.findall(r'name: "(\w+)",.*?maxlength: (\d+)', SCRIPTS[f"{script}.js"])
        found += len(bounds)
        for field, bound in bounds:
            assert limit(operation, field) == {int(bound)}, (script, field)
    assert found == 8
    for script, text, owner, field in (
        ("dead_letters", "REPLAY_MAX = ", "Replay", "limit"),
        ("dead_letters", "chosen = input({ value: present, maxlength: ", "Replay", "code"),
        ("dead_letters", "topic = input({ maxlength: ", "Replay", "to_topic"),
        ("timers", "AT_MOST = ", "BulkCancel", "at_most"),
        ("schedules", "asks: () => input({ maxlength: ", "Pause", "note"),
    ):
        (bound,) = re.findall(rf"{re.escape(text)}([\d_]+)", SCRIPTS[f"{script}.js"])
        assert limit(owner, field) == {int(bound)}, (script, field)
    days, buckets = (
        re.search(rf"{name} = (\d+)", SCRIPTS[script])
        for name, script in (("LONGEST_DELAY_MS", "main.js"), ("HORIZON_BARS_MAX", "ranges.js"))
    )
    assert days and TimerSection().max_delay == timedelta(days=int(days[1]))
    assert buckets and int(buckets[1]) < BUCKETS_MAX


def test_modules_are_of_a_size_to_read() -> None:
    assert {
        name: len(text.splitlines())
        for name, text in FILES.items()
        if len(text.splitlines()) > LINES_MAX
    } == {}
