"""Checks that the simulation finds faults: plants them one at a time in a copy of the code.

    python -P tests/simulation/planted.py [--seeds 300] [name …]

Prints a line per fault: its description, and the seed or the test that found it. Faults with a
`test` show too rarely in random histories, or never. `make crash-matrix` searches for all of them.

Not planted, because a second line of defence makes them harmless:

    loss of topic names undetected by dequeue    ingest detects it at its start, and recovers
    loss of an hour's files undetected           their first reader detects it
    close page of the state file, not of the     either is exact: rows below its C are read again,
    durable checkpoint, after a loss of power    and dequeue waits for them
    descriptors kept over a recovery             dequeue reads no hour before the files are whole,
                                                 and decides on the next recovery in a new start
    files not unlinked if none is kept           the engine truncates them to nothing at its start
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2]))  # last: it has a folder called `wheel`
from tests.simulation.planted_cancels import CANCELS
from tests.simulation.planted_far_slots import FAR_SLOTS
from tests.simulation.planted_held import HELD
from tests.simulation.planted_keeps import KEEPS
from tests.simulation.planted_letters import LETTERS
from tests.simulation.planted_policies import POLICIES
from tests.simulation.planted_reads import READS
from tests.simulation.planted_recurring import RECURRING
from tests.simulation.planted_resharding import RESHARDING
from tests.simulation.planted_retries import RETRIES
from tests.simulation.planted_settings import SETTINGS
from tests.simulation.planting import Planted, found

PLANTED = {
    "slot-early": Planted(
        "1",
        "a slot is closed one slot early",
        "wheel/slots.py",
        "    return now_ms // precision_ms\n",
        "    return now_ms // precision_ms + 1\n",
    ),
    "slot-floor": Planted(
        "1",
        "the slot of a due time is rounded down",
        "wheel/slots.py",
        "return -(-due_ms // precision_ms)",
        "return due_ms // precision_ms",
    ),
    "no-guard": Planted(
        "1",
        "slots are closed while the host's clock is ahead of the brokers'",
        "wheel/dequeue/clock_guard.py",
        "        return None if self.blocks_closing else now_ms\n",
        "        return now_ms\n",
    ),
    "guard-by-host-time": Planted(
        "1",
        "the brokers' clock is followed by the host's, not by boottime",
        "wheel/dequeue/clock_guard.py",
        "        self._clock = clock\n",
        "        self._clock = clock\n"
        "        vars(self)['_clock'] = type('', (), {'now_ms': clock.now_ms})()\n"
        "        self._clock.boottime_ms = clock.now_ms\n",
    ),
    "floor-back": Planted(
        "7",
        "the floor follows a clock that is set back",
        "wheel/dequeue/loop.py",
        "        if floor <= close.floor:\n",
        "        if floor == close.floor:\n",
    ),
    "waits-though-due": Planted(
        "1",
        "the closing of a slot waits although the slot has timers",
        "wheel/dequeue/loop.py",
        "            and self._directory.timeline.is_empty(closed, floor)\n",
        "",
        test="unit/wheel/dequeue/test_loop.py::test_empty_slots_are_closed_together",
    ),
    "waits-though-committed": Planted(
        "9",
        "the closing of a slot waits although C would rise: standby and replies wait, too",
        "wheel/dequeue/loop.py",
        "            and state.commits == self._closed_at_commit\n",
        "",
        test="unit/wheel/dequeue/test_loop.py::test_a_commit_is_closed_at_the_next_slot",
    ),
    "not-before-ignored": Planted(
        "1",
        "a parked copy's slot is that of its due time",
        "wheel/roll_rule.py",
        "leaves_ms = np.maximum(np.where(rolled, instants, batch.due_ms), parked_ms)",
        "leaves_ms = np.where(rolled, instants, batch.due_ms)",
    ),
    "parked-beyond-window": Planted(
        "bytes",
        "a parked copy may leave after the window",
        "wheel/roll_rule.py",
        "np.minimum(batch.not_before_ms, batch.timestamp_ms + window_ms)",
        "batch.not_before_ms",
        test="unit/wheel/dequeue/test_parking.py::test_a_slot_is_that_of_the_later_of_due_and_not_before",
    ),
    "parked-due": Planted(
        "bytes",
        "a parked copy is due when it may leave",
        "wheel/dequeue/requeue.py",
        "    headers, count = _headers(deliveries, deliveries.roll_times)\n",
        "    later = replace(deliveries, due_ms=not_before_ms)\n"
        "    headers, count = _headers(later, deliveries.roll_times)\n",
    ),
    "parked-origin": Planted(
        "bytes",
        "copies name no origin but the timer's own successor",
        "wheel/dequeue/requeue.py",
        "        deliveries.origin_offset,\n",
        "        deliveries.origin_offset + 1,\n",
    ),
    "parked-retries": Planted(
        "bytes",
        "a parked copy forgets how often it was parked",
        "wheel/dequeue/requeue.py",
        "deliveries.retries + 1",
        "deliveries.retries * 0 + 1",
    ),
    "parked-needlessly": Planted(
        "6",
        "timers of all partitions of a topic are parked if one takes no writes",
        "wheel/dequeue/partitioner.py",
        "        for number in targets[topic].unavailable\n",
        "        for number in (targets[topic].unavailable and range(4))\n",
    ),
    "not-parked": Planted(
        "6",
        "nothing is parked",
        "wheel/dequeue/fate.py",
        "    waits = (waits | closed) & (reason == Reason.NONE)\n",
        "    waits &= reason == Reason.NONE\n",
        test="unit/wheel/dequeue/test_parking.py::test_only_what_goes_to_a_partition_without_writes_is_parked",
    ),
    "no-redo": Planted(
        "2",
        "a half-applied batch is not redone",
        "wheel/storage/data_directory.py",
        "        self.append_runs(Runs.joined(batch), commit.batch)\n",
        "",
        timeline="wheel",
        seed=38,
    ),
    "closed-meanwhile": Planted(
        "2, 7",
        "rows whose slot was closed meanwhile stay there",
        "wheel/append/staged_batch.py",
        "if not len(written.slot) or written.slot[0] > floor:",
        "if floor:",
        seed=48,
    ),
    "standby-above-c": Planted(
        "2, 3",
        "a standby takes rows that its owner may still place elsewhere",
        "wheel/append/placement.py",
        "return {p: max(min(end, c.get(p, 0)), before.get(p, 0)) for p, end in ends.items()}",
        "return ends if c is not None else {}",
    ),
    "closed-slot": Planted(
        "7",
        "what comes late goes to its slot, closed or not",
        "wheel/append/placement.py",
        "np.bool_), np.maximum(requested, self.close.floor + 1)",
        "np.bool_), requested",
    ),
    "unlinked": Planted(
        "2",
        "hours are unlinked an hour early",
        "wheel/storage/garbage_collection.py",
        "hour = hour_of(delivered_slot + 1, directory.config.precision_ms)",
        "hour = hour_of(delivered_slot + 1, directory.config.precision_ms) + 1",
        seed=1,
    ),
    "checkpoint-ahead": Planted(
        "2",
        "a Spark checkpoint ahead of the marks is believed",
        "streaming/spark_checkpoint.py",
        "if mark is not None and offset > mark:",
        "if mark is not None and offset > mark + 10**9:",
    ),
    "marks-without-rows": Planted(
        "2",
        "an uncommitted batch moves the marks: they are written before its rows are placed",
        "wheel/append/engine.py",
        "            self._directory.append_runs(staged_rows.runs, commit.batch)\n",
        "            self._directory.state.mark_applied()\n"
        "            self._directory.append_runs(staged_rows.runs, commit.batch)\n",
        timeline="wheel",
        seed=38,
    ),
    "doubt": Planted(
        "3",
        "a transaction in doubt is always tried again",
        "wheel/doubt_resolution.py",
        "if _value(found) == attempted.encode():",
        "if False:",
    ),
    "doubt-committed": Planted(
        "2",
        "a transaction in doubt is always taken for committed",
        "wheel/doubt_resolution.py",
        "            if _value(found) == attempted.encode():\n                outcome",
        "            if True:\n                outcome",
    ),
    "doubt-anothers": Planted(
        "3",
        "the position of another writer is taken for an abort, and written over",
        "wheel/doubt_resolution.py",
        "elif _value(found) == _value(before):",
        "else:",
        test="unit/wheel/test_doubt_resolution.py::test_what_another_has_committed_is_no_abort",
    ),
    "half-slot": Planted(
        "3",
        "what of a half-delivered slot is out is forgotten",
        "wheel/dequeue/pipeline.py",
        "slots.below.get(p, 0)",
        "0",
    ),
    "half-slot-of-range": Planted(
        "3",
        "D forgets the chunks of the slot before this one",
        "wheel/dequeue/position.py",
        "before, rows = (self.half_below, self.half_rows) if is_same else ({}, {})",
        "before, rows = {}, self.half_rows if is_same else {}",
    ),
    "apply-twice": Planted(
        "3",
        "a batch that is applied again is linked again",
        "wheel/storage/timelines/timer_wheel.py",
        "self._put(runs.where(~done), magic)",
        "self._put(runs, magic)",
        test="unit/wheel/storage/timelines/test_timer_wheel.py::test_doing_a_batch_again_changes_nothing",
    ),
    "replay": Planted(
        "3",
        "a batch that Spark repeats is taken again",
        "streaming/batch_taker.py",
        "fresh = _rows_from(batch, marks_before)",
        "fresh = np.arange(len(batch))",
    ),
    "order-of-closed": Planted(
        "4",
        "rows moved to the earliest open slot do not take those along that are there",
        "wheel/append/staged_batch.py",
        'count = int(np.searchsorted(written.slot, earliest, "right"))',
        'count = int(np.searchsorted(written.slot, floor, "right"))',
        test="unit/wheel/append/test_engine.py::test_rows_of_slots_closed_meanwhile_join_those_of_the_earliest_open_one",
    ),
    "order-of-batch": Planted(
        "4",
        "rows of one slot are written in reverse",
        "wheel/append/placement.py",
        "order: Int64 = keys % count",
        "order: Int64 = np.lexsort((-np.arange(count), slots))",
    ),
    "chunk-bytes": Planted(
        "5",
        "chunks are not bounded in bytes",
        "wheel/dequeue/slot_scan.py",
        "int(min(by_bytes, by_rows))",
        "int(by_rows)",
    ),
    "chunk-records": Planted(
        "5",
        "chunks are not bounded in records",
        "wheel/dequeue/slot_scan.py",
        "min(self._next + records_max, int(self._ends[-1]))",
        "int(self._ends[-1])",
        test="unit/wheel/dequeue/test_loop.py::test_no_more_records_of_a_slot_are_read_at_once_than_asked_for",
    ),
    "roll-origin": Planted(
        "bytes",
        "a rolled copy forgets where its first copy lay",
        "schemas/wire/record_codec.py",
        "framed(decimals(offset))",
        "framed(decimals(offset * 0))",
    ),
    "topic-ids": Planted(
        "bytes",
        "two timer topics get the same number",
        "wheel/storage/topic_numbers.py",
        "                self._ids[name] = len(self._names)\n",
        "                self._ids[name] = min(len(self._names), 2)\n",
        test="unit/wheel/storage/test_topic_numbers.py::test_names_keep_their_numbers",
    ),
    "target-name": Planted(
        "bytes",
        "messages of a chunk go to the first one's target",
        "wheel/dequeue/decode.py",
        "        target=target.astype(np.int32),\n",
        "        target=0 * target.astype(np.int32),\n",
    ),
    "done-rows": Planted(
        "3",
        "rows that come again are put back, delivered or not",
        "wheel/append/placement.py",
        "return ~done, np.maximum(",
        "return done | True, np.maximum(",
    ),
    "put-above-floor": Planted(
        "4",
        "rows that come again are put above the floor",
        "wheel/append/placement.py",
        "np.where(again, r, close.floor) + 1",
        "close.floor + 1",
        test="unit/wheel/recovery/test_rebuild.py::"
        "test_a_directory_that_is_lost_again_and_again_is_read_again",
    ),
    "put-below": Planted(
        "2",
        "new rows are put into closed slots, too",
        "wheel/append/placement.py",
        "np.where(again, r, close.floor) + 1",
        "r + 1",
    ),
    "no-waiting": Planted(
        "2",
        "dequeue goes on before everything has come again",
        "wheel/dequeue/loop.py",
        "if self.position.close.missing(commit.marks):",
        "if False:",
    ),
    "not-told": Planted(
        "3",
        "a running ingest goes on in files that are to be recovered",
        "wheel/storage/data_directory.py",
        "            if self.state.needs_recovery:\n                raise",
        "            if False:\n                raise",
        seed=459,
    ),
    "durable-kept": Planted(
        "2",
        "the durable checkpoint outlives the files that it names",
        "wheel/recovery/rebuild.py",
        "    directory.fs.remove(directory.path / durable_checkpoint.FILE_NAME)\n",
        "",
        test="unit/wheel/recovery/test_rebuild.py::test_a_recovery_that_was_killed_is_done_again",
    ),
    "wheel-kept-anew": Planted(
        "2",
        "a wheel is not emptied though its logs go",
        "wheel/recovery/rebuild.py",
        "    directory.timeline.clear(batch)\n    state.write_commit(Commit",
        "    state.write_commit(Commit",
    ),
    "wheel-kept": Planted(
        "2",
        "a wheel is rebuilt on what was in it",
        "wheel/recovery/rebuild.py",
        "        directory.timeline.clear(batch)\n        for hour",
        "        for hour",
        test="unit/wheel/recovery/test_rebuild.py::test_entries_of_batches_that_are_not_kept_lead_nowhere",
    ),
    "surviving-marks": Planted(
        "2",
        "after a loss of power the marks are the commit page's",
        "wheel/recovery/rebuild.py",
        "            batch=batch,\n",
        "            batch=batch,\n            marks=state.commit().marks,\n",
        seed=6,
    ),
    "batch-number": Planted(
        "2",
        "a rebuilt wheel gets the number of a batch that was",
        "wheel/recovery/rebuild.py",
        "return max(kept, directory.state.commit().batch) + 1",
        "return kept",
        test="unit/wheel/recovery/test_rebuild.py::test_a_damaged_commit_page_brings_back_no_batch_that_was_not_kept",
    ),
    "foreign-incarnation": Planted(
        "2",
        "files are kept that have parted from the progress",
        "checkpoints/local_state.py",
        "return progress.owner == local.uuid and progress.incarnation in local.incarnations",
        "return progress.owner == local.uuid",
        test="unit/wheel/recovery/test_rebuild.py::test_two_copies_that_have_parted_are_told_apart",
    ),
    "divided-in-reverse": Planted(
        "4",
        "the parts of a chunk that ran out of time leave in reverse order",
        "wheel/dequeue/pipeline.py",
        "for first, end in reversed(parts)",
        "for first, end in parts",
    ),
    "divided-whole": Planted(
        "3",
        "a part of a chunk that ran out of time is committed as the whole",
        "wheel/dequeue/decode.py",
        "self.chunk.part(first, end),",
        "self.chunk,",
    ),
    "no-patience": Planted(
        "ownership",
        "an empty directory follows any owner at once",
        "checkpoints/ownership.py",
        "if may_follow and silent_ms > take_over_after_ms:",
        "if may_follow:",
    ),
    "same-incarnation": Planted(
        "2",
        "a start draws no incarnation of its own",
        "wheel/recovery/startup.py",
        "directory.fs.random_bits(62)",
        "committed.incarnation",
    ),
    "no-claim": Planted(
        "refused",
        "an incarnation is published before it is known locally",
        "wheel/recovery/startup.py",
        "        state.claim(*claimed)\n",
        "",
    ),
    "not-fenced": Planted(
        "fenced",
        "the former owner does not know that it was followed",
        "wheel/dequeue/committer.py",
        "        if (seen.owner, seen.incarnation) !=",
        "        if False and (seen.owner, seen.incarnation) !=",
    ),
    "claim-not-awaited": Planted(
        "2",
        "an owner takes its transactional id back at once from the one that takes over",
        "wheel/dequeue/committer.py",
        "            self._await_claim()\n",
        "            pass\n",
        test="unit/wheel/dequeue/test_take_over.py::"
        "test_an_owner_waits_for_the_claim_of_the_instance_that_takes_over",
    ),
    "power-forgotten": Planted(
        "2",
        "the boot id is overwritten before the loss of power is noted",
        "checkpoints/state_file.py",
        "        self._words[FieldIndex.DAMAGE] = self.damage\n",
        "",
        test="unit/wheel/recovery/test_rebuild.py::test_after_a_loss_of_power_the_durable_checkpoint_is_kept",
    ),
    "power-survived": Planted(
        "2",
        "after a loss of power everything is kept",
        "wheel/recovery/kept_files.py",
        "keep = Keep.DURABLE if local.durable and local.durable.close else Keep.NOTHING",
        "keep = Keep.ALL",
    ),
    "not-verified": Planted(
        "refused",
        "what was kept is not verified",
        "wheel/recovery/rebuild.py",
        "        findings = _verify(directory, hours, segments, r)",
        "        findings = []",
        test="unit/wheel/recovery/test_rebuild.py::test_what_cannot_be_kept_is_read_again",
    ),
    "half-slot-c": Planted(
        "3",
        "the close page of a lost directory has no C of the half slot",
        "wheel/recovery/kept_files.py",
        "marks = {p: part.closed_mark for p, part in progress.partitions.items()}",
        "marks = marks_before",
    ),
    "half-slot-open": Planted(
        "3",
        "the half-delivered slot is open after a loss",
        "wheel/recovery/kept_files.py",
        "marks_before, progress.closed_slot, marks)",
        "marks_before, progress.delivered_slot, marks)",
        test="unit/wheel/recovery/test_startup.py::test_files_older_than_the_progress_are_kept_and_completed",
    ),
    "half-slot-forgotten": Planted(
        "3",
        "D is forgotten by a start",
        "wheel/recovery/kept_files.py",
        "keep, close, slot, half)",
        "keep, close, slot, {})",
    ),
    "any-close-page": Planted(
        "3",
        "a close page is kept though the progress does not follow from it",
        "wheel/recovery/kept_files.py",
        "part.half_mark is None or part.closed_slot > base.lower for",
        "True for",
        test="unit/wheel/recovery/test_startup.py::test_files_that_cannot_have_led_to_the_progress_are_not_kept",
    ),
    "parted-marks": Planted(
        "2",
        "what a copy has taken apart from the owner is kept",
        "wheel/recovery/kept_files.py",
        "return all(mark <= (later.get(p) or 0) for p, mark in marks.items())",
        "return True",
        test="unit/wheel/recovery/test_rebuild.py::test_a_copy_that_took_rows_under_a_claim_that_nobody_saw",
    ),
    "range-start": Planted(
        "3",
        "delivery goes on below the range that was kept",
        "wheel/recovery/kept_files.py",
        "close, slot = base, max(slot, base.lower)",
        "close, slot = base, slot",
        test="unit/wheel/recovery/test_startup.py::test_after_a_kill_delivery_goes_on_in_the_closed_range",
    ),
    "gc-hour": Planted(
        "check",
        "gc_hour is not set anew by a recovery that keeps nothing",
        "wheel/recovery/rebuild.py",
        "    state.live.set_gc_hour(hour_of(r + 1, directory.config.precision_ms))\n",
        "",
        test="unit/wheel/recovery/test_rebuild.py::test_hours_that_were_given_up_by_damage_take_timers_again",
    ),
    "pending-keep": Planted(
        "2",
        "a recovery that was not finished may keep more the next time",
        "wheel/recovery/kept_files.py",
        "return min(keep, local.pending.keep) if local.pending else keep",
        "return keep",
        test="unit/wheel/recovery/test_startup.py::test_what_was_decided_to_be_given_up_stays_given_up",
    ),
    "undone": Planted(
        "2",
        "a recovery that was not carried out is forgotten",
        "wheel/recovery/kept_files.py",
        "whole = close == local.close and not local.undone",
        "whole = close == local.close",
        test="unit/wheel/recovery/test_startup.py::test_after_a_kill_delivery_goes_on_in_the_closed_range",
    ),
    "generation": Planted(
        "2",
        "a recovery without damage is told to nobody",
        "checkpoints/state_file.py",
        "return self.damage is not Damage.NONE or self.generation > self.recovered",
        "return self.damage is not Damage.NONE",
    ),
    "recovered-early": Planted(
        "2",
        "the files are whole before the commit page says so",
        "wheel/recovery/rebuild.py",
        "    records = _rebuild(directory, kept, r) if kept else None\n",
        "    state.set_recovered(record.generation)\n"
        "    records = _rebuild(directory, kept, r) if kept else None\n",
        test="unit/wheel/recovery/test_rebuild.py::test_a_recovery_that_was_killed_is_done_again",
    ),
    "read-from-c": Planted(
        "2",
        "a lost directory is read again from C on",
        "wheel/recovery/first_offsets.py",
        "                offsets[part.delivered_slot].get(p, part.delivered_mark),\n",
        "",
    ),
    "read-from-r": Planted(
        "2",
        "a lost directory is read again from the time of R on",
        "wheel/recovery/first_offsets.py",
        "slot * config.precision_ms - reach_ms",
        "slot * config.precision_ms",
        seed=32,
    ),
    "directory-entry": Planted(
        "refused",
        "the directory's own entry is not synced",
        "checkpoints/fs.py",
        "            self.sync_directory(path.parent)\n\n    def sync_path",
        "            pass\n\n    def sync_path",
    ),
    **SETTINGS,
    **POLICIES,
    **HELD,
    **LETTERS,
    **FAR_SLOTS,
    **CANCELS,
    **KEEPS,
    **RESHARDING,
    **READS,
    **RECURRING,
    **RETRIES,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=300)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(PLANTED)}; none: all")
    args = parser.parse_args()
    missed = 0
    for name in args.names or PLANTED:
        planted = PLANTED[name]
        answer = found(planted, args.seeds)
        missed += answer.startswith(("NOT", "broken"))
        print(f"{name} ({planted.breaks}: {planted.what}): {answer}", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
