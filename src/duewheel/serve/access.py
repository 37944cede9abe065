"""Who may read, and who may change: bearer tokens from files.

- Without `serve.token_file` no request changes anything.
- Without `serve.read_token_file` every host that can connect may read. Beyond loopback that needs
  `serve.open_reads` (config/contradictions.py refuses it else): a warning in a log is read by
  no one, and the ids and keys of timers name customers.
- A token is compared in constant time, and neither logged nor shown. The tokens of changes also
  read. A new token needs a restart.

A file has one token, or in each line a name and a token. The log of a change has the name.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
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
Tokens = Mapping[bytes, str]  # the name of each

_bearer = HTTPBearer(
    auto_error=False, scheme_name="token", description="a token of serve.token_file"
)
Credentials = Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]


@dataclass(frozen=True, slots=True, repr=False)
class Access:
    """The tokens."""

    change: Tokens | None = None  # None: there are no changes
    read: Tokens | None = None  # None: reads need none

    @classmethod
    def load(cls, serve: ServeSection) -> Access:
        """Reads the files of the tokens.

        Raises:
            ConfigError: one cannot be read, or has a token that is too short, or two with one name.
        """
        return cls(
            _tokens("serve.token_file", serve.token_file),
            _tokens("serve.read_token_file", serve.read_token_file),
        )


def _tokens(key: str, path: Path | None) -> Tokens | None:
    if path is None:
        return None
    try:
        text = path.read_text("ascii", errors="replace")
    except OSError as error:
        raise ConfigError(f"{key}: {path} cannot be read: {error.strerror}") from error
    lines = [line.split() for line in text.splitlines() if line.strip()]
    if len(lines) == 1 and len(lines[0]) == 1:
        lines[0].insert(0, "")
    tokens = {line[1].encode(): line[0] for line in lines if len(line) == 2 and _is_token(line[1])}
    if not tokens or not len(lines) == len(tokens) == len({*tokens.values()}):
        raise ConfigError(
            f"{key}: {path} must have a token, or in each line a name of its own and a token. A "
            f"token has {TOKEN_CHARACTERS_MIN} or more ASCII characters without blanks, such as "
            "those of `openssl rand -hex 32`"
        )
    return tokens


def _is_token(text: str) -> bool:
    return len(text) >= TOKEN_CHARACTERS_MIN and text.isascii()


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
    request.state.token_name = _require(credentials, access.change)


def _require(credentials: HTTPAuthorizationCredentials | None, *accepted: Tokens | None) -> str:
    """The name of the token that is given."""
    given = b"" if credentials is None else credentials.credentials.encode(errors="replace")
    tokens = [each for tokens in accepted if tokens is not None for each in tokens.items()]
    # All are compared: the time must not depend on the one that is right.
    names = [name for token, name in tokens if hmac.compare_digest(given, token)]
    if not names:
        header = {"WWW-Authenticate": "Bearer"}
        detail = "give a valid token: Authorization: Bearer <token>"
        raise Refused(HTTPStatus.UNAUTHORIZED, "unauthorized", detail, header)
    return names[0]
