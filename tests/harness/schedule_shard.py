"""Fixtures: a shard with schedules on real files, whose clock only the test moves."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from tests.harness.served import (
    CHANGING,
    LOCAL,
    TOKEN,
    KitWriter,
    bearer,
    without_progress,
)

from duewheel.cli.schedules import _difference
from duewheel.config.settings import Settings, load
from duewheel.ops.schedules import apply_file, listing
from duewheel.serve.access import Access
from duewheel.serve.app import make_app
from duewheel.serve.service import Service
from duewheel.testing.memory_cluster import MemoryCluster
from duewheel.testing.service import LocalService
from duewheel.testing.service_start import SLOT_MS, WINDOW_MS

TIMER: dict[str, Any] = {
    "topics": ["timers", "others", "closed"],
    "targets": ["reports", "orders"],
    "topic": {"timers": {"recurring": True}, "others": {"recurring": True}},
}
DAILY = {"cron": "30 8 * * *", "zone": "Europe/Berlin", "target": "reports", "value": "daily"}
HOURLY = {"every": "1h", "target": "reports", "value": "ours"}
OTHERS = {"timer_topic": "others"}


@pytest.fixture
def service() -> Iterator[LocalService]:
    with LocalService.started({"timer": TIMER}) as started:
        yield started


@pytest.fixture
def cluster(service: LocalService) -> MemoryCluster:
    return service._cluster  # noqa: SLF001 - producers cannot write every record


@pytest.fixture
def config(service: LocalService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The settings of its files."""
    monkeypatch.setattr(listing, "READ_PAUSES_S", (0.0,))
    monkeypatch.setattr(listing, "CHANGE_PAUSES_S", (0.0,) * 2)
    monkeypatch.setattr(apply_file, "READ_PAUSES_S", ())
    return write_settings(service, tmp_path)


def write_settings(service: LocalService, folder: Path) -> Path:
    """Writes the settings of the service's files."""
    path = folder / "duewheel.toml"
    data_dir = service._shard.path  # noqa: SLF001 - a user has no files of the kit
    geometry = f'precision_ms = {SLOT_MS}\nslots = {WINDOW_MS // SLOT_MS}\nmargin = "0s"\n'
    names = f"topics = {TIMER['topics']}\ntargets = {TIMER['targets']}\n"
    path.write_text(
        f"[storage]\ndata_dir = {json.dumps(str(data_dir))}\n"
        f'[timer]\n{names}{geometry}roll_window = "{WINDOW_MS}ms"\n'
        "[timer.topic.timers]\nrecurring = true\n[timer.topic.others]\nrecurring = true\n"
    )
    return path


@pytest.fixture
def settings(config: Path) -> Settings:
    return load(config)


@pytest.fixture
def client(
    service: LocalService, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> Iterator[TestClient]:
    without_progress(monkeypatch)
    app = make_app(settings, service.clock, Access(CHANGING))
    own: Service = app.state.service
    writer = KitWriter(settings, service)
    app.state.service = Service(settings, own.clock, own.view, writer, own.recorder, own.metrics)
    with TestClient(app, base_url=LOCAL, headers=bearer(TOKEN)) as client:
        yield client


@pytest.fixture
def applied(service: LocalService, config: Path) -> Callable[..., list[str]]:
    """The lines of `schedule apply` of a text."""
    writer = KitWriter(load(config), service)

    def lines(text: str, **choice: bool) -> list[str]:
        path = config.with_name("schedules.toml")
        path.write_text(text)
        choice = {"prune": False, "dry_run": False, **choice}
        rows = apply_file.apply(writer, path, wait_s=0, **choice)
        writes = [row.change in {"added", "changed", "removed"} for row in rows]
        expected = [not each or not choice["dry_run"] for each in writes]
        assert [row.applied for row in rows] == expected
        return [" ".join(_difference(row).split()) for row in rows]

    return lines


def put(client: TestClient, name: str, **fields: Any) -> dict[str, Any]:
    response = client.put(f"/v1/schedules/{name}", json=fields)
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


def listed(client: TestClient) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = client.get("/v1/schedules").json()["schedules"]
    return rows


def rows(client: TestClient) -> list[tuple[str, str, str]]:
    found = client.get("/v1/schedules").json()["schedules"]
    return [(row["name"], row["timer_topic"], row["state"]) for row in found]


def squat(service: LocalService, name: str = "daily") -> None:
    service.producer("others").schedule("reports", b"theirs", id=name, every="1h")
    service.pending()
