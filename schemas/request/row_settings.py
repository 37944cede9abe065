"""The settings of each row's topic (topic_settings.py), as columns of a batch.

They do not apply to copies, except for the open targets: a copy has everything else in its own,
native headers. A key of 1 byte or more can be an id; an empty one cannot.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute

from duewheel.schemas.arrays import Bool, Int32, Int64
from duewheel.schemas.columns import Column, lengths, take
from duewheel.schemas.header_names import Request
from duewheel.schemas.request.due_times import NO_DELAY
from duewheel.schemas.request.headers import MODES, Field, Int8, rows_of
from duewheel.schemas.request.open_targets import closed_targets
from duewheel.schemas.request.topic_settings import DEAD_LETTER, NATIVE, REGISTRY, TopicContract
from duewheel.schemas.wire.schema_number import with_schema_number
from duewheel.schemas.wire.spans import Spans

_pa: Any = pa
_pc: Any = pyarrow.compute

# The headers that distinguish a record of another service from a native one.
_FOREIGN = (Request.EPOCH_SEC, Request.WHEN, Request.TARGET_KEY)
CANCEL_TYPE = b"cancel"  # of schedule_source_type
_UNLIMITED = np.iinfo(np.int64).max


@dataclass(frozen=True)
class RowSettings:
    """The settings of some partitions' topics, for the rows of a batch."""

    # The settings of each partition's topic, indexed by `partition`
    contracts: Sequence[TopicContract]
    partition: Int32

    @cached_property
    def mode(self) -> Int8 | None:
        """Row → index in MODES; None if all are native."""
        if all(each.headers == NATIVE for each in self.contracts):
            return None
        return self._of_rows([MODES.index(each.headers) for each in self.contracts], np.int8)

    @cached_property
    def default_targets(self) -> tuple[Int32, list[str]]:
        """Row → index in the list of targets that the configuration names, or -1."""
        given = [each.target for each in self.contracts]
        named = sorted({target for target in given if target is not None})
        place: dict[str | None, int] = {target: index for index, target in enumerate(named)}
        return self._of_rows([place.get(target, -1) for target in given], np.int32), named

    def closed_targets(self, target: pa.DictionaryArray[Any, Any]) -> Bool:
        """Rows whose topic is not open for their target: open_targets.py."""
        opened = [each.listed_targets for each in self.contracts]
        lists = {regex: place for place, regex in enumerate(dict.fromkeys(opened))}
        if lists.keys() <= {None}:
            return np.zeros(len(self.partition), np.bool_)
        list_of = self._of_rows([lists[regex] for regex in opened], np.int32)
        return closed_targets(target, list_of, list(lists), *self.default_targets)

    def delay_ms(self, excepted: Bool) -> Int64 | None:
        """The delay of rows without a requested time, or NO_DELAY; None if no topic has one. Copies
        and pure cancels are `excepted`.
        """
        given = [each.delay_ms for each in self.contracts]
        if all(delay is None for delay in given):
            return None
        delays = [NO_DELAY if delay is None else delay for delay in given]
        return np.where(excepted, NO_DELAY, self._of_rows(delays, np.int64))

    def max_delay_ms(self) -> Int64 | None:
        """The longest delay of each row's topic, beside that of all; None if no topic has one."""
        given = [each.max_delay_ms for each in self.contracts]
        if all(delay is None for delay in given):
            return None
        return self._of_rows([_UNLIMITED if delay is None else delay for delay in given], np.int64)

    def rejects_past_due(self) -> Bool:
        """Rows of topics where a timer that is past due becomes a dead letter."""
        return self._flags([each.past_due == DEAD_LETTER for each in self.contracts])

    def unframed(self, values: Spans, excepted: Bool) -> Bool:
        """Rows of topics whose values have the number of a schema, with a value that lacks it.
        Copies and pure cancels are `excepted`.
        """
        checked = self._flags([each.value_schema == REGISTRY for each in self.contracts])
        if not checked.any():
            return checked
        return checked & ~excepted & ~values.is_null & ~with_schema_number(values)

    def refuses_recurring(self) -> Bool:
        """Rows of topics whose messages may not be recurring timers."""
        return self._flags([not each.recurring for each in self.contracts])

    def drop_in(self, fields: Mapping[Request, Field]) -> Bool:
        """First copies with another service's headers, in topics of its mode."""
        rows = self._first_copies([each.headers != NATIVE for each in self.contracts], fields)
        return rows & rows_of(fields, _FOREIGN, len(rows))

    def cancelling_keys(
        self, fields: Mapping[Request, Field], key: Column, null_value: Bool
    ) -> Field:
        """Rows that are pure cancels by their null value or source type, and their keys."""
        by_null = [each.null_cancels for each in self.contracts]
        types = fields.get(Request.SOURCE_TYPE)
        if types is None and (not any(by_null) or not null_value.any()):
            return Field.none()
        size = lengths(key)
        cancels = null_value & (size > 0)
        cancels &= self._first_copies(by_null, fields)
        if types is not None:
            is_cancel = np.asarray(_pc.equal(types.values, _pa.scalar(CANCEL_TYPE)))
            cancels[types.rows[is_cancel]] = True
        cancels &= ~rows_of(fields, [Request.CANCEL], len(key))
        return _field(key, cancels)

    def keys_as_ids(self, fields: Mapping[Request, Field], key: Column) -> Field:
        """Rows whose key is the id of their timer, and these keys."""
        by_key = [each.key_is_id for each in self.contracts]
        if not any(by_key):
            return Field.none()
        named = self._first_copies(by_key, fields) & (lengths(key) > 0)
        named &= ~rows_of(fields, [Request.TIMER_ID], len(key))
        return _field(key, named)

    def _first_copies(self, of_partitions: list[bool], fields: Mapping[Request, Field]) -> Bool:
        """The rows of these partitions that are no copies."""
        if not any(of_partitions):
            return np.zeros(len(self.partition), np.bool_)
        return self._flags(of_partitions) & ~rows_of(fields, [Request.ORIGIN], len(self.partition))

    def _flags(self, of_partitions: list[bool]) -> Bool:
        return self._of_rows(of_partitions, np.bool_)

    def _of_rows(self, of_partitions: Sequence[int], dtype: type[Any]) -> npt.NDArray[Any]:
        """The value of its partition for each row."""
        if len(set(of_partitions)) == 1:
            return np.full(len(self.partition), of_partitions[0], dtype)
        return np.array(of_partitions, dtype)[self.partition]


def _field(key: Column, wanted: Bool) -> Field:
    rows = np.flatnonzero(wanted)
    return Field(rows, take(key, rows))
