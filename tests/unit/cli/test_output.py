"""Results as text and as JSON, and characters that no terminal may get."""

from __future__ import annotations

import importlib
import json
import pkgutil

import pytest
from tests.harness.local_world import NOW_MS

import duewheel.api
from duewheel.api.dead_letters import Replayed
from duewheel.api.model import Result, is_instant
from duewheel.api.reshard import NewShard, Resharded
from duewheel.api.schedules import NextInstants, ScheduleSummary
from duewheel.cli import output
from duewheel.cli.output import Printer, say

DURATIONS = {
    "wait_ms",
    "apart_ms",
    "batch_age_ms",
    "behind_ms",
    "clock_skew_ms",
    "every_ms",
    "floor_ahead_ms",
    "jitter_ms",
    "lag_ms",
    "late_ms",
    "lateness_ms",
    "precision_ms",
    "width_ms",
}


# Fields of results with `dry_run` that hold in a dry run as well.
FACTS = {"assumed_delivered", "copied", "delivered", "matched", "not_taken", "sealed", "stopped"}


def kinds_of_results() -> list[type[Result]]:
    for module in pkgutil.iter_modules(duewheel.api.__path__, "duewheel.api."):
        importlib.import_module(module.name)
    kinds: list[type[Result]] = [Result]
    for kind in kinds:
        kinds += kind.__subclasses__()
    return kinds


def test_results_show_no_milliseconds_and_no_python(capsys: pytest.CaptureFixture[str]) -> None:
    parts = ["a-0", "a-2"]
    shard = NewShard(shard=0, partitions=parts, delivered_until_ms=1_800_000_000_000, apart_ms=0)
    moved = Resharded(dry_run=True, from_shards=1, to_shards=2, moved=1, shards=[shard])
    Printer(is_json=False).show(moved)
    assert capsys.readouterr().out.splitlines() == [
        "dry_run                  true",
        "from_shards              1",
        "to_shards                2",
        "would move               1",
        "shards.0.shard           0",
        "shards.0.partitions      a-0, a-2",
        "shards.0.delivered_until 2027-01-15T08:00:00.000Z",
        "shards.0.apart           0ms",
    ]


def test_no_name_of_a_header_writes_to_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    name = "header a\ncancelled true\x1b[2J"
    Printer(is_json=False).show({"id": "b", name: "v"})
    Printer(is_json=False).row({name: "v"})
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert all(r"header a\ncancelled true\x1b[2J" in line for line in lines[1:])


def test_no_error_writes_to_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    say("two lines:\n  a\x1b[2J")
    Printer(is_json=False).show({}, ["found\nerrors: 0\x7f"])
    Printer(is_json=True).show({"a": "\x7f\n"})
    shown = capsys.readouterr()
    assert shown.err == "duewheel: two lines:\n  a\\x1b[2J\n"
    text, as_json = shown.out.splitlines()
    assert text == r"found\nerrors: 0\x7f"
    assert json.loads(as_json) == {"a": "\x7f\n"}


def test_instants_are_times_in_text_and_numbers_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    schedule = ScheduleSummary(name="a", state="active", every_ms=20, starts_ms=NOW_MS, note=None)
    Printer(is_json=False).show(schedule)
    assert capsys.readouterr().out.splitlines() == [
        "name   a",
        "state  active",
        "every  20ms",
        "starts 2027-01-15T08:00:00.000Z",
        "note   -",
    ]
    found = NextInstants(name="a", zone=None, paused=False, due_ms=[NOW_MS, NOW_MS])
    Printer(is_json=False).row(found)
    due = ", ".join(["2027-01-15T08:00:00.000Z"] * 2)
    assert capsys.readouterr().out == f"name=a  paused=false  due={due}\n"
    Printer(is_json=True).show(found)
    assert json.loads(capsys.readouterr().out) == found.as_json()


def test_a_name_of_a_topic_is_no_unit(capsys: pytest.CaptureFixture[str]) -> None:
    topics = {"orders_ms": 5, "due_ms": 7}
    Printer(is_json=False).show(Replayed(dry_run=False, replayed=12, topics=topics, refused={}))
    assert capsys.readouterr().out.splitlines()[2:] == ["topics.orders_ms 5", "topics.due_ms    7"]


def test_each_instant_of_a_result_is_a_time_in_text() -> None:
    """One that is declared as a number would be shown as a duration of decades."""
    fields = [field for kind in kinds_of_results() for field in kind.model_fields.items()]
    numbers = {name for name, field in fields if not is_instant(field)}
    assert {name for name in numbers if name.endswith("_ms")} == DURATIONS


def test_what_a_dry_run_has_not_done_is_labelled_so() -> None:
    """A new field of such a result is named in one of the two."""
    kinds = [kind for kind in kinds_of_results() if "dry_run" in kind.model_fields]
    named = {name for kind in kinds for name in kind.model_fields}
    done = {name for name in named if name.endswith(("ed", "en"))}
    assert done == {*output._WOULD, *FACTS}  # noqa: SLF001 - it is complete


def test_a_dry_run_says_what_would_happen(capsys: pytest.CaptureFixture[str]) -> None:
    result = {"dry_run": True, "replayed": 2, "topics": {"a": 2}, "refused": {"no_due_time": 1}}
    Printer(is_json=False).show(result)
    assert capsys.readouterr().out.splitlines() == [
        "dry_run                  true",
        "would replay             2",
        "topics.a                 2",
        "would refuse.no_due_time 1",
    ]
    Printer(is_json=True).show(result)
    assert json.loads(capsys.readouterr().out) == result, "programs find the same names"
    Printer(is_json=False).show({**result, "dry_run": False})
    assert "would" not in capsys.readouterr().out
