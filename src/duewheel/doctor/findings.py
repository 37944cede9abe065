"""Findings of an examination."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from duewheel.api.examination import ExaminationFinding, Examined, Severity

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


def examined(findings: Sequence[Diagnosis]) -> Examined:
    """Sums findings up: errors first, then warnings, then the rest; a stable order within each."""
    counts = Counter(each.severity for each in findings)
    worst_first = sorted(findings, key=lambda each: _WORST_FIRST.index(each.severity))
    return Examined(
        ok=not counts["error"],
        errors=counts["error"],
        warnings=counts["warning"],
        findings=[ExaminationFinding(**asdict(each)) for each in worst_first],
    )
