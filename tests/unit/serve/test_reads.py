"""Reads of the HTTP API: lists, single timers, counts, probes and metrics.

Also of ops/pages.py, ops/timers/pending_histogram.py, serve/problems.py, serve/shard.py,
wheel/inspect/rolled_due_times.py.
"""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from threading import Event, Semaphore
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient
from starlette.requests import ClientDisconnect
from tests.harness.launcher import wait_until
from tests.harness.local_world import NOW_MS, LocalWorld
from tests.harness.served import COUNT, READ_TOKEN, TOKEN, bearer, fill, served, settings_of
from tests.harness.timer_rows import P0, TimerRow, timer_batch

from duewheel.api.messages import BODY_BYTES, HEADERS_SHOWN
from duewheel.api.requests import BulkCancel, TimerQuery
from duewheel.api.timers import PendingStats, TimerList
from duewheel.checkpoints.state_file import Damage, State
from duewheel.config.settings import load
from duewheel.errors import ConfigError, CorruptFile
from duewheel.ops.schedules import listing
from duewheel.ops.shard import lateness
from duewheel.ops.shard.pause import set_paused
from duewheel.ops.timers import pending as timers
from duewheel.ops.timers import pending_histogram
from duewheel.schemas.columns import binary
from duewheel.schemas.wire.record_codec import framed_bytes
from duewheel.serve import shard
from duewheel.serve.access import Access, Caller
from duewheel.serve.service import READS_MAX, WAITING_MAX


@pytest.fixture
def client(tmp_path: Path) -> Iterator[TestClient]:
    settings = settings_of(tmp_path)
    fill(settings)
    with served(settings) as client:
        yield client


def listed(client: TestClient, **wanted: Any) -> dict[str, Any]:
    response = client.get("/v1/timers", params=wanted)
    assert response.status_code == 200, response.text
    page: dict[str, Any] = response.json()
    return page


def problem(response: Any, status: int, code: str) -> dict[str, Any]:
    assert (response.status_code, response.json()["code"]) == (status, code), response.text
    assert response.headers["content-type"] == "application/problem+json"
    content: dict[str, Any] = response.json()
    assert content["status"] == status and content["title"]
    return content


def test_a_list_has_pages(client: TestClient) -> None:
    page = listed(client, limit=100)
    assert len(page["timers"]) == 100
    rest = listed(client, limit=100, page=page["next"])
    assert (len(rest["timers"]), rest["next"]) == (2 * COUNT - 100, None)
    sources = [timer["source"] for timer in page["timers"] + rest["timers"]]
    assert len(set(sources)) == 2 * COUNT
    leaves = [timer["leaves_ms"] for timer in page["timers"] + rest["timers"]]
    assert leaves == sorted(leaves)


@pytest.mark.parametrize(
    ("slow_path", "module", "function", "other_path"),
    [
        ("stats", pending_histogram, "pending_breakdown", "status"),
        ("schedules", listing, "pending_copies", "timers"),
        ("schedules/daily", listing, "pending_copies", "timers"),
        ("schedules/daily/next", listing, "pending_copies", "timers"),
    ],
)
def test_reads_that_take_long_hold_no_other_read(
    client: TestClient,
    monkeypatch: pytest.MonkeyPatch,
    slow_path: str,
    module: ModuleType,
    function: str,
    other_path: str,
) -> None:
    """A first count reads the whole timer log, and pages ask again every few seconds. A look for
    schedules is a pass over all logs, and reads the messages of all schedules.
    """
    begun, may_end = Semaphore(0), Event()

    def slow(*_: Any, **__: Any) -> Any:
        begun.release()
        may_end.wait()
        raise ConfigError("enough")

    monkeypatch.setattr(module, function, slow)
    with ThreadPoolExecutor(READS_MAX + 1) as pool, ExitStack() as ending:
        ending.callback(may_end.set)
        slow_reads = [pool.submit(client.get, f"/v1/{slow_path}") for _ in range(READS_MAX)]
        begun.acquire()
        other = pool.submit(client.get, f"/v1/{other_path}")
        wait_until(other.done, f"{other_path} waits for {slow_path}", 10)
        assert other.result().status_code == 200
        assert not any(each.done() for each in slow_reads)
    assert {each.result().json()["detail"] for each in slow_reads} == {"enough"}


def test_requests_for_one_thing_leave_room_for_others(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that repeats slow reads on all its connections must not make all others `busy`."""
    may_end, refused = Event(), Semaphore(0)

    def slow(*_: Any) -> PendingStats:
        may_end.wait()
        raise ConfigError("enough")

    def ask() -> Any:
        answer = client.get("/v1/stats")
        refused.release()
        return answer

    monkeypatch.setattr(pending_histogram, "pending_breakdown", slow)
    many = WAITING_MAX + 1
    with ThreadPoolExecutor(2 * many) as pool, ExitStack() as ending:
        ending.callback(may_end.set)
        polls = [pool.submit(ask) for _ in range(2 * many)]
        for _ in range(many):
            refused.acquire()
        assert client.get("/v1/status").status_code == 200
    codes = sorted(each.result().json()["code"] for each in polls)
    assert codes == ["busy"] * many + ["invalid_request"] * many


def test_the_reads_of_one_caller_neither_refuse_nor_delay_those_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """40 slow reads at a time made all reads of another team `busy`, and so for as long as the
    first repeated them.
    """
    teams = {TOKEN.encode(): Caller("ana"), READ_TOKEN.encode(): Caller("ben")}
    may_end, refused, page_of = Event(), Semaphore(0), timers.page_of

    def slow_for_a_key(of: Any, wanted: TimerQuery, **named: Any) -> Any:
        if wanted.key is None:
            return page_of(of, wanted, **named)
        may_end.wait()
        raise ConfigError("enough")

    monkeypatch.setattr(timers, "page_of", slow_for_a_key)
    many, waiting = 40, READS_MAX - 1 + WAITING_MAX
    settings = settings_of(tmp_path)
    fill(settings)
    with (
        served(settings, Access(None, teams)) as client,
        ThreadPoolExecutor(many) as pool,
        ExitStack() as ending,
    ):
        ending.callback(may_end.set)

        def ask() -> Any:
            answer = client.get("/v1/timers?key=k", headers=bearer(TOKEN))
            refused.release()
            return answer

        polls = [pool.submit(ask) for _ in range(many)]
        for _ in range(many - waiting):
            refused.acquire()
        assert client.get("/v1/timers", headers=bearer(READ_TOKEN)).status_code == 200
        may_end.set()
    codes = sorted(each.result().json()["code"] for each in polls)
    assert codes == ["busy"] * (many - waiting) + ["invalid_request"] * waiting


def test_filters_hold_together(client: TestClient) -> None:
    span = {"from": "2027-01-15T09:00:10+01:00", "to": NOW_MS + 20_000}
    timers = listed(client, topic="orders", key="key", **span)["timers"]
    assert {(timer["topic"], timer["key"]) for timer in timers} == {("orders", "key")}
    offsets = {int(timer["source"].partition("@")[2]) for timer in timers}
    assert offsets == {n for n in range(10, 21) if n % 2 == 0 and n % 3 == 2}
    assert listed(client, key_base64="a2V5", **span, topic="orders")["timers"] == timers
    (by_id,) = listed(client, id=timers[0]["id"])["timers"]
    assert by_id == timers[0]


def test_one_timer_is_shown_without_its_message(client: TestClient) -> None:
    timer = listed(client, limit=1)["timers"][0]
    shown = client.get(f"/v1/timers/{timer['handle']}").json()
    assert shown.items() >= timer.items()
    assert (shown["value"], shown["headers"], shown["header_names"]) == (None, None, ["h"])


def test_bodies_are_shown_if_that_is_set(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, show_bodies=True)
    fill(settings)
    with served(settings) as client:
        timer = listed(client, limit=1)["timers"][0]
        assert "value" not in timer
        shown = client.get(f"/v1/timers/{timer['handle']}").json()
    assert shown["value"] == timer["source"] * 1
    assert shown["headers"] == [{"name": "h", "value": None, "value_base64": "/wA="}]


@pytest.mark.parametrize("body", [False, True])
def test_one_timer_of_any_length_is_a_short_answer(tmp_path: Path, *, body: bool) -> None:
    """A key or headers of 40 MiB are a few KiB of a compressed record, and 240 MiB of JSON."""
    settings = settings_of(tmp_path, show_bodies=body)
    world = LocalWorld(settings.storage.data_dir, settings.wheel, starts={P0: 0})
    batch = timer_batch([TimerRow(0, 1, NOW_MS + 1_000)])
    octets, count = framed_bytes(b"\1" * (2 << 20)), 50_000
    header = framed_bytes(b"\1" * 40) + framed_bytes(b"1")
    batch = replace(
        batch,
        key_value=binary([2 * octets]),
        headers=binary([header * count]),
        header_count=np.array([count], np.int32),
    )
    world.engine.append(batch, {P0: 2})
    world.stop()
    with served(settings) as client:
        (timer,) = listed(client)["timers"]
        answer = client.get(f"/v1/timers/{timer['handle']}")
    shown = answer.json()
    assert (shown["key_bytes"], shown["header_count"]) == (2 << 20, count)
    assert shown["value_shown_bytes"] == (BODY_BYTES if body else None)
    assert len(shown["headers"] or shown["header_names"]) == HEADERS_SHOWN
    assert len(answer.content) < (14 << 20 if body else 1 << 20)


def test_what_is_not_pending_is_not_found(client: TestClient) -> None:
    timer = listed(client, limit=1)["timers"][0]
    problem(client.get(f"/v1/timers/{timer['handle'][:-1]}"), 422, "invalid_request")
    problem(client.get("/v1/nothing"), 404, "not_found")
    problem(client.delete("/v1/timers"), 405, "method_not_allowed")


@pytest.mark.parametrize(
    "wanted",
    [
        {"limit": 0},
        {"limit": 1_001},
        {"limit": "x"},
        {"page": "x"},
        {"from": "yesterday"},
        {"from": "2027-01-15T09:00:10"},
        {"to": "9" * 18},
        {"level": 256},
        {"key_base64": "*"},
        {"key": "a", "key_base64": "YQ=="},
        {"id": "i" * 256},
    ],
)
def test_an_invalid_parameter_is_a_problem(client: TestClient, wanted: dict[str, Any]) -> None:
    problem(client.get("/v1/timers", params=wanted), 422, "invalid_request")


def test_the_histogram_has_everything(client: TestClient) -> None:
    counts = client.get("/v1/histogram").json()
    assert (counts["pending"], counts["overdue"], counts["rolls"]) == (2 * COUNT, 0, 0)
    minute, hour, day, horizon = counts["ranges"]
    # A timer that is due at a bound leaves at it, and counts before it.
    assert minute["counts"] == [2] * 60
    assert [each["counts"][0] for each in (hour, day, horizon)] == [2 * COUNT] * 3
    span = {"from": NOW_MS + 10_000, "to": NOW_MS + 20_000, "buckets": 5}
    (zoomed,) = client.get("/v1/histogram", params=span).json()["ranges"]
    assert zoomed["counts"] == [4] * 5
    problem(client.get("/v1/histogram", params={"from": 1}), 422, "invalid_request")
    problem(client.get("/v1/histogram", params={"from": 2, "to": 1}), 422, "invalid_request")


def test_a_span_has_one_name(client: TestClient) -> None:
    """The names of the fields in Python are none of the API's."""
    span = {"since": NOW_MS, "until": NOW_MS + 1}
    named = {each["name"] for each in client.get("/v1/histogram", params=span).json()["ranges"]}
    assert "range" not in named
    with pytest.raises(ConfigError, match="since: Extra inputs"):
        BulkCancel.of({"filter": span, "dry_run": True})


def test_stats_and_status(client: TestClient) -> None:
    assert client.get("/v1/stats").json()["pending"] == 2 * COUNT
    status = client.get("/v1/status").json()
    assert (status["pending"], status["ready"]) == (2 * COUNT, False)


def test_probes_of_a_shard_that_does_not_run(client: TestClient) -> None:
    assert client.get("/livez").text == "ok"
    reasons = problem(client.get("/readyz"), 503, "not_ready")["reasons"]
    assert {"ingest_not_running", "dequeue_not_running"} <= reasons.keys()


def test_a_directory_that_cannot_be_written_is_enough(
    client: TestClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sidecar has the volume read-only. Tests may run as root, so the double refuses."""
    opened = os.open

    def reading(path: Any, flags: int, *rest: Any, **named: Any) -> int:
        if flags & (os.O_RDWR | os.O_WRONLY | os.O_CREAT):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        return opened(path, flags, *rest, **named)

    monkeypatch.setattr(os, "open", reading)
    assert listed(client, limit=1)["timers"]
    for path in ("/v1/histogram", "/v1/stats", "/v1/status", "/metrics"):
        assert client.get(path).status_code == 200, path
    assert "dequeue_not_running" in problem(client.get("/readyz"), 503, "not_ready")["reasons"]
    with pytest.raises(ConfigError, match="cannot be written here"):
        set_paused(settings_of(tmp_path), "ingest", on=True)


def test_metrics_count_the_requests(client: TestClient) -> None:
    listed(client)
    client.get("/v1/nothing")
    text = client.get("/metrics").text
    requests = "duewheel_http_requests_total"
    assert requests + '{code="",operation="list_timers",status="200"} 1.0' in text
    assert requests + '{code="not_found",operation="none",status="404"} 1.0' in text
    assert 'duewheel_http_request_duration_seconds_count{operation="list_timers"} 1.0' in text


def test_metrics_name_the_operation_that_fails(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors = [ValueError("a defect"), CorruptFile("file", 0, "damaged")]

    def failing(*_: Any) -> None:
        raise errors.pop()

    monkeypatch.setattr(shard, "read_status", failing)
    while errors:
        assert client.get("/v1/status").status_code == 500
    text = client.get("/metrics").text
    for code in ("corrupt_file", "internal_error"):
        assert f'{{code="{code}",operation="status",status="500"}} 1.0' in text
    assert "duewheel_ready 0.0" in text


def test_a_client_that_leaves_is_no_error_of_the_service(client: TestClient) -> None:
    """Otherwise anybody could raise the alert of failed requests."""
    parts = iter([{"type": "http.request", "body": b"{", "more_body": True}])
    answers: list[Any] = []

    async def receive() -> Any:
        return next(parts, {"type": "http.disconnect"})

    async def send(message: Any) -> None:
        answers.append(message)

    async def leave() -> None:
        scope = client.build_request("POST", "/v1/timers/cancel").headers.raw
        headers = [*((name.lower(), value) for name, value in scope), (b"content-length", b"99")]
        place = {"scheme": "http", "server": ("localhost", 80), "client": ("127.0.0.1", 9)}
        request = {"method": "POST", "path": "/v1/timers/cancel", "raw_path": b"/v1/timers/cancel"}
        http = {"type": "http", "http_version": "1.1", "root_path": "", "query_string": b""}
        with suppress(ClientDisconnect):
            await client.app({**http, **place, **request, "headers": headers}, receive, send)

    assert client.portal is not None
    client.portal.call(leave)
    assert answers == []
    text = client.get("/metrics").text
    assert 'status="499"} 1.0' in text
    assert 'status="500"}' not in text


def test_without_files_there_is_nothing_to_read(tmp_path: Path) -> None:
    with served(settings_of(tmp_path)) as client:
        for path in ("timers", "histogram", "stats", "status"):
            response = client.get(f"/v1/{path}")
            problem(response, 503, "no_data_directory")
            assert response.headers["retry-after"]
        assert "no_data_directory" in client.get("/readyz").json()["reasons"]
        assert client.get("/livez").status_code == client.get("/metrics").status_code == 200


def test_files_under_recovery_are_not_read(client: TestClient, tmp_path: Path) -> None:
    with State.open(tmp_path / "data") as state:
        state.note_damage(Damage.CACHE_LOST)
    for path in ("timers", "histogram", "stats"):
        problem(client.get(f"/v1/{path}"), 503, "recovering")
    assert "recovering" in client.get("/readyz").json()["reasons"]


@pytest.mark.parametrize("spoil", ["damaged", "no directory", "other settings"])
def test_files_that_cannot_be_read_are_told(client: TestClient, tmp_path: Path, spoil: str) -> None:
    data = tmp_path / "data"
    if spoil == "damaged":
        (data / "state").unlink()  # a cut of the mapped file would end this process, too
        (data / "state").write_bytes(b"x")
    elif spoil == "no directory":
        data.rename(tmp_path / "moved")
        data.write_text("a file")
    context: Any = nullcontext(client)
    if spoil == "other settings":
        timer = {"topics": "timers", "slots": 200_000, "roll_window": "1h", "margin": "5m"}
        context = served(load(None, {"timer": timer, "storage": {"data_dir": data}}))
    with context as present:
        code = "no_data_directory" if spoil == "no directory" else "unreadable"
        for path in ("timers", "histogram", "stats", "status", "timers/AQ"):
            problem(present.get(f"/v1/{path}"), 503, code)
        assert code in problem(present.get("/readyz"), 503, "not_ready")["reasons"]
        assert present.get("/livez").status_code == present.get("/metrics").status_code == 200


def test_a_restored_copy_is_counted_again(client: TestClient, tmp_path: Path) -> None:
    data, copy = tmp_path / "data", tmp_path / "copy"
    shutil.copytree(data, copy)
    assert client.get("/v1/stats").json()["pending"] == 2 * COUNT
    before = client.app.state.service.view._directory  # type: ignore[attr-defined]  # noqa: SLF001
    data.rename(tmp_path / "old")
    copy.rename(data)
    assert client.get("/v1/stats").json()["pending"] == 2 * COUNT
    assert client.app.state.service.view._directory is not before  # type: ignore[attr-defined]  # noqa: SLF001


def test_files_that_are_replaced_during_a_read_are_no_damage(
    client: TestClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def page_of(*_: Any, **__: Any) -> TimerList:
        with State.open(tmp_path / "data") as state:
            state.note_damage(Damage.FILES_LOST)
        raise CorruptFile("timerlog/1", 0, "the hour's file is missing")

    monkeypatch.setattr(timers, "page_of", page_of)
    problem(client.get("/v1/timers"), 503, "recovering")


def test_the_description_has_problems(client: TestClient) -> None:
    described = client.get("/openapi.json").json()
    for path, operations in described["paths"].items():
        for operation in operations.values():
            for status, response in operation["responses"].items():
                media = response.get("content", {}).keys()
                expected = {"application/problem+json"} if int(status) >= 400 else media
                assert media == expected, (path, status)
    assert client.get("/docs").status_code == client.get("/redoc").status_code == 404


def test_files_are_read_beside_the_event_loop(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There a slow disk would delay the probes, and every other request."""
    running = list[bool]()

    def opened(*given: Any) -> State:
        try:
            running.append(asyncio.get_running_loop().is_running())
        except RuntimeError:
            running.append(False)
        return State.open(*given)

    monkeypatch.setattr(lateness, "open_state", lambda settings: opened(settings.storage.data_dir))
    assert client.get("/v1/lateness").status_code == 200
    assert running == [False]


def test_a_shard_without_files_has_no_lateness(tmp_path: Path) -> None:
    with served(settings_of(tmp_path)) as client:
        found = client.get("/v1/lateness")
    assert (found.status_code, found.json()["available"]) == (200, False)
