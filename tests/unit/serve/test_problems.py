"""Problems of the API: docs/http.md lists each code, and a body has to arrive in time."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from starlette.types import Message, Receive, Scope, Send
from structlog.testing import capture_logs
from tests.harness.error_tree import descendants
from tests.harness.progress_rows import progress_of
from tests.harness.served import CHANGING, TOKEN, bearer, fill, served, settings_of

import duewheel.serve
from duewheel.checkpoints.progress import Progress
from duewheel.config.settings import load
from duewheel.errors import DuewheelError
from duewheel.ops.dead_letters import replay
from duewheel.ops.timers import pending
from duewheel.serve import gate, shard
from duewheel.serve.access import Access

HTTP_MD = Path(__file__).resolve().parents[3] / "docs" / "http.md"
OF_ROUTER = {"bad_request", "not_found", "method_not_allowed"}  # Starlette's own


def test_the_page_lists_every_code() -> None:
    sources = Path(duewheel.serve.__path__[0]).rglob("*.py")
    code = re.compile(r'(?:HTTPStatus\.\w+,\s*|Refused\(status, |code: str = |_failed\()"(\w+)"')
    made = {found for path in sources for found in code.findall(path.read_text())}
    made.add(DuewheelError.problem.code)
    made |= {kind.problem.code for kind in descendants(DuewheelError)}
    table = HTTP_MD.read_text().split("\n## Errors\n")[1].split("\n## ")[0]
    listed = re.findall(r"^\| \d+[\d, ]* \| (`.*?`) \|", table, re.MULTILINE)
    assert len(made) > 15
    assert {code for row in listed for code in re.findall(r"`(\w+)`", row)} == made | OF_ROUTER


def require_misconfigured(client: TestClient, url: str, body: Any, reason: str) -> None:
    """The caller is not blamed, and only the log has the reason."""
    with capture_logs() as log:
        response = client.post(url, json=body, headers=bearer(TOKEN))
    assert (response.status_code, response.json()["code"]) == (503, "misconfigured")
    assert reason not in response.text
    (line,) = (each for each in log if each["log_level"] == "error")
    assert reason in line["reason"]


def test_a_password_that_cannot_be_read_is_no_fault_of_the_caller(tmp_path: Path) -> None:
    secret = tmp_path / "password"
    secret.write_text("hunter2")
    login = {"security_protocol": "SASL_SSL", "sasl_mechanism": "PLAIN"}
    login |= {"sasl_plain_username": "ann", "sasl_plain_password_file": str(secret)}
    timer = {"topics": "timers", "targets": "*"}
    settings = load(None, {"timer": timer, "kafka": {"client": login}})
    secret.unlink()
    with served(settings, Access(CHANGING)) as client:
        new = {"topic": "orders", "value": "v", "delay": "1m"}
        require_misconfigured(client, "/v1/timers", new, str(secret))


def test_a_volume_that_is_read_only_is_no_fault_of_the_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tests may run as root, so the double refuses."""
    settings, opened = settings_of(tmp_path), os.open
    fill(settings)

    def reading(path: Any, flags: int, *rest: Any, **named: Any) -> int:
        if flags & os.O_RDWR:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        return opened(path, flags, *rest, **named)

    monkeypatch.setattr(os, "open", reading)
    with served(settings, Access(CHANGING)) as client:
        require_misconfigured(client, "/v1/pause/ingest", None, "cannot be written here")


def test_settings_that_are_not_in_force_are_no_fault_of_the_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay, "newest_progress", lambda _: progress_of([("timers", 0)]))
    with served(settings_of(tmp_path), Access(CHANGING)) as client:
        reason = "the shard follows other settings than these"
        require_misconfigured(client, "/v1/dead-letters/replay", {"dry_run": True}, reason)


def test_progress_that_cannot_be_read_is_for_an_operator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreadable(_: Any) -> Progress:
        return Progress.decode(b"{")

    monkeypatch.setattr(replay, "newest_progress", unreadable)
    with served(settings_of(tmp_path), Access(CHANGING)) as client, capture_logs() as log:
        url, headers = "/v1/dead-letters/replay", bearer(TOKEN)
        response = client.post(url, json={"dry_run": True}, headers=headers)
    assert (response.status_code, response.json()["code"]) == (503, "recovery_refused")
    (line,) = (each for each in log if each["log_level"] == "error")
    assert "the progress record cannot be read" in line["reason"]


def test_a_search_that_takes_too_long_is_no_invalid_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_of(tmp_path)
    fill(settings)
    monkeypatch.setattr(pending, "SEARCH_S", -1.0)
    with served(settings, Access(CHANGING)) as client:
        wanted = {"filter": {"topic": "orders"}, "dry_run": True}
        response = client.post("/v1/cancel", json=wanted, headers=bearer(TOKEN))
    assert (response.status_code, response.json()["code"]) == (422, "too_much")
    assert "narrow the filter" in response.json()["detail"]


def test_receipts_that_no_setting_asks_for_do_not_exist(tmp_path: Path) -> None:
    with served(settings_of(tmp_path), Access(CHANGING)) as client:
        response = client.get("/v1/receipts")
    assert (response.status_code, response.json()["code"]) == (404, "no_receipts")
    assert "timer.receipts_topic" in response.json()["detail"]


def test_a_body_that_does_not_arrive_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "BODY_S", 0.05)
    first: list[Message] = [{"type": "http.request", "body": b"{", "more_body": True}]
    sent: list[Message] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        raise AssertionError("the request is not whole")

    async def receive() -> Message:
        return first.pop() if first else await asyncio.Future()

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "raw_path": b"/v1/timers", "query_string": b""}
    asyncio.run(gate.Gate(app, None, 100)(scope | {"headers": []}, receive, send))
    assert sent[0]["status"] == 408
    assert json.loads(sent[1]["body"])["code"] == "body_too_slow"


def test_a_body_that_is_no_text_is_a_problem(tmp_path: Path) -> None:
    headers = {"Content-Type": "application/json", **bearer(TOKEN)}
    with served(settings_of(tmp_path), Access(CHANGING)) as client:
        response = client.post("/v1/timers", content=b'"\xff"', headers=headers)
    assert (response.status_code, response.json()["code"]) == (400, "bad_request")


def test_the_response_to_a_defect_has_the_headers_of_every_response(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def defective(*_: Any) -> None:
        raise RuntimeError("hunter2")

    monkeypatch.setattr(shard, "read_lateness", defective)
    with served(settings_of(tmp_path)) as client:
        response = client.get("/v1/lateness")
        metrics = client.get("/metrics").text
    assert (response.status_code, response.json()["code"]) == (500, "internal_error")
    assert "hunter2" not in response.text
    assert response.headers["cache-control"] == "no-store"
    assert response.headers["x-content-type-options"] == "nosniff"
    assert 'code="internal_error",operation="lateness",status="500"' in metrics
