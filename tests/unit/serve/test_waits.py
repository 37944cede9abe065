"""Waits for the effect of changes: bounded, and ended with their client and with the server."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from fastapi import FastAPI
from starlette.requests import Request
from tests.harness.browser import listening
from tests.harness.launcher import wait_until
from tests.harness.local_world import NOW_MS
from tests.harness.opened_page import app_of
from tests.harness.served import (
    CHANGING,
    TOKEN,
    RecordingProducer,
    bearer,
    fill,
    settings_of,
)

from duewheel.client import Answer
from duewheel.client.handle import RecallHandle
from duewheel.errors import DuewheelError
from duewheel.serve.service import Service
from duewheel.serve.waits import REPLIES_MAX, Waits, all_of

HANDLE = RecallHandle("timers", 0, 7, NOW_MS, "x").encode()
URL = f"/v1/timers/{HANDLE}"


@pytest.fixture
def app(tmp_path: Path) -> FastAPI:
    """Of a shard whose ingest replies to nothing."""
    settings = settings_of(tmp_path)
    fill(settings)
    app: FastAPI = app_of(settings, RecordingProducer(answer=None), change=CHANGING)
    return app


@contextmanager
def client_of(app: FastAPI) -> Iterator[httpx.Client]:
    with (
        listening(app) as address,
        httpx.Client(base_url=address, headers=bearer(TOKEN), timeout=60) as client,
    ):
        yield client


def has_waits(app: FastAPI, count: int) -> bool:
    service: Service = app.state.service
    return len(service.waits._open) == count  # noqa: SLF001


def cancel(client: httpx.Client) -> httpx.Response:
    return client.delete(URL, params={"wait": 30})


def test_beyond_the_bound_the_longest_wait_ends(app: FastAPI) -> None:
    app.state.service.waits.waits_max = 10  # there are eight threads
    with client_of(app) as client, ThreadPoolExecutor(12) as pool:
        held = []
        for number in range(10):
            held.append(pool.submit(cancel, client))
            wait_until(partial(has_waits, app, number + 1), "it does not wait")
        for number in range(2):
            held.append(pool.submit(cancel, client))
            ended = held[number].result().json()
            assert ended["answer"] is None
            assert not any(each.done() for each in held[number + 1 :])
        app.state.service.end_waits()
        assert [each.result().status_code for each in held] == [202] * 12


def test_a_wait_ends_with_its_client(app: FastAPI) -> None:
    with client_of(app) as client, ThreadPoolExecutor(2) as pool:
        longer = pool.submit(cancel, client)
        wait_until(partial(has_waits, app, 1), "it does not wait")
        with pytest.raises(httpx.ReadTimeout):
            client.delete(URL, params={"wait": 30}, timeout=2)
        wait_until(partial(has_waits, app, 1), "it waits without a client")
        assert not longer.done()
        app.state.service.end_waits()


def test_the_wait_for_most_replies_ends_first() -> None:
    async def run() -> None:
        bounded = Waits(asyncio.Event())
        tasks = [
            asyncio.create_task(bounded.until(connected(), never(), 30, replies))
            for replies in (1, REPLIES_MAX - 2, 1)
        ]
        await asyncio.sleep(0)
        assert len(bounded._open) == 3  # noqa: SLF001
        assert not await bounded.until(connected(), never(), 0.01, 1)
        assert [task.done() for task in tasks] == [False, True, False]
        for task in tasks:
            task.cancel()

    asyncio.run(run())


def test_replies_end_a_wait_and_a_time_out_loses_none() -> None:
    async def run() -> None:
        bounded = Waits(asyncio.Event())
        replies: list[Future[Answer]] = [Future(), Future(), Future()]
        for reply in replies:
            reply.set_running_or_notify_cancel()  # as the client's
        assert not await bounded.until(connected(), all_of(replies), 0.01, 3)
        waiting = asyncio.create_task(bounded.until(connected(), all_of(replies), 30, 3))
        replies[2].set_result(Answer.CANCELLED)
        replies[0].set_exception(DuewheelError("the reply topic cannot be read"))
        await asyncio.sleep(0.01)
        assert not waiting.done()
        replies[1].set_result(Answer.UNKNOWN)
        assert await waiting
        assert await bounded.until(connected(), all_of(replies), 30, 3)
        assert not bounded._open  # noqa: SLF001

    asyncio.run(run())


def never() -> Coroutine[Any, Any, None]:
    return asyncio.sleep(3600)


def connected() -> Request:
    return Request({"type": "http"}, receive=asyncio.Future)
