"""Findings of `duewheel doctor`: their order, their remedies, and the exit code."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from duewheel import doctor
from duewheel.api.examination import UNREACHABLE, DoctorFinding
from duewheel.cli.examination import as_lines, exit_code
from duewheel.doctor import findings
from duewheel.doctor.findings import Check
from duewheel.kafka.topics.description import Partition, Topic

DOCS = Path(__file__).resolve().parents[3] / "docs"


def partition(replicas: int, in_sync: int | None = None, leader: int = 1) -> Partition:
    return Partition(0, leader, replicas, replicas if in_sync is None else in_sync)


def topic(replicas: int = 3, in_sync_min: int = 2, **changed: Any) -> Topic:
    config = {"min.insync.replicas": str(in_sync_min), "unclean.leader.election.enable": "false"}
    return replace(Topic("t", 0, "id", (partition(replicas),), frozenset(), config), **changed)


def test_the_exit_code_tells_errors_and_an_absent_kafka_apart() -> None:
    ok, warning = Check("a", "s").ok("f"), Check("b", "s").warning("f", "r")
    error = Check("c", "s").error("f", "r")
    away = Check(UNREACHABLE, "s").error("f", "r")
    assert exit_code(findings.summed_up([])) == 0
    assert exit_code(findings.summed_up([ok, warning])) == 0
    assert exit_code(findings.summed_up([ok, error, warning])) == 1
    assert exit_code(findings.summed_up([error, away])) == 3


def test_the_worst_comes_first_and_its_remedy_below_it() -> None:
    found = [
        Check("fine", "host").ok("42 MiB"),
        Check("bad", "t").error("gone", "init"),
    ]
    assert list(as_lines(findings.summed_up(found))) == [
        "error  bad   t     gone",
        "       → init",
        "ok     fine  host  42 MiB",
        "errors: 1, warnings: 0, ok: 1",
    ]
    shown = findings.summed_up(found).as_json()
    assert (shown["ok"], shown["errors"], shown["warnings"]) == (False, 1, 0)
    assert [row["code"] for row in shown["findings"]] == ["bad", "fine"]


def test_a_remedy_that_findings_share_is_printed_once() -> None:
    def durability(topic: str, found: str, remedy: str) -> DoctorFinding:
        return Check("durability", topic).warning(found, remedy)

    found = [
        durability("a", "1 replica", "give each 3"),
        durability("b", "2 replicas", "set it to 2"),
        durability("c", "1 replica", "give each 3"),
        Check("durability", "d").error("no leader", "give each 3"),
    ]
    assert list(as_lines(findings.summed_up(found))) == [
        "error    durability  d  no leader",
        "         → give each 3",
        "warning  durability  a  1 replica",
        "warning  durability  c  1 replica",
        "         → give each 3",
        "warning  durability  b  2 replicas",
        "         → set it to 2",
        "errors: 1, warnings: 3, ok: 0",
    ]
    remedies = [row["remedy"] for row in findings.summed_up(found).as_json()["findings"]]
    assert all(remedies), "programs find it in each"


def test_a_remedy_is_only_for_what_needs_one() -> None:
    check = Check("c", "s")
    assert check.of("ok", "f", "r") == check.ok("f")
    assert check.ok("f").remedy == ""
    assert check.of("warning", "f", "r") == check.warning("f", "r")


def test_the_documentation_names_every_finding() -> None:
    sources = "".join(path.read_text() for path in Path(doctor.__path__[0]).glob("*.py"))
    codes = set(re.findall(r'Check\("(\w+)"', sources))
    named = codes | {UNREACHABLE, findings.REFUSES}
    assert len(named) > 25
    text = (DOCS / "kafka.md").read_text()
    section = text.split("## What `duewheel doctor` finds")[1].split("\n## ")[0]
    documented = {
        code
        for row in re.findall(r"\| (`[^|]*) \|$", section, re.MULTILINE)
        for code in re.findall(r"`(\w+)`", row)
    }
    assert documented == named
