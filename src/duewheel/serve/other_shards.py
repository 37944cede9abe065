"""All shards by one server: below /shards/N/ the page and the API are those of shard N.

The page's files come from here, the rest from the server of that shard's owner (shard_requests.py),
with the token of the request: scopes, records of changes and limits are decided there. This server
asks for a token itself, since all servers have the same ones: a request without one must not depend
on other hosts, and could not: a server names its shard to those that may read. So /readyz needs one
here, too. The addresses of the page are relative, so they need no change.
"""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Path, Request, Response

from duewheel.serve.bulkhead import Lane
from duewheel.serve.problems import Refused
from duewheel.serve.scopes import OF_NONE
from duewheel.serve.service import Shared
from duewheel.serve.shard_requests import ForwardedRequest, OtherShards

PREFIX = "/shards/{shard}"
_RETURNED = ("content-type", "retry-after", "www-authenticate")

reading = APIRouter(prefix=PREFIX, include_in_schema=False)
changing = APIRouter(prefix=f"{PREFIX}/v1", include_in_schema=False)

Shard = Annotated[int, Path(ge=0)]


@reading.get("/readyz", operation_id="shard_readyz", dependencies=OF_NONE)
@reading.get("/v1/{path:path}", operation_id="read_shard", dependencies=OF_NONE)
async def read_shard(service: Shared, shard: Shard, request: Request) -> Response:
    """A read of a shard, or whether it does its work."""
    return await _sent_on(service.read_shard, shard, request)


@changing.api_route(
    "/{path:path}",
    methods=["POST", "PUT", "DELETE"],
    operation_id="change_shard",
    dependencies=OF_NONE,
)
async def change_shard(service: Shared, shard: Shard, request: Request) -> Response:
    """A change in a shard."""
    return await _sent_on(service.change_shard, shard, request)


async def _sent_on(
    lanes: Mapping[int, Lane[OtherShards]], shard: int, request: Request
) -> Response:
    if shard not in lanes:
        detail = f"there is no shard {shard}: shard.count is {len(lanes)}"
        raise Refused(HTTPStatus.NOT_FOUND, "not_found", detail)
    raw, query = request.scope["raw_path"], request.scope["query_string"]
    target = "/" + (raw + b"?" * bool(query) + query).split(b"/", 3)[3].decode("latin-1")
    raw_headers = request.headers.raw
    headers = [(name.decode("latin-1"), each.decode("latin-1")) for name, each in raw_headers]
    given = ForwardedRequest(request.method, target, headers, await request.body())
    answer = await lanes[shard](OtherShards.ask, shard, given)
    returned = {name: answer.headers[name] for name in _RETURNED if name in answer.headers}
    return Response(answer.body, answer.status, returned)
