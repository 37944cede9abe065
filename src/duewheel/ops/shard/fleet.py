"""The shards of an app: each server that `serve.shards` names is asked for its status.

A server gets the token of the request that asks, so all of them need the same tokens. Redirects are
not followed, and no proxy is used: the token is for the named servers alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import HTTPRedirectHandler, ProxyHandler, Request, build_opener

from duewheel.api.fleet import Fleet, FleetMember, FleetShard
from duewheel.clock import Clock
from duewheel.config.settings import Settings
from duewheel.errors import DuewheelError
from duewheel.ops.shard.status import read_status

_ANSWER_S = 2.0
_ANSWER_BYTES_MAX = 16 << 20
_PROBLEM_BYTES_MAX = 64 << 10
_AT_ONCE = 16  # servers


class _NoRedirect(HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        """Makes a redirect an error."""


_OPENER = build_opener(ProxyHandler({}), _NoRedirect)


def read_fleet(settings: Settings, clock: Clock, authorization: str | None) -> Fleet:
    """Asks each server for its shard; without `serve.shards` there is this shard alone.

    Args:
        authorization: the header of the request, for the servers.
    """
    if settings.serve.shards:
        ask = partial(_read, authorization=authorization)
        with ThreadPoolExecutor(_AT_ONCE, "fleet") as pool:
            members = list(pool.map(ask, settings.serve.shards))
    else:
        members = [_member(None, partial(_own_status, settings, clock))]
    answered = [member.status for member in members if member.status is not None]
    owned = {status.shard for status in answered if status.role == "owner"}
    count = settings.shard.count
    absent = [shard for shard in range(count) if shard not in owned]
    return Fleet(shards=count, members=members, absent=absent)


def _read(url: str, authorization: str | None) -> FleetMember:
    headers = {} if authorization is None else {"Authorization": authorization}
    address = f"{url}/v1/status"
    request = Request(address, headers=headers)  # noqa: S310 - the setting has http or https
    return _member(url, partial(_status_of, request))


def _member(url: str | None, read: Callable[[], Mapping[str, Any]]) -> FleetMember:
    try:
        return FleetMember(url=url, status=FleetShard.of_status(read()), error=None)
    except HTTPError as error:
        reason = f"{error.code}: {_detail(error)}"
    except URLError as error:
        reason = getattr(error.reason, "strerror", None) or str(error.reason)
    except (DuewheelError, HTTPException, OSError) as error:
        reason = str(error) or type(error).__name__
    except (LookupError, TypeError, ValueError):
        reason = "its answer is no status of a shard"
    return FleetMember(url=url, status=None, error=reason)


def _own_status(settings: Settings, clock: Clock) -> dict[str, Any]:
    return read_status(settings, clock).model_dump(mode="json", by_alias=True)


def _status_of(request: Request) -> Any:
    with _OPENER.open(request, timeout=_ANSWER_S) as answer:
        return json.loads(answer.read(_ANSWER_BYTES_MAX))


def _detail(error: HTTPError) -> str:
    """The cause, as the problem of the answer has it."""
    try:
        return str(json.loads(error.read(_PROBLEM_BYTES_MAX))["detail"])
    except (LookupError, TypeError, ValueError, OSError, HTTPException):
        return str(error.reason)
