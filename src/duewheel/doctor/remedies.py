"""The remedies of failures."""

from __future__ import annotations

from kafka.errors import AuthorizationError

from duewheel.errors import ConfigError, DuewheelError

BROKERS_LOG = "the log of the brokers has the reason"
CLIENT_SETTINGS = "correct [kafka.client]"
SETTINGS_OR_LISTENER = f"{CLIENT_SETTINGS}, or the broker's listener"


def of_failure(error: DuewheelError) -> str:
    """The remedy of a part that fails."""
    if isinstance(error.kafka_error, AuthorizationError):
        return "grant the right: docs/security.md has those of each command"
    is_wrong = isinstance(error, ConfigError)
    return "correct the setting or the topic that it names" if is_wrong else BROKERS_LOG
