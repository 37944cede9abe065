"""deploy: alerts and dashboard name metrics and labels that exist, each alert has help.

Expressions are parsed by a port of Prometheus' own parser: what is no PromQL raises.
"""

from __future__ import annotations

import itertools
import json
import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
from ruamel.yaml import YAML

from duewheel.api.reasons import REASONS
from duewheel.runtime import dequeue_metrics, ingest_metrics, shard_metrics

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
ALERTS_FILE = DEPLOY / "prometheus" / "alerts.yml"
RUNBOOK = ROOT / "docs" / "alerts.md"
DASHBOARD: dict[str, Any] = json.loads((DEPLOY / "grafana" / "duewheel.json").read_text("utf-8"))
ALERTS: list[dict[str, Any]] = [
    rule for group in YAML(typ="safe").load(ALERTS_FILE)["groups"] for rule in group["rules"]
]
# Of a release: in the place of what Helm writes there is a 1.
RELEASE_RULES = re.sub(
    r"\{\{.*?\}\}",
    "1",
    (DEPLOY / "chart" / "templates" / "prometheusrule.yaml")
    .read_text("utf-8")
    .partition('{{- define "duewheel.release-rules" }}\n')[2]
    .partition("{{- end }}")[0],
)
(OF_RELEASE,) = YAML(typ="safe").load(RELEASE_RULES)
ALERTS[1:1] = OF_RELEASE["rules"]
# Of each target, by Prometheus itself and by the scrape's configuration.
TARGET_LABELS = {"namespace", "job", "instance", "endpoint", "shard"}
# Metrics that duewheel does not make: of the scrape, and of Prometheus' client.
FOREIGN = {"up", "process_cpu_seconds_total", "process_resident_memory_bytes"}
GRAFANA = {"$__rate_interval": "1m", "$namespace": "prod", "$job": "duewheel", "$shard": "0"}


MADE = [*runpy.run_path(str(ROOT / "scripts" / "reference.py"))["families"]()]
# Families that several processes export of one shard: all facts of the shard, and what a standby
# counts as its owner does. The counters of a standby's dequeue stay 0.
SHARED = {
    name
    for module, name, kind, _, _ in MADE
    if module in {shard_metrics, ingest_metrics} or (module is dequeue_metrics and kind == "gauge")
}


def documented() -> dict[str, set[str]]:
    """The labels of each series' name, as docs/metrics.md has them."""
    labels = dict.fromkeys(FOREIGN, TARGET_LABELS)
    for _, name, kind, label, _ in MADE:
        own = TARGET_LABELS | {part for part in label.split(", ") if part}
        if kind == "histogram":
            labels |= {f"{name}_bucket": own | {"le"}, f"{name}_sum": own, f"{name}_count": own}
        else:
            labels[name] = own
    return labels


EXIST = documented()


def panels() -> list[dict[str, Any]]:
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def expressions() -> Iterator[Any]:
    for alert in ALERTS:
        yield pytest.param(alert["expr"], id=alert["alert"])
    for panel in panels():
        for target in panel["targets"]:
            yield pytest.param(target["expr"], id=f"{panel['title']}-{target['refId']}")


def nodes(expression: str) -> list[promql_parser.Expr]:
    """All parts of an expression."""
    for variable, value in GRAFANA.items():
        expression = expression.replace(variable, value)
    found: list[promql_parser.Expr] = []
    promql_parser.walk(promql_parser.parse(expression), found.append)
    return found


def selectors(expression: str) -> Iterator[promql_parser.VectorSelector]:
    for node in nodes(expression):
        if isinstance(node, promql_parser.MatrixSelector):
            yield node.vector_selector
        elif isinstance(node, promql_parser.VectorSelector):
            yield node


@pytest.mark.parametrize("expression", [*expressions()])
def test_metrics_and_labels_exist(expression: str) -> None:
    used = list(selectors(expression))
    assert used
    for each in used:
        named = {matcher.name for matcher in each.matchers.matchers}
        assert named <= EXIST[str(each.name)], each
    for node in nodes(expression):
        if isinstance(node, promql_parser.AggregateExpr) and node.modifier:
            summed = [EXIST[str(each.name)] for each in selectors(node.expr.prettify())]
            assert set(node.modifier.labels) <= set.intersection(*summed), node.prettify()


@pytest.mark.parametrize(
    "expression",
    ["duewheel_redy", 'duewheel_ready{topic="x"}', "max by (topic) (duewheel_ready)"],
)
def test_a_wrong_name_would_be_noticed(expression: str) -> None:
    with pytest.raises((KeyError, AssertionError)):
        test_metrics_and_labels_exist(expression)


def aggregates(expression: str, operator: str) -> list[promql_parser.AggregateExpr]:
    return [
        node
        for node in nodes(expression)
        if isinstance(node, promql_parser.AggregateExpr) and str(node.op) == operator
    ]


@pytest.mark.parametrize("expression", [*expressions()])
def test_a_sum_counts_an_owner_and_its_standby_once(expression: str) -> None:
    for total in aggregates(expression, "sum"):
        summed = total.expr.prettify()
        families = [str(each.name) for each in selectors(summed)]
        for largest in aggregates(summed, "max"):
            if largest.modifier and "shard" in largest.modifier.labels:
                for each in selectors(largest.prettify()):
                    families.remove(str(each.name))
        assert not SHARED.intersection(families), "max by (shard, …) first"


@pytest.mark.parametrize(
    "expression",
    [
        "sum(duewheel_pending)",
        "sum by (reason) (max by (reason) (rate(duewheel_rejected_total[1m])))",
        "sum(max by (shard) (duewheel_pending) + duewheel_pending)",
        "sum(duewheel_ingest_lag_messages)",
    ],
)
def test_a_sum_of_both_would_be_noticed(expression: str) -> None:
    with pytest.raises(AssertionError, match="max by"):
        test_a_sum_counts_an_owner_and_its_standby_once(expression)


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: str(alert["alert"]))
def test_an_alert_says_what_it_means_and_where_to_read_on(alert: dict[str, Any]) -> None:
    name, notes = alert["alert"], alert["annotations"]
    assert alert["labels"]["severity"] in {"critical", "warning", "info"}
    # Not `runbook_url`: Alertmanager would make a link of it that leads nowhere.
    assert notes["runbook"] == f"docs/alerts.md#{name.lower()}" and "runbook_url" not in notes
    in_summary = set(re.findall(r"\$labels\.(\w+)", notes["summary"]))
    grouped = {
        label
        for node in nodes(alert["expr"])
        if isinstance(node, promql_parser.AggregateExpr) and node.modifier
        for label in node.modifier.labels
    }
    assert in_summary <= (grouped or TARGET_LABELS)
    assert re.search(r"\(job .+, namespace .+\)$", notes["summary"]), "of which release?"
    assert notes["summary"].count("{{") == notes["summary"].count("}}")


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: str(alert["alert"]))
def test_alerts_of_two_releases_do_not_merge(alert: dict[str, Any]) -> None:
    """Two apps may have one Prometheus, and each its shard 0."""
    apart = {"namespace", "job"}
    for node in nodes(alert["expr"]):
        if isinstance(node, promql_parser.AggregateExpr):
            grouped = set(node.modifier.labels) if node.modifier else set()
            selected = [
                {each.name for each in one.matchers.matchers}
                for one in selectors(node.expr.prettify())
            ]
            assert all(apart <= grouped | names for names in selected), node.prettify()


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("DuewheelDeadLetters", "topic"),
        ("DuewheelForgedCopies", "topic"),
        ("DuewheelRowsLost", "topic"),
        ("DuewheelAuditFinding", "expectation"),
    ],
)
def test_an_alert_that_one_writer_keeps_firing_hides_no_other(name: str, label: str) -> None:
    """By shard alone, a bad message of one team every 15 minutes hid the faults of all others."""
    (alert,) = (each for each in ALERTS if each["alert"] == name)
    for node in nodes(alert["expr"]):
        if isinstance(node, promql_parser.AggregateExpr) and "disagreements" not in str(node):
            assert node.modifier and label in node.modifier.labels, node.prettify()
    assert f"$labels.{label}" in alert["annotations"]["summary"]


def test_the_end_of_serve_alone_is_not_critical() -> None:
    """Timers are delivered without it."""
    of_serve = {
        alert["alert"]: {
            str(each.op) for each in selector.matchers.matchers if each.name == "endpoint"
        }
        for alert in ALERTS
        for selector in selectors(alert["expr"])
        if selector.name == "up"
    }
    assert of_serve == {
        "DuewheelDown": {"MatchOp.NotEqual"},
        "DuewheelShardMissing": {"MatchOp.NotEqual"},
        "DuewheelServeDown": {"MatchOp.Equal"},
    }
    severities = {alert["alert"]: alert["labels"]["severity"] for alert in ALERTS}
    assert severities["DuewheelServeDown"] == "warning"


def test_a_shard_that_a_reshard_has_removed_is_not_critical() -> None:
    """Its timers are in other shards."""
    critical = [each["expr"] for each in ALERTS if each["labels"]["severity"] == "critical"]
    of_reasons = [
        [(str(matcher.op), matcher.name, matcher.value) for matcher in each.matchers.matchers]
        for expression in critical
        for each in selectors(expression)
        if each.name == "duewheel_not_ready"
    ]
    assert of_reasons == [[("MatchOp.NotEqual", "reason", "resharded")]]


def test_the_runbook_has_all_alerts_in_their_order() -> None:
    text = RUNBOOK.read_text("utf-8")
    assert re.findall(r"^### (Duewheel\w+)$", text, re.MULTILINE) == [a["alert"] for a in ALERTS]


def test_the_runbook_has_the_severity_of_each_alert() -> None:
    first_words = re.findall(
        r"^### (Duewheel\w+)\n\n\*\*(\w+)\.\*\* ", RUNBOOK.read_text("utf-8"), re.MULTILINE
    )
    assert first_words == [(a["alert"], a["labels"]["severity"].title()) for a in ALERTS]


def test_the_runbook_has_all_reasons_why_a_shard_is_not_ready() -> None:
    text = (
        RUNBOOK.read_text("utf-8").partition("\n### DuewheelNotReady\n")[2].partition("\n### ")[0]
    )
    first_cells = " ".join(re.findall(r"^\| (`[^|]*) \|", text, re.MULTILINE))
    assert sorted(re.findall(r"`(\w+)`", first_cells)) == sorted(
        [*REASONS, "unreadable", "resharded"]
    )


def test_the_dashboard_can_be_loaded_as_it_is() -> None:
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids)) > 30
    assert DASHBOARD["uid"] == "duewheel"
    variables = [each["name"] for each in DASHBOARD["templating"]["list"]]
    assert variables == ["datasource", "namespace", "job", "shard"]
    titles = [panel["title"] for panel in DASHBOARD["panels"]]
    assert len(titles) == len(set(titles))
    for panel in panels():
        assert panel["datasource"]["uid"] == "${datasource}", "no data source of another Grafana"
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])


def test_a_panel_shows_the_release_that_is_chosen() -> None:
    for panel in panels():
        for target in panel["targets"]:
            for selector in selectors(target["expr"]):
                named = {matcher.name for matcher in selector.matchers.matchers}
                assert {"namespace", "job", "shard"} <= named, panel["title"]


def test_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        cells = set(
            itertools.product(range(at["x"], at["x"] + at["w"]), range(at["y"], at["y"] + at["h"]))
        )
        assert not cells & taken, panel["title"]
        taken |= cells
