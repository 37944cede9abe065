"""The shards of an app side by side: each server is asked for its own."""

from __future__ import annotations

import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from tests.harness.browser import listening
from tests.harness.launcher import wait_until
from tests.harness.local_world import NOW_MS
from tests.harness.served import (
    CHANGING,
    COUNT,
    READ_TOKEN,
    TOKEN,
    bearer,
    fill,
    served,
    settings_of,
    shard_of,
)

from duewheel.config.settings import load
from duewheel.dev.listeners import HOST, free_ports
from duewheel.errors import ConfigError
from duewheel.serve import fleet, server_connection
from duewheel.serve.access import Access, Caller
from duewheel.serve.app import make_app
from duewheel.testing import ManualClock

READERS = Access(read={READ_TOKEN.encode(): Caller("reader")})


def away_address() -> str:
    (port,) = free_ports(1)
    return f"http://{HOST}:{port}"


@contextmanager
def answering(status: int, headers: dict[str, str], body: bytes) -> Iterator[tuple[str, list[Any]]]:
    """A server that gives one answer; yields its address, and the headers that it gets."""
    seen: list[Any] = []

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self.headers)
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Nothing."""

    server = ThreadingHTTPServer((HOST, 0), Answer)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://{HOST}:{server.server_port}", seen
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_without_other_servers_it_is_this_shard(tmp_path: Path) -> None:
    settings = shard_of(tmp_path)
    fill(settings)
    with served(settings) as client:
        found = client.get("/v1/fleet").json()
    (member,) = found["members"]
    assert (member["url"], member["error"]) == (None, None)
    assert (member["status"]["shard"], member["status"]["pending"]) == (0, 2 * COUNT)
    assert (found["shards"], found["absent"]) == (1, [])


def test_an_answer_from_the_files_names_their_shard(tmp_path: Path) -> None:
    settings = shard_of(tmp_path, count=3)
    fill(settings)
    counted = {"filter": {"topic": "orders"}, "dry_run": True}
    with served(settings, Access(CHANGING)) as client:
        answers = [client.get(f"/v1/{path}") for path in ("timers", "histogram", "stats")]
        answers.append(client.post("/v1/cancel", json=counted, headers=bearer(TOKEN)))
    for answer in answers:
        assert (answer.json()["shard"], answer.json()["shards"]) == (0, 3), answer.text


def test_a_shard_without_files_is_away(tmp_path: Path) -> None:
    with served(shard_of(tmp_path)) as client:
        found = client.get("/v1/fleet").json()
    assert found["members"][0]["status"] is None
    assert "there is no data directory" in found["members"][0]["error"]
    assert found["absent"] == [0]


def test_each_server_is_asked_with_the_token_of_the_request(tmp_path: Path) -> None:
    other = settings_of(tmp_path / "other")
    fill(other)
    with listening(make_app(other, ManualClock(NOW_MS), READERS)) as address:
        urls = (address.rstrip("/"), away_address())
        with served(shard_of(tmp_path, urls, count=2), READERS) as client:
            assert client.get("/v1/fleet").status_code == 401
            found = client.get("/v1/fleet", headers=bearer(READ_TOKEN)).json()
    here, away = found["members"]
    assert (here["url"], here["status"]["pending"]) == (urls[0], 2 * COUNT)
    assert here["status"]["conditions"], "a stopped shard is not ready"
    assert (away["url"], away["status"]) == (urls[1], None)
    assert away["error"] == "Connection refused"
    assert (found["shards"], found["absent"]) == (2, [1])


def test_an_answer_that_is_too_large_is_refused_not_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its beginning counted as the whole answer, and was no status of a shard."""
    monkeypatch.setattr(server_connection, "ANSWER_BYTES_MAX", 1 << 20)
    with (
        answering(200, {}, b" " * ((1 << 20) + 1)) as (address, _),
        served(shard_of(tmp_path, (address,))) as client,
    ):
        (member,) = client.get("/v1/fleet").json()["members"]
    assert member["error"] == "an answer of more than 1 MiB"


def test_a_shard_has_the_same_facts_from_its_own_server_and_from_another(tmp_path: Path) -> None:
    shard = settings_of(tmp_path / "shard")
    fill(shard)
    with served(shard) as client:
        (own,) = client.get("/v1/fleet").json()["members"]
    with (
        listening(make_app(shard, ManualClock(NOW_MS), Access())) as address,
        served(shard_of(tmp_path, (address.rstrip("/"),))) as client,
    ):
        (asked,) = client.get("/v1/fleet").json()["members"]
    assert own["status"] == asked["status"]


def test_a_server_with_tls_needs_a_certificate_that_is_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, require: Callable[[object, str], None]
) -> None:
    require(shutil.which("openssl"), "no openssl")
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    words = ["openssl", "req", "-x509", "-nodes", "-newkey", "rsa:2048", "-subj", "/CN=server"]
    words += ["-addext", f"subjectAltName=IP:{HOST}", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(words, check=True, capture_output=True)
    tls = {"ssl_certfile": certificate, "ssl_keyfile": key}
    other = settings_of(tmp_path / "other")
    fill(other)
    with listening(make_app(other, ManualClock(NOW_MS), Access()), **tls) as address:
        url = address.rstrip("/")
        with served(shard_of(tmp_path, (url,))) as client:
            (member,) = client.get("/v1/fleet").json()["members"]
            assert "certificate verify failed" in member["error"]
            monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
            (member,) = client.get("/v1/fleet").json()["members"]
    assert member["status"]["pending"] == 2 * COUNT


def test_a_server_that_refuses_the_token_says_so(tmp_path: Path) -> None:
    other = settings_of(tmp_path / "other")
    with (
        listening(make_app(other, ManualClock(NOW_MS), READERS)) as address,
        served(shard_of(tmp_path, (address.rstrip("/"),))) as client,
    ):
        (member,) = client.get("/v1/fleet").json()["members"]
    assert member["error"].startswith("401: give a valid token")


def test_the_token_goes_to_no_other_server(tmp_path: Path) -> None:
    with (
        answering(200, {}, b"{}") as (elsewhere, seen),
        answering(302, {"Location": f"{elsewhere}/v1/status"}, b"") as (moved, asked),
        served(shard_of(tmp_path, (moved,)), READERS) as client,
    ):
        found = client.get("/v1/fleet", headers=bearer(READ_TOKEN)).json()
    assert [headers["Authorization"] for headers in asked] == [f"Bearer {READ_TOKEN}"]
    assert seen == []
    assert found["members"][0]["error"].startswith("302: ")


@pytest.mark.parametrize("endless", [b"HTTP/1.1 200 OK\r\n\r\n", b"HTTP/1.1 200 OK\r\nX: "])
def test_a_server_that_answers_without_end_is_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, endless: bytes
) -> None:
    monkeypatch.setattr(fleet, "ANSWER_S", 0.3)
    with socket.create_server((HOST, 0)) as listener:

        def drip() -> None:
            with listener.accept()[0] as connection, suppress(OSError):
                connection.sendall(endless)
                while True:
                    connection.sendall(b"x")
                    time.sleep(0.05)

        server = threading.Thread(target=drip)
        server.start()
        url = f"http://{HOST}:{listener.getsockname()[1]}"
        with served(shard_of(tmp_path, (url,))) as client:
            (member,) = client.get("/v1/fleet").json()["members"]
        server.join(30)
        assert not server.is_alive(), "the connection stays"
    assert member["error"].startswith("no answer within")
    wait_until(lambda: "fleet" not in {each.name for each in threading.enumerate()}, "its thread")


NESTED = b"[" * 200_000


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"{}", b'{"shard": 0}', b'{"ingest": 5}', b"\xff", NESTED]
)
def test_what_is_no_status_is_said(tmp_path: Path, body: bytes) -> None:
    with answering(200, {}, body) as (url, _), served(shard_of(tmp_path, (url,))) as client:
        (member,) = client.get("/v1/fleet").json()["members"]
    assert member["error"] == "its answer is no status of a shard"


@pytest.mark.parametrize(
    "url", ["timers-0:8466", "ftp://timers-0", "http://timers-0/x", "http://me:secret@timers-0"]
)
def test_an_address_is_one_of_a_server(url: str) -> None:
    with pytest.raises(ConfigError, match="is no address of a server"):
        load(overrides={"timer": {"topics": "t"}, "serve": {"shards": url}})
