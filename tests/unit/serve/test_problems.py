"""Problems of the API: docs/http.md lists each code, and a body has to arrive in time."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import pytest
from starlette.types import Message, Receive, Scope, Send

import duewheel.serve
from duewheel.serve import gate

HTTP_MD = Path(__file__).resolve().parents[3] / "docs" / "http.md"
OF_ROUTER = {"not_found", "method_not_allowed"}  # Starlette's own


def test_the_page_lists_every_code() -> None:
    sources = Path(duewheel.serve.__path__[0]).rglob("*.py")
    code = re.compile(r'(?:HTTPStatus\.\w+,\s*|Refused\(status, |code: str = |_failed\()"(\w+)"')
    made = {found for path in sources for found in code.findall(path.read_text())}
    table = HTTP_MD.read_text().split("\n## Errors\n")[1].split("\n## ")[0]
    listed = re.findall(r"^\| \d+[\d, ]* \| (`.*?`) \|", table, re.MULTILINE)
    assert len(made) > 15
    assert {code for row in listed for code in re.findall(r"`(\w+)`", row)} == made | OF_ROUTER


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
