"""The connection of a command to Kafka, and the text of its failure."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from duewheel.config.settings import Settings
from duewheel.errors import KafkaUnavailable, Unacknowledged
from duewheel.kafka.connect import bootstrap
from duewheel.kafka.connect.client_options import ClientOptions

ANSWER_S = 30.0  # the longest wait for an answer


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
            if not errors.text:
                raise
            last = ClientOptions(settings.kafka.client_options("admin")).redacted(errors.text)
            text = f"{error}; last log line: {last}"
            if isinstance(error, Unacknowledged):
                raise Unacknowledged(text, **error.counts) from error
            raise KafkaUnavailable(text) from error


def why_unreachable(settings: Settings) -> str:
    """Returns each server's reason, if none takes a connection from this host; else ""."""
    return bootstrap.why_unreachable(settings)
