"""Faults of planted.py in the policies of delivery."""

from __future__ import annotations

from tests.simulation.planting import Planted

POLICIES = {
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
        "wheel/policies/hot_slots.py",
        "order_hashes(deliveries.key_hash[rows], ",
        "order_hashes(deliveries.key_hash[rows] * 0 - 1, ",
        test="unit/wheel/policies/test_hot_slots.py::"
        "test_once_a_row_of_a_key_is_in_excess_all_later_ones_are_and_wait_as_long",
    ),
    "hot-again": Planted(
        "6",
        "what was spread may be in excess of its next slot, too",
        "wheel/policies/hot_slots.py",
        "(rows.rank > self.limit) & ~spread_or_parked",
        "rows.rank > self.limit",
    ),
    "hot-same-slot": Planted(
        "6",
        "what is spread may leave again with the slot that follows",
        "wheel/policies/hot_slots.py",
        "(rows.slot[chosen] + 1) * rows.precision_ms",
        "rows.slot[chosen] * rows.precision_ms",
    ),
    "expires-early": Planted(
        "1",
        "a timer expires half of its time early",
        "wheel/policies/expiry.py",
        "late_ms > limits[",
        "2 * late_ms > limits[",
    ),
    "header-expires-early": Planted(
        "1",
        "a timer expires by its header a moment early",
        "wheel/policies/expiry.py",
        "rows.now_ms > last_ms",
        "rows.now_ms >= last_ms - 2_000",
    ),
    "paused-leaves": Planted(
        "6",
        "the timers of a paused topic leave",
        "wheel/dequeue/fate.py",
        "    waits |= _of_paused(deliveries, paused) & (reason == Reason.NONE)\n",
        "",
    ),
    "paused-later": Planted(
        "6",
        "what was encoded before a pause leaves in it",
        "wheel/dequeue/encoder.py",
        "            and encoded.paused == self._paused()\n",
        "",
        test="unit/wheel/dequeue/test_encoder.py::"
        "test_what_was_encoded_before_a_pause_is_encoded_again",
    ),
    "own-hops": Planted(
        "4",
        "each row hops as far as it can, on a way of its own",
        "wheel/policies/policy.py",
        "instants - hops * rows.window_ms",
        "np.minimum(instants, rows.slot * rows.precision_ms + rows.window_ms)",
        test="unit/wheel/policies/test_policy.py::"
        "test_rows_that_wait_for_one_instant_leave_in_their_order_over_all_hops",
    ),
    "rolls-expire": Planted(
        "1",
        "a policy judges timers that roll",
        "wheel/policies/policy.py",
        " & ~deliveries.is_copy",
        "",
        test="unit/wheel/policies/test_expiry.py::"
        "test_copies_on_their_way_and_dead_letters_do_not_expire",
    ),
    "hot-upside-down": Planted(
        "6",
        "what is spread is chosen the other way round",
        "wheel/policies/hot_slots.py",
        "excess = fraction < self.probability(rows.rank[candidates])",
        "excess = fraction > self.probability(rows.rank[candidates])",
    ),
}
