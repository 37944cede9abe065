"""Faults of planted.py in the policies of delivery: in their seam and in pauses here, and those
that each policy's judge has.
"""

from __future__ import annotations

from tests.simulation.planting import Planted
from tests.simulation.policies.table import MODULES

POLICIES = {
    "paused-leaves": Planted(
        "6",
        "the timers of a paused topic leave",
        "wheel/dequeue/fate.py",
        " | _of_paused(deliveries, paused)\n",
        "\n",
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
    "slow-rest-of-all": Planted(
        "6",
        "while one timer topic rests, the timers of all for slow targets are parked",
        "wheel/dequeue/slow_rows.py",
        "if topics[t] not in paused.slow_of]",
        "if not paused.slow_of]",
        test="unit/wheel/dequeue/test_slow_rows.py::"
        "test_the_rest_of_one_timer_topic_is_not_that_of_others",
    ),
    "refused-rest-of-none": Planted(
        "6",
        "no timer topic rests after a refusal",
        "kafka/targets/resting_timer_topics.py",
        "paused.timer_topics | self._refused.resting",
        "paused.timer_topics",
        test="unit/kafka/targets/test_resting_timer_topics.py::"
        "test_after_a_refusal_the_timer_topic_rests_nine_times_as_long_as_it_has_cost",
    ),
    "own-hops": Planted(
        "4",
        "each row hops as far as it can, on a way of its own",
        "wheel/policies/policy.py",
        "instants - hops * rows.window_ms",
        "np.minimum(instants, rows.now_ms + rows.window_ms)",
        test="unit/wheel/policies/test_policy.py::"
        "test_rows_that_wait_for_one_instant_leave_in_their_order_over_all_hops",
    ),
    "rolls-expire": Planted(
        "1",
        "a policy judges timers that roll",
        "wheel/policies/policy.py",
        " & ~deliveries.is_copy",
        "",
        test="unit/wheel/policies/test_policy.py::test_copies_and_dead_letters_are_not_postponed",
    ),
    **{name: fault for module in MODULES.values() for name, fault in module.FAULTS.items()},
}
