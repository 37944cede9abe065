"""Faults of planted.py in the policies for hot slots."""

from __future__ import annotations

from tests.simulation.planting import Planted

HOT_SLOTS = {
    "hot-from-zero": Planted(
        "6",
        "the ranks of a half-delivered slot start at 0 after a loss",
        "wheel/dequeue/pipeline.py",
        "RankCounter(half_rows)",
        "RankCounter({})",
    ),
    "hot-rows-of-chunk": Planted(
        "bytes",
        "a topic without a row in a chunk has none out of the slot",
        "wheel/dequeue/phase_and_position.py",
        "{**rows, **half_rows}",
        "half_rows",
        test="unit/wheel/dequeue/test_phase_and_position.py::"
        "test_the_chunks_of_a_slot_raise_d_of_each_partition",
    ),
    "hot-by-id": Planted(
        "4",
        "the rows of a key are judged one by one",
        "wheel/slot_overflow.py",
        "    keyless = np.flatnonzero(hashes == NO_KEY)\n",
        "    keyless = np.arange(len(rows))\n",
        test="unit/wheel/test_slot_overflow.py::"
        "test_once_a_row_of_a_key_is_in_excess_all_later_ones_are_and_wait_as_long",
    ),
    "hot-again": Planted(
        "6",
        "what was spread may be in excess of its next slot, too",
        "wheel/slot_overflow.py",
        " | (deliveries.retries > 0)",
        "",
    ),
    "hot-same-slot": Planted(
        "6",
        "what is spread may leave again with the slot that follows",
        "wheel/slot_overflow.py",
        "(slot[rows] + 1) * precision_ms",
        "slot[rows] * precision_ms",
    ),
    "hot-upside-down": Planted(
        "6",
        "what is spread is chosen the other way round",
        "wheel/slot_overflow.py",
        "excess = fraction < self.probability(rank[rows])",
        "excess = fraction > self.probability(rank[rows])",
    ),
}
