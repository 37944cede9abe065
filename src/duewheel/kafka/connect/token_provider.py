"""Tokens for SASL's OAUTHBEARER, from a function that the configuration names."""

from __future__ import annotations

import importlib
from collections.abc import Callable

from kafka.errors import KafkaError
from kafka.net.sasl.oauth import AbstractTokenProvider

from duewheel.errors import Misconfigured

_KEY = "kafka.client.sasl_oauth_token_provider"


class TokenUnavailable(KafkaError):  # type: ignore[misc]  # kafka-python brings no types
    """The function has raised an error: it may have a token for the next connection."""


class FunctionTokens(AbstractTokenProvider):  # type: ignore[misc]  # kafka-python brings no types
    """The tokens of a function, which is called for each connection, by any thread."""

    def __init__(self, function: Callable[[], object], named: str) -> None:
        super().__init__()
        self._function, self._named = function, named

    def token(self) -> str:
        """Returns the token for a connection."""
        try:
            token = self._function()
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            raise TokenUnavailable(f"{_KEY}: {self._named}: {reason}") from error
        if not isinstance(token, str) or not token:
            raise Misconfigured(f"{_KEY}: the function returned no text")
        return token


def tokens_of(named: str) -> FunctionTokens:
    """The tokens of "module:function".

    Raises:
        Misconfigured: there is no such function.
    """
    module, _, name = named.partition(":")
    try:
        function = getattr(importlib.import_module(module), name)
    except Exception as error:
        raise Misconfigured(f"{_KEY}: {named}: {type(error).__name__}: {error}") from error
    if not callable(function):
        raise Misconfigured(f"{_KEY}: {named} is no function")
    return FunctionTokens(function, named)
