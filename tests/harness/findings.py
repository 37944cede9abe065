"""What tests look at in the findings of `duewheel doctor`."""

from __future__ import annotations

from collections.abc import Iterable

from duewheel.api.examination import DoctorFinding


def severities(found: Iterable[DoctorFinding]) -> list[str]:
    """The severity of each, in their order."""
    return [finding.severity for finding in found]
