"""The connection of a command to Kafka, and the text of its failure."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from duewheel.config.settings import Settings
from duewheel.errors import DuewheelError, KafkaUnavailable, Unacknowledged
from duewheel.kafka.connect import bootstrap
from duewheel.kafka.connect.client_options import ClientOptions

ANSWER_S = 30.0  # the longest wait for an answer
_WHY_S = 3.0  # for the reason of a failure that is known


@contextmanager
def require_kafka(settings: Settings) -> Iterator[None]:
    """Runs a block that needs Kafka.

    Raises:
        KafkaUnavailable, Unacknowledged: with the clients' last error, which they only log.
    """
    with bootstrap.capture_errors() as errors:
        bootstrap.require_connection(settings)
        try:
            yield
        except (KafkaUnavailable, Unacknowledged) as error:
            if errors.text:
                last = ClientOptions(settings.kafka.client_options("admin")).redacted(errors.text)
                error.reword(f"{error}; last log line: {last}")
            raise


def why_unreachable(settings: Settings) -> str:
    """Each server's reason, if none logs a client in; else ""."""
    with bootstrap.capture_errors():
        try:
            bootstrap.require_connection(settings, _WHY_S)
        except DuewheelError as error:
            return str(error)
    return ""
