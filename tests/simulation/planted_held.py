"""Faults of planted.py in copies that wait for their timer partition."""

from __future__ import annotations

from tests.simulation.planting import Planted

HELD = {
    "held-overtaken": Planted(
        "8",
        "new copies do not go behind those that wait",
        "kafka/publish/held_queue.py",
        "if partition not in closed and partition not in waits:",
        "if partition not in closed:",
        test="unit/kafka/publish/test_held_queue.py::test_copies_are_moved_in_their_order_and_new_ones_go_behind_them",
    ),
    "copy-too-large": Planted(
        "8",
        "a copy is made that is too large to be held",
        "wheel/dequeue/too_large.py",
        "np.minimum(limit, COPY_BYTES_MAX)",
        "limit",
        test="unit/wheel/dequeue/test_parking.py::test_no_copy_is_larger_than_one_that_can_be_held",
    ),
    "held-moved-twice": Planted(
        "3",
        "what was moved is found again",
        "kafka/publish/held_queue.py",
        "_above(of, start) for partition",
        "of for partition",
        test="unit/kafka/publish/test_held_queue.py::test_no_more_is_moved_at_once_than_a_transaction_takes",
    ),
    "held-passed-over": Planted(
        "held",
        "copies of a closed partition are below the offset from which they are read later",
        "kafka/publish/held_queue.py",
        "stay = {partition: of for",
        "stay = {partition: _above(of, start) for",
        test="unit/kafka/publish/test_held_queue.py::test_copies_of_a_closed_partition_are_not_passed_over_by_moves_of_others",
    ),
    "held-below-c": Planted(
        "held",
        "copies go to a partition that has lost its end",
        "kafka/publish/held_queue.py",
        "if log_ends.get(p, -1) >= known.get(p, 0)]",
        "if log_ends.get(p, -1) >= 0]",
        test="unit/kafka/publish/test_held_queue.py::test_nothing_goes_to_a_partition_that_has_lost_its_end",
    ),
    "held-of-another-topic": Planted(
        "2",
        "copies name offsets of a topic that is no more",
        "kafka/publish/held_queue.py",
        "    return as_first_copies(partition, batch, progress.epochs.newest.signing_key)\n",
        "    return batch\n",
        test="unit/kafka/publish/test_held_queue.py::test_copies_of_a_topic_that_was_made_anew_begin_anew",
    ),
    "held-forgotten": Planted(
        "held",
        "the next progress does not say what waits",
        "wheel/dequeue/committer.py",
        "        self._claimed = replace(self._claimed, held=progress.held)\n",
        "",
    ),
    "held-in-doubt": Planted(
        "refused",
        "in doubt it is not known what the publisher has written",
        "wheel/dequeue/committer.py",
        "self.committed, self._as_written)",
        "self.committed)",
        test="unit/kafka/publish/test_held_queue.py::test_dequeue_carries_what_its_publisher_holds_over_a_doubt_and_a_start",
    ),
    "held-end-asked": Planted(
        "8",
        "a partition's end is asked for while copies wait that will lie behind it",
        "wheel/dequeue/partition_ends.py",
        "missing = [p for p in self._bounds.unknown_ends if p not in held]",
        "missing = self._bounds.unknown_ends",
        test="unit/kafka/publish/test_held_queue.py::test_kafka_is_not_asked_where_a_partition_ends_whose_copies_wait",
    ),
    "moved-unsigned": Planted(
        "bytes",
        "a copy for a recreated topic keeps the MAC of the headers that it had",
        "kafka/publish/held_queue.py",
        "        headers += mac_header(copy_key, partition, record_key, value, headers)\n",
        "        headers += own[-1:]\n",
        test="unit/schemas/wire/test_copy_mac.py::test_held_copies_of_a_topic_that_was_recreated_are_signed_again",
    ),
    "held-dealt": Planted(
        "2",
        "a shard is dealt while copies wait beside its progress",
        "checkpoints/reshard_records.py",
        "    _require_none_held(old)\n",
        "",
        test="unit/kafka/publish/test_held_queue.py::test_a_shard_with_copies_that_wait_is_given_back_but_not_dealt",
    ),
}
