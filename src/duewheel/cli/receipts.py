"""The command `receipts`."""

from __future__ import annotations

import math

import click

from duewheel.api.receipts import DeliveryReceipt, ReceiptFilter
from duewheel.api.requests import INSTANT
from duewheel.cli.examples import CommandWithExamples
from duewheel.cli.options import with_result
from duewheel.cli.output import say, show_rows
from duewheel.cli.request_options import with_fields, with_request
from duewheel.config.durations import duration_text
from duewheel.config.instants import utc_text
from duewheel.config.settings import Settings


@click.command(cls=CommandWithExamples)
@with_fields(
    ReceiptFilter,
    *("id", "target", "since", "until"),
    since=f"delivered then or later: {INSTANT}",
    until=f"delivered before: {INSTANT}",
)
@click.option("--limit", type=click.IntRange(1), default=100, help="how many at most")
@click.option(
    "--page", metavar="PARTITION@OFFSET", help="of the last receipt that was listed: continue there"
)
@with_request("wanted", ReceiptFilter)
@with_result(needs_kafka=True)
def receipts(
    settings: Settings, *, wanted: ReceiptFilter, limit: int, page: str | None, output: str
) -> None:
    """Show which timers were delivered: when, where, how late.

    Needs `timer.receipts_topic`. Oldest first within each partition of that topic; --from bounds
    how much of it is read. If more may follow, a line on stderr says how to list them.
    """
    from duewheel.ops.receipts import page_of_receipts

    part = page_of_receipts(settings, wanted, limit=limit, page=page, within_s=math.inf)
    show_rows(part.receipts, output, _line)
    if not part.receipts:
        say("no receipts")
    if part.next is not None:
        say(f"more may follow: --page {part.next}, or --limit")


def _line(row: DeliveryReceipt) -> str:
    late, to = duration_text(row.lateness_ms), f"{row.target}-{row.target_partition}"
    return f"{utc_text(row.delivered_ms)}  {late} late  {to}  {row.id}  from {row.source}"
