"""Findings of an examination, and their output as a table or JSON."""

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
    """The result of one check.

    Attributes:
        code: names the check, for programs; independent of the outcome.
        severity: "error": duewheel does not work, or breaks a guarantee; "warning": it works
            with less safety or speed than possible; "ok".
        subject: a broker, a topic, the host …
        found: the observation, with its numbers.
        remedy: a command or a setting that repairs it; empty with "ok".
    """

    code: str
    severity: Severity
    subject: str
    found: str
    remedy: str = ""


def diagnose(
    code: str,
    subject: str,
    found: str,
    *,
    error: bool = False,
    warning: bool = False,
    remedy: str = "",
) -> Diagnosis:
    """Makes a finding from conditions; drops the remedy if the outcome is "ok"."""
    severity: Severity = "error" if error else "warning" if warning else "ok"
    return Diagnosis(code, severity, subject, found, "" if severity == "ok" else remedy)


def acl_command(address: str, principal: str, rights: Sequence[str], resource: str) -> str:
    """The command that grants rights on a resource, such as `--cluster` or `--topic orders`."""
    named = " ".join(f"--operation {right.title().replace('_', '')}" for right in rights)
    return (
        f"kafka-acls.sh --bootstrap-server {address} --add --allow-principal {principal} "
        f"{named} {resource}"
    )


def worst_first(findings: Iterable[Diagnosis]) -> list[Diagnosis]:
    """Sorts findings: errors, then warnings, then the rest; a stable order within each."""
    return sorted(findings, key=lambda finding: _WORST_FIRST.index(finding.severity))


def exit_code(findings: Iterable[Diagnosis]) -> int:
    """Returns the exit code: 3 if Kafka was not reachable, 1 with errors, 0 otherwise."""
    errors = {finding.code for finding in findings if finding.severity == "error"}
    return KafkaUnavailable.exit_code if UNREACHABLE in errors else int(bool(errors))


def as_object(findings: Sequence[Diagnosis]) -> dict[str, Any]:
    """Formats for programs: ok, errors, warnings, findings (the worst first)."""
    counts = Counter(finding.severity for finding in findings)
    return {
        "ok": not counts["error"],
        "errors": counts["error"],
        "warnings": counts["warning"],
        "findings": [asdict(finding) for finding in worst_first(findings)],
    }


def as_lines(findings: Sequence[Diagnosis]) -> Iterator[str]:
    """Formats for people: a table, each remedy once below its findings, and the sums."""
    columns = zip(*((f.severity, f.code, f.subject) for f in findings), strict=True)
    widths = [max(map(len, column)) for column in columns]
    by_remedy: dict[tuple[Severity, str], list[Diagnosis]] = {}
    for f in worst_first(findings):
        by_remedy.setdefault((f.severity, f.remedy), []).append(f)
    for (_, remedy), shared in by_remedy.items():
        for f in shared:
            cells = (f.severity, f.code, f.subject)
            named = "  ".join(map(str.ljust, cells, widths))
            yield f"{named}  {f.found}"
        if remedy:
            yield f"{'':{widths[0]}}  → {remedy}"
    counts = Counter(finding.severity for finding in findings)
    yield f"errors: {counts['error']}, warnings: {counts['warning']}, ok: {counts['ok']}"
