"""The operation that searches receipts. They are in Kafka only, so it waits for Kafka."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from fastapi import APIRouter, Query

from duewheel.api.limits import ID_MAX, TOPIC_MAX, Limit
from duewheel.api.receipts import ReceiptList
from duewheel.ops.receipts import ReceiptFilter, page_of_receipts
from duewheel.serve.reads import Since, Until
from duewheel.serve.service import Shared

PAGE_S = 5.0

router = APIRouter(prefix="/v1", tags=["receipts"])


@router.get("/receipts", operation_id="list_receipts")
async def list_receipts(
    service: Shared,
    id: Annotated[str | None, Query(max_length=ID_MAX + TOPIC_MAX)] = None,
    target: Annotated[str | None, Query(max_length=TOPIC_MAX)] = None,
    since: Since = None,
    until: Until = None,
    limit: Limit = 100,
    page: Annotated[str | None, Query(pattern=r"^[0-9]{1,9}@[0-9]{1,18}$")] = None,
) -> ReceiptList:
    """Delivered timers, oldest first within each partition of the receipts topic.

    `from` and `to` select by the instant of delivery. A page ends after some seconds: with an `id`
    or a `target` it may have fewer receipts than `limit`, or none, before the last page.
    """
    wanted = ReceiptFilter.of(id, target, since, until)
    call = partial(
        page_of_receipts, service.settings, wanted, limit=limit, page=page, within_s=PAGE_S
    )
    return await service.read_kafka(call)
