"""Which pending timers a bulk cancel finds."""

from __future__ import annotations

from fastapi.testclient import TestClient
from tests.harness.schedule_shard import HOURLY, put

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
