"""Faults of planted.py in what cancels meet, for how long they are kept, and what they are told."""

from __future__ import annotations

from tests.simulation.planting import Planted

CANCELLING = "wheel/cancelling.py"
CASES = "unit/test_cancels.py::"
ON_DISK = "unit/test_cancels_on_disk.py::"
REMEMBERED = "unit/test_remembered.py::"
TELLING = "unit/test_telling.py::"
PAIRS = "unit/test_tombstones.py::test_what_is_left_out_is_what_a_pair_of_cancel_and_row_says"
OVERTAKEN = "unit/test_tombstones.py::test_whose_place_is_taken_is_what_pairs_of_cancels_say"

CANCELS = {
    "cancel-half-of-done": Planted(
        "8",
        "what comes again after a loss cancels nothing",
        "wheel/engine.py",
        "cancels = cancels.take(self._rows_below(cancels, marks))",
        "cancels = cancels.take(np.arange(0) if catches_up else self._rows_below(cancels, marks))",
    ),
    "cancel-not-in-k": Planted(
        "8",
        "the progress does not say from where cancels are to be read again",
        CANCELLING,
        "(k.get(p), a.get(p, 0))",
        "(None, a.get(p, 0))",
    ),
    "cancel-k-without-answer": Planted(
        "9",
        "a cancel without an answer is not read again once it meets nothing any more",
        CANCELLING,
        "done & ~self._unanswered(np.arange(len(live)), said)",
        "done",
    ),
    "cancel-known-late": Planted(
        "8",
        "what lies below C is known only when the next slots are closed",
        "wheel/dequeue.py",
        "self._cancelling.learn(commit, c, self._r)",
        "self._cancelling.learn(commit, self._close.c_before, self._r)",
    ),
    "cancel-not-settled": Planted(
        "8",
        "copies that are still on their way are not waited for",
        CANCELLING,
        "settled = (log_end != NOT_ASKED) & (marks[live.partition[rows]] >= log_end)",
        "settled = log_end != NOT_ASKED",
    ),
    "cancel-forgotten-early": Planted(
        "8",
        "a cancel is forgotten before what it meets has left",
        CANCELLING,
        "settled & ((live.last <= r) | taken_over)",
        "settled",
    ),
    "cancel-superseded-early": Planted(
        "8",
        "a cancel takes the place of others before it is known what it meets",
        CANCELLING,
        "superseded(live, settled & (live.offset",
        "superseded(live, (live.offset",
        test=CASES + "test_a_cancel_that_is_not_settled_takes_the_place_of_none",
    ),
    "cancel-superseded-by-none": Planted(
        "5",
        "every cancel of an id lives until what it meets has left",
        "wheel/tombstones.py",
        "live.offset[rows] < greatest[place]",
        "live.offset[rows] < 0",
        test=CASES + "test_of_an_id_that_is_rescheduled_over_and_over_one_cancel_lives",
    ),
    "cancel-superseded-anywhere": Planted(
        "2",
        "a cancel takes the place of those behind it",
        "wheel/tombstones.py",
        "live.offset[rows] < greatest[place]",
        "live.offset[rows] != greatest[place]",
        test=OVERTAKEN,
    ),
    "answer-again": Planted(
        "9",
        "a start does not know what was answered before it",
        CANCELLING,
        "self._answered = {p: part.a for p, part in start.partitions.items()}",
        "self._answered = dict.fromkeys(start.partitions, 0)",
    ),
    "answer-ahead": Planted(
        "9",
        "an answer in a partition that is ahead of its shard is not told to the progress",
        "checkpoints/progress.py",
        "k=k if part.r == r else part.k, a=max(a, part.a))",
        "k=k if part.r == r else part.k, a=max(a, part.a) if part.r == r else part.a)",
        test=CASES + "test_in_a_partition_that_is_ahead_a_cancel_is_answered_once",
    ),
    "answer-of-left-out": Planted(
        "9",
        "what a cancel has kept from leaving counts as delivered",
        "wheel/verdicts.py",
        "left_out = rows.slot > earliest",
        "left_out = rows.slot < 0",
    ),
    "answer-of-before": Planted(
        "9",
        "what cancels of before the start have kept from leaving counts as delivered",
        CANCELLING,
        "after = r if self._is_begun else BEFORE_START",
        "after = r",
    ),
    "answer-of-over": Planted(
        "9",
        "cancels that were over at the start are not remembered",
        CANCELLING,
        "if len(over) and self._reply_topic is not None:",
        "if len(over) < 0:",
        test=TELLING + "test_what_was_cancelled_before_a_restart_was_not_delivered",
    ),
    "answer-of-forgotten": Planted(
        "9",
        "what a cancel has left out that was forgotten counts as delivered",
        CANCELLING,
        " & (found.slot[rows] > self._past.unknown_to),",
        ",",
        test=REMEMBERED + "test_nothing_that_a_forgotten_cancel_has_left_out_counts_as_delivered",
    ),
    "cancels-remembered-all": Planted(
        "5",
        "any number of cancels is remembered",
        "wheel/remembered.py",
        "if len(self) > self._most:",
        "if len(self) < 0:",
        test=REMEMBERED + "test_those_whose_rows_would_have_left_first_are_forgotten",
    ),
    "cancels-forgotten-of-a-slot": Planted(
        "9",
        "of the cancels with rows of one slot some are forgotten, and none is told",
        "wheel/remembered.py",
        "self.unknown_to = int(np.partition(last, going - 1)[going - 1])",
        "self.unknown_to = int(np.partition(last, going - 1)[going - 1]) - 1",
        test=REMEMBERED + "test_of_those_of_one_slot_all_are_forgotten",
    ),
    "answer-of-abandoned": Planted(
        "9",
        "what a cancel had left out before it was abandoned counts as delivered",
        CANCELLING,
        "np.append(found.damaged, self._cut_off)",
        "found.damaged",
        test=TELLING + "test_what_an_abandoned_cancel_may_have_left_out_was_not_delivered",
    ),
    "answer-of-rolled": Planted(
        "9",
        "what was written again before the start counts as delivered",
        CANCELLING,
        "~found.rolled[rows] & (",
        "(",
        test=TELLING + "test_what_was_rolled_before_a_restart_was_not_delivered",
    ),
    "cancel-successor-cut-off": Planted(
        "8",
        "a cancel is not brought back though the one that does its work is cut off",
        "wheel/accepting.py",
        "(known.k, lowest.get(partition))",
        "(known.k,)",
        test="unit/test_accepting.py::test_a_cancel_from_behind_a_cut_meets_nothing_new",
    ),
    "cancel-gone-before-its-timers": Planted(
        "9",
        "a segment of the cancel log is unlinked while a log has what it has left out",
        "wheel/data_directory.py",
        "now) < self.state.gc_hour:",
        "now):",
        test=ON_DISK + "test_what_is_over_is_collected",
    ),
    "cancel-later-ones": Planted(
        "2",
        "a cancel also meets timers that come behind it",
        "wheel/tombstones.py",
        "met[rows] = origin[rows] < below[place[len(mine) :]]",
        "met[rows] = below[place[len(mine) :]] > 0",
    ),
    "cancel-anywhere": Planted(
        "2",
        "a cancel meets timers of every partition",
        "wheel/tombstones.py",
        "id_hash << _PARTITION_BITS | partition",
        "id_hash << _PARTITION_BITS",
        test=PAIRS,
    ),
    "cancel-by-hash": Planted(
        "2",
        "the hash of an id is taken for the id",
        "wheel/tombstones.py",
        "same_id = np.asarray(encoded.indices, np.int64)",
        "same_id = 0 * np.asarray(encoded.indices, np.int64)",
        test=CASES + "test_ids_with_the_same_hash_are_told_apart",
    ),
    "cancel-collected-early": Planted(
        "8",
        "a segment of the cancel log is unlinked though a cancel in it is live",
        CANCELLING,
        "min([*later, *unread, self._swept.hour])",
        "min([*unread, _NEVER])",
        test=ON_DISK + "test_a_segment_with_a_live_cancel_stays",
    ),
    "cancel-segment-given-up": Planted(
        "8",
        "a batch writes to a segment that has been given up meanwhile",
        "wheel/engine.py",
        "if any(hour < gone for hour in written):",
        "if not segments:",
        test=CASES + "test_a_segment_that_goes_while_a_batch_is_written_takes_nothing_along",
    ),
}
