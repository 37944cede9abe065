"""What `duewheel doctor` says of the targets that the configuration names."""

from __future__ import annotations

from tests.harness.findings import severities, topic

from duewheel.config.keys_and_defaults import TimerSection
from duewheel.doctor import targets
from duewheel.doctor.remedies import Remedies

REMEDIES = Remedies("kafka:9092", "User:x")


def test_a_target_takes_what_a_timer_topic_takes() -> None:
    small, large = (topic(config={"max.message.bytes": size}) for size in ("1000", "5000"))
    assert severities(targets.check_sizes([small], [large], REMEDIES)) == ["ok"]
    (finding,) = targets.check_sizes([small, large], [small], REMEDIES)
    assert (finding.severity, "max.message.bytes=5000" in finding.remedy) == ("warning", True)
    assert list(targets.check_sizes([topic()], [small], REMEDIES)) == []


def test_timer_topics_that_are_open_for_no_target() -> None:
    named = {"topics": ["a", "b"], "topics_pattern": "team-.*", "topic": {"a": {"target": "mails"}}}
    timer = TimerSection.model_validate(named)
    found = list(targets.check_open_targets(timer))
    assert [(f.subject, f.severity) for f in found] == [
        ("topic a", "ok"),
        ("topic b", "warning"),
        ("topics of the pattern", "warning"),
    ]
    assert found[0].found == "open for mails"
    assert "duewheel reconfigure" in found[1].remedy
