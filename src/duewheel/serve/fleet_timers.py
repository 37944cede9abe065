"""One search of the pending timers of all shards: each one's server searches its own.

The servers are asked at once, with the token of the request: each decides what that may see. A
shard without an answer is named, so that no timer of it seems not to be pending.
"""

from __future__ import annotations

from asyncio import gather
from dataclasses import replace
from http import HTTPStatus
from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request

from duewheel.api.fleet import AbsentShard, FleetTimers, TimerOfShard
from duewheel.api.requests import FleetTimerQuery, TimerQuery
from duewheel.api.timers import TimerList
from duewheel.ops.timers import pending
from duewheel.serve.fleet import detail_of
from duewheel.serve.problems import Refused
from duewheel.serve.scopes import Scoped
from duewheel.serve.service import Service, Shared
from duewheel.serve.shard_requests import (
    ForwardedRequest,
    OtherShards,
    ShardAbsent,
    why_absent,
)

reading = APIRouter(prefix="/v1", tags=["reads"])

Answer = TimerList | AbsentShard


@reading.get("/fleet/timers", operation_id="list_fleet_timers")
async def list_fleet_timers(
    service: Shared, request: Request, wanted: Annotated[FleetTimerQuery, Query()], scope: Scoped
) -> FleetTimers:
    """Pending timers of all shards, as `/v1/timers` lists those of one; there are no pages.

    `absent` has the shards without an answer: their timers are not in the list.
    """
    pending.selection(service.settings, wanted)  # else each shard would refuse a wrong one
    given = wanted.model_dump(mode="json", by_alias=True, exclude_unset=True)
    count = service.settings.shard.count
    if service.settings.serve.shards:
        token = request.headers.get("Authorization")
        answers = await _of_servers(service, token, f"/v1/timers?{urlencode(given)}")
    else:
        own = await service.read(pending.page_of, TimerQuery.model_validate(given), scope=scope)
        others = (shard for shard in range(count) if shard != own.shard)
        reason = "serve.shards does not name its server"
        answers = [own, *(AbsentShard(shard=shard, reason=reason) for shard in others)]
    pages = [each for each in answers if isinstance(each, TimerList)]
    timers = [
        TimerOfShard(**dict(timer), shard=page.shard) for page in pages for timer in page.timers
    ]
    timers.sort(key=lambda timer: timer.leaves_ms)
    return FleetTimers(
        shards=count,
        timers=timers[: wanted.limit],
        more=len(timers) > wanted.limit or any(page.next is not None for page in pages),
        absent=[each for each in answers if isinstance(each, AbsentShard)],
    )


async def _of_servers(service: Service, token: str | None, target: str) -> list[Answer]:
    fleet = await service.ask_servers(OtherShards.fleet, token)
    headers = [] if token is None else [("Authorization", token)]
    sent = ForwardedRequest("GET", target, headers, b"")
    found = {
        shard: AbsentShard(shard=shard, reason=why_absent(shard, fleet)) for shard in fleet.absent
    }
    asked = [shard for shard in range(fleet.shards) if shard not in found]
    answered = await gather(*(_of_server(service, shard, sent) for shard in asked))
    return [*answered, *found.values()]


async def _of_server(service: Service, shard: int, sent: ForwardedRequest) -> Answer:
    try:
        return await replace(service.shards[shard], writes=False)(_answer, shard, sent)
    except (ShardAbsent, Refused) as error:
        reason = str(error)
    except ValueError:
        reason = "its answer is no list of timers"
    return AbsentShard(shard=shard, reason=reason)


def _answer(others: OtherShards, shard: int, sent: ForwardedRequest) -> Answer:
    answer = others.ask(shard, sent)
    if answer.status != HTTPStatus.OK:
        reason = f"{answer.status}: {detail_of(answer.body, 'no list of timers')}"
        return AbsentShard(shard=shard, reason=reason)
    return TimerList.model_validate_json(answer.body)
