"""Lists as Arrow columns: the fields of their rows' JSON, in the same order.

An `InstantMs` is a timestamp in UTC, and its name has no `_ms`. Producers choose
due times: one that no calendar has is the first or last instant here, because Python, pandas and
Spark refuse a whole table for it; so Arrow would for a number beyond 64 bits, such as its lateness.
The due time of a paused timer is null.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from itertools import islice
from typing import Any, get_args

import pyarrow as pa
from pydantic.fields import FieldInfo

from duewheel.api.model import Result, is_instant

_ROWS = 10_000  # of a batch
_TYPES: dict[type, pa.DataType] = {
    bool: pa.bool_(),
    float: pa.float64(),
    int: pa.int64(),
    str: pa.string(),
}
_INSTANT = pa.timestamp("ms", tz="UTC")
# A year from the ends of Python's calendar, for any zone.
_FIRST_MS, _LAST_MS = (
    1000 * int(datetime(year, 1, 1, tzinfo=UTC).timestamp()) for year in (2, 9999)
)
_ENDS = {_INSTANT: (_FIRST_MS, _LAST_MS), pa.int64(): (-(2**63), 2**63 - 1)}


def schema_of(row: type[Result]) -> pa.Schema:
    """The columns of a list of such rows; those that may be null are declared so."""
    return pa.schema([_column(name, field) for name, field in row.model_fields.items()])


def batches_of(row: type[Result], rows: Iterable[Result]) -> Iterator[pa.RecordBatch]:
    """Yields the rows of a list, some thousand at a time."""
    schema, iterator = schema_of(row), iter(rows)
    while part := list(islice(iterator, _ROWS)):
        columns = [
            pa.array(_values(part, name, kind), type=kind)
            for name, kind in zip(row.model_fields, schema.types, strict=True)
        ]
        yield pa.record_batch(columns, schema=schema)


def _values(rows: list[Result], name: str, kind: pa.DataType) -> list[Any]:
    values = [getattr(each, name) for each in rows]
    if name == "due_ms":
        paused = (getattr(each, "paused", False) for each in rows)
        values = [None if no else due for due, no in zip(values, paused, strict=True)]
    if kind not in _ENDS:
        return values
    first, last = _ENDS[kind]
    return [None if each is None else min(max(each, first), last) for each in values]


def _column(name: str, field: FieldInfo) -> pa.Field[Any]:
    kinds = set(_kinds(field.annotation))
    is_nullable = type(None) in kinds
    if is_instant(field):
        return pa.field(name.removesuffix("_ms"), _INSTANT, nullable=is_nullable)
    (kind,) = kinds - {type(None)}
    return pa.field(name, _TYPES[kind], nullable=is_nullable)


def _kinds(annotation: Any) -> Iterator[type]:
    """The types of a union; those of the words of a Literal."""
    for part in get_args(annotation) or (annotation,):
        if get_args(part):
            yield from _kinds(part)
        else:
            yield part if isinstance(part, type) else type(part)
