"""Faults of planted.py in the linking of slots beyond the ring."""

from __future__ import annotations

from tests.simulation.planting import Planted

FAR_SLOTS_PY = "wheel/storage/far_slots.py"
FAR = "unit/wheel/storage/test_far_slots.py::"

FAR_SLOTS = {
    "far-not-linked": Planted(
        "2",
        "slots count as linked whose rows are not in the wheel",
        FAR_SLOTS_PY,
        "            directory.timeline.link(runs.where(runs.slot <= reach), commit.batch)\n",
        "",
        seed=2,
    ),
    "far-linked-at-once": Planted(
        "2",
        "a commit links rows beyond the ring, over slots that are not delivered",
        "wheel/storage/data_directory.py",
        "inside = (runs.slot > close.lower) & (runs.slot <= self.state.linked)",
        "inside = runs.slot > close.lower",
        seed=2,
    ),
    "far-delivered-unlinked": Planted(
        "2",
        "slots are delivered before they are linked",
        "wheel/dequeue/loop.py",
        "end = max(r, min(self.position.close.floor, self._directory.state.linked))",
        "end = self.position.close.floor",
        seed=2,
    ),
    "far-committed-meanwhile": Planted(
        "2",
        "rows committed while a range of slots was read are not linked",
        FAR_SLOTS_PY,
        "            slot_range.read_up_to(commit)\n",
        "",
        test=FAR + "test_rows_committed_while_a_stretch_is_read_are_linked_with_it",
    ),
    "far-empty-meanwhile": Planted(
        "2",
        "rows committed while no slot had any are not linked",
        FAR_SLOTS_PY,
        "                    if self.is_empty(after, commit):\n",
        "                    if True:\n",
        test=FAR + "test_a_row_committed_while_no_slot_has_one_is_linked",
    ),
    "far-linked-early": Planted(
        "2",
        "slots count as linked before their entries are written",
        FAR_SLOTS_PY,
        "            runs = slot_range.runs()\n",
        "            runs = slot_range.runs()\n            state.set_linked(slot_range.end)\n",
        test=FAR + "test_a_stretch_counts_as_linked_only_once_its_entries_are_written",
    ),
    "far-linked-twice": Planted(
        "3",
        "rows are linked beside those that a kill has left, not in their place",
        "wheel/storage/timelines/timer_wheel.py",
        "        fresh = runs.prev_pos == NO_POSITION\n",
        '        fresh = (runs.prev_pos == NO_POSITION) & (entries["time"] != runs.slot)\n',
        test="unit/wheel/storage/timelines/test_timer_wheel.py::test_a_batch_killed_at_any_store_is_finished_by_redo",
    ),
    "rocksdb-half-slot": Planted(
        "2",
        "the first slot of a scan ends where a read of keys ends",
        "wheel/storage/timelines/rocksdb_timeline.py",
        "if records > records_max and keys[:8] != keys[-KEY_BYTES : -KEY_BYTES + 8]:\n",
        "if records > records_max:\n",
        test="unit/wheel/storage/timelines/test_kinds.py::test_a_slot_with_more_runs_than_are_read_at_a_time_is_whole",
    ),
    "rocksdb-old-database": Planted(
        "2",
        "an interrupted batch goes into the database of before a rebuild",
        "wheel/storage/timelines/rocksdb_timeline.py",
        "        self._number = rocksdb_files.newest(self._path)\n        writer =",
        "        writer =",
        test="unit/wheel/storage/timelines/test_kinds.py::test_a_killed_batch_is_finished_by_dequeue",
    ),
    "rocksdb-not-refreshed": Planted(
        "2",
        "a closing does not wait for what ingest has appended",
        "wheel/storage/data_directory.py",
        "            self.timeline.refresh(commit.batch)\n            yield",
        "            yield",
        test="unit/wheel/storage/timelines/test_kinds.py::test_a_killed_batch_is_finished_by_dequeue",
    ),
    "rocksdb-batches": Planted(
        "2",
        "a reader does without a table that it cannot open",
        "wheel/storage/timelines/rocksdb_timeline.py",
        "        if files != self._files:\n",
        "        if self._files is not None and files != self._files:\n",
        test="unit/wheel/storage/timelines/test_rocksdb_timeline.py::test_a_table_that_a_reader_cannot_read_is_damage",
    ),
    "far-chain": Planted(
        "2",
        "rows of far slots do not lead to those before them",
        "wheel/storage/timelines/chain_ends.py",
        "found[rows] = ends[slots[rows] - first_slot_of_hour(hour, self._precision_ms)]\n",
        "pass\n",
    ),
    "far-lap": Planted(
        "2",
        "slots are linked over those of an earlier lap that are not delivered",
        "wheel/slots.py",
        "return (lower + self.ring) // step * step - 1",
        "return (lower + 2 * self.ring) // step * step - 1",
        seed=2,
    ),
    "far-rebuilt": Planted(
        "2",
        "a wheel rebuilt from the logs also links rows beyond the ring",
        "wheel/recovery/rebuild.py",
        "runs.where(runs.slot <= directory.state.linked)",
        "runs",
        test=FAR + "test_a_power_loss_keeps_what_is_not_linked",
    ),
    "far-rest": Planted(
        "2",
        "the rest of a range beyond the ring is closed with the C of the range before",
        "wheel/dequeue/loop.py",
        "close._replace(lower=r, marks_before=close.marks)",
        "close._replace(lower=r, marks=close.marks_before)",
        seed=2,
    ),
}
