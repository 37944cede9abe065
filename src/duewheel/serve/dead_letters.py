"""The operations of dead letters, which are in Kafka only: each waits for Kafka."""

from __future__ import annotations

from functools import partial
from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Path, Query

from duewheel.api.dead_letters import (
    DeadLetterList,
    DeadLetterQuery,
    DeadLetterWithMessage,
    Replay,
    Replayed,
)
from duewheel.ops.dead_letters import listing, replay
from duewheel.ops.timers.pending import SEARCH_S
from duewheel.serve.change_records import Changing, recorded
from duewheel.serve.problems import Refused, documented
from duewheel.serve.scopes import OF_ALL, Scoped
from duewheel.serve.service import KAFKA_PAGE_S, Shared

reading = APIRouter(prefix="/v1/dead-letters", tags=["dead letters"])
changing = APIRouter(prefix="/v1/dead-letters", tags=["dead letters"])


@reading.get("", operation_id="list_dead_letters")
async def list_dead_letters(
    service: Shared, wanted: Annotated[DeadLetterQuery, Query()], scope: Scoped
) -> DeadLetterList:
    """Dead letters, oldest first within each partition.

    With a `code` a page may have fewer than `limit`, or none, before the last page.
    """
    return await service.read_kafka(listing.page_of_letters, wanted, KAFKA_PAGE_S, scope)


@reading.get(
    "/{partition}/{offset}",
    operation_id="show_dead_letter",
    responses=documented(404, "no such dead letter"),
)
async def show_dead_letter(
    service: Shared,
    partition: Annotated[int, Path(ge=0, lt=2**31)],
    offset: Annotated[int, Path(ge=0, lt=2**63)],
    scope: Scoped,
) -> DeadLetterWithMessage:
    """One dead letter; with value and headers of its message if serve.show_bodies is set."""
    body = service.settings.serve.show_bodies
    letter = await service.read_kafka(listing.one_letter, partition, offset, body=body, scope=scope)
    if letter is None:
        raise Refused(HTTPStatus.NOT_FOUND, "no_such_letter", "there is no such dead letter")
    return letter


@changing.post("/replay", operation_id="replay_dead_letters", dependencies=OF_ALL)
@recorded
async def replay_dead_letters(change: Changing, wanted: Replay) -> Replayed:
    """Writes the messages of dead letters again, each once; with `dry_run` it only counts them.

    After 10 s it ends with those so far, or with 422 if there are none: the next one continues.
    """
    again, clock = partial(replay.replay, within_s=SEARCH_S), change.service.clock
    return await change.service.replay(again, clock, wanted, dry_run=wanted.dry_run)
