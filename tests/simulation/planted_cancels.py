"""Faults of planted.py in how cancels are resolved, marked, written again and replied to.

Not planted, because it changes nothing:

    a standby decides on cancels as its owner does    it takes only what lies below C, and all of
                                                      that counts as read again
"""

from __future__ import annotations

from tests.simulation.planting import Planted

ACCEPTING = "wheel/admin/accept_loss.py"
ANSWERS = "wheel/dequeue/cancel_reply_rows.py"
DIRECTORY = "wheel/storage/data_directory.py"
ENGINE = "wheel/append/engine.py"
INDEX = "wheel/append/id_index.py"
LOOKUP = "wheel/append/cancel_lookup.py"
QUEUES = "wheel/dequeue/open_cancels.py"
REPLYING = "wheel/dequeue/cancel_replies.py"
RESOLVER = "wheel/append/cancel_files.py"
RESOLVING = "wheel/append/cancel_matches.py"
STARTING = "wheel/recovery/startup.py"
CASES = "unit/wheel/append/test_cancels.py::"
LOOKUPS = "unit/wheel/append/test_cancel_lookups.py::"
AGAIN = "unit/wheel/append/test_cancels_again.py::"
ON_DISK = "unit/wheel/append/test_cancels_on_disk.py::"
RULES = "property/test_resolving.py::"
LOSSES = "unit/wheel/admin/test_accept_loss.py::"
_ARGUMENTS = "cancels, rows.batch, candidates, staged, staged_rows"

CANCELS = {
    "cancel-floor-before-lock": Planted(
        "8",
        "cancels reach as far as was closed before the lookup",
        ENGINE,
        f" = self._cancels.resolve({_ARGUMENTS})\n",
        " = {}\n"
        "            state = self._directory.state\n"
        "            now, state.close = state.close, lambda: policy.close  # type: ignore\n"
        f"            cancelled |= self._cancels.resolve({_ARGUMENTS})\n"
        "            state.close = now  # type: ignore\n",
        test=CASES + "test_a_cancel_that_comes_between_lookup_and_lock_sees_what_was_closed",
    ),
    "cancel-again-by-floor": Planted(
        "8",
        "a cancel that is read again reaches no slot that is closed",
        RESOLVER,
        "bound[again] = np.array(r, np.int64)[cancels.partition][again]",
        "assert r",
        test=AGAIN + "test_a_cancel_that_is_read_again_reaches_what_was_closed",
    ),
    "cancel-half-of-done": Planted(
        "8",
        "what comes again after a loss cancels nothing",
        ENGINE,
        "cancels = batch.take(np.flatnonzero(batch.cancels | batch.keeps))",
        "cancels = batch.take(np.flatnonzero(batch.cancels & isinstance(policy, Owner)))",
        seed=0,
    ),
    "cancel-marks-not-redone": Planted(
        "8",
        "a kill between the commit page and the marks loses these",
        DIRECTORY,
        "            self.mark_cancelled(hour, lengths, lengths.cancelled_from)\n",
        "            assert hour is not None, lengths\n",
        test=AGAIN + "test_a_kill_before_the_marks_loses_none",
    ),
    "cancel-marks-lost": Planted(
        "8",
        "marks that a loss of power has taken are not set again",
        "wheel/recovery/rebuild.py",
        "            directory.restore_cancelled(hour, lengths)\n",
        "",
        test=AGAIN + "test_after_a_loss_of_power_the_marks_are_those_of_what_was_kept",
    ),
    "cancel-marks-of-no-batch": Planted(
        "2",
        "marks stay of which a loss of power has taken the batch",
        DIRECTORY,
        "            self.log.remove_marks(hour, lengths.log_bytes)",
        "            pass",
        test=AGAIN + "test_after_a_loss_of_power_the_marks_are_those_of_what_was_kept",
    ),
    "cancel-list-not-synced": Planted(
        "check",
        "durable checkpoints name lists of cancelled records that are not synced",
        "runtime/checkpointer.py",
        "_FOLDERS = (timer_log.FOLDER, message_store.FOLDER, cancelled_records.FOLDER)",
        "_FOLDERS = (timer_log.FOLDER, message_store.FOLDER)",
        test=AGAIN + "test_a_durable_checkpoint_names_only_files_that_are_synced",
    ),
    "cancelled-leave": Planted(
        "8",
        "what is cancelled is delivered",
        "wheel/dequeue/pipeline.py",
        "leaves = pending & ~cancelled",
        "leaves = pending",
        seed=0,
    ),
    "cancel-in-flight-told": Planted(
        "8",
        "a user's cancel is replied to though a copy may be in flight",
        RESOLVING,
        "undecided = offset <= until[group]",
        "undecided = offset < until[group] * 0",
        seed=30,
    ),
    "chase-in-flight-told": Planted(
        "8",
        "a chase is replied to though a copy may be in flight",
        RESOLVING,
        "undecided[place[~is_cancelled & ~is_out]] = True",
        "undecided[place[:0]] = True",
        test=RULES + "test_all_at_once_is_one_at_a_time",
    ),
    "cancel-again-told": Planted(
        "9",
        "a cancel that is read again is decided on at once",
        RESOLVER,
        "again | (cancels.offset < blind) | candidates",
        "(cancels.offset < blind) | candidates",
        test=AGAIN + "test_a_standby_decides_on_no_cancel",
    ),
    "cancel-blind-told": Planted(
        "8",
        "a cancel is decided on though copies may be in flight that no log shows",
        RESOLVER,
        "again | (cancels.offset < blind) | candidates",
        "again | candidates",
        test=CASES + "test_until_kafka_has_said_where_partitions_end_every_cancel_is_chased",
    ),
    "cancel-blind-delivered": Planted(
        "9",
        "the log decides of what it may not have in full",
        RESOLVING,
        "    outcome[cancels.request[rows] < cancels.blind[rows]] = UNKNOWN\n",
        "",
        test=RULES + "test_all_at_once_is_one_at_a_time",
    ),
    "chase-without-found": Planted(
        "9",
        "a chase does not say that something was cancelled",
        ANSWERS,
        "np.where(outcome == CHASE_FOUND, CHASE_FLAG_FOUND, 0)",
        "np.where(outcome == CHASE_FOUND, 0, 0)",
        test=CASES + "test_of_two_timers_of_an_id_one_may_be_in_flight",
    ),
    "chase-of-itself": Planted(
        "bytes",
        "a chase is a request of its own",
        ANSWERS,
        'offset = prefix["origin_offset"].astype(np.int64)\n    source',
        'offset = prefix["source_offset"].astype(np.int64)\n    source',
        seed=0,
    ),
    "chase-first-offset": Planted(
        "8",
        "a chase cancels timers that came behind its request",
        RESOLVING,
        "_first_above(request, timers.first_offset, at, end)",
        "_first_above(request * 0 + NO_CANCEL, timers.first_offset, at, end)",
        seed=2,
    ),
    "chase-slot-closed": Planted(
        "bytes",
        "a chase carries the slot that was closed last, and not the one delivered",
        REPLYING,
        "partitions[p].delivered_slot if p in partitions else 0 for p in sources",
        "self._directory.state.close().floor for _ in sources",
        seed=0,
    ),
    "chase-slot-is-out": Planted(
        "8",
        "what was closed when a chase was written counts as out",
        RESOLVING,
        "is_out = timers.slot[timer] <= cancels.chase_slot[cancel]",
        "is_out = timers.slot[timer] <= cancels.chase_slot[cancel] + 2",
        test=RULES + "test_all_at_once_is_one_at_a_time",
    ),
    "cancel-later-ones": Planted(
        "8",
        "a cancel also matches copies that lie behind it",
        RESOLVING,
        "matches = timers.offset[timer] < cancels.offset[cancel]",
        "matches = timers.offset[timer] >= 0",
        test=RULES + "test_all_at_once_is_one_at_a_time",
    ),
    "cancel-named-ignored": Planted(
        "2",
        "a cancel that names a timer is for all of its id",
        RESOLVING,
        "group = np.append(timers.group, cancels.group) * len(first) + first",
        "group = np.append(timers.group, cancels.group) + 0 * first",
        test=RULES + "test_all_at_once_is_one_at_a_time",
    ),
    "cancel-same-batch": Planted(
        "9",
        "a cancel does not match timers of its own batch",
        LOOKUP,
        "np.isin(self._hashes(batch), wanted.hashes) & ~batch.rejected)",
        "np.isin(self._hashes(batch), wanted.hashes) & (batch.offset < 0))",
        seed=0,
    ),
    "cancel-anywhere": Planted(
        "2",
        "a cancel matches timers of every partition",
        LOOKUP,
        "[hash(each) for each in partitions]",
        "[0 * hash(each) for each in partitions]",
        test=LOOKUPS + "test_a_timer_of_another_partition_with_an_equal_hash_stays_as_it_is",
    ),
    "cancel-by-hash": Planted(
        "2",
        "the hash of an id is taken for the id",
        LOOKUP,
        "return of_id ^ of_partition[partition]",
        "return 0 * of_id ^ of_partition[partition]",
        test=CASES + "test_ids_with_the_same_hash_are_told_apart",
    ),
    "cancel-index-forgets": Planted(
        "9",
        "the index of ids forgets what is cancelled, though it is the newest of its id",
        LOOKUP,
        "by_last = (is_over & ~last_of_group)[last_copy][timer]",
        "by_last = is_over[last_copy][timer]",
        test="unit/wheel/append/test_id_index.py::"
        "test_the_newest_timer_of_an_id_is_found_though_it_is_cancelled",
    ),
    "cancel-passes-over-known": Planted(
        "9",
        "a timer that a lookup has read once is found by no later cancel",
        INDEX,
        "(first_offset[rows] < self.below[index])",
        "(first_offset[rows] < np.minimum(self.below[index], 0))",
        test="unit/wheel/append/test_id_index.py::"
        "test_the_newest_timer_of_an_id_is_found_though_it_is_cancelled",
    ),
    "cancel-reads-others": Planted(
        "9",
        "timers whose id has the hash of another one are looked up again by each of its chases",
        INDEX,
        "rows, index = rows[is_one], index[is_one]",
        "rows, index = rows, np.minimum(index, len(self.id_keys) - 1)",
        test=LOOKUPS + "test_chases_end_among_other_ids_of_the_same_hash",
    ),
    "cancel-trusts-heads": Planted(
        "9",
        "a damaged id decides about a cancel",
        "wheel/storage/message_store.py",
        "self._require(hour, records, head_checks(",
        "self._require(hour, records, 0 * check == 0 * head_checks(",
        test="unit/wheel/storage/test_message_store.py::"
        "test_ids_are_checked_and_read_without_the_rest",
    ),
    "cancel-not-added": Planted(
        "9",
        "a timer that the index of ids does not have yet is found by no cancel",
        INDEX,
        "[*self._runs, *self._scanned(wanted.hashes, commit)]",
        "[*self._runs]",
        test="unit/wheel/append/test_id_index.py::"
        "test_a_lookup_adds_a_bounded_part_of_many_records",
    ),
    "cancel-known-of-others": Planted(
        "9",
        "the first offsets of timers are mixed up where one is settled",
        "wheel/append/id_runs.py",
        "self._columns[:, places] = moved[:, order]",
        "self._columns[:2, places] = moved[:2, order]",
        test="unit/wheel/append/test_id_index.py::"
        "test_what_is_known_to_match_no_cancel_is_not_found_again",
    ),
    "cancel-since": Planted(
        "9",
        "what lies in slots of before a recovery proves that it was delivered there",
        STARTING,
        "CancelBounds.blind_of(decision.delivered_slot, committed.partitions)",
        "CancelBounds.blind_of(-(2**62), committed.partitions)",
        test=AGAIN + "test_after_a_loss_slots_that_were_delivered_prove_nothing",
    ),
    "blind-not-at-a-start": Planted(
        "8",
        "a start does not say that copies may be in flight that no log shows",
        STARTING,
        "CancelBounds.blind_of(decision.delivered_slot, committed.partitions)",
        "CancelBounds(decision.delivered_slot, {})",
        test=CASES + "test_after_a_loss_a_cancel_in_flight_is_not_told_as_delivered",
    ),
    "blind-not-for-a-backup": Planted(
        "8",
        "a start on a backup does not say that rows have left since, and where their copies are",
        STARTING,
        'decision.case != "intact" or local.mirror != committed',
        'decision.case != "intact"',
        test=AGAIN + "test_a_backup_of_the_same_closed_range_does_not_know_what_has_left_since",
    ),
    "blind-not-before-collecting": Planted(
        "8",
        "hours go, and nobody hears that copies may be in flight that no log shows",
        "wheel/storage/garbage_collection.py",
        "blind.write_or_remove(directory.path, directory.fs)",
        "assert since is not None",
        test=ON_DISK + "test_before_logs_go_copies_may_be_in_flight_again",
    ),
    "blind-unasked": Planted(
        "8",
        "copies are taken for known before Kafka has said where partitions end",
        "wheel/dequeue/partition_ends.py",
        "ends = self._log_ends.of(missing)",
        "ends = dict.fromkeys(missing, 0)",
        test=ON_DISK + "test_before_logs_go_copies_may_be_in_flight_again",
    ),
    "answer-not-told": Planted(
        "refused",
        "a reply leaves, and the progress does not say so",
        "wheel/dequeue/loop.py",
        "progress = self._progress(self.position, replies.replied_below)",
        "progress = self._progress(self.position)",
        seed=0,
    ),
    "answer-again": Planted(
        "9",
        "a start does not know what was replied to before it",
        "wheel/dequeue/loop.py",
        "{p: part.replied_below for p, part in started.committed.partitions.items()},",
        "dict.fromkeys(started.committed.partitions, 0),",
        seed=0,
    ),
    "answer-ahead": Planted(
        "9",
        "a reply in a partition that is ahead of its shard is not told to the progress",
        "checkpoints/progress.py",
        "part = replace(part, replied_below=replied)",
        "part = replace(part, replied_below=replied) if part.delivered_slot == slot else part",
        test=CASES + "test_in_a_partition_that_is_ahead_a_cancel_is_replied_to_once",
    ),
    "answer-early": Planted(
        "9",
        "replies leave before a progress says that the cancel was there when slots were closed",
        REPLYING,
        "early = np.flatnonzero((offset >= np.array(c, np.int64)[source]) & ~over)",
        "early = np.flatnonzero((offset >= np.array(c, np.int64)[source]) & over)",
        seed=0,
    ),
    "answer-not-read-again": Planted(
        "9",
        "a cancel without a reply is not read again once nothing of its time is pending",
        "wheel/recovery/first_offsets.py",
        "                part.replied_below,\n            ),\n            epochs",
        "            ),\n            epochs",
        test=CASES + "test_a_cancel_without_a_reply_is_read_again_from_there",
    ),
    "answer-parked": Planted(
        "9",
        "a reply waits in the timer topic until the reply topic takes writes",
        "wheel/dequeue/fate.py",
        "    reason[closed & deliveries.answer] = Reason.TARGET_UNAVAILABLE\n",
        "",
        test="unit/wheel/dequeue/test_encoder.py::test_an_answer_waits_for_nothing_and_goes_nowhere_else",
    ),
    "answer-held-by-absent": Planted(
        "refused",
        "a reply whose topic does not exist is no dead letter",
        "wheel/dequeue/dead_letter_rows.py",
        "    bad = reason != Reason.NONE\n",
        "    bad = (reason != Reason.NONE) & ~deliveries.answer\n",
        test="unit/wheel/dequeue/test_encoder.py::test_an_answer_waits_for_nothing_and_goes_nowhere_else",
    ),
    "segments-gone-early": Planted(
        "9",
        "segments of the cancel log are unlinked before they are replied to",
        QUEUES,
        "hours = [runs[0].hour for runs in self._queues.values()]",
        "hours = list[int]()",
        test=ON_DISK + "test_a_segment_stays_until_all_in_it_is_replied_to",
    ),
    "cut-cancels-needed": Planted(
        "8",
        "a loss is accepted though pending timers are cancelled from behind the cut",
        ACCEPTING,
        "            _require_none_cancelled(directory, cuts, before)\n",
        "",
        test=LOSSES + "test_a_timer_is_not_brought_back_by_cutting_its_cancel_off",
    ),
    "cut-cancels-act": Planted(
        "9",
        "a cancel from behind a cut is replied to",
        ACCEPTING,
        "            _cut_off_cancels(directory, cuts, before, committed.assignment_epoch)\n",
        "",
        test=LOSSES + "test_what_a_cut_takes_away_is_known_to_be_lost",
    ),
    "cut-no-start": Planted(
        "9",
        "after a cut the log proves what has become of timers",
        ACCEPTING,
        "        CancelBounds.blind_of(close.floor, committed.partitions)"
        ".write(directory.path, directory.fs)\n",
        "",
        test=LOSSES + "test_what_a_cut_takes_away_is_known_to_be_lost",
    ),
    "cut-answers-stay": Planted(
        "9",
        "a cancel at an offset that was replied to before the cut gets no reply",
        ACCEPTING,
        "replied = min(before.replied_below, replied)",
        "replied = before.replied_below",
        seed=0,
    ),
    "cut-raises-c": Planted(
        "2",
        "what came late and lies before a cut counts as done",
        ACCEPTING,
        "mark = min(before.delivered_mark, mark)",
        "pass",
        test=LOSSES + "test_what_came_late_and_lies_before_a_cut_is_not_done",
    ),
    "cut-forgotten": Planted(
        "2",
        "after damage to the newest commit page the marks are those of before the cut",
        ACCEPTING,
        "for batch in (before.batch + 1, before.batch + 2):",
        "for batch in (before.batch + 1,):",
        test=LOSSES + "test_a_damaged_commit_page_brings_back_no_mark_from_behind_a_cut",
    ),
    "chase-before-copies": Planted(
        "no end",
        "chases leave before the rows of a transaction that was too slow",
        "wheel/dequeue/loop.py",
        "        if self._deliver(chunk):\n            self._reply()\n",
        "        self._deliver(chunk)\n        self._reply()\n",
        test="unit/wheel/append/test_cancels.py::"
        "test_a_chase_leaves_behind_the_copies_of_a_transaction_that_was_too_slow",
    ),
    "cut-timers-pending": Planted(
        "2",
        "a loss is accepted though timers are pending from behind the cut",
        ACCEPTING,
        "            _require_none_behind(directory, cuts)\n",
        "",
        test=LOSSES + "test_a_partition_that_was_cut_short_goes_on_at_its_end",
    ),
}
