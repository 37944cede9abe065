"""Faults of planted.py in dead letters that wait because their topic takes no writes."""

from __future__ import annotations

from tests.simulation.planting import Planted

LETTERS = {
    "letters-at-once": Planted(
        "1",
        "a dead letter that waits leaves with the next slot",
        "wheel/roll_rule.py",
        "batch.not_before_ms == ANY_TIME, EARLIEST_SLOT",
        "batch.rejected, EARLIEST_SLOT",
        test="unit/wheel/dequeue/test_parking.py::test_dead_letters_wait_while_their_topic_takes_nothing",
    ),
    "letters-judged-again": Planted(
        "bytes",
        "ingest takes a dead letter that waits for a message like any other",
        "schemas/request/request_columns.py",
        "    letters: Bool = ends - headers.firsts[:-1] >= size\n",
        "    letters: Bool = ends - headers.firsts[:-1] < 0\n",
        test="unit/wheel/dequeue/test_parking.py::test_dead_letters_wait_while_their_topic_takes_nothing",
    ),
    "letters-always": Planted(
        "6",
        "dead letters wait while some partitions of their topic take writes",
        "wheel/target_rules.py",
        "self.refusal or self.unavailable.issuperset(range(self.partitions))",
        "self.refusal or bool(self.unavailable)",
        test="unit/wheel/dequeue/test_parking.py::test_dead_letters_go_to_any_partition_that_takes_writes",
    ),
    "letters-astray": Planted(
        "6",
        "dead letters go to their key's partition only",
        "wheel/dequeue/partitioner.py",
        "free = np.where(astray, sticky[of], free)",
        "free = np.where(astray, free, free)",
        test="unit/wheel/dequeue/test_parking.py::test_dead_letters_go_to_any_partition_that_takes_writes",
    ),
    "error-not-learnt": Planted(
        "6",
        "an error that is in no list says nothing of its partition",
        "kafka/publish/failed_batches.py",
        "or not isinstance(error, _INCONCLUSIVE)",
        "or not isinstance(error, (*_INCONCLUSIVE, InvalidTimestampError))",
        test="unit/kafka/publish/test_failed_batches.py::test_the_consequences_depend_on_the_progress",
    ),
    "no-back-off": Planted(
        "6",
        "a transaction that fails is tried again at once",
        "wheel/dequeue/committer.py",
        "            if not isinstance(result.doubt, Displaced):\n                self._wait()\n",
        "",
        test="unit/wheel/dequeue/test_loop.py::test_each_attempt_waits_longer_than_the_one_before",
    ),
}
