"""The command `receipts`."""

from __future__ import annotations

import click

from duewheel.api.receipts import DeliveryReceipt, ReceiptFilter
from duewheel.api.requests import INSTANT
from duewheel.cli.command_help import CommandWithExamples
from duewheel.cli.options import with_result
from duewheel.cli.output import Printer
from duewheel.cli.pages import show_page, with_page
from duewheel.cli.request_options import with_fields, with_request
from duewheel.config.durations import duration_text
from duewheel.config.instants import utc_text
from duewheel.config.settings import Settings
from duewheel.ops.receipts import list_receipts


@click.command(cls=CommandWithExamples)
@with_fields(
    ReceiptFilter,
    *("id", "target", "since", "until"),
    since=f"delivered then or later: {INSTANT}",
    until=f"delivered before: {INSTANT}",
)
@with_page
@with_request("wanted", ReceiptFilter)
@with_result(needs_kafka=True, is_list=True)
def receipts(
    settings: Settings, wanted: ReceiptFilter, limit: int | None, page: str | None, output: Printer
) -> None:
    """Show which timers were delivered: when, where, how late.

    Needs `timer.receipts_topic`. Oldest first within each partition of that topic; --from bounds
    how much of it is read.
    """
    show_page(
        lambda _: list_receipts(settings, wanted, page),
        DeliveryReceipt,
        limit,
        output,
        _line,
        lambda row: row.receipt,
        of="receipts",
    )


def _line(row: DeliveryReceipt) -> str:
    late, to = duration_text(row.lateness_ms), f"{row.target}-{row.target_partition}"
    return f"{utc_text(row.delivered_ms)}  {late} late  {to}  {row.id}  from {row.source}"
