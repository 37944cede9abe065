"""What a recovery from a mirror and a relay read: records, receipts and rows of any writer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fuzz.test_records import RECEIPT, fetched_of, sealed_body
from tests.fuzz.test_requests import CONTRACT, records, table, value_of
from tests.harness.local_world import NOW_MS
from tests.harness.source_table import read_records

from duewheel import factory
from duewheel.config.settings import Settings, load
from duewheel.errors import ConfigError
from duewheel.kafka.log.columns import committed_records
from duewheel.ops.recovery.evidence import EvidenceReader, timer_keys
from duewheel.ops.recovery.mirrored_rows import Kind, MirroredRows, rows_of
from duewheel.ops.relay.outbox_rows import OutboxRow, record_of_row
from duewheel.schemas.receipts import Receipt
from duewheel.schemas.request.preview import previews_of
from duewheel.schemas.wire.single_record import encode

Change = Callable[[st.DataObject, bytes], bytes]

LOST = ("timers", 0)
ROW = OutboxRow(
    7,
    UUID("0f8fad5b-d9cb-469f-a165-70867728950e"),
    "orders.delayed",
    "order-42",
    b"pay\xff",
    "orders",
    NOW_MS + 900_000,
    "reminder-42",
    "sale",
    False,
    '{"trace": "1"}',
)
# What a column of the database may hold in the place of its own.
COLUMNS: dict[str, st.SearchStrategy[Any]] = {
    "timer_topic": st.text(max_size=5) | st.sampled_from(["orders", "orders.delayed\n", "x" * 300]),
    "key": st.none() | st.text(max_size=5),
    "value": st.none() | st.binary(max_size=5),
    "target": st.none() | st.text(max_size=5) | st.just("orders.delayed"),
    "due_ms": st.none() | st.integers(-(2**63), 2**63 - 1),
    "timer_id": st.text(max_size=5) | st.just("ü" * 40_000),
    "tag": st.none() | st.text(max_size=5) | st.just("x" * 300),
    "cancels": st.booleans(),
}


@pytest.fixture(scope="module")
def settings() -> Settings:
    timer = {"topics": ["orders.delayed"], "targets": ["*"], "max_delay": "36500d"}
    return load(None, {"timer": timer | {"roll_window": "1h", "margin": "5m"}})


@given(data=st.data(), asked=records())
def test_any_mirrored_records(
    damage: Change, data: st.DataObject, asked: list[tuple[int, list[str]]]
) -> None:
    """Each is a row or counted; two that are equal stay two, as neighbours."""
    rows = [(at, [(name, value_of(name, damage, data)) for name in names]) for at, names in asked]
    others = Counter[str]()
    one = table(rows).set_column(1, "partition", pa.array([0] * len(rows), pa.int32()))
    found = rows_of(read_records(one), LOST, CONTRACT, others)
    assert len(found) == len(rows)
    assert sum(others.values()) == np.count_nonzero(found.kind == Kind.OTHER)
    timers = found.kind < Kind.CANCEL
    assert np.all(found.timestamp_ms == [at for at, _ in rows])
    assert np.all((found.first_offset >= 0)[timers & (found.kind == Kind.COPY)])
    assert len(MirroredRows.joined([found, found]).without_repeats()) >= len(set(found.record))


@given(data=st.data())
def test_any_mirrored_receipt(damage: Change, alter: Change, data: st.DataObject) -> None:
    """Evidence is only what `receipts` lists as a receipt of this partition."""
    value = data.draw(st.sampled_from([damage, alter]))(data, RECEIPT)
    key = damage(data, b"order")
    reader, listed = EvidenceReader([LOST]), Receipt.parse(key, value, 0)
    fetched = fetched_of(sealed_body(encode(0, key, value, []), 1))
    for read in committed_records([fetched], {LOST: (0, 1)}):
        taken = reader._add_receipts(read)  # noqa: SLF001 - with a reader it needs Kafka
        evidence = reader.by_place()
        assert len(taken) == len(evidence) <= 1
        if evidence:
            assert listed is not None and listed.source.startswith("timers-0@")
            assert evidence[0].left(timer_keys([key], [listed.due_ms])).tolist() == [1]


@given(data=st.data())
def test_any_row_of_an_outbox(
    settings: Settings, damage: Change, alter: Change, data: st.DataObject
) -> None:
    """Refused, or a record of its timer topic that ingest accepts or refuses."""
    names = data.draw(st.sets(st.sampled_from(sorted(COLUMNS)), max_size=3))
    row = ROW._replace(**{name: data.draw(COLUMNS[name]) for name in sorted(names)})
    if data.draw(st.booleans()):
        changed = data.draw(st.sampled_from([damage, alter]))(data, (row.headers or "").encode())
        row = row._replace(headers=changed.decode(errors="replace").replace("\0", ""))
    try:
        record = record_of_row(settings, row, NOW_MS)
    except ConfigError:
        return
    assert record.timer_topic == "orders.delayed"
    request = [(record.key, record.value, record.headers)]
    (seen,) = previews_of(factory.contract(settings), record.timer_topic, request, NOW_MS)
    assert seen is not None
