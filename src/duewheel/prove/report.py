"""The page of a proof: one HTML file without scripts and foreign assets, to be handed on."""

from __future__ import annotations

import importlib.resources
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from html import escape
from string import Template

from duewheel.prove.measures import QUANTILES, Quantiles
from duewheel.prove.plots import Plot, draw, seconds_ticks
from duewheel.prove.result import ProofResult

# The faults, in the order of the page.
GUARANTEES = {
    "lost": "acknowledged timers neither delivered, rejected, expired nor cancelled",
    "doubled": "delivered more often than once",
    "early": "delivered before they were due",
    "altered": "key, value, headers, target or reply not as requested",
    "misexpired": "expired before their last instant, or delivered although it was past",
    "disordered": "of one partition and slot, out of order",
    "resurrected": "delivered after a reply to their cancel",
    "untrue": "replies that contradict what was delivered",
    "unanswered": "cancels and reschedules without a reply",
    "answered twice": "cancels and reschedules with two replies",
    "invented": "delivered or replied to, and never requested",
    "strayed": "internal copies of a cancel that name no cancel",
    "taken back": "records that Kafka acknowledged and then lost",
}
_NOT_ARRIVED = {"lost", "unanswered"}
_KINDS = {
    "start": "first start",
    "dequeue": "kill -9 of dequeue",
    "ingest": "kill -9 of ingest (Spark)",
    "both": "kill -9 of both processes",
    "all": "kill -9 of `duewheel run` and both processes",
    "data": "kill -9 of everything, and the data directory deleted",
}
# Findings of `duewheel doctor` that describe a cluster: they are shown even if they are good.
_OF_CLUSTER = {"broker_reachable", "kafka_version", "transaction_version", "clock", "transactions"}
_BEFORE_BEGIN = "progress"  # a proof is examined before its shard has any
_QUANTILE_NAMES = {"p50": "50 %", "p90": "90 %", "p99": "99 %", "p999": "99.9 %", "max": "all"}

Row = Sequence[object]


def headline(result: ProofResult) -> str:
    """The verdict in a sentence."""
    verdict = result.verdict
    counts = ", ".join(f"{verdict.faults[fault]} {fault}" for fault in ("lost", "doubled", "early"))
    return (
        f"{result.scheduled:,} timers scheduled, {verdict.delivered:,} delivered, "
        f"{verdict.cancelled:,} cancelled, {verdict.rejected:,} rejected, "
        f"{verdict.expired:,} expired; {counts}; "
        f"{result.kills} kills"
    )


def summary(result: ProofResult) -> str:
    """The verdict in a line, as the command prints it."""
    if result.stuck:
        return f"failed: {result.stuck.splitlines()[0]}"
    return f"{'holds' if result.ok else 'FAILS'}: {headline(result)}"


def page(result: ProofResult) -> str:
    """The HTML."""
    lines = [result.stuck] if result.stuck else [*result.findings, *result.details]
    template = Template(
        importlib.resources.files(__package__).joinpath("page.html").read_text("utf-8")
    )
    started = datetime.fromtimestamp(result.started_ms / 1_000, UTC)
    return template.substitute(
        result="holds" if result.ok else "fails",
        verdict=_verdict(result),
        headline=escape(headline(result)),
        when=f"{started:%Y-%m-%d %H:%M} UTC, {result.took_s:.0f} s",
        version=escape(result.versions["duewheel"]),
        problems=_list("Problems", lines),
        guarantees=_guarantees(result),
        lateness=_lateness(result),
        plots="\n".join(f"<figure>{draw(each)}</figure>" for each in _plots(result)),
        faults=_faults(result),
        own_ends=_list("Processes that ended without a kill", result.own_ends),
        left=_list("Topics that could not be deleted", result.left),
        cluster=_cluster(result),
        versions=_table(("", "version"), result.versions.items()),
        settings=_table(("setting", "value"), result.settings.items()),
        repeat=escape(result.plan.command),
        seed=result.plan.seed,
        name=escape(result.name),
    )


def _verdict(result: ProofResult) -> str:
    if result.ok:
        return "The guarantees held"
    if result.stuck or not result.verdict.delivered:
        return "Nothing was proved: deliveries did not flow"
    return "The guarantees did NOT hold"


def _guarantees(result: ProofResult) -> str:
    """If a proof is broken off, a timer that has not arrived yet is no loss."""
    open_faults = _NOT_ARRIVED if result.stuck else set()
    rows = [
        (text, "not judged" if fault in open_faults else result.verdict.faults[fault])
        for fault, text in GUARANTEES.items()
    ]
    return _table(("messages", "number"), rows, bad=lambda row: row[1] not in {0, "not judged"})


def _lateness(result: ProofResult) -> str:
    def row(name: str, values: Quantiles) -> Row:
        shown = (_millis(getattr(values, each)) for each in QUANTILES)
        return (name, f"{values.count:,}", *shown)

    measures = result.measures
    return _table(
        ("lateness", "deliveries", "p50", "p90", "p99", "p99.9", "max"),
        [
            row("undisturbed", measures.undisturbed),
            row("after a start or kill, until deliveries flowed", measures.disturbed),
            row("due at once, undisturbed", measures.at_once),
            row("due at once, after a start or kill", measures.at_once_disturbed),
        ],
    )


def _faults(result: ProofResult) -> str:
    start_ms = result.interruptions[0].at_ms
    rows = [
        (
            f"{(each.at_ms - start_ms) / 1_000:.1f} s",
            _KINDS[each.kind],
            "never" if each.took_s is None else f"{each.took_s:.1f} s",
        )
        for each in result.interruptions
    ]
    return _table(("at", "fault", "deliveries flow again after"), rows)


def _cluster(result: ProofResult) -> str:
    rows = [
        (each.severity, each.subject, each.found)
        for each in result.cluster
        if each.code in _OF_CLUSTER or (each.severity != "ok" and each.code != _BEFORE_BEGIN)
    ]
    return _table(("severity", "", "finding"), rows)


def _plots(result: ProofResult) -> list[Plot]:
    over_time, first_ms = result.measures.over_time, result.interruptions[0].at_ms
    times = [number * over_time.part_s for number in range(len(over_time.scheduled))]
    ticks = seconds_ticks(times[-1])
    marks = [((e.at_ms - first_ms) / 1_000, _KINDS[e.kind]) for e in result.interruptions]

    def timed(title: str, *, logarithmic: bool, **series: Sequence[float | None]) -> Plot:
        points = {name: list(zip(times, ys, strict=True)) for name, ys in series.items()}
        return Plot(title, points, ticks, "s", marks, logarithmic)

    def shares(values: Quantiles) -> list[tuple[float, float | None]]:
        return [(float(at), getattr(values, each)) for at, each in enumerate(QUANTILES)]

    median, worst = over_time.median_ms, over_time.worst_ms
    rates = {"scheduled": over_time.scheduled, "delivered": over_time.delivered}
    undisturbed, disturbed = result.measures.undisturbed, result.measures.disturbed
    return [
        timed("Timers a second", logarithmic=False, **rates),
        timed("Lateness over time, ms", logarithmic=True, median=median, worst=worst),
        Plot(
            "Lateness of a share of the deliveries, at most, ms",
            {"undisturbed": shares(undisturbed), "after a start or kill": shares(disturbed)},
            [(float(at), _QUANTILE_NAMES[each]) for at, each in enumerate(QUANTILES)],
            "share",
            logarithmic=True,
        ),
    ]


def _millis(value: int | None) -> str:
    return "–" if value is None else f"{value:,}\u00a0ms"


def _list(title: str, lines: Iterable[str]) -> str:
    items = "\n".join(f"<li>{escape(line)}</li>" for line in lines)
    return f"<h2>{escape(title)}</h2>\n<ul>\n{items}\n</ul>" if items else ""


def _table(
    heads: Sequence[str], rows: Iterable[Row], bad: Callable[[Row], bool] = lambda _: False
) -> str:
    """A table, in which `bad` rows stand out."""
    head = "".join(f"<th>{escape(each)}</th>" for each in heads)
    lines = []
    for row in rows:
        cells = "".join(f"<td>{escape(str(each))}</td>" for each in row)
        lines.append(f"<tr{' class=bad' if bad(row) else ''}>{cells}</tr>")
    body = "\n".join(lines)
    return f'<div class="wide"><table>\n<tr>{head}</tr>\n{body}\n</table></div>'
