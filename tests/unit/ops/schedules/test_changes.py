"""Changes of schedules that are refused."""

from __future__ import annotations

import pytest
from fastapi.testclient import TestClient
from tests.harness.schedule_shard import DAILY, listed
from tests.harness.served import KitWriter

from duewheel.api.schedules import NewSchedule
from duewheel.config.settings import Settings
from duewheel.errors import ConfigError, NoSuchSchedule
from duewheel.ops.schedules import apply_file, changes
from duewheel.ops.schedules.schedule_record import requested
from duewheel.testing.service import LocalService


def test_a_name_in_two_partitions_is_refused_with_the_remedy(
    client: TestClient, service: LocalService, settings: Settings
) -> None:
    for partition in (1, 2):
        service.producer().schedule("orders", b"v", id="twice", every="1h", partition=partition)
    service.advance("1s")
    assert [row["name"] for row in listed(client)] == ["twice", "twice"]
    with pytest.raises(ConfigError, match="timers-1 and timers-2: cancel all but one"):
        changes.stop(KitWriter(settings, service), "twice", None)


def test_the_schedules_of_another_shard_are_left_to_it(
    client: TestClient, settings: Settings, service: LocalService
) -> None:
    producer = service.producer()
    owner = producer.partition_of(b"daily") % 2
    of_other = settings.model_copy(
        update={"shard": settings.shard.model_copy(update={"index": 1 - owner, "count": 2})}
    )
    writer = KitWriter(of_other, service)
    with pytest.raises(ConfigError, match=f"belongs to shard {owner}, this is {1 - owner}"):
        changes.put(writer, "daily", NewSchedule.of(DAILY), may_add=True)
    with pytest.raises(NoSuchSchedule):
        changes.put(writer, "daily", NewSchedule.of(DAILY))
    now_ms = service.clock.now_ms()
    record = requested(settings, "daily", NewSchedule.of(DAILY), now_ms)
    step = apply_file._step(writer, "daily", record, None, now_ms)  # noqa: SLF001
    assert step.change == "elsewhere" and not step.writes
