"""What `duewheel doctor` says of a cluster whose topics change while it is examined."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import pytest
from tests.harness.config_file import small_settings
from tests.harness.findings import topic

from duewheel.clock import SystemClock
from duewheel.doctor import rights, shard, targets, topics
from duewheel.doctor.cluster import Cluster
from duewheel.errors import KafkaUnavailable
from duewheel.kafka.topics.description import Topic
from duewheel.kafka.topics.topic_checks import TopicChecks

ABSENT = 3


class Vanishing(TopicChecks):
    """Topics that are deleted once they have been described."""

    described = 0

    def topics(self, names: Sequence[str]) -> dict[str, Topic]:
        self.described += 1
        there = {name: topic(name=name, rights=None) for name in names}
        return there if self.described == 1 else {name: Topic(name, ABSENT) for name in names}

    def existing(self, names: Sequence[str]) -> dict[str, Topic]:
        return {}

    def topic_settings(self, names: Sequence[str]) -> dict[str, dict[str, str]]:
        return {}

    def call(self, what: str, call: Any, *, writes: bool = False) -> NoReturn:
        """Answers nothing about the transactional id."""
        raise KafkaUnavailable(what)


def test_topics_that_vanish_meanwhile_make_no_finding_contradict_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard, "all_shards", lambda _: {})
    settings = small_settings(tmp_path)
    timer = settings.timer.model_copy(update={"targets": ("mails",)})
    settings = settings.model_copy(update={"timer": timer})
    reader = Vanishing(settings.kafka.client_options("admin"))
    cluster = Cluster(settings, reader, SystemClock())
    parts = (topics.examine, targets.examine, shard.examine, rights.examine)
    found = [finding for part in parts for finding in part(cluster)]
    assert [f for f in found if f.severity == "error"] == []
    subjects = {
        code: {f.subject for f in found if f.code == code} - {"topic __transaction_state"}
        for code in ("durability", "topic_rights")
    }
    assert subjects["durability"] == subjects["topic_rights"] != set()
    assert "progress" in {f.code for f in found}
    assert reader.described == 1
