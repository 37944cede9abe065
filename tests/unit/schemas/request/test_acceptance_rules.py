"""The compiled suite: same verdicts as Great Expectations, and suites that it cannot compile."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.harness.timer_rows import suite_parameters

from duewheel.audit.expectations import GreatExpectations, failing
from duewheel.errors import ConfigError
from duewheel.schemas.name_patterns import whole
from duewheel.schemas.request.acceptance_rules import Rules, compile_suite, load_suite
from duewheel.schemas.request.cancel_requests import IF_PENDING_DEFECTS, VERDICTS
from duewheel.schemas.request.recurrences import VERDICTS as RECURRENCE_VERDICTS
from duewheel.schemas.request.request_columns import DUE_NAMES, RULE_COLUMNS, UNSUPPORTED

PARAMETERS = suite_parameters(
    max_delay_ms=86_400_000,
    forbidden_targets=["orders.delayed", "dlq"],
    timer_topics=whole("a.b"),
)


def suite_of(*expectations: dict[str, Any]) -> dict[str, Any]:
    return {"name": "test", "expectations": list(expectations)}


def rule(kind: str, **kwargs: Any) -> dict[str, Any]:
    return {"type": f"expect_column_{kind}", "kwargs": kwargs, "meta": {"code": "c", "reason": "r"}}


EVERY_TYPE = suite_of(
    rule("values_to_not_be_null", column="target_topic"),
    rule("values_to_be_null", column="delay_ms"),
    rule("values_to_be_in_set", column="target_topic", value_set=["orders", "\ufffd"]),
    rule("values_to_be_in_set", column="target_partition", value_set=[0, 3, -1]),
    rule("values_to_not_be_in_set", column="timer_id_bytes", value_set=[0, 256]),
    rule("values_to_be_between", column="delay_ms", min_value=0, max_value=86_400_000),
    rule("values_to_be_between", column="delay_ms", min_value=0, strict_min=True),
    rule("values_to_be_between", column="delay_ms", max_value=86_400_000, strict_max=True),
    rule("value_lengths_to_be_between", column="target_topic", min_value=3, max_value=6),
    rule("value_lengths_to_be_between", column="target_topic", max_value=6, strict_max=True),
    rule("values_to_match_regex", column="target_topic", regex="[a-c]|^orders"),
    rule("values_to_match_regex", column="target_topic", regex=r"^[a-z]+(?:\.[a-z]{1,7})?"),
    rule("values_to_not_match_regex", column="target_topic", regex="a.b"),
    rule("values_to_match_regex", column="target_topic", regex="^(?:orders|a.b|x.*)$"),
    rule("values_to_not_match_regex", column="target_topic", regex="_x|dlq$"),
    rule("values_to_match_regex", column="bad_header", regex="^DELAY", mostly=1.0),
)

TOPICS = [
    *(None, "", "orders", "orders\n", "a\nb", "a b", "a/b", "axb", "é", "\ufffd", ".", "..", "..."),
    *(
        "__x",
        "_x",
        "x__y",
        "a" * 249,
        "a" * 250,
        "dlq",
        "dlq2",
        "orders.delayed",
        "A-Z_0.9",
        "\x00",
    ),
]


def judged(rows: int, seed: int) -> pa.Table:
    """Rows at random, rich in values at the borders."""
    rng = np.random.default_rng(seed)

    def pick(*values: Any) -> list[Any]:
        return [values[i] for i in rng.integers(0, len(values), rows)]

    delays = pick(None, -5, -1, 0, 1, 86_399_999, 86_400_000, 86_400_001, 10**15)
    waits = [*DUE_NAMES, *[None] * 9]
    return pa.table(
        {
            "bad_name": pick(*[None] * 9, "header"),
            "recurrence": pick(*[None] * 30, *RECURRENCE_VERDICTS),
            "timestamp_ms": pick(None, -(10**12), -1, 0, 1, *[1_800_000_000_000] * 9),
            "due_ms": [None if d is None else 1_800_000_000_000 + d for d in delays],
            "delay_ms": delays,
            "long_ms": pick(None, None, 1, 10**15),
            "past_ms": pick(None, None, 0, 1, 10**15),
            "window_ms": pick(None, None, -1, 0, 86_400_000, 86_400_001),
            "bad_header": pick(*waits),
            "unsupported": pick(*[None] * 5, *UNSUPPORTED),
            "target_topic": pick(*TOPICS),
            "closed": pick(None, None, None, "target_topic"),
            "target_partition": pick(None, -1, 0, 3, 2**31 - 1, 2**31, 10**15),
            "timer_id_bytes": pick(None, 0, 1, 255, 256, 10**6),
            "missing": pick(None, None, None, "due_time", "target_topic"),
            "cancel": pick(*[None] * 9, *VERDICTS),
            "if_pending": pick(*[None] * 9, *IF_PENDING_DEFECTS),
            "origin_distance": pick(None, None, None, -1, 0, 1, 10**12),
            "retries": pick(None, None, None, -1, 1, 10**12),
            "unframed": pick(None, None, None, "value"),
        },
        schema=RULE_COLUMNS,
    )


@pytest.mark.parametrize("suite", [load_suite(), EVERY_TYPE], ids=["timer", "every type"])
def test_great_expectations_finds_the_same_rows(
    suite: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # A main module without a file, as a parallel test run has it, is taken by pyspark for a run of
    # its own doctests, and ends the process.
    monkeypatch.setattr(sys.modules["__main__"], "__file__", __file__, raising=False)
    rules = compile_suite(suite, PARAMETERS)
    table = judged(3_000, seed=len(suite["expectations"]))
    compiled = [np.flatnonzero(each.failing(table)).tolist() for each in rules.rules]
    found = GreatExpectations().check(suite, PARAMETERS, table)
    assert compiled == [failing(each).tolist() for each in found]
    assert all(compiled), "each rule must fail somewhere, or the comparison shows nothing"
    first = [
        next((i for i, rows in enumerate(sets) if row in rows), -1)
        for row, sets in ((row, [set(rows) for rows in compiled]) for row in range(200))
    ]
    assert rules.first_failure(table)[:200].tolist() == first


def one(**values: Any) -> pa.Table:
    """A good timer, changed in the given columns."""
    row = {
        "due_ms": 1_800_000_000_000,
        "delay_ms": 0,
        "bad_header": None,
        "target_topic": "orders",
        "target_partition": None,
        "timer_id_bytes": None,
        "cancel": None,
        "if_pending": None,
    }
    return pa.Table.from_pylist([{**row, **values}], schema=RULE_COLUMNS)


ORDERS: dict[str, Any] = {"column": "target_topic"}


@pytest.fixture(scope="module")
def timer_rules() -> Rules:
    return compile_suite(load_suite(), PARAMETERS)


@pytest.mark.parametrize(
    ("values", "code"),
    [
        ({}, None),
        ({"delay_ms": 86_400_000}, None),
        ({"delay_ms": 86_400_001}, "delay_too_long"),
        ({"due_ms": None, "delay_ms": None, "missing": "due_time"}, "no_due_time"),
        ({"due_ms": None, "bad_header": "DELAY"}, "bad_header"),
        ({"target_topic": None, "missing": "target_topic"}, "no_target_topic"),
        ({"target_topic": ""}, "bad_target_topic"),
        ({"target_topic": "orders\n"}, "bad_target_topic"),
        ({"target_topic": "a" * 250}, "bad_target_topic"),
        ({"target_topic": ".."}, "bad_target_topic"),
        ({"target_topic": "dlq"}, "forbidden_target"),
        ({"target_topic": "__consumer_offsets"}, "forbidden_target"),
        ({"target_topic": "axb"}, "forbidden_target"),
        ({"closed": "target_topic"}, "target_not_allowed"),
        ({"target_topic": "dlq", "closed": "target_topic"}, "forbidden_target"),
        ({"target_partition": -1}, "bad_target_partition"),
        ({"target_partition": 2**31}, "bad_target_partition"),
        ({"target_partition": 2**31 - 1}, None),
        ({"timer_id_bytes": 0}, "bad_timer_id"),
        ({"timer_id_bytes": 256}, "bad_timer_id"),
        ({"cancel": "cancel"}, None),
        ({"cancel": "reschedule"}, None),
        ({"long_ms": 5}, "delay_too_long"),
        ({"past_ms": 0}, "past_due"),
        ({"unframed": "value"}, "no_schema_number"),
        ({"window_ms": -1}, "bad_window"),
        ({"window_ms": 0}, None),
        ({"window_ms": 86_400_001}, "bad_window"),
        ({"unsupported": "recurring"}, "recurring_not_supported"),
        ({"unsupported": "schema_version"}, "bad_header"),
        ({"unsupported": "source_type"}, "bad_header"),
        ({"cancel": "both"}, "bad_cancel"),
        ({"cancel": "copy"}, "bad_cancel"),
        ({"cancel": "bad_id"}, "bad_cancel"),
        ({"cancel": "bad_flag"}, "bad_reschedule"),
        ({"cancel": "no_id"}, "bad_reschedule"),
        *(({"if_pending": defect}, "bad_if_pending") for defect in IF_PENDING_DEFECTS),
        ({"recurrence": "refused"}, "recurring_not_allowed"),
        *(({"recurrence": verdict}, "bad_recurrence") for verdict in RECURRENCE_VERDICTS[:-1]),
    ],
)
def test_the_timer_suite(timer_rules: Rules, values: dict[str, Any], code: str | None) -> None:
    (failure,) = timer_rules.first_failure(one(**values)).tolist()
    assert (timer_rules.rules[failure].code if failure >= 0 else None) == code


def test_a_malformed_header_is_named(timer_rules: Rules) -> None:
    for name in DUE_NAMES:
        (failure,) = timer_rules.first_failure(one(bad_header=name)).tolist()
        shown = {"epoch_seconds": "the due time (scheduler-epoch", "when": "kafka-scheduler-when"}
        assert timer_rules.rules[failure].reason.startswith(shown.get(name, f"{name} is "))


def test_a_column_of_nulls_fails_where_a_value_is_needed() -> None:
    needed = compile_suite(suite_of(rule("values_to_not_be_null", **ORDERS)), PARAMETERS)
    assert needed.first_failure(one(target_topic=None)).tolist() == [0]


def test_no_rows(timer_rules: Rules) -> None:
    assert timer_rules.first_failure(RULE_COLUMNS.empty_table()).tolist() == []


def test_the_digest_follows_the_rules(timer_rules: Rules) -> None:
    suite = load_suite()
    # Parameters are compared by themselves: a refusal names them.
    assert compile_suite(suite, {**PARAMETERS, "max_delay_ms": 1}).digest == timer_rules.digest
    suite["expectations"].pop()
    assert compile_suite(suite, PARAMETERS).digest != timer_rules.digest


@pytest.mark.parametrize(
    ("expectation", "message"),
    [
        (rule("values_to_be_unique", **ORDERS), "not one of"),
        (rule("pair_values_to_be_equal", column_A="due_ms", column_B="delay_ms"), "not one of"),
        (rule("values_to_not_be_null", **ORDERS, mostly=0.9), "mostly"),
        (rule("values_to_not_be_null", **ORDERS, row_condition="x"), "row_condition"),
        (rule("values_to_not_be_null", column="colour"), "no column 'colour'"),
        (rule("values_to_not_be_null"), "lacks 'column'"),
        (rule("values_to_be_between", column="delay_ms", max_value={"$PARAMETER": "x"}), "'x'"),
        (rule("values_to_be_between", column="delay_ms", max_value={"max": 1}), "neither a value"),
        (rule("values_to_be_between", column="delay_ms", max_value="9"), "no whole number"),
        (rule("values_to_be_between", column="delay_ms"), "neither min_value"),
        (rule("values_to_be_between", **ORDERS, max_value=9), "no number"),
        (rule("value_lengths_to_be_between", column="due_ms", max_value=9), "no text"),
        (rule("values_to_be_in_set", **ORDERS, value_set=["a", None]), "without null"),
        (rule("values_to_be_in_set", **ORDERS, value_set="abc"), "must be a list"),
        (rule("values_to_be_in_set", column="due_ms", value_set=["a"]), "rule 1"),
        (rule("values_to_match_regex", **ORDERS, regex="^a$|b"), "the same everywhere"),
        (rule("values_to_match_regex", **ORDERS, regex=r"^a\$"), "the same everywhere"),
        (rule("values_to_match_regex", **ORDERS, regex=r"\d"), "the same everywhere"),
        (rule("values_to_match_regex", **ORDERS, regex="(?i)a"), "the same everywhere"),
        (rule("values_to_match_regex", **ORDERS, regex="(?=a)"), "the same everywhere"),
        (rule("values_to_match_regex", **ORDERS, regex="[[:alpha:]]"), "the same everywhere"),
        (rule("values_to_match_regex", **ORDERS, regex="a++"), "the same everywhere"),
        (rule("values_to_match_regex", **ORDERS, regex="(a"), "no regular expression"),
        (rule("values_to_match_regex", column="due_ms", regex="a"), "no text"),
        ({**rule("values_to_not_be_null", **ORDERS), "severity": "warning"}, "severity"),
        ({**rule("values_to_not_be_null", **ORDERS), "windows": []}, "windows"),
        ({**rule("values_to_not_be_null", **ORDERS), "meta": {"code": "x"}}, "lacks 'reason'"),
    ],
)
def test_what_cannot_be_compiled_is_refused(expectation: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        compile_suite(suite_of(expectation), PARAMETERS)


def test_the_digest_speaks_of_what_decides_and_of_nothing_else() -> None:
    """Another digest makes every shard with progress refuse to start: a change is a decision."""
    suite = load_suite()
    digest = compile_suite(suite, PARAMETERS).digest
    suite["expectations"][0]["meta"]["reason"] += " (in other words)"
    assert compile_suite(suite, PARAMETERS).digest == digest
    suite["expectations"].pop()
    assert compile_suite(suite, PARAMETERS).digest != digest
    fixed = compile_suite(load_suite(), suite_parameters()).digest
    assert fixed == "5895dc4e2c6f1152"
