"""Who may read, and who may change: bearer tokens from files.

- Without `serve.token_file` no request changes anything.
- Without `serve.read_token_file` every host that can connect may read. Beyond loopback that needs
  `serve.open_reads` (config/contradictions.py refuses it else): a warning in a log is read by
  no one, and the ids and keys of timers name customers.
- A token is compared in constant time, and neither logged nor shown. The tokens of changes also
  read. A new token needs a restart.

A file has one token, or in each line a name, a token, and the patterns of its timer topics, if it
is not for all (scopes.py). The log of a change has the name. The holder of a token may name a
person only if `serve.user_headers` says so: else any team could write another's name.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from pathlib import Path
from typing import Annotated

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from duewheel.api.topics import ALL_TOPICS, TopicScope
from duewheel.config.keys_and_defaults import ServeSection
from duewheel.errors import ConfigError
from duewheel.serve.problems import Refused

TOKEN_CHARACTERS_MIN = 16  # a name has fewer: else a line without one would show its token as such
_USER_MAX = 256

_bearer = HTTPBearer(
    auto_error=False, scheme_name="token", description="a token of serve.token_file"
)
Credentials = Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sends a request: the name of its token, and the timer topics that this is for; and the
    person that a proxy names.
    """

    name: str = ""
    scope: TopicScope = ALL_TOPICS
    user: str | None = None


Tokens = Mapping[bytes, Caller]


@dataclass(frozen=True, slots=True, repr=False)
class Access:
    """The tokens."""

    change: Tokens | None = None  # None: there are no changes
    read: Tokens | None = None  # None: reads need none
    user_headers: Mapping[str, str] = field(default_factory=dict)  # by the token's name

    @classmethod
    def load(cls, serve: ServeSection) -> Access:
        """Reads the files of the tokens.

        Raises:
            ConfigError: one cannot be read, or has a token that is too short, or two with one name;
                or a proxy has none.
        """
        change = _tokens("serve.token_file", serve.token_file)
        read = _tokens("serve.read_token_file", serve.read_token_file)
        named = {caller.name for caller in (change or {}).values()}
        if unknown := sorted(serve.user_headers.keys() - named):
            raise ConfigError(f"serve.user_headers: serve.token_file has no token named {unknown}")
        return cls(change, read, serve.user_headers)


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
    tokens = dict(_callers(lines))
    if not tokens or not len(lines) == len(tokens) == len({each.name for each in tokens.values()}):
        raise ConfigError(
            f"{key}: {path} must have a token, or in each line a name of its own, a token, and "
            "perhaps names of timer topics, or patterns as of timer.targets. A token has "
            f"{TOKEN_CHARACTERS_MIN} or more ASCII characters without blanks, such as those of "
            "`openssl rand -hex 32`, and a name has fewer"
        )
    return tokens


def _callers(lines: list[list[str]]) -> Iterator[tuple[bytes, Caller]]:
    """Yields token and caller of each line that has both."""
    for name, token, *patterns in (line for line in lines if len(line) > 1):
        with suppress(ConfigError):  # it quotes the text, which may be a part of a token
            scope = TopicScope(tuple(patterns))
            if _is_token(token) and len(name) < TOKEN_CHARACTERS_MIN:
                yield token.encode(), Caller(name, scope)


def _is_token(text: str) -> bool:
    return len(text) >= TOKEN_CHARACTERS_MIN and text.isascii()


async def may_read(request: Request, credentials: Credentials) -> None:
    """Refuses a read without a valid token."""
    access: Access = request.app.state.access
    request.state.caller = _require(credentials, access.read, access.change)


async def may_change(request: Request, credentials: Credentials) -> None:
    """Refuses a change without a valid token; all changes if there is no token."""
    access: Access = request.app.state.access
    if access.change is None:
        detail = "changes are off: set serve.token_file"
        raise Refused(HTTPStatus.FORBIDDEN, "changes_off", detail)
    if _matching(credentials, access.read) and not _matching(credentials, access.change):
        challenge = {"WWW-Authenticate": 'Bearer error="insufficient_scope"'}
        detail = "this token only reads: give a token of serve.token_file"
        raise Refused(HTTPStatus.FORBIDDEN, "reads_only", detail, challenge)
    caller = _require(credentials, access.change)
    header = access.user_headers.get(caller.name)
    user = None if header is None else _user(request, header)
    request.state.caller = replace(caller, user=user)


async def caller_of(request: Request) -> Caller:
    """Who sends a request that is admitted. Where reads need no token, one that is given bounds
    them nevertheless: so the page of a team shows the timers that its changes can reach.
    """
    caller: Caller | None = getattr(request.state, "caller", None)
    if caller is None:
        access: Access = request.app.state.access
        given = _matching(await _bearer(request), access.change)
        caller = given[0] if given else Caller()
    return caller


Calling = Annotated[Caller, Depends(caller_of)]


def _user(request: Request, header: str) -> str:
    """The person that a proxy names.

    Raises:
        Refused: it names none, or several: one may be the client's own.
    """
    given = [value for name, value in request.headers.raw if name == header.lower().encode()]
    user = given[0].decode(errors="backslashreplace").strip() if len(given) == 1 else ""
    if not (0 < len(user) <= _USER_MAX and user.isprintable()):  # the log may be a terminal
        detail = f"the proxy must name one person: {header} (serve.user_headers)"
        raise Refused(HTTPStatus.FORBIDDEN, "no_user", detail)
    return user


def _matching(
    credentials: HTTPAuthorizationCredentials | None, *accepted: Tokens | None
) -> list[Caller]:
    given = b"" if credentials is None else credentials.credentials.encode(errors="replace")
    tokens = [each for tokens in accepted if tokens is not None for each in tokens.items()]
    # All are compared: the time must not depend on the one that is right.
    return [caller for token, caller in tokens if hmac.compare_digest(given, token)]


def _require(credentials: HTTPAuthorizationCredentials | None, *accepted: Tokens | None) -> Caller:
    """The caller with the token that is given."""
    callers = _matching(credentials, *accepted)
    if not callers:
        header = {"WWW-Authenticate": "Bearer"}
        detail = "give a valid token: Authorization: Bearer <token>"
        raise Refused(HTTPStatus.UNAUTHORIZED, "unauthorized", detail, header)
    return callers[0]
