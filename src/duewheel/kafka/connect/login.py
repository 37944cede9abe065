"""Says why the bootstrap servers accept no client: password, mechanism, TLS, or its absence.

kafka-python tries a refused login again until its deadline, and its error then names the time-out
alone. A client that is not connected after a moment therefore asks here: one connection to each
server, with the same settings, whose first error is final. Where a broker only hangs up, further
connections find out which protocol it speaks.

Invariant: a server that cannot be reached, or is starting, is no refusal; nor is a function that
has no token yet.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kafka.errors import (
    IllegalSaslStateError,
    KafkaError,
    SaslAuthenticationFailedError,
    UnsupportedSaslMechanismError,
)

from duewheel.deadline import Deadline, DeadlineExceeded, within
from duewheel.errors import KafkaUnavailable, Misconfigured
from duewheel.kafka.connect.network_client import (
    NetworkClient,
    keep_last_answers,
    loop_of,
    manager_of,
)
from duewheel.kafka.connect.token_provider import TokenUnavailable
from duewheel.threads import each_beside

_SERVERS_AT_A_TIME = 16
# Of kafka-python's and OpenSSL's errors: a certificate that the client refuses.
_OTHER_NAME = "certificate is not valid for"
_UNTRUSTED = ("self-signed certificate", "self signed certificate", "unable to get local issuer")
_OFFERED = (0, UnsupportedSaslMechanismError.errno)  # both answers list the mechanisms
_PORT = 9092

Options = Mapping[str, Any]
Question = Callable[[Any, Any], Awaitable[Any]]  # takes kafka-python's manager and connection


@dataclass(frozen=True, slots=True)
class LoginAttempt:
    """One server, asked to log a client in."""

    server: str
    problem: str = ""  # why it did not; "" if it did
    is_refusal: bool = False  # the settings are the reason: a further attempt cannot succeed


def attempts(
    options: Options, deadline: Deadline, *, until_one_succeeds: bool = False
) -> list[LoginAttempt]:
    """Connects once to each bootstrap server, to several at a time; as `KafkaClients.attempts`."""
    given = options.get("bootstrap_servers", "localhost")
    servers = given.split(",") if isinstance(given, str) else list(given)
    return each_beside(
        "login",
        lambda server: _Login(options, server, deadline).attempt(),
        servers,
        _SERVERS_AT_A_TIME,
        lambda made: until_one_succeeds and not made.problem,
    )


def in_words(error: BaseException) -> str:
    """Class and text of an error, in one line; of an error of the system, its own words.

    kafka-python's texts may begin with the class, too, once for each time that the error was passed
    on. Of an error of the system they have only number and name.
    """
    name = type(error).__name__
    text = re.sub(rf"^(?:(?:\[Error \d+\] )?{name}(?:: |$))+", "", str(error).replace("\n", " "))
    if of_system := re.fullmatch(r"(\d{1,3}) (E[A-Z0-9]+)", text):
        return f"{os.strerror(int(of_system[1]))} ({of_system[2]})"
    return f"{name}: {text}" if text else name


def require_one(made: Sequence[LoginAttempt]) -> None:
    """Refuses to go on if all attempts have failed.

    Raises:
        Misconfigured: one server refuses the settings; with its reason.
        KafkaUnavailable: with each server's reason.
    """
    if not all(each.problem for each in made):
        return
    for each in made:
        if each.is_refusal:
            raise Misconfigured(
                f"Kafka refuses these client settings: {each.server} {each.problem}"
            )
    reasons = "; ".join(f"{each.server}: {each.problem}" for each in made)
    raise KafkaUnavailable(f"Kafka answers no client: {reasons}")


class _Login:
    """The attempts to log in to one server."""

    def __init__(self, options: Options, server: str, deadline: Deadline) -> None:
        self._options = {**options, "bootstrap_servers": [server]}
        self._server = server
        self._deadline = deadline
        self._protocol = str(options.get("security_protocol", "PLAINTEXT"))
        self._mechanism = options.get("sasl_mechanism")

    def attempt(self) -> LoginAttempt:
        """Logs in; says why if that fails."""
        try:
            self._ask(_metadata)
        except TokenUnavailable as error:
            return LoginAttempt(self._server, in_words(error))
        except Exception as error:  # noqa: BLE001 - a token provider raises any
            reason = self._explained(error)
            problem = reason or in_words(error)
            return LoginAttempt(self._server, problem, is_refusal=bool(reason))
        return LoginAttempt(self._server)

    def _ask(self, question: Question, **others: Any) -> Any:
        """Connects and logs in, with `others` in place of some settings; asks, and disconnects."""
        client = NetworkClient(**{**self._options, **others})

        async def question_once() -> Any:
            manager = manager_of(client)
            keep_last_answers(manager)
            node_id = manager.cluster.bootstrap_brokers()[0].node_id
            left_ms = self._deadline.remaining_ms()
            connection = await manager.get_connection(
                node_id, timeout_ms=left_ms, pop_on_close=False, refresh_metadata_on_err=False
            )
            return await question(manager, connection)

        try:
            return within(self._deadline, "log in", lambda: loop_of(client).run(question_once))
        finally:
            with contextlib.suppress(KafkaError, OSError, RuntimeError):
                client.close()

    @property
    def _who(self) -> str:
        user = self._options.get("sasl_plain_username")
        return f"user {user!r} with this password" if user else "a client with these credentials"

    def _explained(self, error: Exception) -> str:
        """Why the settings cannot work; "" if that is unknown."""
        login, text = f"SASL {self._mechanism}", in_words(error)
        if isinstance(error, SaslAuthenticationFailedError):
            return f"does not accept {self._who} by {login}: {text}"
        if isinstance(error, UnsupportedSaslMechanismError):
            offered = ", ".join(self._mechanisms()) or "others"
            return f"does not offer {login}, but {offered}: correct sasl_mechanism ({text})"
        if isinstance(error, IllegalSaslStateError):
            wanted = self._protocol.removeprefix("SASL_")
            return f"takes no login: security_protocol is {self._protocol}, should be {wanted}"
        if not isinstance(error, KafkaError | OSError | DeadlineExceeded):
            return f"gets no login from this client: {text}"
        if isinstance(error, FileNotFoundError | PermissionError):
            return f"gets no login from this client: a file of the ssl_ options: {error}"
        return self._explained_by_protocol(text)

    def _explained_by_protocol(self, text: str) -> str:
        """The reason of a broker that hangs up, which is all that a wrong protocol makes it do."""
        wants_tls, wants_login = "SSL" in self._protocol, "SASL" in self._protocol
        speaks_tls = self._speaks_tls()
        is_now = f"security_protocol is {self._protocol}, should be"
        if speaks_tls is None:
            return ""
        if speaks_tls and not wants_tls:
            return f"speaks TLS: {is_now} SSL or SASL_SSL"
        if wants_tls and not speaks_tls:
            plain = self._succeeds(security_protocol="PLAINTEXT")
            return f"speaks no TLS: {is_now} PLAINTEXT or SASL_PLAINTEXT" if plain else ""
        if wants_tls and "SSL" in text.upper().replace("KAFKASSL", ""):
            return f"{self._explained_by_tls(text)} ({text})"
        offered = () if wants_login else self._mechanisms()
        if offered:
            wanted = "SASL_SSL" if wants_tls else "SASL_PLAINTEXT"
            return f"requires a login ({', '.join(offered)}): {is_now} {wanted}"
        return ""

    def _explained_by_tls(self, text: str) -> str:
        if _OTHER_NAME in text:
            host, _ = _host_and_port(self._server)
            return f"has a certificate without the name {host!r}: use one that it has"
        if any(each in text for each in _UNTRUSTED):
            return "has a certificate that this client does not trust: correct ssl_cafile"
        return "and this client do not agree on TLS: correct the ssl_ options"

    def _speaks_tls(self) -> bool | None:
        """Whether a TLS server answers; None if no server does, or a proxy leads to it. Its
        certificate does not matter.
        """
        if self._options.get("proxy_url") or self._options.get("socks5_proxy"):
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        host, port = _host_and_port(self._server)
        left_s = max(0.1, self._deadline.remaining_s())
        try:
            raw = socket.create_connection((host, port), left_s)
        except OSError:
            return None
        with raw:
            try:
                context.wrap_socket(raw, server_hostname=host).close()
            except ssl.SSLError as error:
                return "ALERT" in (error.reason or "")  # a TLS server that refuses this client
            except OSError:
                return False
        return True

    def _mechanisms(self) -> Sequence[str]:
        """The SASL mechanisms that the server offers; none if it takes no login."""
        protocol = "SSL" if "SSL" in self._protocol else "PLAINTEXT"
        try:
            mechanisms: Sequence[str] = self._ask(_handshake, security_protocol=protocol)
        except Exception:  # noqa: BLE001 - the reason is known without them
            return ()
        return mechanisms

    def _succeeds(self, **others: Any) -> bool:
        try:
            self._ask(_nothing, **others)
        except Exception:  # noqa: BLE001 - not this protocol either
            return False
        return True


async def _nothing(_: Any, __: Any) -> None:
    pass


async def _metadata(manager: Any, connection: Any) -> None:
    """A listener that requires a login refuses only the first request."""
    await manager.cluster.refresh_metadata(connection.node_id)


async def _handshake(_: Any, connection: Any) -> Sequence[str]:
    # Not at the top: an application may have a kafka-python that has it elsewhere.
    from kafka.protocol.sasl import SaslHandshakeRequest

    request = SaslHandshakeRequest(mechanism="PLAIN", max_version=1)
    response = await connection.send_request(request)
    return list(response.mechanisms) if response.error_code in _OFFERED else ()


def _host_and_port(server: str) -> tuple[str, int]:
    """The parts of a bootstrap server's address."""
    host, colon, port = server.strip().rpartition(":")
    return (host.strip("[]"), int(port)) if colon and port.isdecimal() else (server.strip(), _PORT)
