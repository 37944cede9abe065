"""Faults in the way of recurring timers."""

from __future__ import annotations

from tests.simulation.planting import Planted

_SUCCESSORS = "wheel/dequeue/successors.py"

RECURRING = {
    "successor-left-out": Planted(
        "recurring",
        "a firing leaves no copy of the next instant",
        _SUCCESSORS,
        "        if next_ms is not None:\n",
        "        if next_ms is not None and not fires:\n",
    ),
    "successor-twice": Planted(
        "recurring",
        "a firing leaves two copies of the next instant",
        _SUCCESSORS,
        "            split.succeeded.append(row)\n            split.due_ms.append(next_ms)\n",
        "            split.succeeded += [row, row]\n            split.due_ms += [next_ms] * 2\n",
    ),
    "seed-fires": Planted(
        "recurring",
        "the record of a recurring timer fires",
        _SUCCESSORS,
        "                fires, next_ms = False, first_ms\n",
        "                fires, next_ms = True, first_ms\n",
    ),
    "successor-of-now": Planted(
        "recurring",
        "the next instant is computed from the present alone",
        "wheel/recurrence.py",
        "        at_ms, now_ms = due_ms - shift_ms, now_ms - shift_ms\n",
        "        now_ms -= shift_ms\n        at_ms = now_ms\n",
    ),
    "firing-waits-as-the-timer": Planted(
        "recurring",
        "a firing has the id of its timer: parked, a cancel of that would stop it, too",
        _SUCCESSORS,
        'return b"%b@%d" % (timer_id, due_ms)',
        "return timer_id",
    ),
    "recurrence-delivered": Planted(
        "bytes",
        "a delivery has the headers of the recurrence",
        _SUCCESSORS,
        "            split.plain.append((others, plain_count))\n",
        "            split.plain.append((deliveries.headers[row].as_py(), plain_count + 2))\n",
    ),
    "recurrence-replied": Planted(
        "bytes",
        "the reply to a cancel has the headers of a recurrence",
        "wheel/append/staged_batch.py",
        "without_recurrence(cancels)",
        "cancels",
    ),
    "successor-rolled": Planted(
        "recurring",
        "a successor counts as rolled",
        "wheel/dequeue/requeue.py",
        "    headers, count = _headers(deliveries, np.zeros_like(deliveries.roll_times))\n",
        "    headers, count = _headers(deliveries, deliveries.roll_times + 1)\n",
    ),
    "seed-follows-what-it-replaces": Planted(
        "1",
        "a seed begins at its timestamp, though the timer that it replaces has fired since",
        "wheel/dequeue/decode.py",
        "after_ms = np.where(replaces, np.maximum(due_ms, closed_ms), due_ms)",
        "after_ms = np.where(replaces, due_ms, due_ms)",
        test="unit/wheel/dequeue/test_successors.py::test_a_change_does_not_fire_an_instant_again",
    ),
    "successors-without-bound": Planted(
        "5",
        "a transaction has any number of recurring rows",
        "wheel/dequeue/slot_scan.py",
        "int(min(by_bytes, by_rows))",
        "int(by_bytes)",
        test="unit/wheel/dequeue/test_successors.py::test_a_transaction_has_a_bounded_number_of_recurring_rows",
    ),
    "successors-without-bytes": Planted(
        "5",
        "the bytes of a successor do not count",
        "wheel/dequeue/slot_scan.py",
        "(records), 2 * sizes, sizes)",
        "(records), sizes, sizes)",
        test="unit/wheel/dequeue/test_successors.py::test_a_transaction_has_a_bounded_number_of_bytes",
    ),
    "recurring-in-old-epochs": Planted(
        "bytes",
        "an epoch of a version without recurring timers reads them",
        "schemas/request/parser.py",
        "        headers = users_own(headers, is_recurrence(headers))\n",
        "        assert headers\n",
        test="unit/schemas/request/test_recurrences.py::test_an_epoch_of_a_version_without_recurrence_keeps_its_verdicts",
    ),
}
