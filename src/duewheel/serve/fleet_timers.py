"""One search of the pending timers of all shards: each one's server searches its own.

The servers get the request at once, with its token: each decides about its scope. A shard without
an answer is named, so that no timer of it seems not to be pending.
"""

from __future__ import annotations

from asyncio import gather
from http import HTTPStatus
from urllib.parse import urlencode

from duewheel.api.fleet import AbsentShard, FleetTimers, TimerOfShard
from duewheel.api.requests import FleetTimerQuery, TimerQuery
from duewheel.api.timers import TimerList
from duewheel.api.topics import TopicScope
from duewheel.ops.timers import pending
from duewheel.serve.problems import Refused
from duewheel.serve.server_connection import detail_of
from duewheel.serve.service import Service
from duewheel.serve.shard_requests import ForwardedRequest, OtherShards, ShardAbsent, why_absent

Answer = TimerList | AbsentShard


async def of_all_shards(
    service: Service, wanted: FleetTimerQuery, scope: TopicScope, token: str | None
) -> FleetTimers:
    """Searches all shards.

    Args:
        scope: of the token, for this server's own shard if `serve.shards` names no servers.
        token: the header of the request, for the servers.
    """
    pending.selection(service.settings, wanted)  # else each shard would refuse a wrong one
    given = wanted.model_dump(mode="json", by_alias=True, exclude_unset=True)
    count = service.settings.shard.count
    if service.settings.serve.shards:
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
        recovering=sorted(page.shard for page in pages if page.recovering),
    )


async def _of_servers(service: Service, token: str | None, target: str) -> list[Answer]:
    fleet = await service.ask_servers(OtherShards.fleet, token)
    headers = [] if token is None else [("Authorization", token)]
    sent = ForwardedRequest("GET", target, headers, b"")
    found = {
        shard: AbsentShard(shard=shard, reason=why_absent(shard, fleet)) for shard in fleet.absent
    }
    owned = [shard for shard in range(fleet.shards) if shard not in found]
    answers = await gather(*(_of_server(service, shard, sent) for shard in owned))
    return [*answers, *found.values()]


async def _of_server(service: Service, shard: int, sent: ForwardedRequest) -> Answer:
    try:
        return await service.read_shard[shard](_answer, shard, sent)
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
