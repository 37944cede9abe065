"""The operator's own expectations about the messages of a timer topic (`suite` in its table).

The file is a suite as Great Expectations writes it. Its expectations may name these columns:

    key, value     as text; null: there is none, or it is not UTF-8
    header.NAME    the newest header of that name, likewise
    value.a.b      of a value that is a JSON object: field `b` of field `a`; null: there is none.
                   Objects and lists are text

With a registry, `value` is the JSON of what its schema decodes. A value that names a schema and is
not decoded is null in these columns, and a finding of its own; it is one, too, in a topic without a
suite whose values must name a schema. While the registry fails, such a row is left out of a suite
that names values: nothing is known of it.

A column has the type of most of its values: number, text or boolean. Another value is a finding
of its own, and null in the column: one message must not spoil the check of all others. A column
without any value, which most expectations pass, fails the suite's `expect_column_to_exist`; without
one it is a finding of its own, a warning only: an optional field may be absent from a short range.

A row is a timer that ingest has accepted. Copies and cancels are left out: an expectation such as
uniqueness would fail because of duewheel's own records. The suite is checked once, over all rows,
because a mean or a uniqueness cannot be added up. Memory holds the named columns only, up to
COLUMNS_BYTES_MAX; a warning has the number of rows beyond that, or beyond the decoder's time.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute

from duewheel.audit.expectations import (
    EXAMPLES_MAX,
    GreatExpectations,
    Tally,
    Unchecked,
    shortened,
)
from duewheel.audit.row_sources import RangeSources, Sources
from duewheel.errors import ConfigError
from duewheel.registry.values import Decoded, RegistryValues
from duewheel.schemas.batches import TimerBatch
from duewheel.schemas.columns import Column
from duewheel.schemas.wire.kafka_records import KafkaRecords
from duewheel.schemas.wire.schema_number import HEADER, with_schema_number
from duewheel.schemas.wire.spans import RawHeaders, Spans

_pa: Any = pa
_pc: Any = pyarrow.compute

# Of a topic's values in memory; checking them takes twice as much again. A number or a short text
# takes some 60 bytes: this is room for four columns of a million rows, the default audit.rows_max.
COLUMNS_BYTES_MAX = 256 << 20

# Of processor time, to check the suite of a topic: a pattern may take any time for a long text. An
# expectation usually takes 2 s for a million rows; dateutil_parseable 15 s.
CHECK_S = 400.0

_COLUMN = re.compile(r"\b(?:key\b|value\b(?:\.[\w-]+)*|header(?:\.[\w-]+)+)")
_EXISTS, _IS_NULL = "expect_column_to_exist", "expect_column_values_to_be_null"

_NO_SUITE: dict[str, Any] = {"expectations": []}
_DECODED: dict[str, Any] = {
    "type": "expect_column_values_to_be_json_parseable",
    "kwargs": {"column": "value"},
    "severity": "critical",
    "meta": {"code": "value_not_decoded", "reason": "a value is decoded by the schema it names"},
}
_SCHEMA_GIVEN: dict[str, Any] = {
    **_DECODED,
    "meta": {"code": "registry_unavailable", "reason": "the registry gives the schema of a value"},
}
_SKIPPED: dict[str, Any] = {
    "type": "expect_table_row_count_to_be_between",
    "kwargs": {},
    "severity": "warning",
    "meta": {"code": "rows_skipped", "reason": "there are room and time for all rows"},
}


class TopicSuites:
    """The suites of the timer topics that have one, and the rows to check them on."""

    def __init__(
        self,
        files: Mapping[str, Path],
        values: RegistryValues | None = None,
        decoded: Iterable[str] = (),
    ) -> None:
        """Reads the file of each topic. With `values` the topics `decoded` are checked, too.

        Raises:
            ConfigError: a file cannot be read, or is no suite.
        """
        suites = {} if values is None else dict.fromkeys(decoded, _NO_SUITE)
        suites |= {topic: _suite(topic, path) for topic, path in files.items()}
        self._topics = {topic: _Topic(topic, suite, values) for topic, suite in suites.items()}

    def take(self, records: KafkaRecords, batch: TimerBatch) -> None:
        """Keeps what the suites name of the accepted timers; each record is a row of `batch`."""
        accepted = batch.timer & ~batch.rejected & (batch.origin_offset == batch.offset)
        accepted &= ~batch.recurring | batch.seed
        for place, (topic, _) in enumerate(batch.partitions):
            if topic in self._topics:
                rows = np.flatnonzero(accepted & (batch.partition == place))
                self._topics[topic].take(records.take(rows))

    def check(self, library: GreatExpectations) -> dict[str, list[Tally]]:
        """Checks each suite on all rows kept; returns the tallies by topic. An expectation that
        cannot be checked has failed.
        """
        return {topic: each.check(library) for topic, each in self._topics.items()}


class _Topic:
    """The suite of one topic, and its rows."""

    def __init__(
        self, topic: str, suite: Mapping[str, Any], registry: RegistryValues | None
    ) -> None:
        self._topic = topic
        self._suite = suite
        self._registry = registry
        self._of_values, self._of_registry = Tally(_DECODED), Tally(_SCHEMA_GIVEN)
        self._named = _columns(suite)
        self._columns: dict[str, list[Any]] = {name: [] for name in sorted(self._named)}
        self._bytes = self._rows = self._skipped = 0
        self._out_of_time = False
        self._schemas_unread = False
        self._sources = RangeSources()

    def take(self, records: KafkaRecords) -> None:
        decoded, taken = dict[int, Decoded](), len(records)
        if self._registry is not None:
            decoded, taken = self._decoded(self._registry, records)
        if self._bytes >= COLUMNS_BYTES_MAX:
            taken = 0
        self._skipped += len(records) - taken
        failed = [row for row, each in decoded.items() if each.registry_failed]
        kept = np.arange(taken)
        if failed and self._names("value"):
            kept = np.setdiff1d(kept, failed)
        if len(kept) < len(records):
            records = records.take(kept)
            decoded = {n: decoded[row] for n, row in enumerate(kept.tolist()) if row in decoded}
        self._rows += len(records)
        self._sources.add(Sources(records.partitions, records.partition, records.offset))
        values = _texts(records.value) if self._names("value") else []
        header_names = records.headers.names.column()
        for row, found in decoded.items():
            values[row : row + 1] = [found.decoded] if values else []
        if self._registry is None and self._names("value") and not self._schemas_unread:
            in_values = with_schema_number(records.value).any()
            in_headers = _given(records.headers, header_names, HEADER)
            self._schemas_unread = bool(in_values or in_headers)
        paths = [name.split(".")[1:] for name in self._columns if name.startswith("value.")]
        fields = _fields(values, paths)
        for name, column in self._columns.items():
            kind, _, path = name.partition(".")
            cells: list[Any]
            if kind == "header":
                cells = _newest(records.headers, header_names, path)
            elif not path:
                cells = values if kind == "value" else _texts(records.key)
            else:
                cells = fields.pop(0)
            column += cells
            self._bytes += sum(map(sys.getsizeof, cells))

    def _decoded(
        self, registry: RegistryValues, records: KafkaRecords
    ) -> tuple[dict[int, Decoded], int]:
        """Counts the values that name a schema. Returns them by row, and the number of the first
        rows for whose values there are room and time: a few bytes may decode to megabytes.
        """
        room, taken = COLUMNS_BYTES_MAX - self._bytes, len(records)
        header_names = records.headers.names.column()
        sources = Sources(records.partitions, records.partition, records.offset)
        named = dict(reversed(_given(records.headers, header_names, HEADER)))
        rows = sorted({*np.flatnonzero(with_schema_number(records.value)).tolist(), *named})
        values = records.value.take(np.array(rows, np.int64)).column().to_pylist()
        result = dict[int, Decoded]()
        for row, value in zip(rows, values, strict=True):
            if not self._out_of_time:  # once for all: the decoder forgets it
                found = registry.decoded(self._topic, [(HEADER, named.get(row))], value)
                self._out_of_time = found is not None and found.out_of_time
            if self._out_of_time:
                return result, min(taken, row)
            if found is None:
                continue
            room -= sys.getsizeof(found.decoded) if self._names("value") else 0
            if room < 0:
                taken = min(taken, row + 1)
            keeps = self._names("value") and row < taken
            result[row] = found if keeps else found._replace(decoded=None)
            tally = self._of_registry if found.registry_failed else self._of_values
            tally.rows += 1
            if found.not_decoded is not None:
                tally.success = False
                tally.failed += 1
                if len(tally.examples) < EXAMPLES_MAX:
                    (source,) = sources.names(np.array([row]))
                    tally.examples.append((source, shortened(found.not_decoded)))
        return result, taken

    def check(self, library: GreatExpectations) -> list[Tally]:
        columns, of_types = dict[str, Any](), list[Tally]()
        missing: dict[str, str] = {}
        for name, values in self._columns.items():
            kinds = list(map(_kind, values))
            kind = _most(kinds)
            if kinds and kind is None:
                missing[name] = self._why_missing(name)
            strange = [row for row, each in enumerate(kinds) if each not in {None, kind}]
            if strange:
                of_types.append(self._of_type(name, kind, values, strange))
            same = zip(values, kinds, strict=True)
            columns[name] = _typed([value if each == kind else None for value, each in same])
        columns.setdefault("key", pa.nulls(self._rows))  # a table of no columns would have no rows
        expectations = self._suite["expectations"]
        totals = list(map(Tally, expectations))
        table = pa.table(columns)
        results = library.check_each(expectations, table, CHECK_S) if totals else []
        for tally, each in zip(totals, results, strict=True):
            if isinstance(each, Unchecked):
                # Of any severity: a misspelt one would hide the failure.
                tally.expectation = {**tally.expectation, "severity": "critical"}
                tally.fail(f"{self._suite['file']}: {each.reason}")
            else:
                tally.add(each, self._sources.names)
        totals += self._missing(missing, totals) + of_types
        if self._registry is not None:
            for tally in (self._of_values, self._of_registry):
                tally.observed = "; ".join(sorted({why for _, why in tally.examples})) or None
                totals.append(tally)
        if self._skipped:
            rows, skipped = self._rows + self._skipped, self._skipped
            why = "to decode all takes too long" if self._out_of_time else "their values are large"
            why = f"{self._rows} rows are checked, of {rows}: {why}"
            tally = Tally(
                _SKIPPED, success=False, rows=rows, failed=skipped, observed=why, checked=False
            )
            totals.append(tally)
        return totals

    def _why_missing(self, name: str) -> str:
        why = "no message of the range has it"
        if self._schemas_unread and name.startswith("value"):
            why += "; values name a schema, and registry.url is not set"
        return why

    def _missing(self, reasons: Mapping[str, str], totals: Sequence[Tally]) -> list[Tally]:
        """The findings of columns without a value that the suite itself expects nothing of."""
        expected = set()
        for tally in totals:
            kind, name = tally.expectation["type"], tally.expectation["kwargs"].get("column")
            if name in reasons and kind in {_EXISTS, _IS_NULL}:
                expected.add(name)
                if kind == _EXISTS:
                    tally.fail(reasons[name])
        rows = self._rows
        return [
            Tally(
                _expectation(_EXISTS, {"column": name}, "warning", reason),
                success=False,
                rows=rows,
                nulls=rows,
                observed=reason,
            )
            for name, reason in reasons.items()
            if name not in expected
        ]

    def _of_type(self, name: str, kind: str | None, values: list[Any], rows: list[int]) -> Tally:
        """The finding of values that have another type than most."""
        code = "expect_column_values_to_be_of_type"
        reason, kwargs = f"most values are of the type {kind}", {"column": name, "type_": kind}
        some = rows[:EXAMPLES_MAX]
        sources = self._sources.names(np.array(some, np.int64))
        return Tally(
            _expectation(code, kwargs, "critical", reason),
            success=False,
            rows=len(values),
            nulls=sum(value is None for value in values),
            failed=len(rows),
            examples=[
                (source, shortened(values[row])) for source, row in zip(sources, some, strict=True)
            ],
        )

    def _names(self, start: str) -> bool:
        """Whether the suite names a column that starts so."""
        return any(name.startswith(start) for name in self._columns)


# ---- the suite ----------------------------------------------------------------------------------


def _suite(topic: str, path: Path) -> dict[str, Any]:
    """Reads a suite, in the form of those that ship with duewheel."""
    try:
        found = [_given_expectation(each) for each in json.loads(path.read_bytes())["expectations"]]
        if found:
            return {"expectations": found, "file": path}
        why = "it has no expectations"
    except OSError as error:
        why = error.strerror or str(error)
    except (ValueError, TypeError, KeyError, AttributeError):
        why = "it is no suite of Great Expectations in JSON"
    raise ConfigError(f'timer.topic."{topic}".suite: {path} cannot be used: {why}')


def _given_expectation(given: Mapping[str, Any]) -> dict[str, Any]:
    notes = given.get("notes") or ""
    reason = notes if isinstance(notes, str) else "\n".join(notes)
    kwargs, severity = dict(given.get("kwargs", {})), given.get("severity") or "critical"
    return _expectation(given["type"], kwargs, severity, reason)


def _expectation(
    kind: str, kwargs: Mapping[str, Any], severity: str, reason: str
) -> dict[str, Any]:
    column = kwargs.get("column")
    if not isinstance(column, str | None):
        raise TypeError
    code = kind if column is None else f"{kind}({column})"
    meta = {"code": code, "reason": reason}
    return {"type": kind, "kwargs": kwargs, "severity": severity, "meta": meta}


def _columns(suite: Mapping[str, Any]) -> set[str]:
    """Returns the columns that a suite names, in its conditions, too."""
    kwargs = chain.from_iterable(each["kwargs"].items() for each in suite["expectations"])
    # Not in its values: a set of them may have the text `value.changed`.
    given = [each for name, each in kwargs if name.startswith("column") or name == "row_condition"]
    return {name for text in _texts_in(given) for name in _COLUMN.findall(text)}


def _texts_in(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _texts_in(each)
    elif isinstance(value, Sequence):
        for each in value:
            yield from _texts_in(each)


# ---- the columns --------------------------------------------------------------------------------


def _text(content: bytes | None) -> str | None:
    try:
        return None if content is None else content.decode()
    except UnicodeDecodeError:
        return None


def _texts(content: Spans) -> list[str | None]:
    return [_text(each) for each in content.column().to_pylist()]


def _newest(headers: RawHeaders, names: Column, name: str) -> list[str | None]:
    """Returns the newest header of a name, for each record; `names` are those of all headers."""
    newest: list[str | None] = [None] * (len(headers.firsts) - 1)
    for row, octets in _given(headers, names, name):
        newest[row] = _text(octets)
    return newest


def _given(headers: RawHeaders, names: Column, name: str) -> list[tuple[int, bytes | None]]:
    """Returns the headers of a name in their order, each with its record."""
    hits = np.flatnonzero(np.asarray(_pc.equal(names, name.encode()), np.bool_))
    record = np.searchsorted(headers.firsts, hits, "right") - 1
    values = headers.values.take(hits).column().to_pylist()
    return list(zip(record.tolist(), values, strict=True))


def _parsed(text: str | None) -> Any:
    try:
        return None if text is None else json.loads(text)
    except (ValueError, RecursionError):
        return None


def _fields(texts: Iterable[str | None], paths: Sequence[Sequence[str]]) -> list[list[Any]]:
    """Returns a column of plain values for each path. Only one parsed text is in memory at a time:
    it may take dozens of times its bytes.
    """
    columns: list[list[Any]] = [[] for _ in paths]
    for text in texts if paths else ():
        parsed = _parsed(text)
        for column, path in zip(columns, paths, strict=True):
            column.append(_plain(_at(parsed, path)))
    return columns


def _at(value: Any, path: Sequence[str]) -> Any:
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _plain(value: Any) -> Any:
    """Converts a value of JSON: an object or a list to text, text to what UTF-8 can write."""
    if isinstance(value, dict | list):
        try:
            return json.dumps(value)
        except RecursionError:
            return "nested too deeply"
    return value.encode(errors="replace").decode() if isinstance(value, str) else value


def _kind(value: Any) -> str | None:
    """The type of a plain value, as a finding names it; None: it is null."""
    if value is None:
        return None
    if isinstance(value, str):
        return "text"
    return "boolean" if isinstance(value, bool) else "number"


def _most(kinds: Sequence[str | None]) -> str | None:
    ranked = Counter(filter(None, kinds)).most_common(1)
    return ranked[0][0] if ranked else None


def _typed(values: Sequence[Any]) -> pa.Array[Any]:
    """Makes a column of plain values of one type."""
    try:
        array: pa.Array[Any] = _pa.array(values)
    except (pa.ArrowInvalid, OverflowError):  # whole numbers beyond 64 bits, or beside fractions
        array = _pa.array([None if value is None else _float(value) for value in values])
    return array


def _float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf
