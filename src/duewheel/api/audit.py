"""The result of `duewheel audit`. Without its summary it is the content of result.json."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from duewheel.api.model import InstantMs, Result


class Disagreement(Result):
    """A row with two verdicts: whether it fails by Great Expectations (`suite`), and by `other`;
    both None if it fails by both, for different reasons.
    """

    source: str  # topic-partition@offset
    code: str  # of the rule; or of the refusal, if all rules agree
    suite: bool | None
    other: bool | None
    by: str  # whose verdict `other` is: "compiled rules" or "ingest"


class Disagreements(Result):
    """The number of all, and the first few."""

    count: int
    first: list[Disagreement]


class ExpectationResult(Result):
    """One expectation over the whole range."""

    type: str
    column: str | None
    code: str
    reason: str
    severity: str
    success: bool
    rows: int  # nulls included
    failed: int
    observed: Any  # as the library says it; of a rule, that of the last chunk
    examples: list[str]  # the sources of failing rows


class EpochResults(Result):
    """The rules under one settings epoch."""

    epoch: int
    expectations: list[ExpectationResult]


class AuditResult(Result):
    """The result of an audit."""

    id: str
    shard: int
    started_ms: InstantMs
    ended_ms: InstantMs
    took_s: float
    ranges: dict[str, list[int]]  # by partition: the first offset, and the end
    audited: dict[str, int]  # by partition: the end of the offsets audited without a gap
    skipped_offsets: int
    ok: bool
    rows: int
    rejected: dict[str, int]  # by code
    disagreements: Disagreements
    rules_suite: list[EpochResults]
    rows_suite: list[ExpectationResult]
    # The operator's, by timer topic
    topic_suites: dict[str, list[ExpectationResult]] = Field(default_factory=dict)

    @property
    def across_rows(self) -> dict[str, ExpectationResult]:
        """The expectations across rows by code, and those of topics by topic and code."""
        own = {
            f"{topic}: {each.code}": each
            for topic, suite in self.topic_suites.items()
            for each in suite
        }
        return {each.code: each for each in self.rows_suite} | own

    @property
    def failed(self) -> list[str]:
        """Those of them that fail."""
        return [name for name, each in self.across_rows.items() if not each.success]


class AuditSummary(Result):
    """The result for people."""

    id: str
    ok: bool
    rows: int
    skipped_offsets: int
    rejected: dict[str, int]
    disagreements: int
    failed: str | None
    docs: str | None  # where the Data Docs are


class SummedAudit(AuditResult):
    """The result with its summary."""

    summary: AuditSummary
