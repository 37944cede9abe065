"""Page and API of every shard by one server: below /shards/N/."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from tests.harness.browser import listening
from tests.harness.local_world import NOW_MS
from tests.harness.served import (
    CHANGING,
    COUNT,
    READ_TOKEN,
    READING,
    TOKEN,
    bearer,
    fill,
    served,
    shard_of,
)

from duewheel.config.settings import Settings
from duewheel.dev.listeners import HOST, free_ports
from duewheel.ops.changes.producer_pool import ACKNOWLEDGED_S
from duewheel.ops.connection import ANSWER_S
from duewheel.ops.shard.present_files import PresentFilesWatch
from duewheel.serve import shard_requests
from duewheel.serve.access import Access
from duewheel.serve.app import make_app
from duewheel.serve.shard_requests import OtherShards
from duewheel.serve.waits import WAIT_MAX_S
from duewheel.testing import ManualClock

ACCESS = Access(change=CHANGING, read=READING)


@pytest.fixture
def other(tmp_path: Path) -> Settings:
    """Shard 1 of 2."""
    settings = shard_of(tmp_path / "other", index=1, count=2, user_headers={"proxy": "X-Person"})
    fill(settings)
    return settings


@contextmanager
def beside(other: Settings, tmp_path: Path, **serve: Any) -> Iterator[TestClient]:
    """Shard 0, whose server knows that of shard 1."""
    with ExitStack() as stack:
        app = make_app(other, ManualClock(NOW_MS), ACCESS)
        address = stack.enter_context(listening(app)).rstrip("/")
        yield stack.enter_context(served(shard_of(tmp_path, (address,), count=2, **serve), ACCESS))


def test_reads_of_another_shard(other: Settings, tmp_path: Path) -> None:
    with beside(other, tmp_path) as client:
        assert client.get("/shards/1/v1/timers").status_code == 401
        client.headers.update(bearer(READ_TOKEN))
        found = client.get("/shards/1/v1/timers", params={"limit": 3, "topic": "orders"})
        handle = found.json()["timers"][0]["handle"]
        assert client.get(f"/shards/1/v1/timers/{handle}").json()["handle"] == handle
        assert client.get("/shards/1/v1/status").json()["shard"] == 1
        assert client.get("/shards/1/v1/stats").json()["pending"] == 2 * COUNT
        unknown = client.get("/shards/1/v1/timers", params={"id": "a/b?c&d é"})
        assert unknown.json()["timers"] == []
        refused = client.get("/shards/1/v1/timers", params={"limit": "no"})
        assert (refused.status_code, refused.json()["code"]) == (422, "invalid_request")
        assert refused.headers["content-type"] == "application/problem+json"


def test_a_request_without_a_token_depends_on_no_other_server(
    other: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else anybody could have all servers asked, and the owners that others use forgotten."""
    with beside(other, tmp_path) as client:
        assert client.get("/shards/1/v1/status", headers=bearer(READ_TOKEN)).status_code == 200
        monkeypatch.setattr(OtherShards, "ask", None)
        for method, path in (("GET", "readyz"), ("GET", "v1/status"), ("POST", "v1/cancel")):
            refused = client.request(method, f"/shards/1/{path}")
            assert (refused.status_code, refused.json()["code"]) == (401, "unauthorized")


def test_the_page_of_another_shard_has_its_files_and_its_condition(
    other: Settings, tmp_path: Path
) -> None:
    with beside(other, tmp_path) as client:
        page = client.get("/shards/1/")
        assert "Content-Security-Policy" in page.headers
        assert page.content == client.get("/").content
        script = client.get("/shards/1/page/main.js")
        assert script.content == client.get("/page/main.js").content
        ready = client.get("/shards/1/readyz", headers=bearer(READ_TOKEN))
        assert (ready.status_code, ready.json()["code"]) == (503, "not_ready")


def test_a_change_of_another_shard_is_made_there_alone(other: Settings, tmp_path: Path) -> None:
    with beside(other, tmp_path) as client:
        refused = client.post("/shards/1/v1/pause/ingest", headers=bearer(READ_TOKEN))
        assert (refused.status_code, refused.json()["code"]) == (403, "reads_only")
        client.headers.update(bearer(TOKEN))
        assert client.post("/shards/1/v1/pause/ingest").status_code == 200
        assert client.post("/shards/1/v1/resume/ingest").json()["was_paused"]
        assert not (tmp_path / "data").exists()


def test_a_shard_without_a_server(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    with served(shard_of(tmp_path, (f"http://{HOST}:{port}",), count=2), ACCESS) as client:
        client.headers.update(bearer(TOKEN))
        for method in ("GET", "POST"):
            away = client.request(method, "/shards/1/v1/status")
            assert (away.status_code, away.json()["code"]) == (503, "shard_absent")
            assert "Retry-After" in away.headers
            assert away.json()["detail"].endswith(f"(http://{HOST}:{port}: Connection refused)")
        assert client.get("/shards/2/v1/status").status_code == 404
    with served(shard_of(tmp_path, count=2), ACCESS) as client:
        away = client.get("/shards/1/v1/status", headers=bearer(TOKEN))
        assert away.json()["code"] == "shard_absent"


def test_a_shard_whose_server_does_not_know_the_token(tmp_path: Path) -> None:
    """A later try would not help: `detail` must have that."""
    other = make_app(
        shard_of(tmp_path, index=1, count=2), ManualClock(NOW_MS), Access(CHANGING, {})
    )
    with (
        listening(other) as address,
        served(shard_of(tmp_path, (address.rstrip("/"),), count=2), ACCESS) as client,
    ):
        away = client.get("/shards/1/v1/timers", headers=bearer(READ_TOKEN)).json()
    assert away["code"] == "shard_absent"
    assert f"{address.rstrip('/')}: 401: give a valid token" in away["detail"]


def test_a_server_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change may have been made: no header invites to repeat it."""
    monkeypatch.setattr(shard_requests, "READ_S", 0.2)
    monkeypatch.setattr(shard_requests, "CHANGE_S", 0.2)
    with socket.create_server((HOST, 0)) as silent:
        url = f"http://{HOST}:{silent.getsockname()[1]}"
        monkeypatch.setattr(shard_requests, "_owners_of", lambda _: {1: url})
        with served(shard_of(tmp_path, (url,), count=2), ACCESS) as client:
            client.headers.update(bearer(TOKEN))
            read = client.get("/shards/1/v1/status")
            assert (read.status_code, read.json()["code"]) == (503, "shard_absent")
            changed = client.post("/shards/1/v1/pause/ingest")
            assert (changed.status_code, changed.json()["code"]) == (504, "unacknowledged")
            assert "Retry-After" not in changed.headers


def test_an_owner_has_as_long_as_it_waits_for_kafka_itself() -> None:
    """A client that gets no answer would repeat what is still going on."""
    assert shard_requests.READ_S > ANSWER_S
    assert shard_requests.CHANGE_S > 3 * ACKNOWLEDGED_S + WAIT_MAX_S, "with its two records"


def test_the_person_that_a_proxy_names_is_sent_on_and_nothing_else(tmp_path: Path) -> None:
    got: list[bytes] = []

    def answer(server: socket.socket) -> None:
        connection, _ = server.accept()
        with connection:
            got.append(connection.recv(65_536))
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")

    with socket.create_server((HOST, 0)) as server:
        url = f"http://{HOST}:{server.getsockname()[1]}"
        settings = shard_of(tmp_path, (url,), count=2, user_headers={"proxy": "X-Person"})
        others = OtherShards(settings, ManualClock(NOW_MS), PresentFilesWatch(settings))
        others._owners, others._fresh_until_s = {1: url}, float("inf")  # noqa: SLF001 - as asked
        thread = threading.Thread(target=answer, args=(server,))
        thread.start()
        headers = [("X-Person", "ann"), ("Authorization", "Bearer t"), ("Cookie", "own")]
        request = shard_requests.ForwardedRequest("POST", "/v1/cancel?wait=1", headers, b"{}")
        assert others.ask(1, request).status == 200
        thread.join()
    (head, body) = got[0].split(b"\r\n\r\n")
    lines = head.decode().lower().split("\r\n")
    assert lines[0] == "post /v1/cancel?wait=1 http/1.1"
    names = {line.partition(":")[0] for line in lines[1:]}
    assert names == {"host", "x-person", "authorization", "content-length"}
    assert body in {b"{}", b""}
