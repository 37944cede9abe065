"""The operator's own expectations about the messages of a timer topic (`suite` in its table).

The file is a suite as Great Expectations writes it. Its expectations may name these columns:

    key, value     as text; null: there is none, or it is not UTF-8
    header.NAME    the newest header of that name, likewise
    value.a.b      of a value that is a JSON object: field `b` of field `a`; null: there is none.
                   Objects, lists and columns of several types are text

A row is a timer that ingest has accepted. Copies and cancels are left out: an expectation such as
uniqueness would fail because of duewheel's own records. The suite is checked once, over all rows,
because a mean or a uniqueness cannot be added up; memory holds the named columns only.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute

from duewheel.audit.expectations import GreatExpectations, Tally, tallies
from duewheel.errors import ConfigError
from duewheel.schemas.arrays import Int64
from duewheel.schemas.batches import TimerBatch
from duewheel.schemas.wire.kafka_records import KafkaRecords
from duewheel.schemas.wire.spans import RawHeaders, Spans

_pa: Any = pa
_pc: Any = pyarrow.compute

_COLUMN = re.compile(r"\b(?:key|value|header)\b(?:\.[\w-]+)*")


class TopicSuites:
    """The suites of the timer topics that have one, and the rows to check them on."""

    def __init__(self, files: Mapping[str, Path]) -> None:
        """Reads the file of each topic.

        Raises:
            ConfigError: a file cannot be read, or is no suite.
        """
        self._suites = {topic: _suite(topic, path) for topic, path in files.items()}
        self._rows = {topic: _Rows(suite) for topic, suite in self._suites.items()}

    def take(self, records: KafkaRecords, batch: TimerBatch) -> None:
        """Keeps what the suites name of the accepted timers; `batch` is of some of the records."""
        for place, (topic, number) in enumerate(records.partitions):
            if topic not in self._rows:
                continue
            accepted = batch.timer & ~batch.rejected & (batch.origin_offset == batch.offset)
            accepted &= (~batch.recurring | batch.seed) & (batch.partition == place)
            ours = np.flatnonzero(records.partition == place)
            rows = ours[np.isin(records.offset[ours], batch.offset[accepted])]
            self._rows[topic].take(records.take(rows), f"{topic}-{number}")

    def check(self, library: GreatExpectations) -> dict[str, list[Tally]]:
        """Checks each suite on all rows kept; returns the tallies by topic.

        Raises:
            DuewheelError: an expectation cannot be checked.
        """
        return {
            topic: rows.check(library, self._suites[topic]) for topic, rows in self._rows.items()
        }


class _Rows:
    """The rows of one topic."""

    def __init__(self, suite: Mapping[str, Any]) -> None:
        self._columns: dict[str, list[Any]] = {name: [] for name in _columns(suite)}
        self._sources: list[str] = []

    def take(self, records: KafkaRecords, partition: str) -> None:
        self._sources += [f"{partition}@{offset}" for offset in records.offset.tolist()]
        values = _texts(records.value) if any(n.startswith("value") for n in self._columns) else []
        objects: list[Any] | None = None
        for name, column in self._columns.items():
            kind, _, path = name.partition(".")
            if kind == "header":
                column += _headers(records.headers, path)
            elif not path:
                column += values if kind == "value" else _texts(records.key)
            else:
                objects = list(map(_parsed, values)) if objects is None else objects
                column += [_at(each, path.split(".")) for each in objects]

    def check(self, library: GreatExpectations, suite: Mapping[str, Any]) -> list[Tally]:
        table = pa.table({name: _typed(column) for name, column in self._columns.items()})
        totals = tallies(suite, {})
        for tally, each in zip(totals, library.check(suite, {}, table), strict=True):
            tally.add(each, self._names)
        return totals

    def _names(self, rows: Int64) -> list[str]:
        return [self._sources[row] for row in rows.tolist()]


# ---- the suite ----------------------------------------------------------------------------------


def _suite(topic: str, path: Path) -> dict[str, Any]:
    """Reads a suite, in the form of those that ship with duewheel."""
    try:
        found = json.loads(path.read_bytes())["expectations"]
        return {"expectations": [_expectation(each) for each in found]}
    except OSError as error:
        why = error.strerror
    except (ValueError, TypeError, KeyError, AttributeError):
        why = "it is no suite of Great Expectations in JSON"
    raise ConfigError(f'timer.topic."{topic}".suite: {path} cannot be used: {why}')


def _expectation(given: Mapping[str, Any]) -> dict[str, Any]:
    kind, kwargs = given["type"], given.get("kwargs", {})
    column = kwargs.get("column")
    notes = given.get("notes") or ""
    return {
        "type": kind,
        "kwargs": dict(kwargs),
        "severity": given.get("severity") or "critical",
        "meta": {
            "code": kind if column is None else f"{kind}({column})",
            "reason": notes if isinstance(notes, str) else "\n".join(notes),
        },
    }


def _columns(suite: Mapping[str, Any]) -> list[str]:
    """Returns the columns that a suite names, in its conditions, too."""
    texts = [text for each in suite["expectations"] for text in _texts_in(each["kwargs"])]
    return sorted({name for text in texts for name in _COLUMN.findall(text)} | {"key"})


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


def _headers(headers: RawHeaders, name: str) -> list[str | None]:
    """Returns the newest header of a name, for each record."""
    newest: list[str | None] = [None] * (len(headers.firsts) - 1)
    hits = np.flatnonzero(np.asarray(_pc.equal(headers.names.column(), name.encode()), np.bool_))
    record = np.searchsorted(headers.firsts, hits, "right") - 1
    for row, text in zip(record.tolist(), _texts(headers.values.take(hits)), strict=True):
        newest[row] = text
    return newest


def _parsed(text: str | None) -> Any:
    try:
        return None if text is None else json.loads(text)
    except (ValueError, RecursionError):
        return None


def _at(value: Any, path: Sequence[str]) -> Any:
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _typed(values: Sequence[Any]) -> pa.Array[Any]:
    """Makes a column of one type of values from JSON."""
    plain = [json.dumps(each) if isinstance(each, dict | list) else each for each in values]
    try:
        array: pa.Array[Any] = _pa.array(plain)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        array = _pa.array(
            [None if v is None else v if isinstance(v, str) else str(v) for v in plain]
        )
    return array
