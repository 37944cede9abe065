"""The operation that searches receipts, which are in Kafka only: it waits for Kafka."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from duewheel.api.receipts import ReceiptList, ReceiptQuery
from duewheel.ops.receipts import page_of_receipts
from duewheel.serve.problems import documented
from duewheel.serve.scopes import Scoped
from duewheel.serve.service import KAFKA_PAGE_S, Shared

reading = APIRouter(prefix="/v1", tags=["receipts"])


@reading.get(
    "/receipts",
    operation_id="list_receipts",
    responses=documented(404, "no setting asks for receipts"),
)
async def list_receipts(
    service: Shared, wanted: Annotated[ReceiptQuery, Query()], scope: Scoped
) -> ReceiptList:
    """Delivered timers, oldest first within each partition of the receipts topic.

    `from` and `to` select by the instant of delivery. A page ends after some seconds: with an `id`
    or a `target` it may have fewer receipts than `limit`, or none, before the last page.
    """
    return await service.read_kafka(page_of_receipts, wanted, KAFKA_PAGE_S, scope)
