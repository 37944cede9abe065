"""`duewheel topic read`: the committed records of a topic, as a consumer of it gets them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial

from duewheel import factory
from duewheel.api.messages import octets_shown
from duewheel.api.topics import ReadRecord
from duewheel.config.range_ends import Bound
from duewheel.config.settings import Settings
from duewheel.kafka.log.reader import LogReader
from duewheel.kafka.log.records import Record, printable_name
from duewheel.ops.file_import.line_records import CopiedLine, CopiedRecord
from duewheel.registry.values import decoded_fields
from duewheel.schemas.header_names import DUE_MS
from duewheel.schemas.name_patterns import require_topic_name

_DIGITS_MAX = 20


def records_of(
    settings: Settings, topic: str, since: Bound | None, *, follow: bool
) -> Iterator[ReadRecord]:
    """Yields committed records from `since` on, by default from the present end, and with `follow`
    for ever. Those of a part that the reader yields are in the order of their timestamps.

    Raises:
        ConfigError: there is no such topic, or can be none; or `since` is above all its ends.
        KafkaUnavailable: no answer in time.
    """
    with _opened(settings, topic) as reader:
        bounds = reader.bounds(since, committed=True)
        for records, _ in reader.records(bounds if since else {}):
            yield from _rows(settings, topic, records)
        ends = {partition: end for partition, (_, end) in bounds.items()}
        while follow:
            ends = dict.fromkeys(reader.partitions(), 0) | ends  # with added partitions
            for records in reader.poll(ends):
                yield from _rows(settings, topic, records)


def lines_to_import(settings: Settings, topic: str) -> Iterator[CopiedLine]:
    """Yields the newest record of each key, as lines for `duewheel import`.

    A topic of another delay service, such as etf1's or Karafka's, is compacted: an older record of
    a key was replaced, and one without a value was delivered or cancelled. Reads the topic twice:
    memory has its keys, and no values.

    Raises:
        ConfigError: there is no such topic, or can be none.
        KafkaUnavailable: no answer in time.
    """
    with _opened(settings, topic) as reader:
        bounds = reader.bounds(committed=True)
        newest: dict[tuple[int, bytes | None], int] = {}
        for records, _ in reader.records(bounds):
            newest.update({(each.partition, each.key): each.offset for each in records})
        for records, _ in reader.records(bounds):
            for record in records:
                is_newest = newest[record.partition, record.key] == record.offset
                if record.value is not None and (is_newest or record.key is None):
                    content = record.key, record.value, record.headers
                    copy = CopiedRecord.copied(*content, record.partition, len(bounds))
                    yield CopiedLine(record=copy)


@contextmanager
def _opened(settings: Settings, topic: str) -> Iterator[LogReader]:
    require_topic_name(topic)  # before kafka-python does
    with LogReader(factory.kafka_clients(settings, "consumer"), [topic]) as reader:
        reader.existing()
        yield reader


def _rows(settings: Settings, topic: str, records: Iterable[Record]) -> Iterator[ReadRecord]:
    return map(partial(_row, settings, topic), sorted(records, key=lambda each: each.timestamp_ms))


def _row(settings: Settings, topic: str, record: Record) -> ReadRecord:
    due_ms = dict(record.headers).get(DUE_MS) or b""
    is_due = due_ms.isdigit() and len(due_ms) < _DIGITS_MAX  # any producer may have written it
    return ReadRecord(
        partition=record.partition,
        offset=record.offset,
        timestamp_ms=record.timestamp_ms,
        **octets_shown("key", record.key),
        **octets_shown("value", record.value) | {"value": _text(record.value)},
        **decoded_fields(settings, topic, record.headers, record.value),
        headers=[(printable_name(name), _text(value)) for name, value in record.headers],
        late_ms=record.timestamp_ms - int(due_ms) if is_due else None,
    )


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode(errors="backslashreplace")
