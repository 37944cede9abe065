"""Names the rows of an audit by their source, "topic-partition@offset"."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from duewheel.schemas.arrays import Int32, Int64
from duewheel.schemas.batches import TopicPartition
from duewheel.schemas.hashing import source_names


@dataclass(frozen=True, slots=True)
class Sources:
    """Partition and offset of some rows."""

    partitions: list[TopicPartition]
    partition: Int32
    offset: Int64

    def names(self, rows: Int64) -> list[str]:
        """Returns the sources of some rows."""
        sources = source_names(self.partitions, self.partition[rows], self.offset[rows])
        return [str(name) for name in sources.cast(pa.large_string()).to_pylist()]


class RangeSources:
    """Those of all chunks of a range, one after the other."""

    def __init__(self) -> None:
        self._chunks: list[Sources] = []

    def add(self, sources: Sources) -> None:
        """Adds the rows of one more chunk."""
        self._chunks.append(sources)

    def names(self, rows: Int64) -> list[str]:
        """Returns the sources of rows, by index over all chunks."""
        ends = np.cumsum([len(sources.offset) for sources in self._chunks])
        names = []
        for row in rows.tolist():
            chunk = int(np.searchsorted(ends, row, "right"))
            begin = int(ends[chunk]) - len(self._chunks[chunk].offset)
            names += self._chunks[chunk].names(np.array([row - begin]))
        return names
