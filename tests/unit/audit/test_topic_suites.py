"""The operator's own expectations about the messages of a timer topic."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.harness.schema_registry import ORDER_AVRO, avro, framed, schema_registry
from tests.harness.source_table import SourceRow, as_table, read_records
from tests.harness.timer_rows import suite_parameters

from duewheel.audit import data_docs, topic_suites
from duewheel.audit.expectations import GreatExpectations
from duewheel.audit.topic_suites import TopicSuites
from duewheel.audit.validation import AuditValidator
from duewheel.checkpoints.config_epochs import Epochs
from duewheel.config.keys_and_defaults import RegistrySection
from duewheel.errors import ConfigError
from duewheel.registry.values import Decoded, RegistryValues
from duewheel.schemas.request.acceptance_rules import compile_suite, load_suite
from duewheel.schemas.request.parser import Contract
from duewheel.schemas.request.topic_settings import TopicContract

TOPIC = "orders.delayed"
NOW_MS = 1_800_000_000_000
SOON = ("TIMER_DELAY_MS", "5")

Message = tuple[bytes | None, bytes | None, list[tuple[str, str]]]
Checked = dict[str, tuple[bool, list[str]]]


@pytest.fixture(scope="module")
def library() -> GreatExpectations:
    return GreatExpectations()


@pytest.fixture
def suite_file(tmp_path: Path) -> Callable[..., Path]:
    def written(*expectations: Any) -> Path:
        path = tmp_path / "orders.json"
        path.write_text(json.dumps({"name": "orders", "expectations": expectations}))
        return path

    return written


def expectation(kind: str, **kwargs: Any) -> dict[str, Any]:
    return {"type": f"expect_{kind}", "kwargs": kwargs}


def validator(library: GreatExpectations, own: TopicSuites) -> AuditValidator:
    rules = compile_suite(load_suite(), suite_parameters(forbidden_targets=[TOPIC]))
    topics = {name: TopicContract(target="orders") for name in (TOPIC, "others")}
    contract = Contract((1_000,), topics, "dlq", rules)
    return AuditValidator(Epochs.first({}), (contract,), library, own)


def take(audit: AuditValidator, *messages: Message, topic: str = TOPIC, first: int = 0) -> None:
    rows = [
        SourceRow(
            first + place,
            NOW_MS,
            [(name, text.encode()) for name, text in [SOON, *headers]],
            0,
            key=key,
            value=value,
            topic=topic,
        )
        for place, (key, value, headers) in enumerate(messages)
    ]
    audit.take(read_records(as_table(rows)))


def orders(*values: bytes | None) -> list[Message]:
    return [(b"k", value, []) for value in values]


def checked(own: TopicSuites, library: GreatExpectations) -> Checked:
    """By expectation: whether it holds, and the sources of the rows that fail."""
    (results,) = ([each.result() for each in suite] for suite in own.check(library).values())
    return {each.code: (each.success, each.examples) for each in results}


def test_a_suite_sees_key_headers_and_fields_of_the_value(
    library: GreatExpectations, suite_file: Callable[..., Path]
) -> None:
    path = suite_file(
        expectation("column_values_to_not_be_null", column="key"),
        expectation("column_values_to_be_in_set", column="header.kind", value_set=["a", "b"]),
        expectation("column_values_to_be_between", column="value.order.total", min_value=0),
        expectation(
            "column_values_to_not_be_null",
            column="value.mail",
            row_condition='col("value.order.total") > 5',
            condition_parser="great_expectations",
        ),
    )
    own = TopicSuites({TOPIC: path})
    audit = validator(library, own)
    take(
        audit,
        (b"1", b'{"order": {"total": 7}, "mail": "m"}', [("kind", "c"), ("kind", "a")]),
        (None, b'{"order": {"total": -1}}', [("kind", "b")]),
        (b"\xff", b'{"order": {"total": 6}}', [("kind", "<b>")]),
        (b"4", b"no JSON", []),
    )
    take(audit, (b"5", b'{"order": {"total": -2}}', []), first=10)
    take(audit, (None, b"{}", [("kind", "c")]), topic="others")
    assert {name: sources for name, (_, sources) in checked(own, library).items()} == {
        "expect_column_values_to_not_be_null(key)": [f"{TOPIC}-0@1", f"{TOPIC}-0@2"],
        "expect_column_values_to_be_in_set(header.kind)": [f"{TOPIC}-0@2"],
        "expect_column_values_to_be_between(value.order.total)": [f"{TOPIC}-0@1", f"{TOPIC}-0@10"],
        "expect_column_values_to_not_be_null(value.mail)": [f"{TOPIC}-0@2"],
    }


def test_only_accepted_timers_are_rows_and_each_is_one(
    library: GreatExpectations, suite_file: Callable[..., Path]
) -> None:
    path = suite_file(
        expectation("table_row_count_to_equal", value=2),
        expectation("column_values_to_be_unique", column="value"),
        expectation("column_mean_to_be_between", column="value.n", min_value=3, max_value=3),
    )
    own = TopicSuites({TOPIC: path})
    copy = [("TIMER_ORIGIN", "0"), ("TIMER_ROLL_TIMES", "1")]
    take(
        validator(library, own),
        (b"k", b'{"n": 2}', []),
        (b"k", b'{"n": 2}', copy),
        (b"k", b'{"n": 9}', [("REAL_TOPIC", "a b")]),
        (b"k", b'{"n": 4}', []),
        (b"k", b'{"n": 8}', [("TIMER_DEL_UNIQKEY", "1")]),
    )
    assert all(success for success, _ in checked(own, library).values())


@pytest.mark.parametrize(
    "values",
    [
        [b'{"n": 1}', b'{"n": "one"}', b'{"n": true}', b'{"n": [1]}', b'{"n": {"a": 1}}'],
        [b'{"n": 1%s}' % (b"0" * 30), b'{"n": 1}', b'{"n": 1}', b'{"n": 1}', b'{"n": 1}'],
        [b"[" * 100_000, b"1", b"null", None, b'{"n": NaN}'],
        [b'{"n": "\\ud800"}', *[b'{"n": "text"}'] * 4],
        [b'{"n": %s}' % (b"[" * depth + b"]" * depth) for depth in range(989, 994)],
        [b'{"n": 1152921504606846977}', b'{"n": 0.5}', *[b'{"n": 1%s}' % (b"0" * 400)] * 3],
    ],
)
def test_any_value_can_be_checked(
    library: GreatExpectations, suite_file: Callable[..., Path], values: list[bytes | None]
) -> None:
    unique = expectation("column_values_to_match_regex", column="value.n", regex=".")
    own = TopicSuites({TOPIC: suite_file(unique, expectation("table_row_count_to_equal", value=5))})
    take(validator(library, own), *orders(*values))
    assert checked(own, library)["expect_table_row_count_to_equal"] == (True, [])


def test_a_topic_without_messages(
    library: GreatExpectations, suite_file: Callable[..., Path]
) -> None:
    """Nothing is reported as missing."""
    own = TopicSuites({TOPIC: suite_file(expectation("column_values_to_be_unique", column="key"))})
    assert checked(own, library) == {"expect_column_values_to_be_unique(key)": (True, [])}


def test_a_column_that_no_message_can_have(
    library: GreatExpectations, suite_file: Callable[..., Path]
) -> None:
    own = TopicSuites({TOPIC: suite_file(expectation("column_values_to_be_unique", column="kee"))})
    ((tally,),) = own.check(library).values()
    found = tally.result()
    assert (found.success, found.failed, found.examples) == (False, 0, [])
    assert "expect_column_values_to_be_unique cannot be checked" in found.observed


def test_a_key_has_no_fields(library: GreatExpectations, suite_file: Callable[..., Path]) -> None:
    own = TopicSuites({TOPIC: suite_file(expectation("column_to_exist", column="key.id"))})
    take(validator(library, own), *orders(b"{}"))
    assert checked(own, library) == {"expect_column_to_exist(key.id)": (False, [])}


@pytest.mark.parametrize("name", ["value.amuont", "value.order.id", "header.kindd", "value"])
def test_a_column_that_no_message_has_is_reported(
    library: GreatExpectations, suite_file: Callable[..., Path], name: str
) -> None:
    """Most expectations skip nulls. It may be an optional field, so the audit is not bad."""
    positive = expectation("column_values_to_be_in_set", column=name, value_set=["value.x"])
    own = TopicSuites({TOPIC: suite_file(positive)})
    headers = [("kind", "a")]
    null = name == "value"
    values = [None if null else b'{"amount": -1, "order": 7}'] * 2
    take(validator(library, own), *[(None, value, headers) for value in values])
    (totals,) = own.check(library).values()
    first, second = (tally.result() for tally in totals)
    assert first.success
    assert (second.code, second.column) == (f"expect_column_to_exist({name})", name)
    assert (second.success, second.severity) == (False, "warning")
    assert (second.rows, second.failed) == (2, 0)
    assert second.reason == "no message of the range has it"


def test_a_column_in_a_condition_is_reported_likewise(
    library: GreatExpectations, suite_file: Callable[..., Path]
) -> None:
    path = suite_file(
        expectation(
            "column_values_to_not_be_null",
            column="value.mail",
            row_condition='col("value.tottal") > 5',
            condition_parser="great_expectations",
        ),
        expectation("column_pair_values_to_be_equal", column_A="value.mail", column_B="value.male"),
    )
    own = TopicSuites({TOPIC: path})
    take(validator(library, own), *orders(b'{"total": 7, "mail": "m"}'))
    reported = {"expect_column_to_exist(value.tottal)", "expect_column_to_exist(value.male)"}
    assert reported <= {code for code, (ok, _) in checked(own, library).items() if not ok}


def test_a_column_that_must_exist_is_a_finding_of_that_expectation(
    library: GreatExpectations, suite_file: Callable[..., Path]
) -> None:
    own = TopicSuites(
        {
            TOPIC: suite_file(
                expectation("column_to_exist", column="value.amuont"),
                expectation("column_to_exist", column="value.amount"),
                expectation("column_values_to_be_between", column="value.amuont", min_value=0),
            )
        }
    )
    take(validator(library, own), *orders(b'{"amount": 1}', b"{}"))
    results = [each.result() for each in own.check(library)[TOPIC]]
    assert [each.success for each in results] == [False, True, True]
    assert results[0].severity == "critical"
    assert results[0].observed == "no message of the range has it"


def test_a_column_that_must_be_null_may_be(
    library: GreatExpectations, suite_file: Callable[..., Path]
) -> None:
    null = expectation("column_values_to_be_null", column="value.password")
    own = TopicSuites({TOPIC: suite_file(null)})
    take(validator(library, own), *orders(b'{"n": 1}', b"{}"))
    assert checked(own, library) == {"expect_column_values_to_be_null(value.password)": (True, [])}


@pytest.mark.parametrize("name", ["", "\0\0\0\0\1"])
def test_values_that_name_a_schema_without_a_registry_are_the_cause(
    library: GreatExpectations, suite_file: Callable[..., Path], name: str
) -> None:
    path = suite_file(
        expectation("column_values_to_be_between", column="value.number", max_value=9),
        expectation("column_values_to_match_regex", column="header.x", regex="x"),
    )
    own = TopicSuites({TOPIC: path})
    value, headers = framed(1, avro({"number": 5})), list[tuple[str, str]]()
    if name:
        value, headers = value[5:], [("__value_schema_id", name)]
    take(validator(library, own), (b"k", value, headers))
    results = {each.result().column: each.result().reason for each in own.check(library)[TOPIC][2:]}
    missing = "no message of the range has it"
    schema = f"{missing}; values name a schema, and registry.url is not set"
    assert results == {"value.number": schema, "header.x": missing}


def test_the_suite_of_the_page_finds_what_the_page_says(
    library: GreatExpectations, tmp_path: Path
) -> None:
    page = (Path(__file__).parents[3] / "docs" / "operations.md").read_text("utf-8")
    (suite,) = re.findall(r'^```json\n({"expectations".*?)^```$', page, re.MULTILINE | re.DOTALL)
    path = tmp_path / "orders.json"
    path.write_text(suite)
    own = TopicSuites({TOPIC: path})
    take(validator(library, own), *orders(b'{"customer": "c"}', b'{"order": 1}'))
    assert checked(own, library) == {
        "expect_column_values_to_not_be_null(value.customer)": (False, [f"{TOPIC}-0@1"])
    }


def test_a_value_of_another_type_spoils_the_check_of_no_other(
    library: GreatExpectations, suite_file: Callable[..., Path]
) -> None:
    between = expectation("column_values_to_be_between", column="value.n", min_value=0, max_value=9)
    own = TopicSuites({TOPIC: suite_file(between)})
    values = [b'{"n": 3}', b'{"n": "x"}', b'{"n": 11}', b'{"n": true}', b'{"n": 4.5}', b"{}"]
    take(validator(library, own), *orders(*values))
    assert checked(own, library) == {
        "expect_column_values_to_be_between(value.n)": (False, [f"{TOPIC}-0@2"]),
        "expect_column_values_to_be_of_type(value.n)": (
            False,
            [f"{TOPIC}-0@1", f"{TOPIC}-0@3"],
        ),
    }


@pytest.mark.parametrize(
    ("kind", "bounds"),
    [
        ("column_values_to_be_between", {"min_value": 0}),  # most values are text
        ("column_values_to_be_uniq", {}),  # there is none of this name
    ],
)
def test_an_expectation_that_cannot_be_checked_ends_no_audit(
    library: GreatExpectations, suite_file: Callable[..., Path], kind: str, bounds: dict[str, int]
) -> None:
    wrong = expectation(kind, column="value.n", **bounds)
    unique = expectation("column_values_to_be_unique", column="value.n")
    own = TopicSuites({TOPIC: suite_file(wrong, unique)})
    take(validator(library, own), *orders(b'{"n": "a"}', b'{"n": "b"}'))
    (totals,) = own.check(library).values()
    first, second = (tally.result() for tally in totals)
    assert (first.success, second.success) == (False, True)
    assert f"expect_{kind} cannot be checked" in first.observed


@pytest.mark.parametrize(
    "wrong",
    [
        {"colum": "value.n"},
        {"column": "value.n", "mostly": 7},
        {"column": "value.n", "mostly": {"$PARAMETER": "name"}},
        {
            "column": "value.n",
            "row_condition": "value.n >",
            "condition_parser": "great_expectations",
        },
    ],
)
def test_a_wrong_argument_is_a_finding_of_its_expectation(
    suite_file: Callable[..., Path], tmp_path: Path, wrong: dict[str, Any]
) -> None:
    library = GreatExpectations(tmp_path)
    not_null = expectation("column_values_to_not_be_null", **wrong)
    path = suite_file(not_null, expectation("column_values_to_be_unique", column="value.n"))
    own = TopicSuites({TOPIC: path, "others": path})
    audit = validator(library, own)
    take(audit, *orders(b'{"n": 1}', b'{"n": 1}'))
    take(audit, *orders(b'{"n": 1}', b'{"n": 1}'), topic="others")
    by_topic = own.check(library)
    assert set(by_topic) == {TOPIC, "others"}
    for topic, totals in by_topic.items():
        first, second = (tally.result() for tally in totals[:2])
        assert not first.success
        assert first.observed.startswith(
            f"{path}: expect_column_values_to_not_be_null cannot be checked: "
        )
        assert "\n" not in first.observed
        assert second.examples == [f"{topic}-0@0", f"{topic}-0@1"]
    data_docs.keep(library, "own", data_docs.run_of("audit-1", NOW_MS), by_topic)
    pages = [page.read_text() for page in tmp_path.rglob("*.html")]
    assert sum(f"{path}: expect_column" in page for page in pages) == 2


@pytest.mark.parametrize("severity", ["Critical", "loud", 5, ["critical"]])
def test_a_severity_that_there_is_not_is_a_critical_finding(
    library: GreatExpectations, suite_file: Callable[..., Path], severity: Any
) -> None:
    in_set = expectation("column_values_to_be_in_set", column="value.n", value_set=[2])
    path = suite_file({**in_set, "severity": severity}, {**in_set, "severity": "info"})
    own = TopicSuites({TOPIC: path})
    take(validator(library, own), *orders(b'{"n": 1}'))
    first, second = (tally.result() for tally in own.check(library)[TOPIC])
    assert (first.success, first.severity) == (False, "critical")
    assert "no such expectation" not in first.observed
    assert f"severity {severity!r}" in first.observed
    assert (second.success, second.severity) == (False, "info")


def test_an_expectation_that_cannot_be_checked_is_critical(
    library: GreatExpectations, suite_file: Callable[..., Path]
) -> None:
    wrong = expectation("column_values_to_not_be_null", colum="key")
    own = TopicSuites({TOPIC: suite_file({**wrong, "severity": "warning"})})
    take(validator(library, own), *orders(b"{}"))
    (first,) = (tally.result() for tally in own.check(library)[TOPIC])
    assert (first.success, first.severity) == (False, "critical")


@pytest.mark.parametrize(
    "content",
    [
        *(None, b"{", b"[]", b"{}", b'{"expectations": [{}]}', b'{"expectations": []}', b"\xff"),
        b'{"expectations": [{"type": "expect_column_to_exist", "kwargs": {"column": {}}}]}',
    ],
)
def test_a_file_that_is_no_suite_is_refused(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "orders.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(
        ConfigError, match=r'timer\.topic\."orders\.delayed"\.suite: .*orders\.json'
    ):
        TopicSuites({TOPIC: path})


def test_data_docs_quote_what_a_producer_wrote(
    suite_file: Callable[..., Path], tmp_path: Path
) -> None:
    text = "<script>alert(1)</script>"
    path = suite_file(
        expectation("column_values_to_be_in_set", column="value", value_set=["a"]),
        expectation("column_most_common_value_to_be_in_set", column="value", value_set=["a"]),
        expectation("column_values_to_be_unique", column="header.x"),
    )
    own = TopicSuites({TOPIC: path})
    library = GreatExpectations(tmp_path)
    take(validator(library, own), *orders(text.encode()))
    data_docs.keep(library, "own", data_docs.run_of("audit-1", NOW_MS), own.check(library))
    pages = [page.read_text() for page in (tmp_path / "gx").rglob("*.html") if "own" in str(page)]
    (page,) = [page for page in pages if f"{TOPIC}-0@0" in page]
    assert "alert(1)" in page
    assert "<script>alert(1)" not in page
    assert "no message of the range has it" in page


def test_what_a_producer_wrote_is_kept_short(
    library: GreatExpectations, suite_file: Callable[..., Path]
) -> None:
    """A result stays for many audits, and has the first values of each expectation."""
    size = 10_000
    path = suite_file(
        expectation("column_values_to_be_in_set", column="value.n", value_set=["a"]),
        expectation("column_most_common_value_to_be_in_set", column="value.n", value_set=["a"]),
        expectation("column_distinct_values_to_be_in_set", column="value.n", value_set=["a"]),
        expectation("column_values_to_be_in_set", column="value.i", value_set=[1]),
        expectation("column_values_to_be_dateutil_parseable", column="value.n"),
        expectation("column_mean_to_be_between", column="value.n", min_value=1),
    )
    own = TopicSuites({TOPIC: path})
    text = [b'{"n": "%s", "i": 1}' % (b"x" * size)] * 2
    odd = [
        b'{"n": 1%s, "i": "%s"}' % (b"0" * 4_000, b"y" * size),
        b'{"n": [%s 0]}' % (b"1," * size),
    ]
    take(validator(library, own), *orders(*text, *odd))
    (totals,) = own.check(library).values()
    assert any(tally.failed and tally.examples for tally in totals)
    for tally in totals:
        assert all(len(str(value)) <= 201 for _, value in tally.examples), tally
        assert len(str(tally.observed)) < 2_300, tally


def test_a_topic_of_large_values_is_checked_in_part(
    library: GreatExpectations, suite_file: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And its result has how many rows were not; a key that no expectation names is not kept."""
    monkeypatch.setattr(topic_suites, "COLUMNS_BYTES_MAX", 10_000)
    named = suite_file(
        expectation("table_row_count_to_equal", value=2),
        expectation("column_values_to_not_be_null", column="value.n"),
    )
    own = TopicSuites({TOPIC: named, "others": named})
    audit = validator(library, own)
    for number in range(4):
        take(audit, (b"k", b'{"n": ["%s"]}' % (b"x" * 6_000), []), first=number)
    for number in range(2):
        take(audit, (b"k" * 20_000, b'{"n": 1}', []), topic="others", first=number)
    by_topic = own.check(library)
    assert [tally.success for tally in by_topic["others"]] == [True, True]
    *checked_rows, skipped = (tally.result() for tally in by_topic[TOPIC])
    assert [each.success for each in checked_rows] == [True, True]
    assert (skipped.code, skipped.severity, skipped.success) == ("rows_skipped", "warning", False)
    assert (skipped.rows, skipped.failed) == (4, 2)


def test_values_are_decoded_of_the_rows_that_a_suite_skips(
    library: GreatExpectations, suite_file: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_suites, "COLUMNS_BYTES_MAX", 1)
    path = suite_file(expectation("column_values_to_not_be_null", column="value.number"))
    with schema_registry() as registry:
        registry.add(1, ORDER_AVRO)
        own = TopicSuites({TOPIC: path}, RegistryValues(RegistrySection(url=registry.url)))
        audit = validator(library, own)
        take(audit, *orders(framed(1, avro({"number": 5}))))
        take(audit, *orders(framed(1, b"\xff")), first=1)
        results = checked(own, library)
    assert results["value_not_decoded"] == (False, [f"{TOPIC}-0@1"])
    assert results["rows_skipped"] == (False, [])


class SlowValues(RegistryValues):
    """Those of a topic take the decoder too long after some; it forgets that after some more."""

    def __init__(self) -> None:
        self.topics = Counter[str]()

    def decoded(self, topic: str, headers: object, value: bytes | None) -> Decoded | None:
        if value == b"{}":
            return None
        self.topics[topic] += 1
        if self.topics[topic] == 3:
            return Decoded(None, None, "they take too long", out_of_time=True)
        return Decoded("{}", "AVRO schema 1", None)


def test_rows_that_the_decoder_has_no_time_for_are_no_finding_about_values(
    library: GreatExpectations, suite_file: Callable[..., Path]
) -> None:
    """They are counted, and none of that audit is decoded any more."""
    values = SlowValues()
    path = suite_file(expectation("column_values_to_be_null", column="value.n"))
    own = TopicSuites({TOPIC: path}, values, ["others"])
    audit = validator(library, own)
    take(audit, *orders(*[framed(1, b"")] * 5))
    take(audit, *orders(b"{}", framed(1, b""), b"{}"), first=5)
    take(audit, *orders(framed(1, b"")), topic="others")
    assert values.topics == {TOPIC: 3, "others": 1}
    by_topic = own.check(library)
    (of_suite, of_values) = (
        next(each for each in by_topic[TOPIC] if each.expectation["type"].endswith(end))
        for end in ("be_null", "json_parseable")
    )
    assert (of_suite.success, of_suite.rows) == (True, 3)
    assert (of_values.success, of_values.rows) == (True, 2)
    skipped = by_topic[TOPIC][-1].result()
    assert (skipped.code, skipped.severity, skipped.success) == ("rows_skipped", "warning", False)
    assert (skipped.rows, skipped.failed) == (8, 5)
    assert skipped.observed == "3 rows are checked, of 8: to decode all takes too long"
    assert all(tally.success for tally in by_topic["others"])


def test_fields_of_a_value_that_a_registry_decodes(
    library: GreatExpectations, suite_file: Callable[..., Path]
) -> None:
    """One that is not decoded is a finding, and no value of any field."""
    path = suite_file(
        expectation("column_values_to_be_between", column="value.number", max_value=9),
        expectation("column_values_to_match_regex", column="value", regex="number"),
    )
    with schema_registry() as registry:
        registry.add(1, ORDER_AVRO)
        own = TopicSuites({TOPIC: path}, RegistryValues(RegistrySection(url=registry.url)))
        audit = validator(library, own)
        bodies = [avro({"number": number}) for number in (5, 11)]
        take(
            audit,
            *orders(*(framed(1, body) for body in bodies), framed(1, b"\xff"), framed(2, b"")),
            *orders(b'{"number": 12}', None),
        )
        name = "\0\0\0\0\1"
        take(audit, (b"k", bodies[1], [("x", "y"), ("__value_schema_id", name)]), first=10)
        results = [each.result() for each in own.check(library)[TOPIC]]
    assert {each.code: each.examples for each in results} == {
        "expect_column_values_to_be_between(value.number)": [f"{TOPIC}-0@{n}" for n in (1, 4, 10)],
        "expect_column_values_to_match_regex(value)": [],
        "value_not_decoded": [f"{TOPIC}-0@2", f"{TOPIC}-0@3"],
        "registry_unavailable": [],
    }
    found, of_registry = results[-2:]
    assert of_registry.success
    assert (found.success, found.rows, found.failed) == (False, 5, 2)
    assert found.observed == (
        "the registry has no schema 2; "
        "the value does not fit AVRO schema 1 (it is cut off, or of another schema)"
    )


def test_a_registry_that_fails_is_no_finding_about_values(
    library: GreatExpectations, suite_file: Callable[..., Path]
) -> None:
    path = suite_file(expectation("column_values_to_not_be_null", column="value.number"))
    with schema_registry() as registry:
        registry.schemas["1"] = 401
        own = TopicSuites({TOPIC: path}, RegistryValues(RegistrySection(url=registry.url)))
        audit = validator(library, own)
        take(audit, *orders(framed(1, avro({"number": 5})), b'{"number": 12}'))
        take(audit, *orders(b"{}"), first=10)
        assert checked(own, library) == {
            "expect_column_values_to_not_be_null(value.number)": (False, [f"{TOPIC}-0@10"]),
            "value_not_decoded": (True, []),
            "registry_unavailable": (False, [f"{TOPIC}-0@0"]),
        }


def test_values_that_must_name_a_schema_are_decoded_without_a_suite(
    library: GreatExpectations, tmp_path: Path
) -> None:
    with schema_registry() as registry:
        registry.add(1, ORDER_AVRO)
        values = RegistryValues(RegistrySection(url=registry.url))
        own = TopicSuites({}, values, [TOPIC])
        take(validator(library, own), *orders(framed(1, avro({"number": 5})), framed(2, b"")))
        assert checked(own, library) == {
            "value_not_decoded": (False, [f"{TOPIC}-0@1"]),
            "registry_unavailable": (True, []),
        }
    kept = GreatExpectations(tmp_path)
    data_docs.keep(kept, "own", data_docs.run_of("audit-1", NOW_MS), own.check(library))
    pages = [page.read_text() for page in (tmp_path / "gx").rglob("*.html")]
    assert any(f"the registry has no schema 2 of {TOPIC}-0@1" in page for page in pages)
    assert TopicSuites({}, None, [TOPIC]).check(library) == {}
