"""Who may read, and who may change: bearer tokens from files.

- Without `serve.token_file` no request changes anything.
- Without `serve.read_token_file` every host that can connect may read. Beyond loopback that needs
  `serve.open_reads` (config/contradictions.py refuses it else): a warning in a log is read by
  no one, and the ids and keys of timers name customers.
- A token is compared in constant time, and neither logged nor shown. The token of changes also
  reads. A new token needs a restart.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Annotated

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from duewheel.config.keys_and_defaults import ServeSection
from duewheel.errors import ConfigError
from duewheel.serve.problems import Refused

TOKEN_CHARACTERS_MIN = 16

_bearer = HTTPBearer(
    auto_error=False, scheme_name="token", description="the content of serve.token_file"
)
Credentials = Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]


@dataclass(frozen=True, slots=True, repr=False)
class Access:
    """The tokens."""

    change: bytes | None = None  # None: there are no changes
    read: bytes | None = None  # None: reads need none

    @classmethod
    def load(cls, serve: ServeSection) -> Access:
        """Reads the files of the tokens.

        Raises:
            ConfigError: one cannot be read, or its token is too short.
        """
        return cls(
            _token("serve.token_file", serve.token_file),
            _token("serve.read_token_file", serve.read_token_file),
        )


def _token(key: str, path: Path | None) -> bytes | None:
    if path is None:
        return None
    try:
        token = path.read_bytes().strip()
    except OSError as error:
        raise ConfigError(f"{key}: {path} cannot be read: {error.strerror}") from error
    if len(token) < TOKEN_CHARACTERS_MIN or not token.isascii() or len(token.split()) > 1:
        raise ConfigError(
            f"{key}: {path} must have {TOKEN_CHARACTERS_MIN} or more ASCII characters without "
            "blanks, such as those of `openssl rand -hex 32`"
        )
    return token


async def may_read(request: Request, credentials: Credentials) -> None:
    """Refuses a read without a valid token."""
    access: Access = request.app.state.access
    _require(credentials, access.read, access.change)


async def may_change(request: Request, credentials: Credentials) -> None:
    """Refuses a change without a valid token; all changes if there is no token."""
    access: Access = request.app.state.access
    if access.change is None:
        detail = "changes are off: set serve.token_file"
        raise Refused(HTTPStatus.FORBIDDEN, "changes_off", detail)
    _require(credentials, access.change)


def _require(credentials: HTTPAuthorizationCredentials | None, *tokens: bytes | None) -> None:
    given = b"" if credentials is None else credentials.credentials.encode(errors="replace")
    # All are compared: the time must not depend on the one that is right.
    matches = [hmac.compare_digest(given, token) for token in tokens if token is not None]
    if not any(matches):
        header = {"WWW-Authenticate": "Bearer"}
        detail = "give a valid token: Authorization: Bearer <token>"
        raise Refused(HTTPStatus.UNAUTHORIZED, "unauthorized", detail, header)
