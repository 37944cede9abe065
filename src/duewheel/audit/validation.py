"""Validates the rows of a range in three ways, and compares the verdicts.

Each row is validated under the settings of its epoch: by Great Expectations running the suite, by
the rules compiled from it, and by ingest's parser, which makes it a timer or a dead letter with a
reason. The three must agree, rule by rule and row by row; each difference is a *disagreement*. An
audit thus detects an edited suite, or an upgraded library, whose meaning differs from the rules.

A second suite compares rows with each other. Ingest sees one batch at a time and cannot do that, so
this suite runs only here, once, over a few numbers of every row:

    rejected           topic and error code of a rejected row, if that has a larger share of its
                       timer topic than it may; else null
    disagreement       the code of a rule on which the verdicts differ; null: they agree
    offset_step        from the previous row of its partition; null: the first of its chunk
    timestamp_step_ms  likewise
    timer_id           64 bits of the id that a user gave; null: no such id, a reschedule, or a
                       copy of an earlier row
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute

from duewheel.api.audit import Disagreement
from duewheel.audit.expectations import (
    EXAMPLES_MAX,
    Check,
    GreatExpectations,
    Tally,
    failing,
    tallies,
)
from duewheel.audit.row_sources import RangeSources, Sources
from duewheel.audit.topic_suites import TopicSuites
from duewheel.checkpoints.config_epochs import Epochs
from duewheel.schemas.arrays import Bool, Int32, Int64
from duewheel.schemas.batches import ACCEPTED, TimerBatch
from duewheel.schemas.columns import lengths
from duewheel.schemas.hashing import murmur2
from duewheel.schemas.request.acceptance_rules import VALUE, Rule, Rules, load_suite
from duewheel.schemas.request.parser import Contract, error_headers, parse_with_columns
from duewheel.schemas.request.unread_batches import UNREADABLE_CODE
from duewheel.schemas.wire.kafka_records import KafkaRecords

_pa: Any = pa
_pc: Any = pyarrow.compute

_ID_SEEDS = (0x1F83D9AB, 0x5BE0CD19)  # not the timer log's: its 40 bits would collide here
_NAME_CHARACTERS = 300  # of a target: no name of more than 249 is a topic's
_ROWS = pa.schema(
    [
        pa.field("topic", pa.dictionary(pa.int32(), pa.string())),
        pa.field("error_code", pa.dictionary(pa.int32(), pa.string())),
        pa.field("disagreement", pa.dictionary(pa.int32(), pa.string())),
        pa.field("offset_step", pa.int64()),
        pa.field("timestamp_step_ms", pa.int64()),
        pa.field("timer_id", pa.int64()),
    ]
)


def _disagreement(
    source: str, code: str, pair: tuple[bool | None, bool | None], by: str
) -> Disagreement:
    return Disagreement(source=source, code=code, suite=pair[0], other=pair[1], by=by)


@dataclass
class DisagreementTally:
    """Counts all disagreements, and keeps the first few."""

    count: int = 0
    first: list[Disagreement] = field(default_factory=list)

    def add(self, first: Sequence[Disagreement], count: int) -> None:
        """Adds `count` disagreements, of which `first` are the first."""
        self.count += count
        self.first += first[: EXAMPLES_MAX - len(self.first)]


def _without_letters(
    read: tuple[int, KafkaRecords, TimerBatch, pa.Table],
) -> tuple[int, KafkaRecords, TimerBatch, pa.Table]:
    """Drops copies of waiting dead letters: only the first copy of each is validated."""
    number, records, batch, columns = read
    letters = batch.rejected & (batch.retries > 0)
    if not letters.any():
        return read
    keep = np.flatnonzero(~letters)
    return number, records.take(keep), batch.take(keep), columns.take(keep)


class AuditValidator:
    """Validates a range chunk by chunk, under the contract of each epoch. Not thread-safe."""

    def __init__(
        self,
        epochs: Epochs,
        contracts: Sequence[Contract],
        library: GreatExpectations,
        own: TopicSuites,
    ) -> None:
        self._epochs = epochs
        self._contracts = contracts
        self._library = library
        self._own = own
        self._sources = RangeSources()
        self._tables: list[pa.Table] = []
        self.rules: dict[int, list[Tally]] = {}  # by number of the epoch
        self.disagreements = DisagreementTally()
        self.rows = 0
        self.rejected: Counter[str] = Counter()  # by code

    def take(self, records: KafkaRecords) -> None:
        """Validates more records. A batch that is not read is rejected, and fails no rule."""
        if records.unread is not None:
            self.rejected.update({UNREADABLE_CODE: len(records.unread.row)})
            records = records.take(np.delete(np.arange(len(records)), records.unread.row))
        for number, some, batch, columns in map(_without_letters, self._by_epoch(records)):
            if not len(batch):
                continue
            rules = self._contracts[number].rules
            columns = _short_names(columns)
            failure = _rejected_by(batch, rules.rules)
            codes = _codes(failure, rules)
            sources = Sources(batch.partitions, batch.partition, batch.offset)
            checked = self._library.check(rules.suite, rules.parameters, columns)
            totals = self.rules.setdefault(number, tallies(rules.suite, rules.parameters))
            for tally, each in zip(totals, checked, strict=True):
                tally.add(each, sources.names)
            fails = [_mask(failing(each), len(batch)) for each in checked]
            disputed = self._compare_rules(sources, columns, fails, rules)
            by_ingest = self._compare_ingest(sources, batch.rejected, fails, failure, rules)
            disputed = np.where(by_ingest == ACCEPTED, disputed, by_ingest)
            self.rejected.update(_counts(codes))
            self._sources.add(sources)
            self._tables.append(_across_rows(batch, codes, _codes(disputed, rules)))
            self._own.take(some, batch)
            self.rows += len(batch)

    def across_rows(self, parameters: Mapping[str, Any], check: Check) -> list[Tally]:
        """Runs the second suite over all rows taken, by `check`."""
        suite = load_suite("audit")
        table = pa.concat_tables([_ROWS.empty_table(), *self._tables]).unify_dictionaries()
        table, topics = _with_rejected(table, parameters["rejected_max"])
        checked = check(suite, parameters, table)
        totals = tallies(suite, parameters)
        for tally, each in zip(totals, checked, strict=True):
            tally.add(each, self._sources.names)
            if tally.expectation["kwargs"].get("column") == "rejected" and topics:
                tally.observed = ", ".join(topics)
        return totals

    def _by_epoch(
        self, records: KafkaRecords
    ) -> Iterator[tuple[int, KafkaRecords, TimerBatch, pa.Table]]:
        """Parses records as ingest does, separately for each epoch, in offset order. Each record is
        a row of the batch.
        """
        newest = len(self._contracts) - 1
        batch, columns = parse_with_columns(records, self._contracts[newest])
        index = self._epochs.of_rows(batch.partitions, batch.partition, batch.offset)
        if (index == newest).all():
            if len(batch):
                yield newest, records, batch, columns
            return
        for number in np.unique(index).tolist():
            some = records.take(np.flatnonzero(index == number))
            yield number, some, *parse_with_columns(some, self._contracts[number])

    def _compare_rules(
        self, sources: Sources, columns: pa.Table, fails: Sequence[Bool], rules: Rules
    ) -> Int32:
        """Returns for each row a rule that decides it otherwise than the suite, or ACCEPTED."""
        disputed = np.full(columns.num_rows, ACCEPTED, np.int32)
        for place, (rule, by_suite) in enumerate(zip(rules.rules, fails, strict=True)):
            differ = np.flatnonzero(rule.failing(columns) != by_suite)
            disputed[differ] = place
            first = differ[:EXAMPLES_MAX]
            found = [
                _disagreement(source, rule.code, (suite_fails, not suite_fails), "compiled rules")
                for source, suite_fails in zip(
                    sources.names(first), by_suite[first].tolist(), strict=True
                )
            ]
            self.disagreements.add(found, len(differ))
        return disputed

    def _compare_ingest(
        self,
        sources: Sources,
        rejected: Bool,
        fails: Sequence[Bool],
        failure: Int32,
        rules: Rules,
    ) -> Int32:
        """Compares ingest's reason with that of the first rule that the row fails; returns for each
        row that differs the rule, else ACCEPTED.
        """
        expected = _first(fails, len(rejected), rules)
        differ = (failure != expected) | (rejected != (expected != ACCEPTED))
        place = np.maximum(expected, failure)  # ACCEPTED: refused for a reason of no rule
        first = np.flatnonzero(differ)[:EXAMPLES_MAX]
        found = []
        for row, source in zip(first.tolist(), sources.names(first), strict=True):
            code = rules.rules[place[row]].code if place[row] != ACCEPTED else "unknown"
            by_suite, by_ingest = bool(expected[row] != ACCEPTED), bool(rejected[row])
            pair = (None, None) if by_suite == by_ingest else (by_suite, by_ingest)
            found.append(_disagreement(source, code, pair, "ingest"))
        self.disagreements.add(found, int(differ.sum()))
        return np.where(differ, np.maximum(place, 0), ACCEPTED).astype(np.int32)


def _mask(rows: Int64, count: int) -> Bool:
    mask = np.zeros(count, np.bool_)
    mask[rows] = True
    return mask


def _first(fails: Sequence[Bool], count: int, rules: Rules) -> Int32:
    """Returns for each row the first rule that it fails; of rules with one text, the first."""
    wording = [(rule.code, rule.reason) for rule in rules.rules]
    expected = np.full(count, ACCEPTED, np.int32)
    for place in reversed(range(len(fails))):
        expected[fails[place]] = wording.index(wording[place])
    return expected


def _rejected_by(batch: TimerBatch, rules: Sequence[Rule]) -> Int32:
    """Returns for each row the index of the first rule whose refusal its headers end with; ACCEPTED
    for a row without one, and for a row that is not rejected.
    """
    failure = np.full(len(batch), ACCEPTED, np.int32)
    rows = np.flatnonzero(batch.rejected)
    headers = batch.headers.filter(_pa.array(batch.rejected))
    for number in reversed(range(len(rules)) if len(rows) else ()):
        found = np.asarray(_pc.ends_with(headers, _error_end(rules[number])))
        failure[rows[found]] = number
    return failure


def _error_end(rule: Rule) -> bytes:
    """Returns the last header bytes of a row that this rule has rejected. Rules must differ in
    them; of a reason with the value, only the text behind that counts.
    """
    return rule.reason.encode().split(VALUE)[1] if rule.names_value else error_headers(rule)


def _codes(failure: Int32, rules: Rules) -> pa.DictionaryArray[Any, Any]:
    codes = list(dict.fromkeys(rule.code for rule in rules.rules))
    of_rule = np.array([codes.index(rule.code) for rule in rules.rules], np.int32)
    index = np.where(failure == ACCEPTED, 0, of_rule[failure])
    array: pa.DictionaryArray[Any, Any] = _pa.DictionaryArray.from_arrays(
        _pa.array(index.astype(np.int32), mask=failure == ACCEPTED), _pa.array(codes, pa.string())
    )
    return array


def _counts(codes: pa.DictionaryArray[Any, Any]) -> dict[str, int]:
    counts = _pc.value_counts(codes.drop_null()).to_pylist()
    return {each["values"]: each["counts"] for each in counts}


def _short_names(columns: pa.Table) -> pa.Table:
    """Cuts target_topic: the library gets a copy of the name for each row, and makes more. The
    verdict of all rules together stays the same.
    """
    place = columns.schema.get_field_index("target_topic")
    names: Any = columns.column(place).combine_chunks()
    short = _pc.utf8_slice_codeunits(names.dictionary, 0, _NAME_CHARACTERS)
    table: pa.Table = columns.set_column(
        place, columns.schema.field(place), _pa.DictionaryArray.from_arrays(names.indices, short)
    )
    return table


def _with_rejected(table: pa.Table, rejected_max: float) -> tuple[pa.Table, list[str]]:
    """Puts `rejected` in the place of topic and error_code; returns the topics that it names, too.
    A share of all topics together would hide those of a small one, or blame all for one.
    """
    topics: Any = table.column("topic").combine_chunks()
    codes: Any = table.column("error_code").combine_chunks()
    topic = np.asarray(topics.indices).astype(np.int64)
    code = np.asarray(_pc.fill_null(codes.indices, -1))
    count = len(topics.dictionary)
    rejected = np.bincount(topic[code >= 0], minlength=count)
    share = rejected / np.maximum(np.bincount(topic, minlength=count), 1)
    over = share > rejected_max
    shown = (code >= 0) & over[topic]
    index = np.where(shown, topic * len(codes.dictionary) + code, 0).astype(np.int32)
    names = [
        f"{t}: {c}" for t in topics.dictionary.to_pylist() for c in codes.dictionary.to_pylist()
    ]
    column = _pa.DictionaryArray.from_arrays(
        _pa.array(index, mask=~shown), _pa.array(names, pa.string())
    )
    with_rejected = table.drop_columns(["topic", "error_code"]).append_column("rejected", column)
    return with_rejected, topics.dictionary.filter(_pa.array(over)).to_pylist()


def _across_rows(batch: TimerBatch, codes: Any, disputed: Any) -> pa.Table:
    """Builds the columns of _ROWS."""
    order = np.argsort(batch.partition, kind="stable")
    partition = batch.partition[order]
    begins = np.ones(len(batch), np.bool_)
    begins[1:] = partition[1:] != partition[:-1]
    first = np.zeros(len(batch), np.bool_)
    first[order] = begins

    def step(column: Int64) -> pa.Array[Any]:
        steps = np.zeros(len(column), np.int64)
        steps[order] = np.diff(column[order], prepend=0)
        array: pa.Array[Any] = _pa.array(steps, mask=first)
        return array

    high, low = murmur2(batch.timer_id, *_ID_SEEDS)
    digest = (high.astype(np.int64) << 32) | low.astype(np.int64)
    named = lengths(batch.timer_id) > 0
    named &= ~batch.cancels & (batch.origin_offset == batch.offset)
    topics = _pa.array([topic for topic, _ in batch.partitions], pa.string())
    columns = [
        topics.dictionary_encode().take(_pa.array(batch.partition)),
        codes,
        disputed,
        step(batch.offset),
        step(batch.timestamp_ms),
        _pa.array(digest, mask=~named),
    ]
    table: pa.Table = _pa.table(columns, schema=_ROWS)
    return table
