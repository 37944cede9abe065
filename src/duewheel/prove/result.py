"""The result of a proof, for the page and for programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from duewheel.api.examination import DoctorFinding
from duewheel.prove.measures import Interruption, Measures
from duewheel.prove.plan import ProofPlan
from duewheel.prove.verdict import FAULTS, ProofVerdict

_DETAILS_MAX = 50


@dataclass(frozen=True)
class ProofResult:
    """The result. Its many fields are the rows of the page and of the JSON object."""

    name: str  # all its topics begin with this
    plan: ProofPlan
    started_ms: int
    took_s: float
    verdict: ProofVerdict
    doubtful: int
    measures: Measures
    interruptions: Sequence[Interruption]  # the start, then each kill
    stuck: str  # why it was broken off: then missing timers and replies count as faults
    findings: Sequence[str]  # of `duewheel check`
    own_ends: Sequence[str]  # ends of processes that no kill explains
    cluster: Sequence[DoctorFinding]
    settings: Mapping[str, Any]  # those that differ from the defaults, secrets as stars
    versions: Mapping[str, str]
    left: Sequence[str]  # topics that could not be deleted

    @property
    def scheduled(self) -> int:
        """Timers that are in the timer topic."""
        verdict = self.verdict
        return verdict.delivered + verdict.rejected + verdict.expired + verdict.cancelled

    @property
    def ok(self) -> bool:
        """Whether everything holds, and there was something to hold."""
        return self.verdict.delivered > 0 and not (
            self.verdict.faults or self.findings or self.stuck
        )

    @property
    def details(self) -> list[str]:
        """The first lines about faults."""
        return self.verdict.details[:_DETAILS_MAX]

    @property
    def kills(self) -> int:
        """How many."""
        return len(self.interruptions) - 1

    def as_json(self) -> dict[str, Any]:
        """One object for programs."""
        verdict, measures = self.verdict, asdict(self.measures)
        del measures["over_time"]
        return {
            "ok": self.ok,
            "name": self.name,
            "started_ms": self.started_ms,
            "took_s": round(self.took_s, 1),
            **asdict(self.plan),
            "scheduled": self.scheduled,
            "delivered": verdict.delivered,
            "rejected": verdict.rejected,
            "expired": verdict.expired,
            "rolled": verdict.rolled,
            "cancelled": verdict.cancelled,
            "replies": dict(verdict.replies),
            "doubtful": self.doubtful,
            "faults": {fault.replace(" ", "_"): verdict.faults[fault] for fault in FAULTS},
            "details": self.details,
            "stuck": self.stuck,
            "findings": list(self.findings),
            "own_ends": list(self.own_ends),
            "lateness_ms": measures,
            "interruptions": [
                {**asdict(each), "took_s": each.took_s} for each in self.interruptions
            ],
            "cluster": [each.as_json() for each in self.cluster],
            "settings": dict(self.settings),
            "versions": dict(self.versions),
            "repeat": self.plan.command,
            "left": list(self.left),
        }
