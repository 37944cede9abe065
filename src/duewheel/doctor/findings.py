"""What an examination finds, one line each, and how all of it is shown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from duewheel.errors import KafkaUnavailable

Severity = Literal["ok", "warning", "error"]

UNREACHABLE = "kafka_unreachable"
_WORST_FIRST: tuple[Severity, ...] = ("error", "warning", "ok")


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One thing that was looked at.

    Attributes:
        code: what was looked at, for programs; the same whatever came out.
        severity: "error": duewheel does not work, or does not keep its word; "warning": it works,
            with less certainty or speed than it could; "ok".
        subject: of what: a broker, a topic, the host …
        found: in words, with the numbers.
        remedy: a command or a setting that mends it; empty where all is well.
    """

    code: str
    severity: Severity
    subject: str
    found: str
    remedy: str = ""


def judged(
    code: str,
    subject: str,
    found: str,
    *,
    error: bool = False,
    warning: bool = False,
    remedy: str = "",
) -> Diagnosis:
    """A finding whose severity follows from conditions; a remedy is kept only if one is needed."""
    severity: Severity = "error" if error else "warning" if warning else "ok"
    return Diagnosis(code, severity, subject, found, "" if severity == "ok" else remedy)


def worst_first(findings: Iterable[Diagnosis]) -> list[Diagnosis]:
    """Errors, then warnings, then the rest; each in the order in which they were found."""
    return sorted(findings, key=lambda finding: _WORST_FIRST.index(finding.severity))


def exit_code(findings: Iterable[Diagnosis]) -> int:
    """Of the process: 3 if Kafka was not reachable, 1 with errors, 0 otherwise."""
    errors = {finding.code for finding in findings if finding.severity == "error"}
    return KafkaUnavailable.exit_code if UNREACHABLE in errors else int(bool(errors))


def as_object(findings: Sequence[Diagnosis]) -> dict[str, Any]:
    """For programs: ok, errors, warnings, findings (the worst first)."""
    counts = Counter(finding.severity for finding in findings)
    return {
        "ok": not counts["error"],
        "errors": counts["error"],
        "warnings": counts["warning"],
        "findings": [asdict(finding) for finding in worst_first(findings)],
    }


def as_lines(findings: Sequence[Diagnosis]) -> Iterator[str]:
    """For people: a table, a remedy below the line that it mends, and the sums."""
    columns = zip(*((f.severity, f.code, f.subject) for f in findings), strict=True)
    widths = [max(map(len, column)) for column in columns]
    for f in worst_first(findings):
        cells = (f.severity, f.code, f.subject)
        named = "  ".join(map(str.ljust, cells, widths))
        yield f"{named}  {f.found}"
        if f.remedy:
            yield f"{'':{widths[0]}}  → {f.remedy}"
    counts = Counter(finding.severity for finding in findings)
    yield f"errors: {counts['error']}, warnings: {counts['warning']}, ok: {counts['ok']}"
