"""Each wrong login is told apart, in seconds: by the clients, the commands and `run`.

One broker with listeners of each kind: without security, with passwords, with TLS, with both, with
certificates of clients, with tokens.
"""

from __future__ import annotations

import base64
import gc
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient
from tests.harness.config_file import write_config
from tests.harness.launcher import run
from tests.harness.served import CHANGING, TOKEN, bearer, served
from tests.harness.small_servers import ends_with_the_answer, server

from duewheel.client import DelayProducer
from duewheel.clock import SystemClock
from duewheel.config.settings import load
from duewheel.deadline import Deadline
from duewheel.dev.broker import DevBroker
from duewheel.dev.listeners import HOST, free_ports, listener_properties
from duewheel.dev.sasl_ssl import keystore_properties, password_properties, self_signed
from duewheel.errors import ConfigError
from duewheel.java.find import Java
from duewheel.kafka.connect.clients import KafkaClients
from duewheel.kafka.connect.token_provider import FunctionTokens
from duewheel.serve.access import Access

# kafka-python leaves a socket of TLS to the garbage collector where a handshake fails.
pytestmark = [
    pytest.mark.kafka,
    pytest.mark.crash_matrix,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """Those sockets are collected under the filter: at the end of the session they are an error."""
    yield
    gc.collect()


USER, PASSWORD = "ann", "hunter2"
# Kafka's own validator of tokens without a signature, for development.
TOKENS_TAKEN = {
    "listener.name.tokens.sasl.enabled.mechanisms": "OAUTHBEARER",
    "listener.name.tokens.oauthbearer.sasl.jaas.config": (
        "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required "
        'unsecuredLoginStringClaim_sub="broker";'
    ),
}
AT_ONCE_S = 20.0  # of a deadline of 60: 2 s on a machine that does nothing else


@dataclass(frozen=True)
class Listeners:
    """host:port of each listener.

    Attributes:
        mtls: "" without openssl, which makes the certificate of its client.
        authority: file of the certificate that clients have to trust.
        certificate, key: of the client of `mtls`.
    """

    plain: str
    sasl: str
    tls: str
    named: str
    both: str
    mtls: str
    tokens: str
    authority: Path
    certificate: Path
    key: Path


@pytest.fixture(scope="module")
def listeners(
    java: Java, kafka_jars: list[Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Listeners]:
    folder = tmp_path_factory.mktemp("certificate")
    store, authority = self_signed(java, folder, PASSWORD)
    certificate, key = folder / "client.pem", folder / "client.key"
    protocols = {
        "PLAINTEXT": "PLAINTEXT",
        "SASL": "SASL_PLAINTEXT",
        "TLS": "SSL",
        "BOTH": "SASL_SSL",
        "TOKENS": "SASL_PLAINTEXT",
    }
    if has_mtls := shutil.which("openssl") is not None:
        make_client_certificate(certificate, key)
        protocols["MTLS"] = "SSL"
    *ports, controller = free_ports(len(protocols) + 1)
    at = dict(zip(protocols, ports, strict=True))
    properties = listener_properties(at, protocols, controller) | TOKENS_TAKEN
    for name, protocol in protocols.items():
        if protocol.endswith("SSL"):
            properties |= keystore_properties(name, store, PASSWORD)
    if has_mtls:
        properties |= {
            "listener.name.mtls.ssl.client.auth": "required",
            "listener.name.mtls.ssl.truststore.type": "PEM",
            "listener.name.mtls.ssl.truststore.location": str(certificate),
        }
    for name in ("SASL", "BOTH"):
        properties |= password_properties(name, USER, PASSWORD)
    with DevBroker(java=java, port=ports[0], properties=properties):
        plain, sasl, tls, both, tokens = (f"{HOST}:{port}" for port in ports[:5])
        mtls = f"{HOST}:{at['MTLS']}" if has_mtls else ""
        named = f"localhost:{at['TLS']}"  # the certificate has the address alone
        yield Listeners(plain, sasl, tls, named, both, mtls, tokens, authority, certificate, key)


def make_client_certificate(certificate: Path, key: Path) -> None:
    """A certificate that the broker trusts by itself, and its key."""
    kind = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")
    files = ("-keyout", str(key), "-out", str(certificate), "-subj", "/CN=duewheel")
    subprocess.run(["openssl", "req", "-x509", *kind, *files], check=True, capture_output=True)


def login(**others: str) -> dict[str, str]:
    return {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": USER,
        "sasl_plain_password": PASSWORD,
        **others,
    }


WRONG: list[tuple[str, dict[str, str], str]] = [
    ("sasl", login(sasl_plain_password="hunter3"), "user 'ann' with this password"),
    ("both", login(security_protocol="SASL_SSL", sasl_plain_password="hunter3"), "this password"),
    ("sasl", login(sasl_mechanism="SCRAM-SHA-256"), "does not offer SASL SCRAM-SHA-256, but PLAIN"),
    ("sasl", {}, r"requires a login \(PLAIN\): security_protocol is PLAINTEXT, should be SASL_PL"),
    ("plain", login(), "takes no login: security_protocol is SASL_PLAINTEXT, should be PLAINTEXT"),
    ("tls", {}, "speaks TLS: security_protocol is PLAINTEXT, should be SSL or SASL_SSL"),
    ("both", login(), "speaks TLS: security_protocol is SASL_PLAINTEXT, should be SSL or SASL_SSL"),
    ("plain", {"security_protocol": "SSL"}, "speaks no TLS: security_protocol is SSL, should be P"),
    ("sasl", login(security_protocol="SASL_SSL"), "speaks no TLS: security_protocol is SASL_SSL"),
    ("both", {"security_protocol": "SSL"}, r"requires a login \(PLAIN\): security_protocol is SSL"),
    ("tls", {"security_protocol": "SSL", "ssl_cafile": ""}, "does not trust: correct ssl_cafile"),
    ("named", {"security_protocol": "SSL"}, "has a certificate without the name 'localhost'"),
]


def client(listeners: Listeners, to: str, settings: dict[str, str]) -> dict[str, Any]:
    options: dict[str, Any] = {"bootstrap_servers": [getattr(listeners, to)], **settings}
    if "SSL" in settings.get("security_protocol", ""):
        options = {"ssl_cafile": str(listeners.authority), **options}
    return {name: value for name, value in options.items() if value}


@pytest.mark.parametrize(("to", "settings", "reason"), WRONG)
def test_each_wrong_setting_has_a_reason_of_its_own(
    listeners: Listeners, to: str, settings: dict[str, str], reason: str
) -> None:
    options, begun_s = client(listeners, to, settings), time.monotonic()
    with pytest.raises(ConfigError, match=reason) as refused:
        KafkaClients(options).open(KafkaAdminClient, Deadline(60))
    assert time.monotonic() - begun_s < AT_ONCE_S
    assert "hunter" not in str(refused.value)


@pytest.mark.parametrize(("to", "settings", "reason"), [WRONG[0], WRONG[2]])
def test_a_refusal_that_comes_with_the_end_of_the_connection_counts(
    listeners: Listeners, to: str, settings: dict[str, str], reason: str
) -> None:
    """Busy hosts read both at once."""
    options = client(listeners, to, settings)
    with server(ends_with_the_answer(options["bootstrap_servers"][0])) as relay:
        (made,) = KafkaClients(options | {"bootstrap_servers": [relay]}).attempts(Deadline(30))
    assert reason in made.problem
    assert made.is_refusal


def test_the_right_settings_are_accepted(listeners: Listeners) -> None:
    tls = {"security_protocol": "SSL"}
    both = login(security_protocol="SASL_SSL")
    for to, settings in (("plain", {}), ("sasl", login()), ("tls", tls), ("both", both)):
        (made,) = KafkaClients(client(listeners, to, settings)).attempts(Deadline(30))
        assert made.problem == ""


def token() -> str:
    """A token of this moment, without a signature."""
    now_s = SystemClock().now_ms() // 1000
    parts = ({"alg": "none"}, {"sub": USER, "iat": now_s, "exp": now_s + 600})
    octets = (base64.urlsafe_b64encode(json.dumps(part).encode()) for part in parts)
    return ".".join(each.rstrip(b"=").decode() for each in octets) + "."


TOKENS = {
    "security_protocol": "SASL_PLAINTEXT",
    "sasl_mechanism": "OAUTHBEARER",
    "sasl_oauth_token_provider": f"{__name__}:token",
}


@pytest.mark.parametrize("to", ["mtls", "tokens"])
def test_a_login_without_a_password(
    listeners: Listeners,
    to: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    require: Callable[[object, str], None],
) -> None:
    require(getattr(listeners, to), "no openssl")
    files = {"ssl_certfile": str(listeners.certificate), "ssl_keyfile": str(listeners.key)}
    given = {"security_protocol": "SSL", **files} if to == "mtls" else TOKENS
    options = client(listeners, to, given)
    name = f"app-{to}"
    # The commands import this module for its `token`.
    paths = [os.environ.get("PYTHONPATH", ""), str(Path(__file__).parents[2])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
    shared = {key: value for key, value in options.items() if key != "bootstrap_servers"}
    config = write_config(tmp_path, getattr(listeners, to), name, kafka={"client": shared})
    begun = run(config, "init", "--partitions", "1")
    assert begun.returncode == 0, begun.stderr
    with DelayProducer(f"{name}.timers", **options) as producer:
        assert producer.schedule("orders", b"later", delay="1h").result(60).offset == 0


@pytest.mark.parametrize(
    "error", [FileNotFoundError("/run/secrets/kafka-token"), LookupError("no SSL session")]
)
def test_a_function_without_a_token_yet_is_no_refusal(
    listeners: Listeners, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    def late() -> str:
        if "this client tries again" not in caplog.text:
            raise error
        return token()

    tokens = {"sasl_oauth_token_provider": FunctionTokens(late, "app.tokens:late")}
    clients = KafkaClients(client(listeners, "tokens", TOKENS) | tokens)
    (made,) = clients.attempts(Deadline(30))
    assert not made.is_refusal
    assert made.problem.endswith(f"app.tokens:late: {type(error).__name__}: {error}")
    with clients.opened(KafkaAdminClient, Deadline(60)):
        assert made.problem in caplog.text


def test_a_client_without_its_certificate(
    listeners: Listeners, require: Callable[[object, str], None]
) -> None:
    require(listeners.mtls, "no openssl")
    options = client(listeners, "mtls", {"security_protocol": "SSL"})
    with pytest.raises(ConfigError, match="do not agree on TLS"):
        KafkaClients(options).open(KafkaAdminClient, Deadline(60))


def test_the_client_of_an_application(listeners: Listeners) -> None:
    options = client(listeners, "sasl", login(sasl_plain_password="hunter3"))
    with pytest.raises(ConfigError, match="this password"):
        DelayProducer("timers", **options)


def test_commands_doctor_and_run(listeners: Listeners, tmp_path: Path) -> None:
    wrong = login(sasl_plain_password="hunter3")
    config = write_config(tmp_path, listeners.sasl, "app", kafka={"client": wrong})
    for words in (["init"], ["run"]):
        begun_s, done = time.monotonic(), run(config, *words)
        assert done.returncode == ConfigError.exit_code, done.stderr
        assert "user 'ann' with this password" in done.stderr
        assert time.monotonic() - begun_s < AT_ONCE_S
    examined = run(config, "doctor")
    assert "kafka_refuses" in examined.stdout and "with this password" in examined.stdout
    assert "hunter" not in examined.stdout + examined.stderr


def test_the_http_api_blames_no_caller(listeners: Listeners, tmp_path: Path) -> None:
    wrong = login(sasl_plain_password="hunter3")
    config = write_config(tmp_path, listeners.sasl, "app", kafka={"client": wrong})
    with served(load(config), Access(CHANGING)) as client:
        new = {"topic": "orders", "value": "v", "delay": "1m"}
        response = client.post("/v1/timers", json=new, headers=bearer(TOKEN))
    assert (response.status_code, response.json()["code"]) == (503, "misconfigured")
    assert USER not in response.json()["detail"].split()
