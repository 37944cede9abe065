"""Findings of an examination."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from duewheel.api.examination import DoctorFinding, Examined, Severity

_WORST_FIRST: tuple[Severity, ...] = ("error", "warning", "ok")
REFUSES = "kafka_refuses"  # the code of the finding that brokers, once reached, accept no client
Findings = Iterator[DoctorFinding]


class Ended(Exception):
    """The examination ends with a finding: no other part could find anything."""

    def __init__(self, finding: DoctorFinding) -> None:
        super().__init__(finding.found)
        self.finding = finding


@dataclass(frozen=True, slots=True)
class Check:
    """A check of one subject, which makes findings.

    Attributes:
        code: names the check, for programs; independent of the outcome.
        subject: a broker, a topic, the host …
    """

    code: str
    subject: str

    def ok(self, found: str) -> DoctorFinding:
        return self.of("ok", found, "")

    def warning(self, found: str, remedy: str) -> DoctorFinding:
        return self.of("warning", found, remedy)

    def error(self, found: str, remedy: str) -> DoctorFinding:
        return self.of("error", found, remedy)

    def of(self, severity: Severity, found: str, remedy: str) -> DoctorFinding:
        """A finding whose text is the same whatever its severity; "ok" has no remedy."""
        return DoctorFinding(
            code=self.code,
            severity=severity,
            subject=self.subject,
            found=found,
            remedy="" if severity == "ok" else remedy,
        )


def summed_up(findings: Sequence[DoctorFinding]) -> Examined:
    """Sums findings up: errors first, then warnings, then the rest; a stable order within each."""
    counts = Counter(each.severity for each in findings)
    worst_first = sorted(findings, key=lambda each: _WORST_FIRST.index(each.severity))
    return Examined(
        ok=not counts["error"],
        errors=counts["error"],
        warnings=counts["warning"],
        findings=worst_first,
    )
