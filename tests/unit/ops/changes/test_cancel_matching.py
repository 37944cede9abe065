"""Which pending timers a bulk cancel finds."""

from __future__ import annotations

import pytest
from fastapi.testclient import TestClient
from tests.harness.schedule_shard import HOURLY, put

from duewheel.api.requests import TimerFilter
from duewheel.client.handle import RecallHandle
from duewheel.config.settings import Settings
from duewheel.errors import ConfigError, Conflict
from duewheel.ops.changes.cancel_matching import find_matching
from duewheel.testing.service import LocalService


def test_a_bulk_cancel_leaves_schedules_and_counts_timers_that_only_roll(
    client: TestClient,
    service: LocalService,
) -> None:
    put(client, "daily", **HOURLY)
    for delay in ("1h", "3d"):
        sent = {"topic": HOURLY["target"], "value": "v", "delay": delay}
        assert client.post("/v1/timers", json=sent).status_code < 300
    service.advance("7s")
    body = {"filter": {"topic": HOURLY["target"]}, "dry_run": True}
    found = client.post("/v1/cancel", json=body).json()

    assert [found[name] for name in ("matched", "rolling", "recurring")] == [2, 1, 1]
    assert client.post("/v1/cancel", json=body | {"dry_run": False}).json()["written"] == 2
    service.advance("7s")
    assert [row["name"] for row in client.get("/v1/schedules").json()["schedules"]] == ["daily"]
    assert client.post("/v1/cancel", json=body).json()["matched"] == 0


@pytest.mark.parametrize("wanted", [{"id": "a"}, {"key": "k"}, {"tag": "t"}, {}])
def test_the_timers_of_another_topic_neither_match_nor_count(
    client: TestClient, service: LocalService, settings: Settings, wanted: dict[str, str]
) -> None:
    """Else who writes to one makes every bulk cancel of an id, a key or a tag impossible."""
    new = {"topic": "orders", "value": "v", "delay": "1h", "id": "a", "key": "k", "tag": "t"}
    for topic in ("timers", *["others"] * 3):
        assert client.post("/v1/timers", json=new | {"timer_topic": topic}).status_code == 201
    service.advance("7s")
    if wanted:
        with pytest.raises(Conflict):
            find_matching(settings, TimerFilter.of(wanted), at_most=1)
    own = wanted | {"timer_topic": "timers"}
    ((topic, handle),) = find_matching(settings, TimerFilter.of(own), at_most=1).named
    assert topic == RecallHandle.decode(handle).timer_topic == "timers"
    listed = client.get("/v1/timers", params=own).json()["timers"]
    assert [row["handle"] for row in listed] == [handle]
    body = {"filter": own, "at_most": 1, "dry_run": False}
    assert client.post("/v1/cancel?wait=0", json=body).json()["written"] == 1
    service.advance("7s")
    assert client.post("/v1/cancel", json=body).json()["matched"] == 0
    rest = {"filter": {"timer_topic": "others"}, "dry_run": True}
    assert client.post("/v1/cancel", json=rest).json()["matched"] == 3


def test_a_timer_topic_that_is_none_is_refused(client: TestClient, settings: Settings) -> None:
    with pytest.raises(ConfigError, match="is no timer topic"):
        find_matching(settings, TimerFilter(timer_topic="timer"), at_most=1)
    body = {"filter": {"timer_topic": "timer"}, "dry_run": True}
    assert client.post("/v1/cancel", json=body).is_client_error
