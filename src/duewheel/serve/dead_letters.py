"""The operations of dead letters. They are in Kafka only, so these wait for Kafka."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request

from duewheel.api.dead_letters import (
    DeadLetterList,
    DeadLetterQuery,
    DeadLetterWithMessage,
    Replay,
    Replayed,
)
from duewheel.ops.dead_letters import listing, replay
from duewheel.serve.changes import logged
from duewheel.serve.models import problem
from duewheel.serve.problems import Refused
from duewheel.serve.service import Shared

PAGE_S = 5.0

reading = APIRouter(prefix="/v1/dead-letters", tags=["dead letters"])
changing = APIRouter(prefix="/v1/dead-letters", tags=["dead letters"])


@reading.get("", operation_id="list_dead_letters")
async def list_dead_letters(
    service: Shared, wanted: Annotated[DeadLetterQuery, Query()]
) -> DeadLetterList:
    """Dead letters, oldest first within each partition.

    With a `code` a page may have fewer than `limit`, or none, before the last page.
    """
    return await service.read_kafka(
        partial(listing.page_of_letters, service.settings, wanted, PAGE_S)
    )


@reading.get(
    "/{partition}/{offset}",
    operation_id="show_dead_letter",
    responses=problem(404, "no such dead letter"),
)
async def show_dead_letter(
    service: Shared,
    partition: Annotated[int, Path(ge=0, lt=2**31)],
    offset: Annotated[int, Path(ge=0, lt=2**63)],
) -> DeadLetterWithMessage:
    """One dead letter; with value and headers of its message if serve.show_bodies is set."""
    body = service.settings.serve.show_bodies
    call = partial(listing.one_letter, service.settings, partition, offset, body=body)
    letter = await service.read_kafka(call)
    if letter is None:
        raise Refused(HTTPStatus.NOT_FOUND, "no_such_letter", "there is no such dead letter")
    return letter


@changing.post("/replay", operation_id="replay_dead_letters")
async def replay_dead_letters(service: Shared, request: Request, wanted: Replay) -> Replayed:
    """Writes the messages of dead letters again, each once; with `dry_run` it only counts them."""
    call = partial(replay.replay, service.settings, wanted, dry_run=wanted.dry_run)
    with nullcontext() if wanted.dry_run else logged(request):
        return await service.replay(call)
