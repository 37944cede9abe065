"""Receipts of delivered timers."""

from __future__ import annotations

from pydantic import Field

from duewheel.api.model import InstantMs, Result
from duewheel.api.requests import RecordPage, TimerId, TimeSpan, Topic


class ReceiptFilter(TimeSpan):
    """Conditions of receipts that all hold."""

    id: TimerId | None = Field(
        default=None, description="the timer's id; without one its topic-partition@offset"
    )
    target: Topic | None = Field(default=None, description="the topic of the messages")


class ReceiptQuery(ReceiptFilter, RecordPage, extra="ignore"):
    """A page of receipts."""


class DeliveryReceipt(Result):
    """A delivered timer."""

    id: str = Field(description="of the timer; without one `source`")
    source: str = Field(description="topic-partition@offset of the record that requested it")
    target: str
    target_partition: int
    due_ms: InstantMs
    delivered_ms: InstantMs = Field(description="by the brokers' clock, where they stamp the topic")
    lateness_ms: int = Field(description="delivered_ms minus due_ms")
    receipt: str = Field(description="partition@offset in the receipts topic")


class ReceiptList(Result):
    """A page of receipts, oldest first within each partition of their topic."""

    receipts: list[DeliveryReceipt]
    next: str | None = Field(description="`page` of the next request; null: this is the last page")
