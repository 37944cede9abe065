"""Opens and closes Kafka clients.

- Every call has a deadline: kafka-python's constructors block until a broker answers.
- A constructor that fails leaves nothing: its network client is caught when it is made, and closed.
  kafka-python would leave a socket open and a thread running.
- No error text contains the value of a secret setting.

The first KafkaClients gives kafka-python, also the application's own clients, a fast checksum.
Alone it computes CRC-32C in Python, thousands of times slower, unless the LGPL package crc32c is
there.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka.errors import (
    AuthorizationError,
    KafkaConfigurationError,
    KafkaError,
    SaslAuthenticationFailedError,
    UnsupportedSaslMechanismError,
)
from kafka.record import default_records, util

from duewheel.deadline import Deadline, DeadlineExceeded, within
from duewheel.errors import DuewheelError, KafkaUnavailable, Misconfigured, Unacknowledged
from duewheel.kafka.connect import login
from duewheel.kafka.connect.client_options import ClientOptions
from duewheel.kafka.connect.network_client import NetworkClient
from duewheel.schemas.wire.crc32c import crc32c

T = TypeVar("T")
Client = TypeVar("Client", KafkaAdminClient, KafkaConsumer, KafkaProducer)

_MISCONFIGURED = (
    AuthorizationError,
    KafkaConfigurationError,
    SaslAuthenticationFailedError,
    UnsupportedSaslMechanismError,
)
_CLOSE_DEADLINE_S = 5.0
_REASON_AFTER_S = 1.5  # after which a client that is not connected asks why
LOGIN_S = 10.0  # for one attempt to log in

log = logging.getLogger(__name__)


class _NoSettings(logging.Filter):
    """Drops the log line of kafka-python that shows all settings, secrets included."""

    def filter(self, record: logging.LogRecord) -> bool:
        return "with configuration" not in str(record.msg)


_NO_SETTINGS = _NoSettings()


def _adapt_kafka_python() -> None:
    """Gives kafka-python the checksum and the filter; again without effect."""
    # Both names are kafka-python's own: a release without them computes its checksums as it likes.
    if getattr(util, "crc32c_c", crc32c) is None and hasattr(default_records, "calc_crc32c"):
        default_records.calc_crc32c = crc32c
    logging.getLogger("kafka.admin.client").addFilter(_NO_SETTINGS)


class KafkaClients:
    """Opens the clients of one cluster, and runs their calls. Immutable, so thread-safe."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        """Checks the options as ClientOptions does; connects nothing."""
        self.options = ClientOptions(options)
        _adapt_kafka_python()

    @property
    def address(self) -> str:
        """The bootstrap servers, as text."""
        return self.options.address

    def __repr__(self) -> str:
        return f"KafkaClients({self.address})"

    def explain(self, error: BaseException) -> str:
        """The error in one line, without the value of any secret option."""
        return self.options.redacted(login.in_words(error))

    def call(self, deadline: Deadline, what: str, call: Callable[[], T]) -> T:
        """The result of a call to Kafka.

        Raises:
            KafkaUnavailable: no answer by the deadline, or an error.
            Misconfigured: the settings or the rights do not fit.
        """
        with self.explained(what):
            return within(deadline, what, call)

    def write(self, deadline: Deadline, what: str, call: Callable[[], T]) -> T:
        """As `call`, for a call that changes something in Kafka.

        Raises:
            Unacknowledged: no answer by the deadline, or an error: it may be done all the same.
        """
        try:
            return self.call(deadline, what, call)
        except KafkaUnavailable as error:
            raise Unacknowledged(f"{error}; it may be done all the same") from error

    @contextlib.contextmanager
    def explained(self, what: str) -> Iterator[None]:
        """Raises the errors of kafka-python in a block as duewheel's own, as `call` does."""
        try:
            yield
        except DuewheelError:
            raise
        # kafka-python raises RuntimeError for a client that was closed beside the call, and if the
        # cluster has no controller.
        except (KafkaError, DeadlineExceeded, OSError, RuntimeError) as error:
            kind = Misconfigured if isinstance(error, _MISCONFIGURED) else KafkaUnavailable
            explained = kind(f"Kafka at {self.address}: {what}: {self.explain(error)}")
            explained.kafka_error = error
            raise explained from None

    def connect(self, deadline: Deadline, **own: Any) -> NetworkClient:
        """A new network client, with the metadata of the cluster. `own` settings win."""
        client = NetworkClient(**{**self.options.values, **own})
        try:
            self._connected(deadline, "connect", client.get_broker_version)
        except DuewheelError:
            _close_quietly("network", client.close)
            raise
        return client

    def _connected(self, deadline: Deadline, what: str, connect: Callable[[], T]) -> T:
        """The result of a call that connects. If the servers refuse these settings, it ends with
        their reason, not at the deadline: kafka-python would try again until then.
        """
        reasons: list[KafkaUnavailable] = []

        def ask_why() -> None:
            try:
                # Over before the call is, whose error names the reason.
                self.require_login(deadline.part(min(LOGIN_S, 0.9 * deadline.remaining_s())))
            except KafkaUnavailable as error:
                reasons.append(error)
                log.warning("%s; this client tries again", error)

        with self.explained(what):
            try:
                return within(deadline, what, connect, (_REASON_AFTER_S, ask_why))
            except DeadlineExceeded as error:
                if not reasons:
                    raise
                raise KafkaUnavailable(f"{reasons[0]}; {error}") from None

    def attempts(
        self, deadline: Deadline, *, until_one_succeeds: bool = False
    ) -> list[login.LoginAttempt]:
        """Asks each bootstrap server to log a client in, once; `until_one_succeeds`: returns that
        success alone, without a wait for the others.
        """
        made = login.attempts(self.options.values, deadline, until_one_succeeds=until_one_succeeds)
        return [replace(each, problem=self.options.redacted(each.problem)) for each in made]

    def require_login(self, deadline: Deadline) -> None:
        """Refuses to go on if no bootstrap server logs a client in, asked once.

        Raises:
            Misconfigured: the servers refuse the client settings; with the reason.
            KafkaUnavailable: with each server's reason.
        """
        login.require_one(self.attempts(deadline, until_one_succeeds=True))

    def open(self, kind: type[Client], deadline: Deadline, **own: Any) -> Client:
        """A new client; a failure leaves no open socket and no thread. `own` settings win."""
        made: list[NetworkClient] = []

        def catch(**configs: Any) -> NetworkClient:
            made.append(NetworkClient(**configs))
            return made[-1]

        def build() -> Client:
            try:
                # With a time-out, the server that is drawn first would get all of it.
                unbounded = {"bootstrap_timeout_ms": None, "kafka_client": catch}
                return kind(**{**self.options.values, **unbounded, **own})
            except (AssertionError, TypeError, ValueError) as error:
                raise Misconfigured(f"Kafka client settings: {self.explain(error)}") from None

        try:
            return self._connected(deadline, f"connect ({kind.__name__})", build)
        except DuewheelError:
            for client in made:
                _close_quietly("network", client.close)
            raise

    @contextlib.contextmanager
    def opened(self, kind: type[Client], deadline: Deadline, **own: Any) -> Iterator[Client]:
        """As `open`, for the length of a with block."""
        client = self.open(kind, deadline, **own)
        try:
            yield client
        finally:
            close(client)


def close(client: KafkaAdminClient | KafkaConsumer | NetworkClient) -> None:
    """Closes a client in any state. Bounded in time; never raises."""
    _close_quietly("client", client.close)


def _close_quietly(what: str, call: Callable[[], object]) -> None:
    with contextlib.suppress(KafkaError, DeadlineExceeded, OSError, RuntimeError, ValueError):
        within(Deadline(_CLOSE_DEADLINE_S), f"close {what}", call)
