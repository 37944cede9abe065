"""`format("duewheel")`: timers as a sink of Spark, the lists of a shard as tables (docs/spark.md).

    rows.write.format("duewheel").mode("append")
        .option("kafka.bootstrap.servers", "localhost:9092").option("topic", "orders.delayed")
        .save()
    spark.read.format("duewheel").option("table", "pending").option("config", "duewheel.toml")
        .load()
    spark.readStream.format("duewheel").option("table", "receipts")…

Spark calls the methods in Python processes beside the JVM, which plan, and in those of the tasks.
The planning processes refuse options and columns; a task makes one producer, and ends once Kafka
has acknowledged all of its records. A repeated task writes its rows again.

Spark imports this module at the start of every session that looks for data sources: libraries other
than Spark's are imported where they are used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import (
    BinaryType,
    ByteType,
    DataType,
    DayTimeIntervalType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
)

from duewheel.config.nearest_name import nearest
from duewheel.errors import ConfigError, InvalidTimer

if TYPE_CHECKING:  # see the module's head
    import pyarrow as pa

    from duewheel.api.receipts import ReceiptFilter
    from duewheel.client import DelayProducer
    from duewheel.config.keys_and_defaults import KafkaSection
    from duewheel.ops.receipts import ReceiptOffsets
    from duewheel.tables import Condition, TableList

_KAFKA = "kafka."  # in front of the options for kafka-python
_FAIL, _DEAD_LETTER = "fail", "dead-letter"
_SHOWN_MAX = 60  # characters of a value in an error

# Kinds of columns: their types, and how errors name these.
_Kind = tuple[tuple[type[DataType], ...], str]
_TEXT: _Kind = (StringType,), "a string"
_OCTETS: _Kind = (StringType, BinaryType), "a string or binary"
_NUMBER: _Kind = (ByteType, ShortType, IntegerType, LongType), "a whole number"
_INSTANT: _Kind = (TimestampType, LongType), "a timestamp, or epoch milliseconds as a bigint"
_SPAN: _Kind = (StringType, DayTimeIntervalType), "a string such as 15m, or an interval"
_HEADERS: _Kind = (MapType,), "a map of strings to strings or binaries"
_COLUMNS = {
    "target": _TEXT,
    "due": _INSTANT,
    "delay": _SPAN,
    "key": _OCTETS,
    "value": _OCTETS,
    "headers": _HEADERS,
    "id": _TEXT,
    "tag": _TEXT,
    "expires_at": _INSTANT,
    "if_pending": _TEXT,
    "window": _SPAN,
    "partition": _NUMBER,
}
_SINK_OPTIONS = ("topic", "max_delay", "bad_rows", "checkpointlocation")
_SHOWN = ("target", "id", "due", "delay")  # in an error about a row

_SQL_TYPES = {"bool": "boolean", "double": "double", "int64": "bigint", "string": "string"}


class DuewheelSource(DataSource):
    """The data source; Spark makes one from the options."""

    @classmethod
    def name(cls) -> str:
        return "duewheel"

    def schema(self) -> str:
        schema = _listed(self.options)[0].schema
        return ", ".join(f"`{each.name}` {_type(each.type)}" for each in schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        return TableReader(dict(self.options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        return ReceiptStreamReader(dict(self.options))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        return BatchTimerWriter(self._sink(schema, overwrite))

    def streamWriter(  # noqa: N802 - Spark's name
        self,
        schema: StructType,
        overwrite: bool,
    ) -> DataSourceStreamArrowWriter:
        return StreamTimerWriter(self._sink(schema, overwrite))

    def _sink(self, schema: StructType, overwrite: object) -> _Sink:
        if overwrite:
            raise ConfigError(
                'timers can only be added: write with mode("append") or outputMode("append")'
            )
        _require_columns(schema)
        return _Sink.of(self.options)


def _refuse_others(what: str, names: Iterable[str], permitted: Iterable[str]) -> None:
    for name in sorted(set(names).difference(permitted)):
        raise ConfigError(f"there is no {what} {name!r}{nearest(name, permitted)}")


# ---- timers are written -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Sink:
    """The options of a sink; the tasks get a copy."""

    topic: str  # the timer topic
    kafka: Mapping[str, str] = field(repr=False)  # kafka-python's options as text, secrets included
    keeps_bad_rows: bool
    max_delay: timedelta

    @classmethod
    def of(cls, options: Mapping[str, str]) -> _Sink:
        """Checks them.

        Raises:
            ConfigError, InvalidTimer: names one that is wrong.
        """
        from duewheel.api.due_time import MAX_DELAY, span_ms
        from duewheel.config.credentials import SECRET_FILES, credential_problems
        from duewheel.config.keys_and_defaults import client_defaults

        own = {name: each for name, each in options.items() if not name.startswith(_KAFKA)}
        _refuse_others("option", own, _SINK_OPTIONS)
        # Both spellings: kafka.security.protocol, as Kafka's own, and kafka.security_protocol.
        names = {name.removeprefix(_KAFKA).replace(".", "_"): name for name in options.keys() - own}
        if len(names) + len(own) < len(options):
            raise ConfigError("an option of Kafka is given twice, with dots and with underscores")
        kafka = {name: options[given] for name, given in names.items()}
        permitted = {n for n in client_defaults()["producer"] if not n.endswith("serializer")}
        _refuse_others("option of kafka-python's producer", kafka, permitted | SECRET_FILES.keys())
        if "bootstrap_servers" not in kafka or "topic" not in own:
            raise ConfigError("the options kafka.bootstrap.servers and topic are needed")
        longest_ms = span_ms(own.get("max_delay", MAX_DELAY), "max_delay")
        if (bad := own.get("bad_rows", _FAIL)) not in {_FAIL, _DEAD_LETTER}:
            raise ConfigError(f"bad_rows={bad!r} is neither {_FAIL} nor {_DEAD_LETTER}")
        longest = timedelta(milliseconds=longest_ms)
        sink = cls(own["topic"], kafka, bad == _DEAD_LETTER, longest)
        for name, reason in credential_problems(sink.section().client):
            raise ConfigError(f"{_KAFKA}{name}: {reason}")
        return sink

    def section(self) -> KafkaSection:
        """As the settings have it.

        Raises:
            ConfigError: a server has no port.
        """
        from pydantic import ValidationError

        from duewheel.api.model import text_of
        from duewheel.config.keys_and_defaults import KafkaSection

        client = dict(self.kafka)
        servers = client.pop("bootstrap_servers")
        try:
            return KafkaSection.model_validate({"bootstrap_servers": servers, "client": client})
        except ValidationError as error:
            raise ConfigError(f"{_KAFKA}{text_of(error)}") from None

    def write(self, batches: Iterable[pa.RecordBatch]) -> WriterCommitMessage:
        """Writes the rows of a task; ends once Kafka has acknowledged each of them.

        Raises:
            InvalidTimer: a row makes no timer. Those before it may be written.
            KafkaError: as DelayProducer.
        """
        from duewheel.client import DelayProducer

        options = self.section().client_options("producer")
        with DelayProducer(self.topic, max_delay=self.max_delay, **options) as producer:
            for batch in batches:
                sent = [self._send(producer, row) for row in _rows(batch)]
                for each in sent:
                    each()
        return WriterCommitMessage()

    def _send(self, producer: DelayProducer, row: dict[str, Any]) -> Callable[[], object]:
        """Hands a row over; the result waits for its acknowledgement."""
        from duewheel.client.request_headers import NO_TIMER, rejected_headers

        others = dict(row)
        target, value, key, due, delay = (
            others.pop(name, None) for name in ("target", "value", "key", "due", "delay")
        )
        headers = others.pop("headers", None) or []
        try:
            if target is None:
                raise InvalidTimer("the target is null")
            if any(octets is None for _, octets in headers):
                raise InvalidTimer("the value of a header is null")
            if (due is None) == (delay is None):
                raise InvalidTimer("give exactly one of due and delay")
            timer = producer.schedule(
                target, value, key=key, deliver_at=due, delay=delay, headers=headers, **others
            )
            return timer.result
        except InvalidTimer as error:
            given = [name for name in _SHOWN if row.get(name) is not None]
            shown = ", ".join(f"{name}={row[name]!r:.{_SHOWN_MAX}}" for name in given)
            reason = f"{error} ({shown})"
            if not self.keeps_bad_rows:
                raise InvalidTimer(f"{NO_TIMER}{reason}") from None
            # A null would be a cancel in some topics.
            own = [(name, octets) for name, octets in headers if octets is not None]
            rejected = rejected_headers(reason, target, row.get("id"), own)
            acknowledged: Callable[[], object]
            acknowledged = producer.send(self.topic, value or b"", key, rejected).get
            return acknowledged


class _Writer:
    def __init__(self, sink: _Sink) -> None:
        self._sink = sink

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return self._sink.write(iterator)


class BatchTimerWriter(_Writer, DataSourceArrowWriter):
    """Writes the rows of a DataFrame."""


class StreamTimerWriter(_Writer, DataSourceStreamArrowWriter):
    """Writes the rows of a stream, batch after batch."""


def _require_columns(schema: StructType) -> None:
    names = schema.fieldNames()
    _refuse_others("column", names, _COLUMNS)
    for needed in (("target",), ("due", "delay"), ("key", "value")):
        if not set(needed).intersection(names):
            raise ConfigError(f"the column {' or '.join(needed)} is missing")
    for each in schema:
        (kinds, text), given = _COLUMNS[each.name], each.dataType
        is_good = isinstance(given, kinds) and names.count(each.name) == 1
        if isinstance(given, MapType):
            is_good &= isinstance(given.keyType, StringType)
            is_good &= isinstance(given.valueType, _OCTETS[0])
        if not is_good:
            raise ConfigError(f"the column {each.name} is {text}, once; not {given.simpleString()}")


def _rows(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """The rows: instants as epoch ms, rounded up, as by the client; keys and values as bytes."""
    names = batch.schema.names
    columns = (_values(name, batch.column(name)) for name in names)
    for values in zip(*columns, strict=True):
        yield dict(zip(names, values, strict=True))


def _values(name: str, column: pa.Array[Any]) -> list[Any]:
    import pyarrow as pa

    if isinstance(column.type, pa.TimestampType):
        # Spark's instants go beyond those of datetime.
        micros = column.cast(pa.timestamp("us", "UTC")).cast(pa.int64()).to_pylist()
        return [None if each is None else -(-each // 1_000) for each in micros]
    if name in {"key", "value"}:
        return column.cast(pa.binary()).to_pylist()
    if name == "headers":
        return [[(n, _octets(each)) for n, each in row or ()] for row in column.to_pylist()]
    return column.to_pylist()


def _octets(value: str | bytes | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


# ---- lists are read -----------------------------------------------------------------------------


def _listed(options: Mapping[str, str]) -> tuple[TableList, dict[str, Condition]]:
    """The list, and the conditions of its rows.

    Raises:
        ConfigError: names an option that is wrong.
    """
    from duewheel.tables import LISTS

    found = LISTS.get(options.get("table", ""))
    if found is None:
        raise ConfigError(f"the option table is one of {', '.join(LISTS)}")
    if "option.table" in options:
        raise ConfigError(
            "Spark gives the reader of a table that CREATE TABLE has made none of its options: "
            "write CREATE TEMPORARY VIEW"
        )
    own = {"table", "config"}
    _refuse_others("option", options, own | found.conditions.model_fields.keys())
    conditions: dict[str, Condition] = {name: options[name] for name in options.keys() - own}
    found.wanted(conditions)
    return found, conditions


class TableReader(DataSourceReader):
    """Reads a list in one task.

    It has no `pushFilters`: Spark 4.2.0 gives the reader that has the conditions of one query to
    all queries of the same DataFrame, which would lack rows. So conditions are options.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = options

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        rows, conditions = _listed(self._options)
        yield from _as_spark(rows, rows.batches(self._options.get("config"), None, conditions))


class ReceiptStreamReader(DataSourceStreamReader):
    """Follows the receipts topic. An offset has the next one of each partition; Spark compares the
    texts, so the partitions have an order.

    Spark hides an error of `streamReader` by one of its own, so the calls check the options.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = options
        self._offsets: ReceiptOffsets | None = None  # of the process that plans
        self._firsts: dict[str, int] = {}

    def initialOffset(self) -> dict[int, int]:  # noqa: N802 - Spark's name
        _, wanted = self._wanted()
        firsts = self._connected().firsts(wanted)
        self._firsts = {str(number): first for number, first in firsts.items()}
        return firsts

    def latestOffset(self) -> dict[int, int]:  # type: ignore[override]  # noqa: N802 - as in 4.1
        self._wanted()
        return self._connected().ends()

    def partitions(
        self, start: Mapping[str, int], end: Mapping[str, int]
    ) -> Sequence[InputPartition]:
        ranges = []
        for number in sorted({*start, *end}, key=int):
            first, last = start.get(number, 0), end.get(number, 0)
            if last < first:
                if "since" in self._options and first == self._firsts.get(number):
                    # Spark asks for the first batch's end before its start, which no receipt of
                    # `since` or later precedes: the next batch begins at this end.
                    continue
                raise ConfigError(
                    f"partition {number} of the receipts topic ends at {last}, and the stream has "
                    f"read it up to {first}: the topic was deleted, or has lost records"
                )
            if first < last:
                ranges.append(InputPartition((int(number), first, last)))
        return ranges

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from duewheel.api.arrow_columns import batches_of
        from duewheel.config.settings import load
        from duewheel.ops.receipts import receipts_between

        rows, wanted = self._wanted()
        settings = load(self._options.get("config"))
        found = receipts_between(settings, wanted, *partition.value)
        yield from _as_spark(rows, batches_of(rows.row, found))

    def stop(self) -> None:
        if self._offsets is not None:
            self._offsets.close()

    def _wanted(self) -> tuple[TableList, ReceiptFilter]:
        """The list, and the conditions of its rows.

        Raises:
            ConfigError: names an option that is wrong, or not for a stream.
        """
        rows, conditions = _listed(self._options)
        if (name := self._options["table"]) != "receipts":
            raise ConfigError(f"the table {name} cannot be a stream, only receipts can")
        if "until" in conditions:
            raise ConfigError("a stream has no end: leave out the option until")
        wanted: Any = rows.wanted(conditions)
        return rows, wanted

    def _connected(self) -> ReceiptOffsets:
        from duewheel.config.settings import load
        from duewheel.ops.receipts import ReceiptOffsets

        if self._offsets is None:
            self._offsets = ReceiptOffsets(load(self._options.get("config")))
        return self._offsets


def _as_spark(rows: TableList, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    schema = pa.schema([pa.field(each.name, _in_spark(each.type)) for each in rows.schema])
    for batch in batches:
        yield batch.cast(schema)


def _in_spark(kind: pa.DataType) -> pa.DataType:
    import pyarrow as pa

    return pa.timestamp("us", "UTC") if isinstance(kind, pa.TimestampType) else kind


def _type(kind: pa.DataType) -> str:
    """Its name in Spark's SQL."""
    import pyarrow as pa

    return "timestamp" if isinstance(kind, pa.TimestampType) else _SQL_TYPES[str(kind)]
