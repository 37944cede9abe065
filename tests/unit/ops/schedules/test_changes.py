"""Changes of schedules that are refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from tests.harness.schedule_shard import DAILY, listed, put
from tests.harness.served import KitWriter

from duewheel.api.schedules import NewSchedule
from duewheel.client import DelayProducer
from duewheel.config.settings import Settings, load
from duewheel.errors import ConfigError, IngestBehind, NoSuchSchedule
from duewheel.ops.schedules import apply_file, changes, read_before_change, steps
from duewheel.ops.schedules.read_before_change import LogEnds
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
        changes.stop(KitWriter(settings, service), "twice", None, {})


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
        changes.put(writer, "daily", NewSchedule.of(DAILY), {}, may_add=True)
    with pytest.raises(NoSuchSchedule):
        changes.put(writer, "daily", NewSchedule.of(DAILY), {})
    now_ms = service.clock.now_ms()
    record = requested(settings, "daily", NewSchedule.of(DAILY), now_ms)
    step = apply_file._step(writer, "daily", record, None, now_ms)  # noqa: SLF001
    assert step.change == "elsewhere" and not step.writes


class UnreadWriter(KitWriter):
    """Ingest does not take what it writes before `service.pending()`."""

    @contextmanager
    def producer(self, timer_topic: str) -> Iterator[DelayProducer]:
        yield self._service.producer(timer_topic)


def paused(writer: KitWriter, ends: LogEnds) -> None:
    changes.pause(writer, "daily", None, ends, "")


def stopped(writer: KitWriter, ends: LogEnds) -> None:
    changes.stop(writer, "daily", None, ends)


def replaced(writer: KitWriter, ends: LogEnds) -> None:
    changes.put(writer, "daily", NewSchedule.of(DAILY), ends, may_add=True)


@pytest.mark.parametrize("first", [stopped, replaced])
@pytest.mark.parametrize("then", [paused, stopped, replaced])
def test_no_change_is_made_from_a_copy_that_another_change_has_replaced(
    client: TestClient,
    service: LocalService,
    settings: Settings,
    first: Callable[[KitWriter, LogEnds], None],
    then: Callable[[KitWriter, LogEnds], None],
) -> None:
    """It would bring the former message in again, or a schedule that was stopped."""
    put(client, "daily", **{**DAILY, "value": "former"})
    writer = UnreadWriter(settings, service)
    first(writer, read_before_change.log_ends(settings, ["timers"]))
    before = service.records("timers")
    ends = read_before_change.log_ends(settings, ["timers"])
    with pytest.raises(IngestBehind, match="has not read 1 records of timers-"):
        then(writer, ends)
    assert len(service.records("timers")) == len(before)
    service.pending()
    if first is stopped and then is not replaced:
        with pytest.raises(NoSuchSchedule):
            then(writer, ends)
    else:
        then(writer, ends)
        assert service.records("timers")[-1].value in {b"daily", b""}


def test_an_apply_waits_for_the_changes_before_it(
    service: LocalService, settings: Settings, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that is rolled back at once counted as unchanged, and the newer one took effect."""
    monkeypatch.setattr(steps, "READ_S", 0.0)
    path, writer = config.with_name("schedules.toml"), UnreadWriter(settings, service)

    def apply(value: str) -> list[str]:
        path.write_text(f'[poll]\nevery = "1h"\ntarget = "reports"\nvalue = "{value}"\n')
        rows = apply_file.apply(writer, path, prune=False, dry_run=False, wait_s=0)
        return [row.change for row in rows]

    assert apply("first") == ["added"]
    service.pending()
    assert apply("second") == ["changed"]
    with pytest.raises(IngestBehind):
        apply("first")
    service.pending()
    assert apply("first") == ["changed"]


def test_settings_that_ingest_does_not_follow_set_no_schedule(
    service: LocalService, config: Path
) -> None:
    """It became a dead letter, and counted as applied."""
    config.write_text(config.read_text().replace("'orders'", "'orders', 'bills'"))
    writer = KitWriter(load(config), service)
    new = NewSchedule.of({**DAILY, "target": "bills"})
    with pytest.raises(ConfigError, match=r"by .*targets.*: run `duewheel reconfigure`"):
        changes.put(writer, "daily", new, {}, may_add=True)
    assert service.records("timers") == []
