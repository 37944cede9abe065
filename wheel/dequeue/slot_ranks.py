"""Ranks: the place of each row among the rows of its timer topic in its slot.

A rank counts the topic's rows in the log, whether they are delivered or not. The progress has the
number of its rows of a half-delivered slot that are out (n in checkpoints/progress.py): after a
loss the log has only the pending rows of such a slot.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from duewheel.schemas.arrays import Bool, Int64, bounds_of


class RankCounter:
    """Counts the rows of each topic in one slot after another, from chunk to chunk. `out` is the
    number of rows that are out, by timer topic and half-delivered slot. Not thread-safe.
    """

    def __init__(self, out: Mapping[tuple[str, int], int]) -> None:
        self._out = out
        self._slot: int | None = None
        self._counted: dict[str, int] = {}

    def of(self, slot: Int64, topics: Sequence[str], topic: Int64, counted: Bool) -> Int64:
        """Computes the ranks of the rows of the next chunk. `slot` never falls, within a chunk and
        from chunk to chunk; `topic` is an index in `topics`. Rows that are not `counted` are out,
        and counted in `out`.
        """
        run = bounds_of(slot[1:] != slot[:-1])
        group = run * len(topics) + topic
        order = np.argsort(group, kind="stable")
        is_counted, group = counted[order], group[order]
        before: Int64 = np.cumsum(is_counted) - is_counted
        cuts = np.flatnonzero(group[1:] != group[:-1]) + 1
        firsts, ends = np.append(0, cuts), np.append(cuts, len(slot))
        names = [topics[index] for index in topic[order[firsts]].tolist()]
        places = list(zip(names, slot[order[firsts]].tolist(), strict=True))
        base = np.array([self._base(*place) for place in places], np.int64)
        in_order = before + np.repeat(base - before[firsts], ends - firsts)
        rank = np.empty(len(slot), np.int64)
        rank[order] = in_order
        reached = (in_order[ends - 1] + is_counted[ends - 1]).tolist()
        if self._slot != slot[-1]:
            self._slot, self._counted = int(slot[-1]), {}
        self._counted |= {
            name: count
            for (name, at), count in zip(places, reached, strict=True)
            if at == self._slot
        }
        return rank

    def _base(self, topic: str, slot: int) -> int:
        counted = self._counted.get(topic) if slot == self._slot else None
        return self._out.get((topic, slot), 0) if counted is None else counted
