"""Records of a mirrored timer partition, and their rows."""

from __future__ import annotations

from collections import Counter
from typing import Any

from tests.harness.source_table import SourceRow, as_table, read_records
from tests.harness.timer_rows import suite_parameters

from duewheel.ops.recovery.mirrored_rows import MirroredRows, rows_of
from duewheel.schemas.request.acceptance_rules import compile_suite, load_suite
from duewheel.schemas.request.parser import Contract
from duewheel.schemas.request.topic_settings import TopicContract

T0 = 1_800_000_000_000
PLACE = ("orders.delayed", 0)
CONTRACT = Contract(
    (1_000,),
    {PLACE[0]: TopicContract(recurring=True)},
    "dead",
    compile_suite(load_suite(), suite_parameters()),
)


def record(
    due_s: int | None = None, timer_id: str = "", at_s: int = 0, value: bytes = b"v", **headers: Any
) -> SourceRow:
    """Written `at_s` and due `due_s` seconds after the beginning."""
    named = [("REAL_TOPIC", b"orders")]
    if due_s is not None:
        named.append(("TIMER_DELIVER_MS", b"%d" % (T0 + 1_000 * due_s)))
    if timer_id:
        named.append(("UNIQ_KEY", timer_id.encode()))
    named += [(name, str(content).encode()) for name, content in headers.items()]
    return SourceRow(0, T0 + 1_000 * at_s, named, key=b"k", value=value)


def rows(*records: SourceRow, others: Counter[str] | None = None) -> MirroredRows:
    placed = [each._replace(offset=place) for place, each in enumerate(records)]
    left_out: Counter[str] = Counter() if others is None else others
    return rows_of(read_records(as_table(placed)), PLACE, CONTRACT, left_out)
