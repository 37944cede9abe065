"""The page of a proof shows its faults, and needs nothing else."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from duewheel.doctor.findings import Check
from duewheel.prove.measures import START, Interruption, Measures, OverTime, Quantiles
from duewheel.prove.plan import ProofPlan
from duewheel.prove.report import GUARANTEES, headline, page, summary
from duewheel.prove.result import ProofResult
from duewheel.prove.verdict import FAULTS, ProofVerdict

BEGIN_MS = 1_800_000_000_000
GOOD = ProofVerdict(
    delivered=900,
    rejected=15,
    expired=5,
    rolled=150,
    cancelled=80,
    replies=Counter(cancelled=80),
    chases=3,
    faults=Counter(),
    details=[],
)
RESULT = ProofResult(
    name="duewheel-prove-0123abcd",
    plan=ProofPlan(60, 1_000, 1, 7),
    started_ms=BEGIN_MS,
    took_s=81.5,
    verdict=GOOD,
    doubtful=0,
    measures=Measures(
        undisturbed=Quantiles(600, 40, 60, 80, 95, 99),
        disturbed=Quantiles(200, 900, 4_000, 4_900, 5_000, 5_000),
        at_once=Quantiles(40, 300, 400, 500, 500, 500),
        at_once_disturbed=Quantiles(60, 2_000, 3_000, 4_000, 4_000, 4_000),
        over_time=OverTime(
            1.0, [0.0, 100.0, 90.0], [0.0, 80.0, 99.0], [None, 41, 50], [None, 90, 99]
        ),
    ),
    interruptions=[
        Interruption(START, BEGIN_MS, BEGIN_MS + 9_000),
        Interruption("dequeue", BEGIN_MS + 30_000, BEGIN_MS + 33_500),
    ],
    stuck="",
    findings=[],
    own_ends=[],
    cluster=[
        Check("kafka_version", "broker 1").ok("its APIs are those of Kafka 4.3"),
        Check("topic_rights", "topic t").ok("READ"),
        Check("free_disk", "host").warning("3 GiB are free", "more room"),
        Check("progress", "shard 0 of 1").warning("none yet", "duewheel init"),
    ],
    settings={"app.id": "duewheel-prove-0123abcd", "kafka.client": {"sasl_plain_password": "**"}},
    versions={"duewheel": "0.1.0", "python": "3.11"},
    left=[],
)


class _Elements(HTMLParser):
    """Tags that are open at the end, and each value of an attribute that loads something."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loads: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in {"meta", "br", "path"}:
            self.open.append(tag)
        self.loads += [value or "" for name, value in attrs if name in {"src", "href", "style"}]

    def handle_endtag(self, tag: str) -> None:
        if tag != "path":
            assert self.open.pop() == tag


def faulty(fault: str, count: int = 3) -> ProofResult:
    verdict = replace(GOOD, faults=Counter({fault: count}), details=[f"{fault}: 0@17 <b>"])
    return replace(RESULT, verdict=verdict)


def test_a_good_page_is_whole_and_loads_nothing() -> None:
    text = page(RESULT)
    elements = _Elements(text)
    assert elements.open == [] and elements.loads == []
    assert not re.search(r"https?://|url\(|<script|@import|\$[a-z]", text)
    assert "The guarantees held" in text and "class=bad" not in text
    for shown in (
        headline(RESULT),
        "99\u00a0ms",
        "kill -9 of dequeue",
        "3.5 s",
        "Kafka 4.3",
        "0.1.0",
    ):
        assert shown in text
    assert RESULT.plan.command in text
    assert "topic t" not in text  # a right that is granted
    assert text.count("<svg") == 3 and "prefers-color-scheme: dark" in text


def test_the_rows_of_lateness_have_all_deliveries() -> None:
    counts = re.findall(r"<tr><td>[^<]*</td><td>(\d+)</td><td>[\d,]+\u00a0ms</td>", page(RESULT))
    assert len(counts) == 4 and sum(map(int, counts)) == GOOD.delivered


def test_findings_have_their_severity_and_none_is_the_proofs_own() -> None:
    text = page(RESULT)
    assert "<tr><td>ok</td><td>broker 1</td><td>its APIs are those of Kafka 4.3</td></tr>" in text
    assert "<tr><td>warning</td><td>host</td><td>3 GiB are free</td></tr>" in text
    assert "shard 0 of 1" not in text  # a proof examines before its shard begins


def test_each_fault_has_its_line() -> None:
    assert set(GUARANTEES) == set(FAULTS)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_turns_the_verdict(fault: str) -> None:
    result = faulty(fault)
    assert RESULT.ok and not result.ok and not result.as_json()["ok"]
    assert result.as_json()["faults"][fault.replace(" ", "_")] == 3
    text = page(result)
    assert "did NOT hold" in text
    assert f"<tr class=bad><td>{GUARANTEES[fault]}</td><td>3</td></tr>" in text
    assert f"{fault}: 0@17 &lt;b&gt;" in text


@pytest.mark.parametrize(
    "bad",
    [
        replace(faulty("lost"), stuck="no deliveries after 300 s"),
        replace(RESULT, verdict=replace(GOOD, delivered=0)),
    ],
)
def test_a_proof_that_was_not_carried_through_proves_nothing(bad: ProofResult) -> None:
    assert not bad.ok and bad.stuck in page(bad)
    assert "Nothing was proved" in page(bad) and "did NOT hold" not in page(bad)


def test_what_had_not_arrived_when_a_proof_was_broken_off_is_no_loss() -> None:
    bad = replace(faulty("lost"), stuck="no deliveries since the first start\nlog line")
    assert f"<tr><td>{GUARANTEES['lost']}</td><td>not judged</td></tr>" in page(bad)
    assert "class=bad" not in page(bad)
    assert summary(bad) == "failed: no deliveries since the first start"


def test_the_summary_has_the_verdict() -> None:
    assert summary(RESULT) == f"holds: {headline(RESULT)}"
    assert summary(faulty("lost")).startswith("FAILS: ")


def test_a_damaged_file_turns_the_verdict() -> None:
    bad = replace(RESULT, findings=["hour 3: checksum"])
    assert not bad.ok
    assert "hour 3: checksum" in page(bad) and "did NOT hold" in page(bad)


def test_topics_that_are_left_are_named() -> None:
    assert "duewheel-prove-0123abcd.timers" in page(
        replace(RESULT, left=["duewheel-prove-0123abcd.timers"])
    )


def test_a_fault_that_never_ended_is_shown() -> None:
    stuck = [RESULT.interruptions[0], Interruption("data", BEGIN_MS + 30_000)]
    assert "<td>never</td>" in page(replace(RESULT, interruptions=stuck))
