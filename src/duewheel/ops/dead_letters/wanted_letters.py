"""Selects dead letters in columns: only those that are wanted become objects.

Each producer of a timer topic decides how many others there are, and how many headers they have. As
objects these take 0.4 s for each MB, in columns about 0.1 s.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow.compute

from duewheel.schemas import header_names as names
from duewheel.schemas.arrays import Bool, Int64
from duewheel.schemas.columns import Column, coded, constant, filled
from duewheel.schemas.partition_names import RECORD_PATTERN
from duewheel.schemas.topic_scope import ALL_TOPICS, TopicScope
from duewheel.schemas.wire.kafka_records import KafkaRecords
from duewheel.schemas.wire.spans import RawHeaders

_pc: Any = pyarrow.compute


@dataclass(frozen=True, slots=True)
class WantedLetters:
    """See the module's head.

    Attributes:
        code: of `DeadLetter.code`; None: any.
        scope: the timer topics of `DeadLetter.source`.
    """

    code: str | None = None
    scope: TopicScope = ALL_TOPICS

    def rows(self, records: KafkaRecords) -> Int64:
        """The rows of the selected letters, rising; none stands for a batch that is not read."""
        selected = np.ones(len(records), np.bool_)
        if records.unread is not None:
            selected[records.unread.row] = False
        headers, code = records.headers, self.code
        if code is not None or self.scope.patterns:
            error = _last_of(headers, names.ERROR_CODE)
        if code is not None:
            codes = _values(headers, error[error >= 0])
            selected[error < 0] &= not code
            selected[error >= 0] &= np.asarray(_pc.equal(codes, constant(code.encode())))
        if self.scope.patterns:
            source = _last_of(headers, names.SOURCE)
            added = (error >= 0) & (source > error)
            selected[~added] = False
            selected[added] &= self._in_scope(_values(headers, source[added]))
        return np.flatnonzero(selected)

    def _in_scope(self, sources: Column) -> Bool:
        found = _pc.extract_regex(sources, RECORD_PATTERN)
        index, topics = coded(filled(_pc.struct_field(found, "topic")))
        texts = ((topic or b"").decode(errors="replace") for topic in topics.to_pylist())
        inside = np.array([bool(text) and text in self.scope for text in texts], np.bool_)
        return inside[index]


def _last_of(headers: RawHeaders, name: str) -> Int64:
    """The index of each record's last header of this name, among all headers; -1: it has none."""
    octets = name.encode()
    indexes = np.flatnonzero(headers.names.length == len(octets))
    same = _pc.equal(headers.names.take(indexes).column(), constant(octets))
    indexes = np.append(-1, indexes[np.asarray(same)])
    last: Int64 = indexes[np.searchsorted(indexes, headers.firsts[1:]) - 1]
    return np.where(last >= headers.firsts[:-1], last, -1)


def _values(headers: RawHeaders, indexes: Int64) -> Column:
    return filled(headers.values.take(indexes).column())
