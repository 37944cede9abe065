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
import stat
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from pathlib import Path
from typing import Annotated

import structlog
from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from duewheel.api.topics import ALL_TOPICS, TopicScope
from duewheel.config.keys_and_defaults import ServeSection
from duewheel.config.settings import Settings
from duewheel.errors import ConfigError
from duewheel.serve.problems import Refused, busy

log = structlog.get_logger(__name__)

TOKEN_CHARACTERS_MIN = 16  # a name has fewer: else a line without one would show its token as such
CALLER_REQUESTS_MAX = 64  # at a time: half of those of all (gate.py)
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


# Of the request that is answered; None: it needs no token
admitted_caller: ContextVar[Caller | None] = ContextVar("admitted_caller", default=None)
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
    lines = [(at, line.split()) for at, line in enumerate(text.splitlines(), 1) if line.strip()]
    if len(lines) == 1 and len(lines[0][1]) == 1:
        lines[0][1].insert(0, "")
    tokens: dict[bytes, Caller] = {}
    for at, words in lines:
        caller = _caller(words)
        names = {each.name for each in tokens.values()}
        if caller is None or caller.name in names or words[1].encode() in tokens:
            raise _refused(f"{key}: {path}, line {at}")
        tokens[words[1].encode()] = caller
    if not tokens:
        raise _refused(f"{key}: {path}")
    return tokens


def _caller(words: list[str]) -> Caller | None:
    """The caller of a line; None if it has no name and token of the right form."""
    name, token, *patterns = words if len(words) > 1 else ["", ""]
    is_token = len(token) >= TOKEN_CHARACTERS_MIN and token.isascii()
    with suppress(ConfigError):  # it quotes the text, which may be a part of a token
        if is_token and len(name) < TOKEN_CHARACTERS_MIN:
            return Caller(name, TopicScope(tuple(patterns)))
    return None


def _refused(place: str) -> ConfigError:
    return ConfigError(
        f"{place}: there must be one token, or in each line a name and a token of its own, and "
        "perhaps names of timer topics, or patterns as of timer.targets. A token has "
        f"{TOKEN_CHARACTERS_MIN} or more ASCII characters without blanks, such as those of "
        "`openssl rand -hex 32`, and a name has fewer"
    )


def warn_of_doubts(access: Access, settings: Settings) -> None:
    """Logs tokens that are accepted, and may be an error."""
    for path in (settings.serve.token_file, settings.serve.read_token_file):
        if path is not None and path.stat().st_mode & stat.S_IROTH:
            log.warning("every user of this host can read the tokens", file=str(path))
    if settings.timer.topics_pattern is not None:
        return  # a timer topic of any such name may come
    for caller in [*(access.change or {}).values(), *(access.read or {}).values()]:
        scopes = [TopicScope((pattern,)) for pattern in caller.scope.patterns]
        if not all(any(topic in scope for topic in settings.timer.topics) for scope in scopes):
            # Not which one: a second token of the line would be a pattern, too.
            log.warning(
                "a token is for a timer topic that the settings do not name", by=caller.name
            )


async def may_read(request: Request, credentials: Credentials) -> AsyncIterator[None]:
    """Refuses a read without a valid token."""
    access: Access = request.app.state.access
    with _admitted(request, _require(credentials, access.read, access.change)):
        yield


async def may_change(request: Request, credentials: Credentials) -> AsyncIterator[None]:
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
    with _admitted(request, replace(caller, user=user)):
        yield


@contextmanager
def _admitted(request: Request, caller: Caller) -> Iterator[None]:
    """Around the answer to a caller; it is refused if the caller has too many requests."""
    requests: Counter[str] = request.app.state.requests
    if requests[caller.name] >= CALLER_REQUESTS_MAX:
        raise busy(f"{requests[caller.name]} requests with this token are waiting")
    admitted_caller.set(caller)
    requests[caller.name] += 1
    try:
        yield
    finally:
        requests[caller.name] -= 1


async def caller_of(request: Request) -> Caller:
    """Who sends a request that is admitted. Where reads need no token, one that is given bounds
    them nevertheless: so the page of a team shows the timers that its changes can reach.
    """
    caller = admitted_caller.get()
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
