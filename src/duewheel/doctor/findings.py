"""Findings of an examination."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from duewheel.api.examination import UNREACHABLE, DoctorFinding, Examined, Severity

_WORST_FIRST: tuple[Severity, ...] = ("error", "warning", "ok")
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


def unreachable(address: str, found: str, remedy: str) -> DoctorFinding:
    """The finding that no broker can be reached."""
    return Check(UNREACHABLE, address).error(found, remedy)


def refusing(address: str, found: str, remedy: str) -> DoctorFinding:
    """The finding of brokers that can be reached and accept no client."""
    return Check("kafka_refuses", address).error(found, remedy)


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
