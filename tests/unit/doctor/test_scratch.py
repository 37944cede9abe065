"""The scratch topic of `duewheel doctor`: brokers that lag behind, and a topic that was there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.harness.config_file import small_settings
from tests.harness.findings import topic

from duewheel.api.examination import DoctorFinding
from duewheel.clock import SystemClock
from duewheel.doctor import clocks, examination, scratch, trial
from duewheel.doctor.cluster import Cluster
from duewheel.errors import KafkaUnavailable
from duewheel.kafka.topics.admin import KafkaAdmin
from duewheel.kafka.topics.description import Topic
from duewheel.kafka.topics.requirements import TopicPlan
from duewheel.kafka.topics.topic_checks import TopicChecks

NAME = "duewheel.doctor.0"


class LaggingAdmin(KafkaAdmin):
    """Brokers that answer each look-up as the next entry; the last one from then on."""

    known: Sequence[bool] = ()
    deleted: Sequence[str] = ()
    keeps = False  # it deletes no topic

    def existing(self, names: Sequence[str]) -> dict[str, Topic]:
        known, *rest = LaggingAdmin.known
        LaggingAdmin.known = rest or [known]
        return {name: topic(name=name) for name in names if known}

    def call(self, *_: object, **__: object) -> Any:
        return [(1, "a", 9092)]

    def create(self, plans: Sequence[TopicPlan], replication_factor: int = -1) -> set[str]:
        return set()

    def delete_topics(self, topics: Sequence[str]) -> None:
        if self.keeps:
            raise KafkaUnavailable("no answer")
        LaggingAdmin.deleted = topics


@pytest.fixture
def found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Sequence[bool], float], list[DoctorFinding]]:
    def part(*_: object) -> Iterator[DoctorFinding]:
        yield from ()
        if LaggingAdmin.keeps:
            raise KafkaUnavailable("no answer")

    def examined(known: Sequence[bool], within_s: float) -> list[DoctorFinding]:
        monkeypatch.setattr(LaggingAdmin, "known", known)
        monkeypatch.setattr(LaggingAdmin, "deleted", ())
        monkeypatch.setattr(scratch, "KafkaAdmin", lambda client, _: LaggingAdmin(client, within_s))
        monkeypatch.setattr(trial, "examine", part)
        monkeypatch.setattr(clocks, "examine", part)
        cluster = Cluster(small_settings(tmp_path), TopicChecks({}), SystemClock())
        return list(examination._on_scratch_topic(cluster))  # noqa: SLF001

    return examined


Found = Callable[[Sequence[bool], float], list[DoctorFinding]]


def test_a_broker_that_lags_behind_is_asked_again(found: Found) -> None:
    assert found([False, False, True], 60.0) == []
    assert LaggingAdmin.deleted == [NAME]


def test_brokers_that_never_have_the_topic_are_no_defect_of_duewheel(found: Found) -> None:
    (failed,) = found([False], 0.01)
    assert (failed.code, failed.severity) == ("not_examined", "error")
    assert NAME in failed.found
    assert "log of the brokers" in failed.remedy
    assert LaggingAdmin.deleted == [NAME]


@pytest.mark.parametrize(
    ("known", "failed"),
    [([False, True], ["transactions", "clocks"]), ([False], ["transactions and clocks"])],
)
def test_a_scratch_topic_that_stays_is_named_whatever_fails(
    found: Found, monkeypatch: pytest.MonkeyPatch, known: Sequence[bool], failed: Sequence[str]
) -> None:
    monkeypatch.setattr(LaggingAdmin, "keeps", True)
    findings = [(each.code, each.subject) for each in found(known, 0.01)]
    stays = ("scratch_topic", f"topic {NAME}")
    assert findings == [*(("not_examined", part) for part in failed), stays]


def test_a_topic_that_was_there_before_is_named_and_kept(found: Found) -> None:
    """It is the operator's, or of a run that was killed."""
    (kept,) = found([True], 60.0)
    assert (kept.code, kept.severity, kept.subject) == ("scratch_topic", "ok", f"topic {NAME}")
    assert LaggingAdmin.deleted == ()
