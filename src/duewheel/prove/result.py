"""The result of a proof, for the page and for programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from duewheel.doctor.findings import Diagnosis
from duewheel.prove.measures import Interruption, Measures
from duewheel.prove.plan import ProofPlan
from duewheel.prove.verdict import FAULTS, ProofVerdict

_DETAILS_MAX = 50


@dataclass(frozen=True)
class ProofResult:
    """The result.

    Attributes:
        name: the prefix of all topics of this proof.
        started_ms: by this host's clock.
        took_s: from the first topic to the last reading.
        interruptions: the start, then each kill.
        stuck: why the proof was not carried through; "" if it was. Then timers and replies that
            did not arrive in time count as lost and unanswered.
        findings: of `duewheel check` in the shard's files.
        own_ends: ends of processes that no kill explains.
        cluster: findings of `duewheel doctor`.
        settings: those of the proof's shard that differ from the defaults, secrets as stars.
        left: topics that could not be deleted.
    """

    name: str
    plan: ProofPlan
    started_ms: int
    took_s: float
    verdict: ProofVerdict
    doubtful: int
    measures: Measures
    interruptions: Sequence[Interruption]
    stuck: str
    findings: Sequence[str]
    own_ends: Sequence[str]
    cluster: Sequence[Diagnosis]
    settings: Mapping[str, Any]
    versions: Mapping[str, str]
    left: Sequence[str]

    @property
    def scheduled(self) -> int:
        """Timers that are in the timer topic."""
        verdict = self.verdict
        return verdict.delivered + verdict.rejected + verdict.cancelled

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
    def kills(self) -> list[Interruption]:
        """Without the start."""
        return list(self.interruptions[1:])

    def as_json(self) -> dict[str, Any]:
        """For programs: one object."""
        verdict, measures = self.verdict, self.measures
        return {
            "ok": self.ok,
            "name": self.name,
            "started_ms": self.started_ms,
            "took_s": round(self.took_s, 1),
            **asdict(self.plan),
            "scheduled": self.scheduled,
            "delivered": verdict.delivered,
            "rejected": verdict.rejected,
            "rolled": verdict.rolled,
            "cancelled": verdict.cancelled,
            "replies": dict(verdict.replies),
            "doubtful": self.doubtful,
            "faults": {fault.replace(" ", "_"): verdict.faults[fault] for fault in FAULTS},
            "details": self.details,
            "stuck": self.stuck,
            "findings": list(self.findings),
            "own_ends": list(self.own_ends),
            "lateness_ms": {
                "undisturbed": measures.undisturbed.as_json(),
                "disturbed": measures.disturbed.as_json(),
                "at_once": measures.at_once.as_json(),
                "at_once_disturbed": measures.at_once_disturbed.as_json(),
            },
            "interruptions": [
                {**asdict(each), "took_s": each.took_s} for each in self.interruptions
            ],
            "cluster": [asdict(each) for each in self.cluster],
            "settings": dict(self.settings),
            "versions": dict(self.versions),
            "repeat": self.plan.command,
            "left": list(self.left),
        }
