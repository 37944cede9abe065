"""An audit's verdicts: Great Expectations itself against the rules and ingest, over records."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.harness.source_table import SourceRow, as_table, read_records
from tests.harness.timer_rows import suite_parameters

from duewheel.api.audit import Disagreement
from duewheel.audit import data_docs
from duewheel.audit.expectations import EXAMPLES_MAX, GreatExpectations, Tally
from duewheel.audit.topic_suites import TopicSuites
from duewheel.audit.validation import AuditValidator
from duewheel.checkpoints.config_epochs import Epochs
from duewheel.errors import ConfigError, DuewheelError
from duewheel.schemas.request.acceptance_rules import Rule, compile_suite, load_suite
from duewheel.schemas.request.parser import Contract
from duewheel.schemas.request.topic_settings import TopicContract
from duewheel.schemas.wire.kafka_records import KafkaRecords

TOPIC = "orders.delayed"
NOW_MS = 1_800_000_000_000
ACROSS = {"rows_min": 1, "rejected_max": 0.1, "timestamp_step_min_ms": -1_000}

Headers = list[tuple[str, str]]
DAY: Headers = [("TIMER_DELAY_SEC", "86400")]
SOON: Headers = [("TIMER_DELAY_MS", "5")]
NEVER: Headers = []
BROKEN: Headers = [("DELAY", "soon")]
TOO_FAR: Headers = [("TIMER_DELAY_SEC", "86401")]

_calls: list[str] = []
_armed = False


def _listen(event: str, arguments: tuple[object, ...]) -> None:
    # Clients of earlier tests of this process may still look for their brokers.
    if (
        _armed
        and event in {"socket.connect", "socket.getaddrinfo", "socket.sendto"}
        and "127.0.0.1" not in str(arguments)
    ):
        _calls.append(f"{event}{arguments}")


sys.addaudithook(_listen)


@pytest.fixture(scope="module")
def library() -> Iterator[GreatExpectations]:
    """Set up, and used, while every attempt to reach somebody is written down."""
    global _armed  # noqa: PLW0603
    _armed = True
    yield GreatExpectations()
    _armed = False


def contract(max_delay_ms: int = 86_400_000, *, alter: Rule | None = None) -> Contract:
    """One of a plain topic; `alter` takes the place of the compiled rule of its column."""
    parameters = suite_parameters(max_delay_ms=max_delay_ms, forbidden_targets=[TOPIC])
    rules = compile_suite(load_suite(), parameters)
    if alter is not None:
        changed = tuple(alter if rule.column == alter.column else rule for rule in rules.rules)
        rules = replace(rules, rules=changed)
    topics = {name: TopicContract(target="orders") for name in (TOPIC, "evil")}
    return Contract((1_000,), topics, "dlq", rules)


def records(
    rows: list[Headers],
    first: int = 0,
    step_ms: int = 1,
    partition: int = 0,
    topic: str = TOPIC,
) -> KafkaRecords:
    """As Spark gives them."""
    return read_records(
        as_table(
            [
                SourceRow(
                    first + row,
                    NOW_MS + step_ms * row,
                    [(name, value.encode()) for name, value in headers],
                    partition,
                    value=b"",
                    topic=topic,
                )
                for row, headers in enumerate(rows)
            ]
        )
    )


def judge(library: GreatExpectations, *contracts: Contract, epochs: Epochs | None = None) -> Any:
    none = TopicSuites({})
    return AuditValidator(epochs or Epochs.first({}), contracts or (contract(),), library, none)


def by_epoch(audit: AuditValidator) -> dict[str, list[Tally]]:
    return {f"epoch-{number}": totals for number, totals in audit.rules.items()}


def by_code(totals: list[Tally]) -> dict[str, Tally]:
    return {each.expectation["meta"]["code"]: each for each in reversed(totals)}


def test_a_dead_letter_that_waits_is_judged_as_its_first_copy_was(
    library: GreatExpectations,
) -> None:
    """Not again: of what it says now some rules would think otherwise."""
    waits = [
        ("TIMER_ORIGIN", "1"),
        ("TIMER_NOT_BEFORE_MS", f"{NOW_MS}"),
        ("TIMER_RETRIES", "1"),
        ("TIMER_DEAD_LETTER", ""),
    ]
    audit = judge(library)
    audit.take(records([DAY, TOO_FAR, [*TOO_FAR, *waits], [*DAY, *waits]]))
    audit.take(records([[*DAY, *waits]], first=4))
    assert (audit.disagreements.count, audit.rows) == (0, 2)
    assert audit.rejected == {"delay_too_long": 1}


def test_suite_rules_and_ingest_agree_and_everything_is_counted(
    library: GreatExpectations,
) -> None:
    audit = judge(library)
    audit.take(records([DAY, NEVER, BROKEN, SOON]))
    audit.take(records([TOO_FAR, SOON, [("REAL_TOPIC", "a b"), *SOON]], first=4))
    audit.take(records([]))
    audit.take(records([SOON], first=9))
    assert audit.disagreements.count == 0
    assert audit.rows == 8
    assert audit.rejected == {
        "no_due_time": 1,
        "bad_header": 1,
        "delay_too_long": 1,
        "bad_target_topic": 1,
    }
    too_long = by_code(audit.rules[0])["delay_too_long"]
    assert (too_long.rows, too_long.nulls, too_long.failed, too_long.success) == (8, 2, 1, False)
    assert too_long.examples == [(f"{TOPIC}-0@4", 86_401_000)]
    assert "allows 86400000 ms" in too_long.result().reason


def test_each_row_is_judged_by_the_settings_of_its_epoch(library: GreatExpectations) -> None:
    epochs = Epochs.first({}).extended_by({}, {(TOPIC, 0): 2})
    audit = judge(library, contract(max_delay_ms=1), contract(), epochs=epochs)
    audit.take(records([SOON, SOON, SOON, DAY]))
    assert audit.disagreements.count == 0
    assert audit.rejected == {"delay_too_long": 2}
    failed = {n: by_code(totals)["delay_too_long"].failed for n, totals in audit.rules.items()}
    assert failed == {0: 2, 1: 0}


def altered(*, passes: bool) -> Rule:
    """The rule of the longest delay, compiled to something else: all rows pass, or none."""
    compiled = contract().rules.rules
    (rule,) = [rule for rule in compiled if rule.column == "delay_ms"]

    def verdicts(values: Any) -> Any:
        # A contract tries its rules with a delay of 0.
        return pa.array([passes or value.as_py() == 0 for value in values])

    return replace(rule, predicate=verdicts)


def test_a_rule_that_lets_pass_what_the_suite_does_not_is_told(library: GreatExpectations) -> None:
    audit = judge(library, contract(alter=altered(passes=True)))
    audit.take(records([SOON, TOO_FAR]))
    source = f"{TOPIC}-0@1"
    assert audit.disagreements.count == 2
    assert audit.disagreements.first == [
        Disagreement(
            source=source, code="delay_too_long", suite=True, other=False, by="compiled rules"
        ),
        Disagreement(source=source, code="delay_too_long", suite=True, other=False, by="ingest"),
    ]


def test_a_rule_that_rejects_what_the_suite_does_not_is_told(library: GreatExpectations) -> None:
    audit = judge(library, contract(alter=altered(passes=False)))
    audit.take(records([SOON] * (EXAMPLES_MAX + 5)))
    assert audit.disagreements.count == 2 * (EXAMPLES_MAX + 5)
    assert len(audit.disagreements.first) == EXAMPLES_MAX
    first = Disagreement(
        source=f"{TOPIC}-0@0", code="delay_too_long", suite=False, other=True, by="compiled rules"
    )
    assert audit.disagreements.first[0] == first


def test_ingest_must_give_the_reason_of_the_first_rule(library: GreatExpectations) -> None:
    """The verdicts are right, and only their order is not: a row with two faults is told."""
    known = contract()
    turned = replace(known.rules, rules=known.rules.rules[::-1])
    # The suite stands in its own order; what ingest does follows the turned rules.
    suite = {"expectations": known.rules.suite["expectations"][::-1]}
    agreed = judge(library, replace(known, rules=replace(turned, suite=suite)))
    agreed.take(records([[("REAL_QID", "x"), *BROKEN]]))
    assert agreed.disagreements.count == 0
    assert agreed.rejected == {"bad_target_partition": 1}


def test_rules_that_word_a_refusal_alike_are_one_reason(library: GreatExpectations) -> None:
    suite = load_suite()
    for each in suite["expectations"]:
        each["meta"] = {"code": "bad", "reason": "it is bad"}
    known = contract()
    alike = compile_suite(suite, known.rules.parameters)
    audit = judge(library, replace(known, rules=alike))
    audit.take(records([NEVER, BROKEN, TOO_FAR, SOON]))
    assert audit.disagreements.count == 0
    assert audit.rejected == {"bad": 3}


def test_across_rows(library: GreatExpectations) -> None:
    named: Headers = [("UNIQ_KEY", "42"), *SOON]
    audit = judge(library)
    audit.take(records([named, SOON, BROKEN], step_ms=-600))
    audit.take(records([named, named], first=10, step_ms=-2_000))
    audit.take(records([named], first=11, partition=1))
    audit.take(records([SOON], first=20).take(np.array([0, 0])))
    found = by_code(audit.across_rows(ACROSS, library.check))
    failing = {code for code, tally in found.items() if not tally.success}
    assert failing == {"too_many_rejected", "offsets_fall", "timestamps_fall", "ids_again"}
    assert found["too_few_rows"].observed == 8
    assert [source for source, _ in found["too_many_rejected"].examples] == [f"{TOPIC}-0@2"]
    assert [source for source, _ in found["timestamps_fall"].examples] == [f"{TOPIC}-0@11"]
    assert [source for source, _ in found["offsets_fall"].examples] == [f"{TOPIC}-0@20"]
    assert [source for source, _ in found["disagreement"].examples] == []
    again = [source for source, _ in found["ids_again"].examples]
    assert again == [f"{TOPIC}-0@0", f"{TOPIC}-0@10", f"{TOPIC}-0@11", f"{TOPIC}-1@11"]


def test_cancels_and_copies_share_an_id_with_their_timer(library: GreatExpectations) -> None:
    named: Headers = [("UNIQ_KEY", "42"), *SOON]
    audit = judge(library)
    audit.take(
        records(
            [
                named,
                [("TIMER_RESCHEDULE", "true"), *named],
                [("TIMER_DEL_UNIQKEY", "42")],
                [("TIMER_ORIGIN", "0"), ("TIMER_ROLL_TIMES", "1"), *named],
            ]
        )
    )
    assert by_code(audit.across_rows(ACROSS, library.check))["ids_again"].success
    assert (audit.disagreements.count, audit.rejected) == (0, {})


def test_a_name_of_any_size_is_kept_and_checked_short(library: GreatExpectations) -> None:
    """The library copies each value dozens of times, and a result stays for many audits."""
    sizes = list[int]()

    class Watched:
        def check(self, suite: Any, parameters: Any, table: pa.Table) -> Any:
            sizes.extend(map(len, filter(None, table.column("target_topic").to_pylist())))
            return library.check(suite, parameters, table)

    audit: Any = judge(Watched())  # type: ignore[arg-type]
    wrong = ["&" * 5_000, "a" * 5_000, "a" * 400 + "&", "__" + "a" * 5_000, "a" * 300, "a" * 250]
    audit.take(records([[("REAL_TOPIC", name), *SOON] for name in [*wrong, "a" * 249]]))
    assert (audit.disagreements.count, audit.rejected) == (0, {"bad_target_topic": len(wrong)})
    assert max(sizes) <= 300
    values = [value for tally in audit.rules[0] for _, value in tally.examples]
    assert max(len(value) for value in values) == 201
    assert "a" * 200 + "…" in values


def test_too_many_rejected_of_one_topic(library: GreatExpectations) -> None:
    """Those of another neither hide them nor are part of the finding, which names the topic."""
    audit = judge(library)
    audit.take(records([SOON] * 50))
    audit.take(records([BROKEN, SOON, BROKEN, NEVER], topic="evil"))
    audit.take(records([SOON] * 38 + [BROKEN] * 2, first=50))
    audit.take(records([SOON, SOON, BROKEN], topic="evil", partition=1))
    found = by_code(audit.across_rows(ACROSS, library.check))["too_many_rejected"]
    assert (found.success, found.failed, found.observed) == (False, 4, "evil")
    assert found.examples == [
        ("evil-0@0", "evil: bad_header"),
        ("evil-0@2", "evil: bad_header"),
        ("evil-0@3", "evil: no_due_time"),
        ("evil-1@2", "evil: bad_header"),
    ]


@pytest.mark.parametrize(("rows", "most", "ok"), [(100, 0.29, True), (99, 0.29, False)])
def test_the_bound_of_rejected_rows_is_exact(
    library: GreatExpectations, rows: int, most: float, ok: bool
) -> None:
    audit = judge(library)
    audit.take(records([BROKEN] * 29 + [SOON] * (rows - 29)))
    found = by_code(audit.across_rows({**ACROSS, "rejected_max": most}, library.check))
    assert found["too_many_rejected"].success == ok


def test_a_range_without_messages(library: GreatExpectations) -> None:
    found = by_code(judge(library).across_rows(ACROSS, library.check))
    assert {code for code, tally in found.items() if not tally.success} == {"too_few_rows"}


def test_what_cannot_be_checked_is_said(library: GreatExpectations) -> None:
    suite = load_suite("audit")
    with pytest.raises(DuewheelError, match="expect_column_values_to_be_null cannot be checked"):
        library.check(suite, ACROSS, pa.table({"offset_step": [1]}))


@pytest.fixture(scope="module")
def project(
    library: GreatExpectations, tmp_path_factory: pytest.TempPathFactory
) -> tuple[GreatExpectations, Path]:
    """A file context, which is then the current one: `library` is used no more."""
    folder = tmp_path_factory.mktemp("project")
    return GreatExpectations(folder), folder


def keep(project: GreatExpectations, audit: Any, number: int, most: int = 9) -> dict[str, Tally]:
    """Keeps an audit's results as `duewheel audit` does."""
    run = data_docs.run_of(f"audit-{number}", NOW_MS + number)
    data_docs.keep(project, "rules", run, by_epoch(audit))
    data_docs.remove_old(project, ("rules", "rows"), run, most)
    return by_code(audit.across_rows(ACROSS, partial(project.run_checkpoint, "rows", run)))


def pages(folder: Path) -> dict[str, str]:
    site = folder / "gx" / "uncommitted" / "data_docs" / "local_site"
    return {str(p.relative_to(site)): p.read_text() for p in site.rglob("*.html")}


def test_data_docs_quote_what_strangers_wrote(project: tuple[GreatExpectations, Path]) -> None:
    library, folder = project
    audit = judge(library)
    audit.take(records([[("REAL_TOPIC", "<script>alert(1)</script>"), *SOON]]))
    keep(library, audit, 0)
    (page,) = (
        text for name, text in pages(folder).items() if "audit-0" in name and "rules" in name
    )
    assert f"{TOPIC}-0@0" in page
    assert "values must not match this regular expression" in page
    assert "alert(1)" in page
    assert "<script>alert(1)" not in page
    assert "audit-0" in pages(folder)["index.html"]
    assert data_docs.sites(library)[0].endswith("/index.html")


def test_the_checkpoint_fails_over_a_disagreement(
    project: tuple[GreatExpectations, Path],
) -> None:
    library, folder = project
    audit = judge(library, contract(alter=altered(passes=True)))
    audit.take(records([SOON, TOO_FAR, SOON]))
    found = keep(library, audit, 1)
    assert not found["disagreement"].success
    assert found["disagreement"].examples == [(f"{TOPIC}-0@1", "delay_too_long")]
    assert [found["too_few_rows"].observed, found["too_many_rejected"].failed] == [3, 0]
    (page,) = (text for name, text in pages(folder).items() if "audit-1" in name and "rows" in name)
    assert "delay_too_long" in page


def test_the_newest_audits_are_kept(project: tuple[GreatExpectations, Path]) -> None:
    """With their pages; the results of others in the same project stay."""
    library, folder = project
    audit = judge(library)
    audit.take(records([SOON]))
    foreign = data_docs.run_of("foreign", NOW_MS - 9)
    data_docs.keep(library, "others", foreign, by_epoch(audit))
    keep(library, judge(library), 10, most=3)  # of no rows
    for number in (11, 12):
        keep(library, audit, number, most=3)
    results = folder / "gx" / "uncommitted" / "validations"
    runs = {str(path.relative_to(results)).split("/")[1] for path in results.rglob("*.json")}
    assert runs == {"audit-10", "audit-11", "audit-12", "foreign"}
    kept = {name.split("/")[2] for name in pages(folder) if name.startswith("validations")}
    assert kept == runs


def test_an_owner_adds_actions_to_the_checkpoint(project: tuple[GreatExpectations, Path]) -> None:
    """And an audit leaves them."""
    library, _ = project
    audit = judge(library)
    keep(library, audit, 20)
    checkpoint = library.context.checkpoints.get("rows")
    checkpoint.result_format = "BASIC"
    checkpoint.save()
    keep(library, audit, 21)
    assert library.context.checkpoints.get("rows").result_format == "BASIC"


def test_a_project_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    (tmp_path / "gx").mkdir()
    (tmp_path / "gx" / "great_expectations.yml").write_text("config_version: [\n")
    with pytest.raises(ConfigError, match=r"Great Expectations' project in .* cannot be used"):
        GreatExpectations(tmp_path)


def test_nobody_is_called(project: tuple[GreatExpectations, Path]) -> None:
    """In everything above, from the import of the library on."""
    keep(project[0], judge(project[0]), 30)
    assert _calls == []
