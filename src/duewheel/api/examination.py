"""The findings of `duewheel doctor`."""

from __future__ import annotations

from typing import Literal

from duewheel.api.model import Result

Severity = Literal["ok", "warning", "error"]

UNREACHABLE = "kafka_unreachable"  # the code of the finding that no broker can be reached


class DoctorFinding(Result):
    """The result of one check."""

    code: str  # names the check, for programs; independent of the outcome
    # "error": duewheel does not work, or breaks a guarantee; "warning": it works with less safety
    # or speed than possible
    severity: Severity
    subject: str  # a broker, a topic, the host …
    found: str  # the observation, with its numbers
    remedy: str  # a command or a setting that repairs it; empty with "ok"


class Examined(Result):
    """All findings, the worst first."""

    ok: bool
    errors: int
    warnings: int
    findings: list[DoctorFinding]

    @property
    def is_unreachable(self) -> bool:
        """Whether no broker could be reached."""
        return any(each.code == UNREACHABLE and each.severity == "error" for each in self.findings)
