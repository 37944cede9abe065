"""What `duewheel doctor` says of the progress of the shard."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.harness.config_file import small_settings
from tests.harness.findings import partition, severities, topic

from duewheel import factory
from duewheel.checkpoints.config_epochs import Epochs
from duewheel.checkpoints.progress import PartitionProgress, Progress
from duewheel.clock import SystemClock
from duewheel.doctor import shard
from duewheel.doctor.cluster import Cluster
from duewheel.kafka.topics.topic_checks import TopicChecks
from duewheel.wheel.publisher_protocol import Seen


def test_a_shard_that_an_older_version_began_has_no_key() -> None:
    found = [shard.check_copy_key("shard 0 of 1", keys) for keys in ((), ("0" * 64,))]
    assert severities(found) == ["warning", "ok"]
    assert "reconfigure --rotate-key" in found[0].remedy


def test_a_configuration_that_does_not_fit_the_progress_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = small_settings(tmp_path)
    epochs = Epochs.first(factory.slot_values(settings) | {"levels_ms": [1]})
    begun = Progress(0, 1, "owner", 1, 1, epochs, {("timers", 0): PartitionProgress(1, 1)})
    monkeypatch.setattr(shard, "all_shards", lambda _: {0: Seen(begun, 1)})
    cluster = Cluster(settings, TopicChecks({}), SystemClock())
    (finding,) = shard._check_progress(cluster)  # noqa: SLF001
    assert (finding.code, finding.severity) == ("progress", "error")
    assert "levels_ms: was [1]" in finding.found and "`duewheel reconfigure`" in finding.found
    assert finding.remedy.startswith("run the command that it names"), (
        "`recover --dry-run` refuses it, too"
    )
    fitting = replace(begun, epochs=Epochs.first(factory.slot_values(settings)))
    monkeypatch.setattr(shard, "all_shards", lambda _: {0: Seen(fitting, 1)})
    assert severities(shard._check_progress(cluster))[0] == "ok"  # noqa: SLF001


def test_a_record_without_room_has_a_command_that_is_whole(tmp_path: Path) -> None:
    cluster = Cluster(small_settings(tmp_path), TopicChecks({}), SystemClock())
    (name,) = cluster.settings.timer.topics
    timers = [topic(name=name, partitions=(partition(1),))]
    (finding,) = shard.check_room(cluster, timers, room_bytes=1)
    assert (finding.code, finding.severity) == ("shard_room", "error")
    assert "duewheel reshard --to " in finding.remedy
