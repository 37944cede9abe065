"""Who may read and change, what the gate refuses, and which settings are refused."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs
from tests.harness.served import (
    CHANGING,
    LOCAL,
    READ_TOKEN,
    READING,
    TOKEN,
    RecordingProducer,
    bearer,
    fill,
    served,
    settings_of,
)

from duewheel.config.keys_and_defaults import ServeSection
from duewheel.errors import ConfigError
from duewheel.schemas.topic_scope import TopicScope
from duewheel.serve import access, gate
from duewheel.serve.access import Access, Caller, warn_of_doubts
from duewheel.serve.server import listening, run_serve

NEW: dict[str, Any] = {"topic": "orders", "value": "v", "delay": "1m"}


def test_changes_need_a_token(tmp_path: Path) -> None:
    with served(settings_of(tmp_path), producer=RecordingProducer()) as client:
        response = client.post("/v1/timers", json=NEW, headers=bearer(TOKEN))
        assert (response.status_code, response.json()["code"]) == (403, "changes_off")


@pytest.mark.parametrize(
    "headers",
    [{}, bearer(TOKEN[:-1]), bearer("é"), {"Authorization": f"Basic {TOKEN}"}],
)
def test_a_wrong_token_changes_nothing(tmp_path: Path, headers: dict[str, str]) -> None:
    producer = RecordingProducer()
    access = Access(CHANGING, READING)
    encoded = {name.encode(): value.encode() for name, value in headers.items()}
    with served(settings_of(tmp_path), access, producer) as client:
        response = client.post("/v1/timers", json=NEW, headers=encoded)
        assert (response.status_code, response.json()["code"]) == (401, "unauthorized")
        assert response.headers["www-authenticate"] == "Bearer"
        assert producer.calls == []
        assert client.post("/v1/timers", json=NEW, headers=bearer(TOKEN)).status_code == 201


def test_a_token_of_reads_changes_nothing(tmp_path: Path) -> None:
    producer = RecordingProducer()
    with served(settings_of(tmp_path), Access(CHANGING, READING), producer) as client:
        response = client.post("/v1/timers", json=NEW, headers=bearer(READ_TOKEN))
    assert (response.status_code, response.json()["code"]) == (403, "reads_only")
    assert response.headers["www-authenticate"] == 'Bearer error="insufficient_scope"'
    assert producer.calls == []
    both = Access(CHANGING, CHANGING)
    with served(settings_of(tmp_path), both, producer) as client:
        assert client.post("/v1/timers", json=NEW, headers=bearer(TOKEN)).status_code == 201


def test_reads_need_a_token_where_one_is_set(tmp_path: Path) -> None:
    settings = settings_of(tmp_path)
    fill(settings)
    with served(settings, Access(CHANGING, READING)) as client:
        for path in ("timers", "histogram", "status", "stats", "timers/x", "dead-letters"):
            assert client.get(f"/v1/{path}").status_code == 401
        for token in (READ_TOKEN, TOKEN):
            assert client.get("/v1/timers", headers=bearer(token)).status_code == 200
        for path in ("/livez", "/metrics", "/openapi.json"):
            assert client.get(path).status_code == 200


def test_a_large_body_is_refused(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, body_max="1KiB")
    with served(settings, Access(CHANGING)) as client:
        response = client.post("/v1/timers", content=b"x" * 1025, headers=bearer(TOKEN))
        assert (response.status_code, response.json()["code"]) == (413, "body_too_large")
        chunks = iter([b"x" * 600, b"x" * 600])
        assert client.post("/v1/timers", content=chunks).status_code == 413


def test_a_large_head_is_refused_before_its_token_is_compared(tmp_path: Path) -> None:
    with served(settings_of(tmp_path), Access(CHANGING)) as client:
        large = "y" * (16 << 10)
        for path, headers in (("/v1/status", {"x": large}), (f"/v1/status?q={large}", {})):
            response = client.get(path, headers=headers)
            assert (response.status_code, response.json()["code"]) == (400, "head_too_large")


def test_a_head_with_two_lengths_is_refused(tmp_path: Path) -> None:
    """A proxy in front may take it for another request than this server does."""
    with served(settings_of(tmp_path), Access(CHANGING)) as client:
        both = {**bearer(TOKEN), "Content-Length": "3", "Transfer-Encoding": "chunked"}
        response = client.post("/v1/timers", content=iter([b"{}"]), headers=both)
        assert (response.status_code, response.json()["code"]) == (400, "ambiguous_length")


def test_a_head_with_two_tokens_is_refused(tmp_path: Path) -> None:
    """One may be the client's, beside that of a proxy."""
    producer = RecordingProducer()
    with served(settings_of(tmp_path), Access(CHANGING), producer) as client:
        for other in (TOKEN, "x" * 32):
            both = [("Authorization", f"Bearer {TOKEN}"), ("authorization", f"Bearer {other}")]
            response = client.post("/v1/timers", json=NEW, headers=both)
            assert (response.status_code, response.json()["code"]) == (400, "bad_request")
    assert producer.calls == []


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:8466", 200),
        ("127.0.0.1", 200),
        ("[::1]:8466", 200),
        ("10.0.0.1:8466", 200),
        ("[fe80::1]", 200),
        ("10.0.0.1.evil.example", 421),
        ("10.0.0.256", 421),
        ("evil.example", 421),
        ("localhost.evil.example", 421),
        ("", 421),
    ],
)
def test_only_names_of_this_host_are_served(tmp_path: Path, host: str, status: int) -> None:
    with served(settings_of(tmp_path)) as client:
        assert client.get("/livez", headers={"Host": host}).status_code == status


def test_names_can_be_configured(tmp_path: Path) -> None:
    with served(settings_of(tmp_path, hosts="timers.example")) as client:
        assert client.get("/livez", headers={"Host": "Timers.example:80"}).status_code == 200
        assert client.get("/livez", headers={"Host": "other.example"}).status_code == 421
    shards = ("https://Timers-0:8466", "http://timers-1")
    with served(settings_of(tmp_path, hosts="timers.example", shards=shards)) as client:
        for host in ("timers-0:8466", "timers-1", "timers.example"):
            assert client.get("/livez", headers={"Host": host}).status_code == 200
        assert client.get("/livez", headers={"Host": "timers-2"}).status_code == 421
    anywhere = settings_of(tmp_path, host="0.0.0.0", open_reads=True, shards=shards)
    with served(anywhere) as client:
        assert client.get("/livez", headers={"Host": "other.example"}).status_code == 200


def test_requests_at_a_time_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "REQUESTS_MAX", 0)
    with served(settings_of(tmp_path)) as client:
        response = client.get("/v1/timers")
        assert (response.status_code, response.json()["code"]) == (503, "busy")
        assert response.headers["retry-after"]
        assert client.get("/livez").status_code == client.get("/metrics").status_code == 200
        monkeypatch.setattr(gate, "REQUESTS_MAX", 1)
        for _ in range(3):  # each is counted until it is answered
            assert client.get("/v1/timers").json()["code"] == "no_data_directory"


def test_requests_with_one_token_leave_room_for_those_with_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access, "CALLER_REQUESTS_MAX", 1)
    teams = {TOKEN.encode(): Caller("ana"), READ_TOKEN.encode(): Caller("ben")}
    with served(settings_of(tmp_path), Access(teams, teams)) as client:
        requests = client.app.state.requests  # type: ignore[attr-defined]
        for _ in range(3):  # each is counted until it is answered
            answer = client.get("/v1/timers", headers=bearer(TOKEN))
            assert answer.json()["code"] == "no_data_directory"
        requests["ana"] += 1
        for response in (
            client.get("/v1/timers", headers=bearer(TOKEN)),
            client.post("/v1/timers", json=NEW, headers=bearer(TOKEN)),
        ):
            assert (response.status_code, response.json()["code"]) == (503, "busy")
        answer = client.get("/v1/timers", headers=bearer(READ_TOKEN))
        assert answer.json()["code"] == "no_data_directory"
        assert requests == {"ana": 1, "ben": 0}


def test_responses_are_not_cached(tmp_path: Path) -> None:
    with served(settings_of(tmp_path)) as client:
        for path in ("/livez", "/v1/timers", "/nothing"):
            headers = client.get(LOCAL + path).headers
            assert headers["cache-control"] == "no-store"
            assert headers["x-content-type-options"] == "nosniff"


def test_beyond_loopback_reads_need_a_token_or_a_word(tmp_path: Path) -> None:
    for host in ("0.0.0.0", "::", "10.0.0.1", "timers.example"):
        with pytest.raises(ConfigError, match=r"serve\.read_token_file"):
            settings_of(tmp_path, host=host)
        settings_of(tmp_path, host=host, open_reads=True)
        settings_of(tmp_path, host=host, read_token_file=tmp_path / "token")
    for host in ("127.0.0.1", "::1", "localhost", "127.1.2.3"):
        settings_of(tmp_path, host=host)


@pytest.mark.parametrize(
    "token",
    [
        b"",
        b"short",
        b"two words of a token",
        b"\xff" * 32,
        b"ana " + b"\xff" * 32,
        b"ana short",
        b"%s orders.delayed.berlin" % (b"a" * 32),
        b"%s\n%s" % (b"a" * 32, b"b" * 32),
        b"ana %s\nana %s" % (b"a" * 32, b"b" * 32),
        b"ana %s\nben %s" % (b"a" * 32, b"a" * 32),
        b"ana %s orders,bills" % (b"a" * 32),
        b"ana %s [a" % (b"a" * 32),
        b"ana %s orders \xff" % (b"a" * 32),
        b"ana orders %s" % (b"a" * 32),
    ],
)
def test_a_weak_token_is_refused(tmp_path: Path, token: bytes) -> None:
    path = tmp_path / "token"
    path.write_bytes(token)
    with pytest.raises(ConfigError, match="16 or more ASCII"):
        run_serve(settings_of(tmp_path, token_file=path))
    with pytest.raises(ConfigError, match="cannot be read"):
        run_serve(settings_of(tmp_path, token_file=tmp_path / "none"))


@pytest.mark.parametrize(
    "second", ["ben", f"ana {READ_TOKEN}", f"ben {TOKEN}", f"ben {READ_TOKEN} orders,bills"]
)
def test_a_refused_token_is_named_by_its_line(tmp_path: Path, second: str) -> None:
    path = tmp_path / "tokens"
    path.write_text(f"ana {TOKEN}\n\n{second}\n")
    with pytest.raises(ConfigError, match=f"^serve.token_file: {path}, line 3: ") as refused:
        Access.load(settings_of(tmp_path, token_file=path).serve)
    assert TOKEN not in str(refused.value) and READ_TOKEN not in str(refused.value)


def test_doubtful_tokens_are_in_the_log(tmp_path: Path) -> None:
    path, safe = tmp_path / "tokens", tmp_path / "safe"
    path.write_text(f"ana {TOKEN} orders.* timers\n")
    path.chmod(0o644)
    safe.write_text(f"ben {READ_TOKEN}\n")
    safe.chmod(0o640)
    settings = settings_of(tmp_path, token_file=path, read_token_file=safe)
    with capture_logs() as log:
        warn_of_doubts(Access.load(settings.serve), settings)
    assert [(each["log_level"], each.get("file"), each.get("by")) for each in log] == [
        ("warning", str(path), None),
        ("warning", None, "ana"),
    ]
    # A timer topic of that name may come later.
    any_topic = settings.timer.model_copy(update={"topics_pattern": ".*"})
    path.chmod(0o600)
    with capture_logs() as log:
        warn_of_doubts(
            Access.load(settings.serve), settings.model_copy(update={"timer": any_topic})
        )
    assert log == []


def test_tokens_are_read_from_files_and_not_shown(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\n")
    access = Access.load(settings_of(tmp_path, token_file=path).serve)
    assert access.change == CHANGING
    assert TOKEN not in repr(access)


def test_a_line_may_have_timer_topics(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text(f"ana\t{TOKEN}  orders.* bills\r\nben {READ_TOKEN}\n")
    access = Access.load(settings_of(tmp_path, token_file=path, read_token_file=path).serve)
    of_ana = Caller("ana", TopicScope(("orders.*", "bills")))
    assert (
        access.change == access.read == {TOKEN.encode(): of_ana, READ_TOKEN.encode(): Caller("ben")}
    )


def test_the_log_names_who_has_changed_something(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text(f"ana {TOKEN}\n\nben {READ_TOKEN}\n")
    access = Access.load(settings_of(tmp_path, token_file=path).serve)
    with (
        served(settings_of(tmp_path), access, RecordingProducer()) as client,
        capture_logs() as log,
    ):
        for token in (READ_TOKEN, TOKEN):
            assert client.post("/v1/timers", json=NEW, headers=bearer(token)).status_code == 201
    assert [each["by"] for each in log if each["event"] == "change"] == ["ben", "ana"]
    assert TOKEN not in str(log)


def test_tls_needs_both_files(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"serve\.tls_key_file"):
        settings_of(tmp_path, tls_cert_file=tmp_path / "cert")


def test_a_port_in_use_is_refused_with_the_setting() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"^serve.port: .*127.0.0.1:{port}: Address"):
            listening(ServeSection(port=port))
