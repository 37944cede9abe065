"""Faults of planted.py in which timers are dropped because another one is pending."""

from __future__ import annotations

from tests.simulation.planting import Planted

RULE = "wheel/append/keeps.py"
CASES = "unit/wheel/append/test_keeps.py::"

KEEPS = {
    "keep-stopped-blocks": Planted(
        "10",
        "a timer that an earlier batch has cancelled still counts as pending",
        RULE,
        "until[timers.cancelled | (timers.slot <= bound_of[timers.group])]",
        "until[timers.slot <= bound_of[timers.group]]",
        seed=3,
    ),
    "keep-logged-overlooked": Planted(
        "10",
        "a timer of an earlier batch does not count as pending",
        "wheel/append/cancel_files.py",
        "        until = keeps.blocks_until(\n",
        "        timers.slot[evident < len(candidates.in_log)] = -1\n"
        "        until = keeps.blocks_until(\n",
        seed=105,
    ),
    "keep-cancelled-blocks": Planted(
        "10",
        "a timer that is cancelled in the same batch still counts as pending",
        RULE,
        "    until[stopped] = cancels.offset[cancelled_by[stopped]]\n",
        "    assert len(cancels) or not stopped.any()\n",
        test=CASES + "test_a_cancel_frees_the_id",
    ),
    "keep-dropped-blocks": Planted(
        "2",
        "a timer that is dropped itself counts as pending",
        RULE,
        "np.maximum.accumulate(np.where(keep, 0, end))",
        "np.maximum.accumulate(end)",
        test="property/test_keeps.py::test_all_at_once_is_one_at_a_time",
    ),
    "keep-dropped-is-written": Planted(
        "10",
        "a timer that is dropped is in the wheel all the same",
        "wheel/append/cancel_files.py",
        "return rows.take(np.flatnonzero(~is_dropped)), candidates",
        "return rows, candidates",
        test=CASES + "test_the_first_timer_of_an_id_stays",
    ),
    "keep-beyond-lock": Planted(
        "5",
        "any number of timers that keep are decided at once",
        "streaming/batch_taker.py",
        "        asks = batch.cancels | batch.keeps\n",
        "        asks = batch.cancels\n",
        test="unit/streaming/test_batch_taker.py::test_timers_that_keep_are_taken_in_parts",
    ),
}
